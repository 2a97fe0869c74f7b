"""Workspaces on real machines: one with Python, one that has SFTP only, and a line that is cut."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import App, machine_member
from remote_sandbox_mcp.backends.link.lane import OutpostLane
from remote_sandbox_mcp.core.sandboxes.machine import Machine
from remote_sandbox_mcp.core.workspaces.workspace import LinkOrder
from remote_sandbox_mcp.services.fleet import Fleet as Members
from tests.services.workspaces.conftest import contents, write
from tests.support.line import ThreadedLine
from tests.support.root import run_as_root
from tests.support.sshd import Fleet, Sshd


@asynccontextmanager
async def app_of(machine: Machine) -> AsyncIterator[App]:
    app = App(Members([machine_member(machine)]), identity="of the tests")
    try:
        yield app
    finally:
        await app.close()


@pytest.fixture(params=["python", "sftp"])
def machine(request: pytest.FixtureRequest, fleet: Fleet) -> Sshd:
    shared: Sshd = request.getfixturevalue("sshd") if request.param == "python" else fleet.machine(python=False)
    return shared


async def test_a_workspace_on_a_machine(machine: Sshd, tmp_path: Path) -> None:
    here, there = tmp_path / "here", machine.home / "project"
    write(here, {"a": "1", "sub/b": "1", "same": "old", "gone": "1"})
    async with app_of(machine.machine()) as app:
        workspaces = app.workspaces
        order = LinkOrder(folder=str(here), sandbox=machine.name, remote="project", free=True)
        workspace = (await workspaces.link(order)).workspace
        assert workspace.remote == str(there)
        assert (await workspaces.bring(workspace)).is_quiet
        write(here, {"a": "22", "same": "new"})
        (here / "gone").unlink()
        sent = await workspaces.send(workspace)
        assert (sent.sent, sent.deleted_there) == (("a", "same"), 1)
        write(there, {"sub/b": "edited there", "c.txt": "text", "c.bin": b"\0", "results/r": b"\0"})
        run_as_root("chown", "-R", str(machine.uid), str(there))
        came = await workspaces.bring(workspace)
        assert (came.came, came.conflicts) == (("c.txt", "results/r", "sub/b"), ())
        write(here, {"a": "here once more"})
        write(there, {"a": "there as well"})
        assert (await workspaces.send(workspace)).conflicts == ("a",)
        assert not (await workspaces.decide(workspace, (), ("a",))).conflicts
        assert contents(there) == {**contents(here), "c.bin": "\0"}
        assert (await workspaces.state(workspace)).is_in_step


async def test_a_pass_whose_line_is_cut_goes_on(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", sshd.home / "cut"
    write(here, {f"d{number % 5}/f{number}": os.urandom(4000) for number in range(600)})
    begin: Callable[..., Any] = OutpostLane.begin
    cuts: list[str] = []
    with ThreadedLine(sshd.port) as line:

        def begin_and_cut(lane: OutpostLane, order: Any, *args: Any, **more: Any) -> Any:
            if lane.name == sshd.name and order["verb"] == "receive" and len(cuts) < 2:
                cuts.append(order["verb"])
                line.cut()
            return begin(lane, order, *args, **more)

        async with app_of(sshd.machine(port=line.port)) as app:
            monkeypatch.setattr(OutpostLane, "begin", begin_and_cut)
            order = LinkOrder(folder=str(here), sandbox=sshd.name, remote="cut", free=True)
            linked = await app.workspaces.link(order)
            assert (len(cuts), linked.moved.conflicts) == (2, ())
            assert contents(there) == contents(here)
            assert (await app.workspaces.bring(linked.workspace)).is_quiet
