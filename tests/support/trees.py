"""Trees of files as values: drawn at random, put on a disk, changed there, and read back for comparison."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count

from hypothesis import strategies as st

MIB = 1 << 20
OURS = b".remote-sandbox-"

# Every change gives its file another time, as it would if it came a moment later.
_moments = count(1_700_000_000_000_000_001, 1_000_000_007)


@dataclass(frozen=True)
class File:
    size: int = 0
    seed: int = 0
    mode: int = 0o644
    mtime: int = 10**18

    @property
    def content(self) -> bytes:
        return noise(self.size, self.seed)


@dataclass(frozen=True)
class Link:
    target: bytes


@dataclass(frozen=True)
class Folder:
    entries: dict[bytes, Node] = field(default_factory=dict)
    mode: int = 0o755
    mtime: int = 10**18


Node = File | Link | Folder


def noise(size: int, seed: int) -> bytes:
    """Bytes that nothing compresses; every third seed gives text with lines instead, and every seventh zeros."""
    if seed % 7 == 6:
        return bytes(size)
    chance = random.Random(seed)
    if seed % 3 == 2:
        line = b"%d %s\n" % (seed, chance.randbytes(20).hex().encode())
        return (line * (size // len(line) + 1))[:size]
    return chance.randbytes(size)


# Random trees

_LETTERS = [*(b"%c" % letter for letter in b"ab-'\" \n\\*$%.#\xff\x7f"), "é".encode()]
_NAMES = st.lists(st.sampled_from(_LETTERS), min_size=1, max_size=4).map(b"".join)
_ODD = [b"-rf", b"--", b"a" * 255, "🐍".encode(), b"new\nline", b"~", b"...", b"a:b", b".gitignore", b"x "]
NAMES = st.one_of(_NAMES, _NAMES, st.sampled_from(_ODD)).filter(lambda name: name not in (b".", b".."))

TIMES = st.one_of(st.integers(-(10**18), 4 * 10**18), st.sampled_from([0, 1, -1, 10**9, 10**18 + 1]))
# Only root can read what nobody may.
CLOSED = [0o000] if os.geteuid() == 0 else []
FILE_MODES = st.sampled_from([0o644, 0o644, 0o600, 0o755, 0o444, *CLOSED, 0o4755, 0o2711, 0o777])
FOLDER_MODES = st.sampled_from([0o755, 0o755, 0o700, 0o555, *CLOSED, 0o2775, 0o1777])
# Above one MiB a file goes in parts, and from four on it is compared with what is there.
SMALL = st.one_of(st.integers(0, 300), st.sampled_from([0, 1, 4096, 65536, 300_000, MIB - 1, MIB]))
LARGE = st.sampled_from([MIB + 1, 2 * MIB, 3 * MIB - 5, 4 * MIB, 5 * MIB + 17])
SIZES = st.integers(0, 19).flatmap(lambda chance: LARGE if chance == 19 else SMALL)

FILES = st.builds(File, SIZES, st.integers(0, 30), FILE_MODES, TIMES)
_TARGETS = [b"a", b"../a", b"/nowhere/at all", b"/etc", b"/etc/passwd", b"..", b".", b"a/b", b"\xff\n'", b"x" * 300]
LINKS = st.builds(Link, st.sampled_from(_TARGETS))


def _folders(children: st.SearchStrategy[Node], least: int = 0) -> st.SearchStrategy[Folder]:
    return st.builds(Folder, st.dictionaries(NAMES, children, min_size=least, max_size=4), FOLDER_MODES, TIMES)


def _with_large(tree: Folder, seed: int) -> Folder:
    """Sometimes with a file that is worth comparing, in the same place on both sides."""
    large = Folder({LARGE_NAME: File(5 * MIB + 3 * seed, seed % 3)})
    return tree if seed > LARGE_SEEDS else replace(tree, entries={**tree.entries, LARGE_FOLDER: large})


LARGE_FOLDER, LARGE_NAME, LARGE_SEEDS = b"in", b"large", 5
_LEAVES = st.one_of(FILES, FILES, LINKS)
NODES: st.SearchStrategy[Node] = st.recursive(_LEAVES, lambda children: _folders(children, 1) | _folders(children))
TREES = st.builds(_with_large, _folders(_LEAVES | _folders(NODES, 1), 1), st.integers(0, 3 * LARGE_SEEDS))


# On a disk


def put(path: bytes, node: Node) -> None:
    """Make it; what a folder holds comes before its time."""
    if isinstance(node, Link):
        os.symlink(node.target, path)
    elif isinstance(node, File):
        with open(path, "wb") as file:
            file.write(node.content)
        os.chmod(path, node.mode)
        os.utime(path, ns=(node.mtime, node.mtime))
    else:
        os.makedirs(path, exist_ok=True)
        for name, entry in node.entries.items():
            put(path + b"/" + name, entry)
        os.chmod(path, node.mode)
        os.utime(path, ns=(node.mtime, node.mtime))


@dataclass(frozen=True)
class Seen:
    """All that has to be the same of an entry on both sides; a link's own mode and time are nobody's."""

    kind: str
    mode: int = 0
    mtime: int = 0
    content: bytes = b""


Snapshot = dict[bytes, Seen]


def walk(root: bytes, folder: bytes = b"") -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Relative path and entry of all below, a folder before what is in it."""
    for entry in sorted(os.scandir(os.path.join(root, folder)), key=lambda entry: entry.name):
        path = folder + b"/" + entry.name if folder else entry.name
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from walk(root, path)


