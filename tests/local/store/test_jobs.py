"""Rows of jobs: what was started where, and what was last seen of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.jobs.job import JobSeen, JobStarted, JobState
from remote_sandbox_mcp.core.sandboxes.port import DeployOrder
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.jobs import JobRecord, JobRecords

JOB = JobRecord(
    job_id="job-00000001",
    sandbox="gpu1",
    session="train",
    log_file="/l\udcff",
    cwd="/w ü",
    command="python train.py\n",
    via="tmux",
    created=100.0,
    state="running",
    watch_id=7,
)
ENDED = JobSeen(state=JobState.ENDED, exit_code=3, signal="", ending="exited", started=200.0, seconds=50.0)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[JobRecords]:
    database = Database(tmp_path / "state.db")
    yield JobRecords(database)
    database.close()


def test_a_row_is_read_as_it_was_written_and_added_once(records: JobRecords) -> None:
    records.add(JOB)
    records.add(replace(JOB, command="another"))
    assert records.get(JOB.job_id) == JOB
    assert records.get("job-00000002") is None


def test_the_path_of_the_log_is_recorded_after_the_start(records: JobRecords) -> None:
    records.add(replace(JOB, via="", state="starting"))
    started = JobStarted(job_id=JOB.job_id, session="train", log_file="/w/log", cwd="/w", via="detached")
    records.started(JOB.job_id, started)
    assert records.get(JOB.job_id) == replace(JOB, log_file="/w/log", cwd="/w", via="detached")
    records.started("job-00000002", started)


def test_observations_are_recorded_and_an_end_stays(records: JobRecords) -> None:
    records.add(JOB)
    for state in (JobState.MISSING, JobState.RUNNING, JobState.GONE):
        records.note(JOB.job_id, JobSeen(state=state))
        assert records.get(JOB.job_id) == replace(JOB, state=state.value)
    records.note(JOB.job_id, ENDED)
    records.note(JOB.job_id, JobSeen(state=JobState.MISSING))
    assert records.get(JOB.job_id) == replace(JOB, state="ended", exit_code=3, ended=250.0)


def test_an_end_without_a_time_gets_the_current_time(records: JobRecords) -> None:
    records.add(JOB)
    records.note(JOB.job_id, JobSeen(state=JobState.ENDED, exit_code=None))
    found = records.get(JOB.job_id)
    assert found
    assert found.ended == pytest.approx(time.time(), abs=5)


def test_several_observations_are_recorded_at_once(records: JobRecords) -> None:
    for number in (1, 2):
        records.add(replace(JOB, job_id=f"job-0000000{number}"))
    records.note_all([("job-00000001", ENDED), ("job-00000009", ENDED)])
    assert [record.state for record in records.list()] == ["running", "ended"]


def test_the_newest_job_of_a_session_is_found(records: JobRecords) -> None:
    names = [("gpu1", "job-1"), ("gpu2", "job-1"), ("gpu1", "job-10"), ("gpu1", "job-1")]
    for number, (sandbox, session) in enumerate(names):
        records.add(replace(JOB, job_id=f"job-{number}", sandbox=sandbox, session=session, created=number // 2))
    for sandbox, found in (("gpu1", "job-3"), ("gpu2", "job-1"), ("", "job-3")):
        record = records.find(sandbox, "job-1")
        assert record
        assert record.job_id == found
    assert records.find("gpu2", "job-10") is None


def test_jobs_are_listed_newest_first_by_sandbox_and_state(records: JobRecords) -> None:
    for number in range(4):
        records.add(replace(JOB, job_id=f"job-{number}", sandbox=f"gpu{number % 2}", created=float(number)))
    records.note("job-3", ENDED)
    assert [record.job_id for record in records.list(limit=3)] == ["job-3", "job-2", "job-1"]
    assert [record.job_id for record in records.list("gpu1", "running")] == ["job-1"]


def test_old_jobs_are_dropped_unless_they_run(records: JobRecords) -> None:
    for number, state in enumerate(["running", "ended", "gone", "ended"]):
        records.add(replace(JOB, job_id=f"job-{number}", state=state, ended=900.0 if number == 3 else 0.0))
    records.prune(500.0)
    assert [record.job_id for record in records.list()] == ["job-3", "job-0"]
    records.remove("job-3")
    assert [record.job_id for record in records.list()] == ["job-0"]


def test_apps_that_were_not_seen_to_end_are_found_newest_first(records: JobRecords) -> None:
    app = replace(JOB, app=DeployOrder(sandbox="gpu1", command=JOB.command, port=8000, health_path="/h", cwd="~/w"))
    records.add(JOB)
    records.add(replace(app, job_id="job-00000002", created=101.0, state="starting"))
    for number, state in ((3, JobState.ENDED), (4, JobState.GONE), (5, JobState.MISSING)):
        records.add(replace(app, job_id=f"job-0000000{number}"))
        records.note(f"job-0000000{number}", JobSeen(state=state))
    records.add(replace(app, job_id="job-00000006", command='{"app": {"port": 1}}', created=102.0, app=None))
    assert [record.job_id for record in records.apps()] == ["job-00000002"]
    started = JobStarted(job_id="job-00000002", session="train", log_file="/w/log", cwd="/w", via="tmux")
    records.started("job-00000002", started)
    (found,) = records.apps()
    assert (found.app, found.cwd, found.log_file) == (app.app, "/w", "/w/log")
