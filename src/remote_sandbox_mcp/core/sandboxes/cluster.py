"""Resources of a Slurm cluster and their free part, and the score by which its partitions are ranked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

_LISTED_PARTITIONS = 30
_LISTED_LIMITS = 12
_LONGEST = 120
# A pending job with one of these reasons waits for the same nodes as a new one would. Others wait for a dependency, for
# a limit of their own or for a person, and block no other job.
_WAITS_FOR_NODES = frozenset({"Resources", "Priority", "None"})
# timeout(1) says 124, or what the signal made of the program: 137 after KILL, 143 after TERM (busybox).
OUT_OF_TIME = ("124", "137", "143")
# sinfo's words for a node that may start something now, and for one that may later. All others are out of order.
_IDLE = frozenset({"idle"})
_MIXED = frozenset({"mixed"})
_TAKEN = frozenset({"allocated", "completing", "reserved", "planned", "blocked", "perfctrs"})


@dataclass(frozen=True)
class Section:
    """A part of what a probe printed: the words of its marker, the first often an exit status, and its lines."""

    status: str = ""
    lines: tuple[str, ...] = ()
    more: str = ""


@dataclass(frozen=True)
class GpuCount:
    """The GPUs of one type in a partition. `at_once`: those of idle nodes, where CPUs and memory are free, too."""

    type: str
    idle: int
    total: int
    at_once: int = 0


@dataclass(frozen=True)
class Partition:
    """Nodes by what they do, free CPUs and GPUs, and the number of pending jobs of all users that wait for them."""

    name: str
    is_default: bool = False
    state: str = "up"
    time_limit: str = ""
    idle: int = 0
    mixed: int = 0
    allocated: int = 0
    down: int = 0
    idle_cpus: int = 0
    cpus: int = 0
    gpus: tuple[GpuCount, ...] = ()
    waiting: int = 0


@dataclass(frozen=True)
class OldestPending:
    """The pending job of the user's that was submitted first. Times are seconds since 1970, 0 where unknown."""

    number: str
    partition: str
    reason: str
    submitted: int = 0
    start: int = 0


@dataclass(frozen=True)
class ClusterUsage:
    """One look at a cluster, which was asked `age_s` seconds ago. `limits` are those that bind this user.

    `limits_unknown` is why they are not known.
    """

    partitions: tuple[Partition, ...] = ()
    running: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    oldest: OldestPending | None = None
    limits: tuple[Mapping[str, str], ...] = ()
    limits_unknown: str = ""
    age_s: int = 0
    problems: tuple[str, ...] = ()


# Where a job would start soonest


def partition_score(partition: Partition) -> float:
    """1: starts at once; 0: does not start. Three digits.

    GPUs free on an idle node         0.9, and up to 1 by the share of the GPUs that are free
    GPUs free on nodes in use         0.7 to 0.8: CPUs or memory there may be taken
    no GPUs, but an idle node         0.4 to 0.5: as an idle machine without GPUs, after every free GPU
    no GPUs, but free CPUs            0.3 to 0.4
    nothing free                      0.1
    closed, or no node in order       0

    Where jobs wait for these nodes already, a fifth is taken off, because something that is free may be kept for
    them; where nothing is free, half, because they come first.
    """
    if partition.state != "up" or not (partition.idle or partition.mixed or partition.allocated):
        return 0.0
    free = _freedom(partition)
    if partition.waiting:
        free *= 0.5 if free <= 0.1 else 0.8
    return round(free, 3)


def _freedom(partition: Partition) -> float:
    total, idle = (sum(getattr(gpus, name) for gpus in partition.gpus) for name in ("total", "idle"))
    if total:
        at_once = any(gpus.at_once for gpus in partition.gpus)
        return (0.9 if at_once else 0.7) + 0.1 * idle / total if idle else 0.1
    share = partition.idle_cpus / partition.cpus if partition.cpus else 0.0
    if partition.idle:
        return 0.4 + 0.1 * share
    return 0.3 + 0.1 * share if share else 0.1


def cluster_score(cluster: ClusterUsage) -> float:
    """Return the score of the partition where a job would start soonest."""
    return max(map(partition_score, cluster.partitions), default=0.0)


# Fields of list_sandboxes


def cluster_fields(cluster: ClusterUsage) -> dict[str, object]:
    """The `cluster` of a sandbox's resources; what is empty is left out."""
    listed = cluster.partitions[:_LISTED_PARTITIONS]
    oldest = cluster.oldest
    return _filled(
        partitions=[_partition_fields(partition) for partition in listed],
        more_partitions=len(cluster.partitions) - len(listed),
        my_jobs=_filled(running=dict(cluster.running), pending=dict(cluster.pending)),
        oldest_pending=_filled(
            job=oldest.number, partition=oldest.partition, reason=oldest.reason, submitted=time_text(oldest.submitted),
            expected_start=time_text(oldest.start),
        ) if oldest else {},
        my_limits=[dict(limit) for limit in cluster.limits[:_LISTED_LIMITS]],
        limits_unknown=cluster.limits_unknown,
        asked_s_ago=cluster.age_s,
        problems=list(cluster.problems),
    )  # fmt: skip


