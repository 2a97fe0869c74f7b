"""Trying again: ever more slowly, for an hour without headway, and only where it may help."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.command import Running
from remote_sandbox_mcp.core.errors import FileProblem, HostKeyProblem, LostContact, SandboxError, Unreachable
from remote_sandbox_mcp.core.transfer import Headway, Listener, Order, Outcome
from remote_sandbox_mcp.transfers import drive as persisting
from remote_sandbox_mcp.transfers.drive import Ear, pause_after, persist
from remote_sandbox_mcp.transfers.records import Log, size
from tests.transfers.stand_in import pretend

DONE = Outcome(synced_type="file")
SENDING = [Headway("sending", files=count) for count in (0, 1)]


class Attempts:
    """A runner that fails so often, after saying something."""

    def __init__(self, problems: Sequence[SandboxError], says: Sequence[Headway] = ()) -> None:
        self.problems = list(problems)
        self.says = says
        self.heard: list[Headway] = []

    async def __call__(self, order: Order, listener: Listener) -> Outcome:
        for headway in self.says:
            listener(headway)
        if self.problems:
            raise self.problems.pop(0)
        return DONE


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was paused; nobody really waits."""
    taken: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        taken.append(seconds)
        await real(0)

    monkeypatch.setattr(persisting.asyncio, "sleep", sleep)
    return taken


async def run(attempts: Attempts, folder: Path) -> Outcome:
    return await persist(attempts, pretend(folder), attempts.heard.append, Log(folder / "log"))


async def test_it_tries_ever_more_slowly(pauses: list[float], tmp_path: Path) -> None:
    attempts = Attempts([Unreachable("no route")] * 8)
    assert await run(attempts, tmp_path) == DONE
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert {headway.phase for headway in attempts.heard} == {"reconnecting"}


async def test_headway_makes_it_quick_again(pauses: list[float], tmp_path: Path) -> None:
    lost = LostContact("lost", outcome="unknown", so_far=Running("run-1"))
    attempts = Attempts([lost] * 3, SENDING)
    assert await run(attempts, tmp_path) == DONE
    assert pauses == [1, 1, 1]
    assert attempts.heard[2] == Headway("reconnecting", files=1)


async def test_it_gives_up_after_an_hour_without_headway(
    pauses: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persisting, "GIVE_UP_AFTER_S", -1)
    with pytest.raises(Unreachable, match="no route; there was no headway for an hour of trying again"):
        await run(Attempts([Unreachable("no route")]), tmp_path)
    assert pauses == []


@pytest.mark.parametrize("problem", [HostKeyProblem("changed"), FileProblem("full")], ids=lambda problem: problem.code)
async def test_what_will_not_mend_is_not_tried_again(
    pauses: list[float], tmp_path: Path, problem: SandboxError
) -> None:
    with pytest.raises(type(problem)):
        await run(Attempts([problem]), tmp_path)
    assert pauses == []


@pytest.mark.parametrize(
    ("heard", "moved"),
    [
        ([], False),
        ([Headway("scanning", files=1), Headway("scanning", files=9)], False),
        ([Headway("sending", files=3, bytes=5)], False),
        ([Headway("sending", files=3, bytes=5), Headway("sending", files=3, bytes=6)], True),
        ([Headway("sending", files=3), Headway("deleting", files=4)], True),
    ],
    ids=["nothing", "only looking", "what was there already", "a byte", "a file"],
)
def test_getting_ahead_is_more_than_looking(heard: Sequence[Headway], moved: bool) -> None:
    ear = Ear(lambda _: None)
    for headway in heard:
        ear.hear(headway)
    assert bool(ear.moved_at) is moved


def test_a_pause_is_never_longer_than_a_minute() -> None:
    assert pause_after(5000) == 60


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 KB"), (1234567, "1.23 MB"), (5e9, "5 GB"), (1e16, "10000 TB")],
    ids=str,
)
def test_sizes_for_people(count: float, said: str) -> None:
    assert size(count) == said


def test_a_log_takes_any_line(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.note("a\x1b[31m\nb\udcff\ud800")
    assert len(log.tail(10)) == 1
    assert "\x1b" not in log.tail(1)[0]
    Log(tmp_path / "gone" / "log").note("nobody hears it")
