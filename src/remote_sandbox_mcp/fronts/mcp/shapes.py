"""The shapes of tool results, from which the output schemas are made.

They have only the fields that programs look for first; docs/tools.md has those of special cases. Each name here is part
of the tool list, and so costs tokens in every conversation.
"""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict


class SandboxShape(TypedDict):
    name: str
    kind: str
    host: NotRequired[str]
    port: NotRequired[int]
    user: NotRequired[str]
    is_active: bool
    connection_alive: bool
    connection_error: NotRequired[str]
    resources: NotRequired[dict[str, Any]]


class SandboxesShape(TypedDict):
    active_sandbox: str
    sandboxes: list[SandboxShape]
    problems: NotRequired[list[str]]


class SelectedShape(TypedDict):
    active_sandbox: str
    status: Literal["selected"]


class ActiveShape(TypedDict):
    active_sandbox: str
    kind: str
    connection_alive: bool
    # Why there is none. Of an error it is true.
    connection_error: NotRequired[Any]


class OutcomeShape(TypedDict, total=False):
    exit_code: int
    running: bool
    tmux_session: str
    timed_out: bool
    truncated: bool


class ExecShape(OutcomeShape, total=False):
    stdout: str
    stderr: str
    # One row for each of several sandboxes; the other fields are then left out.
    results: list[dict[str, Any]]


class PythonShape(TypedDict, total=False):
    value: str
    stdout: str
    traceback: str


class EntryShape(TypedDict):
    path: str
    is_dir: bool
    size: int
    mtime: int
    modified: str
    kind: NotRequired[str]


# What could not be done: path, reason.
ProblemShape = dict[str, Any]


class ListingShape(TypedDict):
    truncated: bool
    entries: list[EntryShape]
    next_cursor: NotRequired[str]
    problems: NotRequired[list[ProblemShape]]


class ContentShape(TypedDict):
    size: int
    truncated: bool
    # Absent for an image, which is a block of its own; its fields are mime_type, width, height and, if it is not shown,
    # problem.
    content: NotRequired[str]
    mime_type: NotRequired[str]
    encoding: NotRequired[str]
    invisible_characters: NotRequired[int]
    offset: NotRequired[int]
    next_offset: NotRequired[int]


class WrittenShape(TypedDict):
    size: int
    created: NotRequired[bool]
    replacements: NotRequired[int]


class MatchShape(TypedDict):
    path: str
    line: NotRequired[int]
    text: NotRequired[str]


class FoundShape(TypedDict):
    truncated: bool
    matches: list[MatchShape]
    next_cursor: NotRequired[str]
    problems: NotRequired[list[ProblemShape]]


class SyncShape(TypedDict, total=False):
    """The fields of every sync; results may also have figures, problems and a dry run's plan."""

    # inline, background or dry_run
    mode: str
    skipped_files: int
    problems: list[ProblemShape]
    task_id: int
    status: str
    result: dict[str, Any]


class PushShape(SyncShape, total=False):
    uploaded_files: int
    deleted_files: int


class PullShape(SyncShape, total=False):
    downloaded_files: int


class TransferShape(TypedDict, total=False):
    task_id: int
    status: str
    stale: bool
    progress: dict[str, Any]
    result: dict[str, Any]
    error: str
    log_tail: str
    tasks: list[dict[str, Any]]


class CancelledShape(TypedDict):
    task_id: int
    status: str
    error: NotRequired[str]


class StartedShape(TypedDict):
    status: Literal["started", "submitted", "pending"]
    tmux_session: str
    # Not of a job that has not started.
    log_file: NotRequired[str]
    sandbox: str
    watch_id: NotRequired[int]
    notes: NotRequired[list[str]]


class JobShape(TypedDict, total=False):
    """The fields of every job; results may also have signal, usage, checkpoint and more."""

    tmux_session: str
    running: bool
    pending: bool
    exit_code: int
    error: str
    log_tail: str
    log_cursor: int


class WaitedShape(JobShape, total=False):
    # ended, pattern, silence or timeout
    reason: str


class JobsShape(TypedDict):
    tasks: list[dict[str, Any]]


class SentShape(TypedDict):
    status: Literal["sent"]
    tmux_session: str
    log_tail: NotRequired[str]


class WatchShape(TypedDict):
    watch: dict[str, Any]
    notes: NotRequired[list[str]]


class WatchesShape(TypedDict):
    watches: list[dict[str, Any]]


class EventsShape(TypedDict):
    events: list[dict[str, Any]]
    cursor: NotRequired[int]


class ProgressShape(TypedDict):
    watch: dict[str, Any]
    log_tail: NotRequired[str]
    checkpoint: NotRequired[dict[str, Any]]
    live: NotRequired[dict[str, Any]]
    connection_error: NotRequired[Any]


class WatchdogShape(TypedDict, total=False):
    kind: str
    installed: bool
    running: bool
    pid: int
    last_heartbeat_ts: float
    last_heartbeat_at: str
    db_path: str
    active_watches: int
    lingering: bool
    notes: list[str]


class WorkspaceShape(TypedDict, total=False):
    """State of a workspace; results also have local_path, remote_path, moved, notes and more."""

    status: str
    conflicts: list[str]


class DisposableShape(TypedDict):
    sandbox_id: str
    status: str
    created_at: NotRequired[str]
    expires_at: NotRequired[str]


class CommandShape(TypedDict, total=False):
    """The fields of exec_bash; results may also have timed_out, running and more."""

    exit_code: int
    stdout: str
    stderr: str
    duration: float


class FilesShape(TypedDict):
    files: list[dict[str, Any]]


class SuiteShape(TypedDict, total=False):
    """Counts of a test suite; results may also have runner, command, slowest and more."""

    passed: int
    failed: int
    skipped: int
    errors: int
    duration: float
    failures: list[dict[str, Any]]
    coverage: float
    exit_code: int
    problem: str
    log: str


class DeployedShape(TypedDict):
    status: str
    url: NotRequired[str]
    health: NotRequired[dict[str, Any]]
    task: NotRequired[str]
    log: NotRequired[str]


class ForwardShape(TypedDict):
    status: str
    port: int
    url: NotRequired[str]


class SnapshotShape(TypedDict):
    snapshot: str
    sandbox_id: str


class EndpointShape(TypedDict):
    url: str
    port: int
