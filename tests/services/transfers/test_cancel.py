"""Cancelling: from any process, and never at the cost of a server."""

from __future__ import annotations

import os
from pathlib import Path

from remote_sandbox_mcp.local.processes.locks import Lock, holder
from remote_sandbox_mcp.local.store.transfers import CANCELLED, COMPLETED, RUNNING
from remote_sandbox_mcp.services.transfers.background import BackgroundTransfers
from tests.services.transfers.conftest import ServerMaker, turns
from tests.support.server import until
from tests.support.transfers_stand_in import act, pretend


async def test_one_of_this_process(transfers: BackgroundTransfers, state: Path, play: Path) -> None:
    begun = await transfers.begin(pretend(play, "forever"), act, wait_s=0)
    told = await transfers.cancel(begun.id)
    assert (told.terminated, told.already_finished, told.error) == (True, False, "")
    assert (told.transfer.status, told.transfer.cancel_requested) == (CANCELLED, True)
    assert told.transfer.ended
    assert [what for _, what in turns(play)] == ["begin", "end"]
    assert transfers.log_tail(told.transfer, 1)[0].endswith(" cancelled")


async def test_one_that_a_server_runs_ends_without_the_server(
    transfers: BackgroundTransfers, server: ServerMaker, play: Path
) -> None:
    begun = server(pretend(play, "forever"))
    told = await transfers.cancel(begun.task_id)
    assert (told.terminated, told.transfer.status) == (True, CANCELLED)
    assert begun.process.poll() is None


async def test_one_that_another_server_has_taken_up(
    transfers: BackgroundTransfers, server: ServerMaker, play: Path
) -> None:
    begun = server(pretend(play, "forever"))
    await until(lambda: turns(play), "the server to begin")
    begun.kill()
    second = server()
    await until(lambda: turns(play)[-1] == (second.pid, "begin"), "the other to begin")
    told = await transfers.cancel(begun.task_id)
    assert (told.terminated, told.transfer.status) == (True, CANCELLED)
    assert turns(play)[-1] == (second.pid, "end")


async def test_a_server_that_ignores_it_is_left_alone_and_told(
    transfers: BackgroundTransfers, server: ServerMaker, play: Path
) -> None:
    begun = server(pretend(play, "deaf"))
    await until(lambda: turns(play), "the server to begin")
    told = await transfers.cancel(begun.task_id, wait_s=0.6)
    assert not told.terminated
    assert told.error.startswith("the process that runs this transfer")
    assert told.transfer.status == RUNNING
    assert begun.process.poll() is None
    begun.kill()
    # Who takes it up knows that it is not wanted.
    await transfers.take_up(act)
    assert (await transfers.check(begun.task_id, wait_s=10)).status == CANCELLED
    assert {pid for pid, _ in turns(play)} == {begun.pid}


async def test_one_that_nobody_runs_any_more_is_over_at_once(
    transfers: BackgroundTransfers, server: ServerMaker, play: Path
) -> None:
    begun = server(pretend(play, "forever"))
    begun.kill()
    told = await transfers.cancel(begun.task_id)
    assert (told.terminated, told.transfer.status) == (True, CANCELLED)


async def test_one_that_is_queued_is_over_at_once(transfers: BackgroundTransfers, play: Path) -> None:
    queued = await transfers.queue(pretend(play, "forever"))
    assert (await transfers.cancel(queued.id)).transfer.status == CANCELLED
    await transfers.take_up(act)
    assert not turns(play)


async def test_one_that_is_over_stays_as_it_is(transfers: BackgroundTransfers, play: Path) -> None:
    done = await transfers.begin(pretend(play), act, wait_s=10)
    told = await transfers.cancel(done.id)
    assert (told.already_finished, told.terminated) == (True, False)
    assert told.transfer == done
    assert done.status == COMPLETED


async def test_who_holds_a_lock_is_not_known_before_it_signs(state: Path) -> None:
    """Else the one that has held it before would be taken for it."""
    file = state / "x.lock"
    first = Lock.take(file)
    first.sign()
    assert holder(file)
    first.release()
    assert holder(file) is None
    second = Lock.take(file)
    found = holder(file)
    assert found
    assert (found.pid, found.is_alive()) == (0, False)
    second.sign()
    found = holder(file)
    assert found
    assert (found.pid, found.is_alive()) == (os.getpid(), True)
    second.release()
