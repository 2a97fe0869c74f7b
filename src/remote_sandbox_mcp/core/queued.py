"""A job in a cluster's queue, in words: why it is pending, where it runs, what the cluster did to it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from .job import ArrayCounts, Fate, JobSeen, QueueSeen
from .text import span

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


def pending_text(queue: QueueSeen | None, now: float) -> str:
    """Why it has not started, and when it is expected to.

    >>> pending_text(QueueSeen(number="12", reason="Priority"), 0.0)
    'pending: Priority'
    """
    if queue is None:
        return "pending"
    stuck = f" ({_STUCK[queue.reason]})" if queue.reason in _STUCK else ""
    expected = f"expected to start {moment(queue.start, now)}" if queue.start > now else ""
    waits = f"it waits for {queue.dependency}" if queue.dependency else ""
    # The queue is not asked again for every job that is submitted, and takes a moment itself to look at one.
    return "pending: " + (", ".join(filter(None, (queue.reason + stuck, expected, waits))) or NO_REASON)


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
    """
    >>> counts_text(ArrayCounts(pending=2, ended=5, failed=1))
    '2 pending, 5 ended (1 failed)'
    """
    ended = f"ended ({counts.failed} failed)" if counts.failed else "ended"
    numbers = (counts.pending, counts.running, counts.ended, counts.gone)
    shown = zip(numbers, ("pending", "running", ended, "interrupted"), strict=True)
    return ", ".join(f"{number} {word}" for number, word in shown if number) or "no elements"


def fate_text(seen: JobSeen) -> str:
    """What the cluster did to it; empty where it did nothing."""
    return (seen.reason or FATES[seen.fate]) if seen.fate else ""


def moment(at: float, now: float) -> str:
    """A moment to come: the time of day here, with its date where it is another day, and how long it is until then."""
    # A machine may say anything.
    there, here = time.localtime(min(at, now + _FARTHEST_S)), time.localtime(now)
    form = "%H:%M" if there[:3] == here[:3] else "%Y-%m-%d %H:%M"
    return f"at {time.strftime(form, there)} (in {span(at - now)})"
