"""Submits allocations to the queue of a cluster, finds them again by their names, and cancels them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import replace

from ...core.commands.command import Environment
from ...core.errors import ConnectError, SandboxError, UnknownSandbox, Unsupported
from ...core.jobs.queue import ENDED, OUT_OF_MEMORY, PENDING, Queued, fate_words, waiting_text
from ...core.sandboxes.disposable import Disposable, DisposableRules, SandboxOrder, is_pending
from ...core.sandboxes.foreign import not_understood
from ...core.sandboxes.sandbox import Sandbox
from ...local.waiting import Chores, within
from ..command.way import CommandLine
from . import kind_of, traits_of
from .allocation import AllocationWay, open_allocation
from .order import KEY, checked, id_in, job_name, submission
from .queue import DOUBT_S, ClusterQueue

SUBMIT_S, SWEEP_S, RENEW_S, COMPLETING_S = 60.0, 30.0, 30.0, 8.0
# How often it is looked whether one that is pending has begun: a command on the login node, which asks no queue.
SIGN_S = 1.0
# Its holder ends well where its time is over.
FAILED = "FAILED"
# How much earlier than its job's time limit a sandbox is said to end: the queue looks at limits once a minute.
BEFORE_LIMIT_S = 1.0
# How much earlier than it was to a job ends whose time was over, as far as clocks can tell.
LATE_S = 5.0


class SlurmProvider:
    """Provider of allocations (core.disposable.Provider). `mark` names a user's installation: only that is touched."""

    def __init__(self, queue: ClusterQueue, environment: Environment, rules: DisposableRules, mark: str) -> None:
        self.rules = rules
        self.traits = traits_of(queue.machine)
        self._kind = kind_of(queue.machine)
        self._queue = queue
        self._environment = environment
        self._mark = mark
        # Failures are not logged: the next request about the allocation reports them.
        self._chores = Chores("work on an allocation", expected=(SandboxError,))
        # Ids of those that were cancelled here, and when it was last looked whether one that is pending has begun.
        self._cancelled: set[str] = set()
        self._asked_at: dict[str, float] = {}
        # Numbers of jobs whose time limit the cluster does not lengthen.
        self._fixed: set[str] = set()

    @property
    def where(self) -> str:
        return self._queue.console.where

    # Making one

    async def create(self, disposable_id: str, order: SandboxOrder) -> Disposable:
        order, begun = checked(order, self._queue.machine), time.time()
        doing = f"unable to submit an allocation to the queue of {self._queue.machine}"
        asked = submission(self._queue.cluster, disposable_id, order, self._mark)
        try:
            said = await self._queue.console.ask(asked.words, asked.script.splitlines(), limit_s=SUBMIT_S)
        except (ConnectError, asyncio.CancelledError):
            # It may have been submitted all the same.
            self._chores.start(self._sweep(disposable_id))
            raise
        if said.status:
            raise self._queue.problem(doing, said)
        key = said.out.rpartition("\n")[2].partition(";")[0].strip()
        if not KEY.match(key):
            self._chores.start(self._sweep(disposable_id))
            raise not_understood(self.where, ValueError("it is no number of a job"))
        return Disposable(
            id=disposable_id,
            provider=self._kind,
            key=key,
            name=order.name,
            status="pending",
            reason="it was submitted a moment ago",
            created=begun,
            limits=order.limits,
            network=True,
            notes=(f"slurm: job {key}{_limit_note(asked.limit_s)}",),
        )

    async def _sweep(self, disposable_id: str) -> None:
        """Cancel one whose submission was given up: it may appear a while after that."""
        until = time.monotonic() + SWEEP_S
        while time.monotonic() < until:
            with contextlib.suppress(SandboxError):
                await self._cancel(disposable_id)
            await asyncio.sleep(SWEEP_S / 6)

    async def _cancel(self, disposable_id: str) -> None:
        """Cancel by name, because a number may be given out anew; no error where there is none."""
        said = await self._queue.console.ask(["scancel", f"--name={job_name(self._mark, disposable_id)}"])
        if said.status:
            raise self._queue.problem(f"unable to cancel {disposable_id}", said)
        # What the queue said before that still has it.
        self._cancelled.add(disposable_id)

    # Using it

    async def open(self, disposable: Disposable) -> Sandbox:
        seen = await self._seen(disposable)
        if seen.status == "pending":
            raise is_pending(seen)
        if seen.status != "running":
            why = seen.reason or "is gone: it was deleted, or its time was over"
            raise UnknownSandbox(f"unable to open {disposable.title}: it {why}; create another one")
        return await open_allocation(AllocationWay(self._queue, disposable, self._fate), self._environment)

    async def _fate(self, disposable: Disposable) -> Disposable | None:
        """Ask the queue for the state, which explains why the allocation does not answer; None if it does not say."""
        until = time.monotonic() + COMPLETING_S
        with contextlib.suppress(SandboxError):
            seen = await self._seen(disposable, within_s=DOUBT_S)
            while seen.status == "running" and time.monotonic() < until and await self._is_completing(disposable.key):
                await asyncio.sleep(COMPLETING_S / 10)
                seen = await self._seen(disposable, within_s=DOUBT_S)
            return seen
        return None

    async def _is_completing(self, key: str) -> bool:
        """Whether it is over, and the queue says how only when the last of its processes is gone."""
        job = (await self._queue.jobs()).get(key)
        return job is not None and job.word == "COMPLETING"

    async def inspect(self, disposable: Disposable) -> Disposable:
        seen = await self._seen(disposable)
        if seen.status == "pending" and await self._has_begun(disposable.id):
            return await self._seen(disposable, within_s=0.0)
        return seen

    async def _has_begun(self, disposable_id: str) -> bool:
        """Whether it has left its sign since the queue was asked; looked for once a second at most."""
        now = time.monotonic()
        if now - self._asked_at.get(disposable_id, -math.inf) < SIGN_S:
            return False
        self._asked_at[disposable_id] = now
        with contextlib.suppress(SandboxError):
            return await self._queue.has_begun(disposable_id)
        return False

    async def _seen(self, disposable: Disposable, *, within_s: float | None = None) -> Disposable:
        if disposable.id in self._cancelled:
            return replace(disposable, status="gone", reason="")
        job = await self._queue.job(disposable.key, within_s=within_s) if KEY.match(disposable.key) else None
        if job is None or id_in(job.name, self._mark) != disposable.id:
            return replace(disposable, status="gone", reason="")
        return self._described(disposable, job)

    def _described(self, disposable: Disposable, job: Queued) -> Disposable:
        """The sandbox as its job stands."""
        if job.state == PENDING:
            reason = "its nodes are being prepared" if job.word == "CONFIGURING" else job.reason
            why = waiting_text(reason, job.start, time.time())
            return replace(disposable, status="pending", reason=why)
        if job.state == ENDED:
            why = self._why_ended(disposable, job)
            return replace(disposable, status="gone" if why else "expired", reason=why)
        # Its time counts from its start.
        return replace(disposable, status="running", reason="", started=job.start, ends_by=job.end)

    def _why_ended(self, disposable: Disposable, job: Queued) -> str:
        """Describe how it ended; empty where its own time was over."""
        if job.word == FAILED:
            return f"failed on its node: the queue says {job.reason or FAILED}, as of one that uses too much memory"
        # So the queue says of each in which a command was ever killed for its memory, however it ended.
        if job.fate == OUT_OF_MEMORY and 0 < disposable.expires <= job.end + LATE_S:
            return ""
        return fate_words(job, self._queue.uid)

    async def list(self) -> Sequence[Disposable]:
        found = []
        for job in (await self._queue.jobs()).values():
            disposable_id = id_in(job.name, self._mark)
            if disposable_id and KEY.match(job.number) and job.state != ENDED and disposable_id not in self._cancelled:
                it = Disposable(id=disposable_id, provider=self._kind, key=job.number, network=True)
                found.append(self._described(it, job))
        return found

    async def delete(self, disposable: Disposable) -> None:
        await self._cancel(disposable.id)

    async def renew(self, disposable: Disposable, timeout_s: float) -> Disposable:
        """Renew as long as the job's time limit allows; lengthening that is tried once: few clusters let users."""
        job, now = await self._queue.job(disposable.key), time.time()
        if job is None or id_in(job.name, self._mark) != disposable.id or job.state == ENDED:
            raise UnknownSandbox(f"unable to renew {disposable.title}: it is gone; create another one")
        if job.state == PENDING:
            raise is_pending(self._described(disposable, job))
        until, limit = now + timeout_s, job.end - BEFORE_LIMIT_S if job.end else math.inf
        if until > limit and await self._lengthened(disposable.key, job, until):
            limit = until
        until = min(until, limit)
        # What it has already needs no step: one that is in use at its limit is renewed again and again.
        if abs(until - disposable.expires) > 1.0:
            await self._set_life(disposable, until - now)
        return replace(disposable, expires=until, notes=self._limit_notes(disposable, until < now + timeout_s, limit))

    def _limit_notes(self, disposable: Disposable, is_cut: bool, limit: float) -> tuple[str, ...]:
        if not is_cut:
            return disposable.notes
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(limit))
        return (*disposable.notes, f"time: the queue ends it at {until}, and only an administrator may lengthen that")

    async def _lengthened(self, key: str, job: Queued, until: float) -> bool:
        if key in self._fixed:
            return False
        minutes = max(1, int((until - job.start) // 60) + 1)
        said = await self._queue.console.ask(["scontrol", "update", f"JobId={key}", f"TimeLimit={minutes}"])
        if said.status:
            self._fixed.add(key)
        return not said.status

    async def _set_life(self, disposable: Disposable, seconds: float) -> None:
        """Tell its holder. Where there is none, it lives until its time limit anyway."""
        way = AllocationWay(self._queue, disposable, self._fate)
        line = await way.open_step("U", f"{max(1.0, seconds):.0f}")
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(_end_of(line), RENEW_S)
        finally:
            line.close()

    async def pause(self, disposable: Disposable) -> Disposable:
        raise self._unsupported(disposable, "which only an administrator can suspend")

    async def resume(self, disposable: Disposable) -> Disposable:
        raise self._unsupported(disposable, "which only an administrator can suspend and resume")

    async def snapshot(self, disposable: Disposable, name: str = "") -> str:
        raise self._unsupported(disposable, "of which no image is made; what is in the home folder stays")

    async def endpoint(self, disposable: Disposable, port: int) -> str:
        raise self._unsupported(disposable, "whose ports have no address; forward the port")

    def _unsupported(self, disposable: Disposable, why: str) -> Unsupported:
        return Unsupported(f"{disposable.title} is an allocation of {self._queue.machine}, {why}")

    async def close(self) -> None:
        await self._chores.close()


async def _end_of(line: CommandLine) -> None:
    while await line.read():
        pass


def _limit_note(limit_s: float) -> str:
    """Warn the maker of the queue's time limit: other sandboxes live for as long as they are used."""
    if not limit_s:
        return ""
    return f"; the queue ends it {limit_s / 60:.0f} min after its start, used or not; slurm option time gives it more"
