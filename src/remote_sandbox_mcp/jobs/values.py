"""What is asked of background jobs, and what is told of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.job import JobSeen, JobStarted, JobState
from ..core.port import DeployOrder
from ..core.watch import WatchOrder

if TYPE_CHECKING:
    from ..store.jobs import JobRecord

# What an entry of the list of jobs is.
JOB, COMMAND = "job", "command"
# Sees to it that the watchdog runs; says why it does not, or nothing.
Ensure = Callable[[], Awaitable[str]]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A job as a caller wants it; `watch` is None for one that nobody looks after."""

    command: str
    session: str = ""
    log_file: str = ""
    cwd: str = ""
    sandbox: str = ""
    watch: WatchOrder | None = None
    # Where the job is an app, which is then known as that to every process.
    app: DeployOrder | None = None


@dataclass(frozen=True)
class Begun:
    """A job that has begun, and what its starter should know."""

    started: JobStarted
    sandbox: str
    watch_id: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Which:
    """Which job is meant: by its watch, or by its session and perhaps the log of one that is not ours."""

    session: str = ""
    watch_id: int = 0
    log_file: str = ""
    sandbox: str = ""


@dataclass(frozen=True)
class Sight:
    """A job of a list: as its machine sees it, as it was written down, or both; `trouble` where nobody answered.

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
        # An end that was seen once is true for ever, whether or not the machine answers or still knows of it.
        return self.record.state if self.record and self.record.ended else "unknown"

    @property
    def id(self) -> str:
        """The name that a job has wherever it is seen from."""
        if self.seen:
            return self.seen.job_id or f"{self.sandbox}:{self.seen.session}"
        return self.record.job_id if self.record else ""

    @property
    def worth(self) -> tuple[bool, bool]:
        """Of two entries of the same job, the greater is shown: seen now, and under the name it was started with."""
        named = self.record is not None and self.record.sandbox == self.sandbox
        return self.seen is not None and not self.trouble, named

    @property
    def began(self) -> float:
        if self.seen and self.seen.started:
            return self.seen.started
        return self.record.created if self.record else 0.0
