"""Queue of a cluster: job states read from squeue and sacct, and put into words."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..texts.text import last_line, span
from .job import ArrayCounts, Fate, JobSeen, QueueSeen

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
_STATES = {
    word: (state, fate)
    for state, fate, words in (
        (PENDING, "", "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT"),
        (RUNNING, "", "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING"),
        (ENDED, "", "COMPLETED FAILED REVOKED"),
        (ENDED, TIME_LIMIT, "TIMEOUT DEADLINE"),
        (ENDED, PREEMPTED, "PREEMPTED"),
        (ENDED, NODE_FAILED, "NODE_FAIL BOOT_FAIL LAUNCH_FAILED"),
        (ENDED, CANCELLED, "CANCELLED"),
        (ENDED, OUT_OF_MEMORY, "OUT_OF_MEMORY"),
    )
    for word in words.split()
}
_NUMBER = re.compile(r"[0-9][0-9_\[\],%-]{0,999}\Z")
_EMPTY = ("None", "(null)", "N/A", "Unknown", "NONE", "None assigned")
# What the cluster did, where the machine does not say it in more words.
FATES = {
    Fate.TIME_LIMIT: "its time limit was reached",
    Fate.PREEMPTED: "it was preempted: another job needed its place",
    Fate.NODE_FAILED: "its node failed",
    Fate.REQUEUED: "the queue put it back after it had begun",
    Fate.CANCELLED: "it was cancelled",
    Fate.OUT_OF_MEMORY: "it used more memory than it was given",
}
# Reasons of Slurm that need somebody to do something: such a job never starts by itself.
_STUCK = {
    "JobHeldUser": "its owner holds it: scontrol release starts it",
    "JobHeldAdmin": "an administrator holds it",
    "DependencyNeverSatisfied": "what it waits for cannot come any more: stop it",
    "PartitionTimeLimit": "it asks for more time than its partition gives",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives",
    "PartitionDown": "its partition takes no jobs now",
    "PartitionInactive": "its partition takes no jobs now",
    "BadConstraints": "no node can give what it asks for",
    "InvalidAccount": "its account may not be used",
    "InvalidQOS": "its qos may not be used",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than its qos gives",
    "AssocMaxWallDurationPerJobLimit": "it asks for more time than its account gives",
}
NO_REASON = "the queue has not said why yet; ask again in some seconds"
# An answer of the queue that is older than this is said to be old.
_OLD_S = 60.0
# The queue's own words for a state that say no more than ours do.
_USUAL = ("", "PENDING", "RUNNING")
_FARTHEST_S = 10 * 365 * 86400.0
# A list of nodes may be long.
_LONGEST_TEXT = 300


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
    """Parse the output of `sacct --parsable2 --format=SACCT_FIELDS`."""
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
        number, state, _plain(word.partition(" ")[0]), fate, _by_uid(word), _plain(reason), to_seconds(start),
        to_seconds(end), _plain(partition), _plain(nodes), name,
    )  # fmt: skip


def meaning(word: str) -> tuple[str, str]:
    """Translate a state of the queue: pending, running or ended, and how it ended, where not by itself.

    A word of a later version, which is not known here, is taken for a state of a job that runs.
    """
    return _STATES.get(word.partition(" ")[0].rstrip("+").upper(), (RUNNING, ""))


def _by_uid(word: str) -> int | None:
    """The user id in "CANCELLED by 0", as the accounting says it."""
    found = re.search(r" by ([0-9]{1,10})\Z", word)
    return int(found[1]) if found else None


def _plain(text: str) -> str:
    """A short text of the queue's, harmless to show."""
    return "" if text in _EMPTY else last_line(text[:_LONGEST_TEXT].encode("utf-8", "replace"), _LONGEST_TEXT)


def to_seconds(text: str) -> float:
    """A time that was printed in UTC, in seconds since the epoch; 0 for none."""
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0


def fate_words(job: Queued, uid: int | None = None) -> str:
    """Describe how a job ended that did not end by itself, as the end of a sentence; empty for one that did.

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


# In words


def pending_text(queue: QueueSeen | None, now: float) -> str:
    """Explain why it has not started, and when it is expected to."""
    return f"pending: {waiting_text(queue.reason, queue.start, now, queue.dependency)}" if queue else "pending"


def waiting_text(reason: str, start: float, now: float, dependency: str = "") -> str:
    """Describe the reason why something waits in the queue."""
    stuck = f" ({_STUCK[reason]})" if reason in _STUCK else ""
    expected = f"expected to start {moment(start, now)}" if start > now else ""
    waits = f"it waits for {dependency}" if dependency else ""
    # The queue is not asked again for every job that is submitted, and takes a moment itself to look at one.
    return ", ".join(filter(None, (reason + stuck, expected, waits))) or NO_REASON


def queue_text(seen: JobSeen, now: float) -> str:
    """All else that the queue says of it: number, place, end of its time, elements, and how old that is."""
    return "; ".join(_parts(seen, seen.queue, now)) if seen.queue else ""


def odd_state(seen: JobSeen) -> str:
    """The queue's own word for its state, where that says more than ours."""
    return seen.queue.state if seen.queue and seen.queue.state not in _USUAL and not seen.is_over else ""


def _parts(seen: JobSeen, queue: QueueSeen, now: float) -> Iterator[str]:
    where = f" in partition {queue.partition}" if queue.partition else ""
    nodes = f" on {queue.nodes}" if queue.nodes else ""
    state = odd_state(seen)
    if queue.number:
        yield f"job {queue.number}{where}{nodes}{f' ({state})' if state else ''}"
    if queue.end > now and seen.is_running:
        yield f"its time limit ends it {moment(queue.end, now)}"
    if queue.array:
        yield f"array: {counts_text(queue.array)}"
    if queue.restarts:
        yield f"started again {'once' if queue.restarts == 1 else f'{queue.restarts} times'} by the queue"
    if queue.trouble and not seen.is_over:
        yield f"the queue does not answer ({queue.trouble}); this is what it said {span(queue.age_s)} ago"
    elif queue.age_s > _OLD_S and not seen.is_over:
        yield f"as of {span(queue.age_s)} ago"


def counts_text(counts: ArrayCounts) -> str:
    """Counts of an array's elements in words."""
    ended = f"ended ({counts.failed} failed)" if counts.failed else "ended"
    numbers = (counts.pending, counts.running, counts.ended, counts.gone)
    shown = zip(numbers, ("pending", "running", ended, "interrupted"), strict=True)
    return ", ".join(f"{number} {word}" for number, word in shown if number) or "no elements"


def fate_text(seen: JobSeen) -> str:
    """Describe the cluster's action on the job; empty where there was none."""
    return (seen.reason or FATES[seen.fate]) if seen.fate else ""


def moment(at: float, now: float) -> str:
    """A moment to come: the time of day here, with its date where it is another day, and how long it is until then."""
    # A machine may say anything.
    there, here = time.localtime(min(at, now + _FARTHEST_S)), time.localtime(now)
    form = "%H:%M" if there[:3] == here[:3] else "%Y-%m-%d %H:%M"
    return f"at {time.strftime(form, there)} (in {span(at - now)})"
