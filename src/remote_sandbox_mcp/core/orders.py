"""The orders on the wire: what the near side sends to an outpost or a lane, and what each is answered.

A request's body is one of these orders as JSON, and bytes behind a NUL where the order has some. The answer is the JSON
of an END frame; a FAIL frame (Failure) takes its place where the order cannot be carried out. docs/protocol.md has
the table. Only type checkers import this module: it costs nothing at run time, and the far side never has it.

An answer comes from a machine that may lie. These types say what our own far side answers; the near side reads
each field as something foreign (core/sandboxes/foreign.py).
"""

from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict

from .sync.transfer import RootName

# Device and inode of /, of the next folder, and so on.
Ids = list[Any]


class Failure(TypedDict):
    """A FAIL frame: a word for the program, and a sentence for its reader."""

    reason: NotRequired[str]
    message: str


class Nothing(TypedDict):
    """The answer of an order that has nothing to tell."""


# Orders of the same shape


class PlainOrder(TypedDict):
    """An order that has only its verb."""

    verb: Literal["learn", "rest"]


class RootOrder(TypedDict):
    """An order on all that a lane has open at a root; `texts`: which of its names are files that begin like text."""

    verb: Literal["check", "mark", "index", "digests", "texts", "finish", "tidy", "leave", "index_old"]
    root: RootName


class FoundOrder(TypedDict):
    """An order on entries, with what the scan found in the place of each."""

    verb: Literal["clear", "delete", "touch"]
    root: RootName
    found: NotRequired[list[str]]


class BlocksOrder(TypedDict):
    verb: Literal["blocks", "partial_blocks"]
    root: RootName
    start: int
    count: int
    block: int


FinishOrder = RootOrder
TidyOrder = RootOrder
LeaveOrder = RootOrder
IndexOldOrder = RootOrder
ClearOrder = FoundOrder
DeleteOrder = FoundOrder
TouchOrder = FoundOrder
PartialBlocksOrder = BlocksOrder


# Outpost: runs


class SudoOrder(TypedDict):
    """Order to run as root, or as `user`: `program` is the command's parent.

    `password` is missing where sudo asks for none.
    """

    password: NotRequired[str]
    program: str
    user: NotRequired[str]


class RunOrder(TypedDict):
    verb: Literal["run"]
    id: str
    script: str
    shell: list[str]
    env: dict[str, str]
    cwd: str
    timeout: float
    keep: int
    # Start it only in the place of the first attempt (HELLO's `place`); elsewhere that could not be found.
    only_in: NotRequired[str]
    # Run it as root or as another user. Never written down, here or there.
    sudo: NotRequired[SudoOrder]
    # Its standard input comes in INPUT frames. Otherwise it is the bytes behind the order, or empty.
    streamed: NotRequired[bool]


class RunAnswer(TypedDict):
    """State of a run, or its end: `state` is ended, running, lost or missing."""

    state: str
    reason: NotRequired[str]
    exit: NotRequired[int]
    signal: NotRequired[str]
    ending: NotRequired[str]
    seconds: NotRequired[float]
    out: NotRequired[int]
    err: NotRequired[int]
    folder: NotRequired[str]
    survivors: NotRequired[list[int]]
    left: NotRequired[list[int]]


class RunBeat(TypedDict):
    """A BEAT frame: how much a run has printed, and the end of it."""

    bytes: int
    line: str


class ObserveOrder(TypedDict):
    verb: Literal["look"]
    id: str
    keep: int
    stop: NotRequired[bool]
    wait: NotRequired[float]


class ForgetOrder(TypedDict):
    verb: Literal["forget"]
    # Separated by spaces.
    ids: str


# Outpost: files


class ReadOrder(TypedDict):
    verb: Literal["read"]
    path: str
    offset: int
    limit: int
    line: int
    lines: int


class ReadAnswer(TypedDict):
    size: int
    version: str
    offset: int
    more: bool


class WriteOrder(TypedDict):
    verb: Literal["write"]
    path: str
    # The version that is replaced; empty where there must be no file yet.
    expected: NotRequired[str]
    # Replace a file that is read-only for its owner, too.
    force: NotRequired[bool]


class WriteAnswer(TypedDict):
    size: int
    version: str
    created: bool


class ListOrder(TypedDict):
    verb: Literal["list"]
    path: str
    recursive: bool
    limit: int


class ListAnswer(TypedDict):
    # Path, kind, size and time of each.
    entries: list[list[object]]
    truncated: bool
    problems: list[list[str]]


class SearchOrder(TypedDict):
    verb: Literal["search"]
    path: str
    glob: str
    pattern: str
    ignore_case: bool
    limit: int


class SearchAnswer(TypedDict):
    # Path, line number and text of each.
    matches: list[list[object]]
    truncated: bool
    problems: list[list[str]]


# Outpost: jobs


