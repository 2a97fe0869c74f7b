"""A pattern in the log of a job in a container without Python: what is searched, how far, and for how long."""

from __future__ import annotations

import re

from ...core.errors import BadArgument
from ...core.job import JobLook, JobSeen
from ..outpost.far.place import to_bytes
from .patterns import search

BLOCK = 1 << 20


class LogSearch:
    """Goes through a job's log once, and again over a last line that may still grow."""

    def __init__(self, pattern: str, look: JobLook) -> None:
        """Raises BadArgument for a pattern that is none."""
        try:
            re.compile(to_bytes(pattern))
        except (re.error, OverflowError, RecursionError) as problem:
            raise BadArgument(f"the pattern {pattern[:200]!r} is not a regular expression: {problem}") from None
        self._pattern = pattern
        self._look = look
        # Logs are appended to: without a cursor the search begins with what this job has printed.
        self.cursor = "start" if look.cursor is None else str(max(0, look.cursor))
        # The size of a log of which all was searched; another one is news.
        self.size = ""

    @property
    def look(self) -> JobLook:
        """What has to be seen of the job for it, from `cursor` on."""
        look = self._look
        return JobLook(job_id=look.job_id, session=look.session, log_file=look.log_file, most_bytes=BLOCK)

    @property
    def is_behind(self) -> bool:
        return not self.size

    async def take(self, seen: JobSeen) -> str | None:
        """The first line that fits in what came of the log. Raises BadArgument for a pattern that takes for ever."""
        done, line = await self._search(seen.log) if seen.log else (0, None)
        self.cursor = str(seen.cursor - len(seen.log) + done)
        self.size = str(seen.log_size) if seen.cursor >= seen.log_size else ""
        return line

    async def _search(self, block: bytes) -> tuple[int, str | None]:
        printed = await search("first", self._pattern, block)
        done, _, line = printed.partition(b"\n")
        return int(done), line[1:].decode("utf-8", "replace").rstrip("\r") if line else None
