"""Rows of watches: what is decided is written whole or not at all, and nobody's change is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.core.jobs.job import JobStarted
from remote_sandbox_mcp.core.jobs.watch import Decision, Event, EventType, Policy, Resume, Status, Watch
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.watches import DONE, FAILED, PENDING, Heartbeat, Watches

NOW = 1_000_000.0
FULL = Watch(
    run_id="r",
    name="n\udcff",
    sandbox="gpu1",
    session="train",
    log_file="/l\udcff",
    cwd="/w ü",
    command="python train.py\n",
    job_id="job-0123456789abcdef",
    policy=Policy(
        interval_s=60.0, auto_resume=True, resume_command="again", resume_env={"K": "v"}, webhook_url="https://x",
        hooks=("codex", "mail"),
    ),
    metadata={"paper": ["a", 1, None]},
    last_state="running",
    last_summary="s",
    last_error="e",
    last_exit_code=3,
    last_log_tail="l",
    last_checkpoint="{}",
    failures=2,
    alerted=True,
    interrupted_at=5.5,
    resume_attempts=1,
    created=1.5,
    updated=2.5,
    checked=3.5,
    due=NOW,
)  # fmt: skip
HAPPENED = Event(type=EventType.INTERRUPTED, summary="train on gpu1 was interrupted", payload={"reason": "x\udcff"})
RESUME = Resume("job-0123456789abcdef-r1", "job-0123456789abcdef")

HAMMER = """
import sys, time
from dataclasses import replace
from pathlib import Path
from remote_sandbox_mcp.core.jobs.watch import Decision, Event, EventType
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.watches import Watches
watches, wins = Watches(Database(Path(sys.argv[1]))), 0
sys.stdin.read()
while wins < 25:
    watch = watches.get(1)
    told = Event(type=EventType.COMPLETED, summary=f"{sys.argv[2]} {wins}")
    wins += watches.commit(Decision(replace(watch, failures=watch.failures + 1), (told,)), time.time())
"""
TAKE = """
import sys
from pathlib import Path
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.watches import Watches
watches = Watches(Database(Path(sys.argv[1])))
sys.stdin.read()
print(*(effect.id for effect in watches.pending(2e9) if watches.take(effect)))
"""
ADD_AND_CANCEL = """
import sys
from pathlib import Path
from remote_sandbox_mcp.core.jobs.watch import Watch
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.watches import Watches
watches = Watches(Database(Path(sys.argv[1])))
sys.stdin.read()
for number in range(20):
    added = watches.add(Watch(sandbox=sys.argv[2], session=str(number)))
    assert watches.get(added.id).session == str(number)
    if number % 2:
        watches.cancel(added.id)
    watches.beat(number, 1.0)
