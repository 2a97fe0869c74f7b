"""One process's turn at a transfer: the row and the log keep up with it, and a wish to cancel is heeded."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Awaitable, Callable

from ..core.errors import LostContact, SandboxError, Unreachable
from ..core.transfer import Headway, Listener, Order, Outcome
from ..store.transfers import CANCELLED, COMPLETED, FAILED, End, Transfer
from .log import describe_headway, describe_outcome
from .records import Records

# Carries out an order. May be cancelled at any moment and begun again: it goes on with what is already there.
Runner = Callable[[Order, Listener], Awaitable[Outcome]]
# What a new attempt may mend.
PASSING = (Unreachable, LostContact)
# How often the row is written and looked at.
BEAT_S = 0.4
STOPPED = "its process was told to stop; the same order, given again, goes on with what is already there"


class Drive:
    """Runs `work` until it ends, is not wanted any more or is stopped."""

    def __init__(self, records: Records, transfer: Transfer, work: Callable[[Listener], Awaitable[Outcome]]) -> None:
        self._records = records
        self._id = transfer.id
        self._log = records.log(transfer.id)
        self._headway: Headway | None = None
        self._noted: Headway | None = None
        self._work = asyncio.ensure_future(work(self._hear))

    def stop(self) -> None:
        """Give up; `run` says so."""
        self._work.cancel()

    async def run(self, *, passed_on: bool) -> bool:
        """Whether it is over now. Where it was stopped or lost contact, one that is `passed_on` is not."""
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait((self._work,))
        finally:
            watching.cancel()
            self._work.cancel()
        end = self._end_of(self._work, await self._is_unwanted(), passed_on)
        await self._write(end)
        return end is not None

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
                # The row cannot be read just now; the work itself may well go on.
                self._log.note(str(problem))

    async def _note_headway(self) -> None:
        headway = self._headway
        if headway is not None and headway != self._noted:
            await asyncio.to_thread(self._records.ledger.note, self._id, os.getpid(), headway)
            self._noted = headway

    async def _is_unwanted(self) -> bool:
        return await asyncio.to_thread(self._records.ledger.is_unwanted, self._id)

    def _end_of(self, work: asyncio.Future[Outcome], unwanted: bool, passed_on: bool) -> End | None:
        problem = None if work.cancelled() else work.exception()
        if not work.cancelled() and problem is None:
            return End(COMPLETED, work.result())
        if unwanted:
            return End(CANCELLED)
        if passed_on and (problem is None or isinstance(problem, PASSING)):
            return None
        if problem is None:
            return End(FAILED, None, STOPPED, SandboxError.code)
        if isinstance(problem, SandboxError):
            return End(FAILED, None, str(problem), problem.code)
        self._log.note_all("".join(traceback.format_exception(problem)).splitlines())
        return End(FAILED, None, f"an unexpected {type(problem).__name__}: {problem}", SandboxError.code)

    async def _write(self, end: End | None) -> None:
        if end is None:
            await self._note_headway()
        elif await asyncio.to_thread(self._records.ledger.end, self._id, end, self._headway):
            lines = [*describe_outcome(end.outcome)] if end.outcome else [f"{end.status}: {end.error}".rstrip(": ")]
            self._log.note_all(lines)
