"""A transfer that this process runs itself: guarded when it takes a while, passed on when it takes long."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import ConfigError, SandboxError
from ..store.transfers import FAILED, End, Transfer
from .drive import Drive, Runner
from .guardian import Guardian
from .locks import Lock
from .process import LEAVE, TAKE_OVER
from .records import Records


@dataclass(frozen=True)
class Times:
    """When a transfer that is not done gets a guardian, and when it is left to that."""

    # Soon: one whose server is killed before that is taken over by nobody. Most small ones are done by then.
    guard_after_s: float = 0.1
    pass_on_after_s: float = 15.0


USUAL = Times()


class Turn:
    """A run in this process, under a lock, from now until it is over or passed on; `task` ends then."""

    def __init__(
        self, records: Records, transfer: Transfer, lock: Lock, runner: Runner,
        spawn: Callable[[str], Guardian], times: Times,
    ) -> None:  # fmt: skip
        self._records = records
        self.id = transfer.id
        self._lock = lock
        self._spawn = spawn
        self._times = times
        self._guardian: Guardian | None = None
        self._drive = Drive(records, transfer, functools.partial(runner, transfer.order))
        self.task = asyncio.ensure_future(self._run())

    def leave(self) -> None:
        """Stop here; a guardian goes on with it. Where none can be had, it goes on here."""
        if not self.task.done() and self._ensure_guardian():
            self._drive.stop()

    async def _run(self) -> None:
        supervising = asyncio.ensure_future(self._supervise())
        try:
            over = await self._drive.run(passed_on=True)
        except SandboxError as problem:
            # Whether it is over is in a row that cannot be reached; a guardian will see.
            self._records.log(self.id).note(str(problem))
            over = False
        finally:
            supervising.cancel()
        if over:
            self._finish()
        else:
            await self._pass_on()

    async def _supervise(self) -> None:
        await asyncio.sleep(self._times.guard_after_s)
        self._ensure_guardian()
        await asyncio.sleep(self._times.pass_on_after_s - self._times.guard_after_s)
        self.leave()

    def _finish(self) -> None:
        self._records.drop_locks(self.id)
        self._lock.release()
        if self._guardian is not None:
            self._guardian.tell(LEAVE)

    async def _pass_on(self) -> None:
        if guardian := self._ensure_guardian():
            self._records.log(self.id).note(f"left to process {guardian.pid}")
            self._lock.release()
            guardian.tell(TAKE_OVER)
        else:
            end = End(FAILED, None, "contact was lost, and no process could be started that goes on", SandboxError.code)
            await asyncio.to_thread(self._records.ledger.end, self.id, end)
            self._finish()

    def _ensure_guardian(self) -> Guardian | None:
        """The one that waits, started if there is none; nothing where none can be."""
        if self._guardian is None or self._guardian.is_gone():
            self._guardian = None
            try:
                self._guardian = self._spawn(self.id)
            except (OSError, ConfigError) as error:
                self._records.log(self.id).note(f"unable to start a guardian: {error}")
        return self._guardian
