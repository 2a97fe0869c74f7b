"""What a cluster's queue says of a job, as a person reads it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from remote_sandbox_mcp.core.job import ArrayCounts, JobSeen, JobState, QueueSeen, split_element
from remote_sandbox_mcp.core.queued import counts_text, moment, pending_text, queue_text

# At noon, so that an hour later is the same day.
NOW = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))


def queue(**fields: Any) -> QueueSeen:
    return QueueSeen(**{"number": "1234", "state": "PENDING", **fields})


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (None, "pending"),
        (queue(), "pending: the queue has not said why yet; ask again in some seconds"),
        (queue(reason="Resources"), "pending: Resources"),
        (queue(reason="Resources", start=NOW + 7500), "pending: Resources, expected to start at 14:05 (in 2 h 5 min)"),
        # Slurm may leave a time there that has passed.
        (queue(reason="Resources", start=NOW - 60), "pending: Resources"),
        (queue(reason="JobHeldAdmin"), "pending: JobHeldAdmin (an administrator holds it)"),
        (
            queue(reason="Dependency", dependency="afterok:1233(unfulfilled)"),
            "pending: Dependency, it waits for afterok:1233(unfulfilled)",
        ),
    ],
    ids=["unknown", "no reason", "reason", "expected", "overdue", "held", "dependency"],
)
def test_a_pending_job_says_why_and_when_it_is_expected_to_start(seen: QueueSeen | None, says: str) -> None:
    assert pending_text(seen, NOW) == says


@pytest.mark.parametrize(
    ("state", "fields", "says"),
    [
        ("pending", {}, "job 1234"),
        ("pending", {"partition": "gpu", "age_s": 20.0}, "job 1234 in partition gpu"),
        ("pending", {"state": "CONFIGURING"}, "job 1234 (CONFIGURING)"),
        (
            "running",
            {"state": "RUNNING", "partition": "gpu", "nodes": "n[1-2]", "end": NOW + 3600, "restarts": 1},
            "job 1234 in partition gpu on n[1-2]; its time limit ends it at 13:00 (in 1 h); "
            "started again once by the queue",
        ),
        ("running", {"state": "RUNNING", "age_s": 200.0}, "job 1234; as of 3 min ago"),
        (
            "running",
            {"state": "RUNNING", "age_s": 5.0, "trouble": "timed out"},
            "job 1234; the queue does not answer (timed out); this is what it said 5 s ago",
        ),
        ("ended", {"state": "COMPLETED", "end": NOW + 3600, "age_s": 900.0}, "job 1234"),
        (
            "running",
            {"state": "RUNNING", "array": ArrayCounts(pending=2, running=3, ended=5, failed=1, gone=1)},
            "job 1234; array: 2 pending, 3 running, 5 ended (1 failed), 1 interrupted",
        ),
    ],
    ids=["number", "partition", "odd state", "running", "old", "controller away", "over", "array"],
)
def test_the_place_of_a_job_in_its_queue_is_told(state: str, fields: dict[str, Any], says: str) -> None:
    assert queue_text(JobSeen(state=JobState(state), queue=queue(**fields)), NOW) == says


def test_a_job_that_no_queue_has_says_nothing_of_one() -> None:
    assert queue_text(JobSeen(state=JobState.RUNNING), NOW) == ""
    assert counts_text(ArrayCounts()) == "no elements"


def test_another_day_is_told_with_its_date() -> None:
    assert moment(NOW + 86400, NOW) == "at 2026-03-05 12:00 (in 1 d)"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("sweep[3]", ("sweep", "3")),
        ("sweep", ("sweep", "")),
        ("slurm-12[0]", ("slurm-12", "0")),
        ("sweep[a]", ("sweep[a]", "")),
        ("[3]", ("[3]", "")),
        ("sweep[3]x", ("sweep[3]x", "")),
    ],
)
def test_an_element_of_an_array_is_named_in_brackets(name: str, parts: tuple[str, str]) -> None:
    assert split_element(name) == parts
