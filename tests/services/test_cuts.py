"""Cuts that last: a call waits them out as long as it may, and uses the machine as it is configured by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.app import App, Stock, compose
from remote_sandbox_mcp.backends.link import sandbox as outpost_sandbox
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.core.commands.command import Completed
from remote_sandbox_mcp.core.errors import LostContact
from remote_sandbox_mcp.core.jobs.job import JobSeen, JobWait
from remote_sandbox_mcp.services.jobs.values import Wanted, Which
from tests.support.line import Line
from tests.support.server import environment, until, write_config
from tests.support.sshd import Fleet, Sshd

BEGIN = "echo begun; touch begun; until [ -e go-on ]; do sleep 0.05; done; echo done; exit 3"


@pytest.fixture
def machine(fleet: Fleet) -> Iterator[Sshd]:
    machine = fleet.machine()
    yield machine
    machine.stop()


@pytest.fixture
async def line(machine: Sshd) -> AsyncIterator[Line]:
    async with Line(machine.port) as line:
        yield line


@pytest.fixture
async def app(tmp_path: Path, machine: Sshd, line: Line, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    # Shorter than the cuts below.
    monkeypatch.setattr(outpost_sandbox, "MEND_S", 0.2)
    for name, value in environment(tmp_path, ()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("REMOTE_SANDBOX_LIST", raising=False)
    made = compose(load(config(tmp_path, machine, line.port)))
    yield made
    await made.close()


def config(home: Path, machine: Sshd, port: int) -> Path:
    login = f'user = "{machine.user}"\nkey_file = "{machine.key_file}"\n'
    table = f'[machines.gpu]\nhost = "127.0.0.1"\nport = {port}\n{login}'
    return write_config(home, local=False, config=table)


async def move(app: App, home: Path, machine: Sshd) -> None:
    """The machine listens at another port from now on, as config.toml says."""
    configuration = load(config(home, machine, machine.port))
    await app.reconfigure(configuration, Stock().take(configuration))


@pytest.mark.parametrize("way", ["the line is back", "another port"])
async def test_a_command_is_followed_over_a_cut_that_lasts(
    app: App, machine: Sshd, line: Line, tmp_path: Path, way: str
) -> None:
    call = asyncio.ensure_future(app.commands.run(BEGIN, name="gpu", patience_s=60))
    await until((machine.home / "begun").exists, "the command to begin", 40)
    line.refuse()
    line.cut()
    # The sandbox itself has given up by then.
    await until(lambda: line.total_refused >= 4, "attempts", 20)
    if way == "another port":
        await move(app, tmp_path, machine)
    else:
        line.refuse(False)
    (machine.home / "go-on").touch()
    seen = (await call).seen
    assert isinstance(seen, Completed)
    assert (seen.exit_code, seen.stdout.head) == (3, b"begun\ndone\n")


@pytest.mark.parametrize("way", ["the line is back", "another port"])
async def test_a_job_is_waited_for_over_a_cut_that_lasts(
    app: App, machine: Sshd, line: Line, tmp_path: Path, way: str
) -> None:
    await app.jobs.start(Wanted(command=BEGIN, session="train", sandbox="gpu"))
    call = asyncio.ensure_future(app.tasks.wait(Which(session="train"), JobWait(seconds=60)))
    await until((machine.home / "begun").exists, "the job to begin", 40)
    line.refuse()
    line.cut()
    await until(lambda: line.total_refused >= 4, "attempts", 20)
    if way == "another port":
        await move(app, tmp_path, machine)
    else:
        line.refuse(False)
    (machine.home / "go-on").touch()
    waited = await call
    assert isinstance(waited.seen, JobSeen)
    assert (waited.why, waited.seen.exit_code) == ("ended", 3)


async def test_what_cannot_be_reached_in_the_callers_time_is_unknown(app: App, machine: Sshd, line: Line) -> None:
    call = asyncio.ensure_future(app.commands.run(BEGIN, name="gpu", patience_s=3))
    await until((machine.home / "begun").exists, "the command to begin", 40)
    line.refuse()
    line.cut()
    with pytest.raises(LostContact) as lost:
        await call
    assert lost.value.outcome == "unknown"
    assert lost.value.so_far.stdout.head == b"begun\n"
