"""The trash of workspaces: files of this computer as they were before a machine deleted or changed them."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import BadArgument, SandboxError
from ...core.texts.text import size
from ...core.workspaces.workspace import Workspace

FOLDER_NAME = "trash"
# The file of each workspace's part that has the path of its folder.
WHOSE = "folder"
# How much the trash of a workspace holds. What is older than a month goes by itself; what is younger than a week never
# makes room, so that a machine cannot push it out by deleting more.
MOST_BYTES, MOST_FILES = 1 << 30, 100_000
DAY_S = 86400.0
OLD_S, YOUNG_S = 30 * DAY_S, 7 * DAY_S


@dataclass(frozen=True)
class Trashed:
    """A file in the trash: the folder of its workspace, its path there, when it came here, and where it lies."""

    folder: str
    path: str
    at: float
    bytes: int
    file: Path

    @property
    def place(self) -> str:
        """Return where it was."""
        return os.path.join(self.folder, self.path)


class Trash:
    """The trash of all workspaces. It outlives a link, and lies in the state folder, which no tool reads or writes."""

    def __init__(self, state: Path) -> None:
        self._top = state / FOLDER_NAME
        self._sizes: dict[Path, tuple[int, int]] = {}

    # Into it

    def keep(self, workspace: Workspace, paths: Sequence[bytes]) -> Path:
        """Keep these files of a workspace as they are now. Raises SandboxError where not all of them can be kept."""
        self._forget_old()
        ours, folder = self._top / workspace.id, workspace.folder
        names = [os.fsdecode(path) for path in paths]
        self._make_room(ours, sum(_size(os.path.join(folder, name)) for name in names), len(names))
        batch = ours / str(time.time_ns())
        try:
            for each in (self._top, ours, batch):
                each.mkdir(mode=0o700, exist_ok=each is not batch)
            (ours / WHOSE).write_text(folder, "utf-8")
            for name in names:
                _take(os.path.join(folder, name), batch / name)
        except OSError as problem:
            shutil.rmtree(batch, ignore_errors=True)
            raise SandboxError(f"the trash cannot be written: {problem.strerror or problem}") from problem
        return batch

    def settle(self, workspace: Workspace, batch: Path) -> None:
        """Take out again what was neither deleted nor changed."""
        for file in list(_files(batch)):
            # By their content: a machine may give its own file the size and the time of the old one.
            if _is_same(file, os.path.join(workspace.folder, file.relative_to(batch))):
                file.unlink()
                _prune(file.parent, batch)

    def _make_room(self, ours: Path, wanted: int, count: int) -> None:
        """Delete the oldest where it is needed. Raises SandboxError where what is left is too young for that."""
        batches = _batches(ours)
        total, files = (sum(each) for each in zip((wanted, count), *map(self._measured, batches), strict=True))
        while total > MOST_BYTES or files > MOST_FILES:
            if not batches or time.time() - _time_of(batches[0]) < YOUNG_S:
                raise SandboxError(
                    f"the trash would hold more than {size(MOST_BYTES)} of the last days; "
                    "remote-sandbox-mcp workspaces trash --empty empties it"
                )
            gone = batches.pop(0)
            total, files = total - self._measured(gone)[0], files - self._measured(gone)[1]
            shutil.rmtree(gone, ignore_errors=True)

    def _measured(self, batch: Path) -> tuple[int, int]:
        """Bytes and files of a batch; counted once, because later it only becomes smaller."""
        if batch not in self._sizes:
            sizes = [_size(file) for file in _files(batch)]
            self._sizes[batch] = sum(sizes), len(sizes)
        return self._sizes[batch]

    def _forget_old(self) -> None:
        for ours in self._parts():
            for batch in _batches(ours):
                if time.time() - _time_of(batch) > OLD_S:
                    shutil.rmtree(batch, ignore_errors=True)

    # Out of it

    def all(self, folder: str = "") -> list[Trashed]:
        """List what is in it, the newest first; only what was in this folder, if one is named."""
        found = [each for ours in self._parts() for each in _contents(ours)]
        inside = [each for each in found if not folder or _is_in(each.place, folder)]
        return sorted(inside, key=lambda each: (-each.at, each.path))

    def restore(self, path: str, *, force: bool = False) -> list[Trashed]:
        """Put the newest version of a file, or of each file that a folder lacks, back in its place; returns them.

        Raises BadArgument, SandboxError.
        """
        newest: dict[str, Trashed] = {}
        for each in self.all(path):
            newest.setdefault(each.place, each)
        if not newest:
            raise BadArgument(f"{path} is not in the trash; remote-sandbox-mcp workspaces trash lists what is")
        taken = [place for place in newest if os.path.lexists(place)]
        if path in taken and not force and not _is_same(newest[path].file, path):
            raise BadArgument(
                f"{path} is there, and another one than in the trash; add --force to replace it, which the trash keeps"
            )
        wanted = [each for place, each in newest.items() if force or place not in taken or place == path]
        for each in wanted:
            self._put_back(each)
        return wanted

    def _put_back(self, each: Trashed) -> None:
        above, fresh = os.path.dirname(each.place), f"{each.place}.restored-{os.getpid()}"
        try:
            os.makedirs(above, exist_ok=True)
            if not _is_in(os.path.realpath(above), os.path.realpath(each.folder)):
                raise BadArgument(f"{each.place} is not put back, because a link on the way leads out of {each.folder}")
            if os.path.lexists(each.place) and not _is_same(each.file, each.place):
                self.keep(Workspace(self._batch_of(each).parent.name, each.folder, "", ""), [os.fsencode(each.path)])
            shutil.copy2(each.file, fresh, follow_symlinks=False)
            os.replace(fresh, each.place)
            self._remove(each)
        except OSError as problem:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise SandboxError(f"{each.place} was not put back: {problem.strerror or problem}") from problem

    def empty(self, folder: str = "") -> int:
        """Delete for good what `all` lists; returns how many bytes that was."""
        gone = self.all(folder)
        for each in gone:
            self._remove(each)
        return sum(each.bytes for each in gone)

    def _remove(self, each: Trashed) -> None:
        batch = self._batch_of(each)
        each.file.unlink(missing_ok=True)
        self._sizes.pop(batch, None)
        _prune(each.file.parent, batch)

    def _batch_of(self, each: Trashed) -> Path:
        return self._top.joinpath(*each.file.relative_to(self._top).parts[:2])

    def _parts(self) -> list[Path]:
        """The part of each workspace."""
        with contextlib.suppress(OSError):
            return [each for each in self._top.iterdir() if each.is_dir()]
        return []


def _take(place: str, file: Path) -> None:
    """A second name for the file, or a copy on another file system; nothing where it is gone by now. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        try:
            os.link(place, file, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except (OSError, NotImplementedError):
            shutil.copy2(place, file, follow_symlinks=False)


def _size(path: str | Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _batches(ours: Path) -> list[Path]:
    """Folders with what one pass each has put there, the oldest first."""
    with contextlib.suppress(OSError):
        return sorted((each for each in ours.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
    return []


def _time_of(batch: Path) -> float:
    return int(batch.name) / 1e9


def _files(batch: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(batch):
        for name in (*names, *(each for each in folders if os.path.islink(os.path.join(where, each)))):
            yield Path(where, name)


def _contents(ours: Path) -> Iterator[Trashed]:
    try:
        folder = (ours / WHOSE).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for batch in _batches(ours):
        for file in _files(batch):
            yield Trashed(folder, str(file.relative_to(batch)), _time_of(batch), _size(file), file)


def _prune(folder: Path, top: Path) -> None:
    """Remove folders in which nothing is left, up to this one."""
    with contextlib.suppress(OSError):
        while folder != top.parent:
            os.rmdir(folder)
            folder = folder.parent


def _is_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _is_same(one: Path, other: str) -> bool:
    if one.is_symlink() or os.path.islink(other):
        return one.is_symlink() and os.path.islink(other) and os.readlink(one) == os.readlink(other)
    import filecmp

    return os.path.isfile(other) and filecmp.cmp(one, other, shallow=False)
