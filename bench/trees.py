"""What is synced: trees of random files, one large file, source text; and whether a copy equals its source."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from .problems import BenchError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Long ago, so that no program has to wonder whether a file is still being written.
MODIFIED = 1_700_000_000
BLOB = "blob.bin"
# So many files of a large tree are read in full; of all others, name, size and time are looked at.
READ_IN_FULL = 500

_SYLLABLES = re.findall("..", "reconverlationsetparsergetketmapfilterhandlesessiontablequeryrowindex")
# As programs write it into a new package.
_IGNORED = """# Package {0}
/build/
/dist/
/generated-{0}/
*.egg-info/
.eggs/
*.py[cod]
__pycache__/
*.so
.coverage
.coverage.*
htmlcov/
.pytest_cache/
.mypy_cache/
.ruff_cache/
.venv/
*.log
*.tmp
*.swp
.cache*
.DS_Store
node_modules/
npm-debug.log*
coverage/**/*.html
"""
_SHAPES = (
    "    {0} = self.{1}({2}, {3})",
    "    if {0} is not None and {1}.{2} > {number}:",
    "        return {0}[{number}].{1}({2})",
    "    for {0} in {1}.{2}({3}):",
    "        raise ValueError(f'{0} of {{{1}}} is not a {2}')",
    "    # The {0} must be {1} before its {2} can {3}.",
    "def {0}_{1}({2}: int, {3}: str = '{number}') -> None:",
    "",
)


def scatter(root: Path, count: int, size: int, folders: int = 1) -> None:
    """Files of random bytes, spread evenly over folders."""
    for number in range(count):
        folder = root / f"folder-{number % folders:03}"
        folder.mkdir(exist_ok=True)
        _write(folder / f"file-{number:05}.bin", os.urandom(size))


def packages(root: Path, count: int, files: int, *, built: bool = True) -> None:
    """So many packages with a .gitignore each, no two alike, and perhaps with what these leave out."""
    for number in range(count):
        folder = root / f"group-{number % 20:02}" / f"package-{number:04}"
        folder.mkdir(parents=True)
        _write(folder / ".gitignore", _IGNORED.format(number).encode())
        for name in [*(f"module-{file:02}.py" for file in range(files)), *(["old.log", ".cache-1"] if built else [])]:
            _write(folder / name, f"{number} {name}\n".encode())
        if built:
            (folder / "build").mkdir()
            _write(folder / "build" / "result.o", b"built\n")


def blob(root: Path, size: int) -> None:
    """One file of random bytes."""
    with (root / BLOB).open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
    os.utime(root / BLOB, (MODIFIED, MODIFIED))


def hole(root: Path, size: int) -> None:
    """One file that has a size and nothing else."""
    (root / BLOB).touch()
    os.truncate(root / BLOB, size)
    os.utime(root / BLOB, (MODIFIED, MODIFIED))


def text(root: Path, size: int) -> None:
    """Files that look and compress like a program's source, always the same."""
    chance = random.Random(size)
    words = ["".join(chance.choices(_SYLLABLES, k=chance.randint(1, 4))) for _ in range(4000)]
    lines = _lines(chance, words)
    while size > 0:
        folder = root / chance.choice(words[:100])
        folder.mkdir(exist_ok=True)
        data = "".join(islice(lines, chance.randint(50, 450))).encode()[:size]
        _write(folder / f"module_{size}.py", data)
        size -= len(data)


def _lines(chance: random.Random, words: list[str]) -> Iterator[str]:
    """Few words are used often and most seldom, as people do it."""
    while True:
        chosen = [words[int(len(words) * chance.random() ** 4)] for _ in range(4)]
        yield chance.choice(_SHAPES).format(*chosen, number=chance.randint(0, 99)) + "\n"


def _write(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    os.utime(file, (MODIFIED, MODIFIED))


def change_inside(root: Path) -> None:
    """A mebibyte of the blob becomes another, at a place of chance."""
    with (root / BLOB).open("r+b") as file:
        file.seek(random.randrange(os.fstat(file.fileno()).st_size - MIB))
        file.write(os.urandom(MIB))


def insert_at_head(root: Path) -> None:
    """The blob grows by one byte, before all others."""
    longer = root.with_name(f"{root.name}.longer")
    with (root / BLOB).open("rb") as old, longer.open("wb") as new:
        new.write(os.urandom(1))
        while data := old.read(MIB):
            new.write(data)
    longer.replace(root / BLOB)


def check_equal(source: Path, target: Path) -> None:
    """Raises BenchError where the target is no copy of the source: a fast wrong answer does not win."""
    expected, found = _census(source), _census(target)
    wrong = [name for name in expected.keys() | found.keys() if not _alike(expected.get(name), found.get(name))]
    few = len(expected) <= READ_IN_FULL
    read = expected if few else random.sample(sorted(expected), READ_IN_FULL)
    wrong += [name for name in read if name not in wrong and not _same_bytes(source / name, target / name)]
    if wrong:
        raise BenchError(f"{target} is no copy of {source}: {len(wrong)} files are wrong, such as {wrong[0]}")


def _census(root: Path) -> dict[str, os.stat_result]:
    return {
        os.path.relpath(entry.path, root): entry.stat(follow_symlinks=False)
        for folder, _, _ in os.walk(root)
        for entry in os.scandir(folder)
        if not entry.is_dir(follow_symlinks=False)
    }


def _alike(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    return (
        one is not None
        and other is not None
        and one.st_size == other.st_size
        and abs(one.st_mtime - other.st_mtime) < 1
    )


def _same_bytes(one: Path, other: Path) -> bool:
    with one.open("rb") as first, other.open("rb") as second:
        while data := first.read(MIB):
            if data != second.read(MIB):
                return False
        return not second.read(1)
