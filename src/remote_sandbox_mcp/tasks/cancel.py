"""Ending a transfer from any process: the one that runs it is asked to, and is not killed for it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from ..store.transfers import CANCELLED, End, Transfer
from .records import Records

POLL_S = 0.05


@dataclass(frozen=True)
class Cancelled:
    """What came of a wish to cancel. `terminated`: it ended because of it; `error`: why it still runs."""

    transfer: Transfer
    terminated: bool = False
    already_finished: bool = False
    error: str = ""


async def cancel(records: Records, transfer: Transfer, wait_s: float) -> Cancelled:
    """End it, and wait so long for that."""
    if transfer.is_over:
        return Cancelled(transfer, already_finished=True)
    await asyncio.to_thread(records.ledger.ask_to_cancel, transfer.id)
    deadline = time.monotonic() + wait_s
    while not await asyncio.to_thread(_has_ended, records, transfer.id):
        if time.monotonic() > deadline:
            return _refused(records, transfer, wait_s)
        await asyncio.sleep(POLL_S)
    found = records.ledger.get(transfer.id) or transfer
    is_cancelled = found.status == CANCELLED
    return Cancelled(found, terminated=is_cancelled, already_finished=not is_cancelled)


def _has_ended(records: Records, task_id: str) -> bool:
    """Whether it is over; one that nobody runs any more is so from now on."""
    if not records.is_held(task_id):
        records.ledger.end(task_id, End(CANCELLED))
    found = records.ledger.get(task_id)
    return found is None or found.is_over


def _refused(records: Records, transfer: Transfer, seconds: float) -> Cancelled:
    found = records.ledger.get(transfer.id) or transfer
    error = (
        f"process {found.pid}, which runs this transfer among other things, has not heeded the wish to cancel "
        f"within {seconds:g} s; it is not killed for that. The transfer ends as soon as that process looks; "
        "where it never does, remote-sandbox-mcp hub restart ends it"
    )
    return Cancelled(found, error=error)
