"""Transfers in the background: begin, run to the end, wait, list, cancel, and continue what another process left."""

from __future__ import annotations

import asyncio
import functools
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...core.client import is_again
from ...core.errors import BadArgument, SandboxError
from ...core.sync.transfer import Headway, Listener, Order, Outcome
from ...local.processes.locks import Lock
from ...local.store.transfers import CANCELLED, COMPLETED, FAILED, QUEUED, RUNNING, Transfer, TransferEnd, id_of
from ...local.waiting import Chores
from ..sync.patience import TRANSFER, adding_up, persist
from .records import TransferRecords, describe_headway, describe_outcome

CANCEL_POLL_S = 0.05
POLL_S = 0.15
# How long a leaving process waits for its transfers to stop; later ones end with the process.
LEAVE_S = 0.08
NAMED_IDS = 5
NOT_HEEDED = (
    "the process that runs this transfer, among other things, has not heeded the wish to cancel within {:g} s; it is "
    "not killed for that. The transfer ends as soon as that process looks; where it never does, remote-sandbox-mcp hub "
    "restart ends it"
)


@dataclass(frozen=True)
class Cancelled:
    """Result of a cancellation. `terminated`: it ended because of it; `error`: why it still runs."""

    transfer: Transfer
    terminated: bool = False
    already_finished: bool = False
    error: str = ""


T = TypeVar("T")


