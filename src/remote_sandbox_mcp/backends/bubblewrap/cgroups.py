"""Control groups, versions 1 and 2: where this process may create them, and their limits."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "rsmcp-"
WANTED = ("memory", "pids", "cpu", "freezer")
END_S = 10.0
PAUSE_S = 5.0
CPU_PERIOD_US = 100_000


@dataclass(frozen=True)
class ParentGroup:
    """A group below which ours can be created, with these controllers. The server's own limits still apply."""

    folder: Path
    version: int
    controllers: tuple[str, ...]


def find_bases(own: str | None = None, mounts: str | None = None) -> list[ParentGroup]:
    """Return where groups can be created; the texts are those of /proc/self/cgroup and /proc/self/mountinfo."""
    own = _read(Path("/proc/self/cgroup")) if own is None else own
    mounts = _read(Path("/proc/self/mountinfo")) if mounts is None else mounts
    lines = (line.split(":", 2) for line in own.splitlines())
    found = [base for _, controllers, path in lines for base in _base(controllers, path, mounts)]
    # A controller that version 1 uses is not available in version 2.
    held = {name for base in found if base.version == 1 for name in base.controllers}
    return [base for base in found if base.version == 1 or not held.issuperset(base.controllers)]


def _base(controllers: str, path: str, mounts: str) -> Iterator[ParentGroup]:
    # Version 2 has a single hierarchy, whose line names no controllers.
    version = 1 if controllers else 2
    wanted = tuple(name for name in controllers.split(",") if name in WANTED)
    if version == 1 and not wanted:
        return
    folder = _folder(wanted[0] if wanted else "", path, mounts)
    if folder is None:
        return
    if version == 1:
        if os.access(folder, os.W_OK) and not _is_read_only(folder):
            yield ParentGroup(folder, 1, wanted)
    elif delegated := _delegated(folder):
        yield delegated


def _folder(controller: str, path: str, mounts: str) -> Path | None:
    """Mount point of this process's own group."""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        # Several hierarchies of version 1 may be mounted; the one with this controller counts.
        is_it = kind == "cgroup" and controller in options.split(",") if controller else kind == "cgroup2"
        root, place = fields.split(" ")[3:5]
        if is_it and (path + "/").startswith(root.rstrip("/") + "/"):
            folder = Path(place + path[len(root.rstrip("/")) :])
            return folder if folder.is_dir() else None
    return None


def _delegated(folder: Path) -> ParentGroup | None:
    """The nearest ancestor that delegates controllers: a group that contains processes itself may not."""
    while (folder / "cgroup.procs").exists():
        may = all(os.access(path, os.W_OK) for path in (folder, folder / "cgroup.procs"))
        if may and not _is_read_only(folder):
            names = tuple(name for name in WANTED if name in _enabled(folder))
            # The top group of a container may be used even if it delegates nothing: freezing still works there.
            is_top = not (folder.parent / "cgroup.procs").exists()
            if names or is_top:
                # Freezing needs no controller in version 2.
                return ParentGroup(folder, 2, (*names, "freezer"))
        folder = folder.parent
    return None


def _enabled(folder: Path) -> list[str]:
    missing = set(_read(folder / "cgroup.controllers").split()) & {"memory", "pids", "cpu"}
    missing -= set(_read(folder / "cgroup.subtree_control").split())
    if missing:
        # Refused while the group contains processes; then its parent is tried.
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(missing)))
    return _read(folder / "cgroup.subtree_control").split()


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


