"""Records of workspaces: their rows, and for each a folder with the last common state of its sides and a lock."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import struct
import time
import zlib
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError, SandboxError
from ...core.sync.tree import FOLDER, bytes_of, text_of
from ...core.workspaces.workspace import Workspace
from ...local.processes.locks import Lock, holder
from ...local.store.database import STATE_FILE, Database
from ...local.store.workspaces import WorkspaceRow, WorkspaceRows
from .trash import Trash

FOLDER_NAME = "workspaces"
LENGTH = struct.Struct(">I")
POLL_S = 0.05
# How long a pass waits for another one of the same workspace. The first send of a large project takes minutes.
WAIT_S = 600.0


@dataclass
class Base:
    """The last common state of both sides, and what is remembered of paths."""

    # As Tree.folders has them.
    folders: dict[bytes, bytes] = field(default_factory=dict)
    # Brought by a pull pattern.
    came: frozenset[bytes] = frozenset()
    # In conflict when both sides were last looked at.
    conflicts: tuple[bytes, ...] = ()
    # What could not be carried over: its entry, and how often that was tried.
    tries: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    # How many new files were too many to come.
    stayed: int = 0
    # The other side has times in whole seconds.
    is_coarse: bool = False
    # The folder there, without links in its path, with device and inode of each folder on the way.
    real: str = ""
    ids: tuple[tuple[int, int], ...] = ()
    # Large files that a transfer in the background brings, and its id.
    fetching: tuple[bytes, ...] = ()
    transfer: str = ""
    # What the file systems here and there do not keep, as Tree.rough has it.
    rough: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    # What stays there because of its name or its size, with its entry: it is told again when it changes.
    staying: dict[bytes, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        said = {
            "came": sorted(map(text_of, self.came)),
            "conflicts": list(map(text_of, self.conflicts)),
            "tries": {text_of(path): [text_of(entry), count] for path, (entry, count) in self.tries.items()},
            "stayed": self.stayed,
            "is_coarse": self.is_coarse,
            "real": self.real,
            "ids": self.ids,
            "fetching": list(map(text_of, self.fetching)),
            "transfer": self.transfer,
            "rough": [sorted(side) for side in self.rough],
            "staying": {text_of(path): text_of(entry) for path, entry in self.staying.items()},
        }
        head = json.dumps(said).encode()
        parts = [LENGTH.pack(len(head)), head]
        for folder, block in self.folders.items():
            parts += [FOLDER.pack(len(folder), len(block), 0), folder, block]
        return zlib.compress(b"".join(parts), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Base:
        """Raises ValueError, KeyError, struct.error, zlib.error."""
        whole = zlib.decompress(data)
        (length,) = LENGTH.unpack_from(whole)
        at = LENGTH.size + length
        said: dict[str, Any] = json.loads(whole[LENGTH.size : at])
        folders = {}
        while at < len(whole):
            path, block, _ = FOLDER.unpack_from(whole, at)
            middle, end = at + FOLDER.size + path, at + FOLDER.size + path + block
            folders[whole[at + FOLDER.size : middle]] = whole[middle:end]
            at = end
        here, there = said.get("rough", ((), ()))
        return cls(
            folders,
            frozenset(map(bytes_of, said["came"])),
            tuple(map(bytes_of, said["conflicts"])),
            {bytes_of(path): (bytes_of(entry), count) for path, (entry, count) in said["tries"].items()},
            said["stayed"],
            said["is_coarse"],
            said["real"],
            tuple((device, inode) for device, inode in said["ids"]),
            tuple(map(bytes_of, said["fetching"])),
            said["transfer"],
            (frozenset(here), frozenset(there)),
            {bytes_of(path): bytes_of(entry) for path, entry in said.get("staying", {}).items()},
        )


@dataclass(frozen=True)
class Pending:
    """Files that a pass is about to write there, and here, as they are at their source."""

    going: Mapping[bytes, bytes] = field(default_factory=dict)
    coming: Mapping[bytes, bytes] = field(default_factory=dict)

    def only(self, going: Collection[bytes], coming: Collection[bytes]) -> Pending | None:
        """The part of it at these paths; None where there is none."""
        parts = [
            {path: entry for path, entry in every.items() if path in wanted}
            for every, wanted in ((self.going, going), (self.coming, coming))
        ]
        return Pending(*parts) if any(parts) else None


class WorkspaceRecords:
    """The workspaces of a state folder. Raises ConfigError."""

    def __init__(self, state: Path, configuration: str) -> None:
        """`configuration`: only its workspaces are found, because names of sandboxes mean the same only there."""
        self._folder = state / FOLDER_NAME
        self._configuration = configuration
        self.trash = Trash(state)
        self._rows = WorkspaceRows(Database(state / STATE_FILE))
        self._cache: tuple[int, tuple[WorkspaceRow, ...]] = (0, ())
        self._bases: dict[str, tuple[tuple[int, int, int], Base]] = {}

    # Rows

    def rows(self) -> tuple[WorkspaceRow, ...]:
        """List the workspaces of all configurations. Asked with every call, so only read again after a change."""
        try:
            changed = os.stat(self._folder).st_mtime_ns
        except OSError:
            return ()
        if self._cache[0] != changed:
            self._cache = changed, self._rows.all()
        return self._cache[1]

    def mine(self) -> list[WorkspaceRow]:
        """List the workspaces of this configuration; of all, where there is none."""
        ours = self._configuration
        return [row for row in self.rows() if not ours or row.configuration == ours]

    def row(self, workspace: Workspace) -> WorkspaceRow:
        """Raises SandboxError where it was unlinked meanwhile."""
        found = next((row for row in self.rows() if row.workspace.id == workspace.id), None)
        if found is None:
            raise SandboxError(f"{workspace.folder} is not linked any more; link it again")
        return found

    def put(self, workspace: Workspace, inode: int) -> None:
        self._rows.put(WorkspaceRow(workspace, self._configuration, inode))
        self._place(workspace.id).mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(self._folder)
        self._cache = (0, ())

    def remove(self, workspace: Workspace) -> None:
        self._rows.remove(workspace.id)
        shutil.rmtree(self._place(workspace.id), ignore_errors=True)
        os.utime(self._folder)
        self._cache = (0, ())
        self._bases.pop(workspace.id, None)

    def close(self) -> None:
        self._rows.database.close()

    # The common state

    def base(self, workspace: Workspace) -> Base:
        """Empty where there is none, or none that can be read: then what both sides have in common is found again."""
        file = self._place(workspace.id) / "base"
        try:
            found = os.stat(file)
            fingerprint = (found.st_ino, found.st_size, found.st_mtime_ns)
            if workspace.id not in self._bases or self._bases[workspace.id][0] != fingerprint:
                self._bases[workspace.id] = fingerprint, Base.from_bytes(file.read_bytes())
            return self._bases[workspace.id][1]
        except (OSError, ValueError, KeyError, TypeError, struct.error, zlib.error):
            return Base()

    def written(self, workspace: Workspace) -> float:
        """Return when the common state was last written; 0 for never."""
        try:
            return os.stat(self._place(workspace.id) / "base").st_mtime
        except OSError:
            return 0.0

    def keep(self, workspace: Workspace, base: Base) -> None:
        """Write it whole; what was about to be carried over is in it, or was not carried over."""
        file = self._place(workspace.id) / "base"
        self._write(file, base.to_bytes())
        found = os.stat(file)
        self._bases[workspace.id] = (found.st_ino, found.st_size, found.st_mtime_ns), base
        file.with_name("pending").unlink(missing_ok=True)

    def announce(self, workspace: Workspace, pending: Pending) -> None:
        """Note what is about to be carried over: after a crash, what has arrived is told from an edit by that."""
        said = [
            {text_of(path): text_of(entry) for path, entry in each.items()} for each in (pending.going, pending.coming)
        ]
        self._write(self._place(workspace.id) / "pending", json.dumps(said).encode())

    def pending(self, workspace: Workspace) -> Pending | None:
        """Return the entries that an unfinished pass was about to carry over; None after one that has ended."""
        try:
            said = json.loads((self._place(workspace.id) / "pending").read_bytes())
            return Pending(*({bytes_of(path): bytes_of(entry) for path, entry in each.items()} for each in said))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError, TypeError):
            return Pending()

    def words(self, workspace: Workspace) -> tuple[str, ...]:
        """The words of which the mark on the machine has one; none where that is not known."""
        try:
            return tuple((self._place(workspace.id) / "words").read_text("ascii").split())
        except (OSError, UnicodeDecodeError):
            return ()

    def keep_words(self, workspace: Workspace, words: Collection[str]) -> None:
        place = self._place(workspace.id)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write(place / "words", "\n".join(words).encode("ascii"))

    def _write(self, file: Path, data: bytes) -> None:
        fresh = file.with_name(f".{file.name}-{os.getpid()}")
        try:
            with open(os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as opened:
                opened.write(data)
            os.replace(fresh, file)
        except OSError as problem:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise ConfigError(f"unable to write {file}: {problem.strerror or problem}") from problem

    def _place(self, workspace_id: str) -> Path:
        return self._folder / workspace_id

    # The locks

    @contextlib.asynccontextmanager
    async def locked(self, workspace: Workspace) -> AsyncIterator[None]:
        """No other process or task makes a pass meanwhile. Raises SandboxError where one does for too long."""
        lock = await self._lock(self._place(workspace.id) / "lock", workspace.folder, "sending or fetching its files")
        try:
            yield
        finally:
            lock.release()

    @contextlib.asynccontextmanager
    async def linking(self) -> AsyncIterator[None]:
        """No other process or task adds a workspace meanwhile. Raises SandboxError where one does for too long."""
        lock = await self._lock(self._folder / "linking.lock", "this was not linked", "linking a folder")
        try:
            # The time of a folder may be too coarse to show what another process has added in the last moment.
            self._cache = (0, ())
            yield
        finally:
            lock.release()

    async def _lock(self, file: Path, about: str, doing: str) -> Lock:
        deadline = time.monotonic() + WAIT_S
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            try:
                lock = Lock.take(file, brief_s=0)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    found = holder(file)
                    who = f"process {found.pid}" if found and found.pid else "another process"
                    raise SandboxError(
                        f"{about}: {who} has been {doing} for {WAIT_S / 60:.0f} minutes; wait for it, or end it"
                    ) from None
                await asyncio.sleep(POLL_S)
                continue
            lock.sign()
            return lock
