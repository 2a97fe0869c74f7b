"""The receiving side of a lane: puts each file in place in one step, and never writes outside of its tree."""

import contextlib
import errno
import fcntl
import os
import stat
import struct
import zlib
from typing import Any, Callable, Iterator

from ..outpost.place import closing_fd, to_text
from ..outpost.wire import COPY, FILES, MAX_BODY, PART
from .expected import UNKNOWN, Expected, check_still, expected_entries, with_found
from .large import LargeFiles, is_still
from .source import ENTRY, LARGEST_WHOLE, zstd
from .tree import (
    FAILURES,
    OURS,
    PARTIAL,
    BadName,
    Problems,
    Refusal,
    Root,
    checked_name,
    child,
    explained,
    is_abandoned,
    open_up,
    own_stem,
    paths_in,
)

MYPY = False
if MYPY:
    from ...core import orders

# Mode, modification time and length of the path that follows.
ATTRIBUTES = struct.Struct(">IqH")
NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
# Flags for a file without a name, which only Linux has, and not on every file system.
UNNAMED = getattr(os, "O_TMPFILE", 0) and os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
# By linking from here, an open file without a name gets one.
DESCRIPTORS = "/proc/self/fd"


def attributes_in(raw: bytes) -> "Iterator[tuple[bytes, int, int]]":
    """Path, mode and modification time of each entry of a request."""
    at = 0
    while at < len(raw):
        mode, mtime, length = ATTRIBUTES.unpack_from(raw, at)
        at += ATTRIBUTES.size + length
        yield raw[at - length : at], mode, mtime


def expand(body: memoryview) -> "tuple[int, memoryview]":
    """Decompress a frame into its kind and body, within the size that a frame may have. Raises Refusal."""
    kind, way, packed, other = body[0], body[1], body[2:], zstd()
    try:
        if way == ord("s") and other:
            expander = other.ZstdDecompressor()
        elif way == ord("z"):
            expander = zlib.decompressobj()
        else:
            raise Refusal("broken", "a frame is compressed in a way that is not known here")
        data = expander.decompress(packed, MAX_BODY)
    except (zlib.error, getattr(other, "ZstdError", zlib.error)):
        raise Refusal("broken", "a compressed frame cannot be read")
    if not expander.eof:
        raise Refusal("broken", "a compressed frame is too long, or cut off")
    return kind, memoryview(data)


# Of how many files in one request it is seen whether they keep what they are given; and of one of each further mode.
ROUGH_TRIES = 4


def fill(fd: int, mode: int, mtime: int, data: memoryview) -> None:
    """Give a new file its content and time, and the set-id and sticky bits, which open() does not set."""
    written = os.write(fd, data)
    while written < len(data):
        # The next attempt says why: no space, a quota, or a limit on the size of files.
        written += os.write(fd, data[written:])
    if mode & 0o7000:
        os.fchmod(fd, mode & 0o7777)
    os.utime(fd, ns=(mtime, mtime))


