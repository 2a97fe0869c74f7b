"""Rows of the live view, from what a process has noted."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.sync.transfer import Headway, Order, Place
from remote_sandbox_mcp.local.store.transfers import Transfer
from remote_sandbox_mcp.views.live.rows import transfer_row

MOVING = Headway("sending", files=1, files_total=2, bytes=500, bytes_total=1000, rate=250.0, left_s=2.0)


@pytest.mark.parametrize(
    ("status", "stale", "moves"),
    [
        ("running", False, True),
        ("running", True, False),
        ("completed", False, False),
        ("failed", False, False),
        ("cancelled", False, False),
    ],
)
def test_only_a_transfer_that_runs_has_a_rate_and_time_left(status: str, stale: bool, moves: bool) -> None:
    order = Order(source=Place("", "/data", True), target=Place("gpu1", "copied"))
    transfer = Transfer(
        id="tr-00000001", order=order, status=status, log_file="", created=1.0, updated=2.0, headway=MOVING
    )
    row = transfer_row(transfer, stale)
    assert (row["progress"]["bytes"], row["progress"]["bytes_total"]) == (500, 1000)
    assert ("rate_bps" in row["progress"], "left_s" in row["progress"]) == (moves, moves)