class JobQuestion(TypedDict):
    """core/jobs/job.py's JobQuery: which job, and what is wanted of it."""

    job_id: str
    session: str
    log_file: str
    lines: int
    cursor: int | None
    most_bytes: int
    checkpoint_path: str
    checkpoint_command: str
    cwd: str
    usage: bool
    # One element of an array.
    element: NotRequired[str]


class JobArray(TypedDict):
    """Counts of an array's elements by state."""

    pending: int
    running: int
    ended: int
    failed: int
    gone: int


class JobQueue(TypedDict):
    """core/jobs/job.py's QueueSeen: a job as a cluster's queue has it."""

    number: str
    state: str
    reason: str
    start: float
    end: float
    partition: str
    nodes: str
    dependency: str
    restarts: int
    array: JobArray | None
    age: float
    trouble: str


class JobCheckpoint(TypedDict):
    size: int
    mtime: float
    problem: str


class JobSaid(TypedDict):
    """One job. Its log's bytes, then its checkpoint's, come in OUT frames, job after job; None means not known."""

    id: str
    session: str
    state: str
    exit: int | None
    signal: str | None
    ending: str | None
    reason: str | None
    rebooted: bool | None
    foreign: bool | None
    log_file: str
    cwd: str
    command: str
    via: str
    started: float
    seconds: float
    log: int
    log_size: int
    cursor: int
    silent: float
    checkpoint: JobCheckpoint | None
    # processes, memory_mb, cpu_s, and by the number of a GPU: megabytes (gpus), percent of use (busy).
    usage: dict[str, Any] | None
    survivors: list[int]
    # Only of a job that was submitted to a cluster's queue; `fate` is a value of core/jobs/job.py's Fate.
    fate: NotRequired[str]
    queue: NotRequired[JobQueue]


class JobSubmission(TypedDict):
    """Arguments of sbatch, and the least number of seconds between two questions to the queue."""

    words: list[str]
    rate: float


class CardsWanted(TypedDict):
    count: int
    memory_mb: int


class JobStartOrder(TypedDict):
    verb: Literal["job_start"]
    id: str
    session: str
    script: str
    shown: str
    shell: list[str]
    env: dict[str, str]
    cwd: str
    log_file: str
    instead_of: str
    # It starts also if the job `instead_of` has ended.
    even_ended: NotRequired[bool]
    only_in: NotRequired[str]
    # Submit it to the queue of the cluster. Without it, a job `instead_of` another goes where that one went.
    slurm: NotRequired[JobSubmission]
    # Start it only with so many free cards leased. Without it, a job `instead_of` another wants what that one wanted.
    cards: NotRequired[CardsWanted]
    # How long the caller says that it runs, in seconds: told in the lease.
    run_for: NotRequired[float]


class JobStartAnswer(TypedDict):
    session: str
    log: str
    cwd: str
    via: str
    recovered: bool
    notes: list[str]
    # UUIDs of the leased cards.
    cards: list[str]


class QueueRate(TypedDict):
    """A field of the orders below: the machine is a cluster, whose queue may be asked once in so many seconds."""

    queue_rate: NotRequired[float]


class JobQueryOrder(TypedDict):
    verb: Literal["job_look"]
    jobs: list[JobQuestion]
    queue_rate: NotRequired[float]


class JobListOrder(TypedDict):
    verb: Literal["job_list"]
    limit: int
    queue_rate: NotRequired[float]


class JobsAnswer(TypedDict):
    jobs: list[JobSaid]


# The functional form, because a field is called `from`: where the search for the pattern goes on.
JobWaitOrder = TypedDict(
    "JobWaitOrder",
    {
        "verb": Literal["job_wait"],
        "job": JobQuestion,
        "seconds": float,
        "pattern": str,
        "silence": float,
        "from": int | None,
        "queue_rate": NotRequired[float],
    },
)
JobWaitAnswer = TypedDict("JobWaitAnswer", {"jobs": list[JobSaid], "why": str, "line": str, "from": int})


class JobStopOrder(TypedDict):
    verb: Literal["job_stop"]
    job: JobQuestion
    grace: float
    queue_rate: NotRequired[float]


class JobSendOrder(TypedDict):
    verb: Literal["job_send"]
    job: JobQuestion
    text: str
    keys: list[str]


class HandOutSocketOrder(TypedDict):
    verb: Literal["hand_out_socket"]
    port: int
    # The descriptor that the outpost's process has of the way out.
    door: int
    token: str


OutpostOrder = (
    RunOrder | ObserveOrder | ForgetOrder | ReadOrder | WriteOrder | ListOrder | SearchOrder | JobStartOrder
    | JobQueryOrder | JobListOrder | JobWaitOrder | JobStopOrder | JobSendOrder | HandOutSocketOrder | PlainOrder
)  # fmt: skip


# Lane: looking


class InspectPathOrder(TypedDict):
    verb: Literal["look"]
    path: str
    exact: NotRequired[Ids]


