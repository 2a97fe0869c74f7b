"""Folders of disposable sandboxes on disk, each with a record and a lock; and how they are removed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ...core.errors import BadArgument
from ...core.sandboxes.disposable import DISPOSABLE_ID, Disposable, Limits
from . import cgroups, disk, processes

GONE = ".gone-"
# Age after which a folder without a lock file counts as abandoned; before, its removal may be in progress.
ABANDONED_S = 60.0


@dataclass(frozen=True)
class Record:
    """Record of a sandbox, including its variables, which the next process needs, too."""

    made: Disposable
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    groups: tuple[str, ...] = ()
    # The only hosts that its network may reach, if limited.
    hosts: tuple[str, ...] = ()
    # Whether its home and /tmp have a size of their own.
    has_real_disk: bool = False

    def as_json(self) -> str:
        fields = {name: getattr(self, name) for name in ("groups", "hosts", "has_real_disk")}
        return json.dumps({"made": asdict(self.made), "env": dict(self.env), **fields})


@dataclass(frozen=True)
class SandboxStore:
    """The folder of all disposable sandboxes."""

    root: Path

    def folder(self, disposable_id: str) -> Path:
        """The folder of a sandbox. Raises BadArgument for an invalid id, which could lead to another path."""
        if not DISPOSABLE_ID.match(disposable_id):
            raise BadArgument(f"{disposable_id[:60]!r} is not the id of a disposable sandbox (sb-...)")
        return self.root / disposable_id

    def box(self, disposable_id: str) -> Path:
        """The part that the sandbox itself sees."""
        return self.folder(disposable_id) / "box"

    def runs(self, disposable_id: str) -> Path:
        """The outpost's records, outside of a box of limited size."""
        return self.folder(disposable_id) / "runs"

    def ids(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.root) if DISPOSABLE_ID.match(name))
        return []

    def gone(self) -> list[Path]:
        """Folders that are being removed, or were when their process died."""
        with contextlib.suppress(FileNotFoundError):
            return [self.root / name for name in os.listdir(self.root) if name.startswith(GONE)]
        return []

    def read(self, disposable_id: str) -> Record | None:
        return read_record(self.folder(disposable_id))

    def has(self, disposable_id: str) -> bool:
        return (self.folder(disposable_id) / "record.json").exists()

    def write(self, record: Record) -> None:
        file = self.folder(record.made.id) / "record.json"
        fresh = file.with_name(f".record-{os.getpid()}")
        fresh.touch(0o600)
        fresh.write_text(record.as_json())
        fresh.replace(file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held while a folder appears or disappears, for a moment."""
        self.root.mkdir(parents=True, mode=0o700, exist_ok=True)
        with open(self.root / ".lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def claim_new(self, disposable_id: str) -> int:
        """Create a folder, in use by us. Raises BadArgument where it exists."""
        folder = self.folder(disposable_id)
        with self.locked():
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                raise BadArgument(f"there is a sandbox {disposable_id} already; use it, or another id") from None
            lock = claim(folder)
            assert lock is not None
            return lock

    def claim(self, disposable_id: str) -> int | None:
        """Mark it as in use by us, too, until the descriptor is closed; None where it does not exist."""
        with self.locked():
            return claim(self.folder(disposable_id)) if self.has(disposable_id) else None

    def set_aside(self, disposable_id: str) -> Path | None:
        """Rename it out of sight for removal; None where it is gone already."""
        aside = self.root / f"{GONE}{disposable_id}"
        with self.locked(), contextlib.suppress(FileNotFoundError):
            self.folder(disposable_id).rename(aside)
            return aside
        return None


def read_record(folder: Path) -> Record | None:
    """Read the sandbox's record; None where there is no readable one."""
    try:
        read = json.loads((folder / "record.json").read_text())
        made = read["made"]
        # Earlier versions recorded whether it outlives its process; now all do.
        made.pop("keep", None)
        limits = Limits.recorded(made["limits"])
        disposable = Disposable(**{**made, "limits": limits, "notes": tuple(made["notes"])})
        groups, hosts = tuple(read["groups"]), tuple(read.get("hosts", ()))
        return Record(disposable, read["env"], groups, hosts, read.get("has_real_disk", False))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def claim(folder: Path, *, alone: bool = False) -> int | None:
    """Lock a folder, shared with other processes, or exclusively with `alone`. None where that fails."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def is_alone(lock: int) -> bool:
    """Whether no other process uses it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)
    return True


def take_down(store: SandboxStore, disposable_id: str) -> None:
    """End all its processes and remove everything; may be called twice, and by two processes at once."""
    record, home = store.read(disposable_id), store.box(disposable_id) / "home"
    # Out of sight first: a process whose connection is cut by this must not open it again.
    aside = store.set_aside(disposable_id)
    _end(record, home)
    if aside:
        remove(aside)


def _end(record: Record | None, home: Path) -> None:
    group = cgroups.existing(record.groups if record else ())
    if group.exists():
        group.end()
    else:
        processes.end(home)


def remove(aside: Path) -> None:
    record = read_record(aside)
    if record:
        cgroups.existing(record.groups).end()
    for name in ("box", "runs"):
        disk.unmount(aside / name)
    if (aside / "box").is_symlink():
        disk.remove_tree((aside / "box").resolve())
    disk.remove_tree(aside)


def sweep(store: SandboxStore, now: float) -> None:
    """Remove what earlier processes have left, if its time is over. All others stay."""
    # One that cannot be removed, such as another user's folder, is tried again at the next start.
    with contextlib.suppress(OSError):
        for aside in (*_set_aside(store, now), *filter(_is_abandoned, store.gone())):
            with contextlib.suppress(OSError):
                remove(aside)


def _set_aside(store: SandboxStore, now: float) -> Iterator[Path]:
    for disposable_id in store.ids():
        lock = claim(store.folder(disposable_id), alone=True)
        if lock is None:
            continue
        try:
            if not _may_stay(store, disposable_id, now) and (aside := store.set_aside(disposable_id)):
                yield aside
        finally:
            os.close(lock)


def _may_stay(store: SandboxStore, disposable_id: str, now: float) -> bool:
    record = store.read(disposable_id)
    # Frozen processes outlive the process that froze them.
    _end(record, store.box(disposable_id) / "home")
    if record is None or 0 < record.made.expires <= now:
        return False
    if record.made.status == "paused":
        store.write(replace(record, made=replace(record.made, status="running")))
    return True


def _is_abandoned(aside: Path) -> bool:
    try:
        if (aside / "lock").exists():
            lock = claim(aside, alone=True)
            if lock is not None:
                os.close(lock)
            return lock is not None
        return time.time() - aside.stat().st_ctime > ABANDONED_S
    except OSError:
        return False
