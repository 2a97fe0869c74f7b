"""The first process of a pid namespace: gives up what it does not need, starts the outpost, collects orphans."""

import ctypes
import os
import signal

DUMPABLE = 4


def stand_first(user: int) -> None:
    """Returns in the outpost's process only. When that one ends, the kernel ends all others of the namespace."""
    prctl = ctypes.CDLL(None).prctl
    prctl(DUMPABLE, 0, 0, 0, 0)
    os.chmod("/dev/shm", 0o1777)
    outpost = os.fork()
    if outpost:
        await_end(outpost)
    # The first process stays who it is: a death signal reaches it from its parent only while they are the same user.
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    # Commands run as the same user: closes our memory and our end of the line to them.
    prctl(DUMPABLE, 0, 0, 0, 0)
    # Needed to find Python's own libraries, and nobody else's.
    os.environ.pop("LD_LIBRARY_PATH", None)
    # From here on a complaint would fall between the frames.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def await_end(outpost: int) -> None:
    # A first process without handlers cannot be signalled from inside.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.closerange(0, 3)
    while os.wait()[0] != outpost:
        pass
    os._exit(0)