def snapshot(root: bytes) -> Snapshot:
    """What is below a folder, without what a transfer has not yet put in place."""
    if not os.path.isdir(root):
        return {}
    return {path: _seen(entry) for path, entry in walk(root) if not entry.name.startswith(OURS)}


def leftovers(root: bytes) -> list[bytes]:
    return [path for path, entry in walk(root) if entry.name.startswith(OURS)] if os.path.isdir(root) else []


def _seen(entry: os.DirEntry[bytes]) -> Seen:
    found = entry.stat(follow_symlinks=False)
    mode, mtime = stat.S_IMODE(found.st_mode), found.st_mtime_ns
    if stat.S_ISLNK(found.st_mode):
        return Seen("link", content=os.readlink(entry.path))
    if stat.S_ISDIR(found.st_mode):
        return Seen("folder", mode, mtime)
    if not stat.S_ISREG(found.st_mode):
        return Seen("other", mode, mtime)
    with open(entry.path, "rb") as file:
        data = file.read()
    # Short content shows itself where two trees differ.
    return Seen("file", mode, mtime, data if len(data) < 100 else hashlib.sha256(data).digest())


def differences(wanted: Snapshot, found: Snapshot) -> dict[bytes, tuple[Seen | None, Seen | None]]:
    """Where two snapshots differ: what should be there, and what is."""
    paths = wanted.keys() | found.keys()
    return {path: (wanted.get(path), found.get(path)) for path in paths if wanted.get(path) != found.get(path)}


# Changes


def touch(path: bytes) -> None:
    """Give it a time that nothing else has."""
    moment = next(_moments)
    os.utime(path, ns=(moment, moment))


@contextmanager
def usable(path: bytes) -> Iterator[None]:
    """Its owner may change it meanwhile, whatever its mode is."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    os.chmod(path, mode | stat.S_IRWXU)
    try:
        yield
    finally:
        os.chmod(path, mode)


def _rewrite(path: bytes, change: Callable[[bytes], bytes]) -> None:
    with open(path, "rb") as file:
        data = file.read()
    with usable(path), open(path, "wb") as file:
        file.write(change(data))
    touch(path)


def _edit(path: bytes, seed: int) -> None:
    """A few bytes in the middle: the size stays."""
    patch = noise(50, seed)

    def change(data: bytes) -> bytes:
        at = len(data) * (seed % 8) // 8
        return data[:at] + patch[: len(data) - at] + data[at + len(patch) :]

    _rewrite(path, change)


def _remove(path: bytes) -> None:
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    os.chmod(path, stat.S_IRWXU)
    for entry in os.scandir(path):
        _remove(entry.path)
    os.rmdir(path)


def _rename(path: bytes, seed: int) -> None:
    os.rename(path, os.path.dirname(path) + b"/renamed-%d" % next(_moments))


def _replace(path: bytes, seed: int) -> None:
    """By something of another kind."""
    was_link, was_folder = os.path.islink(path), os.path.isdir(path)
    _remove(path)
    others: list[Node] = [Folder({b"inner": File(10, seed, mtime=next(_moments))}, mtime=next(_moments))]
    others += [Link(b"elsewhere"), File(20, seed, mtime=next(_moments))]
    del others[1 if was_link else 0 if was_folder else 2]
    put(path, others[seed % 2])


FILE_CHANGES: dict[str, Callable[[bytes, int], None]] = {
    "edit": _edit,
    "append": lambda path, seed: _rewrite(path, lambda data: data + noise(1 + seed * 1000, seed)),
    "truncate": lambda path, seed: _rewrite(path, lambda data: data[: len(data) // 2]),
    "insert": lambda path, seed: _rewrite(path, lambda data: noise(1 + seed, seed) + data),
    "touch": lambda path, seed: touch(path),
}
CHANGES: dict[str, Callable[[bytes, int], None]] = {
    "delete": lambda path, seed: _remove(path),
    "rename": _rename,
    "chmod": lambda path, seed: None if os.path.islink(path) else os.chmod(path, (0o740, 0o711, 0o4700)[seed % 3]),
    "kind": _replace,
}


@dataclass(frozen=True)
class Change:
    """Something that happens to one of the entries that are there."""

    what: str
    which: int
    seed: int

    def happen(self, root: bytes) -> None:
        entries = list(walk(root))
        entries += [found for found in entries if found[0] == LARGE_FOLDER + b"/" + LARGE_NAME] * len(entries)
        if self.what in FILE_CHANGES:
            entries = [(path, entry) for path, entry in entries if entry.is_file(follow_symlinks=False)]
        if entries:
            path = entries[self.which % len(entries)][1].path
            with usable(os.path.dirname(path)):
                (FILE_CHANGES | CHANGES)[self.what](path, self.seed)


CHANGE = st.builds(Change, st.sampled_from([*FILE_CHANGES, *CHANGES]), st.integers(0, 50), st.integers(0, 20))
CHANGE_LISTS = st.lists(CHANGE, max_size=8)
