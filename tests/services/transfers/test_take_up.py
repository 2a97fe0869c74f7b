"""Outliving the process that began: killed or closed, it is followed by exactly one other of the same configuration."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from remote_sandbox_mcp.local.processes.locks import Lock
from remote_sandbox_mcp.local.store.transfers import CANCELLED, COMPLETED, QUEUED, RUNNING, TransferEnd
from remote_sandbox_mcp.services.transfers.background import BackgroundTransfers
from remote_sandbox_mcp.services.transfers.records import TransferRecords
from tests.services.transfers.conftest import ServerMaker, check_one_at_a_time, pieces, turns
from tests.support.pace import at_most
from tests.support.server import until
from tests.support.transfers_stand_in import CONFIGURATION, act, pretend


async def test_a_server_that_is_killed_is_followed_by_who_takes_up(
    transfers: BackgroundTransfers, server: ServerMaker, play: Path
) -> None:
    begun = server(pretend(play, pieces=40))
    await until(lambda: pieces(play), "the first piece")
    begun.kill()
    found = await transfers.check(begun.task_id, wait_s=20)
    assert (found.status, found.pid, await transfers.is_stale(found)) == (RUNNING, begun.pid, True)
    await transfers.take_up(act)
    done = await transfers.check(begun.task_id, wait_s=20)
    assert (done.status, done.pid) == (COMPLETED, os.getpid())
    assert pieces(play) == [f"piece {number}" for number in range(40)]
    check_one_at_a_time(play)
    assert {begun.pid, os.getpid()} == {pid for pid, _ in turns(play)}
    assert f"taken up by process {os.getpid()}" in "\n".join(transfers.log_tail(done))


@pytest.mark.parametrize("how", [(), ("slow to stop",)], ids=["at once", "a run that is slow to stop"])
async def test_a_server_that_closes_leaves_what_it_runs(
    transfers: BackgroundTransfers, server: ServerMaker, play: Path, how: tuple[str, ...]
) -> None:
    begun = server(pretend(play, *how, pieces=40))
    await until(lambda: pieces(play), "the first piece")
    assert begun.close() < at_most(0.3)
    await transfers.take_up(act)
    done = await transfers.check(begun.task_id, wait_s=20)
    assert (done.status, done.pid) == (COMPLETED, os.getpid())
    assert pieces(play) == [f"piece {number}" for number in range(40)]
    check_one_at_a_time(play)


async def test_one_that_stops_after_all_was_closed_can_be_taken_up_then(state: Path, play: Path) -> None:
    leaving, staying = (BackgroundTransfers(state, CONFIGURATION) for _ in range(2))
    begun = await leaving.begin(pretend(play, "slow to stop", pieces=30), act, wait_s=0)
    await until(lambda: pieces(play), "the first piece")
    await leaving.close()
    await staying.take_up(act)
    assert not staying.running
    await until(lambda: "end" in [what for _, what in turns(play)], "it to stop")
    await leaving.settled()
    await staying.take_up(act)
    assert (await staying.check(begun.id, wait_s=20)).status == COMPLETED
    check_one_at_a_time(play)
    await staying.close()
    await leaving.close()


async def test_what_runs_is_not_taken_up(transfers: BackgroundTransfers, server: ServerMaker, play: Path) -> None:
    begun = server(pretend(play, "forever"))
    await until(lambda: turns(play), "it to begin")
    await transfers.take_up(act)
    assert not transfers.running
    assert (await transfers.check(begun.task_id)).pid == begun.pid


async def test_of_several_who_take_up_one_does(transfers: BackgroundTransfers, server: ServerMaker, play: Path) -> None:
    begun = server(pretend(play, pieces=60))
    await until(lambda: pieces(play), "the first piece")
    begun.kill()
    crowd = [server() for _ in range(3)]
    assert sorted(each.said for each in crowd) == ["nothing", "nothing", "taken up"]
    done = await transfers.check(begun.task_id, wait_s=20)
    assert (done.status, done.pid in [each.pid for each in crowd]) == (COMPLETED, True)
    check_one_at_a_time(play)


@pytest.mark.parametrize("theirs", ["another", ""], ids=["of another configuration", "of nobody knows which"])
async def test_a_name_that_may_mean_another_machine_is_not_written_to(state: Path, play: Path, theirs: str) -> None:
    lost = BackgroundTransfers(state, theirs)
    queued = await lost.queue(pretend(play))
    for ours in (CONFIGURATION, ""):
        transfers = BackgroundTransfers(state, ours)
        await transfers.take_up(act)
        assert not transfers.running
        await transfers.close()
    assert (await lost.check(queued.id)).status == QUEUED
    await lost.close()
    assert not turns(play)


async def test_one_that_was_queued_is_begun_by_who_takes_it_up(
    transfers: BackgroundTransfers, state: Path, play: Path
) -> None:
    queued = await transfers.queue(pretend(play))
    assert (queued.status, queued.pid) == (QUEUED, 0)
    await transfers.take_up(act)
    done = await transfers.check(queued.id, wait_s=20)
    assert (done.status, done.pid, len(pieces(play))) == (COMPLETED, os.getpid(), 5)
    assert [file.name for file in (state / "transfers").iterdir()] == [f"{done.id}.log"]


async def test_one_that_was_to_be_cancelled_is_cancelled_by_who_takes_it_up(
    transfers: BackgroundTransfers, server: ServerMaker, state: Path, play: Path
) -> None:
    begun = server(pretend(play, "forever"))
    records = TransferRecords(state)
    records.ledger.ask_to_cancel(begun.task_id)
    begun.kill()
    await transfers.take_up(act)
    assert (await transfers.check(begun.task_id, wait_s=10)).status in (CANCELLED,)
    assert os.getpid() not in {pid for pid, _ in turns(play)}
    records.close()


async def test_a_caller_who_goes_away_leaves_none_locked_that_nobody_runs(
    transfers: BackgroundTransfers, play: Path
) -> None:
    queued = await transfers.queue(pretend(play))
    taking = asyncio.ensure_future(transfers.take_up(act))
    await asyncio.sleep(0)
    taking.cancel()
    assert (await until(lambda: over(transfers, queued.id), "its end")).status == COMPLETED


async def over(transfers: BackgroundTransfers, task_id: str) -> object:
    found = await transfers.check(task_id)
    return found if found.is_over else None


async def test_one_that_ended_meanwhile_is_left_alone(transfers: BackgroundTransfers, state: Path, play: Path) -> None:
    """It is over when its lock is taken, though it was not when the rows were read."""
    queued = await transfers.queue(pretend(play))
    records = TransferRecords(state)
    read = records.ledger.unfinished(CONFIGURATION)
    records.ledger.end(queued.id, TransferEnd(CANCELLED))
    assert [found.id for found in read] == [queued.id]
    assert transfers._take(queued.id) is None
    assert not Path(records.lock_file(queued.id)).exists()
    records.close()


async def test_a_row_that_cannot_be_written_at_its_end_is_taken_up_again(
    transfers: BackgroundTransfers, state: Path, play: Path
) -> None:
    begun = await transfers.begin(pretend(play, pieces=20), act, wait_s=0)
    database = transfers._records.ledger.database
    file = database.file
    database.close()
    kept = file.rename(file.with_suffix(".kept"))
    file.mkdir()
    await transfers.settled()
    database.close()
    file.rmdir()
    kept.rename(file)
    assert await transfers.is_stale(await transfers.check(begun.id))
    await transfers.take_up(act)
    assert (await transfers.check(begun.id, wait_s=10)).status == COMPLETED


async def test_a_lock_that_another_process_has_just_taken_is_its_own(
    transfers: BackgroundTransfers, play: Path
) -> None:
    queued = await transfers.queue(pretend(play))
    lock = Lock.take(transfers._records.lock_file(queued.id))
    await transfers.take_up(act)
    assert not transfers.running
    lock.release()
