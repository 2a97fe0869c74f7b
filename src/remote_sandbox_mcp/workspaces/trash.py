"""The trash of workspaces: files of this computer as they were before a machine deleted or changed them."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BadArgument, SandboxError
from ..core.text import size
from ..core.workspace import Workspace

FOLDER_NAME = "trash"
# The file of each workspace's part that has the path of its folder.
WHOSE = "folder"
# How much the trash of a workspace holds. What is older goes by itself; what is younger than a week goes never, so
# that a machine cannot push it out by deleting more.
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
        """Where it was."""
        return os.path.join(self.folder, self.path)


class Trash:
    """The trash of all workspaces. It outlives a link, and lies in the state folder, which no tool reads or writes."""

    def __init__(self, state: Path) -> None:
        self._top = state / FOLDER_NAME

    # Into it

    def keep(self, workspace: Workspace, paths: Sequence[bytes]) -> Path | None:
        """Keep these files of a workspace as they are now; None, and nothing is kept, where there is no room."""
        self._forget_old()
        ours, folder = self._top / workspace.id, workspace.folder
        names = [os.fsdecode(path) for path in paths]
        if not self._make_room(ours, sum(_size(os.path.join(folder, name)) for name in names), len(names)):
            return None
        now = time.time_ns()
        batch = next(ours / str(stamp) for stamp in range(now, now + 1000) if not (ours / str(stamp)).exists())
        try:
            for each in (self._top, ours, batch):
                each.mkdir(mode=0o700, exist_ok=each is not batch)
            (ours / WHOSE).write_text(folder, "utf-8")
            for name in names:
                _take(os.path.join(folder, name), batch / name)
        except OSError:
            shutil.rmtree(batch, ignore_errors=True)
            return None
        return batch

    def _make_room(self, ours: Path, wanted: int, count: int) -> bool:
        found = [(batch, *_measured(batch)) for batch in _batches(ours)]
        total, files = wanted + sum(each[1] for each in found), count + sum(each[2] for each in found)
        for batch, held, number in found:
            if total <= MOST_BYTES and files <= MOST_FILES:
                break
            if time.time() - _time_of(batch) < YOUNG_S:
                return False
            shutil.rmtree(batch, ignore_errors=True)
            total, files = total - held, files - number
        return total <= MOST_BYTES and files <= MOST_FILES

    def _forget_old(self) -> None:
        for ours in self._parts():
            for batch in _batches(ours):
                if time.time() - _time_of(batch) > OLD_S:
                    shutil.rmtree(batch, ignore_errors=True)

    def settle(self, workspace: Workspace, batch: Path) -> None:
        """Take out again what was neither deleted nor changed."""
        for file in list(_files(batch)):
            if _is_untouched(file, os.path.join(workspace.folder, file.relative_to(batch))):
                file.unlink()
                _prune(file.parent, batch)

    # Out of it

    def all(self, folder: str = "") -> list[Trashed]:
        """What is in it, the newest first; only of this folder and what is in it, if one is named."""
        found = [each for ours in self._parts() for each in _contents(ours)]
        inside = [each for each in found if not folder or _is_in(each.place, folder) or _is_in(folder, each.folder)]
        return sorted(inside, key=lambda each: (-each.at, each.path))

    def restore(self, path: str, *, force: bool = False) -> list[Trashed]:
        """Put the newest version of a file, or of each file of a folder, back in its place. Raises BadArgument."""
        newest: dict[str, Trashed] = {}
        for each in self.all():
            if _is_in(each.place, path):
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
        workspace = Workspace(each.file.relative_to(self._top).parts[0], each.folder, "", "")
        try:
            os.makedirs(above, exist_ok=True)
            if not _is_in(os.path.realpath(above), os.path.realpath(each.folder)):
                raise BadArgument(f"{each.place} is not put back, because a link on the way leads out of {each.folder}")
            is_other = os.path.lexists(each.place) and not _is_same(each.file, each.place)
            if is_other and not self.keep(workspace, [os.fsencode(each.path)]):
                raise BadArgument(f"{each.place} is not replaced, because the trash is full; move it away first")
            shutil.copy2(each.file, fresh, follow_symlinks=False)
            os.replace(fresh, each.place)
            each.file.unlink()
        except OSError as problem:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise SandboxError(f"{each.place} was not put back: {problem.strerror or problem}") from problem
        _prune(each.file.parent, self._top / workspace.id)

    def empty(self, folder: str = "") -> int:
        """Delete for good what `all` lists; returns how many bytes that was."""
        gone = self.all(folder)
        for each in gone:
            each.file.unlink(missing_ok=True)
            _prune(each.file.parent, self._top / each.file.relative_to(self._top).parts[0])
        return sum(each.bytes for each in gone)

    def _parts(self) -> list[Path]:
        """The part of each workspace."""
        with contextlib.suppress(OSError):
            return [each for each in self._top.iterdir() if each.is_dir()]
        return []


def no_room(count: int) -> str:
    """The sentence for a pass that changed nothing because the trash would not hold what was there before."""
    return (
        f"{count} files that were deleted or changed there are still as they were here, because the trash of this "
        f"workspace would hold more than {size(MOST_BYTES)} of the last days; remote-sandbox-mcp workspaces trash "
        "--empty empties it"
    )


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


def _is_untouched(file: Path, place: str) -> bool:
    """Whether a file is still in its place: the same one, or the one that was copied."""
    try:
        kept, now = os.lstat(file), os.lstat(place)
    except OSError:
        return False
    return os.path.samestat(kept, now) or (kept.st_size, kept.st_mtime_ns) == (now.st_size, now.st_mtime_ns)


def _size(path: str | Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _batches(ours: Path) -> list[Path]:
    """What came in one pass each, the oldest first."""
    with contextlib.suppress(OSError):
        return sorted((each for each in ours.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
    return []


def _time_of(batch: Path) -> float:
    return int(batch.name) / 1e9


def _files(batch: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(batch):
        for name in (*names, *(each for each in folders if os.path.islink(os.path.join(where, each)))):
            yield Path(where, name)


def _measured(batch: Path) -> tuple[int, int]:
    sizes = [_size(file) for file in _files(batch)]
    return sum(sizes), len(sizes)


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
