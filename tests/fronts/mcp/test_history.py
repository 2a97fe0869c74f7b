"""Every call of a client is kept, without its secrets, and no call waits for that or fails because of it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import time
from collections.abc import Sequence

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.history import CallRow, HistoryRows, WantedCalls
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.services.history import History, MadeCall
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import Answer, FakeSandbox
from tests.support.server import AGENT


def kept() -> Sequence[CallRow]:
    database = Database(paths.state_folder() / STATE_FILE)
    try:
        return HistoryRows(database).newest(WantedCalls())
    finally:
        database.close()


async def test_a_call_is_kept_with_who_where_and_what_came_of_it(fake: FakeSandbox, app: App) -> None:
    fake.answers["deploy --token abc"] = Answer(exit_code=3)
    async with connected(app) as tools:
        await tools.client.call_tool("exec_bash", {"command": "deploy --token abc"})
        await tools.client.call_tool("write_remote_file", {"remote_path": "~/a", "content": "abcdef"})
        await tools.client.call_tool("read_remote_file", {"remote_path": "~/nowhere", "sandbox_name": "other"})
        # Not one of a client's, but of our own command line.
        await build(app).call_tool("list_sandboxes", {})
    ran, wrote, failed = kept()
    assert (ran.client, ran.version) == (AGENT.name, ran.version)
    assert ran.version
    assert (ran.tool, ran.sandbox, ran.outcome, ran.exit_code) == ("exec_bash", "fake", "done", 3)
    assert ran.arguments == {"command": "deploy --token [hidden]"}
    assert ran.told.startswith("on fake: exit 3 after")
    assert wrote.arguments == {"remote_path": "~/a", "content": "(6 characters)"}
    assert (failed.sandbox, failed.outcome) == ("other", "file")
    assert "nowhere" in failed.told
    assert ran.session == failed.session != ""
    file = paths.state_folder() / STATE_FILE
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


async def test_a_configured_secret_is_hidden_in_arguments_and_results(fake: FakeSandbox, app: App) -> None:
    secret = Secret("correct horse battery")
    async with connected(app) as tools:
        await tools.client.call_tool("exec_bash", {"command": f"run '{secret.reveal()}'", "cwd": secret.reveal()})
        await tools.client.call_tool("select_sandbox", {"sandbox_name": secret.reveal()})
    assert "correct" not in str(kept())


async def test_with_no_days_nothing_is_kept_and_what_was_is_dropped(fake: FakeSandbox) -> None:
    for days, calls in ((1, 2), (0, 0)):
        async with connected(App(Fleet([member(fake)]), settings=Settings(keep_calls_days=days))) as tools:
            await tools.client.call_tool("list_sandboxes", {})
            await tools.client.call_tool("list_sandboxes", {})
        assert len(kept()) == calls


async def test_calls_are_answered_where_nothing_can_be_written(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paths.HOME, "/dev/null/state")
    async with connected(app) as tools:
        answer = await tools.client.call_tool("select_sandbox", {"sandbox_name": "other"})
        assert not answer.is_error


async def test_a_full_disk_loses_rows_and_no_call(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("remote_sandbox_mcp.local.store.history._fields", full)
    async with connected(app) as tools:
        assert not (await tools.client.call_tool("list_sandboxes", {})).is_error
        await asyncio.sleep(0)
    assert kept() == ()


async def test_noting_a_call_costs_it_next_to_nothing_and_a_flood_is_bounded() -> None:
    history = History(30)
    call = MadeCall(tool="exec_bash", arguments={"command": "x" * 100_000}, outcome="done", begun=0.0, seconds=0.1)
    begun = time.thread_time()
    for _ in range(5000):
        history.note(call)
    assert (time.thread_time() - begun) / 5000 < 0.0002
    assert len(history._waiting) == 1000
    history._waiting.clear()
    await history.close()
