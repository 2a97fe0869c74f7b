"""A watch over a job: what the watchdog knows of it, what it may do, what it says, and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(str, Enum):
    """What has become of a watch. Only an active one is looked after."""

    ACTIVE = "active"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXHAUSTED = "exhausted"


class EventType(str, Enum):
    """What can happen to a watched job."""

    SSH_UNREACHABLE = "ssh_unreachable"
    RUNNING_RESTORED = "running_restored"
    INTERRUPTED = "interrupted"
    RESUME_STARTED = "resume_started"
    RESUME_FAILED = "resume_failed"
    COMPLETED = "completed"
    CONFIG_MISSING = "config_missing"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a watch is kept. Never changes after it was made."""

    interval_s: float = 300.0
    alert_after_failures: int = 2
    auto_resume: bool = False
    resume_delay_s: float = 300.0
    max_resume_attempts: int = 1
    resume_command: str = ""
    resume_cwd: str = ""
    # Not shown: variables are where people keep tokens.
    resume_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoint_path: str = ""
    checkpoint_command: str = ""
    checkpoint_format: str = "text"
    log_lines: int = 80
    notify_local: bool = True
    webhook_url: str = ""
    # Names of the operator's hooks.
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Watch:
    """A watch as its row says. Times are seconds since the epoch, 0 for not yet; `version` counts its changes."""

    id: int = 0
    version: int = 0
    run_id: str = ""
    name: str = ""
    sandbox: str
    session: str
    log_file: str = ""
    cwd: str = ""
    command: str = ""
    # The job that is looked after now; a resume has an id of its own. Empty for a session that is not ours.
    job_id: str = ""
    policy: Policy = Policy()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    status: Status = Status.ACTIVE
    # starting, running, unreachable, config_missing, unknown, interrupted, resuming, completed, exhausted, cancelled
    last_state: str = "starting"
    last_summary: str = ""
    last_error: str = ""
    last_exit_code: int | None = None
    last_log_tail: str = ""
    last_checkpoint: str = ""
    failures: int = 0
    # Whether the trouble that lasts has been told.
    alerted: bool = False
    interrupted_at: float = 0.0
    resume_attempts: int = 0
    created: float = 0.0
    updated: float = 0.0
    checked: float = 0.0
    due: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, told once."""

    type: EventType
    summary: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    id: int = 0
    watch_id: int = 0
    created: float = 0.0


@dataclass(frozen=True)
class Resume:
    """Start the watch's job again, under this id, if the job `instead_of` is gone without having ended."""

    job_id: str
    instead_of: str


@dataclass(frozen=True)
class NoContact:
    """Nobody could be asked; `config` where the sandbox is not configured (any more)."""

    reason: str
    config: bool = False


@dataclass(frozen=True)
class Decision:
    """What a watch becomes, what is to be told, and what is to be done. Every event is announced as the policy says."""

    watch: Watch
    events: tuple[Event, ...] = ()
    resume: Resume | None = None


class Unsent(Exception):
    """An announcement did not reach anybody; `passing` where another attempt may."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing
