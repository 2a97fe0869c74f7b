"""Ending a transfer from any process: asked first, and killed only where that can hurt nobody else."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ..store.transfers import CANCELLED, End, Transfer
from .locks import Holder, holder
from .records import Records

POLL_S = 0.05
# How long the kernel may take to end what was killed.
DEATH_S = 2.0


@dataclass(frozen=True)
class Cancelled:
    """What came of a wish to cancel. `terminated`: it ended because of it; `error`: why it still runs."""

    transfer: Transfer
    terminated: bool = False
    force_killed: bool = False
    already_finished: bool = False
    error: str = ""


async def cancel(records: Records, transfer: Transfer, force_kill_after_s: float) -> Cancelled:
    """End it; a worker that does not in time is killed, a server that runs it never is."""
    if transfer.is_over:
        return Cancelled(transfer, already_finished=True)
    await asyncio.to_thread(records.ledger.ask_to_cancel, transfer.id)
    if worker := _worker(records, transfer.id):
        _send(worker, signal.SIGTERM)
    if await _until(lambda: _has_ended(records, transfer.id), force_kill_after_s):
        return _told(records, transfer)
    worker = _worker(records, transfer.id)
    if worker is None:
        return _refused(records, transfer, force_kill_after_s)
    _send(worker, signal.SIGKILL)
    await _until(lambda: _has_ended(records, transfer.id), DEATH_S)
    return _told(records, transfer, force_killed=True)


def _worker(records: Records, task_id: str) -> Holder | None:
    """The detached process, where it is at work or about to be; nothing where it only waits for a server."""
    guard, runs = (holder(file(task_id)) for file in (records.guard_file, records.lock_file))
    return guard if guard is not None and runs in (None, guard) and guard.is_alive() else None


def _send(worker: Holder, number: signal.Signals) -> None:
    """To the worker alone, so that it winds up in order; but death comes to all that it started, too."""
    with suppress(ProcessLookupError):
        # Each leads a session of its own. What does not is none of ours, whatever the locks say.
        if os.getsid(worker.pid) == worker.pid != os.getpid():
            (os.killpg if number == signal.SIGKILL else os.kill)(worker.pid, number)


def _has_ended(records: Records, task_id: str) -> bool:
    """Whether it is over; one that nobody runs any more is so from now on."""
    if not records.is_held(task_id):
        records.ledger.end(task_id, End(CANCELLED))
    found = records.ledger.get(task_id)
    return found is None or found.is_over


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _told(records: Records, transfer: Transfer, *, force_killed: bool = False) -> Cancelled:
    found = records.ledger.get(transfer.id) or transfer
    if found.status != CANCELLED:
        error = "" if found.is_over else "it was killed, but has not ended yet"
        return Cancelled(found, force_killed=force_killed, already_finished=found.is_over, error=error)
    if force_killed:
        records.log(found.id).note("cancelled: killed, because it did not end when asked to")
    return Cancelled(found, terminated=True, force_killed=force_killed)


def _refused(records: Records, transfer: Transfer, seconds: float) -> Cancelled:
    found = records.ledger.get(transfer.id) or transfer
    error = (
        f"process {found.pid}, a server that runs this transfer among other things, has not heeded the wish to cancel "
        f"within {seconds:g} s; it is not killed for that. The transfer ends as soon as that process looks"
    )
    return Cancelled(found, error=error)
