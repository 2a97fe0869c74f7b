"""A background job as values: its order, questions about it, what was observed, and its screen in tmux."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ..commands.command import RUN_ID, Running
from ..commands.shell import join
from ..errors import BadArgument, LostContact, NotStarted
from ..texts.text import harmless
from .cards import CardRequest
from .curves import JobMetrics

JOB_ID = re.compile(r"job-[a-z0-9][a-z0-9-]{7,55}\Z")
# tmux allows no "." and no ":" in a session's name; other special characters would need quotes in `tmux attach`.
_ODD_IN_SESSION = re.compile(r"[^\w@%+=,-]")
LONGEST_SESSION = 60
# `via` of a job that was submitted to a cluster's queue.
SLURM = "slurm"
# A GPU that is used less than this is idle: a driver that is only asked may say 1 %.
IDLE_PERCENT = 2.0
_ELEMENT = re.compile(r"(?P<session>[^\[\]]+)\[(?P<element>\d{1,9})\]\Z")


def new_job_id() -> str:
    """A new, random job id. A start that is repeated with the same id starts nothing."""
    import uuid

    return f"job-{uuid.uuid4().hex[:16]}"


def next_attempt(job_id: str, attempt: int) -> str:
    """Id of a resumed job. An attempt always has the same id, so it starts once however often it is tried."""
    first, _, earlier = re.sub(r"-r([0-9]+)$", r" \1", job_id).partition(" ")
    # A watch that was begun over a resumed job counts from one again, and that id is taken.
    return f"{first}-r{max(attempt, int(earlier or 0) + 1)}"


def session_name(wanted: str) -> str:
    """A valid tmux session name made from what the caller wants. Raises BadArgument."""
    name = _ODD_IN_SESSION.sub("_", wanted)
    if not name or len(name.encode("utf-8", "replace")) > LONGEST_SESSION * 3 or len(name) > LONGEST_SESSION:
        raise BadArgument(f"session_name must have 1 to {LONGEST_SESSION} characters, not {len(wanted)}")
    if name[0] in "-=%@+$":
        raise BadArgument(f"session_name {wanted[:60]!r} begins with a mark that means something to tmux; use a letter")
    if RUN_ID.match(name):
        raise BadArgument(f"session_name {name!r} looks like the handle of an exec_bash run; choose another")
    return name


def split_element(name: str) -> tuple[str, str]:
    """A session's name, and the element of its array that is meant; empty for all of it."""
    found = _ELEMENT.match(name)
    return (found["session"], found["element"]) if found else (name, "")


class JobRefused(NotStarted):
    """A job that was not started; `reason` is a word for the program.

    cwd, log, syntax, shell, session, in_use; for `instead_of` the state of that job: running, ended, missing.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, reason)


class NoCards(JobRefused):
    """A machine that has too few free cards now; `busy` has one sentence for each card that is not free.

    Nothing was started, and the same start may succeed later.
    """

    def __init__(self, message: str, busy: tuple[str, ...] = ()) -> None:
        super().__init__(message, "cards")
        self.busy = busy


def no_cards(name: str, said: str) -> NoCards:
    """A machine's refusal: its first line says what cannot be had, each further one why a card is not free."""
    message, *busy = harmless(said[:8000].encode("utf-8", "replace")).splitlines() or ["no card is free"]
    return NoCards(f"{name}: {message}", tuple(busy))


@dataclass(frozen=True)
class Submission:
    """Submission of a job to a cluster's queue: arguments of sbatch, and how often the queue may be asked."""

    words: tuple[str, ...] = ()
    rate_s: float = 10.0


@dataclass(frozen=True, kw_only=True)
class JobOrder:
    """Order to start a job. With `instead_of`, it starts only if that job is gone without having ended.

    With `even_ended`, it starts also if that job has ended.
    """

    job_id: str = field(default_factory=new_job_id)
    session: str
    script: str
    cwd: str = ""
    # Empty: .codex_logs/SESSION.log under cwd. A relative one starts at cwd, too.
    log_file: str = ""
    # Not shown: variables are where people keep tokens.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    instead_of: str = ""
    even_ended: bool = False
    # Given on a cluster: it goes to the queue. One that is started in place of another goes where that one went.
    submission: Submission | None = None
    # Leased before the command starts, and held for the job's life. Raises NoCards where they cannot be had now.
    cards: CardRequest | None = None
    # How long the caller says that the job runs; 0 for no limit. Others see it in the lease.
    run_for_s: float = 0.0


