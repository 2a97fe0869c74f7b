"""Following the log of a job, or the output of a command, piece by piece."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..app import App
from ..core.command import RUN_ID, Completed, Missing, Running
from ..core.errors import BadArgument, ConnectError, LostContact, SandboxError
from ..core.files import Span
from ..core.job import Checkpoint, JobLook, JobSeen, JobState, JobUsage
from ..core.sandbox import Sandbox
from ..core.shown import shown, values_in_use
from ..core.text import without_broken_start
from ..core.watch import Watch
from ..jobs.commands import state_of
from ..jobs.values import COMMAND, Sight, Which
from ..live.rows import job_row
from ..live.watcher import look_of
from ..mcp_server.results import sentence
from ..mcp_server.tools.job_results import usage_fields
from .streams import HEARTBEAT, HEARTBEAT_S, event

if TYPE_CHECKING:
    from ..store.jobs import JobRecord

# What is sent first, the largest piece, and how far a reader may be behind the log's end before a part is skipped.
FIRST_BYTES, PIECE_BYTES, MOST_BEHIND = 64 << 10, 256 << 10, 8 << 20
# Pauses between two looks: after something new, and ever longer without.
SOON_S, LATER_S, PENDING_S = 0.2, 1.0, 5.0
# How often it is also asked what a job uses, and for its checkpoint.
CLOSELY_S = 5.0
# After a look that failed.
AGAIN_S = 3.0


@dataclass(frozen=True)
class LogGlance:
    """A job as it is seen, with a piece of its log that ends at `to`; the log has `size` bytes."""

    seen: JobSeen
    data: bytes = b""
    to: int = 0
    size: int = 0

    @property
    def begin(self) -> int:
        return self.to - len(self.data)


class LogSource(Protocol):
    """Something with a log."""

    kind: str

    async def look(self, cursor: int, most: int, *, closely: bool = False) -> LogGlance:
        """Its state, and its log from there on; `closely`: also what it uses, and its checkpoint.

        Raises SandboxError.
        """
        ...


class JobLogSource:
    """The log of a job."""

    kind = "job"

    def __init__(self, sandbox: Sandbox, look: JobLook, watch: Watch | None) -> None:
        self._sandbox = sandbox
        self._look = look
        self._watch = watch

    async def look(self, cursor: int, most: int, *, closely: bool = False) -> LogGlance:
        look = replace(self._look, lines=0, cursor=cursor, most_bytes=most, usage=closely)
        if closely and self._watch:
            asked = look_of(self._watch)
            path, command = asked.checkpoint_path, asked.checkpoint_command
            look = replace(look, checkpoint_path=path, checkpoint_command=command, cwd=asked.cwd)
        (seen,) = await self._sandbox.jobs.look([look])
        return LogGlance(seen, seen.log, seen.cursor, seen.log_size)


class CommandOutput:
    """What a command of exec_bash that outlasted its call prints: standard output while it runs, then its errors."""

    kind = COMMAND

    def __init__(self, sandbox: Sandbox, run_id: str) -> None:
        self._sandbox = sandbox
        self._run_id = run_id

    async def look(self, cursor: int, most: int, *, closely: bool = False) -> LogGlance:
        found = await self._sandbox.observe(self._run_id, keep=FIRST_BYTES)
        seen = self._as_job(found)
        out, said = found.stdout, b""
        if most and out.total > cursor:
            said = await self._read(out.file, cursor, min(most, out.total - cursor))
        is_read = cursor + len(said) >= out.total
        if seen.is_over and most and is_read and (errors := found.stderr.head + found.stderr.tail):
            # Counted as a part of the log, so that it is sent once.
            extra = b"\nstderr:\n" + errors
            start = max(0, cursor - out.total)
            said = said + extra[start:] if cursor <= out.total else extra[start:]
            return LogGlance(seen, said, cursor + len(said), out.total + len(extra))
        return LogGlance(seen, said, cursor + len(said), out.total)

    async def _read(self, file: str, cursor: int, most: int) -> bytes:
        return (await self._sandbox.read(file, Span(offset=cursor, limit=most))).data if file else b""

    def _as_job(self, found: Running | Completed | Missing) -> JobSeen:
        code = found.exit_code if isinstance(found, Completed) else None
        reason = found.reason if isinstance(found, Missing) else ""
        return JobSeen(state=state_of(found), job_id=self._run_id, session=self._run_id, exit_code=code, reason=reason)


class LogStream:
    """Sends a log from its last part on until its job is over."""

    def __init__(self, app: App, sandbox: str, job: str) -> None:
        self._app = app
        self._name = sandbox
        self._job = job
        self._cursor = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._row: dict[str, Any] = {}
        self._source: LogSource | None = None
        self._record: JobRecord | None = None
        self._watch: Watch | None = None
        self._usage: JobUsage | None = None
        self._checkpoint: Checkpoint | None = None
        self._closely_at = 0.0

    async def find(self) -> None:
        """Look for the job. Raises SandboxError where there is none, or its sandbox does not answer."""
        name = self._app.fleet.member(self._name).name if self._name else await self._app.whereabouts(self._job)
        self._name = name or self._app.fleet.member().name
        first = await (await self._opened()).look(0, 0)
        if first.seen.state is JobState.MISSING:
            raise BadArgument(f"{self._name} knows no {self._job}: {first.seen.reason}")
        self._cursor = max(0, first.size - FIRST_BYTES)

    async def _opened(self) -> LogSource:
        if RUN_ID.match(self._job):
            sandbox = await self._app.fleet.get(self._name)
            return CommandOutput(getattr(sandbox, "unnoticed", sandbox), self._job)
        sandbox, look, self._record = await self._app.jobs.find(Which(session=self._job, sandbox=self._name))
        # To look at a log does not make a disposable sandbox live longer.
        self._watch = await self._watch_now()
        return JobLogSource(getattr(sandbox, "unnoticed", sandbox), look, self._watch)

    async def _watch_now(self) -> Watch | None:
        with suppress(SandboxError):
            return await self._app.jobs.known.watch(self._record.watch_id) if self._record else None
        return None

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Events `text`, `state` and, once, `end`."""
        pause, sent_at, is_first = 0.0, time.monotonic(), True
        while True:
            looking = asyncio.ensure_future(self._next(is_first))
            try:
                # A machine that is cut off may take long to be known as such.
                while not await _is_done(looking, sent_at + HEARTBEAT_S):
                    sent_at = time.monotonic()
                    yield HEARTBEAT
                parts, glance = looking.result()
            except SandboxError as problem:
                # Its sandbox was deleted, or the job is known there no more.
                yield event("end", self._row | {"state": "gone", "trouble": sentence(problem)})
                return
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
            is_first = False if glance else is_first
            for part in parts:
                yield part
            if glance and glance.seen.is_over and self._cursor >= glance.size:
                yield event("end", self._row)
                return
            sent_at = time.monotonic() if parts else sent_at
            pause = self._pause(glance, pause)
            await asyncio.sleep(pause)

    def _pause(self, glance: LogGlance | None, before: float) -> float:
        if glance is None:
            return AGAIN_S
        if self._cursor < glance.size:
            return 0.0
        if glance.seen.state is JobState.PENDING:
            return PENDING_S
        return SOON_S if glance.data else min(LATER_S, max(SOON_S, 1.3 * before))

    async def _next(self, is_first: bool) -> tuple[list[bytes], LogGlance | None]:
        """Events for what is new; without a glance, the sandbox does not answer."""
        try:
            source = self._source = self._source or await self._opened()
            is_close = time.monotonic() >= self._closely_at
            glance = await source.look(self._cursor, PIECE_BYTES, closely=is_close)
            if is_close:
                await self._note(glance.seen)
        except SandboxError as problem:
            if not isinstance(problem, ConnectError | LostContact):
                raise
            self._source = None
            return self._state_event(self._row | {"trouble": sentence(problem)}), None
        said = self._text_event(glance, is_first)
        return [*said, *self._state_event(self._row_of(glance))], glance

    async def _note(self, seen: JobSeen) -> None:
        """What only a close look tells; until the next one that is shown."""
        self._closely_at = time.monotonic() + CLOSELY_S
        self._usage, self._checkpoint = seen.usage, seen.checkpoint or self._checkpoint
        self._watch = await self._watch_now()

    def _text_event(self, glance: LogGlance, is_first: bool) -> list[bytes]:
        data, begin, skipped = glance.data, glance.begin, 0
        if begin != self._cursor:
            # The log was replaced by a shorter one.
            self._decoder.reset()
        if is_first and begin:
            data = without_broken_start(data)
            begin = glance.to - len(data)
        self._cursor = glance.to
        fields = {"text": shown(self._decoder.decode(data)), "from": begin, "to": glance.to}
        if glance.size - self._cursor > MOST_BEHIND:
            # It is written faster than it can be sent.
            skipped = glance.size - FIRST_BYTES - self._cursor
            self._cursor += skipped
            self._decoder.reset()
        found = [event("text", fields)] if data else []
        if skipped:
            found.append(event("text", {"text": "", "from": self._cursor, "to": self._cursor, "skipped": skipped}))
        return found

    def _state_event(self, row: dict[str, Any]) -> list[bytes]:
        if row == self._row:
            return []
        self._row = row
        return [event("state", row)]

    def _row_of(self, glance: LogGlance) -> dict[str, Any]:
        kind = self._source.kind if self._source else "job"
        sight = Sight(self._name, glance.seen, self._record, kind=kind)
        row = job_row(sight, self._watch, time.time(), self._row, values_in_use(), self._checkpoint)
        return row | ({"usage": usage_fields(self._usage)} if self._usage and glance.seen.is_running else {})


async def _is_done(work: asyncio.Future[Any], until: float) -> bool:
    """Wait for work until then, by the monotonic clock, and leave it running."""
    await asyncio.wait((work,), timeout=max(0.0, until - time.monotonic()))
    return work.done()
