"""What is kept of transfers: rows, and for each a log and a lock in a folder of the owner's."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ..core.errors import ConfigError
from ..core.identity import name_for_call
from ..core.transfer import Order
from ..store.database import STATE_FILE, Database
from ..store.transfers import Ledger, Transfer
from .locks import Lock, holder
from .log import Log

KEPT_S = 14 * 86400


class Records:
    """The transfers of a state folder. The process that runs one holds `ID.lock`."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.ledger = Ledger(Database(state / STATE_FILE))
        self._folder = state / "transfers"

    def close(self) -> None:
        self.ledger.database.close()

    def lock_file(self, task_id: str) -> Path:
        return self._folder / f"{task_id}.lock"

    def log(self, task_id: str) -> Log:
        return Log(self._folder / f"{task_id}.log")

    def new_id(self) -> str:
        """An id that nobody can guess, always the same for the same call, and the folder for its files."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"unable to make {self._folder}: {error.strerror}") from error
        named = name_for_call("tr")
        return f"tr-{named[-8:] if named else os.urandom(4).hex()}"

    def add(self, task_id: str, order: Order, status: str, pid: int = 0, configuration: str = "") -> Transfer:
        """A new row; the lock of one with a `pid` is held already, so that no other takes it up. Drops what is old."""
        now, log = time.time(), self.log(task_id)
        self._prune(now - KEPT_S)
        transfer = Transfer(
            id=task_id, order=order, status=status, pid=pid, log_file=str(log.file),
            created=now, updated=now, started=now if pid else 0.0, configuration=configuration,
        )  # fmt: skip
        self.ledger.add(transfer)
        log.note(f"{status}: {order.source} -> {order.target}")
        return transfer

    def is_held(self, task_id: str) -> bool:
        """Whether a process runs it."""
        return holder(self.lock_file(task_id)) is not None

    def is_stale(self, transfer: Transfer) -> bool:
        """Whether it is not over, but no process runs it."""
        if transfer.is_over or self.is_held(transfer.id):
            return False
        # It may have ended, and its locks gone, since the row was read.
        now = self.ledger.get(transfer.id)
        return now is not None and not now.is_over

    def take(self, task_id: str) -> Lock | None:
        """Its lock, signed, where no process runs it."""
        try:
            lock = None if self.is_held(task_id) else Lock.take(self.lock_file(task_id))
        except (BlockingIOError, ConfigError):
            return None
        if lock:
            lock.sign()
        return lock

    def drop_lock(self, task_id: str) -> None:
        """Remove the lock of one that is over; who has opened it before looks at the row, and goes."""
        self.lock_file(task_id).unlink(missing_ok=True)

    def _prune(self, before: float) -> None:
        for old in self.ledger.untouched_since(before):
            if not self.is_held(old.id):
                self.log(old.id).file.unlink(missing_ok=True)
                self.drop_lock(old.id)
                self.ledger.remove(old.id)
