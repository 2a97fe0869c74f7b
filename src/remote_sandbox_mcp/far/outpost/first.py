"""The first process of a sandbox's pid namespace: drops rights, starts the outpost, collects orphans."""

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

# PR_SET_DUMPABLE and PR_CAPBSET_DROP of prctl; the number of capabilities the kernel has room for; the version of
# capset's header.
DUMPABLE, NEVER_HAVE = 4, 24
MOST_RIGHTS = 64
CAPABILITIES_OF_THREE = 0x20080522


def fork_outpost(user: int, limits: "dict[int, tuple[int, int]]", room: str = "") -> None:
    """Fork the outpost's process and return in that one only. When it ends, all others of the namespace are killed.

    `limits` are soft and hard limits by their numbers.
    `room` is where an image's root file system is mounted: the outpost's process has it as its root then.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(DUMPABLE, 0, 0, 0, 0)
    os.chmod(room + "/dev/shm", 0o1777)
    outpost = os.fork()
    if outpost:
        # The kernel drops signals from inside the namespace to its first process, unless that has a handler, as Python
        # has for SIGINT.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.closerange(0, 3)
        while os.wait()[0] != outpost:
            pass
        os._exit(0)
    # The first process keeps its user: the kernel sends its parent's death signal only to a process of the same user.
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
    for number, (soft, most) in limits.items():
        # A hard limit cannot be raised without rights.
        hard = lower(most, resource.getrlimit(number)[1])
        resource.setrlimit(number, (lower(soft, hard), hard))
    # Set so that this Python finds its libraries; the commands' programs must not use those.
    os.environ.pop("LD_LIBRARY_PATH", None)


def lower(one: int, other: int) -> int:
    return max(one, other) if resource.RLIM_INFINITY in (one, other) else min(one, other)


def check_entries(entries: "list[tuple[str, int, int]]") -> None:
    """Check that every entry of an image is the one that the server examined."""
    # They were mounted by name, and a name may have been exchanged since.
    for path, device, inode in entries:
        try:
            found = os.lstat(path)
        except OSError:
            # The server could not read it, and so did not mount it.
            continue
        if (found.st_dev, found.st_ino) != (device, inode):
            raise SystemExit("the image's entry {} was exchanged while the image was opened".format(path))


def enter(room: str) -> None:
    # This process still has rights: it must not import modules from the image.
    del sys.path[:], sys.meta_path[:]
    try:
        os.chroot(room)
        os.chdir("/")
    except OSError as problem:
        os.write(2, str(problem).encode())
        os._exit(1)


def give_up_rights() -> None:
    """Drop all capabilities. In a user namespace the user does not change, which elsewhere would drop them."""
    header, nothing = (ctypes.c_uint32 * 2)(CAPABILITIES_OF_THREE, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None).capset(header, nothing):
        os._exit(1)


def close_to_commands() -> None:
    """Close this process's memory and descriptors to commands, which run as the same user."""
    ctypes.CDLL(None).prctl(DUMPABLE, 0, 0, 0, 0)
    # Error messages of Python would end up between the frames of the protocol.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def run_outpost(compiled: bytes, packed: bytes, kind: bytes, names: "dict[str, Any]") -> None:
    """Run the outpost's program in the namespace `names`; compiled by the server already if it has the same Python."""
    is_ours = kind == _frozen_importlib_external.MAGIC_NUMBER
    names["__name__"] = "__main__"
    exec(marshal.loads(compiled) if is_ours else compile(zlib.decompress(packed), "outpost", "exec"), names)