def _filled(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value not in (0, "", [], {}, False)}


def time_text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%SZ}" if seconds else ""


def _partition_fields(partition: Partition) -> dict[str, object]:
    nodes = {name: getattr(partition, name) for name in ("idle", "mixed", "allocated", "down")}
    gpus = [{"type": gpus.type, "idle": gpus.idle, "total": gpus.total} for gpus in partition.gpus]
    state = partition.state if partition.state != "up" else ""
    first = _filled(name=partition.name, default=partition.is_default, state=state)
    rest = _filled(gpus=gpus, time_limit=partition.time_limit, waiting_jobs=partition.waiting)
    cpus = {"idle": partition.idle_cpus, "total": partition.cpus}
    return {**first, "nodes": nodes, "cpus": cpus, **rest, "idle_score": partition_score(partition)}


# Reading what cluster.sh printed


def read_cluster(age: str, answers: Mapping[str, Section], is_whole: bool) -> ClusterUsage:
    """Read the answers of sinfo, squeue and sacctmgr; what cannot be read is missing, and told in `problems`."""
    nodes, mine, queue, limits = (answers.get(name, Section()) for name in ("nodes", "mine", "waiting", "limits"))
    running, pending = _read_mine(mine.lines) if mine.status == "0" else ({}, {})
    return ClusterUsage(
        partitions=_read_partitions(nodes, _read_waiting(queue)),
        running=running,
        pending=pending,
        oldest=_read_oldest(mine),
        limits=_read_limits(answers),
        age_s=_whole(age),
        limits_unknown="" if limits.status == "0" else _complaint("sacctmgr", limits),
        problems=tuple(_problems(nodes, mine, is_whole)),
    )


def _problems(nodes: Section, mine: Section, is_whole: bool) -> Iterable[str]:
    for what, program, answer in (("the partitions", "sinfo", nodes), ("your jobs", "squeue", mine)):
        if answer.status != "0":
            yield f"{what} are unknown: {_complaint(program, answer)}"
            if program == "sinfo":
                # The same cause again, in other words.
                return
    if nodes.status == "0" and not nodes.lines:
        yield "sinfo shows no partition that you may use"
    if not is_whole:
        yield "the cluster's answer was cut off"


def _complaint(program: str, answer: Section) -> str:
    if answer.status in ("", *OUT_OF_TIME):
        return f"{program} did not answer in time; the controller may be down or busy"
    if answer.status == "127":
        return f"{program} is not installed there, or not in PATH"
    said = tidy(" ".join(answer.lines))
    if "accounting_storage" in said:
        return "this cluster keeps no accounts"
    return f"{program} failed with exit code {answer.status}" + (f": {said}" if said else "")


def tidy(text: str, limit: int = _LONGEST) -> str:
    """One line of text that others chose, made fit to show."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 8 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _whole(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,11}", text) else 0


@dataclass(frozen=True)
class _Nodes:
    """Nodes of a partition that are all in the same state and have the same GPUs in use."""

    count: int
    idle_cpus: int
    cpus: int
    partition: str
    available: str
    time_limit: str
    state: str
    gpus: Mapping[str, int]
    used: Mapping[str, int] | None

    @property
    def kind(self) -> str:
        """The count of Partition to which they belong; signs behind the state are those of sinfo's manual."""
        word = self.state.lower().rstrip("*~#!%$@^-+")
        signs = self.state[len(word) :]
        if set(signs) & set("*$@^!%"):
            # Does not answer, in maintenance, about to reboot, about to power down.
            return "down"
        if "-" in signs and word in _IDLE:
            # Planned: the scheduler keeps it for a pending job.
            return "allocated"
        kinds = (("idle", _IDLE), ("mixed", _MIXED), ("allocated", _TAKEN))
        return next((kind for kind, words in kinds if word in words), "down")

    def idle_gpus(self, type_: str) -> int:
        has = self.gpus.get(type_, 0)
        if self.kind == "idle":
            return self.count * has
        # Without a column for GPUs in use, those of nodes in use count as taken.
        if self.kind == "down" or self.used is None:
            return 0
        # Where the type is in the node's own list alone, so many of any type are in use.
        used = self.used.get(type_, self.used.get("gpu", 0) if len(self.gpus) == 1 else 0)
        return self.count * max(0, has - used)


def _read_nodes(line: str) -> _Nodes | None:
    cells = line.split()
    if len(cells) not in (8, 9) or not all(re.fullmatch(r"[0-9]{1,9}", cell) for cell in cells[:3]):
        return None
    count, idle, cpus = map(int, cells[:3])
    used = _read_gpus(cells[8]) if len(cells) == 9 else None
    partition, available, limit, state = (tidy(cell) for cell in cells[3:7])
    return _Nodes(count, idle, cpus, partition, available, limit, state, _read_gpus(cells[7]), used)


