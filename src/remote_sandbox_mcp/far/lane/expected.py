"""Expectations of the receiving side of a sync: what each incoming entry must be, and what it may replace."""

import errno
import os
import stat

from ..outpost.place import to_bytes
from .source import CHANGED, names_in_order
from .tree import Refusal

MYPY = False
if MYPY:
    from typing import Any

    from ...core.orders import ClearOrder, DeleteOrder, ReceiveOrder, TouchOrder

# Stands for an entry of the target that the scan could not read: anything may be replaced there.
UNKNOWN = b"?"
EDITED = "was changed at the target since the sync began, and is kept as it is; sync again to replace it"
OTHER_KIND = "is not what its machine listed (it came as something else); sync again to be sure"


class Expected:
    """One incoming entry: what the plan says it must be, and what the scan found at its place."""

    def __init__(self, wanted: bytes, found: bytes) -> None:
        self.wanted = wanted
        self.found = found
        self.mode = int(wanted[1:].partition(b" ")[0], 8) & 0o7777
        self.link = link_of(wanted)
        self.kind = stat.S_IFREG if self.link is None else stat.S_IFLNK
        # A file, at a place where the scan found nothing.
        self.is_new = not found and self.link is None

    def check(self, mode: int, data: "bytes | memoryview") -> None:
        """Raise OSError if something else came: it changed at the source since the scan, or the source is hostile."""
        if stat.S_IFMT(mode) != self.kind:
            raise OSError(errno.ESTALE, OTHER_KIND)
        if self.link is not None and self.link != bytes(data):
            raise OSError(errno.ESTALE, CHANGED)

    def described(self, mtime: int, size: int) -> bytes:
        """Describe the received entry as a scan would: another sync may have put the same file in place meanwhile."""
        return b"f %d %d" % (size, mtime) if self.link is None else b"l777 0 0 " + self.link

    def as_put(self, mtime: int, size: int) -> bytes:
        """The meta of a file that was put in place, if it has another size or time than was wanted; else nothing."""
        if self.link is not None or self.wanted.endswith(b" %d %d" % (size, mtime)):
            return b""
        return b"f%o %d %d" % (self.mode, size, mtime)


def link_of(meta: bytes) -> "bytes | None":
    """The target of a link, from its meta; None for a file."""
    return meta.split(b" ", 3)[3] if meta.startswith(b"l") else None


def expected_entries(order: "ReceiveOrder", raw: bytes) -> "list[tuple[bytes, bytes, Expected]]":
    """Folder and name of each entry that is to come, and what is expected of it."""
    names, wanted, found = list(names_in_order(raw)), order["wanted"], order.get("found")
    if not len(names) == len(wanted) == len(found or names):
        raise Refusal("broken", "%d names for %d entries" % (len(names), len(wanted)))
    # Most files are new and have one of a few modes: equal expectations share one object.
    cache: "dict[tuple[str, str], Expected]" = {}
    entries = []
    each = zip(wanted, found or [UNKNOWN.decode()] * len(names))  # noqa: B905 older Pythons have no strict
    for (folder, name), metas in zip(names, each):  # noqa: B905
        expected = cache.get(metas)
        if expected is None:
            expected = cache[metas] = Expected(to_bytes(metas[0]), to_bytes(metas[1]))
        entries.append((folder, name, expected))
    return entries


def check_still(name: bytes, where: int, *metas: bytes) -> None:
    """Raise OSError if an entry matches none of these metas: somebody has changed it since the scan."""
    # An entry that is gone may be written. Folders and devices need no check: the kernel does not replace them.
    try:
        now = os.stat(name, dir_fd=where, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not any(is_described(name, where, now, meta) for meta in metas):
        raise OSError(errno.ESTALE, EDITED)


def is_described(name: bytes, where: int, now: os.stat_result, meta: bytes) -> bool:
    """Whether an entry matches a meta: a file by size and time, a link by its target."""
    if meta == UNKNOWN or not (stat.S_ISREG(now.st_mode) or stat.S_ISLNK(now.st_mode)):
        return True
    if stat.S_ISLNK(now.st_mode):
        if meta.startswith(b"l"):
            return link_of(meta) == os.readlink(name, dir_fd=where)
        # A single file was scanned through the link that the user named.
        return meta.startswith(b"f") and is_described_beyond(name, where, meta)
    return meta.startswith(b"f") and meta.endswith(b" %d %d" % (now.st_size, now.st_mtime_ns))


def is_described_beyond(name: bytes, where: int, meta: bytes) -> bool:
    """Whether the file that a link leads to matches a meta."""
    try:
        now = os.stat(name, dir_fd=where)
    except OSError:
        return False
    return stat.S_ISREG(now.st_mode) and meta.endswith(b" %d %d" % (now.st_size, now.st_mtime_ns))


def with_found(order: "ClearOrder | DeleteOrder | TouchOrder", entries: "list[Any]") -> "list[tuple[Any, bytes]]":
    """Pair each entry of a request with the scan's finding at its place. Raises Refusal."""
    listed = order.get("found")
    if listed is None:
        return [(entry, UNKNOWN) for entry in entries]
    if len(listed) != len(entries):
        raise Refusal("broken", "%d entries, but %d of them were found" % (len(entries), len(listed)))
    return [(entry, to_bytes(str(listed[at]))) for at, entry in enumerate(entries)]
