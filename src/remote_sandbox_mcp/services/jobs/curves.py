"""Curves of jobs: logs are read once, piece by piece, and kept for the next look; and looks with checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ...core.errors import SandboxError
from ...core.jobs.curves import Curves, JobMetrics, left_of, parsed, progress_of
from ...core.jobs.job import Checkpoint, JobQuery, JobSeen
from ...core.sandboxes.sandbox import Sandbox
from ...core.texts.text import harmless
from ...local.waiting import within

# Jobs whose curves are kept; what is read of a log for a call, and for a picture of all of it; and at once.
MOST_KEPT, CALL_BYTES, WHOLE_BYTES, PIECE_BYTES = 64, 256 << 10, 8 << 20, 512 << 10
# The end of a log, which says whether there is anything to read.
END_BYTES = 16 << 10
# A call waits no longer for the numbers.
CALL_S = 5.0
# How long all checkpoints of a machine may take; after that its jobs are looked at without them.
CHECKPOINTS_S = 20.0
TOO_SLOW = Checkpoint(problem="it took too long, as may another of the same machine")


class ReadLog:
    """The curves of one job, and how far its log was read for them."""

    def __init__(self) -> None:
        self.curves = Curves()
        self.begun = self.cursor = self.most = 0
        self.lock = asyncio.Lock()
        self._rest = b""

    def begin(self, size: int, most: int) -> None:
        """Read the last part of a log of this size, and what comes."""
        self.curves, self._rest, self.most = Curves(), b"", most
        self.begun = self.cursor = max(0, size - most)

    def feed(self, data: bytes) -> None:
        lines, end, rest = (self._rest + data).rpartition(b"\n")
        # A progress bar goes on in one line for hours.
        if len(rest) > PIECE_BYTES:
            lines, rest = lines + end + rest, b""
        self.cursor += len(data)
        self._rest = rest
        self.curves.feed(lines.decode("utf-8", "replace"))

    def metrics(self, seen: JobSeen) -> JobMetrics:
        self.curves.feed(self._rest.rpartition(b"\r")[0][-4096:].decode("utf-8", "replace"))
        left_s = None
        if seen.checkpoint and not seen.checkpoint.problem:
            text = harmless(seen.checkpoint.text)
            value = parsed(text)
            self.curves.feed_checkpoint(value)
            progress = progress_of(value, text)
            left_s = left_of(progress.share, seen.seconds) if progress else None
        found = self.curves.metrics(seen.seconds, seen.silent_s, is_whole=not self.begun)
        return replace(found, left_s=(left_s or found.left_s) if seen.is_running else None)


class CurveBook:
    """Curves of the jobs that somebody asked about lately."""

    def __init__(self) -> None:
        self._logs: OrderedDict[Sequence[str], ReadLog] = OrderedDict()

    async def with_metrics(self, sandbox: Sandbox, query: JobQuery, seen: JobSeen) -> JobSeen:
        """The job with its numbers in short, if the end of its log has any."""
        end = Curves()
        end.feed(seen.log[-END_BYTES:].decode("utf-8", "replace"))
        if seen.recalled or not (end.curves or end.share or seen.checkpoint):
            return seen
        with contextlib.suppress(SandboxError, asyncio.TimeoutError):
            log = await within(self.read(sandbox, query, seen), CALL_S)
            return replace(seen, metrics=log.metrics(seen))
        return seen

    async def read(self, sandbox: Sandbox, query: JobQuery, seen: JobSeen, most: int = CALL_BYTES) -> ReadLog:
        """Read what is new in its log, or at first its last part. Raises SandboxError."""
        log = self._log(sandbox, seen)
        async with log.lock:
            if seen.log_size < log.cursor or (log.begun and most > log.most) or not log.cursor:
                log.begin(seen.log_size, most)
            plain = replace(query, lines=0, usage=False, checkpoint_path="", checkpoint_command="")
            while log.cursor < seen.log_size:
                begun = seen.cursor - len(seen.log)
                data = seen.log[log.cursor - begun :] if begun <= log.cursor < seen.cursor else b""
                if not data:
                    size = min(PIECE_BYTES, seen.log_size - log.cursor)
                    (part,) = await sandbox.jobs.inspect([replace(plain, cursor=log.cursor, most_bytes=size)])
                    data = part.log
                if not data:
                    break
                # Another thread, so that nobody else waits meanwhile.
                await asyncio.to_thread(log.feed, data)
        return log

    def _log(self, sandbox: Sandbox, seen: JobSeen) -> ReadLog:
        key = (sandbox.description.name, seen.job_id, seen.session, seen.log_file)
        log = self._logs.setdefault(key, ReadLog())
        self._logs.move_to_end(key)
        while len(self._logs) > MOST_KEPT:
            self._logs.popitem(last=False)
        return log


async def look_at(
    ask: Callable[[Sequence[JobQuery]], Awaitable[list[JobSeen]]], queries: Sequence[JobQuery]
) -> list[JobSeen]:
    """The jobs with their checkpoints; where these take too long, without them."""
    plain = [replace(query, checkpoint_path="", checkpoint_command="") for query in queries]
    if queries == plain:
        return await ask(queries)
    try:
        return await within(ask(queries), CHECKPOINTS_S)
    except asyncio.TimeoutError:
        # Whether the jobs live can be determined without it.
        found = await ask(plain)
    pairs = zip(queries, plain, found, strict=True)
    return [seen if query == bare else replace(seen, checkpoint=TOO_SLOW) for query, bare, seen in pairs]
