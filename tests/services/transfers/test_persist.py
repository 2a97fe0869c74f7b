"""Trying again: ever more slowly, for as long as patience lasts without headway, and only where it may help."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.commands.command import Running
from remote_sandbox_mcp.core.errors import FileProblem, HostKeyProblem, LostContact, SandboxError, Unreachable
from remote_sandbox_mcp.core.sync.transfer import Headway, Listener, Outcome
from remote_sandbox_mcp.core.texts.text import size
from remote_sandbox_mcp.services.sync import patience as persisting
from remote_sandbox_mcp.services.sync.patience import CALL, TRANSFER, CutOff, Ear, Patience, adding_up, persist
from remote_sandbox_mcp.services.transfers.records import TransferLog

DONE = Outcome(synced_type="file")
SENDING = [Headway("sending", files=count) for count in (0, 1)]


class Attempts:
    """A runner that fails so often, after saying something."""

    def __init__(self, problems: Sequence[Exception], says: Sequence[Headway] = ()) -> None:
        self.problems = list(problems)
        self.says = says
        self.heard: list[Headway] = []

    async def __call__(self, listener: Listener) -> Outcome:
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


async def run(attempts: Attempts, patience: Patience = TRANSFER) -> Outcome:
    return await persist(adding_up(attempts), attempts.heard.append, patience)


@pytest.mark.parametrize(
    ("patience", "taken"),
    [
        pytest.param(CALL, [0, 0.2, 0.4, 0.8, 1.6, 3.2, 4, 4, 4, 4, 4], id="call"),
        pytest.param(TRANSFER, [0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60], id="transfer"),
    ],
)
async def test_it_tries_ever_more_slowly(pauses: list[float], patience: Patience, taken: list[float]) -> None:
    attempts = Attempts([Unreachable("no route")] * 11)
    assert await run(attempts, patience) == DONE
    assert pauses == pytest.approx(taken)
    assert {headway.phase for headway in attempts.heard} == {"reconnecting"}


async def test_headway_makes_it_quick_again(pauses: list[float]) -> None:
    lost = LostContact("lost", outcome="unknown", so_far=Running("run-1"))
    attempts = Attempts([lost] * 3, SENDING)
    assert await run(attempts) == DONE
    assert pauses == [0, 0, 0]
    assert attempts.heard[2] == Headway("reconnecting", files=1)


@pytest.mark.parametrize(
    ("patience", "told"),
    [
        pytest.param(replace(CALL, seconds=-1), "^no route$", id="call"),
        pytest.param(replace(TRANSFER, seconds=-1), "^no route; there was no headway for an hour of t", id="transfer"),
    ],
)
async def test_it_gives_up_when_patience_is_over(pauses: list[float], patience: Patience, told: str) -> None:
    with pytest.raises(Unreachable, match=told):
        await run(Attempts([Unreachable("no route")]), patience)
    assert pauses == []


async def test_a_call_does_not_wait_for_a_line_that_is_cut_again_and_again(pauses: list[float]) -> None:
    with pytest.raises(Unreachable):
        await run(Attempts([Unreachable("cut")] * 60, SENDING), CALL)
    assert len(pauses) == 49


async def test_a_long_look_at_what_is_there_does_not_use_up_the_patience(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with the first failure, not with the first attempt."""
    now = [1000.0]
    monkeypatch.setattr(persisting.time, "monotonic", lambda: now[0])

    class Slow(Attempts):
        async def __call__(self, listener: Listener) -> Outcome:
            listener(Headway("scanning"))
            now[0] += 600 if len(self.problems) == 1 else 1
            return await super().__call__(listener)

    assert await run(Slow([Unreachable("cut")]), CALL) == DONE


async def test_what_was_done_before_a_cut_counts(pauses: list[float]) -> None:
    earlier = Outcome(synced_type="file", sent_files=3, bytes=30)
    problems = [CutOff(Unreachable("cut"), earlier), CutOff(Unreachable("cut"), None)]
    done = await run(Attempts(problems))
    assert (done.sent_files, done.bytes) == (3, 30)


@pytest.mark.parametrize("problem", [HostKeyProblem("changed"), FileProblem("full")], ids=lambda problem: problem.code)
async def test_what_will_not_mend_is_not_tried_again(pauses: list[float], problem: SandboxError) -> None:
    with pytest.raises(type(problem)):
        await run(Attempts([problem]))
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


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 KB"), (1234567, "1.23 MB"), (5e9, "5 GB"), (1e16, "10000 TB")],
    ids=str,
)
def test_sizes_for_people(count: float, said: str) -> None:
    assert size(count) == said


def test_a_log_takes_any_line(tmp_path: Path) -> None:
    log = TransferLog(tmp_path / "log")
    log.note("a\x1b[31m\nb\udcff\ud800")
    assert len(log.tail(10)) == 1
    assert "\x1b" not in log.tail(1)[0]
    TransferLog(tmp_path / "gone" / "log").note("nobody hears it")
