"""The sending side of a lane: reads files and sends them in frames that the receiving side writes as they are."""

import errno
import functools
import hashlib
import importlib
import os
import stat
import struct
import zlib
from typing import Any, Callable, Iterator

from ..outpost.place import closing_fd
from ..outpost.wire import DONE, FILES, HEADER, OUT, PART, SQUEEZED, frame
from .chunks import CHUNK, choose_mark, cut, digest, holes_and_data, same_size_blocks
from .tree import Problems, Root, checked_name, child

MYPY = False
if MYPY:
    from ...core.orders import BlocksOrder, CheckAnswer, Nothing, PartOrder, ProblemsAnswer

# Header of a small entry: number in the list, mode (and kind), modification time, length of its content.
ENTRY = struct.Struct(">IIqI")
# Header of a part of a large file: its offset, and the length of the hole that it stands for.
PIECE = struct.Struct(">QQ")
FLUSH = 128 << 10
# With its two headers a part is exactly eight SSH packets of 32 KiB.
PART_BYTES = (256 << 10) - HEADER.size - PIECE.size
LARGEST_WHOLE = 1 << 20
# By so many first bytes a file is taken for text.
BEGINNING = 8 << 10
CHANGED = "changed while it was read; sync again to be sure"
# How many digests go into one frame.
REPORTED_AT_ONCE = 256
# A frame is compressed if its first INSPECT_BYTES shrink below this share of their size.
INSPECT_BYTES, WORTH = 16 << 10, 0.9


def names_in_order(raw: bytes) -> "Iterator[tuple[bytes, bytes]]":
    """Folder and name of each entry, from fields: a folder, its names, an empty field, the next folder, and so on."""
    fields = iter(raw.split(b"\0"))
    for folder in fields:
        for name in fields:
            if not name:
                break
            yield folder, name


class Speaker:
    """Sends the frames of one request, compressed where that was asked for and pays."""

    def __init__(self, request: int, squeeze: str, send: "Callable[[bytes], None]", out: int = -1) -> None:
        self.request = request
        self.squeeze = squeeze
        self.send = send
        # The descriptor that `send` writes to, if sendfile may be used on it.
        self.out = out

    def say(self, kind: int, body: bytes) -> None:
        if self.squeeze and len(zlib.compress(body[:INSPECT_BYTES], 1)) < WORTH * min(len(body), INSPECT_BYTES):
            self.send(frame(SQUEEZED, self.request, bytes([kind]) + compress(self.squeeze, body)))
        else:
            self.send(frame(kind, self.request, body))

    def say_part(self, fd: int, offset: int, length: int) -> int:
        """Send a part of a file; returns how many bytes there were."""
        if not self.squeeze and self.out >= 0:
            self.send(HEADER.pack(PIECE.size + length, PART, self.request) + PIECE.pack(offset, 0))
            return self.pour(fd, offset, length)
        data = os.pread(fd, length, offset)
        if data:
            self.say(PART, PIECE.pack(offset, 0) + data)
        return len(data)

    def pour(self, fd: int, offset: int, length: int) -> int:
        """Send bytes of a file by sendfile. Its header has announced the length, so a file that shrank is padded."""
        end = offset + length
        while offset < end:
            try:
                sent = self.pour_once(fd, offset, end - offset)
            except OSError:
                # The error can be reported only after the announced bytes.
                self.send(bytes(end - offset))
                raise
            if not sent:
                self.send(bytes(end - offset))
                return 0
            offset += sent
        return length

    def pour_once(self, fd: int, offset: int, length: int) -> int:
        try:
            return os.sendfile(self.out, fd, offset, length)
        except OSError as problem:
            if problem.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.EOPNOTSUPP):
                raise
        data = os.pread(fd, length, offset)
        self.send(data)
        return len(data)

    def done(self) -> None:
        self.send(frame(DONE, self.request))


def compress(name: str, body: bytes) -> bytes:
    """Compressed data behind a letter for the method."""
    other = zstd() if name == "zstd" else None
    return b"s" + bytes(other.compress(body)) if other else b"z" + zlib.compress(body, 1)


@functools.lru_cache(maxsize=None)
def zstd() -> "Any":
    """The standard library's zstd module, which exists since Python 3.14; None before."""
    try:
        return importlib.import_module("compression.zstd")
    except ImportError:
        return None


