"""Receives large files: a partial file beside the final place, written by any number of lanes, then renamed."""

import errno
import fcntl
import os
import stat
import struct

from ..outpost.place import state_of, to_bytes
from .chunks import holes_and_data, index_of, same_size_blocks
from .expected import UNKNOWN, check_still
from .source import PIECE
from .tree import PARTIAL, BadName, Refusal, Root, checked_name, open_up

MYPY = False
if MYPY:
    from ...core import orders

# A piece that the old file has: offset in the new file, offset in the old file, length.
SAME = struct.Struct(">QQI")
ZEROS = bytes(1 << 16)
# Files from this size on are synced to the disk before they are put in place: sending one again would take longer. A
# smaller one that a power cut damaged shows by its size or time.
FLUSHED_FROM = 16 << 20


class Large:
    """A large file that is being received: its partial file, locked by all lanes that write it, and the old file."""

    def __init__(self, folder: bytes, name: bytes, partial: bytes, fd: int, size: int, fresh: bool) -> None:
        self.folder = folder
        self.name = name
        self.partial = partial
        self.fd = fd
        self.size = size
        self.fresh = fresh
        self.old, self.old_state = -1, ""

    def close(self) -> None:
        for fd in (self.fd, self.old):
            if fd >= 0:
                os.close(fd)