@dataclass(frozen=True)
class Group:
    """One sandbox's groups in all hierarchies; identified by their folder names."""

    folders: tuple[Path, ...] = ()

    @property
    def joins(self) -> tuple[str, ...]:
        """Files through which a process joins. Version 1 uses `tasks`, which avoids a lock that stops all forks."""
        files = (folder / ("tasks" if (folder / "tasks").exists() else "cgroup.procs") for folder in self.folders)
        return tuple(map(str, files))

    def members(self) -> set[int]:
        return {int(word) for folder in self.folders for word in _read(folder / "cgroup.procs").split()}

    def exists(self) -> bool:
        return any(folder.exists() for folder in self.folders)

    def can_freeze(self) -> bool:
        return any(True for _ in self._freezers())

    def _freezers(self) -> Iterator[tuple[Path, str, str, str]]:
        for folder in self.folders:
            if (folder / "freezer.state").exists():
                yield folder / "freezer.state", "FROZEN", "THAWED", "FROZEN"
            elif (folder / "cgroup.freeze").exists():
                yield folder / "cgroup.freeze", "1", "0", "frozen 1"

    def freeze(self) -> bool:
        """Freeze everything in it; False where that takes too long."""
        for file, frozen, _, _ in self._freezers():
            file.write_text(frozen)
        until = time.monotonic() + PAUSE_S
        while not self.is_frozen():
            if time.monotonic() > until:
                # A half-frozen sandbox would hang without an error.
                self.thaw()
                return False
            time.sleep(0.002)
        return True

    def is_frozen(self) -> bool:
        def state(file: Path) -> str:
            return _read(file.parent / "cgroup.events" if file.name == "cgroup.freeze" else file)

        return all(mark in state(file) for file, _, _, mark in self._freezers())

    def thaw(self) -> None:
        for file, _, thawed, _ in self._freezers():
            file.write_text(thawed)

    def end(self) -> None:
        """Kill everything in it and remove it. In version 1 frozen processes must be thawed before they can die."""
        until = time.monotonic() + END_S
        with contextlib.suppress(OSError):
            self.thaw()
        # Repeated, because a process may fork between the reading of the list and its end.
        while self._kill() and time.monotonic() < until:
            time.sleep(0.002)
        for folder in self.folders:
            _remove(folder, until)

    def remove(self, seconds: float) -> None:
        """Remove it once it is empty; after that time it stays with what is in it."""
        until = time.monotonic() + seconds
        for folder in self.folders:
            _remove(folder, until)

    def _kill(self) -> bool:
        """Kill all processes; returns whether there were any."""
        members = self.members()
        # The oldest first: an outpost that outlives its command would report that the command was killed, instead of
        # its caller learning that the sandbox was deleted.
        for pid in sorted(members):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return bool(members)


def _remove(folder: Path, until: float) -> None:
    """Remove a folder; it is busy for a moment after its last process."""
    while time.monotonic() < until:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)
        else:
            return


def plan(bases: Sequence[ParentGroup], name: str) -> Group:
    """The groups to create, recorded before that, because a crash may come in between."""
    return Group(tuple(base.folder / f"{PREFIX}{name}" for base in bases))


def make(planned: Group) -> Group:
    """Create the groups; folders that cannot be created are skipped."""
    made = []
    for folder in planned.folders:
        with contextlib.suppress(OSError):
            # It may exist after a crash between this and the record of it.
            folder.mkdir(exist_ok=True)
            made.append(folder)
    return Group(tuple(made))


def limit_memory(group: Group, megabytes: int) -> bool:
    """Swap counts, too: otherwise a sandbox becomes slow instead of being ended."""
    size = str(megabytes << 20)
    done = _set(group, {"memory.limit_in_bytes": size, "memory.max": size})
    _set(group, {"memory.memsw.limit_in_bytes": size, "memory.swap.max": "0"})
    return done


def limit_processes(group: Group, count: int) -> bool:
    return _set(group, {"pids.max": str(count)})


def limit_cpu(group: Group, cores: float) -> bool:
    # The kernel refuses a quota below one millisecond.
    quota = max(1000, round(cores * CPU_PERIOD_US))
    return _set(group, {"cpu.cfs_quota_us": str(quota), "cpu.max": f"{quota} {CPU_PERIOD_US}"})


def _set(group: Group, wanted: dict[str, str]) -> bool:
    """Write a value where the file exists; returns whether one accepted it."""
    accepted = 0
    files = (folder / name for folder in group.folders for name in wanted)
    for file in filter(Path.exists, files):
        with contextlib.suppress(OSError):
            file.write_text(wanted[file.name])
            accepted += 1
    return accepted > 0


def existing(folders: Iterable[str]) -> Group:
    """A group from its record; only folders with our prefix are ever touched."""
    return Group(tuple(Path(folder) for folder in folders if Path(folder).name.startswith(PREFIX)))