def _read_gpus(text: str) -> dict[str, int]:
    """The number of GPUs by type."""
    counts: Counter[str] = Counter()
    for item in text.split(","):
        if found := re.fullmatch(r"gpu(?::([^:]{1,60}))?(?::no_consume)?:([0-9]{1,4})", item):
            name = tidy(found[1] or "")
            counts["gpu" if name in ("", "-") else name] += int(found[2])
    return {name: count for name, count in counts.items() if count}


def _read_waiting(queue: Section) -> Counter[str]:
    """Return how many pending jobs wait for the nodes of each partition; a job may name several."""
    counts: Counter[str] = Counter()
    for line in queue.lines if queue.status == "0" else ():
        count, _, rest = line.partition(" ")
        partitions, _, reason = rest.partition(" ")
        if reason.strip("()") in _WAITS_FOR_NODES:
            for name in partitions.split(","):
                counts[name] += _whole(count)
    return counts


def _read_partitions(nodes: Section, waiting: Mapping[str, int]) -> tuple[Partition, ...]:
    """The default first, then by score."""
    groups: dict[str, list[_Nodes]] = {}
    for line in nodes.lines if nodes.status == "0" else ():
        if found := _read_nodes(line):
            groups.setdefault(found.partition, []).append(found)
    read = [_partition(name, rows, waiting) for name, rows in groups.items()]
    return tuple(sorted(read, key=lambda it: (not it.is_default, -partition_score(it), it.name)))


def _partition(name: str, rows: Sequence[_Nodes], waiting: Mapping[str, int]) -> Partition:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.kind] += row.count
    plain = name.removesuffix("*")
    limit = "" if rows[0].time_limit in ("infinite", "-") else rows[0].time_limit
    in_order = [row for row in rows if row.kind != "down"]
    return Partition(
        plain, name != plain, rows[0].available, limit, counts["idle"], counts["mixed"], counts["allocated"],
        counts["down"], sum(row.idle_cpus for row in in_order), sum(row.cpus for row in rows), _gpu_counts(rows),
        waiting.get(plain, 0),
    )  # fmt: skip


def _gpu_counts(rows: Sequence[_Nodes]) -> tuple[GpuCount, ...]:
    types = dict.fromkeys(name for row in rows for name in row.gpus)
    return tuple(
        GpuCount(
            name,
            sum(row.idle_gpus(name) for row in rows),
            sum(row.count * row.gpus.get(name, 0) for row in rows),
            sum(row.idle_gpus(name) for row in rows if row.kind == "idle"),
        )
        for name in sorted(types)
    )


def _read_mine(lines: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
    """The user's running and pending jobs by partition; elements of an array count each."""
    running: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    for cells in (line.split() for line in lines):
        if len(cells) == 3 and _whole(cells[0]):
            (pending if cells[2] == "PENDING" else running)[tidy(cells[1])] += _whole(cells[0])
    return dict(sorted(running.items())), dict(sorted(pending.items()))


def _read_oldest(mine: Section) -> OldestPending | None:
    for cells in (line.split(None, 6) for line in mine.lines if mine.status == "0"):
        if len(cells) == 7 and cells[0] == "oldest":
            _, number, partition, _, submitted, start, reason = cells
            return OldestPending(tidy(number), tidy(partition), tidy(reason), _whole(submitted), _whole(start))
    return None


_LIMIT_COLUMNS = (
    "cluster", "account", "partition", "qos", "default_qos", "max_jobs", "max_submitted", "max_per_job", "max_time",
    "group_jobs", "group_resources",
)  # fmt: skip
_QOS_COLUMNS = ("qos", "max_jobs", "max_submitted", "max_resources", "max_per_job", "max_time", "group_resources")
_NAMES = frozenset({"cluster", "account", "partition", "qos", "default_qos"})


def _read_limits(answers: Mapping[str, Section]) -> tuple[Mapping[str, str], ...]:
    """Read the limits of the user's accounts, then those of the QOS that the accounts may use."""
    accounts = [*_rows(answers.get("limits", Section()), _LIMIT_COLUMNS)]
    allowed = {name for row in accounts for name in row.get("qos", "").split(",")}
    every = _rows(answers.get("qos", Section()), _QOS_COLUMNS)
    limiting = [row for row in every if row.get("qos") in allowed and not row.keys() <= _NAMES]
    if len({row.get("cluster") for row in accounts}) == 1:
        accounts = [{name: value for name, value in row.items() if name != "cluster"} for row in accounts]
    return (*accounts, *limiting)


def _rows(answer: Section, columns: Sequence[str]) -> Iterable[dict[str, str]]:
    for line in answer.lines if answer.status == "0" else ():
        cells = [tidy(cell) for cell in line.split("|")]
        if len(cells) == len(columns):
            yield {name: cell for name, cell in zip(columns, cells, strict=True) if cell}