class LargeFiles:
    """The large files that a lane is writing, by key."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.large: "dict[bytes, Large]" = {}

    def close(self) -> None:
        for large in self.large.values():
            large.close()

    def begin(self, order: "orders.BeginOrder", raw: bytes) -> "orders.BeginAnswer":
        """Find or make the partial file; answers whether it is new, and what the old file is."""
        folder, name, key = raw.split(b"\0")
        size = int(order["size"])
        if key in self.large:
            raise Refusal("busy", "%r is being received already" % key)
        checked_name(name)
        where = self.root.folder(folder, make=True)
        fd, partial, fresh = self.open_partial(where, PARTIAL + checked_name(key), bool(order.get("first")))
        try:
            os.ftruncate(fd, size)
        except BaseException:
            # Closing releases the lock, which would keep other transfers from this file.
            os.close(fd)
            raise
        large = self.large[key] = Large(folder, name, partial, fd, size, fresh)
        end: "orders.BeginAnswer" = {"fresh": fresh, "partial": partial.decode()}
        old = self.open_old(large, where)
        if old:
            end["old"] = old
        return end

    def open_partial(self, where: int, partial: bytes, first: bool) -> "tuple[int, bytes, bool]":
        """Open and lock the partial file; returns it, its name, and whether it is new."""
        # The lock is shared by the lanes of one transfer. With `first` it has to be free: if another transfer holds
        # it, a file of another name is used.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(partial, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=where)
            fcntl.flock(fd, fcntl.LOCK_SH)
            return fd, partial, True
        except PermissionError:
            if os.fstat(where).st_mode & 0o700 == 0o700:
                raise
            open_up(where)
            return self.open_partial(where, partial, first)
        except FileExistsError:
            pass
        try:
            fd = os.open(partial, flags, dir_fd=where)
        except FileNotFoundError:
            return self.open_partial(where, partial, first)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Refusal("in_the_way", "%s is in the way" % partial.decode())
        if first:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                # Another transfer is writing it.
                os.close(fd)
                return self.open_partial(where, partial + b"-" + os.urandom(4).hex().encode(), False)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if not is_still(fd, partial, where):
            # It was put in place or removed between opening and locking it.
            os.close(fd)
            return self.open_partial(where, partial, first)
        return fd, partial, False

    def open_old(self, large: Large, where: int) -> "orders.OldFile | None":
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            large.old = os.open(large.name, flags, dir_fd=where)
        except OSError:
            return None
        found = os.fstat(large.old)
        if not stat.S_ISREG(found.st_mode):
            return None
        large.old_state = state_of(found)
        return {"size": found.st_size, "state": large.old_state}

    def join(self, order: "orders.JoinOrder", raw: bytes) -> "orders.Nothing":
        """Have this lane write a partial file that another lane has begun."""
        folder, name, key, partial = raw.split(b"\0")
        if key not in self.large:
            where = self.root.folder(folder)
            checked_name(name)
            if not checked_name(partial).startswith(PARTIAL):
                raise BadName("%r is no partial file" % partial)
            fd = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=where)
            fcntl.flock(fd, fcntl.LOCK_SH)
            large = Large(folder, name, partial, fd, int(order["size"]), bool(order["fresh"]))
            self.large[key] = large
            self.open_old(large, where)
        return {}

    def index_old(self, order: "orders.IndexOldOrder", raw: bytes) -> bytes:
        key, _, mark = raw.partition(b"\0")
        return index_of(self.large[key].old, mark)

    def partial_blocks(self, order: "orders.PartialBlocksOrder", raw: bytes) -> bytes:
        fd = self.large[raw].fd
        return same_size_blocks(fd, int(order["start"]), int(order["count"]), int(order["block"]))

    def write_part(self, key: bytes, body: memoryview) -> int:
        large = self.large[key]
        offset, hole = map(int, PIECE.unpack_from(body))
        data = body[PIECE.size :]
        if offset + hole + len(data) > large.size:
            raise Refusal("bounds", "a part that lies beyond the end of its file")
        if hole and not large.fresh:
            for start, length, filled in list(holes_and_data(large.fd, offset, hole)):
                if filled:
                    self.write_zeros(large.fd, start, length)
        write_at(large.fd, data, offset)
        return hole + len(data)

    def write_zeros(self, fd: int, offset: int, length: int) -> None:
        for at in range(offset, offset + length, len(ZEROS)):
            write_at(fd, memoryview(ZEROS)[: offset + length - at], at)

    def copy_parts(self, key: bytes, body: memoryview) -> int:
        large = self.large[key]
        total = 0
        for offset, place, length in SAME.iter_unpack(body):
            if offset + length > large.size or large.old < 0:
                raise Refusal("bounds", "a part that lies beyond the end of its file")
            for start, size, filled in list(holes_and_data(large.old, place, length)):
                # A new partial file is one hole, so holes need no copying.
                if filled or not large.fresh:
                    copy_range(large.old, large.fd, start, offset + start - place, size)
            total += length
        return total

    def commit(self, order: "orders.CommitOrder", raw: bytes) -> "orders.CommitAnswer":
        """Put a file whose parts are all there in place."""
        large = self.large.pop(raw)
        try:
            size, mtime = int(order["size"]), int(order["mtime"])
            where = self.root.folder(large.folder, make=True)
            found = to_bytes(str(order.get("found", UNKNOWN.decode())))
            # If this raises, the partial file stays and the next sync resumes it, as after a cut.
            check_still(large.name, where, found, b"f %d %d" % (size, mtime))
            if large.old_state and order.get("uses_old") and state_of(os.fstat(large.old)) != large.old_state:
                raise Refusal("stale", "the old file changed while its parts were used")
            os.ftruncate(large.fd, size)
            os.fchmod(large.fd, int(order["mode"]))
            os.utime(large.fd, ns=(mtime, mtime))
            if large.size >= FLUSHED_FROM:
                os.fsync(large.fd)
            os.rename(large.partial, large.name, src_dir_fd=where, dst_dir_fd=where)
            return {"state": state_of(os.fstat(large.fd))}
        finally:
            large.close()

    def leave(self, order: "orders.LeaveOrder", raw: bytes) -> "orders.Nothing":
        """Have this lane close a large file; its partial file stays."""
        if raw in self.large:
            self.large.pop(raw).close()
        return {}


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of the data: a disk that is nearly full takes a part, and reports an error only on the next write."""
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


def is_still(fd: int, name: bytes, where: int) -> bool:
    """Whether a name still refers to the file that was opened by it."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=where, follow_symlinks=False))
    except FileNotFoundError:
        return False


def copy_range(source: int, target: int, start: int, offset: int, length: int) -> None:
    """Copy by copy_file_range, where some file systems share the blocks instead; otherwise by reading and writing."""
    copied = 0
    try:
        while copied < length and hasattr(os, "copy_file_range"):
            step = os.copy_file_range(source, target, length - copied, start + copied, offset + copied)
            if not step:
                break
            copied += step
    except OSError as problem:
        if problem.errno not in (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ETXTBSY):
            raise
    while copied < length:
        data = os.pread(source, min(1 << 20, length - copied), start + copied)
        if not data:
            raise Refusal("stale", "the old file changed while its parts were used")
        write_at(target, memoryview(data), offset + copied)
        copied += len(data)
