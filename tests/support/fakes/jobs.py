"""Background jobs in memory, for tests: they print, end and vanish when a test says so."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remote_sandbox_mcp.core.errors import BadArgument, NotStarted, Unsupported
from remote_sandbox_mcp.core.jobs.job import (
    SLURM,
    Checkpoint,
    Fate,
    JobOrder,
    JobQuery,
    JobRefused,
    JobSeen,
    JobStarted,
    JobState,
    JobUsage,
    JobWait,
    JobWaited,
    NoCards,
    QueueSeen,
    lost_start,
)

POLL_S = 0.01


@dataclass
class FakeCard:
    """A GPU; `used_by` is another user whose process holds memory on it, `holder` the id of the job that leases it."""

    uuid: str
    memory_mb: int = 81920
    used_by: str = ""
    holder: str = ""


@dataclass
class FakeJob:
    """A job that was started, and what has become of it."""

    order: JobOrder
    seen: JobSeen
    log: bytearray
    typed: list[str] = field(default_factory=list)
    grown: float = field(default_factory=time.time)


class FakeJobs:
    """Keeps the Jobs protocol without a machine: nothing runs, but everything is told as the real one tells it.

    A job runs until `end`, `vanish` or `stop`; one that was submitted to a queue is pending until `run`. `started`
    holds every order that began, in order, each once. The next starts raise what `refuse` was given. `checkpoints` are
    texts by path or command. Logs are in `logs`, by path. `cards` are GPUs, which a job that asks for some leases until
    it is over; `attempts` are the ids of all starts that reached the machine, and `cut` loses contact after that many.
    """

    def __init__(self, reach: Callable[[], Awaitable[object]], home: str = "/home/fake", via: str = "tmux") -> None:
        self._reach = reach
        self._home = home
        self._via = via
        self._jobs: dict[str, FakeJob] = {}
        self._refusal: Exception | None = None
        self.started: list[JobOrder] = []
        self.logs: dict[str, bytearray] = {}
        self.checkpoints: dict[str, bytes] = {}
        self.foreign: set[str] = set()
        self.looks = 0
        self.cards: list[FakeCard] | None = None
        self.attempts: list[str] = []
        self.cut: list[str] = []

    # What a test does

    def end(self, job_id: str, exit_code: int = 0, *, signal: str = "") -> None:
        """End the job as if by itself."""
        self._end(self._jobs[job_id], exit_code, signal, "exited")

    def vanish(
        self, job_id: str, reason: str = "its tmux session was killed", rebooted: bool = False, fate: Fate | None = None
    ) -> None:
        """Make the job disappear without an exit status."""
        job = self._jobs[job_id]
        job.seen = replace(job.seen, state=JobState.GONE, reason=reason, rebooted=rebooted, fate=fate)

    def run(self, job_id: str) -> None:
        """The queue starts it."""
        self.queue(job_id, state="RUNNING", reason="")
        self._jobs[job_id].seen = replace(self._jobs[job_id].seen, state=JobState.RUNNING, started=time.time())

    def queue(self, job_id: str, **fields: Any) -> None:
        """From now on the queue says this of it."""
        job = self._jobs[job_id]
        job.seen = replace(job.seen, queue=replace(job.seen.queue or QueueSeen(number="1"), **fields))

    def print(self, job_id: str, data: bytes) -> None:
        """Append output to the job's log."""
        job = self._jobs[job_id]
        job.log += data
        job.grown = time.time()

    def forget(self, job_id: str) -> None:
        """Forget the job completely."""
        del self._jobs[job_id]

    def refuse(self, problem: Exception | None) -> None:
        """From now on every start raises this, with nothing begun; None makes all well again."""
        self._refusal = problem

    def typed(self, job_id: str) -> list[str]:
        """List the texts typed into the job, and keys by their names."""
        return self._jobs[job_id].typed

    # What every sandbox's jobs do

    async def start(self, order: JobOrder) -> JobStarted:
        await self._reach()
        self.attempts.append(order.job_id)
        cut = self.cut.pop(0) if self.cut else ""
        known = self._jobs.get(order.job_id)
        if cut == "before":
            raise lost_start("fake", order, "cut")
        if known is None:
            self._check(order)
            self._lease(order)
            begun = self._begin(order)
            if cut == "after":
                raise lost_start("fake", order, "cut")
            return self._started(begun, recovered=False)
        return self._started(known, recovered=True)

    def free(self, memory_mb: int = 0) -> list[FakeCard]:
        """List the cards that a job could lease now."""
        for card in self.cards or ():
            if card.holder and self._jobs[card.holder].seen.is_over:
                card.holder = ""
        return [
            card for card in self.cards or () if not card.holder and not card.used_by and card.memory_mb >= memory_mb
        ]

    def _lease(self, order: JobOrder) -> None:
        if order.cards is None:
            return
        free = self.free(order.cards.memory_mb)
        if len(free) < order.cards.count:
            busy = tuple(f"{card.uuid} is not free" for card in self.cards or () if card not in free)
            raise NoCards(f"{len(free)} of {len(self.cards or ())} GPUs are free, not {order.cards.count}", busy)
        for card in free[: order.cards.count]:
            card.holder = order.job_id

    def _check(self, order: JobOrder) -> None:
        if self._refusal is not None:
            raise self._refusal
        if order.instead_of:
            before = self._jobs.get(order.instead_of)
            state = before.seen.state if before else JobState.MISSING
            if state is not JobState.GONE and not (order.even_ended and state is JobState.ENDED):
                raise JobRefused(f"nothing is started in place of {order.instead_of}: it is {state.value}", state.value)
        newest = self._newest(order.session)
        if order.session in self.foreign or (newest and not newest.seen.is_over):
            raise JobRefused(f"a job named {order.session} runs already; choose another session_name", "in_use")

    def _begin(self, order: JobOrder) -> FakeJob:
        self.started.append(order)
        before = self._jobs.get(order.instead_of)
        is_queued = bool(order.submission or (before and before.seen.queue))
        cwd = order.cwd or self._home
        log_file = order.log_file or f".codex_logs/{order.session}.log"
        path = log_file if log_file.startswith("/") else f"{cwd}/{log_file}"
        seen = JobSeen(
            state=JobState.PENDING if is_queued else JobState.RUNNING,
            job_id=order.job_id,
            session=order.session,
            log_file=path,
            cwd=cwd,
            command=order.script[:2000],
            via=SLURM if is_queued else self._via,
            started=time.time(),
            queue=QueueSeen(number=str(len(self.started)), state="PENDING", reason="Priority") if is_queued else None,
        )
        job = self._jobs[order.job_id] = FakeJob(order, seen, self.logs.setdefault(path, bytearray()))
        return job

    def _started(self, job: FakeJob, *, recovered: bool) -> JobStarted:
        seen = job.seen
        return JobStarted(
            job_id=seen.job_id,
            session=seen.session,
            log_file=seen.log_file,
            cwd=seen.cwd,
            via=seen.via,
            recovered=recovered,
            cards=tuple(card.uuid for card in self.cards or () if card.holder == seen.job_id),
        )

    async def inspect(self, looks: Sequence[JobQuery]) -> list[JobSeen]:
        await self._reach()
        self.looks += 1
        return [self._seen(look) for look in looks]

    def _seen(self, look: JobQuery) -> JobSeen:
        job = self._find(look)
        if job is None and not look.job_id and look.session in self.foreign:
            return JobSeen(state=JobState.RUNNING, session=look.session, log_file=look.log_file, foreign=True)
        if job is None:
            missing = JobSeen(state=JobState.MISSING, reason="nothing is known of it on this machine")
            return replace(missing, job_id=look.job_id, session=look.session)
        log, cursor = part_of(bytes(job.log), look)
        running = job.seen.is_running
        return replace(
            job.seen,
            log=log,
            log_size=len(job.log),
            cursor=cursor,
            silent_s=time.time() - job.grown,
            seconds=job.seen.seconds if job.seen.is_over else time.time() - job.seen.started,
            checkpoint=self._checkpoint(look),
            usage=JobUsage(processes=1) if look.usage and running else None,
        )

    def _checkpoint(self, look: JobQuery) -> Checkpoint | None:
        wanted = look.checkpoint_path or look.checkpoint_command
        if not wanted:
            return None
        if wanted not in self.checkpoints:
            return Checkpoint(problem="No such file or directory")
        return Checkpoint(text=self.checkpoints[wanted], mtime=time.time())

    def _find(self, look: JobQuery) -> FakeJob | None:
        return self._jobs.get(look.job_id) if look.job_id else self._newest(look.session)

    def _newest(self, session: str) -> FakeJob | None:
        return next((job for job in reversed(self._jobs.values()) if job.order.session == session), None)

    async def wait(self, look: JobQuery, wait: JobWait) -> JobWaited:
        pattern = compile_pattern(wait.pattern)
        until = time.monotonic() + wait.seconds
        while True:
            (seen,) = await self.inspect([look])
            job = self._find(look)
            printed = bytes(job.log)[look.cursor or 0 :] if job else b""
            for line in printed.split(b"\n") if pattern else ():
                if pattern and pattern.search(line):
                    return JobWaited("pattern", seen, line.decode("utf-8", "replace"))
            if seen.is_over:
                return JobWaited("ended", seen)
            if wait.silence_s and seen.is_running and seen.silent_s >= wait.silence_s:
                return JobWaited("silence", seen)
            if time.monotonic() >= until:
                return JobWaited("timeout", seen)
            await asyncio.sleep(POLL_S)

    async def stop(self, look: JobQuery, grace_s: float = 10.0) -> JobSeen:
        await self._reach()
        job = self._find(look)
        if job is None and look.session in self.foreign:
            self.foreign.discard(look.session)
            return JobSeen(state=JobState.ENDED, session=look.session, ending="stopped", foreign=True)
        if job and job.seen.state is JobState.PENDING:
            job.seen = replace(job.seen, state=JobState.ENDED, ending="stopped")
        elif job and job.seen.is_running:
            self._end(job, 143, "SIGTERM", "stopped")
        return self._seen(look)

    def _end(self, job: FakeJob, exit_code: int, signal: str, ending: str) -> None:
        newline = b"" if not job.log or job.log.endswith(b"\n") else b"\n"
        job.log += newline + b"EXIT_CODE=%d\n" % exit_code
        seconds = time.time() - job.seen.started
        ended = replace(job.seen, state=JobState.ENDED, exit_code=exit_code, reason="", seconds=seconds)
        job.seen = replace(ended, signal=signal, ending=ending)

    async def list(self, limit: int = 100) -> list[JobSeen]:
        await self._reach()
        return [job.seen for job in reversed(self._jobs.values())][:limit]

    async def send(self, look: JobQuery, *, text: str = "", keys: Sequence[str] = ()) -> None:
        await self._reach()
        job = self._find(look)
        if job is None or not job.seen.is_running:
            raise NotStarted("the job does not run, so nothing can be typed into it")
        if job.seen.via != "tmux":
            raise Unsupported("the job runs without tmux, so nothing can be typed into it")
        job.typed += [*([text] if text else []), *keys]


def compile_pattern(pattern: str) -> re.Pattern[bytes] | None:
    try:
        return re.compile(pattern.encode()) if pattern else None
    except re.error as problem:
        raise BadArgument(f"the pattern {pattern!r} is not a regular expression: {problem}") from None


def part_of(log: bytes, look: JobQuery) -> tuple[bytes, int]:
    """Return the part of a log that a look reads, and where the next should begin."""
    if look.cursor is None:
        lines = log.splitlines(keepends=True)[-look.lines :] if look.lines else []
        return b"".join(lines)[-look.most_bytes :], len(log)
    start = look.cursor if look.cursor <= len(log) else 0
    data = log[start : start + look.most_bytes]
    return data, start + len(data)