"""


@pytest.fixture
def watches(tmp_path: Path) -> Iterator[Watches]:
    database = Database(tmp_path / "state.db")
    yield Watches(database)
    database.close()


def new(watches: Watches, **more: Any) -> Watch:
    return watches.add(replace(FULL, **more))


def outbox(watches: Watches) -> list[tuple[object, ...]]:
    with watches.database.reading() as connection:
        rows = connection.execute("SELECT kind, channel, state, attempts FROM outbox ORDER BY id").fetchall()
    return [tuple(row) for row in rows]


def run_at_once(program: str, file: Path, names: list[str]) -> list[str]:
    """Run it in as many processes, which begin together; what each printed."""
    command = [sys.executable, "-c", program, str(file)]
    started = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in names
    ]
    for process in started:
        assert process.stdin
        process.stdin.close()
    said = []
    for process in started:
        assert process.stdout
        said.append(process.stdout.read())
        process.stdout.close()
    assert [process.wait(30) for process in started] == [0] * len(names)
    return said


# Watches


def test_a_row_is_read_as_it_was_written(watches: Watches) -> None:
    added = watches.add(FULL)
    assert added == replace(FULL, id=1)
    assert watches.get(1) == added
    assert watches.get(2) is None


def test_watches_are_listed_newest_first_and_by_status(watches: Watches) -> None:
    for number in range(4):
        new(watches, status=Status.COMPLETED if number % 2 else Status.ACTIVE)
    assert [watch.id for watch in watches.list()] == [4, 3, 2, 1]
    assert [watch.id for watch in watches.list(Status.COMPLETED, 1)] == [4]
    assert watches.counts() == {"active": 2, "completed": 2}


@pytest.mark.parametrize(
    ("more", "due"),
    [
        ({"due": NOW - 1}, True),
        ({"due": NOW}, True),
        ({"due": NOW + 1}, False),
        ({"due": NOW + 60}, False),
        ({"due": NOW + 61}, True),
        ({"due": NOW, "status": Status.COMPLETED}, False),
        ({"due": NOW, "status": Status.CANCELLED}, False),
    ],
    ids=["past", "now", "soon", "next", "clock put back", "completed", "cancelled"],
)
def test_only_active_watches_whose_time_has_come_are_due(watches: Watches, more: dict[str, Any], due: bool) -> None:
    new(watches, **more)
    assert bool(watches.due(NOW)) is due


def test_watches_that_are_due_the_longest_come_first(watches: Watches) -> None:
    for due in (3.0, 1.0, 2.0):
        new(watches, due=due)
    assert [watch.due for watch in watches.due(NOW, 2)] == [1.0, 2.0]
    assert watches.next_due() == 1.0


def test_without_watches_nothing_is_due(watches: Watches) -> None:
    assert watches.next_due() is None
    new(watches, status=Status.EXHAUSTED)
    assert (watches.next_due(), watches.due(NOW)) == (None, ())


def test_recording_the_path_of_the_log_loses_no_change(watches: Watches) -> None:
    watch = new(watches)
    watches.started(watch.id, JobStarted(job_id="j", session="train", log_file="/w/log", cwd="/w", via="tmux"))
    found = watches.get(watch.id)
    assert found
    assert (found.log_file, found.cwd, found.command, found.version) == ("/w/log", "/w", watch.command, 1)
    assert not watches.commit(Decision(watch), NOW)
    watches.started(99, JobStarted(job_id="j", session="train", log_file="", cwd="", via="tmux"))


def test_rows_of_a_newer_version_are_read_as_far_as_they_are_known(watches: Watches) -> None:
    new(watches)
    with watches.database.writing() as connection:
        wanted = json.loads(connection.execute("SELECT wanted FROM watches").fetchone()[0])
        wanted["policy"]["colour"] = wanted["mood"] = "blue"
        connection.execute("UPDATE watches SET wanted = ?", (json.dumps(wanted),))
    assert watches.get(1) == replace(FULL, id=1)


# Decisions


def test_a_decision_is_written_with_its_events_and_effects(watches: Watches) -> None:
    watch = new(watches)
    assert watches.commit(Decision(replace(watch, failures=0, last_error="\udcff"), (HAPPENED,), RESUME), NOW)
    found = watches.get(1)
    assert found
    assert (found.failures, found.last_error, found.version, found.updated) == (0, "\\udcff", 1, NOW)
    assert watches.events() == (replace(HAPPENED, id=1, watch_id=1, created=NOW),)
    assert [effect.channel for effect in watches.pending(NOW)] == [
        "file", "desktop", "webhook", "hook:codex", "hook:mail", ""
    ]  # fmt: skip
    last = watches.pending(NOW)[-1]
    assert (last.resume, last.sandbox, last.watch_id) == (RESUME, "gpu1", 1)


def test_a_decision_based_on_an_old_row_changes_nothing(watches: Watches) -> None:
    watch = new(watches)
    assert watches.commit(Decision(replace(watch, failures=3)), NOW)
    assert not watches.commit(Decision(replace(watch, failures=9), (HAPPENED,), RESUME), NOW)
    assert (watches.events(), watches.pending(NOW)) == ((), ())
    assert watches.get(1) == replace(watch, failures=3, version=1, updated=NOW)


def test_a_watch_with_a_pending_resume_is_not_due(watches: Watches) -> None:
    watch = new(watches, due=NOW - 5)
    watches.commit(Decision(watch, (), RESUME), NOW)
    (effect,) = watches.pending(NOW)
    for take in (False, True):
        assert watches.due(NOW) == ()
        assert watches.next_due() == (None if take else NOW)
        watches.take(effect)
    watches.settle(effect, DONE)
    assert len(watches.due(NOW)) == 1
    assert watches.next_due() == NOW - 5


def test_the_result_of_an_effect_is_written_together_with_its_end(watches: Watches) -> None:
    watches.commit(Decision(new(watches), (), RESUME), NOW)
    (effect,) = watches.pending(NOW)
    watches.take(effect)
    watch = watches.get(1)
    assert watch
    old = replace(watch, version=0)
    assert not watches.commit(Decision(old, (HAPPENED,)), NOW, settles=effect)
    assert outbox(watches) == [("resume", "", "taken", 1)]
    assert watches.commit(Decision(watch), NOW, settles=effect)
    assert outbox(watches) == [("resume", "", "done", 1)]


@pytest.mark.parametrize("taken", [False, True], ids=["pending", "taken"])
@pytest.mark.parametrize("how", ["cancelled", "completed"])
def test_a_watch_that_is_over_resumes_nothing(watches: Watches, how: str, taken: bool) -> None:
    watches.commit(Decision(new(watches), (HAPPENED,), RESUME), NOW)
    resume = watches.pending(NOW)[-1]
    if taken:
        watches.take(resume)
    watch = watches.get(1)
    assert watch
    if how == "cancelled":
        cancelled = watches.cancel(1)
        assert cancelled
        assert (cancelled.status, cancelled.last_state, cancelled.version) == (Status.CANCELLED, "cancelled", 2)
        assert watches.cancel(1) is None
    else:
        assert watches.commit(Decision(replace(watch, status=Status.COMPLETED)), NOW)
    watches.recover(NOW)
    assert [effect.channel for effect in watches.pending(NOW)] == [
        "file", "desktop", "webhook", "hook:codex", "hook:mail"
    ]  # fmt: skip
    assert not watches.take(resume)
    assert not watches.commit(Decision(watch, (HAPPENED,)), NOW, settles=resume)


def test_an_unknown_watch_cannot_be_cancelled(watches: Watches) -> None:
    assert watches.cancel(5) is None


# What is to be done


def test_an_effect_is_taken_once(watches: Watches) -> None:
    watches.commit(Decision(new(watches), (), RESUME), NOW)
    (effect,) = watches.pending(NOW)
    assert [watches.take(effect), watches.take(effect)] == [True, False]
    assert watches.pending(NOW) == ()


@pytest.mark.parametrize(
    ("state", "due", "again"),
    [(DONE, 0.0, False), (FAILED, 0.0, False), (PENDING, NOW, True), (PENDING, NOW + 10, False),
     (PENDING, NOW + 301, True)],
    ids=["done", "failed", "at once", "later", "clock put back"],
)  # fmt: skip
def test_an_effect_is_settled(watches: Watches, state: str, due: float, again: bool) -> None:
    watches.commit(Decision(new(watches), (), RESUME), NOW)
    (effect,) = watches.pending(NOW)
    watches.settle(effect, FAILED)
    assert outbox(watches)[0][2] == "pending"
    watches.take(effect)
    watches.settle(effect, state, problem="why\udcff", due=due)
    assert outbox(watches)[0][2] == state
    assert bool(watches.pending(NOW)) is again


def test_effects_of_a_dead_watchdog_are_resumed_but_not_announced_again(watches: Watches) -> None:
    watches.commit(Decision(new(watches), (HAPPENED,), RESUME), NOW)
    for effect in watches.pending(NOW):
        assert watches.take(effect)
    watches.recover(NOW + 5, in_hand=[2])
    assert [row[2] for row in outbox(watches)] == ["failed", "taken", "failed", "failed", "failed", "pending"]
    assert [effect.resume for effect in watches.pending(NOW + 5)] == [RESUME]


def test_pending_effects_are_found_by_sandbox(watches: Watches) -> None:
    for name in ("gpu1", "gpu2"):
        watches.commit(Decision(new(watches, sandbox=name), (), RESUME), NOW)
    assert [effect.watch_id for effect in watches.pending(NOW, sandbox="gpu2")] == [2]
    assert [effect.sandbox for effect in watches.pending(NOW)] == ["gpu1", "gpu2"]


# Events, the daemon, and what is old


def test_events_are_read_from_a_cursor_on(watches: Watches) -> None:
    for _ in range(2):
        new(watches)
    for number in range(6):
        watch = watches.get(1 + number % 2)
        assert watch
        watches.commit(Decision(watch, (replace(HAPPENED, summary=f"{number}"),)), NOW)
    assert [event.id for event in watches.events(limit=4)] == [1, 2, 3, 4]
    assert [event.id for event in watches.events(after=4)] == [5, 6]
    assert [event.id for event in watches.events(2, after=2)] == [4, 6]
    assert [event.id for event in watches.events(limit=2, newest=True)] == [5, 6]
    assert watches.event(3) == watches.events(after=2, limit=1)[0]
    assert watches.event(99) is None


def test_the_last_heartbeat_is_returned(watches: Watches) -> None:
    assert watches.last_beat() is None
    watches.beat(7, NOW)
    watches.beat(8, NOW + 1)
    assert watches.last_beat() == Heartbeat(8, NOW + 1)


def test_old_rows_are_dropped_but_active_watches_stay_and_numbers_are_not_reused(watches: Watches) -> None:
    kept, over, late = new(watches), new(watches), new(watches)
    for watch, status, at in ((kept, "active", 10.0), (over, "completed", 10.0), (late, "completed", 99.0)):
        assert watches.commit(Decision(replace(watch, status=Status(status)), (HAPPENED,)), at)
    watches.prune(50.0)
    assert [watch.id for watch in watches.list()] == [late.id, kept.id]
    assert [event.watch_id for event in watches.events()] == [late.id]
    assert {effect.watch_id for effect in watches.pending(NOW)} == {late.id}
    watches.remove(late.id)
    assert (watches.events(), watches.pending(NOW)) == ((), ())
    assert new(watches).id == 4


# Many at once


def test_no_change_is_lost_among_processes(watches: Watches) -> None:
    new(watches, failures=0, policy=Policy(notify_local=False))
    names = ["server", "daemon", "cli", "worker"]
    run_at_once(HAMMER, watches.database.file, names)
    found = watches.get(1)
    assert found
    assert (found.failures, found.version) == (100, 100)
    told = [event.summary for event in watches.events(limit=1000)]
    assert sorted(told) == sorted(f"{name} {number}" for name in names for number in range(25))


def test_processes_never_take_the_same_effect(watches: Watches) -> None:
    for _ in range(10):
        watches.commit(Decision(new(watches), (HAPPENED,), RESUME), NOW)
    taken = " ".join(run_at_once(TAKE, watches.database.file, ["a", "b", "c"])).split()
    assert sorted(map(int, taken)) == list(range(1, 61))


def test_processes_add_and_cancel_side_by_side(watches: Watches) -> None:
    run_at_once(ADD_AND_CANCEL, watches.database.file, ["a", "b", "c", "d"])
    assert watches.counts() == {"active": 40, "cancelled": 40}
    assert watches.last_beat() == Heartbeat(19, 1.0)


def test_a_writer_killed_in_mid_transaction_leaves_nothing(watches: Watches) -> None:
    new(watches)
    program = """
import os, sys
from pathlib import Path
from remote_sandbox_mcp.local.store.database import Database
with Database(Path(sys.argv[1])).writing() as connection:
    connection.execute("UPDATE watches SET status = 'exhausted'")
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program, str(watches.database.file)], check=False)
    assert watches.get(1) == replace(FULL, id=1)
    assert watches.cancel(1)


def test_a_full_disk_is_reported_and_nothing_is_half_written(watches: Watches) -> None:
    watch = new(watches)
    with watches.database.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
    grown = replace(watch, last_log_tail="x" * 100_000)
    with pytest.raises(ConfigError, match=r"unable to use .*state\.db: its disk is full; free some space"):
        watches.commit(Decision(grown, (HAPPENED,), RESUME), NOW)
    assert watches.get(1) == watch
    assert (watches.events(), watches.pending(NOW)) == ((), ())


def test_cancelling_records_the_time(watches: Watches) -> None:
    cancelled = watches.cancel(new(watches).id)
    assert cancelled
    assert cancelled.updated == pytest.approx(time.time(), abs=5)
