"""A transfer as values: what is wanted, how far it is, what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from .files import Problem

DEFAULT_EXCLUDES = (".git", "__pycache__", "node_modules", ".venv")


@dataclass(frozen=True)
class Place:
    """A path on a sandbox, or on this machine where no sandbox is named.

    One that is `free` was chosen by the person at this machine, or by us: the gate for agents does not judge it.
    """

    sandbox: str
    path: str
    free: bool = False

    def __str__(self) -> str:
        return f"{self.sandbox}:{self.path}" if self.sandbox else self.path


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be made equal to what. `excludes` are .gitignore lines; the last that fits decides."""

    source: Place
    target: Place
    excludes: tuple[str, ...] = ()
    default_excludes: bool = True
    respect_gitignore: bool = False
    checksum: bool = False
    delete_extras: bool = False
    # The caller has seen what delete_extras can do to the home folder, or with an empty source, and wants it.
    confirmed: bool = False

    @property
    def is_pull(self) -> bool:
        """From a sandbox to this computer."""
        return bool(self.source.sandbox) and not self.target.sandbox

    @property
    def crosses_machines(self) -> bool:
        """From a sandbox to this computer or to another sandbox."""
        return bool(self.source.sandbox) and self.source.sandbox != self.target.sandbox

    @property
    def rules(self) -> tuple[str, ...]:
        return (*(DEFAULT_EXCLUDES if self.default_excludes else ()), *self.excludes)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Order:
        ends = {end: Place(**fields[end]) for end in ("source", "target")}
        return cls(**{**fields, **ends, "excludes": tuple(fields["excludes"])})


@dataclass(frozen=True)
class Headway:
    """How far a transfer is. `phase` is scanning, sending, deleting, reconnecting or done."""

    phase: str
    files: int = 0
    files_total: int = 0
    bytes: int = 0
    bytes_total: int = 0
    rate: float = 0.0
    left_s: float | None = None
    path: str = ""


# Takes news of a transfer; never fails and never blocks.
Listener = Callable[[Headway], None]


def unheard(headway: Headway) -> None:
    """A Listener that does not listen."""


def all_of(*listeners: Listener) -> Listener:
    """One Listener for several."""

    def hear(headway: Headway) -> None:
        for listener in listeners:
            listener(headway)

    return hear


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a transfer did; entries that failed are problems. `bytes` are of files, `wire_bytes` went over lines."""

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
    # From machine to machine, not through this one.
    direct: bool = False

    def after(self, earlier: Outcome) -> Outcome:
        """This and what an earlier attempt at the same did before it was cut off."""
        return replace(
            self,
            made_dirs=self.made_dirs + earlier.made_dirs,
            sent_files=self.sent_files + earlier.sent_files,
            skipped_files=max(0, self.skipped_files - earlier.sent_files),
            bytes=self.bytes + earlier.bytes,
            wire_bytes=self.wire_bytes + earlier.wire_bytes,
            seconds=self.seconds + earlier.seconds,
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Outcome:
        problems = tuple(Problem(**problem) for problem in fields["problems"])
        return cls(**{**fields, "problems": problems, "excluded": tuple(fields["excluded"])})
