"""What a target expects of entries: what they have to be when they come, and what they replace."""

import errno
import os
import stat

from .place import to_bytes
from .source import CHANGED, names_in_order
from .tree import Refusal

MYPY = False
if MYPY:
    from typing import Any

# Said of the target's entry where that could not be read at the scan.
UNKNOWN = b"?"
EDITED = "was changed at the target since the sync began, and is kept as it is; sync again to replace it"
OTHER_KIND = "is not what its machine listed (it came as something else); sync again to be sure"


class Expected:
    """What an entry has to be as the plan says, whatever comes, and what the scan found in its place."""

    def __init__(self, wanted: bytes, found: bytes) -> None:
        self.found = found
        self.mode = int(wanted[1:].partition(b" ")[0], 8) & 0o7777
        self.link = wanted.split(b" ", 3)[3] if wanted.startswith(b"l") else None

    def check(self, mode: int, data: "bytes | memoryview") -> None:
        """Raise OSError where something else came: its machine has changed it since the scan, or means harm."""
        if (stat.S_ISREG if self.link is None else stat.S_ISLNK)(mode):
            if self.link is None or self.link == bytes(data):
                return
            raise OSError(errno.ESTALE, CHANGED)
        raise OSError(errno.ESTALE, OTHER_KIND)

    def described(self, mtime: int, size: int) -> bytes:
        """As a scan would have it. Another sync of the same may have been quicker."""
        return b"f %d %d" % (size, mtime) if self.link is None else b"l " + self.link


def expected_entries(order: "dict[str, Any]", raw: bytes) -> "list[tuple[bytes, bytes, Expected]]":
    """Folder and name of each entry that is to come, and what it has to be."""
    names, wanted = list(names_in_order(raw)), order["wanted"]
    if len(names) != len(wanted):
        raise Refusal("broken", "%d names for %d entries" % (len(names), len(wanted)))
    entries = [(folder, name, to_bytes(str(wanted[at]))) for at, (folder, name) in enumerate(names)]
    return [(folder, name, Expected(meta, found)) for (folder, name, meta), found in with_found(order, entries)]


def check_still(name: bytes, where: int, *metas: bytes) -> None:
    """Raise OSError where an entry is none of these by now: its user has changed it since the scan.

    One that is gone has nothing to lose. Of folders and the like the kernel itself replaces none.
    """
    try:
        now = os.stat(name, dir_fd=where, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not any(is_described(name, where, now, meta) for meta in metas):
        raise OSError(errno.ESTALE, EDITED)


def is_described(name: bytes, where: int, now: os.stat_result, meta: bytes) -> bool:
    """Whether an entry is as a meta says, by size and time, or by where it leads."""
    if meta == UNKNOWN or not (stat.S_ISREG(now.st_mode) or stat.S_ISLNK(now.st_mode)):
        return True
    if stat.S_ISLNK(now.st_mode):
        if meta.startswith(b"l"):
            return meta.endswith(b" " + os.readlink(name, dir_fd=where))
        # A single file was looked at through the link that its user named.
        return meta.startswith(b"f") and is_described_beyond(name, where, meta)
    return meta.startswith(b"f") and meta.endswith(b" %d %d" % (now.st_size, now.st_mtime_ns))


def is_described_beyond(name: bytes, where: int, meta: bytes) -> bool:
    try:
        now = os.stat(name, dir_fd=where)
    except OSError:
        return False
    return stat.S_ISREG(now.st_mode) and meta.endswith(b" %d %d" % (now.st_size, now.st_mtime_ns))


def with_found(order: "dict[str, Any]", entries: "list[Any]") -> "list[tuple[Any, bytes]]":
    """Each entry of a request with what the scan found in its place. Raises Refusal."""
    told = order.get("found")
    if told is None:
        return [(entry, UNKNOWN) for entry in entries]
    if len(told) != len(entries):
        raise Refusal("broken", "%d entries, but %d of them were found" % (len(entries), len(told)))
    return [(entry, to_bytes(str(told[at]))) for at, entry in enumerate(entries)]
