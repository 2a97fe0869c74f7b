"""The detached worker: takes a transfer over, and does not give up because a line was cut."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from ..core.errors import Unreachable
from ..core.transfer import Headway, Listener, Order, Outcome
from ..store.transfers import Transfer
from .drive import PASSING, Drive, Runner
from .locks import Lock
from .log import Log
from .records import Records

RunnerFactory = Callable[[], AbstractAsyncContextManager[Runner]]

LONGEST_PAUSE_S = 60.0
GIVE_UP_AFTER_S = 3600.0
RECONNECTING = "reconnecting"


async def carry_on(records: Records, task_id: str, runner_factory: RunnerFactory) -> None:
    """Bring a transfer to its end as soon as nobody else runs it; where it is over, do nothing."""
    lock = await asyncio.to_thread(Lock.wait_for, records.lock_file(task_id))
    lock.sign()
    transfer = records.ledger.take(task_id, os.getpid())
    if transfer is not None:
        records.log(task_id).note(f"run by process {os.getpid()}")
        await _drive(records, transfer, runner_factory)
    records.drop_locks(task_id)
    lock.release()


async def _drive(records: Records, transfer: Transfer, runner_factory: RunnerFactory) -> None:
    async def work(listener: Listener) -> Outcome:
        async with runner_factory() as runner:
            return await persist(runner, transfer.order, listener, records.log(transfer.id))

    drive = Drive(records, transfer, work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, drive.stop)
    if transfer.cancel_requested:
        drive.stop()
    await drive.run(passed_on=False)


async def persist(runner: Runner, order: Order, listener: Listener, log: Log) -> Outcome:
    """Run it until it ends, again and again where contact is lost. Raises Unreachable after an hour without headway."""
    failures, since = 0, time.monotonic()
    while True:
        ear = Ear(listener)
        try:
            return await runner(order, ear.hear)
        except PASSING as problem:
            if ear.moved_at:
                failures, since = 0, ear.moved_at
            if time.monotonic() - since > GIVE_UP_AFTER_S:
                raise Unreachable(f"{problem}; there was no headway for an hour of trying again") from problem
            pause = pause_after(failures)
            log.note(f"contact lost: {problem}; trying again in {pause:g} s")
        failures += 1
        listener(replace(ear.latest, phase=RECONNECTING, rate=0.0, left_s=None))
        await asyncio.sleep(pause)


def pause_after(failures: int) -> float:
    """1, 2, 4, ... seconds, up to a minute."""
    return min(2.0 ** min(failures, 10), LONGEST_PAUSE_S)


class Ear:
    """Hears one attempt, and knows when it last got ahead; looking at what is there is not getting ahead."""

    def __init__(self, listener: Listener) -> None:
        self.latest = Headway(RECONNECTING)
        self.moved_at = 0.0
        self._listener = listener
        self._first: Headway | None = None

    def hear(self, headway: Headway) -> None:
        if headway.phase != "scanning":
            self._first = self._first or headway
            if (headway.files, headway.bytes) > (self._first.files, self._first.bytes):
                self.moved_at = time.monotonic()
        self.latest = headway
        self._listener(headway)