def open_descriptors() -> int:
    """The folder of this process's own descriptors; -1 if there is none."""
    try:
        return os.open(DESCRIPTORS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1


class Target:
    """The tree that a lane writes to."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.stem = own_stem()
        self.made = 0
        self.large = LargeFiles(root)
        self.descriptors = open_descriptors() if UNNAMED else -1

    def close(self) -> None:
        if self.descriptors >= 0:
            os.close(self.descriptors)
        self.large.close()
        self.root.close()

    # Small entries

    def put(self, folder: bytes, name: bytes, expected: Expected, mtime: int, data: memoryview) -> None:
        """Write a file under a temporary name, then rename it over the old one: there is always one. Raises OSError."""
        # Before that, the old one must still be what the scan found, or already be what came.
        where = self.root.folder(folder, make=True)
        if self.descriptors >= 0 and expected.is_new and self.put_new(name, where, expected.mode, mtime, data):
            return
        self.made += 1
        fresh = self.stem + b"%d" % self.made
        try:
            self.create(fresh, where, expected, mtime, data)
        except PermissionError:
            open_up(where)
            self.create(fresh, where, expected, mtime, data)
        try:
            check_still(name, where, expected.found, expected.described(mtime, len(data)))
            os.rename(fresh, name, src_dir_fd=where, dst_dir_fd=where)
        except BaseException:
            os.unlink(fresh, dir_fd=where)
            raise

    def put_new(self, name: bytes, where: int, mode: int, mtime: int, data: memoryview) -> bool:
        """Write a file without a name, then link it to its name, which the kernel refuses if that is taken by then."""
        # False if it is, or if this file system cannot do it; then nothing has happened.
        try:
            fd = os.open(b".", UNNAMED, mode & 0o777, dir_fd=where)
        except OSError as problem:
            # EACCES is about this folder only: put() opens it up.
            if problem.errno != errno.EACCES:
                self.use_names()
            return False
        try:
            fill(fd, mode, mtime, data)
            os.link("%d" % fd, name, src_dir_fd=self.descriptors, dst_dir_fd=where)
            return True
        except FileExistsError:
            return False
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.use_names()
            return False
        finally:
            os.close(fd)

    def use_names(self) -> None:
        """Stop trying files without a name: this file system cannot make or link them."""
        os.close(self.descriptors)
        self.descriptors = -1

    def create(self, fresh: bytes, where: int, expected: Expected, mtime: int, data: memoryview) -> None:
        mode = expected.mode
        if expected.link is not None:
            os.symlink(expected.link, fresh, dir_fd=where)
            with contextlib.suppress(OSError, NotImplementedError):
                os.utime(fresh, ns=(mtime, mtime), dir_fd=where, follow_symlinks=False)
            return
        fd = os.open(fresh, NEW, mode & 0o777, dir_fd=where)
        try:
            fill(fd, mode, mtime, data)
        except BaseException:
            os.unlink(fresh, dir_fd=where)
            raise
        finally:
            os.close(fd)

    # Folders, deletions, leftovers

    def clear(self, order: "orders.ClearOrder", raw: bytes) -> "orders.ProblemsAnswer":
        """Remove files, links and empty folders that are in the way of an entry of another kind."""
        problems = Problems()
        for path, found in with_found(order, paths_in(raw)):
            folder, _, name = path.rpartition(b"/")
            try:
                where = self.root.folder(folder)
                try:
                    check_still(checked_name(name), where, found)
                    self.remove(where, checked_name(name))
                except PermissionError:
                    open_up(where)
                    self.remove(where, name)
            except (OSError, BadName) as problem:
                problems.note(path, problem)
        self.root.forget()
        return problems.fields()

    def remove(self, where: int, name: bytes) -> None:
        try:
            os.unlink(name, dir_fd=where)
        except (IsADirectoryError, PermissionError) as problem:
            if not stat.S_ISDIR(os.stat(name, dir_fd=where, follow_symlinks=False).st_mode):
                raise problem
            os.rmdir(name, dir_fd=where)

    def delete(self, order: "orders.DeleteOrder", raw: bytes) -> "orders.DeleteAnswer":
        """Delete files, then folders from the deepest up; a folder that is not empty stays."""
        files, _, folders = raw.partition(b"\0\0")
        problems, deleted, emptied = Problems(), 0, 0
        for path, found in with_found(order, paths_in(files)):
            deleted += self.delete_one(path, os.unlink, found, problems)
        self.root.forget()
        for path in paths_in(folders):
            emptied += self.delete_one(path, os.rmdir, UNKNOWN, problems)
        self.root.forget()
        return {**problems.fields(), "files": deleted, "dirs": emptied}

    def delete_one(self, path: bytes, how: "Callable[..., None]", found: bytes, problems: Problems) -> int:
        """Delete one entry; returns 1 if it was deleted, else 0."""
        folder, _, name = path.rpartition(b"/")
        try:
            where = self.root.folder(folder)
            check_still(checked_name(name), where, found)
            try:
                how(name, dir_fd=where)
            except PermissionError:
                open_up(where)
                how(name, dir_fd=where)
            return 1
        except (OSError, BadName) as problem:
            if getattr(problem, "errno", 0) not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                problems.note(path, problem)
            return 0

    def finish(self, order: "orders.FinishOrder", raw: bytes) -> "orders.FinishAnswer":
        """Give folders their modes and times, from the deepest up, after everything was written into them."""
        problems, made = Problems(), 0
        for path, mode, mtime in attributes_in(raw):
            try:
                fd = self.root.folder(path, make=True)
                os.chmod(fd, mode & 0o7777)
                os.utime(fd, ns=(mtime, mtime))
                made += 1
            except (OSError, BadName) as problem:
                problems.note(path, problem)
        self.root.forget()
        return {**problems.fields(), "made": made}

    def touch(self, order: "orders.TouchOrder", raw: bytes) -> "orders.ProblemsAnswer":
        """Give files whose content is already right their mode and time."""
        problems = Problems()
        for (path, mode, mtime), found in with_found(order, list(attributes_in(raw))):
            folder, _, name = path.rpartition(b"/")
            try:
                # With the source's time, later syncs would take a file edited meanwhile for a copy of the source.
                check_still(checked_name(name), self.root.folder(folder), found)
                self.touch_one(folder, name, mode, mtime)
            except (OSError, BadName) as problem:
                problems.note(path, problem)
        return problems.fields()

    def touch_one(self, folder: bytes, name: bytes, mode: int, mtime: int) -> None:
        where = self.root.folder(folder)
        found = os.stat(name, dir_fd=where, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no longer a file")
        if not found.st_mode & 0o400:
            # Its owner cannot open it with this mode, and only opening it with O_NOFOLLOW tells it from a link.
            os.chmod(name, 0o600, dir_fd=where)
        with closing_fd(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=where)) as fd:
            os.fchmod(fd, mode & 0o7777)
            os.utime(fd, ns=(mtime, mtime))

    def tidy(self, order: "orders.TidyOrder", raw: bytes) -> "orders.TidyAnswer":
        """Remove files that an earlier transfer left under temporary names, unless another one still writes them."""
        removed = 0
        for path in paths_in(raw):
            folder, _, name = path.rpartition(b"/")
            with contextlib.suppress(OSError, BadName):
                where = self.root.folder(folder)
                if checked_name(name).startswith(PARTIAL):
                    removed += self.remove_partial(name, where)
                elif name.startswith(OURS) and is_abandoned(name, os.stat(name, dir_fd=where, follow_symlinks=False)):
                    os.unlink(name, dir_fd=where)
                    removed += 1
        return {"removed": removed}

    def remove_partial(self, name: bytes, where: int) -> int:
        """Remove a partial file while holding its lock. Raises OSError if another transfer has the lock."""
        with closing_fd(os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=where)) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_still(fd, name, where):
                os.unlink(name, dir_fd=where)
                return 1
            return 0


class Receiving:
    """Takes the frames of one request. After a failure the rest is dropped, and the answer says why."""

    def __init__(self, target: "Any", order: "orders.ReceiveOrder", raw: bytes) -> None:
        self.target = target
        self.entries = [] if order.get("large") else expected_entries(order, raw)
        self.key = raw if order.get("large") else b""
        self.problems = Problems()
        self.otherwise: "list[list[str]]" = []
        self.files = self.bytes = 0
        # How many bytes of small entries may still come; an earlier version does not say.
        self.room = int(order.get("most", 1 << 62))
        # What the file system does not keep as it is told, and the modes with which that was tried.
        self.rough: "set[str]" = set()
        self.tried: "set[int]" = set()
        self.failure: "Refusal | None" = None

    def take(self, kind: int, body: memoryview) -> None:
        if self.failure:
            return
        try:
            if self.key and kind == COPY:
                self.bytes += self.target.large.copy_parts(self.key, body)
            elif self.key and kind == PART:
                self.bytes += self.target.large.write_part(self.key, body)
            elif kind == FILES and not self.key:
                for entry in self.incoming(body):
                    self.put(*entry)
            else:
                raise Refusal("broken", "a frame of kind %d was not expected" % kind)
        except FAILURES as problem:
            self.fail(problem)

    def fail(self, problem: Exception) -> None:
        what = "what came is not what was announced (%s)" % type(problem).__name__
        self.failure = Refusal(*explained(problem, what))

    def incoming(self, body: "Any") -> "Iterator[tuple[bytes, bytes, Expected, int, int, Any]]":
        """The small entries of a frame: folder, name, what is expected of it, mode, time and content."""
        at = 0
        while at < len(body):
            number, mode, mtime, length = ENTRY.unpack_from(body, at)
            at += ENTRY.size + length
            if at > len(body) or length > LARGEST_WHOLE:
                raise struct.error
            self.room -= length
            if self.room < 0:
                raise Refusal("bounds", "far more came than its machine had listed; sync again to be sure")
            yield self.entries[number] + (mode, mtime, body[at - length : at])

    def put(self, folder: bytes, name: bytes, expected: Expected, mode: int, mtime: int, data: memoryview) -> None:
        try:
            expected.check(mode, data)
            self.target.put(folder, checked_name(name), expected, mtime, data)
            self.note_put(child(folder, name), expected, mtime, len(data))
            if expected.link is None and (expected.mode not in self.tried or self.files < ROUGH_TRIES):
                self.compare_kept(folder, name, expected.mode, mtime)
        except (OSError, BadName, OverflowError, ValueError) as problem:
            self.problems.note(child(folder, name), problem)

    def note_put(self, path: bytes, expected: Expected, mtime: int, size: int) -> None:
        self.files += 1
        self.bytes += size
        put = expected.as_put(mtime, size)
        if put:
            self.otherwise.append([to_text(path), to_text(put)])

    def compare_kept(self, folder: bytes, name: bytes, mode: int, mtime: int) -> None:
        """Note whether a file that was put in place has its mode and time: some file systems keep none, or round it."""
        self.tried.add(mode)
        now = os.stat(name, dir_fd=self.target.root.folder(folder), follow_symlinks=False)
        if (now.st_mode ^ mode) & 0o777:
            self.rough.add("m")
        if now.st_mtime_ns != mtime:
            self.rough.add("t")

    def result(self) -> "orders.ReceiveAnswer":
        """The answer, after all frames are written. Raises Refusal."""
        if self.failure:
            raise self.failure
        answer: "orders.ReceiveAnswer" = {
            "problems": self.problems.listed,
            "problem_count": self.problems.count,
            "unread": self.problems.unread,
            "files": self.files,
            "bytes": self.bytes,
            "otherwise": self.otherwise,
        }
        if self.rough:
            answer["rough"] = "".join(sorted(self.rough))
        return answer
