"""The first process of a pid namespace: gives up what it does not need, starts the outpost, collects orphans."""

import _frozen_importlib_external
import ctypes
import marshal
import os
import resource
import signal
import sys
import zlib

MYPY = False
if MYPY:
    from typing import Any

DUMPABLE, NEVER_HAVE = 4, 24
MOST_RIGHTS = 64
CAPABILITIES_OF_THREE = 0x20080522


def stand_first(user: int, limits: "dict[int, int]", room: str = "") -> None:
    """Returns in the outpost's process only. When that one ends, the kernel ends all others of the namespace.

    With a room, an image's system lies there: the outpost's process returns in it, and may start its programs.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(DUMPABLE, 0, 0, 0, 0)
    os.chmod(room + "/dev/shm", 0o1777)
    outpost = os.fork()
    if outpost:
        await_end(outpost)
    # The first process stays who it is: a death signal reaches it from its parent only while they are the same user.
    if user or room:
        for right in range(MOST_RIGHTS):
            prctl(NEVER_HAVE, right, 0, 0, 0)
    if room:
        enter(room)
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if room:
        give_up_rights()
    for number, most in limits.items():
        hard = resource.getrlimit(number)[1]
        # Nobody without rights may raise what the server was started with.
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))
    # Needed to find Python's own libraries, and nobody else's.
    os.environ.pop("LD_LIBRARY_PATH", None)


def check_entries(entries: "list[tuple[str, int, int]]") -> None:
    """Every entry of an image must be what the server looked at: it was bound by its name, which may have changed."""
    for path, device, inode in entries:
        try:
            found = os.lstat(path)
        except OSError:
            # Closed to the server, and so not bound.
            continue
        if (found.st_dev, found.st_ino) != (device, inode):
            raise SystemExit("the image's entry {} was exchanged while the image was opened".format(path))


def enter(room: str) -> None:
    # Nothing of the image may be taken for a part of this Python, which still has rights.
    del sys.path[:], sys.meta_path[:]
    try:
        os.chroot(room)
        os.chdir("/")
    except OSError as problem:
        os.write(2, str(problem).encode())
        os._exit(1)


def give_up_rights() -> None:
    """In a user namespace nothing else does: there is no change of users."""
    header, nothing = (ctypes.c_uint32 * 2)(CAPABILITIES_OF_THREE, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None).capset(header, nothing):
        os._exit(1)


def keep_to_itself() -> None:
    """Commands run as the same user: closes our memory and our end of the line to them."""
    ctypes.CDLL(None).prctl(DUMPABLE, 0, 0, 0, 0)
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
