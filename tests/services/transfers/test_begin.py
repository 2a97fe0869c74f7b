"""Beginning a transfer: done within the wait if it is quick, and seen by everybody if it is not."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.sync.transfer import Headway
from remote_sandbox_mcp.local.store.transfers import CANCELLED, COMPLETED, FAILED, RUNNING, TransferEnd
from remote_sandbox_mcp.services.transfers.background import BackgroundTransfers
from remote_sandbox_mcp.services.transfers.records import KEPT_S, TransferRecords
from tests.services.transfers.conftest import pieces, turns
from tests.support.pace import at_most
from tests.support.server import until
from tests.support.transfers_stand_in import act, pretend


async def test_a_quick_one_is_over_within_the_wait(transfers: BackgroundTransfers, state: Path, play: Path) -> None:
    done = await transfers.begin(pretend(play), act, wait_s=10)
    assert (done.status, done.error, done.pid) == (COMPLETED, "", os.getpid())
    assert done.outcome
    assert done.outcome.sent_files == 5
    assert done.headway == Headway("sending", 5, 5, path="piece 4")
    assert done.created <= done.started <= done.ended <= time.time()
    assert pieces(play) == [f"piece {number}" for number in range(5)]
    # Nothing is left but the log.
    assert [file.name for file in (state / "transfers").iterdir()] == [f"{done.id}.log"]


async def test_the_log_tells_it_to_a_person(transfers: BackgroundTransfers, play: Path) -> None:
    done = await transfers.begin(pretend(play), act, wait_s=10)
    assert stat.S_IMODE(os.stat(done.log_file).st_mode) == 0o600
    assert [line.split(" ", 2)[2] for line in transfers.log_tail(done, 20)] == [
        f"running: {play} -> gpu1:/data",
        "scanning",
        "sending: 5 files, 0 bytes",
        "problem: odd␊name: permission denied",
        "completed in 0.0 s: 5 files sent (2 MB, 0 bytes over the line), 0 as they were, 0 deleted, 1 problem",
    ]
    assert len(transfers.log_tail(done, 2)) == 2
    assert transfers.log_tail(replace(done, id="tr-gone"), 2) == []


async def test_a_slow_one_is_told_as_it_is_and_awaited_later(
    transfers: BackgroundTransfers, state: Path, play: Path
) -> None:
    begun = await transfers.begin(pretend(play, pieces=30), act, wait_s=0.1)
    assert (begun.status, begun.ended) == (RUNNING, 0)
    # Another process sees it too.
    other = BackgroundTransfers(state)
    seen = await until(lambda: _headway(other, begun.id), "some headway")
    assert seen.phase == "sending"
    assert (await other.check(begun.id, wait_s=10)).status == COMPLETED
    assert (await transfers.check(begun.id)).status == COMPLETED
    await other.close()


async def _headway(transfers: BackgroundTransfers, task_id: str) -> Headway | None:
    return (await transfers.check(task_id)).headway


async def test_an_answer_that_comes_early_does_not_wait(transfers: BackgroundTransfers, play: Path) -> None:
    begun = time.monotonic()
    await transfers.begin(pretend(play, pieces=1), act, wait_s=30)
    assert time.monotonic() - begun < at_most(5)


@pytest.mark.parametrize(
    ("how", "error", "code"),
    [
        ("refused", "gpu1 refused the login", "login_refused"),
        ("defect", "an unexpected ValueError: a defect", "failed"),
    ],
    ids=["one of ours", "a defect"],
)
async def test_what_trying_again_does_not_mend_fails_at_once(
    transfers: BackgroundTransfers, play: Path, how: str, error: str, code: str
) -> None:
    done = await transfers.begin(pretend(play, how), act, wait_s=10)
    assert (done.status, done.error, done.code) == (FAILED, error, code)
    assert any(how != "defect" or "Traceback" in line for line in transfers.log_tail(done, 50))
    assert [what for _, what in turns(play)] == ["begin", "end"]


async def test_a_caller_who_goes_away_takes_only_the_waiting_along(transfers: BackgroundTransfers, play: Path) -> None:
    waiting = asyncio.ensure_future(transfers.begin(pretend(play), act, wait_s=10))
    await until(lambda: pieces(play), "the first piece")
    waiting.cancel()
    begun = (await transfers.list(1))[0]
    assert (await transfers.check(begun.id, wait_s=10)).status == COMPLETED


async def test_contact_that_is_lost_is_made_again(transfers: BackgroundTransfers, play: Path) -> None:
    begun = await transfers.begin(pretend(play, "unreachable at first"), act, wait_s=0)
    await until(lambda: _phase(transfers, begun.id, "reconnecting"), "the loss to be told")
    done = await transfers.check(begun.id, wait_s=20)
    assert (done.status, done.pid) == (COMPLETED, os.getpid())
    said = "\n".join(transfers.log_tail(done, 50))
    assert "contact lost: unable to reach gpu1: no route; trying again in 0.8 s" in said
    assert [what for _, what in turns(play)].count("begin") == 5


async def _phase(transfers: BackgroundTransfers, task_id: str, phase: str) -> object:
    found = await transfers.check(task_id)
    return found if found.headway and found.headway.phase == phase else None


async def test_an_unknown_id_is_told_with_those_that_exist(transfers: BackgroundTransfers, play: Path) -> None:
    for ask in (transfers.check, transfers.cancel):
        with pytest.raises(BadArgument, match=r"no transfer has the id 'tr-x'; there is none yet"):
            await ask("tr-x")
    first, second = [await transfers.begin(pretend(play), act, wait_s=10) for _ in range(2)]
    with pytest.raises(BadArgument, match=f"the latest are: {second.number}, {first.number}$"):
        await transfers.check("tr-x")
    assert [found.id for found in await transfers.list(10)] == [second.id, first.id]


async def test_what_is_old_goes_when_a_new_one_begins(transfers: BackgroundTransfers, state: Path, play: Path) -> None:
    old, stale, young = [await transfers.begin(pretend(play), act, wait_s=10) for _ in range(3)]
    records = TransferRecords(state)
    with records.ledger.database.writing() as connection:
        connection.execute("UPDATE transfers SET updated = updated - ? WHERE id <> ?", (KEPT_S + 60, young.id))
        connection.execute("UPDATE transfers SET status = 'running' WHERE id = ?", (stale.id,))
    records.lock_file(old.id).touch()
    new = await transfers.begin(pretend(play), act, wait_s=10)
    assert [found.id for found in await transfers.list(10)] == [new.id, young.id]
    assert {file.stem for file in (state / "transfers").iterdir()} == {young.id, new.id}
    records.close()


async def test_one_that_nobody_cares_for_is_stale(transfers: BackgroundTransfers, state: Path, play: Path) -> None:
    records = TransferRecords(state)
    lost = records.add(records.new_id(), pretend(play), RUNNING, pid=1)
    assert await transfers.is_stale(lost)
    # Waiting for it would be in vain.
    begun = time.monotonic()
    assert await transfers.check(lost.id, wait_s=30) == lost
    assert time.monotonic() - begun < at_most(5)
    records.ledger.end(lost.id, TransferEnd(CANCELLED))
    assert not await transfers.is_stale(lost)
    records.close()
