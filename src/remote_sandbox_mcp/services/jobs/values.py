"""Requests about background jobs, and results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.jobs.cards import CardRequest
from ...core.jobs.job import JobSeen, JobStarted, JobState
from ...core.jobs.watch import WatchOrder
from ...core.sandboxes.port import DeployOrder
from ...core.task import Handle, Outcome, TaskState, end_outcome, job_outcome, read_task

if TYPE_CHECKING:
    from ...local.store.jobs import JobRecord

# Kinds of entries in the list of jobs.
JOB, COMMAND = "job", "command"
# Makes sure that the watchdog runs; returns why it does not, or nothing.
Ensure = Callable[[], Awaitable[str]]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A job as a caller wants it; `watch` is None for one that is not watched.

    `slurm`: options for the queue of a cluster; False for a job on the login node itself.
    """

    command: str
    session: str = ""
    log_file: str = ""
    cwd: str = ""
    sandbox: str = ""
    watch: WatchOrder | None = None
    slurm: Mapping[str, object] | bool | None = None
    # Set for an app, so that every process knows it as one.
    app: DeployOrder | None = None
    # Machines of which the best is taken (ANY for all); empty for `sandbox`. Then GPUs for itself, how long it runs,
    # and the jobs that must have ended well first. One that finds no place waits for one, if it `waits`.
    places: tuple[str, ...] = ()
    cards: CardRequest | None = None
    run_for_s: float = 0.0
    after: tuple[str, ...] = ()
    priority: int = 0
    waits: bool = True


@dataclass(frozen=True)
class Begun:
    """A job that has begun, with notes for the caller; `pending` is set for one that waits for a place."""

    started: JobStarted
    sandbox: str
    watch_id: int = 0
    notes: tuple[str, ...] = ()
    pending: JobSeen | None = None


@dataclass(frozen=True, kw_only=True)
class Which:
    """Address of a task: by its watch, or by its session and, for one that is not ours, its log.

    "NAME[3]" is one element of the array NAME.
    """

    session: str = ""
    watch_id: int = 0
    log_file: str = ""
    sandbox: str = ""

    @property
    def handle(self) -> Handle:
        """Raises BadArgument."""
        return read_task(self.session, self.watch_id)


@dataclass(frozen=True)
class JobSnapshot:
    """A job in a list: as its machine sees it, as recorded, or both; `trouble` where the machine did not answer.

    `kind` tells jobs from commands of exec_bash that outlasted their call.
    """

    sandbox: str
    seen: JobSeen | None = None
    record: JobRecord | None = None
    trouble: str = ""
    kind: str = JOB

    @property
    def state(self) -> str:
        if self.seen and (not self.trouble or self.seen.state is JobState.ENDED):
            return self.seen.state.value
        # An end that was seen once stays true, even if the machine no longer knows of it.
        return self.record.state if self.record and self.record.ended else "unknown"

    @property
    def outcome(self) -> Outcome:
        if self.seen and self.state == self.seen.state.value:
            return job_outcome(self.seen)
        record = self.record
        if record and record.ended:
            return end_outcome(record.exit_code, signal=record.signal)
        return Outcome(TaskState.UNKNOWN, reason=self.trouble)

    @property
    def session(self) -> str:
        return self.seen.session if self.seen else self.record.session if self.record else ""

    @property
    def id(self) -> str:
        """The job's id, the same from wherever it is seen."""
        if self.seen:
            return self.seen.job_id or f"{self.sandbox}:{self.seen.session}"
        return self.record.job_id if self.record else ""

    @property
    def worth(self) -> tuple[bool, bool]:
        """Rank among entries of the same job: seen now, and under the name it was started with, is greater."""
        named = self.record is not None and self.record.sandbox == self.sandbox
        return self.seen is not None and not self.trouble, named

    @property
    def began(self) -> float:
        if self.seen and self.seen.started:
            return self.seen.started
        return self.record.created if self.record else 0.0
