"""The history of calls: each tool call of each session, written beside the work, without secrets."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import secrets
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from ..config import paths
from ..core.errors import SandboxError
from ..core.lazy import lazy
from ..core.texts.shown import values_in_use
from .session import Session

if TYPE_CHECKING:
    from ..local.store.history import CallRow, HistoryRows

log = logging.getLogger(__name__)

# A call is written within this time; more that wait, as on a disk that hangs, are not kept.
SOON_S, MOST_WAITING = 0.25, 1_000
# How long a server that ends waits for the last ones.
LEAVE_S = 1.0
LONGEST_NAME, LONGEST_FOLDER = 80, 500
# The outcome of a call that has not ended.
RUNNING = "running"
# Bounds of how long calls took, for their counts.
BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0)
# A result's text before it is cut to its first line.
MOST_TEXT = 30_000


@dataclass(frozen=True, kw_only=True)
class MadeCall:
    """A call as it was made: with everything that must not be kept."""

    tool: str
    arguments: Mapping[str, Any] = field(repr=False)
    # Arguments that the tool has; of others nobody knows what they hold.
    takes: Collection[str] | None = None
    outcome: str = RUNNING
    begun: float = field(default_factory=time.time)
    seconds: float = 0.0
    number: int = field(default_factory=itertools.count(1).__next__)
    # Texts, and not the session itself, which would live until the call is written.
    session: str = ""
    folder: str = ""
    client: str = ""
    version: str = ""
    # Where it ran, if the answer says so.
    sandbox: str = ""
    exit_code: int | None = None
    text: str = field(default="", repr=False)


class Tally:
    """Counts of one process. `took` has for each tool how many calls kept which bound, and the last one none."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.took = defaultdict[str, list[int]](lambda: [0] * (len(BOUNDS_S) + 1))
        self.seconds = defaultdict[str, float](float)

    def add(self, tool: str, outcome: str, seconds: float) -> None:
        self.calls[tool, outcome] += 1
        self.took[tool][bisect_left(BOUNDS_S, seconds)] += 1
        self.seconds[tool] += seconds


class History:
    """Keeps calls. Writing never delays a call nor fails one: on a full disk only these rows are lost."""

    # Calls that run now, of every configuration of this process.
    running: ClassVar[dict[int, MadeCall]] = {}

    def __init__(self, days: float, configuration: str = "") -> None:
        self._days = days
        self._configuration = configuration
        self.tally = Tally()
        self._waiting: list[MadeCall] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._labels: WeakKeyDictionary[Session, str] = WeakKeyDictionary()
        self._is_failing = False
        # Where none are to be kept: whether those of an earlier time were dropped.
        self._is_forgotten = False

    def reconfigure(self, days: float) -> None:
        self._days = days

    @lazy
    def _rows(self) -> HistoryRows:
        from ..local.store.database import STATE_FILE, Database
        from ..local.store.history import HistoryRows

        return HistoryRows(Database(paths.state_folder() / STATE_FILE))

    def begin(self, call: MadeCall) -> None:
        """Show a call while it runs, as far as calls are kept."""
        if self._days > 0 and len(self.running) < MOST_WAITING:
            self.running[call.number] = call

    def note(self, call: MadeCall) -> None:
        """Keep a call. Only puts it into a queue: secrets are hidden, and rows written, in another thread."""
        self.running.pop(call.number, None)
        if len(self._waiting) >= MOST_WAITING or (self._days <= 0 and self._is_forgotten):
            return
        self._is_forgotten = self._days <= 0
        self._waiting.append(call)
        if self._timer is None and (self._writer is None or self._writer.done()):
            # In an empty context: that of the call would keep its session.
            later = asyncio.get_running_loop().call_later
            self._timer = contextvars.Context().run(later, SOON_S, self._start_writing)

    def _start_writing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and (self._writer is None or self._writer.done()):
            self._writer = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        while self._waiting:
            calls, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._store, calls)
                self._is_failing = False
            except SandboxError as problem:
                # Told once: a disk stays full for a while.
                if not self._is_failing:
                    log.warning("calls could not be written down: %s", problem)
                self._is_failing = True

    def _store(self, calls: Sequence[MadeCall]) -> None:
        if self._days <= 0:
            if self._rows.exists():
                self._rows.forget(self._configuration)
            return
        secrets = values_in_use()
        rows = [kept for call in calls if (kept := self._kept(call, secrets)) is not None]
        self._rows.write(rows, self._days, self._configuration)

    def _kept(self, call: MadeCall, secrets: Sequence[str]) -> CallRow | None:
        try:
            return row_of(call, secrets)
        except Exception:
            # Whatever a client sends: its other calls are kept all the same.
            log.exception("a call of %s could not be described", call.tool[:LONGEST_NAME])
            return None

    def label(self, session: Session) -> str:
        """Tells sessions apart; one that moves to another process keeps its own."""
        return session.name or self._labels.setdefault(session, secrets.token_hex(6))

    async def close(self) -> None:
        """Write what is left, within a moment."""
        self._start_writing()
        if self._writer is not None and not self._writer.done():
            await asyncio.wait((self._writer,), timeout=LEAVE_S)
        if History._rows.made(self):
            await asyncio.to_thread(self._rows.database.close)


def row_of(call: MadeCall, secrets: Sequence[str] = ()) -> CallRow:
    """A call as it is kept."""
    from ..core.texts.redact import first_line, shorten_safely, shown_arguments
    from ..local.store.history import CallRow

    def short(text: str, most: int = LONGEST_NAME) -> str:
        return " ".join(shorten_safely(text, secrets, most).split())

    return CallRow(
        tool=short(call.tool), outcome=call.outcome, begun=call.begun, seconds=call.seconds, client=short(call.client),
        version=short(call.version), session=call.session, folder=short(call.folder, LONGEST_FOLDER),
        sandbox=short(call.sandbox or named_in(call.arguments), LONGEST_FOLDER),
        arguments=shown_arguments(call.arguments, secrets, call.takes), exit_code=call.exit_code,
        told=first_line(call.text, secrets),
    )  # fmt: skip


def call_fields(row: CallRow) -> dict[str, Any]:
    """A call for programs; what is empty is left out, an exit code of 0 is not."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.begun))
    fields: dict[str, Any] = {"id": row.id, "time": when, "seconds": row.seconds, "client": row.client}
    fields |= {"version": row.version, "session": row.session, "folder": row.folder, "sandbox": row.sandbox}
    fields |= {"tool": row.tool, "arguments": dict(row.arguments), "outcome": row.outcome}
    fields |= {"exit_code": row.exit_code, "result": row.told}
    return {name: value for name, value in fields.items() if value not in ("", None, {})}


def named_in(arguments: Mapping[str, Any]) -> str:
    """The sandboxes that a call names."""
    for name in ("sandbox_name", "sandbox_id", "sandbox_names"):
        value = arguments.get(name)
        if value and isinstance(value, str):
            return value
        if value and isinstance(value, (list, tuple)):
            return ", ".join(map(str, value))
    return ""
