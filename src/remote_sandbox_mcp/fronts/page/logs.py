"""The log of a job, or the output of a command: followed piece by piece, and read, searched and sent as a whole."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...app import App
from ...core.errors import ConnectError, LostContact, SandboxError, UnknownTask
from ...core.jobs.job import Checkpoint, JobSeen, JobState, JobUsage
from ...core.jobs.log import exit_line_size, from_line_start, lines_with, to_line_end, without_exit_line
from ...core.jobs.watch import Watch
from ...core.task import Run
from ...core.texts.shown import shown, values_in_use
from ...services.jobs.values import JOB, JobSnapshot, Which
from ...services.tasks import LogSource
from ...views.job_results import usage_fields
from ...views.live.rows import job_row
from ...views.results import sentence
from .streams import HEARTBEAT, HEARTBEAT_S, event

if TYPE_CHECKING:
    from ...local.store.jobs import JobRecord

# What is sent first, the largest piece, and how far a reader may be behind the log's end before a part is skipped.
FIRST_BYTES, PIECE_BYTES, MOST_BEHIND = 64 << 10, 256 << 10, 8 << 20
# What is read of an earlier part at once; what one request searches, and the most matches that it returns.
PART_BYTES, SEARCHED_BYTES, MOST_MATCHES = 512 << 10, 4 << 20, 5000
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
        first = await (await self._opened()).read(0, 0)
        if first.state is JobState.MISSING:
            raise UnknownTask(f"{self._name} knows no {self._job}: {first.reason}")
        self._cursor = max(0, first.log_size - FIRST_BYTES)

    # What was written before

    async def part(self, begin: int, end: int) -> dict[str, Any]:
        """Read whole lines between two bytes of the log; returns where they really begin and end, and the log's size.

        Raises SandboxError.
        """
        source = await self._opened()
        # With the byte before: where that ends a line, the next one is whole.
        first = max(0, begin - 1)
        seen = await source.read(first, max(0, min(end - first, PART_BYTES)))
        data, to = seen.log, seen.cursor
        start = to - len(data)
        if start:
            data = from_line_start(data)
        kept = to_line_end(data) if to < seen.log_size else self._for_people(data, seen)
        begun = to - len(data)
        reached = to if to >= seen.log_size else begun + len(kept)
        return {"text": _text(kept), "from": begun, "to": reached, "size": seen.log_size}

    async def search(self, words: str, at: int) -> dict[str, Any]:
        """Beginnings of lines with these words from there on, and where to go on; `next` is None at the log's end.

        Raises SandboxError.
        """
        seen = await (await self._opened()).read(at, SEARCHED_BYTES)
        is_all = seen.cursor >= seen.log_size or not seen.log
        data = self._for_people(seen.log, seen) if is_all else to_line_end(seen.log)
        begin = seen.cursor - len(seen.log)
        # One more than is returned: the next request begins with it.
        found = await asyncio.to_thread(lambda: [*islice(lines_with(data, words, shown), MOST_MATCHES + 1)])
        lines, to = [begin + line for line in found], None if is_all else begin + len(data)
        return {
            "found": lines[:MOST_MATCHES],
            "next": lines[MOST_MATCHES] if len(lines) > MOST_MATCHES else to,
            "size": seen.log_size,
        }

    async def line(self, number: int, at: int) -> dict[str, Any]:
        """Find where a line begins, the first one being 1; or, without a number, which line a byte is in.

        Raises SandboxError.
        """
        source, count, to = await self._opened(), 1, 0
        while True:
            seen = await source.read(to, SEARCHED_BYTES)
            data = seen.log if number else seen.log[: max(0, at - to)]
            ends = data.count(b"\n")
            if number and count + ends >= number:
                rest = data.split(b"\n", number - count)[-1]
                return {"line": number, "at": to + len(data) - len(rest)}
            count, to = count + ends, to + len(data)
            if not data or to >= seen.log_size or (at <= to and not number):
                return {"line": count, "at": to}

    async def whole(self) -> AsyncGenerator[bytes, None]:
        """All of the log as it is now, as a file for people."""
        source, at = await self._opened(), 0
        while True:
            try:
                seen = await source.read(at, PIECE_BYTES)
            except SandboxError as problem:
                yield f"\n[the log could not be read further: {sentence(problem)}]\n".encode()
                return
            is_last = seen.cursor >= seen.log_size or not seen.log
            # A secret at the border of two pieces is hidden, too.
            data = self._for_people(seen.log, seen) if is_last else to_line_end(seen.log)
            yield _text(data).encode()
            if is_last:
                return
            at = seen.cursor - len(seen.log) + len(data)

    def _for_people(self, data: bytes, seen: JobSeen) -> bytes:
        """The end of a log without the line that its keeper has added."""
        return without_exit_line(data, seen.exit_code) if seen.is_over and self._is_job else data

    @property
    def _is_job(self) -> bool:
        return not isinstance(Which(session=self._job).handle, Run)

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
        if self._cursor < seen.log_size and not self._holds_back(seen):
            return 0.0
        if seen.state is JobState.PENDING:
            return PENDING_S
        return SOON_S if seen.log else min(LATER_S, max(SOON_S, 1.3 * before))

    async def _next(self, is_first: bool) -> tuple[list[bytes], JobSeen | None]:
        """Events for what is new, and the task; None where the sandbox does not answer."""
        try:
            source = self._source = self._source or await self._opened()
            is_close = time.monotonic() >= self._closely_at
            seen = await source.read(self._cursor, PIECE_BYTES, closely=is_close)
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

    def _holds_back(self, seen: JobSeen) -> int:
        """Bytes at the end of a running job's log that may be its keeper's last line: they are read once more."""
        is_end = self._is_job and not seen.is_over and seen.cursor >= seen.log_size
        return exit_line_size(seen.log) if is_end else 0

    def _text_event(self, seen: JobSeen, is_first: bool) -> list[bytes]:
        data, begin, skipped = seen.log, seen.cursor - len(seen.log), 0
        if begin != self._cursor:
            # The log was replaced by a shorter one.
            self._decoder.reset()
        if is_first and begin:
            data = from_line_start(data)
            begin = seen.cursor - len(data)
        self._cursor = to = seen.cursor - self._holds_back(seen)
        data = data[: len(data) - (seen.cursor - to)]
        if seen.cursor >= seen.log_size:
            data = self._for_people(data, seen)
        fields = {"text": shown(self._decoder.decode(data)), "from": begin, "to": to}
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
        snapshot = JobSnapshot(self._name, seen, self._record, kind=kind)
        row = job_row(snapshot, self._watch, time.time(), self._row, values_in_use(), self._checkpoint)
        return row | ({"usage": usage_fields(self._usage)} if self._usage and seen.is_running else {})


def _text(data: bytes) -> str:
    return shown(data.decode("utf-8", "replace"))


async def _is_done(work: asyncio.Future[Any], until: float) -> bool:
    """Wait for work until then, by the monotonic clock, and leave it running."""
    await asyncio.wait((work,), timeout=max(0.0, until - time.monotonic()))
    return work.done()
