"""Background jobs over an outpost: each verb is one request, repeated on a new line after a cut."""

from __future__ import annotations

import builtins
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from ...core.commands.command import Environment
from ...core.errors import BadArgument, BrokenRules, ConnectError, NotStarted, Unreachable, Unsupported
from ...core.jobs import job as jobs
from ...core.jobs.cards import card_names
from ...core.sandboxes.foreign import Fields, to_number, to_text, to_whole, understood
from ...core.sandboxes.sandbox import Description
from ...core.texts.text import last_line
from ...far import program
from ...far.jobs.state import MOST_LOG
from ...far.jobs.tools import MOST_SAID
from ...far.jobs.work import LONGEST_PARTIAL
from ...far.outpost import wire
from ..mending import ask_again, mend
from .client import SMALL, Exchange, LineLost, OutpostClient, Refusal, too_long

if TYPE_CHECKING:
    from ...core import orders

MEND_S = 20.0
# A long wait is split into requests of this length, so that a cut line is noticed and reopened between them.
WAIT_S = 20.0
NOT_LASTING = (
    "this sandbox's processes end with the hub (or the server without one) that has it open, and so will the job"
)

# What a queue says of a job: a list of nodes, or of the jobs that it depends on, may be long.
LONGEST_LINE = 300
# Words of a refusal after which the job may have been started or submitted by an earlier attempt.
UNSURE = ("elsewhere", "unsure")

Answer = tuple[Exchange, dict[str, Any]]