class InspectPathAnswer(TypedDict):
    # dir, file, other or missing.
    kind: str
    path: str
    real: str
    home: str


class ListingOrder(TypedDict):
    """Fields of an order to list a tree."""

    path: str
    rules: list[str]
    # Names of which it is told whether a rule left one out.
    watched: list[str]
    gitignore: bool
    squeeze: bool
    exact: NotRequired[Ids]


class ScanOrder(ListingOrder):
    verb: Literal["scan"]
    # How the names of partial files begin that are looked for beside a single file.
    beside: NotRequired[str]


class ProblemsAnswer(TypedDict):
    """Problems of a request: paths and reasons of the first ones, and how many there are."""

    problems: list[list[str]]
    problem_count: int
    unread: int


class ScanAnswer(InspectPathAnswer, ProblemsAnswer):
    # Of a single file; empty otherwise.
    meta: str
    hits: list[str]
    leftovers: list[str]
    gitignores: list[list[str]]
    # What was left out because of its name, where the rules say so: the first ones, and how many there are.
    secrets: list[str]
    secret_count: int
    # Times are known to the second only (SFTP).
    coarse: NotRequired[bool]
    # Of the real path of a folder; a lane over SFTP does not know them.
    ids: NotRequired[Ids]


class FollowOrder(ListingOrder):
    """Order to scan again, answered with the folders that differ from an earlier listing of the same lane."""

    verb: Literal["follow"]
    # The number of the listing that the near side has; 0 for none.
    since: int
    # The id of a run: it is looked only after that has ended on this machine. A CANCEL says that it has.
    after: NotRequired[str]


class FollowAnswer(InspectPathAnswer, ProblemsAnswer):
    meta: str
    hits: list[str]
    leftovers: list[str]
    # Missing where they are those of the listing before.
    gitignores: NotRequired[list[list[str]]]
    secrets: list[str]
    secret_count: int
    ids: NotRequired[Ids]
    # The number of this listing; 0 if the lane does not remember it.
    number: int
    # The listing that the folders differ from; 0 where they are all there are, which `whole` says as well.
    since: int
    whole: bool
    # Folders that are no longer there, with all that was in them.
    gone: list[str]
    # Of the top folder.
    inode: int
    # Whether changes are seen by inotify, so that unchanged folders need not be read.
    watched: bool
    # Where the order names a run: whether that had ended, as far as is known.
    ended: NotRequired[bool]


class BridgeOrder(TypedDict):
    verb: Literal["bridge"]
    argv: list[str]


# Lane: a source


class SendOrder(TypedDict):
    verb: Literal["send"]
    root: RootName
    squeeze: str
    # What it says goes over its bridge, not back to the near side.
    bridged: NotRequired[bool]


class PartOrder(TypedDict):
    verb: Literal["part"]
    root: RootName
    squeeze: str
    bridged: NotRequired[bool]
    offset: int
    length: int


class CheckAnswer(TypedDict):
    size: int
    mtime: int
    mode: int


# Lane: a target


class ReceiveOrder(TypedDict):
    """Small entries, with what each has to be and what the scan found in its place; or parts of a large file."""

    verb: Literal["receive"]
    root: RootName
    wanted: NotRequired[list[str]]
    found: NotRequired[list[str]]
    # How many bytes the small entries may have: a source may send more than it listed.
    most: NotRequired[int]
    large: NotRequired[bool]


class ReceiveAnswer(ProblemsAnswer):
    files: int
    bytes: int
    # Path and meta of what was put in place and has another size or time than was wanted: it changed after the scan.
    otherwise: list[list[str]]
    # What the file system there did not keep as it was told: "m" for modes, "t" for times.
    rough: NotRequired[str]


class DeleteAnswer(ProblemsAnswer):
    files: int
    dirs: int


class FinishAnswer(ProblemsAnswer):
    made: int


class TidyAnswer(TypedDict):
    removed: int


class BeginOrder(TypedDict):
    verb: Literal["begin"]
    root: RootName
    size: int
    first: NotRequired[bool]


class OldFile(TypedDict):
    size: int
    state: str


class BeginAnswer(TypedDict):
    fresh: bool
    partial: str
    old: NotRequired[OldFile]


class JoinOrder(TypedDict):
    verb: Literal["join"]
    root: RootName
    size: int
    fresh: bool


class CommitOrder(TypedDict):
    verb: Literal["commit"]
    root: RootName
    size: int
    mtime: int
    mode: int
    uses_old: NotRequired[bool]
    found: NotRequired[str]


class CommitAnswer(TypedDict):
    state: str


LaneOrder = (
    InspectPathOrder | ScanOrder | FollowOrder | BridgeOrder | SendOrder | PartOrder | BlocksOrder | RootOrder
    | FoundOrder | PlainOrder | ReceiveOrder | BeginOrder | JoinOrder | CommitOrder
)  # fmt: skip
