"""Compiled programs go to machines that have our own Python; the loader there checks it, whatever was said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.ssh import pythons
from remote_sandbox_mcp.backends.ssh.connection import LoginGate
from remote_sandbox_mcp.backends.ssh.machine import open_through
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.far import program
from tests.support.sshd import Fleet, Sshd

OTHER = "00000d0a"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons, "_WITH_OURS", set())


@pytest.fixture(scope="module")
def user(fleet: Fleet) -> Sshd:
    return fleet.machine()


async def use(gate: LoginGate) -> None:
    """Run a command, and have a lane."""
    sandbox = await open_through(gate)
    try:
        done = await sandbox.run(Command("echo here"))
        assert isinstance(done, Completed)
        assert done.stdout.head == b"here\n"
        await (await sandbox.open_lane()).close()
    finally:
        await sandbox.close()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the machines here have Python 3.11")
async def test_a_machine_with_our_python_is_remembered_and_sent_compiled_programs(user: Sshd, tmp_path: Path) -> None:
    first, second = (LoginGate(user.machine(), tmp_path / "known_hosts") for _ in range(2))
    assert not first.python.is_ours()
    await use(first)
    assert second.python.is_ours()
    await use(second)
    assert second.python.is_ours()


async def test_a_machine_that_has_another_python_than_was_said_is_sent_source(
    user: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # We believe that both have a Python that neither has, as after a far side's lie.
    monkeypatch.setattr(program, "MAGIC", OTHER)
    monkeypatch.setattr(pythons, "MAGIC", OTHER)
    gate = LoginGate(user.machine(), tmp_path / "known_hosts")
    gate.python.note(OTHER)
    assert gate.python.is_ours()
    await use(gate)
    assert not gate.python.is_ours()
    # It may say so again and again: it is not believed any more.
    gate.python.note(OTHER)
    assert not gate.python.is_ours()


async def test_a_lane_finds_another_python_by_itself(
    user: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = LoginGate(user.machine(), tmp_path / "known_hosts")
    sandbox = await open_through(gate)
    monkeypatch.setattr(program, "MAGIC", OTHER)
    monkeypatch.setattr(pythons, "MAGIC", OTHER)
    gate.python.note(OTHER)
    lane = await sandbox.open_lane()
    assert not gate.python.is_ours()
    await lane.close()
    await sandbox.close()


def test_the_loader_of_compiled_programs_passes_any_shell() -> None:
    assert not set("'\n\\!") & set(program.loader(is_compiled=True))
