"""Following the log of a job, or the output of a command, piece by piece."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from ...app import App
from ...core.errors import ConnectError, LostContact, SandboxError, UnknownTask
from ...core.jobs.job import Checkpoint, JobSeen, JobState, JobUsage
from ...core.jobs.watch import Watch
from ...core.texts.shown import shown, values_in_use
from ...core.texts.text import without_broken_start
from ...services.jobs.values import JOB, Sight, Which
from ...services.tasks import LogSource
from ...views.job_results import usage_fields
from ...views.live.rows import job_row
from ...views.results import sentence
from .streams import HEARTBEAT, HEARTBEAT_S, event

if TYPE_CHECKING:
    from ...local.store.jobs import JobRecord

# What is sent first, the largest piece, and how far a reader may be behind the log's end before a part is skipped.
FIRST_BYTES, PIECE_BYTES, MOST_BEHIND = 64 << 10, 256 << 10, 8 << 20
# Pauses between two looks: after something new, and ever longer without.
SOON_S, LATER_S, PENDING_S = 0.2, 1.0, 5.0
# How often it is also asked what a job uses, and for its checkpoint.
CLOSELY_S = 5.0
# After a look that failed.
AGAIN_S = 3.0


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
        """Look for the task. Raises SandboxError where there is none, or its sandbox does not answer."""
        which = Which(session=self._job)
        name = self._app.fleet.member(self._name).name if self._name else await self._app.tasks.whereabouts(which)
        self._name = name or self._app.fleet.member().name
        first = await (await self._opened()).look(0, 0)
        if first.state is JobState.MISSING:
            raise UnknownTask(f"{self._name} knows no {self._job}: {first.reason}")
        self._cursor = max(0, first.log_size - FIRST_BYTES)

    async def _opened(self) -> LogSource:
        source, self._record, self._watch = await self._app.tasks.log(Which(session=self._job, sandbox=self._name))
        return source

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
                parts, seen = looking.result()
            except SandboxError as problem:
                # Its sandbox was deleted, or the job is known there no more.
                yield event("end", self._row | {"state": "gone", "trouble": sentence(problem)})
                return
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
            is_first = False if seen else is_first
            for part in parts:
                yield part
            if seen and seen.is_over and self._cursor >= seen.log_size:
                yield event("end", self._row)
                return
            sent_at = time.monotonic() if parts else sent_at
            pause = self._pause(seen, pause)
            await asyncio.sleep(pause)

    def _pause(self, seen: JobSeen | None, before: float) -> float:
        if seen is None:
            return AGAIN_S
        if self._cursor < seen.log_size:
            return 0.0
        if seen.state is JobState.PENDING:
            return PENDING_S
        return SOON_S if seen.log else min(LATER_S, max(SOON_S, 1.3 * before))

    async def _next(self, is_first: bool) -> tuple[list[bytes], JobSeen | None]:
        """Events for what is new, and the task; None where the sandbox does not answer."""
        try:
            source = self._source = self._source or await self._opened()
            is_close = time.monotonic() >= self._closely_at
            seen = await source.look(self._cursor, PIECE_BYTES, closely=is_close)
            if is_close:
                await self._note(seen)
        except SandboxError as problem:
            if not isinstance(problem, ConnectError | LostContact):
                raise
            self._source = None
            return self._state_event(self._row | {"trouble": sentence(problem)}), None
        said = self._text_event(seen, is_first)
        return [*said, *self._state_event(self._row_of(seen))], seen

    async def _note(self, seen: JobSeen) -> None:
        """Keep details that only a close look finds, until the next one is shown."""
        self._closely_at = time.monotonic() + CLOSELY_S
        self._usage, self._checkpoint = seen.usage, seen.checkpoint or self._checkpoint
        self._watch = await self._app.jobs.watch_of(self._record)

    def _text_event(self, seen: JobSeen, is_first: bool) -> list[bytes]:
        data, begin, skipped = seen.log, seen.cursor - len(seen.log), 0
        if begin != self._cursor:
            # The log was replaced by a shorter one.
            self._decoder.reset()
        if is_first and begin:
            data = without_broken_start(data)
            begin = seen.cursor - len(data)
        self._cursor = seen.cursor
        fields = {"text": shown(self._decoder.decode(data)), "from": begin, "to": seen.cursor}
        if seen.log_size - self._cursor > MOST_BEHIND:
            # It is written faster than it can be sent.
            skipped = seen.log_size - FIRST_BYTES - self._cursor
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

    def _row_of(self, seen: JobSeen) -> dict[str, Any]:
        kind = self._source.kind if self._source else JOB
        sight = Sight(self._name, seen, self._record, kind=kind)
        row = job_row(sight, self._watch, time.time(), self._row, values_in_use(), self._checkpoint)
        return row | ({"usage": usage_fields(self._usage)} if self._usage and seen.is_running else {})


async def _is_done(work: asyncio.Future[Any], until: float) -> bool:
    """Wait for work until then, by the monotonic clock, and leave it running."""
    await asyncio.wait((work,), timeout=max(0.0, until - time.monotonic()))
    return work.done()