def lost_start(name: str, order: JobOrder, why: str) -> LostContact:
    """Error for a start whose outcome we could not learn."""
    return LostContact(
        f"contact with {name} was lost while {order.session} was being started ({why}); it may run or not. "
        f"Ask with check_background_task(tmux_session={order.session!r}) before starting it again",
        outcome="unknown",
        so_far=Running(order.session),
        says_how_to_ask=True,
    )


@dataclass(frozen=True, kw_only=True)
class JobStarted:
    """A job that has begun. `recovered`: an earlier start with the same id had begun it.

    `via`: tmux, detached, or SLURM for one that a cluster's queue has.
    """

    job_id: str
    session: str
    log_file: str
    cwd: str
    via: str
    recovered: bool = False
    notes: tuple[str, ...] = ()
    # UUIDs of the cards that it has leased.
    cards: tuple[str, ...] = ()

    @property
    def is_queued(self) -> bool:
        """Whether it was handed to a cluster's queue, which starts it when there is room."""
        return self.via == SLURM


@dataclass(frozen=True, kw_only=True)
class JobQuery:
    """A question about a job: which one (by id, or the newest of a session), and what to return.

    The log comes from `cursor` on, or else its last `lines`; never more than `most_bytes`.
    A tmux session that we did not start is found by its name; its end is the last line of `log_file`.
    """

    job_id: str = ""
    session: str = ""
    log_file: str = ""
    lines: int = 50
    cursor: int | None = None
    most_bytes: int = 65536
    checkpoint_path: str = ""
    checkpoint_command: str = ""
    # Where a checkpoint's relative path and command start; empty for the job's own folder.
    cwd: str = ""
    usage: bool = False
    # One element of an array; empty for the job as a whole.
    element: str = ""


class JobState(str, Enum):
    """State of a job. GONE: it neither runs nor has an exit status. MISSING: its machine has no record of it.

    PENDING: a cluster's queue has it, or it waits for free GPUs, and it has not started yet.
    """

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """End of a checkpoint's text and when it was written, or why it cannot be read."""

    text: bytes = b""
    mtime: float = 0.0
    problem: str = ""
    # "text" or "json", as its watch says.
    form: str = "text"


@dataclass(frozen=True, kw_only=True)
class JobUsage:
    """Resources that a job's processes use now; `gpus` maps a GPU's index to MB of its memory.

    `busy` has the percent of use of those GPUs, by whomever, as far as they tell it.
    """

    processes: int = 0
    memory_mb: float = 0.0
    cpu_s: float = 0.0
    gpus: Mapping[int, float] = field(default_factory=dict)
    busy: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_gpu_idle(self) -> bool:
        """Whether it holds GPUs and each of them says that nobody computes on it."""
        return bool(self.gpus) and all(self.busy.get(index, 100.0) < IDLE_PERCENT for index in self.gpus)


class Fate(str, Enum):
    """Fate of a job on a cluster. After the first four it is GONE, and may be resumed; the others are its end."""

    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    NODE_FAILED = "node_failed"
    REQUEUED = "requeued"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, kw_only=True)
class ArrayCounts:
    """Counts of an array's elements by state; `failed` of those that ended have another code than 0."""

    pending: int = 0
    running: int = 0
    ended: int = 0
    failed: int = 0
    gone: int = 0


@dataclass(frozen=True, kw_only=True)
class QueueSeen:
    """A job as its cluster's queue has it. Times are seconds since the epoch, 0 where they are not known."""

    # Its number there, and the queue's own word for its state.
    number: str
    state: str = ""
    # Why it is pending.
    reason: str = ""
    # When it is expected to start, or has started; when its time limit ends it.
    start: float = 0.0
    end: float = 0.0
    partition: str = ""
    nodes: str = ""
    dependency: str = ""
    # How often the queue has started it again.
    restarts: int = 0
    array: ArrayCounts | None = None
    # Seconds since the queue was asked, and why it does not answer now.
    age_s: float = 0.0
    trouble: str = ""


@dataclass(frozen=True)
class NextResume:
    """Next resume of an interrupted job by the watchdog: its time, and which attempt of how many it is."""

    at: float
    attempt: int
    attempts: int