class Source:
    """The tree that a lane sends from, and the large file that is open."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.large = b""
        self.large_fd = -1

    def close(self) -> None:
        self.let_go()
        self.root.close()

    def let_go(self) -> None:
        if self.large_fd >= 0:
            os.close(self.large_fd)
        self.large, self.large_fd = b"", -1

    def open(self, folder: bytes, name: bytes) -> "tuple[int, os.stat_result]":
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(checked_name(name), flags, dir_fd=self.root.folder(folder))
        return fd, os.fstat(fd)

    def send_whole(self, raw: bytes, speaker: Speaker) -> "ProblemsAnswer":
        """Send small files and links, each in one piece."""
        problems, pending, size = Problems(), [], 0
        for number, (folder, name) in enumerate(names_in_order(raw)):
            try:
                mode, mtime, data, changed = self.read_entry(folder, name)
            except (OSError, ValueError) as problem:
                problems.note(child(folder, name), problem)
                continue
            if changed:
                problems.note(child(folder, name), CHANGED)
            pending += [ENTRY.pack(number, mode, mtime, len(data)), data]
            size += len(data)
            if size > FLUSH:
                speaker.say(FILES, b"".join(pending))
                pending, size = [], 0
        if pending:
            speaker.say(FILES, b"".join(pending))
        speaker.done()
        return problems.fields()

    def read_entry(self, folder: bytes, name: bytes) -> "tuple[int, int, bytes, bool]":
        """Mode, time, content, and whether it changed meanwhile. A growing file is sent with the size it had first."""
        try:
            fd, found = self.open(folder, name)
        except OSError as problem:
            # These mean that it is a link.
            if problem.errno not in (errno.ELOOP, errno.EMLINK):
                raise
            where = self.root.folder(folder)
            link = os.stat(name, dir_fd=where, follow_symlinks=False)
            return link.st_mode, link.st_mtime_ns, os.readlink(name, dir_fd=where), False
        with closing_fd(fd):
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "is no longer a file")
            size = found.st_size
            data = os.read(fd, min(size, LARGEST_WHOLE))
            while len(data) < min(size, LARGEST_WHOLE):
                more = os.read(fd, min(size, LARGEST_WHOLE) - len(data))
                if not more:
                    break
                data += more
            now = os.fstat(fd)
        changed = len(data) != size or now.st_mtime_ns != found.st_mtime_ns or now.st_size != size
        return found.st_mode, found.st_mtime_ns, data, changed

    def open_large(self, folder: bytes, name: bytes) -> int:
        path = child(folder, name)
        if path != self.large or self.large_fd < 0:
            self.let_go()
            fd, found = self.open(folder, name)
            if not stat.S_ISREG(found.st_mode):
                os.close(fd)
                raise OSError(errno.EINVAL, "is no longer a file")
            self.large, self.large_fd = path, fd
        return self.large_fd

    def send_part(self, order: "PartOrder", raw: bytes, speaker: Speaker) -> "Nothing":
        """Send a part of a large file; of a hole only its length is sent."""
        folder, name = raw.split(b"\0")
        fd = self.open_large(folder, name)
        for offset, length, filled in holes_and_data(fd, int(order["offset"]), int(order["length"])):
            if not filled:
                speaker.say(PART, PIECE.pack(offset, length))
            else:
                self.say_data(fd, offset, length, speaker)
        speaker.done()
        return {}

    def say_data(self, fd: int, offset: int, length: int, speaker: Speaker) -> None:
        end = offset + length
        while offset < end:
            said = speaker.say_part(fd, offset, min(PART_BYTES, end - offset))
            if not said:
                # The file has shrunk. The near side notices by its size at the end (check_large).
                return
            offset += said

    def check_large(self, raw: bytes) -> "CheckAnswer":
        """Size, time and mode of a large file after all of it was read."""
        folder, name = raw.split(b"\0")
        found = os.fstat(self.open_large(folder, name))
        self.let_go()
        try:
            # By name: another file may have taken its place, and parts of both may have been sent.
            found = os.stat(name, dir_fd=self.root.folder(folder), follow_symlinks=False)
        except OSError:
            pass
        return {"size": found.st_size, "mtime": found.st_mtime_ns, "mode": found.st_mode & 0o7777}

    def mark(self, raw: bytes) -> bytes:
        """The bytes at which this file is cut into pieces; the receiving side cuts its old file at the same ones."""
        folder, name = raw.split(b"\0")
        fd = self.open_large(folder, name)
        return choose_mark(fd, os.fstat(fd).st_size)

    def index(self, raw: bytes, request: int, send: "Callable[[bytes], None]") -> "Nothing":
        """Send length and digest of every piece as soon as they are known."""
        folder, name, mark = raw.split(b"\0", 2)
        pending: "list[bytes]" = []
        for _, piece in cut(self.open_large(folder, name), mark):
            pending.append(CHUNK.pack(len(piece), digest(piece)))
            if len(pending) >= REPORTED_AT_ONCE:
                send(frame(OUT, request, b"".join(pending)))
                pending = []
        send(frame(OUT, request, b"".join(pending)))
        return {}

    def blocks(self, order: "BlocksOrder", raw: bytes) -> bytes:
        folder, name = raw.split(b"\0")
        fd = self.open_large(folder, name)
        return same_size_blocks(fd, int(order["start"]), int(order["count"]), int(order["block"]))

    def texts(self, raw: bytes) -> bytes:
        """One byte for each name: 1 if it is a file that begins like text, without a NUL, else 0."""
        return bytes([self.is_text(folder, name) for folder, name in names_in_order(raw)])

    def is_text(self, folder: bytes, name: bytes) -> bool:
        try:
            fd, found = self.open(folder, name)
            with closing_fd(fd):
                return stat.S_ISREG(found.st_mode) and b"\0" not in os.read(fd, BEGINNING)
        except OSError:
            return False

    def digests(self, raw: bytes) -> bytes:
        """A digest of each file's content; zeros, which equal no digest, for a file that cannot be read."""
        return b"".join([self.digest_of(folder, name) for folder, name in names_in_order(raw)])

    def digest_of(self, folder: bytes, name: bytes) -> bytes:
        whole = hashlib.sha256()
        try:
            fd, found = self.open(folder, name)
            with closing_fd(fd):
                if not stat.S_ISREG(found.st_mode):
                    return bytes(16)
                for data in iter(lambda: os.read(fd, 1 << 20), b""):
                    whole.update(data)
        except OSError:
            return bytes(16)
        return whole.digest()[:16]
