"""The history of machines, on real machines: connected ones are looked at, others are not logged in to."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from remote_sandbox_mcp.app import compose
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.services import machine_history
from remote_sandbox_mcp.services.machine_history import MachineHistory
from tests.support.server import entry
from tests.support.sshd import Sshd

SOON_S = 20.0


async def test_connected_machines_are_looked_at_and_no_other_is_logged_in_to(
    shared_sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_history, "MINUTE_S", 0.2)
    monkeypatch.setattr(machine_history, "FRESH_S", 0.0)
    # The one that is not connected takes no turn from others.
    monkeypatch.setattr(machine_history, "MOST_EACH_MINUTE", 1)
    machines = [entry(shared_sshd), entry(shared_sshd, name="other")]
    monkeypatch.setenv("REMOTE_SANDBOX_LIST", json.dumps(machines))
    app = compose(load(None))
    member, other = app.fleet.member(shared_sshd.name), app.fleet.member("other")
    await member.open()
    history = MachineHistory()
    watching = asyncio.ensure_future(history.watch(lambda: [other, member]))
    try:
        deadline = time.monotonic() + SOON_S
        while not (await history.points(3600.0)).get(member.name):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        (point, *_) = (await history.points(3600.0))[member.name]
        assert point[2] is not None
        assert other.sandbox is None
        assert other.opening is None
    finally:
        watching.cancel()
        await history.close()
        await app.close()
