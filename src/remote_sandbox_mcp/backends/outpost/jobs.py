"""Background jobs over an outpost: one request each, asked again on a new line after a cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

from ...core.command import Environment
from ...core.errors import BadArgument, ConnectError, NotStarted, Unreachable, Unsupported
from ...core.job import (
    Checkpoint,
    JobLook,
    JobOrder,
    JobRefused,
    JobSeen,
    JobStarted,
    JobState,
    JobUsage,
    JobWait,
    JobWaited,
    lost_start,
)
from ...core.sandbox import Description
from ..deadline import within
from . import program
from .client import Exchange, LineLost, OutpostClient, Refusal, too_long
from .far import wire

MEND_S = 20.0
# One request's share of a wait: a line that is cut is mended before the next.
WAIT_S = 20.0
NOT_LASTING = "this sandbox's processes end with the server that has it open, and so will the job"

Answer = tuple[Exchange, dict[str, Any]]


class OutpostJobs:
    """The jobs of a machine with an outpost; `explained` is what is said of a request that the machine refuses."""

    def __init__(
        self,
        description: Description,
        environment: Environment,
        reach: Callable[[], Awaitable[OutpostClient]],
        explained: Callable[[Refusal], str],
    ) -> None:
        self._description = description
        self._environment = environment
        self._reach = reach
        self._explained = explained
        self._taught: OutpostClient | None = None

    async def start(self, order: JobOrder) -> JobStarted:
        wanted, keeper = self._describe(order), program.packed(program.JOB_KEEPER)
        if problem := too_long(wanted["script"]):
            raise JobRefused(f"{self._name}: {problem}", "too_long")
        client = await self._reach()
        place = client.hello["place"]
        for attempt in range(3):
            try:
                _, end = await self._ask_on(client, "job_start", keeper, wanted)
                return self._started(order, end)
            except LineLost:
                client = await self._mend(order)
            except Refusal as refusal:
                # A process of ours that was killed has not said what it did; its id says it when asked again.
                if refusal.reason == "elsewhere" or (refusal.reason == "killed" and attempt == 2):
                    raise lost_start(self._name, order, str(refusal)) from None
                if refusal.reason != "killed":
                    raise JobRefused(self._explained(refusal), refusal.reason) from None
            # The same id never starts twice where the first start can be found again.
            wanted["only_in"] = place
        raise lost_start(self._name, order, "the connection was cut again and again")

    def _describe(self, order: JobOrder) -> dict[str, Any]:
        environment = self._environment
        return {
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

    def _started(self, order: JobOrder, end: dict[str, Any]) -> JobStarted:
        lasting = self._description.capabilities.survives_disconnect
        return JobStarted(
            job_id=order.job_id,
            session=str(end["session"]),
            log_file=str(end["log"]),
            cwd=str(end["cwd"]),
            via=str(end["via"]),
            recovered=bool(end["recovered"]),
            notes=(*map(str, end["notes"]), *(() if lasting else (NOT_LASTING,))),
        )

    async def _mend(self, order: JobOrder) -> OutpostClient:
        """A new line after a cut. Raises LostContact when there is none in time."""
        give_up, delay = time.monotonic() + MEND_S, 0.1
        while True:
            try:
                return await within(self._reach(), max(0.1, give_up - time.monotonic()))
            except (ConnectError, TimeoutError, asyncio.TimeoutError) as problem:
                if time.monotonic() + delay > give_up or not isinstance(problem, Unreachable):
                    raise lost_start(self._name, order, str(problem) or "no answer in time") from None
            await asyncio.sleep(delay)
            delay = min(delay * 2, 2.0)

    async def look(self, looks: Sequence[JobLook]) -> list[JobSeen]:
        if not looks:
            return []
        return read_jobs(*await self._ask("job_look", jobs=[asdict(look) for look in looks]))

    async def wait(self, look: JobLook, wait: JobWait) -> JobWaited:
        until, position = time.monotonic() + wait.seconds, look.cursor
        while True:
            seconds = max(0.0, min(WAIT_S, until - time.monotonic()))
            more: dict[str, Any] = {"pattern": wait.pattern, "silence": wait.silence_s, "from": position}
            exchange, end = await self._ask("job_wait", job=asdict(look), seconds=seconds, **more)
            (seen,) = read_jobs(exchange, end)
            if end["why"] or time.monotonic() >= until:
                return JobWaited(str(end["why"]) or "timeout", seen, str(end["line"]))
            position = end["from"]

    async def stop(self, look: JobLook, grace_s: float = 10.0) -> JobSeen:
        until = time.monotonic() + grace_s + 12.0
        while True:
            (seen,) = read_jobs(*await self._ask("job_stop", job=asdict(look), grace=grace_s))
            if not seen.is_running or time.monotonic() >= until:
                return seen

    async def list(self, limit: int = 100) -> list[JobSeen]:
        return read_jobs(*await self._ask("job_list", limit=limit))

    async def send(self, look: JobLook, *, text: str = "", keys: Sequence[str] = ()) -> None:
        # Asked once: what was typed before a cut would be typed again.
        try:
            await self._told("job_send", await self._reach(), job=asdict(look), text=text, keys=list(keys))
        except LineLost:
            why = "the connection was cut while it was being typed; look at the log before typing it again"
            raise Unreachable(f"{self._name}: {why}") from None

    @property
    def _name(self) -> str:
        return self._description.name

    async def _ask(self, verb: str, **order: Any) -> Answer:
        """A request that may be repeated on a new line after a cut."""
        for _ in range(2):
            try:
                return await self._told(verb, await self._reach(), **order)
            except LineLost:
                continue
        raise Unreachable(f"{self._name}: the connection was cut twice in a row; try again")

    async def _told(self, verb: str, client: OutpostClient, **order: Any) -> Answer:
        try:
            return await self._ask_on(client, verb, b"", order)
        except Refusal as refusal:
            kinds = {"unsupported": Unsupported, "pattern": BadArgument, "key": BadArgument, "state": NotStarted}
            raise kinds.get(refusal.reason, Unreachable)(self._explained(refusal)) from None

    async def _ask_on(self, client: OutpostClient, verb: str, raw: bytes, order: dict[str, Any]) -> Answer:
        """The verbs go ahead of the first request on a line, and are not waited for."""
        if self._taught is not client:
            client.begin("learn", program.packed(program.JOBS))
            self._taught = client
        return await client.ask(verb, raw, **order)


def read_jobs(exchange: Exchange, end: dict[str, Any]) -> list[JobSeen]:
    """The far side's answers as values; the bytes of each follow one another."""
    printed, at = exchange.part(wire.OUT), 0
    jobs = []
    for job in end["jobs"]:
        size, more = int(job["log"]), job["checkpoint"]
        behind = at + size + (int(more["size"]) if more else 0)
        jobs.append(read_job(job, printed[at : at + size], printed[at + size : behind]))
        at = behind
    return jobs


