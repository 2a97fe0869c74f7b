"""Cancelling: from any process, asked before it is forced, and never at the cost of a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.store.transfers import CANCELLED, COMPLETED, RUNNING
from remote_sandbox_mcp.tasks.locks import Lock, holder
from remote_sandbox_mcp.tasks.records import Records
from remote_sandbox_mcp.tasks.transfers import Transfers
from tests.support.server import until
from tests.tasks.conftest import ServerMaker, processes, turns
from tests.tasks.stand_in import act, pretend


async def test_one_of_this_process(transfers: Transfers, state: Path, play: Path) -> None:
    begun = await transfers.begin(pretend(play, "forever"), act, wait_s=0)
    told = await transfers.cancel(begun.id)
    assert (told.terminated, told.force_killed, told.already_finished, told.error) == (True, False, False, "")
    assert (told.transfer.status, told.transfer.cancel_requested) == (CANCELLED, True)
    assert told.transfer.ended
    assert [what for _, what in turns(play)] == ["begin", "end"]
    assert transfers.log_tail(told.transfer, 1)[0].endswith(" cancelled")


async def test_one_that_a_server_runs_ends_without_the_server(
    transfers: Transfers, server: ServerMaker, state: Path, play: Path
) -> None:
    begun = server(pretend(play, "forever"))
    await until(lambda: len(processes(state)) == 2, "the guardian")
    told = await transfers.cancel(begun.task_id)
    assert (told.terminated, told.force_killed, told.transfer.status) == (True, False, CANCELLED)
    assert begun.process.poll() is None
    await until(lambda: processes(state) == [begun.pid], "the guardian to leave")


async def test_one_that_a_guardian_has_taken_over(transfers: Transfers, server: ServerMaker, play: Path) -> None:
    begun = server(pretend(play, "forever"))
    await until(lambda: turns(play), "the server to begin")
    begun.close()
    await until(lambda: {pid for pid, _ in turns(play)} - {begun.pid}, "the guardian to begin")
    told = await transfers.cancel(begun.task_id)
    assert (told.terminated, told.force_killed, told.transfer.status) == (True, False, CANCELLED)
    assert turns(play)[-1] == (told.transfer.pid, "end")


async def test_a_worker_that_ignores_it_is_killed(transfers: Transfers, state: Path, play: Path) -> None:
    begun = await transfers.begin_detached(pretend(play, "stuck"))
    await until(lambda: turns(play), "the worker to begin")
    told = await transfers.cancel(begun.id, force_kill_after_s=0.3)
    assert (told.terminated, told.force_killed, told.error) == (True, True, "")
    assert (await transfers.check(begun.id)).status == CANCELLED
    assert not processes(state)


async def test_a_server_that_ignores_it_is_left_alone_and_told(
    transfers: Transfers, server: ServerMaker, state: Path, play: Path
) -> None:
    begun = server(pretend(play, "deaf"))
    await until(lambda: turns(play) and len(processes(state)) == 2, "the server to begin and its guardian to wait")
    told = await transfers.cancel(begun.task_id, force_kill_after_s=0.6)
    assert not told.terminated
    assert not told.force_killed
    assert told.error.startswith(f"process {begun.pid}, a server that runs this transfer")
    assert told.transfer.status == RUNNING
    assert len(processes(state)) == 2
    begun.kill()
    # The guardian knows that it is not wanted.
    assert (await transfers.check(begun.task_id, wait_s=10)).status == CANCELLED
    assert {pid for pid, _ in turns(play)} == {begun.pid}


async def test_one_that_nobody_runs_any_more_is_over_at_once(
    transfers: Transfers, server: ServerMaker, play: Path
) -> None:
    begun = server(pretend(play, "forever"), guard_after_s=60)
    begun.kill()
    told = await transfers.cancel(begun.task_id)
    assert (told.terminated, told.force_killed, told.transfer.status) == (True, False, CANCELLED)


async def test_one_that_is_over_stays_as_it_is(transfers: Transfers, play: Path) -> None:
    done = await transfers.begin(pretend(play), act, wait_s=10)
    told = await transfers.cancel(done.id)
    assert (told.already_finished, told.terminated) == (True, False)
    assert told.transfer == done
    assert done.status == COMPLETED


async def test_a_wish_that_comes_before_the_worker_is_heeded(transfers: Transfers, state: Path, play: Path) -> None:
    begun = await transfers.begin_detached(pretend(play, "forever"))
    told = await transfers.cancel(begun.id)
    assert (told.terminated, told.force_killed, told.transfer.status) == (True, False, CANCELLED)
    await until(lambda: not processes(state), "the worker to leave")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process
        process.kill()


async def test_a_stranger_with_the_number_of_a_worker_is_never_hit(
    transfers: Transfers, stranger: subprocess.Popen[bytes], state: Path, play: Path
) -> None:
    """The guard is held, but signed by a process that began at another time than the one that has its number."""
    records = Records(state)
    task_id = records.new_id()
    guard = Lock.take(records.guard_file(task_id))
    os.pwrite(guard.fd, f"{stranger.pid} 1\n".encode(), 0)
    records.add(task_id, pretend(play), RUNNING, pid=stranger.pid)
    told = await transfers.cancel(task_id, force_kill_after_s=0.1)
    assert not told.terminated
    assert stranger.poll() is None
    guard.release()
    records.close()


async def test_who_is_to_guard_is_not_known_before_the_guardian_signs(state: Path) -> None:
    """Else the server that starts it would be taken for it."""
    file = state / "x.guard"
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
