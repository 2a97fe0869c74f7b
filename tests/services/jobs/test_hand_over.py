"""What only a client's environment names is handed to the watchdog before it can look at a new watch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.inherited import FILE
from remote_sandbox_mcp.core.jobs.watch import Watch, WatchOrder
from remote_sandbox_mcp.hub.rounds import supervision
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.jobs.values import Wanted, Which
from tests.support.fakes.sandbox import FakeSandbox

GPU1 = {"name": "gpu1", "host": "192.0.2.1", "user": "me", "key_file": "/keys/one"}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("REMOTE_SANDBOX_LIST", json.dumps([GPU1]))
    fake = FakeSandbox(name="gpu1")

    async def opener() -> FakeSandbox:
        return fake

    return App(Fleet([Member("gpu1", lambda: fake.description, opener)]))


def is_handed_over() -> bool:
    file = paths.state_folder() / FILE
    return file.exists() and "192.0.2.1" in file.read_text()


async def running() -> str:
    """A watchdog that is there already."""
    return ""


@pytest.mark.parametrize("runs_already", [False, True])
async def test_a_machine_is_handed_over_before_its_watch_can_be_seen(
    runs_already: bool, monkeypatch: pytest.MonkeyPatch, app: App
) -> None:
    seen: list[bool] = []
    watches = app.jobs.registry.watches
    add = watches.add

    def added(*given: Any, **more: Any) -> Watch:
        seen.append(is_handed_over())
        return add(*given, **more)

    monkeypatch.setattr(watches, "add", added)
    if runs_already:
        await app.jobs.start(Wanted(command="train", session="mine"))
        await app.jobs.watching.begin(Which(session="mine"), WatchOrder(), ensure=running)
    else:
        await app.jobs.start(Wanted(command="train", watch=WatchOrder()), running)
    assert seen == [True]
    await app.close()


async def test_no_watch_is_looked_at_with_a_configuration_from_before_a_hand_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with supervision(None, tmp_path) as work:
        rounds: list[str] = []

        async def tick() -> float:
            rounds.append("looked")
            return 7.0

        async def sweep() -> None:
            if rounds:
                (tmp_path / FILE).write_text("{}")

        monkeypatch.setattr(work._watches, "tick", tick)  # type: ignore[attr-defined]
        monkeypatch.setattr(work._app.disposables, "sweep", sweep)  # type: ignore[attr-defined]
        assert [await work.tick(), await work.tick()] == [7.0, 0.0]
        assert rounds == ["looked"]
