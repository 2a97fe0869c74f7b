"""What a cluster's queue says of jobs, read from squeue and sacct: states, reasons, times, and how a job ended."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

# Between the fields of a line. Text that users choose comes last, so that it can contain anything.
SEPARATOR = "\x1f"
# Number, state, reason, start, end, partition, nodes, name: what squeue is asked for, and sacct.
SQUEUE_FORMAT = SEPARATOR.join(("%i", "%T", "%r", "%S", "%e", "%P", "%N", "%j"))
SACCT_FIELDS = "JobIDRaw,State,Reason,Start,End,Partition,NodeList,JobName"
# Times in the words of every version of Slurm, and the same for everybody.
ENVIRON = {"TZ": "UTC0", "SLURM_TIME_FORMAT": "standard"}

PENDING, RUNNING, ENDED = "pending", "running", "ended"
# How jobs end that did not end by themselves.
TIME_LIMIT, PREEMPTED, NODE_FAILED = "time_limit", "preempted", "node_failed"
REQUEUED, CANCELLED, OUT_OF_MEMORY = "requeued", "cancelled", "out_of_memory"

# The queue's words for states: what each means for us, and how a job ended.
_STATES: Mapping[str, tuple[str, str]] = {
    "PENDING": (PENDING, ""),
    "CONFIGURING": (PENDING, ""),
    "REQUEUED": (PENDING, ""),
    "REQUEUE_FED": (PENDING, ""),
    "REQUEUE_HOLD": (PENDING, ""),
    "RESV_DEL_HOLD": (PENDING, ""),
    "SPECIAL_EXIT": (PENDING, ""),
    "RUNNING": (RUNNING, ""),
    "COMPLETING": (RUNNING, ""),
    "SUSPENDED": (RUNNING, ""),
    "STOPPED": (RUNNING, ""),
    "SIGNALING": (RUNNING, ""),
    "STAGE_OUT": (RUNNING, ""),
    "RESIZING": (RUNNING, ""),
    "COMPLETED": (ENDED, ""),
    "FAILED": (ENDED, ""),
    "REVOKED": (ENDED, ""),
    "TIMEOUT": (ENDED, TIME_LIMIT),
    "DEADLINE": (ENDED, TIME_LIMIT),
    "PREEMPTED": (ENDED, PREEMPTED),
    "NODE_FAIL": (ENDED, NODE_FAILED),
    "BOOT_FAIL": (ENDED, NODE_FAILED),
    "LAUNCH_FAILED": (ENDED, NODE_FAILED),
    "CANCELLED": (ENDED, CANCELLED),
    "OUT_OF_MEMORY": (ENDED, OUT_OF_MEMORY),
}
_NUMBER = re.compile(r"[0-9][0-9_\[\],%-]*\Z")
_EMPTY = ("None", "(null)", "N/A", "Unknown", "NONE", "None assigned")


@dataclass(frozen=True)
class Queued:
    """One job as the queue tells of it. Times are seconds since the epoch, 0 where they are not known."""

    number: str
    # Pending, running or ended; `word` is the queue's own word for it.
    state: str
    word: str
    # How it ended, where not by itself; and whose user id cancelled it, where the accounting knows.
    fate: str = ""
    by_uid: int | None = None
    # Why it is pending.
    reason: str = ""
    # When it is expected to start, or has started; and when its time limit ends it.
    start: float = 0.0
    end: float = 0.0
    partition: str = ""
    nodes: str = ""
    name: str = ""


def read_squeue(printed: str) -> dict[str, Queued]:
    """The jobs in what squeue printed by SQUEUE_FORMAT, by number; what is no such line is left out."""
    return _read(printed, SEPARATOR)


def read_sacct(printed: str) -> dict[str, Queued]:
    """The same of `sacct --parsable2 --format=SACCT_FIELDS`."""
    return _read(printed, "|")


def _read(printed: str, separator: str) -> dict[str, Queued]:
    found = (_read_line(line, separator) for line in printed.split("\n"))
    return {job.number: job for job in found if job is not None}


def _read_line(line: str, separator: str) -> Queued | None:
    parts = line.strip("\r").split(separator, 7)
    if len(parts) != 8 or not _NUMBER.match(parts[0].strip()):
        return None
    number, word, reason, start, end, partition, nodes, name = (part.strip() for part in parts)
    state, fate = meaning(word)
    return Queued(
        number, state, word.partition(" ")[0], fate, _by_uid(word), _plain(reason), to_seconds(start), to_seconds(end),
        _plain(partition), _plain(nodes), name,
    )  # fmt: skip


def meaning(word: str) -> tuple[str, str]:
    """What a state of the queue means: pending, running or ended, and how it ended, where not by itself.

    A word of a later version, which is not known here, is taken for a state of a job that runs.

    >>> meaning("PENDING"), meaning("CANCELLED by 0"), meaning("TIMEOUT")
    (('pending', ''), ('ended', 'cancelled'), ('ended', 'time_limit'))
    """
    return _STATES.get(word.partition(" ")[0].rstrip("+").upper(), (RUNNING, ""))


def _by_uid(word: str) -> int | None:
    """The user id in "CANCELLED by 0", as the accounting says it."""
    uid = word.rpartition(" by ")[2]
    return int(uid) if " by " in word and uid.isdigit() else None


def _plain(text: str) -> str:
    return "" if text in _EMPTY else text


def to_seconds(text: str) -> float:
    """A time that was printed in UTC, in seconds since the epoch; 0 for none.

    >>> to_seconds("2026-11-16T21:39:16"), to_seconds("N/A")
    (1794865156.0, 0.0)
    """
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0


def pending_words(reason: str, start: float, now: float) -> str:
    """Why something is pending, and when it is expected to start.

    >>> pending_words("Resources", 1794865156.0, 0.0)
    'Resources; expected to start at 2026-11-16T21:39:16Z'
    """
    expected = f"; expected to start at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(start))}"
    return (reason or "not looked at by the queue yet") + (expected if start > now else "")


def fate_words(job: Queued, uid: int | None = None) -> str:
    """How a job ended that did not end by itself, as the end of a sentence; empty for one that did.

    `uid` is the user's own id on the cluster.
    """
    where = f" ({job.nodes})" if job.nodes else ""
    return {
        TIME_LIMIT: "was ended by the queue at its time limit",
        PREEMPTED: "was preempted: the queue gave its place to another job",
        NODE_FAILED: f"was lost because its node failed{where}",
        CANCELLED: _cancelled(job, uid),
        OUT_OF_MEMORY: "was ended because it used more memory than it had asked for",
    }.get(job.fate, "")


def _cancelled(job: Queued, uid: int | None) -> str:
    if job.by_uid is None:
        return "was cancelled in the queue, by its user or an administrator"
    return "was cancelled in the queue by its own user" if job.by_uid == uid else "was cancelled by an administrator"
