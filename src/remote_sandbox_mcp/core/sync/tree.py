"""A tree of files as a value: the scan's bytes are kept as they are, and parsed only where two sides differ."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..errors import FileProblem
from ..sandboxes.files import Problem

FOLDER = struct.Struct(">HII")
# More than this is broken or hostile: three million entries take some 200 MB.
MOST_BYTES, MOST_FOLDERS, MOST_ENTRIES = 256 << 20, 1_000_000, 3_000_000
# Size of one part of a scan, as far/tree.py sends it.
LARGEST_PART = 8 << 20
SECOND = 10**9
MOST = (1 << 63) - 1
SPECIAL = 0o7000
# A kind and three octal digits: a mode without special bits.
PLAIN_HEAD = 4
UP = b".."
# What is raised where the end of a listing makes no sense.
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
LEADS_OUT = "skipped: it is a link that leads out of the folder"


class Meta(NamedTuple):
    """Kind (f, d or l), mode, size and time of an entry: all that must be equal for it to be unchanged."""

    kind: str
    mode: int
    size: int
    mtime: int
    target: bytes = b""


def read_meta(text: bytes) -> Meta:
    """Raises ValueError, IndexError."""
    fields = text.split(b" ", 3)
    kind = fields[0][:1].decode("ascii")
    if kind not in "fdl":
        raise ValueError(kind)
    mode, size, mtime = int(fields[0][1:], 8), int(fields[1]), int(fields[2])
    if not (0 <= mode <= 0o7777 and 0 <= size <= MOST and -MOST <= mtime <= MOST):
        raise ValueError(text)
    if size and kind != "f":
        raise ValueError(text)
    return Meta(kind, mode, size, mtime, fields[3] if kind == "l" else b"")


def size_of(text: bytes) -> int:
    """The size alone, because most entries need nothing else. Raises ValueError, IndexError."""
    size = int(text.split(b" ", 2)[1])
    if size < 0:
        raise ValueError(size)
    return size


def has_special_bits(text: bytes) -> bool:
    """Whether a mode has more than three digits (setuid, setgid, sticky), which is quick to see."""
    return text[PLAIN_HEAD : PLAIN_HEAD + 1] != b" "


def without_special_bits(text: bytes, found: bytes) -> bytes:
    """A meta without setuid, setgid and sticky bits. A folder keeps those that the target's own (`found`) also has."""
    head, _, rest = text.partition(b" ")
    if len(head) <= PLAIN_HEAD or text == found:
        return text
    kept = int(found.partition(b" ")[0][1:], 8) if head[:1] == found[:1] == b"d" else 0
    return b"%s%o %s" % (head[:1], int(head[1:], 8) & ~(SPECIAL & ~kept), rest)


def leads_out(folder: bytes, target: bytes) -> bool:
    """Whether a link in a folder may lead out of the tree, whatever the tree's other links are."""
    names = [name for name in target.split(b"/") if name not in (b"", b".")]
    climbs = next((at for at, name in enumerate(names) if name != UP), len(names))
    depth = len(folder.split(b"/")) if folder else 0
    return target.startswith(b"/") or climbs > depth or UP in names[climbs:]


def text_of(path: bytes) -> str:
    """A path as JSON and people have it: bytes that are not UTF-8 come back as they were by `bytes_of`."""
    return path.decode("utf-8", "surrogateescape")


def bytes_of(text: object) -> bytes:
    return str(text).encode("utf-8", "surrogateescape")


