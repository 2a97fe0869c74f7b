"""What is asked of background jobs, and what is told of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.job import JobSeen, JobStarted
from ..core.port import DeployOrder
from ..core.supervision import WatchOrder

if TYPE_CHECKING:
    from ..store.jobs import JobRecord

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
    """A job of a list: as its machine sees it, as it was written down, or both; `trouble` where nobody answered."""

    sandbox: str
    seen: JobSeen | None = None
    record: JobRecord | None = None
    trouble: str = ""

    @property
    def state(self) -> str:
        if self.trouble:
            return "unknown"
        if self.seen:
            return self.seen.state.value
        # The machine has answered, and knows nothing of it any more.
        return self.record.state if self.record and self.record.ended else "unknown"

    @property
    def began(self) -> float:
        if self.seen and self.seen.started:
            return self.seen.started
        return self.record.created if self.record else 0.0
