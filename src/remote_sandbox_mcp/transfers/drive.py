"""Runs one transfer to its end: tries again after lost contact, updates its row, heeds a wish to cancel."""

from __future__ import annotations

import asyncio
import functools
import os
import traceback
from collections.abc import Awaitable, Callable

from ..core.errors import SandboxError
from ..core.transfer import Headway, Listener, Order, Outcome
from ..processes.locks import Lock
from ..store.transfers import CANCELLED, COMPLETED, FAILED, End, Transfer
from ..sync.patience import TRANSFER, adding_up, persist
from .records import Records, describe_headway, describe_outcome

# Carries out an order, once. May be cancelled at any moment and begun again: it goes on with what is already there.
Runner = Callable[[Order, Listener], Awaitable[Outcome]]
# How often the row is written and looked at.
BEAT_S = 0.4


class Drive:
    """Runs a transfer, whose lock it holds, until it ends or is cancelled or stopped; then `task` ends."""

    def __init__(self, records: Records, transfer: Transfer, lock: Lock, runner: Runner) -> None:
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

    def _end_of(self, work: asyncio.Future[Outcome], unwanted: bool) -> End | None:
        problem = None if work.cancelled() else work.exception()
        if not work.cancelled() and problem is None:
            return End(COMPLETED, work.result())
        if unwanted:
            return End(CANCELLED)
        if problem is None:
            return None
        if isinstance(problem, SandboxError):
            return End(FAILED, None, str(problem), problem.code)
        self._log.note_all("".join(traceback.format_exception(problem)).splitlines())
        return End(FAILED, None, f"an unexpected {type(problem).__name__}: {problem}", SandboxError.code)

    async def _write(self, end: End | None) -> None:
        if end is None:
            await self._note_headway()
            self._log.note(f"left by process {os.getpid()}")
        elif await asyncio.to_thread(self._records.ledger.end, self.id, end, self._headway):
            lines = [*describe_outcome(end.outcome)] if end.outcome else [f"{end.status}: {end.error}".rstrip(": ")]
            self._log.note_all(lines)
