"""A small world for the watchdog: machines with jobs, a clock, listeners, and death at any step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from remote_sandbox_mcp.core.commands.command import Running
from remote_sandbox_mcp.core.errors import LostContact, NotStarted, UnknownSandbox, Unreachable
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobSeen, JobStarted, JobState
from remote_sandbox_mcp.core.jobs.watch import Decision, Event, Unsent, Watch
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.jobs import JobRecords
from remote_sandbox_mcp.local.store.watches import Effect, Watches
from remote_sandbox_mcp.services.jobs.supervise import WatchSupervisor

BEGINNING = 1_000_000.0


class Died(BaseException):
    """The daemon was killed."""


@dataclass
class Job:
    """A job of a machine: what it is, and what it was started with."""

    job_id: str
    session: str
    state: JobState = JobState.RUNNING
    exit_code: int | None = None
    rebooted: bool = False
    log: bytes = b""


class Machine:
    """Keeps the part of the Jobs protocol that a watchdog uses, and remembers what was asked of it.

    One that is not `strict` starts whatever it is told to, once for its id: then all depends on who asks.
    """

    def __init__(self, world: World, name: str, *, strict: bool = True) -> None:
        self.world = world
        self.name = name
        self.strict = strict
        self.jobs: dict[str, Job] = {}
        self.is_up = True
        self.is_mounted = True
        self.hangs = False
        # The next starts: "refused", "lost before" or "lost after".
        self.mishaps: list[str] = []
        self.queries: list[Sequence[JobQuery]] = []
        self.orders: list[JobOrder] = []
        self.begun: list[str] = []
        self.sins: list[str] = []

    @property
    def jobs_there(self) -> dict[str, Job]:
        return self.jobs if self.is_mounted else {}

    def newest(self, session: str) -> Job | None:
        return next((job for job in reversed(self.jobs_there.values()) if job.session == session), None)

    def begin(self, job_id: str, session: str) -> Job:
        self.begun.append(job_id)
        job = self.jobs[job_id] = Job(job_id, session)
        return job

    def end(self, state: JobState, *, exit_code: int | None = None, rebooted: bool = False) -> None:
        """All that runs ends like this."""
        for job in self.jobs.values():
            if job.state is JobState.RUNNING:
                job.state, job.exit_code, job.rebooted = state, exit_code, rebooted

    async def _reach(self) -> None:
        await asyncio.sleep(3600 if self.hangs else 0)
        if not self.is_up:
            raise Unreachable(f"{self.name} does not answer")

    async def inspect(self, looks: Sequence[JobQuery]) -> list[JobSeen]:
        self.world.step()
        await self._reach()
        self.queries.append(looks)
        seen = [self._seen(look) for look in looks]
        self.world.step()
        return seen

    def _seen(self, look: JobQuery) -> JobSeen:
        job = self.jobs_there.get(look.job_id) if look.job_id else self.newest(look.session)
        if job is None:
            return JobSeen(state=JobState.MISSING, reason="no such job")
        ending = "exited" if job.state is JobState.ENDED else ""
        return JobSeen(
            state=job.state, job_id=job.job_id, session=job.session, exit_code=job.exit_code, ending=ending,
            rebooted=job.rebooted, log=job.log,
        )  # fmt: skip

    async def start(self, order: JobOrder) -> JobStarted:
        self.world.step()
        await self._reach()
        mishap = self.mishaps.pop(0) if self.mishaps else ""
        if mishap == "lost before":
            raise Unreachable("cut")
        self.orders.append(order)
        started = self._start(order, mishap)
        self.world.step()
        if mishap == "lost after":
            raise LostContact("cut", outcome="unknown", so_far=Running(order.job_id))
        return started

    def _start(self, order: JobOrder, mishap: str) -> JobStarted:
        started = JobStarted(
            job_id=order.job_id, session=order.session, log_file=order.log_file or "/log", cwd=order.cwd, via="tmux"
        )
        if order.job_id in self.jobs_there:
            return replace(started, recovered=True)
        if mishap == "refused" or not self.is_mounted:
            raise NotStarted("no such folder")
        self._check(order)
        self.begin(order.job_id, order.session)
        return started

    def _check(self, order: JobOrder) -> None:
        old = self.jobs.get(order.instead_of)
        in_the_way = [job.job_id for job in self.jobs.values() if job.session == order.session and job.state is RUNS]
        may_replace = (JobState.GONE, JobState.ENDED) if order.even_ended else (JobState.GONE,)
        if in_the_way or (order.instead_of and (old is None or old.state not in may_replace)):
            if self.strict:
                raise NotStarted(f"{order.instead_of} is not gone, or {in_the_way} run")
            self.sins.append(f"{order.job_id} instead of {old}, beside {in_the_way}")


RUNS = JobState.RUNNING


@dataclass
class Sandbox:
    """As much of a sandbox as a watchdog needs."""

    jobs: Machine


class MortalWatches(Watches):
    """The rows, where every write may be the last thing before or after which the daemon dies."""

    world: World

    def commit(self, decision: Decision, now: float, *, settles: Effect | None = None, rewrites: bool = False) -> bool:
        self.world.step()
        done = super().commit(decision, now, settles=settles, rewrites=rewrites)
        self.world.step()
        return done

    def take(self, effect: Effect) -> bool:
        self.world.step()
        done = super().take(effect)
        self.world.step()
        return done

    def settle(self, effect: Effect, state: str, *, problem: str = "", due: float = 0.0) -> None:
        self.world.step()
        super().settle(effect, state, problem=problem, due=due)
        self.world.step()


@dataclass
class World:
    """The file, the clock and the machines, which outlive every daemon. `dies_at` counts steps from now on."""

    folder: Path
    strict: bool = True
    now: float = BEGINNING
    dies_at: int = -1
    is_dead: bool = False
    machines: dict[str, Machine] = field(default_factory=dict)
    heard: Counter[tuple[int, str]] = field(default_factory=Counter)
    told: list[tuple[str, Watch, Event]] = field(default_factory=list)
    # What the listeners do with the next announcements.
    deaf: list[BaseException] = field(default_factory=list)
    _life: tuple[WatchSupervisor, MortalWatches] | None = None

    def step(self) -> None:
        """Something may happen here; it may be the end."""
        self.dies_at -= 1
        if self.dies_at == 0:
            self.is_dead = True
        if self.is_dead:
            raise Died

    def clock(self) -> float:
        if self.is_dead:
            raise Died
        return self.now

    def machine(self, name: str = "gpu1") -> Machine:
        return self.machines.setdefault(name, Machine(self, name, strict=self.strict))

    async def get(self, watch: Watch) -> Any:
        if watch.sandbox not in self.machines:
            raise UnknownSandbox(f"no sandbox is named {watch.sandbox!r}")
        return Sandbox(self.machines[watch.sandbox])

    async def announce(self, channel: str, watch: Watch, event: Event) -> None:
        self.step()
        await asyncio.sleep(0)
        if self.deaf:
            raise self.deaf.pop(0)
        self.heard[event.id, channel] += 1
        self.told.append((channel, watch, event))
        self.step()

    @property
    def watches(self) -> MortalWatches:
        return self._living()[1]

    @property
    def records(self) -> JobRecords:
        return JobRecords(self.watches.database)

    @property
    def supervisor(self) -> WatchSupervisor:
        return self._living()[0]

    def _living(self) -> tuple[WatchSupervisor, MortalWatches]:
        if self._life is None:
            database = Database(self.folder / "state.db")
            watches = MortalWatches(database)
            watches.world = self
            supervisor = WatchSupervisor(watches, JobRecords(database), self.get, self.announce, clock=self.clock)
            self._life = supervisor, watches
        return self._life

    def bury(self) -> None:
        """Let go of what a daemon held; the next use begins with another."""
        if self._life is not None:
            self._life[1].database.close()
        self._life, self.is_dead, self.dies_at = None, False, -1

    def watch(self, session: str = "train", sandbox: str = "gpu1", **more: Any) -> Watch:
        """A job that runs, and a watch over it."""
        job = self.machine(sandbox).begin(f"job-{sandbox}-{session}", session)
        fields = {"job_id": job.job_id, "created": self.now, "due": self.now, **more}
        return self.watches.add(Watch(sandbox=sandbox, session=session, **fields))

    def state(self, watch_id: int = 1) -> Watch:
        found = self.watches.get(watch_id)
        assert found
        return found

    def events(self, watch_id: int = 1) -> list[str]:
        return [event.type.value for event in self.watches.events(watch_id, limit=1000)]


def unheard(*, passing: bool) -> Unsent:
    return Unsent("nobody there", passing=passing)