def read_job(job: dict[str, Any], log: bytes, checkpoint: bytes) -> JobSeen:
    more = job["checkpoint"]
    return JobSeen(
        state=JobState(job["state"]),
        job_id=str(job["id"]),
        session=str(job["session"]),
        log_file=str(job["log_file"]),
        cwd=str(job["cwd"]),
        command=str(job["command"]),
        via=str(job["via"]),
        exit_code=None if job["exit"] is None else int(job["exit"]),
        signal=str(job["signal"] or ""),
        ending=str(job["ending"] or ""),
        reason=str(job["reason"] or ""),
        rebooted=bool(job["rebooted"]),
        started=float(job["started"]),
        seconds=float(job["seconds"]),
        log=log,
        log_size=int(job["log_size"]),
        cursor=int(job["cursor"]),
        silent_s=float(job["silent"]),
        checkpoint=more and Checkpoint(text=checkpoint, mtime=float(more["mtime"]), problem=str(more["problem"])),
        usage=read_usage(job["usage"]) if job["usage"] else None,
        survivors=tuple(map(int, job["survivors"])),
        foreign=bool(job["foreign"]),
    )


def read_usage(usage: dict[str, Any]) -> JobUsage:
    return JobUsage(
        processes=int(usage["processes"]),
        memory_mb=float(usage["memory_mb"]),
        cpu_s=float(usage["cpu_s"]),
        gpus={int(index): float(megabytes) for index, megabytes in usage["gpus"].items()},
    )
