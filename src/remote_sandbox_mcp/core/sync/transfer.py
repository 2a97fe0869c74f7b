"""A transfer as values: what is wanted, how far it is, what came of it; and the Lane on which files move."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import FileProblem
from ..sandboxes.files import Problem

if TYPE_CHECKING:
    from ..orders import LaneOrder

# Names, and endings of names such as *.pyc.
DEFAULT_EXCLUDES = (".git", ".idea", ".vscode", "__pycache__", "*.pyc", "node_modules", ".venv")
# A workspace is the same project on both sides, with the settings of its editors.
WORKSPACE_EXCLUDES = (".git", "__pycache__", "node_modules", ".venv")
# Lines of an order that take the rest along.
IN_WORKSPACE = tuple(f"!{rule}" for rule in DEFAULT_EXCLUDES if rule not in WORKSPACE_EXCLUDES)
# Bound for an answer without data: problems of two hundred files, each with a long path.
SMALL_ANSWER = 4 << 20
# Bound for what a source sends for one request, where no better one is known: one frame.
MOST_PASSED = 64 << 20


@dataclass(frozen=True)
class Place:
    """A path on a sandbox, or on this machine where no sandbox is named.

    A `free` one was chosen by the person at this computer, or by us, so the gate for agents does not apply. `root` is
    the allowed place that it was in when it was ordered: a process that goes on with the order may know no client.
    """

    sandbox: str
    path: str
    free: bool = False
    root: str = ""

    def __str__(self) -> str:
        return f"{self.sandbox}:{self.path}" if self.sandbox else self.path


@dataclass(frozen=True)
class Wording:
    """Names of an order's choices where it was given, for sentences that speak of them."""

    delete: str
    with_delete: str
    confirm: str
    dry_run: str


TOOL_TERMS = Wording("delete_extras", "delete_extras=true", "set confirm_delete=true", "dry_run=true")
FLAG_TERMS = Wording("--delete", "--delete", "add --yes", "--dry-run")


@dataclass(frozen=True, kw_only=True)
class Order:
    """An ordered sync: source, target and rules. `excludes` are .gitignore lines; the last match decides."""

    source: Place
    target: Place
    excludes: tuple[str, ...] = ()
    default_excludes: bool = True
    respect_gitignore: bool = False
    checksum: bool = False
    delete_extras: bool = False
    # The caller confirmed delete_extras for a home folder or with an empty source.
    confirmed: bool = False
    # A person gave it with flags; an agent gives it with arguments of tools.
    by_command_line: bool = False
    # The id of the workspace whose large files it brings: what of them comes is decided when it runs.
    workspace: str = ""

    @property
    def terms(self) -> Wording:
        return FLAG_TERMS if self.by_command_line else TOOL_TERMS

    @property
    def is_pull(self) -> bool:
        """Whether it copies from a sandbox to this computer."""
        return bool(self.source.sandbox) and not self.target.sandbox

    @property
    def crosses_machines(self) -> bool:
        """Whether it copies from a sandbox to this computer or to another sandbox."""
        return bool(self.source.sandbox) and self.source.sandbox != self.target.sandbox

    @property
    def rules(self) -> tuple[str, ...]:
        return (*(DEFAULT_EXCLUDES if self.default_excludes else ()), *self.excludes)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Order:
        ends = {end: Place(**fields[end]) for end in ("source", "target")}
        return cls(**{**fields, **ends, "excludes": tuple(fields["excludes"])})


@dataclass(frozen=True)
class Headway:
    """Progress of a transfer. `phase` is scanning, sending, deleting, reconnecting or done."""

    phase: str
    files: int = 0
    files_total: int = 0
    bytes: int = 0
    bytes_total: int = 0
    rate: float = 0.0
    left_s: float | None = None
    path: str = ""


# Called with a transfer's progress; never raises and never blocks.
Listener = Callable[[Headway], None]


def unheard(headway: Headway) -> None:
    """A Listener that ignores everything."""


