"""GPUs of a Python session on a real machine: leased with its first code, which alone sees them, until its end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.interpreter import PythonOrder, PythonRecord
from remote_sandbox_mcp.core.errors import NotStarted
from remote_sandbox_mcp.core.jobs.cards import CardRequest
from remote_sandbox_mcp.core.jobs.job import NoCards
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.services.fleet import Fleet as FleetOfMembers
from remote_sandbox_mcp.services.fleet import Member
from tests.support.cards import StandInCards, stand_in_cards
from tests.support.sshd import Fleet, Sshd
from tests.support.waiting import eventually

SEES = "import os\nos.environ.get('CUDA_VISIBLE_DEVICES')"


@pytest.fixture(scope="module")
def machine(fleet: Fleet) -> Sshd:
    return fleet.machine(tmux=False)


@pytest.fixture
def cards(machine: Sshd, fleet: Fleet) -> Iterator[StandInCards]:
    with stand_in_cards(fleet.folder / f"cards-{os.urandom(4).hex()}", 2) as cards:
        (machine.home / ".bashrc").write_text(f"PATH={cards.bin}:$PATH; export PATH\n")
        yield cards
    machine.reset()


@pytest.fixture
async def app(machine: Sshd, cards: StandInCards, tmp_path: Path) -> AsyncIterator[App]:
    opened = await open_machine(machine.machine(), tmp_path / "known_hosts")

    async def opener() -> Sandbox:
        return opened

    app = App(FleetOfMembers([Member("gpu1", lambda: opened.description, opener)]))
    yield app
    await app.close()


async def said(app: App, code: str, count: int = 0, place: str = "gpu1", session: str = "main") -> PythonRecord:
    request = CardRequest(count) if count else None
    report = await app.pythons.run(PythonOrder(code=code, session=session, cards=request), name=place)
    assert report.record is not None
    return report.record


async def test_a_session_has_cards_of_its_own_until_it_ends(app: App, cards: StandInCards, machine: Sshd) -> None:
    first = await said(app, SEES, 1, "any")
    assert (first.value, first.cards) == (repr(cards.uuids[0]), (cards.uuids[0],))
    # Its code has them in the next calls, too, and after the death of its interpreter.
    assert (await said(app, SEES, 1)).value == first.value
    await said(app, "os.kill(os.getpid(), 9)")
    assert (await said(app, SEES)).value == first.value
    with pytest.raises(NotStarted, match="session main on gpu1 has 1 GPUs of its own"):
        await said(app, SEES, 2)
    # Another session does not get them, and says whose they are.
    with pytest.raises(NoCards, match="2 GPUs cannot be had now: 1 of 2 are free") as refusal:
        await said(app, SEES, 2, session="other")
    assert refusal.value.busy == (f"GPU 0 is leased by {machine.user} (job python-main)",)
    await app.pythons.close("main", "gpu1")

    async def both() -> bool:
        try:
            return len((await said(app, SEES, 2, session="other")).cards) == 2
        except NoCards:
            return False

    await eventually(both, bool, "the end of the lease")


async def test_what_is_killed_frees_its_cards(app: App, cards: StandInCards, machine: Sshd) -> None:
    await said(app, SEES, 2)
    machine.reset()

    async def again() -> bool:
        try:
            return len((await said(app, SEES, 2, session="next")).cards) == 2
        except NoCards:
            return False

    await eventually(again, bool, "the end of the lease")


async def test_a_session_without_gpus_refuses_a_call_that_wants_some(app: App) -> None:
    assert (await said(app, SEES)).value == ""
    with pytest.raises(NotStarted, match="has no GPUs of its own, as its first call asked for; use another session"):
        await said(app, SEES, 1)
