"""The first process of a pid namespace: gives up what it does not need, starts the outpost, collects orphans."""

import ctypes
import fcntl
import glob
import os
import shutil
import signal

DEATH_SIGNAL, DUMPABLE = 1, 4


def stand_first(user: int) -> None:
    """Returns in the outpost's process only. When that one ends, the kernel ends all others of the namespace."""
    prctl = ctypes.CDLL(None).prctl
    os.chmod("/dev/shm", 0o1777)
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        # Forgotten by the kernel at a change of user.
        prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    # Commands run as the same user: closes our memory and our end of the line to them.
    prctl(DUMPABLE, 0, 0, 0, 0)
    sweep("/tmp/remote-sandbox-%d" % os.getuid())
    # From here on a complaint would fall between the frames.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    outpost = os.fork()
    if outpost:
        await_end(outpost)


def await_end(outpost: int) -> None:
    # A first process without handlers cannot be signalled from inside.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.close(0)
    os.close(1)
    while os.wait()[0] != outpost:
        pass
    os._exit(0)


def sweep(base: str) -> None:
    """Remove the folders of keepers that died before they had a run: named by pids, which begin anew here."""
    for folder in glob.glob(base + "/.new-*"):
        try:
            with open(folder + "/run") as record:
                fcntl.flock(record, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            # Alive, in the namespace of another server on the same folder.
            continue
        except OSError:
            pass
        shutil.rmtree(folder, ignore_errors=True)
