"""Transfers as their callers see them: begin, wait, list, cancel, and leave without losing one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import BadArgument, SandboxError
from ..core.identity import is_again
from ..core.transfer import Order
from ..store.transfers import FAILED, QUEUED, RUNNING, End, Transfer
from .cancel import Cancelled, cancel
from .drive import Runner
from .guardian import WORKER, Guardian
from .locks import Lock
from .records import Records
from .turn import USUAL, Times, Turn

POLL_S = 0.15
# As long as a server that leaves waits for its runs to stop; those that have not are stopped by its end.
LEAVE_S = 0.08
NAMED_IDS = 5


class Transfers:
    """The transfers of a state folder. What this process begins goes on when it ends, however it ends."""

    def __init__(
        self,
        state: Path,
        *,
        config: Path | None = None,
        worker_command: Sequence[str] = WORKER,
        times: Times = USUAL,
        client: Callable[[], bytes] = bytes,
    ) -> None:
        """`client` tells a guardian for whom it works; nothing where that is whoever started this process."""
        self._client = client
        self._records = Records(state)
        self._command = worker_command
        self._config = ("--config", os.path.abspath(config)) if config else ()
        self._times = times
        self._turns: dict[str, Turn] = {}
        self._guardians: set[Guardian] = set()
        self._starting: set[asyncio.Future[Turn]] = set()

    @property
    def running(self) -> Sequence[str]:
        """The ids of those that this process runs itself."""
        return [*self._turns]

    async def settled(self) -> None:
        """Wait until those have ended, or were passed on, that this process runs now."""
        running: list[asyncio.Future[Any]] = [*self._starting, *(turn.task for turn in self._turns.values())]
        if running:
            await asyncio.wait(running)

    async def begin(self, order: Order, runner: Runner, *, wait_s: float) -> Transfer:
        """Start at once in this process, and give the row as it is when it is over or `wait_s` have gone by."""
        starting = asyncio.ensure_future(self._start(order, runner))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        # A caller who goes away takes only the waiting along.
        turn = await asyncio.shield(starting)
        return await self.check(turn.id, wait_s=wait_s)

    async def begun_before(self) -> Transfer | None:
        """The transfer that the call at hand has begun in a process of ours that died since, if it goes on or is over.

        One that nobody goes on with is struck out: the call begins it anew.
        """
        return await asyncio.to_thread(self._begun_before) if is_again() else None

    def _begun_before(self) -> Transfer | None:
        found = self._records.ledger.get(self._records.new_id())
        if found is not None and self._records.is_stale(found):
            self._records.drop_locks(found.id)
            self._records.ledger.remove(found.id)
            return None
        return found

    async def begin_detached(self, order: Order) -> Transfer:
        """Have a process of its own do all of it; the row is queued, or failed where none can be started."""
        return await asyncio.to_thread(self._detach, order)

    async def check(self, task_id: str, *, wait_s: float = 0) -> Transfer:
        """The row when it is over or stale, or `wait_s` have gone by. Raises BadArgument for an unknown id."""
        deadline = time.monotonic() + wait_s
        if turn := self._turns.get(task_id):
            await asyncio.wait((turn.task,), timeout=wait_s)
        while True:
            transfer = await asyncio.to_thread(self._find, task_id)
            left_s = deadline - time.monotonic()
            if transfer.is_over or left_s <= 0 or await self.is_stale(transfer):
                return transfer
            await asyncio.sleep(min(POLL_S, left_s))

    async def is_stale(self, transfer: Transfer) -> bool:
        """Whether it is not over, but no process runs or guards it any more."""
        return await asyncio.to_thread(self._records.is_stale, transfer)

    async def cancel(self, task_id: str, *, force_kill_after_s: float = 5) -> Cancelled:
        """End it, whichever process runs it. Raises BadArgument for an unknown id."""
        return await cancel(self._records, await asyncio.to_thread(self._find, task_id), force_kill_after_s)

    async def list(self, limit: int = 20) -> tuple[Transfer, ...]:
        """Newest first."""
        return await asyncio.to_thread(self._records.ledger.latest, limit)

    def log_tail(self, transfer: Transfer, lines: int = 20) -> Sequence[str]:
        """The last lines of its log."""
        return self._records.log(transfer.id).tail(lines)

    async def close(self) -> None:
        """Pass on what this process runs, within LEAVE_S; what stops more slowly is passed on by our end."""
        if self._starting:
            await asyncio.wait(self._starting, timeout=LEAVE_S)
        turns = [*self._turns.values()]
        for turn in turns:
            turn.leave()
        if turns:
            await asyncio.wait([turn.task for turn in turns], timeout=LEAVE_S)
        for guardian in self._guardians:
            guardian.disown()
        self._guardians.clear()
        # In a thread, because another that waits for the database would hold up the loop.
        await asyncio.wait((asyncio.ensure_future(asyncio.to_thread(self._records.close)),), timeout=LEAVE_S)

    async def _start(self, order: Order, runner: Runner) -> Turn:
        transfer, lock = await asyncio.to_thread(self._add_running, order)
        turn = self._turns[transfer.id] = Turn(self._records, transfer, lock, runner, self._spawn, self._times)
        turn.task.add_done_callback(lambda _: self._turns.pop(turn.id))
        return turn

    def _add_running(self, order: Order) -> tuple[Transfer, Lock]:
        task_id = self._records.new_id()
        lock = Lock.take(self._records.lock_file(task_id))
        try:
            lock.sign()
            return self._records.add(task_id, order, RUNNING, os.getpid()), lock
        except BaseException:
            lock.release()
            raise

    def _detach(self, order: Order) -> Transfer:
        task_id = self._records.new_id()
        guard = Lock.take(self._records.guard_file(task_id))
        try:
            transfer = self._records.add(task_id, order, QUEUED)
            # It writes its number into the row itself, when it has got that far.
            return replace(transfer, pid=self._launch(task_id, guard, waiting=False).pid)
        except OSError as error:
            end = End(FAILED, None, f"unable to start a process for it: {error}", SandboxError.code)
            self._records.ledger.end(task_id, end)
            return self._find(task_id)
        finally:
            guard.release()

    def _spawn(self, task_id: str) -> Guardian:
        return self._launch(task_id, Lock.take(self._records.guard_file(task_id)), waiting=True)

    def _launch(self, task_id: str, guard: Lock, *, waiting: bool) -> Guardian:
        self._guardians.difference_update([child for child in tuple(self._guardians) if child.is_gone()])
        words, client = (*self._command, *self._config), self._client()
        guardian = Guardian.spawn(self._records, task_id, guard, words, waiting=waiting, client=client)
        self._guardians.add(guardian)
        return guardian

    def _find(self, task_id: str) -> Transfer:
        if found := self._records.ledger.get(task_id):
            return found
        latest = ", ".join(transfer.id for transfer in self._records.ledger.latest(NAMED_IDS))
        known = f"the latest are: {latest}" if latest else "there is none yet"
        raise BadArgument(f"no transfer has the id {task_id[:80]!r}; {known}")
