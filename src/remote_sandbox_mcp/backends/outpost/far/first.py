"""The first process of a pid namespace: gives up what it does not need, starts the outpost, collects orphans."""

import _frozen_importlib_external
import ctypes
import marshal
import os
import resource
import signal
import zlib

MYPY = False
if MYPY:
    from typing import Any

DUMPABLE, NEVER_HAVE = 4, 24
MOST_RIGHTS = 64


def stand_first(user: int, limits: "dict[int, int]") -> None:
    """Returns in the outpost's process only. When that one ends, the kernel ends all others of the namespace."""
    prctl = ctypes.CDLL(None).prctl
    prctl(DUMPABLE, 0, 0, 0, 0)
    os.chmod("/dev/shm", 0o1777)
    outpost = os.fork()
    if outpost:
        await_end(outpost)
    # The first process stays who it is: a death signal reaches it from its parent only while they are the same user.
    if user:
        for right in range(MOST_RIGHTS):
            prctl(NEVER_HAVE, right, 0, 0, 0)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for number, most in limits.items():
        hard = resource.getrlimit(number)[1]
        # Nobody without rights may raise what the server was started with.
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))
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


def run_outpost(compiled: bytes, packed: bytes, kind: bytes, names: "dict[str, Any]") -> None:
    """Become the outpost, in these names; compiled already where that was done by our kind of Python."""
    is_ours = kind == _frozen_importlib_external.MAGIC_NUMBER
    names["__name__"] = "__main__"
    exec(marshal.loads(compiled) if is_ours else compile(zlib.decompress(packed), "outpost", "exec"), names)