@dataclass(frozen=True, kw_only=True)
class JobSeen:
    """A job as observed. `cursor` is where the next look at its log should begin."""

    state: JobState
    job_id: str = ""
    session: str = ""
    log_file: str = ""
    cwd: str = ""
    # The beginning of the command.
    command: str = ""
    via: str = ""
    exit_code: int | None = None
    signal: str = ""
    # "exited", or "stopped" by stop_background_task; on a cluster also "cancelled" and "out_of_memory".
    ending: str = ""
    # What its cluster did to it, and how it stands in the queue; None for a job that was not submitted to one.
    fate: Fate | None = None
    queue: QueueSeen | None = None
    # Why it is gone or missing, and whether the machine was restarted since it began.
    reason: str = ""
    rebooted: bool = False
    # Set for one that is gone and will be resumed.
    resume: NextResume | None = None
    started: float = 0.0
    seconds: float = 0.0
    log: bytes = b""
    log_size: int = 0
    cursor: int = 0
    # Seconds since the log last grew.
    silent_s: float = 0.0
    checkpoint: Checkpoint | None = None
    usage: JobUsage | None = None
    # What its log and its checkpoint say in numbers; None where nobody has read them.
    metrics: JobMetrics | None = None
    # Pids that even KILL did not end.
    survivors: tuple[int, ...] = ()
    # A tmux session that a person started, not we.
    foreign: bool = False
    # Why this is an old record instead of the machine's answer; empty for a live answer.
    recalled: str = ""
    recalled_at: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.state is JobState.RUNNING

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be expected of it: it neither runs nor waits in a queue."""
        return self.state not in (JobState.RUNNING, JobState.PENDING)

    @property
    def is_unplaced(self) -> bool:
        """Whether no machine has it: it waits for one, or ended before it had one."""
        return self.queue is not None and not self.queue.number

    @property
    def goes_on(self) -> bool:
        """Whether it runs, waits in a queue, or was interrupted and will be resumed by itself."""
        return not self.is_over or self.resume is not None

    @property
    def has_more(self) -> bool:
        """Whether this look brought only a part of what is new in the log: the next one goes on at once."""
        return bool(self.log) and self.cursor < self.log_size


@dataclass(frozen=True, kw_only=True)
class JobWait:
    """Conditions that end a wait besides the job's end: a pattern in the log after the look's cursor, or silence."""

    seconds: float = 45.0
    pattern: str = ""
    silence_s: float = 0.0


@dataclass(frozen=True)
class JobWaited:
    """End of a wait ("ended", "pattern", "silence", "timeout"), the line that fitted, and what is seen."""

    why: str
    seen: JobSeen
    line: str = ""


class Jobs(Protocol):
    """The jobs of a sandbox. Every method raises ConnectError where it cannot be opened, Unsupported where it has none.

    A job belongs to its machine: it outlives the connection and the process that started it.
    """

    async def start(self, order: JobOrder) -> JobStarted:
        """Start it, in one round trip; the same id starts once.

        Raises NotStarted, with nothing begun, for a bad folder, a log that cannot be written, a session name in use or
        a syntax error; LostContact where we cannot learn whether it began.
        """

    async def inspect(self, queries: Sequence[JobQuery]) -> list[JobSeen]:
        """The state of each job, in order, in one round trip."""

    async def wait(self, query: JobQuery, wait: JobWait) -> JobWaited:
        """Wait for something to happen."""

    async def stop(self, query: JobQuery, grace_s: float = 10.0) -> JobSeen:
        """End its whole process tree: TERM, `grace_s` seconds, KILL; then report its state."""

    async def list(self, limit: int = 100) -> list[JobSeen]:
        """All jobs that the machine knows, newest first, without their logs."""

    async def send(self, query: JobQuery, *, text: str = "", keys: Sequence[str] = ()) -> None:
        """Type a text, then keys by their tmux names, into a running job's pane. Raises NotStarted, Unsupported."""


# Its screen

# Room for a large window in which every character has several bytes.
MOST_SCREEN = 400_000


@dataclass(frozen=True)
class Screen:
    """Screen of a job as a person would see it in its window. The cursor's line and column are counted from 1."""

    text: bytes
    columns: int
    rows: int
    line: int
    column: int


def why_no_screen(seen: JobSeen) -> str:
    """Explain why a job has no screen, as a sentence; empty where it has one."""
    if not seen.is_running:
        return f"{seen.session} does not run, so it has no screen; its log says what it has printed"
    if seen.foreign or seen.via == "tmux":
        return ""
    how = "in the queue of a cluster" if seen.via == "slurm" else "without tmux"
    return f"{seen.session} runs {how}, so it has no screen; its log says what it has printed"


def screen_script(session: str) -> str:
    """Prints a line with the size and the cursor, then the lines of the window."""
    target = f"={session}:"
    size = ["tmux", "-u", "display-message", "-p", "-t", target, "#{pane_width} #{pane_height} #{cursor_x} #{cursor_y}"]
    return f"unset TMUX; {join(size)} && {join(['tmux', '-u', 'capture-pane', '-p', '-t', target])}"


def read_screen(printed: bytes) -> Screen:
    """Raises ValueError for what cannot be understood."""
    first, _, text = printed.partition(b"\n")
    columns, rows, across, down = map(int, first.split())
    return Screen(text, columns, rows, down + 1, across + 1)
