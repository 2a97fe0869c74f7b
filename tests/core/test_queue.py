"""What squeue and sacct print, read as states, reasons, times and fates; and told as a person reads it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from remote_sandbox_mcp.core.jobs.job import ArrayCounts, JobSeen, JobState, QueueSeen, split_element
from remote_sandbox_mcp.core.jobs.queue import (
    SEPARATOR,
    Queued,
    counts_text,
    fate_words,
    meaning,
    moment,
    pending_text,
    queue_text,
    read_sacct,
    read_squeue,
)

# As Slurm 22.05 prints them.
LINES = {
    "running": (
        "2|RUNNING|None|2026-11-16T21:42:47|2026-11-16T21:52:47|main|n1|x",
        Queued("2", "running", "RUNNING", start=1794865367, end=1794865967, partition="main", nodes="n1", name="x"),
    ),
    "pending with a start": (
        "7|PENDING|Resources|2026-11-16T21:52:47|2026-11-16T22:02:47|main||rsmcp-m-sb-0123456789ab",
        Queued(
            "7", "pending", "PENDING", "", None, "Resources", 1794865967, 1794866567, "main", "",
            "rsmcp-m-sb-0123456789ab",
        ),
    ),
    "pending without one": (
        "8|PENDING|QOSMaxJobsPerUserLimit|N/A|N/A|main||job",
        Queued("8", "pending", "PENDING", reason="QOSMaxJobsPerUserLimit", partition="main", name="job"),
    ),
    "cancelled before its start": (
        "9|CANCELLED|None|N/A|2026-11-16T21:42:47|main||job",
        Queued("9", "ended", "CANCELLED", "cancelled", end=1794865367, partition="main", name="job"),
    ),
    "an element of an array": (
        "10_[3-9%2]|PENDING|JobArrayTaskLimit|N/A|N/A|main||many",
        Queued("10_[3-9%2]", "pending", "PENDING", reason="JobArrayTaskLimit", partition="main", name="many"),
    ),
    "a name with everything in it": (
        "11|RUNNING|None|N/A|N/A|main|n1|a|b $(reboot)",
        Queued("11", "running", "RUNNING", partition="main", nodes="n1", name="a|b $(reboot)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("line", "job"), LINES.values(), ids=LINES)
def test_a_line_of_squeue_is_read(line: str, job: Queued) -> None:
    assert read_squeue(line.replace("|", SEPARATOR, 7)) == {job.number: job}


NO_JOBS = ["", "slurm_load_jobs error: Unable to contact slurm controller", "x|y", "|||||||", "a|RUNNING||||||"]


@pytest.mark.parametrize("line", NO_JOBS)
def test_what_is_no_job_is_left_out(line: str) -> None:
    assert read_squeue(line.replace("|", SEPARATOR)) == {}


def test_the_accounting_says_who_has_cancelled_a_job() -> None:
    printed = (
        "5|CANCELLED by 0|None|2026-11-16T21:42:47|2026-11-16T21:43:00|main|n1|box\n"
        "6|CANCELLED by 1002|None|Unknown|2026-11-16T21:43:00|main|None assigned|box\n"
    )
    jobs = read_sacct(printed)
    assert [job.by_uid for job in jobs.values()] == [0, 1002]
    assert fate_words(jobs["5"], uid=1002) == "was cancelled by an administrator"
    assert fate_words(jobs["6"], uid=1002) == "was cancelled in the queue by its own user"
    assert jobs["6"].nodes == ""


FATES = {
    "TIMEOUT": "was ended by the queue at its time limit",
    "DEADLINE": "was ended by the queue at its time limit",
    "PREEMPTED": "was preempted: the queue gave its place to another job",
    "NODE_FAIL": "was lost because its node failed (n1)",
    "BOOT_FAIL": "was lost because its node failed (n1)",
    "CANCELLED": "was cancelled in the queue, by its user or an administrator",
    "OUT_OF_MEMORY": "was ended because it used more memory than it had asked for",
    "COMPLETED": "",
    "FAILED": "",
}


@pytest.mark.parametrize("word", FATES)
def test_each_way_to_end_has_words_of_its_own(word: str) -> None:
    (job,) = read_squeue(SEPARATOR.join(("1", word, "None", "N/A", "N/A", "main", "n1", "box"))).values()
    assert (job.state, fate_words(job)) == ("ended", FATES[word])


STATES = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "REQUEUE_HOLD": "pending",
    "RUNNING": "running",
    "COMPLETING": "running",
    "SUSPENDED": "running",
    # Of a version that we do not know yet.
    "TELEPORTING": "running",
    "CANCELLED+": "ended",
}


@pytest.mark.parametrize("word", STATES)
def test_a_state_of_the_queue_is_pending_running_or_ended(word: str) -> None:
    assert meaning(word)[0] == STATES[word]


# In words

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