class BackgroundTransfers:
    """The transfers of a state folder. Whatever this process leaves unfinished, another continues."""

    def __init__(self, state: Path, configuration: str = "") -> None:
        """`configuration`: only its transfers are continued here, because machine names mean the same only there."""
        self._records = TransferRecords(state)
        self._configuration = configuration
        self._drives: dict[str, Drive] = {}
        self._starting = Chores("starting a transfer", expected=(Exception,))

    @property
    def running(self) -> Sequence[str]:
        """Ids of the transfers that this process runs."""
        return [*self._drives]

    async def settled(self) -> None:
        """Wait for the transfers that this process runs now."""
        running: list[asyncio.Future[Any]] = [*self._starting, *(drive.task for drive in self._drives.values())]
        if running:
            await asyncio.wait(running)

    async def begin(self, order: Order, runner: Runner, *, wait_s: float, of_call: bool = True) -> Transfer:
        """Start it in this process; returns the row when it is over, or after `wait_s`.

        `of_call`: the current call is about this one, and finds it again when it is repeated.
        """
        drive = await self._see_through(self._start(order, runner, of_call))
        return await self.check(drive.id, wait_s=wait_s)

    async def begun_before(self, runner: Runner) -> Transfer | None:
        """The transfer that an earlier attempt of the current call began in a process that died.

        It continues here, unless another process has taken it up.
        """
        return await self._see_through(self._again(runner)) if is_again() else None

    async def _again(self, runner: Runner) -> Transfer | None:
        found = await asyncio.to_thread(lambda: self._records.ledger.get(self._records.new_id()))
        if found and not found.is_over and (taken := await asyncio.to_thread(self._take, found.id)):
            self._drive(*taken, runner)
        return found

    async def queue(self, order: Order) -> Transfer:
        """Add a row for another process to run."""
        return await asyncio.to_thread(self._add, order, QUEUED)

    async def fail(self, task_id: str, why: str) -> Transfer:
        """Record that a queued one cannot be started."""
        await asyncio.to_thread(self._records.ledger.end, task_id, TransferEnd(FAILED, None, why, SandboxError.code))
        return await asyncio.to_thread(self._find, task_id)

    async def take_up(self, runner: Runner) -> None:
        """Continue transfers of this configuration that no process runs any more."""
        # Without an identity, machine names could mean other machines.
        if self._configuration:
            await self._see_through(self._take_up(runner))

    async def _take_up(self, runner: Runner) -> None:
        for unfinished in await asyncio.to_thread(self._records.ledger.unfinished, self._configuration):
            if taken := await asyncio.to_thread(self._take, unfinished.id):
                self._drive(*taken, runner)

    def _take(self, task_id: str) -> tuple[Transfer, Lock] | None:
        lock = self._records.take(task_id)
        if lock is None:
            return None
        try:
            if transfer := self._records.ledger.take(task_id, os.getpid()):
                # The note shows in the log that people read why the transfer paused.
                self._records.log(task_id).note(f"taken up by process {os.getpid()}")
                return transfer, lock
            # It has ended since the row was read.
            self._records.drop_lock(task_id)
        except BaseException:
            lock.release()
            raise
        lock.release()
        return None

    async def _see_through(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to completion even if the caller is cancelled, so that a lock that was taken is not lost."""
        return await asyncio.shield(self._starting.start(work))

    async def check(self, task_id: int | str, *, wait_s: float = 0) -> Transfer:
        """The row when it is over or stale, or after `wait_s`. Raises BadArgument for an unknown id."""
        deadline = time.monotonic() + wait_s
        if drive := self._drives.get(id_of(task_id)):
            await asyncio.wait((drive.task,), timeout=wait_s)
        while True:
            transfer = await asyncio.to_thread(self._find, task_id)
            left_s = deadline - time.monotonic()
            if transfer.is_over or left_s <= 0 or await self.is_stale(transfer):
                return transfer
            await asyncio.sleep(min(POLL_S, left_s))

    async def is_stale(self, transfer: Transfer) -> bool:
        """Whether it is not over, but no process runs it any more."""
        return await asyncio.to_thread(self._records.is_stale, transfer)

    async def cancel(self, task_id: int | str, *, wait_s: float = 5) -> Cancelled:
        """Cancel it, whichever process runs it, and wait so long for its end. Raises BadArgument for an unknown id."""
        transfer = await asyncio.to_thread(self._find, task_id)
        if transfer.is_over:
            return Cancelled(transfer, already_finished=True)
        await asyncio.to_thread(self._records.ledger.ask_to_cancel, transfer.id)
        deadline = time.monotonic() + wait_s
        # Polled, because the process that runs it may be any other: rows and locks are all they share.
        while not await asyncio.to_thread(self._has_ended, transfer.id):
            if time.monotonic() > deadline:
                found = self._records.ledger.get(transfer.id) or transfer
                return Cancelled(found, error=NOT_HEEDED.format(wait_s))
            await asyncio.sleep(CANCEL_POLL_S)
        found = self._records.ledger.get(transfer.id) or transfer
        is_cancelled = found.status == CANCELLED
        return Cancelled(found, terminated=is_cancelled, already_finished=not is_cancelled)

    def _has_ended(self, task_id: str) -> bool:
        """Whether it is over; one that no process runs any more is marked as cancelled now."""
        if not self._records.is_held(task_id):
            self._records.ledger.end(task_id, TransferEnd(CANCELLED))
        found = self._records.ledger.get(task_id)
        return found is None or found.is_over

    async def list(self, limit: int = 20) -> tuple[Transfer, ...]:
        """Newest first."""
        return await asyncio.to_thread(self._records.ledger.latest, limit)

    def log_tail(self, transfer: Transfer, lines: int = 20) -> Sequence[str]:
        """The last lines of its log."""
        return self._records.log(transfer.id).tail(lines)

    async def close(self) -> None:
        """Stop what this process runs, within LEAVE_S; slower ones end with the process."""
        if starting := list(self._starting):
            await asyncio.wait(starting, timeout=LEAVE_S)
        drives = [*self._drives.values()]
        for drive in drives:
            drive.stop()
        if drives:
            await asyncio.wait([drive.task for drive in drives], timeout=LEAVE_S)
        # In a thread: another thread that waits for the database would block the loop.
        await asyncio.wait((asyncio.ensure_future(asyncio.to_thread(self._records.close)),), timeout=LEAVE_S)

    async def _start(self, order: Order, runner: Runner, of_call: bool) -> Drive:
        return self._drive(*await asyncio.to_thread(self._add_running, order, of_call), runner)

    def _drive(self, transfer: Transfer, lock: Lock, runner: Runner) -> Drive:
        drive = self._drives[transfer.id] = Drive(self._records, transfer, lock, runner)
        drive.task.add_done_callback(lambda _: self._drives.pop(drive.id))
        return drive

    def _add_running(self, order: Order, of_call: bool) -> tuple[Transfer, Lock]:
        task_id = self._records.new_id(of_call=of_call)
        # The lock first, then the row: a row without a held lock would be taken up by another process.
        lock = Lock.take(self._records.lock_file(task_id))
        try:
            lock.sign()
            return self._add(order, RUNNING, task_id, os.getpid()), lock
        except BaseException:
            lock.release()
            raise

    def _add(self, order: Order, status: str, task_id: str = "", pid: int = 0) -> Transfer:
        return self._records.add(task_id or self._records.new_id(), order, status, pid, self._configuration)

    def _find(self, task_id: int | str) -> Transfer:
        if found := self._records.ledger.get(id_of(task_id)):
            return found
        latest = ", ".join(str(transfer.number) for transfer in self._records.ledger.latest(NAMED_IDS))
        hint = f"the latest are: {latest}" if latest else "there is none yet"
        raise BadArgument(f"no transfer has the id {str(task_id)[:80]!r}; {hint}")


# Carries out an order, once. May be cancelled at any moment and begun again: it goes on with what is already there.
Runner = Callable[[Order, Listener], Awaitable[Outcome]]
# How often the row is written and looked at.
BEAT_S = 0.4


class Drive:
    """Runs a transfer, whose lock it holds, until it ends or is cancelled or stopped; then `task` ends."""

    def __init__(self, records: TransferRecords, transfer: Transfer, lock: Lock, runner: Runner) -> None:
        self.id = transfer.id
        self._records = records
        self._lock = lock
        self._log = records.log(transfer.id)
        self._headway: Headway | None = None
        self._noted: Headway | None = None
        attempt = adding_up(functools.partial(runner, transfer.order))
        self._work = asyncio.ensure_future(persist(attempt, self._hear, TRANSFER, self._log.note))
        if transfer.cancel_requested:
            self._work.cancel()
        self.task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Stop here; the row stays, and the next process that takes the transfer up continues it."""
        self._work.cancel()

    async def _run(self) -> None:
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait((self._work,))
            watching.cancel()
            if await self._write_end():
                self._records.drop_lock(self.id)
        finally:
            watching.cancel()
            self._work.cancel()
            self._lock.release()

    def _hear(self, headway: Headway) -> None:
        if self._headway is None or self._headway.phase != headway.phase:
            self._log.note(describe_headway(headway))
        self._headway = headway

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self._note_headway()
                if await self._is_unwanted():
                    self._work.cancel()
                    return
            except SandboxError as problem:
                # The row cannot be read at the moment; the work itself may go on.
                self._log.note(str(problem))

    async def _note_headway(self) -> None:
        headway = self._headway
        if headway is not None and headway != self._noted:
            await asyncio.to_thread(self._records.ledger.note, self.id, os.getpid(), headway)
            self._noted = headway

    async def _is_unwanted(self) -> bool:
        return await asyncio.to_thread(self._records.ledger.is_unwanted, self.id)

    async def _write_end(self) -> bool:
        """Write the end; returns whether the row has it."""
        try:
            end = self._end_of(self._work, await self._is_unwanted())
            await self._write(end)
        except SandboxError as problem:
            # The row cannot be written: the process that takes the transfer up will find that nothing is left to do.
            self._log.note(str(problem))
            return False
        return end is not None

    def _end_of(self, work: asyncio.Future[Outcome], unwanted: bool) -> TransferEnd | None:
        problem = None if work.cancelled() else work.exception()
        if not work.cancelled() and problem is None:
            return TransferEnd(COMPLETED, work.result())
        if unwanted:
            return TransferEnd(CANCELLED)
        if problem is None:
            return None
        if isinstance(problem, SandboxError):
            return TransferEnd(FAILED, None, str(problem), problem.code)
        self._log.note_all("".join(traceback.format_exception(problem)).splitlines())
        return TransferEnd(FAILED, None, f"an unexpected {type(problem).__name__}: {problem}", SandboxError.code)

    async def _write(self, end: TransferEnd | None) -> None:
        if end is None:
            await self._note_headway()
            self._log.note(f"left by process {os.getpid()}")
        elif await asyncio.to_thread(self._records.ledger.end, self.id, end, self._headway):
            lines = [*describe_outcome(end.outcome)] if end.outcome else [f"{end.status}: {end.error}".rstrip(": ")]
            self._log.note_all(lines)