def all_of(*listeners: Listener) -> Listener:
    """One Listener for several."""

    def hear(headway: Headway) -> None:
        for listener in listeners:
            listener(headway)

    return hear


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a transfer; entries that failed are in `problems`. `bytes` counts files, `wire_bytes` the network."""

    synced_type: str
    made_dirs: int = 0
    sent_files: int = 0
    skipped_files: int = 0
    deleted_files: int = 0
    deleted_dirs: int = 0
    bytes: int = 0
    wire_bytes: int = 0
    seconds: float = 0.0
    problems: tuple[Problem, ...] = ()
    problem_count: int = 0
    # The default excludes that left something out.
    excluded: tuple[str, ...] = ()
    # From machine to machine, without passing through this computer.
    direct: bool = False
    # Local files and folders with names of secrets, the first ones, and how many there are: an agent's order does not
    # send them, a person's has sent them.
    secrets: tuple[str, ...] = ()
    secret_count: int = 0

    def after(self, earlier: Outcome) -> Outcome:
        """The sum of this and of an earlier attempt that was cut off."""
        added = ("made_dirs", "sent_files", "bytes", "wire_bytes", "seconds")
        both: dict[str, Any] = {name: getattr(self, name) + getattr(earlier, name) for name in added}
        return replace(
            self,
            **both,
            skipped_files=max(0, self.skipped_files - earlier.sent_files),
            secrets=tuple(dict.fromkeys((*earlier.secrets, *self.secrets))),
            secret_count=max(earlier.secret_count, self.secret_count),
        )

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Outcome:
        problems = tuple(Problem(**problem) for problem in fields["problems"])
        names = {name: tuple(fields.get(name, ())) for name in ("excluded", "secrets")}
        return cls(**{**fields, **names, "problems": problems})


# Requests are numbered across all lanes, because a source's frames are handed to a target as they are.
numbers = itertools.count(1)
# How a request names its folder: by a path; or by a path without links plus device and inode of everything along it,
# which must be unchanged.
RootName = str | list[Any]


@dataclass(frozen=True)
class Reply:
    """The answer to a request: its bytes, if any, and its final fields."""

    out: bytes = b""
    end: dict[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """Raises FileProblem, because another machine may answer anything."""
        value = self.end.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise FileProblem(f"a machine's answer cannot be understood: {name} is not a number", "hostile")
        return value

    def text(self, name: str) -> str:
        """Raises FileProblem."""
        value = self.end.get(name)
        if not isinstance(value, str):
            raise FileProblem(f"a machine's answer cannot be understood: {name} is not a text", "hostile")
        return value

    def problems(self) -> list[Problem]:
        """Problems with single entries. Raises FileProblem."""
        try:
            return [Problem(str(path), str(reason)) for path, reason in self.end.get("problems", ())]
        except (TypeError, ValueError):
            raise FileProblem("a machine's answer cannot be understood: its problems are no list", "hostile") from None


class Lane(Protocol):
    """Takes any number of requests at once and carries them out in order.

    What is asked for and answered is in core/orders.py; the sides that speak it are
    far/lane/lane.py and, for machines without Python, backends/ssh/sftp_lane.py.
    """

    @property
    def name(self) -> str:
        """Name of the machine, for messages."""

    @property
    def is_alive(self) -> bool: ...

    @property
    def squeezers(self) -> tuple[str, ...]:
        """Compression methods that it supports, best first."""

    @property
    def moved(self) -> int:
        """Bytes sent and received so far."""

    @property
    def knows_pieces(self) -> bool:
        """Whether it can compare files without moving them (mark, index, index_old, blocks, partial_blocks)."""

    @property
    def follows(self) -> bool:
        """Whether it remembers listings, and answers what differs from one (follow)."""

    def begin(
        self,
        order: LaneOrder,
        raw: bytes = b"",
        *,
        number: int = 0,
        to: Lane | None = None,
        heard: Callable[[bytes], None] | None = None,
        room: int = SMALL_ANSWER,
        passes: int = MOST_PASSED,
    ) -> Awaitable[Reply]:
        """Send a request; the answer may be awaited, or not. It takes no more than `room` bytes.

        Raises FileProblem (with the far side's reason) or Unreachable when it is awaited, never before.
        Frames that a source sends for `number` are handed to the lane `to`, at most `passes` bytes of them; bytes
        of the answer go to `heard` if given, which may raise FileProblem to stop.
        """

    def pass_on(self, kind: int, number: int, body: bytes) -> None:
        """Hand over a frame for a request that receives data, or that waits for something."""

    async def room(self) -> None:
        """Wait until most of what was handed over has been sent."""

    async def close(self) -> None:
        """End it at once, with whatever it is doing."""
