"""A task: the handle that names it, and its outcome in the words that every face uses.

A task is a command that outlasted its call (Run), a background job (Job), or a session that keeps its state between
calls (SessionHandle).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from . import check
from .commands.command import RUN_ID, Ending, Missing, Observation, Running
from .commands.session_handle import SessionHandle, SessionSeen, read_handle
from .errors import BadArgument
from .jobs.job import Fate, JobSeen, JobState, NextResume, session_name, split_element
from .jobs.queue import fate_text, moment
from .jobs.watch import Event, EventType
from .texts.text import Clipped, clip_both

# Signals by which a job is asked to end; a record of a job keeps no more of how it ended.
ASKED_TO_END = ("SIGTERM", "SIGINT", "TERM", "INT")


@dataclass(frozen=True)
class Run:
    """A command of exec_bash, or of a test suite, that outlasted its call."""

    id: str

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True)
class Job:
    """A background job: by its session and the element of its array, or by its watch."""

    session: str = ""
    element: str = ""
    watch_id: int = 0

    def __str__(self) -> str:
        return f"{self.session}[{self.element}]" if self.element else self.session or f"watch {self.watch_id}"


Handle = Run | Job | SessionHandle


def read_task(name: str, watch_id: int = 0) -> Handle:
    """The task that a caller names. Raises BadArgument."""
    if watch_id:
        return Job(watch_id=watch_id)
    if not name:
        raise BadArgument("say which task: pass its tmux_session or watch_id (list_background_tasks shows them)")
    if RUN_ID.match(name):
        return Run(name)
    if handle := read_handle(name):
        return handle
    session, element = split_element(check.text_argument("tmux_session", name))
    return Job(session_name(session), element)


@dataclass(frozen=True)
class Report:
    """Result of a command, with its output clipped for the caller."""

    seen: Observation
    stdout: Clipped
    stderr: Clipped
    # What became of the session in which it ran; empty without one.
    session: str = ""


def make_report(seen: Observation, limit: int, room: int | None = None) -> Report:
    return Report(seen, *clip_both(seen.stdout, seen.stderr, limit, room))


def printed(report: Report) -> str:
    """The end of a command's output, for the log of its sandbox."""
    return "\n".join(filter(None, (report.stdout.text, report.stderr.text)))


# A task as observed, by its kind.
TaskSeen = Report | JobSeen | SessionSeen


@dataclass(frozen=True)
class TaskWaited:
    """End of a wait ("ended", "pattern", "silence", "timeout"), the line that fitted, and what is seen."""

    why: str
    seen: TaskSeen
    line: str = ""


class TaskState(str, Enum):
    """State of a task. IDLE: a session that waits for the next call."""

    PENDING = "pending"
    RUNNING = "running"
    IDLE = "idle"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"


LIVE = (TaskState.PENDING, TaskState.RUNNING, TaskState.IDLE)
_VERBS = {TaskState.SUCCEEDED: "", TaskState.FAILED: "", TaskState.STOPPED: "was ", TaskState.INTERRUPTED: "was "}


@dataclass(frozen=True)
class Outcome:
    """Outcome of a task: its state, or its end and the reason."""

    state: TaskState
    exit_code: int | None = None
    signal: str = ""
    reason: str = ""
    resume: NextResume | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in LIVE

    @property
    def failed(self) -> bool:
        return self.state is TaskState.FAILED

    @property
    def short(self) -> str:
        """Two or three words, for a column of a table."""
        return f"failed (exit {self.exit_code})" if self.failed and self.exit_code is not None else self.state.value

    def text(self, now: float, after: str = "") -> str:
        """The state with its exit status and reason; `after` is how long it ran."""
        code = f" with exit code {self.exit_code}" if self.exit_code is not None else ""
        signal = f" ({self.signal})" if self.signal else ""
        reason = f": {self.reason}" if self.reason else ""
        again = f"; {self.resume_text(now)}" if self.resume else ""
        return f"{self.state.value}{code}{signal}{f' after {after}' if after else ''}{reason}{again}"

    def sentence(self, who: str, now: float, after: str = "") -> str:
        """
        >>> Outcome(TaskState.STOPPED, 143).sentence("train", 0.0)
        'train was stopped with exit code 143'
        """
        return f"{who} {_VERBS.get(self.state, 'is ')}{self.text(now, after)}"

    def resume_text(self, now: float) -> str:
        """Return when it is resumed, and which attempt that is; empty where it is not resumed by itself."""
        if self.resume is None:
            return ""
        when = moment(self.resume.at, now) if self.resume.at > now else "soon"
        return f"it will be resumed {when}, attempt {self.resume.attempt} of {self.resume.attempts}"