class OutpostJobs:
    """The jobs of a machine with an outpost; `explained` turns a refusal of the machine into a sentence."""

    def __init__(
        self,
        description: Description,
        environment: Environment,
        reach: Callable[[], Awaitable[OutpostClient]],
        explained: Callable[[Refusal], str],
        queue_rate_s: float = 0.0,
    ) -> None:
        self._description = description
        self._environment = environment
        self._reach = reach
        self._explained = explained
        # Above 0 for the login node of a cluster, whose queue may be asked once in so many seconds.
        self._queue_rate_s = queue_rate_s
        self._taught: OutpostClient | None = None

    async def start(self, order: jobs.JobOrder) -> jobs.JobStarted:
        pieces = program.BATCH_KEEPER if self._queue_rate_s else program.JOB_KEEPER
        wanted, keeper = self._describe(order), program.packed(pieces)
        if problem := too_long(wanted["script"]):
            raise jobs.JobRefused(f"{self._name}: {problem}", "too_long")
        client = await self._reach()
        place = client.hello["place"]
        for attempt in range(3):
            try:
                _, end = await self._ask_on(client, wanted, keeper)
                with understood(self._name):
                    return self._started(order, Fields(end))
            except LineLost:
                client = await self._mend(order)
            except Refusal as refusal:
                # The worker was killed before it answered; asking again under the same id finds what it started.
                if refusal.reason in UNSURE or (refusal.reason == "killed" and attempt == 2):
                    raise jobs.lost_start(self._name, order, str(refusal)) from None
                if refusal.reason == "cards":
                    raise jobs.no_cards(self._name, str(refusal)) from None
                if refusal.reason != "killed":
                    raise jobs.JobRefused(self._explained(refusal), refusal.reason) from None
            except Unreachable as problem:
                # The job may have started, whatever the far side answered.
                raise jobs.lost_start(self._name, order, str(problem)) from None
            # A repeated order starts nothing unless it reaches the place of the first one, where a job with the same
            # id is found again instead of started twice.
            wanted["only_in"] = place
        raise jobs.lost_start(self._name, order, "the connection was cut again and again")

    def _describe(self, order: jobs.JobOrder) -> orders.JobStartOrder:
        environment = self._environment
        wanted: orders.JobStartOrder = {
            "verb": "job_start",
            "id": order.job_id,
            "session": order.session,
            "script": environment.source(order.script),
            "shown": order.script[:2000],
            "shell": list(environment.shell),
            "env": {**environment.env, **order.env},
            "cwd": order.cwd,
            "log_file": order.log_file,
            "instead_of": order.instead_of,
        }
        if order.even_ended:
            wanted["even_ended"] = True
        if order.submission is not None:
            wanted["slurm"] = {"words": list(order.submission.words), "rate": order.submission.rate_s}
        elif order.cards is not None:
            wanted["cards"] = {"count": order.cards.count, "memory_mb": order.cards.memory_mb}
            wanted["run_for"] = order.run_for_s
        return wanted

    def _started(self, order: jobs.JobOrder, end: Fields) -> jobs.JobStarted:
        lasting = self._description.capabilities.survives_disconnect
        return jobs.JobStarted(
            job_id=order.job_id,
            session=end.text("session"),
            log_file=end.text("log"),
            cwd=end.text("cwd"),
            via=end.text("via"),
            recovered=end.flag("recovered"),
            notes=(*map(to_text, end.list("notes")), *(() if lasting else (NOT_LASTING,))),
            cards=card_names(map(to_text, end.list("cards"))),
        )

    async def _mend(self, order: jobs.JobOrder) -> OutpostClient:
        """Open a new line after a cut. Raises LostContact if there is none in time."""
        try:
            return await mend(self._reach, time.monotonic() + MEND_S)
        except ConnectError as problem:
            raise jobs.lost_start(self._name, order, str(problem)) from None

    async def inspect(self, queries: Sequence[jobs.JobQuery]) -> list[jobs.JobSeen]:
        if not queries:
            return []
        order: orders.JobQueryOrder = {"verb": "job_look", "jobs": list(map(question_of, queries)), **self._queue_rate}
        seen = self._read(*await self._ask(order, sum(map(room_of_query, queries))))
        if len(seen) != len(queries):
            raise BrokenRules(f"{self._name} was asked for {len(queries)} jobs and answered for {len(seen)}")
        return seen

    async def wait(self, query: jobs.JobQuery, wait: jobs.JobWait) -> jobs.JobWaited:
        until, position = time.monotonic() + wait.seconds, query.cursor
        while True:
            seconds = max(0.0, min(WAIT_S, until - time.monotonic()))
            order: orders.JobWaitOrder = {
                "verb": "job_wait",
                "job": question_of(query),
                "seconds": seconds,
                "pattern": wait.pattern,
                "silence": wait.silence_s,
                "from": position,
                **self._queue_rate,
            }
            exchange, end = await self._ask(order, room_of_query(query))
            seen = self._read_one(exchange, end)
            with understood(self._name):
                said = Fields(end)
                why, line, position = said.text("why"), said.text("line"), said.whole("from")
            if why or time.monotonic() >= until:
                return jobs.JobWaited(why or "timeout", seen, line)

    async def stop(self, query: jobs.JobQuery, grace_s: float = 10.0) -> jobs.JobSeen:
        until = time.monotonic() + grace_s + 12.0
        asked = question_of(query)
        order: orders.JobStopOrder = {"verb": "job_stop", "job": asked, "grace": grace_s, **self._queue_rate}
        while True:
            seen = self._read_one(*await self._ask(order, room_of_query(query)))
            if seen.is_over or time.monotonic() >= until:
                return seen

    async def list(self, limit: int = 100) -> list[jobs.JobSeen]:
        order: orders.JobListOrder = {"verb": "job_list", "limit": limit, **self._queue_rate}
        return self._read(*await self._ask(order, limit * SMALL + SMALL))[:limit]

    def _read(self, exchange: Exchange, end: dict[str, Any]) -> builtins.list[jobs.JobSeen]:
        with understood(self._name):
            return read_jobs(exchange.part(wire.OUT), Fields(end))

    def _read_one(self, exchange: Exchange, end: dict[str, Any]) -> jobs.JobSeen:
        with understood(self._name):
            (seen,) = self._read(exchange, end)
            return seen

    async def send(self, query: jobs.JobQuery, *, text: str = "", keys: Sequence[str] = ()) -> None:
        order: orders.JobSendOrder = {"verb": "job_send", "job": question_of(query), "text": text, "keys": list(keys)}
        # Not repeated after a cut: the text could be typed twice.
        try:
            await self._answered(order, await self._reach())
        except LineLost:
            why = "the connection was cut while it was being typed; look at the log before typing it again"
            raise Unreachable(f"{self._name}: {why}") from None

    @property
    def _queue_rate(self) -> orders.QueueRate:
        return {"queue_rate": self._queue_rate_s} if self._queue_rate_s else {}

    @property
    def _name(self) -> str:
        return self._description.name

    async def _ask(self, order: orders.OutpostOrder, room: int) -> Answer:
        """Send a request that may be repeated on a new line after a cut."""

        async def ask() -> Answer:
            return await self._answered(order, await self._reach(), room)

        return await ask_again(self._name, ask)

    async def _answered(self, order: orders.OutpostOrder, client: OutpostClient, room: int = SMALL) -> Answer:
        try:
            return await self._ask_on(client, order, room=room)
        except Refusal as refusal:
            kinds = {"unsupported": Unsupported, "pattern": BadArgument, "key": BadArgument, "state": NotStarted}
            raise kinds.get(refusal.reason, Unreachable)(self._explained(refusal)) from None

    async def _ask_on(
        self, client: OutpostClient, order: orders.OutpostOrder, raw: bytes = b"", *, room: int = SMALL
    ) -> Answer:
        """Send a request; before the first one on a line, the program that knows jobs, whose answer is not awaited."""
        if self._taught is not client:
            pieces = program.CLUSTER_JOBS if self._queue_rate_s else program.JOBS
            client.begin({"verb": "learn"}, program.packed(pieces))
            self._taught = client
        return await client.ask(order, raw, room=room)


def question_of(query: jobs.JobQuery) -> orders.JobQuestion:
    return cast("orders.JobQuestion", asdict(query))


def room_of_query(query: jobs.JobQuery) -> int:
    """The most bytes of an answer about a job: log, checkpoint, a matching line of any length, and its fields."""
    return min(max(0, query.most_bytes), MOST_LOG) + MOST_SAID + 8 * LONGEST_PARTIAL + SMALL


# The far side's answers as values. Each function raises ValueError for an answer that cannot be understood.


def read_jobs(printed: bytes, end: Fields) -> list[jobs.JobSeen]:
    """The jobs of an answer. `printed` has log and checkpoint of each, one after the other."""
    found, at = [], 0
    for job in map(Fields, end.list("jobs")):
        size = job.whole("log")
        more = job.part("checkpoint").whole("size") if job.has("checkpoint") else 0
        if size < 0 or more < 0:
            raise ValueError("less than nothing")
        found.append(read_job(job, printed[at : at + size], printed[at + size : at + size + more]))
        at += size + more
    return found


def read_job(job: Fields, log: bytes, checkpoint: bytes) -> jobs.JobSeen:
    texts: dict[str, Any] = {name: job.text(name) for name in ("session", "log_file", "cwd", "command", "via")}
    texts |= {name: job.text(name) if job.has(name) else "" for name in ("signal", "ending", "reason")}
    return jobs.JobSeen(
        **texts,
        state=jobs.JobState(job.text("state")),
        job_id=job.text("id"),
        exit_code=job.whole("exit") if job.has("exit") else None,
        rebooted=job.flag("rebooted"),
        started=job.number("started"),
        seconds=job.number("seconds"),
        log=log,
        log_size=job.whole("log_size"),
        cursor=job.whole("cursor"),
        silent_s=job.number("silent"),
        checkpoint=read_checkpoint(job.part("checkpoint"), checkpoint) if job.has("checkpoint") else None,
        usage=read_usage(job.part("usage")) if job.has("usage") else None,
        survivors=tuple(map(to_whole, job.list("survivors"))),
        foreign=job.flag("foreign"),
        fate=jobs.Fate(job.text("fate")) if job.has("fate") and job.text("fate") else None,
        queue=read_queue(job.part("queue")) if job.has("queue") else None,
    )


def read_queue(said: Fields) -> jobs.QueueSeen:
    """A job as the queue of its cluster has it."""
    names = ("number", "state", "reason", "partition", "nodes", "dependency", "trouble")
    lines: dict[str, Any] = {name: line_of(said, name) for name in names}
    return jobs.QueueSeen(
        **lines,
        start=said.number("start"),
        end=said.number("end"),
        restarts=said.whole("restarts"),
        array=read_counts(said.part("array")) if said.has("array") else None,
        age_s=said.number("age"),
    )


def line_of(said: Fields, name: str) -> str:
    """A short text of the queue's, harmless to show."""
    return last_line(said.text(name)[:LONGEST_LINE].encode("utf-8", "replace"), LONGEST_LINE)


def read_counts(said: Fields) -> jobs.ArrayCounts:
    counts = {name: said.whole(name) for name in ("pending", "running", "ended", "failed", "gone")}
    if min(counts.values()) < 0:
        raise ValueError("less than nothing")
    return jobs.ArrayCounts(**counts)


def read_checkpoint(said: Fields, text: bytes) -> jobs.Checkpoint:
    return jobs.Checkpoint(text=text, mtime=said.number("mtime"), problem=said.text("problem"))


def read_usage(usage: Fields) -> jobs.JobUsage:
    return jobs.JobUsage(
        processes=usage.whole("processes"),
        memory_mb=usage.number("memory_mb"),
        cpu_s=usage.number("cpu_s"),
        gpus={int(index[:6]): to_number(megabytes) for index, megabytes in usage.part("gpus").items()},
        busy={int(index[:6]): to_number(percent) for index, percent in usage.part("busy").items()},
    )
