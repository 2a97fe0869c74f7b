"""What squeue and sacct print, read as states, reasons, times and fates."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.queue import SEPARATOR, Queued, fate_words, meaning, read_sacct, read_squeue

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