def child(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def is_name(name: bytes) -> bool:
    return bool(name) and name not in (b".", b"..") and b"/" not in name


@dataclass
class Tree:
    """One end of a transfer as scanned. `folders` maps a folder to its raw entries, `counts` to its number of files."""

    kind: str
    path: str
    real: str
    home: str
    meta: bytes = b""
    folders: dict[bytes, bytes] = field(default_factory=dict)
    counts: dict[bytes, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    problem_count: int = 0
    unread: int = 0
    hits: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    gitignores: tuple[tuple[bytes, bytes], ...] = ()
    # What a rule about names of secrets left out: the first ones, and how many there are.
    secrets: tuple[str, ...] = ()
    secret_count: int = 0
    # The file system stores times in whole seconds.
    coarse: bool = False
    # What the file system does not keep as it is told: "m" for modes, "t" for times, which it rounds down.
    rough: frozenset[str] = frozenset()
    # Device and inode of each folder of the real path, where they are known.
    ids: tuple[tuple[int, int], ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.kind == "dir" and not self.folders.get(b"", b"")

    def entries(self, folder: bytes) -> dict[bytes, bytes]:
        """Names and metas of a folder. Raises FileProblem for something that cannot be a file name."""
        if not (block := self.folders.get(folder, b"")):
            return {}
        fields = block.split(b"\0")
        names = fields[0::2]
        if len(fields) % 2 or not all(map(is_name, names)):
            raise FileProblem(f"{self.path}: its machine named a file in a way that is not possible", "hostile")
        return dict(zip(names, fields[1::2], strict=True))


def updated(tree: Tree, part: Tree, gone: Collection[bytes]) -> Tree:
    """A tree after a listing of what differs from it: without the folders that are gone, and all in them.

    Without differences it shares its folders with the tree before. Raises ValueError if it is too large.
    """
    folders, counts = tree.folders, tree.counts
    if gone:
        folders = {folder: block for folder, block in folders.items() if not _is_in(folder, gone)}
    if part.folders:
        folders = {**folders, **part.folders}
    if folders is not tree.folders:
        _check_size(folders)
        both = {**counts, **part.counts}
        counts = {folder: both[folder] for folder in folders}
    return replace(part, folders=folders, counts=counts)


def _is_in(folder: bytes, folders: Collection[bytes]) -> bool:
    """Whether a folder is one of these, or in one of them."""
    while folder and folder not in folders:
        folder = folder.rpartition(b"/")[0]
    return folder in folders


def _check_size(folders: dict[bytes, bytes]) -> None:
    """Many small listings may add up to one that would be refused. Raises ValueError."""
    blocks = folders.values()
    if sum(map(len, blocks)) > MOST_BYTES:
        raise ValueError("it has too many bytes")
    if len(folders) > MOST_FOLDERS or sum(block.count(b"\0") for block in blocks) // 2 > MOST_ENTRIES:
        raise ValueError(f"it has more than {MOST_ENTRIES} entries or {MOST_FOLDERS} folders")


class TreeReader:
    """Takes a scan's parts as they come and counts them, so that an endless listing is refused early."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folders: dict[bytes, bytes] = {}
        self._counts: dict[bytes, int] = {}
        # Bytes of a folder that continues in the next part, and how many are needed to go on.
        self._rest, self._needed = bytearray(), FOLDER.size
        self._bytes = self._entries = 0

    def feed(self, part: bytes) -> None:
        """Raises FileProblem."""
        try:
            data = _expanded(part)
            self._bytes += len(data)
            self._take(data)
        except (ValueError, struct.error, zlib.error) as problem:
            raise self._unreadable(problem) from None

    def _take(self, data: bytes) -> None:
        """A folder may begin in one part and end in another."""
        self._rest += data
        at = 0
        with memoryview(self._rest) as whole:
            while len(whole) - at >= self._needed:
                path, block, count = FOLDER.unpack_from(whole, at)
                size = FOLDER.size + path + block
                if self._needed < size <= MOST_BYTES:
                    self._needed = size
                    continue
                if size > MOST_BYTES or self._bytes > MOST_BYTES:
                    raise ValueError("it has too many bytes")
                middle = at + FOLDER.size + path
                self._add(bytes(whole[at + FOLDER.size : middle]), bytes(whole[middle : at + size]), count)
                at, self._needed = at + size, FOLDER.size
        del self._rest[:at]

    def _add(self, folder: bytes, block: bytes, count: int) -> None:
        if folder and not all(map(is_name, folder.split(b"/"))):
            raise ValueError("it names a folder in a way that is not possible")
        if folder in self._folders:
            raise ValueError("it lists a folder twice")
        self._entries += block.count(b"\0") // 2 + 1
        self._folders[folder], self._counts[folder] = block, count
        if len(self._folders) > MOST_FOLDERS or self._entries > MOST_ENTRIES:
            raise ValueError(f"it has more than {MOST_ENTRIES} entries or {MOST_FOLDERS} folders")

    def finish(self, end: dict[str, Any]) -> Tree:
        """The tree, with the answer's last words. Raises FileProblem."""
        try:
            return self._finish(end)
        except UNREADABLE as problem:
            raise self._unreadable(problem) from None

    def finish_differences(self, end: dict[str, Any], before: Tree) -> Tree:
        """The tree after a listing of what differs from the one before. Raises FileProblem."""
        try:
            part = self._finish(end)
            if "gitignores" not in end:
                part.gitignores = before.gitignores
            return updated(before, part, frozenset(map(_folder, end["gone"])))
        except UNREADABLE as problem:
            raise self._unreadable(problem) from None

    def _finish(self, end: dict[str, Any]) -> Tree:
        tree = Tree(
            str(end["kind"]),
            str(end["path"]),
            str(end["real"]),
            str(end["home"]),
            bytes_of(end.get("meta", "")),
            problems=tuple(Problem(str(path), str(reason)) for path, reason in end.get("problems", ())),
            problem_count=int(end.get("problem_count", 0)),
            unread=int(end.get("unread", 0)),
            hits=tuple(map(str, end.get("hits", ()))),
            leftovers=tuple(map(str, end.get("leftovers", ()))),
            gitignores=tuple((bytes_of(folder), bytes_of(text)) for folder, text in end.get("gitignores", ())),
            secrets=tuple(map(str, end.get("secrets", ()))),
            secret_count=int(end.get("secret_count", 0)),
            coarse=bool(end.get("coarse")),
            ids=tuple((int(device), int(inode)) for device, inode in end.get("ids", ())),
        )
        if self._rest:
            raise ValueError("it is cut off")
        tree.folders, tree.counts = self._folders, self._counts
        return tree

    def _unreadable(self, problem: Exception) -> FileProblem:
        why = ascii(str(problem))[:100]
        return FileProblem(f"{self._path}: its machine gave a listing that cannot be read ({why})", "hostile")


def _expanded(part: bytes) -> bytes:
    if part[:1] == b"=":
        return part[1:]
    expander = zlib.decompressobj()
    data = expander.decompress(part[1:], LARGEST_PART + 1)
    if len(data) > LARGEST_PART:
        raise ValueError("a part of it has too many bytes")
    return data


def _folder(name: object) -> bytes:
    """Raises ValueError for something that cannot be the path of a folder below the top."""
    folder = bytes_of(name)
    if not all(map(is_name, folder.split(b"/"))):
        raise ValueError("it names a folder in a way that is not possible")
    return folder
