"""Syncs whose connection is cut at a moment that only the server itself can tell: it runs in the test's process."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.link.lane import OutpostLane
from tests.support.in_process import serve_here
from tests.support.line import ThreadedLine
from tests.support.server import entry
from tests.support.sshd import Sshd
from tests.support.trees import File, Folder, differences, put, snapshot


@pytest.fixture
def machine(sshd: Sshd) -> Sshd:
    return sshd


@pytest.fixture
def line(machine: Sshd) -> Iterator[ThreadedLine]:
    with ThreadedLine(machine.port, rtt_s=0.02) as line:
        yield line


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    put(os.fsencode(tmp_path / "ours"), Folder({b"file": File(10), b"sub": Folder({b"other": File(9)})}))
    return tmp_path / "ours"


@pytest.fixture
def there(machine: Sshd, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A place on the machine, as this test sees it."""
    folder = machine.home / request.node.originalname[:60]
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("direction", ["push", "pull"])
async def test_a_scan_whose_line_is_cut_is_begun_again(
    machine: Sshd,
    line: ThreadedLine,
    ours: Path,
    there: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    direction: str,
) -> None:
    scanning, begin = asyncio.Event(), OutpostLane.begin

    def begin_and_tell(lane: OutpostLane, order: Any, *args: Any, **more: Any) -> Any:
        done = begin(lane, order, *args, **more)
        if line.frozen and order["verb"] == "scan" and lane.name == machine.name:
            scanning.set()
        return done

    async with serve_here(tmp_path, entry(machine, port=line.port)) as server:
        # There is a line, and a lane on it.
        await server.call("sync_local_to_remote", local_path=str(ours), remote_path=there.name)
        monkeypatch.setattr(OutpostLane, "begin", begin_and_tell)
        line.freeze()
        (ours / "new").write_text("new")
        ends = {"local_path": str(ours), "remote_path": there.name}
        if direction == "pull":
            ends["local_path"] = f"{tmp_path}/back"
        tool = "sync_local_to_remote" if direction == "push" else "sync_remote_to_local"
        call = asyncio.ensure_future(server.call(tool, **ends))
        await scanning.wait()
        line.cut()
        line.thaw()
        assert (await call)["mode"] == "inline"
        assert not differences(snapshot(os.fsencode(ends["local_path"])), snapshot(os.fsencode(there)))


async def test_a_sync_whose_line_is_cut_while_it_is_opened_is_begun_again(
    machine: Sshd, line: ThreadedLine, ours: Path, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, cuts = OutpostLane.begin, []

    def begin_and_cut(lane: OutpostLane, order: Any, *args: Any, **more: Any) -> Any:
        done = begin(lane, order, *args, **more)
        if lane.name == machine.name and not cuts:
            cuts.append(order["verb"])
            line.cut()
        return done

    async with serve_here(tmp_path, entry(machine, port=line.port)) as server:
        monkeypatch.setattr(OutpostLane, "begin", begin_and_cut)
        done = await server.call("sync_local_to_remote", local_path=str(ours), remote_path=there.name)
    assert (done["mode"], cuts) == ("inline", ["rest"])
    assert not differences(snapshot(os.fsencode(ours)), snapshot(os.fsencode(there)))


async def test_a_sync_whose_line_is_cut_while_its_lane_is_started_is_begun_again(
    machine: Sshd, line: ThreadedLine, ours: Path, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet, cuts = OutpostLane.greet, []

    async def cut_and_greet(lane: OutpostLane, token: str) -> None:
        if lane.name == machine.name and not cuts:
            cuts.append(token)
            line.cut()
        await greet(lane, token)

    async with serve_here(tmp_path, entry(machine, port=line.port)) as server:
        monkeypatch.setattr(OutpostLane, "greet", cut_and_greet)
        done = await server.call("sync_local_to_remote", local_path=str(ours), remote_path=there.name)
    assert (done["mode"], len(cuts)) == ("inline", 1)
    assert not differences(snapshot(os.fsencode(ours)), snapshot(os.fsencode(there)))
