"""Outliving the process that began: killed, closed or only slow, it is followed by exactly one other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from remote_sandbox_mcp.store.transfers import COMPLETED, RUNNING
from remote_sandbox_mcp.tasks.guardian import Guardian
from remote_sandbox_mcp.tasks.locks import Holder, Lock, holder
from remote_sandbox_mcp.tasks.records import Records
from remote_sandbox_mcp.tasks.transfers import Transfers
from remote_sandbox_mcp.tasks.turn import USUAL, Times
from tests.support.pace import at_most
from tests.support.server import until
from tests.tasks.conftest import ServerMaker, check_one_at_a_time, pieces, processes, turns
from tests.tasks.stand_in import COMMAND, act, pretend


def guardian(state: Path, task_id: str) -> Holder | None:
    """The guardian, as soon as it has signed."""
    found = holder(Records(state).guard_file(task_id))
    return found if found and found.pid else None


def maps(pid: int) -> str:
    """What a process has loaded."""
    return Path(f"/proc/{pid}/maps").read_text()


async def test_a_server_that_is_killed_is_followed_by_the_guardian(
    transfers: Transfers, server: ServerMaker, state: Path, play: Path
) -> None:
    begun = server(pretend(play, pieces=40))
    waiting = await until(lambda: guardian(state, begun.task_id), "a guardian")
    assert (await transfers.check(begun.task_id)).pid == begun.pid
    begun.kill()
    done = await transfers.check(begun.task_id, wait_s=20)
    assert (done.status, done.pid) == (COMPLETED, waiting.pid)
    assert pieces(play) == [f"piece {number}" for number in range(40)]
    check_one_at_a_time(play)
    assert {begun.pid, waiting.pid} == {pid for pid, _ in turns(play)}


async def test_a_server_that_is_killed_soon_after_the_start_is_followed(
    transfers: Transfers, server: ServerMaker, state: Path, play: Path
) -> None:
    assert USUAL.guard_after_s <= 0.2
    begun = server(pretend(play, pieces=40), guard_after_s=USUAL.guard_after_s)
    await until(lambda: holder(Records(state).guard_file(begun.task_id)), "a guardian that may not have signed yet")
    begun.kill()
    done = await transfers.check(begun.task_id, wait_s=20)
    assert (done.status, done.pid != begun.pid) == (COMPLETED, True)
    check_one_at_a_time(play)


@pytest.mark.parametrize("guard_after_s", [0.05, 60], ids=["with a guardian", "before there is one"])
async def test_a_server_that_closes_passes_on_what_it_runs(
    transfers: Transfers, server: ServerMaker, state: Path, play: Path, guard_after_s: float
) -> None:
    begun = server(pretend(play, pieces=40), guard_after_s=guard_after_s)
    if guard_after_s < 1:
        await until(lambda: guardian(state, begun.task_id), "a guardian")
    await until(lambda: pieces(play), "the first piece")
    assert begun.close() < at_most(0.3)
    done = await transfers.check(begun.task_id, wait_s=20)
    assert done.status == COMPLETED
    assert done.pid != begun.pid
    assert pieces(play) == [f"piece {number}" for number in range(40)]
    check_one_at_a_time(play)


async def test_a_server_whose_run_is_slow_to_stop_leaves_at_once_all_the_same(
    transfers: Transfers, server: ServerMaker, play: Path
) -> None:
    begun = server(pretend(play, "slow to stop", pieces=30), guard_after_s=60)
    await until(lambda: pieces(play), "the first piece")
    assert begun.close() < at_most(0.3)
    assert (await transfers.check(begun.task_id, wait_s=20)).status == COMPLETED
    check_one_at_a_time(play)


async def test_one_that_stops_after_all_was_closed_is_passed_on_then(state: Path, play: Path) -> None:
    leaving, staying = (Transfers(state, worker_command=COMMAND) for _ in range(2))
    begun = await leaving.begin(pretend(play, "slow to stop", pieces=30), act, wait_s=0)
    await until(lambda: pieces(play), "the first piece")
    await leaving.close()
    assert [what for _, what in turns(play)].count("end") == 0
    done = await staying.check(begun.id, wait_s=20)
    assert (done.status, done.pid != os.getpid()) == (COMPLETED, True)
    check_one_at_a_time(play)
    await staying.close()
    await leaving.close()


async def test_one_that_takes_long_is_passed_on(state: Path, play: Path) -> None:
    transfers = Transfers(state, worker_command=COMMAND, times=Times(0.1, 0.3))
    done = await transfers.begin(pretend(play, "slow to stop", pieces=40), act, wait_s=20)
    assert (done.status, len(pieces(play))) == (COMPLETED, 40)
    assert done.pid != os.getpid()
    check_one_at_a_time(play)
    await transfers.close()


async def test_a_worker_waits_until_nobody_else_runs_it(transfers: Transfers, state: Path, play: Path) -> None:
    """When a process dies, its line to the guardian may close before its locks do."""
    records = Records(state)
    task_id = records.new_id()
    lock, guard = Lock.take(records.lock_file(task_id)), Lock.take(records.guard_file(task_id))
    records.add(task_id, pretend(play), RUNNING, os.getpid())
    child = Guardian.spawn(records, task_id, guard, COMMAND, waiting=False)
    await until(lambda: awaits_a_lock(child.pid), "the worker to wait")
    assert not turns(play)
    lock.release()
    assert (await transfers.check(task_id, wait_s=10)).pid == child.pid
    await until(child.is_gone, "the worker to leave")
    records.close()


def awaits_a_lock(pid: int) -> bool:
    rows = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(row[1:3] == ["->", "FLOCK"] and row[5] == str(pid) for row in rows)


async def test_a_guardian_leaves_when_it_is_not_needed(state: Path, play: Path) -> None:
    """With the real worker, which has loaded next to nothing by then."""
    transfers = Transfers(state, times=Times(guard_after_s=0.0))
    begun = await transfers.begin(pretend(play, pieces=40), act, wait_s=0)
    waiting = await until(lambda: guardian(state, begun.id), "a guardian")
    assert not [name for name in ("_asyncio", "_sqlite3", "_json", "_socket") if name in maps(waiting.pid)]
    assert os.readlink(f"/proc/{waiting.pid}/cwd") == "/"
    assert (await transfers.check(begun.id, wait_s=20)).pid == os.getpid()
    await until(lambda: not processes(state), "the guardian to leave")
    await transfers.close()


async def test_one_is_stale_when_server_and_guardian_were_killed(
    transfers: Transfers, server: ServerMaker, state: Path, play: Path
) -> None:
    begun = server(pretend(play, "forever"))
    waiting = await until(lambda: guardian(state, begun.task_id), "a guardian")
    assert not await transfers.is_stale(await transfers.check(begun.task_id))
    os.kill(waiting.pid, signal.SIGKILL)
    await until(lambda: not holder(Records(state).guard_file(begun.task_id)), "the guardian to die")
    assert not await transfers.is_stale(await transfers.check(begun.task_id))
    begun.kill()
    found = await transfers.check(begun.task_id)
    assert found.status == RUNNING
    assert await transfers.is_stale(found)


async def test_a_guardian_that_was_killed_is_replaced_when_it_is_needed(
    transfers: Transfers, server: ServerMaker, state: Path, play: Path
) -> None:
    begun = server(pretend(play, pieces=40))
    first = await until(lambda: guardian(state, begun.task_id), "a guardian")
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: not guardian(state, begun.task_id), "the guardian to die")
    begun.close()
    done = await transfers.check(begun.task_id, wait_s=20)
    assert done.status == COMPLETED
    assert done.pid not in (begun.pid, first.pid)


async def test_a_worker_that_is_told_to_stop_says_so(transfers: Transfers, play: Path) -> None:
    begun = await transfers.begin_detached(pretend(play, "forever"))
    await until(lambda: turns(play), "the worker to begin")
    os.kill(turns(play)[0][0], signal.SIGTERM)
    done = await transfers.check(begun.id, wait_s=10)
    assert done.status == "failed"
    assert done.error.startswith("its process was told to stop; the same order, given again, goes on")


async def test_a_guardian_s_line_is_not_held_open_by_another(state: Path, play: Path) -> None:
    """Else one that outlives the server would keep the other waiting."""
    transfers = Transfers(state, worker_command=COMMAND, times=Times(guard_after_s=0.0))
    begun = [await transfers.begin(pretend(play, "forever"), act, wait_s=0) for _ in range(2)]
    waiting = [await until(lambda: guardian(state, each.id), "a guardian") for each in begun]  # noqa: B023
    for each in waiting:
        pipe = os.readlink(f"/proc/{each.pid}/fd/0")
        holders = [pid for pid in (os.getpid(), *processes(state)) if pipe in _files(pid)]
        assert sorted(holders) == sorted((os.getpid(), each.pid))
    assert all([(await transfers.cancel(each.id)).terminated for each in begun])
    await until(lambda: not processes(state), "the guardians to leave")
    await transfers.close()


def _files(pid: int) -> list[str]:
    return [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()]