def name_of(seen: TaskSeen) -> str:
    """The name that a caller gives for it."""
    if isinstance(seen, Report):
        return seen.seen.run_id
    return seen.session if isinstance(seen, JobSeen) else str(seen.handle)


def outcome_of(seen: TaskSeen) -> Outcome:
    """The outcome of a task of any kind."""
    if isinstance(seen, Report):
        return run_outcome(seen.seen)
    return job_outcome(seen) if isinstance(seen, JobSeen) else Outcome(TaskState(seen.status), reason=seen.trouble)


def run_outcome(seen: Observation) -> Outcome:
    if isinstance(seen, Running):
        return Outcome(TaskState.RUNNING)
    if isinstance(seen, Missing):
        return Outcome(TaskState.INTERRUPTED, reason=seen.reason)
    if seen.ending is Ending.TIMED_OUT:
        return Outcome(TaskState.FAILED, seen.exit_code, seen.signal, "its time limit was reached")
    return end_outcome(seen.exit_code, ending=seen.ending.value, signal=seen.signal)


def job_outcome(seen: JobSeen) -> Outcome:
    if seen.state in (JobState.RUNNING, JobState.PENDING):
        return Outcome(TaskState(seen.state.value))
    if seen.state is JobState.MISSING:
        return Outcome(TaskState.UNKNOWN, reason=seen.reason)
    if seen.state is JobState.GONE:
        why = "its machine was restarted" if seen.rebooted else "it no longer runs and left no exit status"
        return Outcome(TaskState.INTERRUPTED, reason=fate_text(seen) or seen.reason or why, resume=seen.resume)
    return end_outcome(
        seen.exit_code, ending=seen.ending, fate=seen.fate, signal=seen.signal, reason=fate_text(seen) or seen.reason
    )


def end_outcome(
    code: int | None, *, ending: str = "", fate: Fate | None = None, signal: str = "", reason: str = ""
) -> Outcome:
    """The outcome of what has ended, by its exit status, how it was ended, and what a cluster did to it."""
    if ending == "stopped" or fate is Fate.CANCELLED or (not ending and signal in ASKED_TO_END):
        state = TaskState.STOPPED
    elif code or fate is Fate.OUT_OF_MEMORY:
        state = TaskState.FAILED
    elif code is None:
        return Outcome(TaskState.UNKNOWN, reason=reason or "it has ended, and its exit code is not known")
    else:
        state = TaskState.SUCCEEDED
    return Outcome(state, code, signal, reason)


def event_outcome(event: Event) -> Outcome | None:
    """The outcome of a job that an event says has ended; None for events that say something else."""
    if event.type is not EventType.COMPLETED:
        return None
    payload = event.payload
    fate = Fate(payload["fate"]) if payload.get("fate") in {each.value for each in Fate} else None
    return end_outcome(
        payload.get("exit_code"), ending=payload.get("ending") or "", fate=fate, signal=payload.get("signal") or ""
    )


def event_end(event: Event) -> dict[str, object]:
    """Fields for beside the type of an event that says that a job has ended; its type says no more than that."""
    outcome = event_outcome(event)
    if outcome is None:
        return {}
    code = {} if outcome.exit_code is None else {"exit_code": outcome.exit_code}
    return {"outcome": outcome.state.value, "failed": outcome.failed, **code}


def event_word(event: Event) -> str:
    """An event's type for a reader; for a job that has ended, its outcome."""
    outcome = event_outcome(event)
    return outcome.short if outcome else event.type.value.replace("_", " ")
