"""Records of transfers: rows, a log for people, and a lock that shows which process runs one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...core.client import name_for_call
from ...core.errors import ConfigError
from ...core.sync.transfer import Headway, Order, Outcome
from ...core.texts.text import counted, harmless, size
from ...local.processes.locks import Lock, holder
from ...local.store.database import STATE_FILE, Database
from ...local.store.transfers import PREFIX, Ledger, Transfer

TAIL_BYTES = 256 << 10
KEPT_S = 14 * 86400


class TransferLog:
    """Takes lines; never raises, because a full disk must not end a transfer."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def open(self) -> int:
        """A descriptor that appends to it."""
        return os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, text: str) -> None:
        """Add one line."""
        self.note_all([text])

    def note_all(self, lines: list[str]) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S%z")
        shown = (harmless(line.encode("utf-8", "surrogatepass")).replace("\n", "␊") for line in lines)
        data = "".join(f"{now} {line}\n" for line in shown).encode()
        with suppress(OSError):
            fd = self.open()
            try:
                os.write(fd, data)
            finally:
                os.close(fd)

    def tail(self, lines: int) -> list[str]:
        """Return the log's last lines; none where there is no log."""
        try:
            with self.file.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                return harmless(file.read()).splitlines()[-lines:] if lines > 0 else []
        except OSError:
            return []


def describe_headway(headway: Headway) -> str:
    figures = f": {counted(headway.files_total, 'file')}, {size(headway.bytes_total)}" if headway.files_total else ""
    return f"{headway.phase}{figures}"


def describe_outcome(outcome: Outcome) -> Iterator[str]:
    """List each problem, then the figures."""
    for problem in outcome.problems:
        yield f"problem: {problem.path}: {problem.reason}"
    if outcome.problem_count > len(outcome.problems):
        yield f"problems: {outcome.problem_count} in all"
    deleted = outcome.deleted_files + outcome.deleted_dirs
    yield (
        f"completed in {outcome.seconds:.1f} s: {counted(outcome.sent_files, 'file')} sent ({size(outcome.bytes)}, "
        f"{size(outcome.wire_bytes)} over the line), {outcome.skipped_files} as they were, {deleted} deleted, "
        f"{counted(outcome.problem_count, 'problem')}"
    )


class TransferRecords:
    """The transfers of a state folder. The process that runs one holds `ID.lock`."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.ledger = Ledger(Database(state / STATE_FILE))
        self._folder = state / "transfers"

    def close(self) -> None:
        self.ledger.database.close()

    def lock_file(self, task_id: str) -> Path:
        return self._folder / f"{task_id}.lock"

    def log(self, task_id: str) -> TransferLog:
        return TransferLog(self._folder / f"{task_id}.log")

    def new_id(self, *, of_call: bool = True) -> str:
        """An unguessable id, with `of_call` the same for each repetition of a call; makes the folder for its files."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"unable to make {self._folder}: {error.strerror}") from error
        named = name_for_call("tr") if of_call else ""
        return f"{PREFIX}{named[-8:] if named else os.urandom(4).hex()}"

    def add(self, task_id: str, order: Order, status: str, pid: int = 0, configuration: str = "") -> Transfer:
        """Add a row; if `pid` is given its lock is already held, so that no other process takes it. Drops old rows."""
        now, log = time.time(), self.log(task_id)
        before = now - KEPT_S
        for old in self.ledger.untouched_since(before):
            if not self.is_held(old.id):
                self.log(old.id).file.unlink(missing_ok=True)
                self.drop_lock(old.id)
                self.ledger.remove(old.id)
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
        # It may have ended, and its lock file be gone, since the row was read.
        now = self.ledger.get(transfer.id)
        return now is not None and not now.is_over

    def take(self, task_id: str) -> Lock | None:
        """Take its lock and sign it, if no process runs it."""
        try:
            lock = None if self.is_held(task_id) else Lock.take(self.lock_file(task_id))
        except (BlockingIOError, ConfigError):
            return None
        if lock:
            lock.sign()
        return lock

    def drop_lock(self, task_id: str) -> None:
        """Remove the lock file of one that is over; a process that has opened it before checks the row and leaves."""
        self.lock_file(task_id).unlink(missing_ok=True)
