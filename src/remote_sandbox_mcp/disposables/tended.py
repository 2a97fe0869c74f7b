"""A sandbox whose use is noted: it lives as long as something is done in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ..core.command import Command, Completed, Missing, Observation, Running
from ..core.errors import LostContact
from ..core.files import FileSlice, Found, Listing, Search, Span, Written
from ..core.job import JobLook, JobOrder, Jobs, JobSeen, JobStarted, JobWait, JobWaited
from ..core.lane import Lane
from ..core.port import Stream
from ..core.progress import Progress, silent
from ..core.sandbox import Description, Sandbox
from .life import Life

Noted = TypeVar("Noted", Completed | Running, Completed | Running | Missing)


class Tended:
    """Keeps the Sandbox protocol around another one. Opening and closing it is no use."""

    def __init__(self, sandbox: Sandbox, life: Life) -> None:
        self._sandbox = sandbox
        self._life = life

    @property
    def description(self) -> Description:
        # One that was kept ready was made before it had a name.
        return replace(self._sandbox.description, name=self._life.disposable.title)

    @property
    def is_open(self) -> bool:
        return self._sandbox.is_open

    @property
    def jobs(self) -> Jobs:
        return TendedJobs(self._sandbox, self._life)

    async def open(self) -> None:
        async with self._life.telling():
            await self._sandbox.open()

    async def close(self) -> None:
        await self._sandbox.close()

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        async with self._life.use(command.timeout_s):
            self._life.goes_on(command.run_id, command.timeout_s)
            try:
                return self._noted(await self._sandbox.run(command, patience_s=patience_s, progress=progress))
            except LostContact:
                # It may well run.
                raise
            except BaseException:
                self._life.has_ended(command.run_id)
                raise

    async def observe(self, run_id: str, *, keep: int = 40_000) -> Observation:
        async with self._life.use():
            return self._noted(await self._sandbox.observe(run_id, keep=keep))

    async def stop(self, run_id: str, *, keep: int = 40_000) -> Observation:
        async with self._life.use():
            return self._noted(await self._sandbox.stop(run_id, keep=keep))

    def forget(self, run_id: str) -> None:
        self._sandbox.forget(run_id)

    async def read(self, path: str, span: Span) -> FileSlice:
        async with self._life.use():
            return await self._sandbox.read(path, span)

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        async with self._life.use():
            return await self._sandbox.write(path, data, expected=expected)

    async def list(self, path: str, *, recursive: bool = False, limit: int = 200) -> Listing:
        async with self._life.use():
            return await self._sandbox.list(path, recursive=recursive, limit=limit)

    async def search(self, search: Search) -> Found:
        async with self._life.use():
            return await self._sandbox.search(search)

    async def open_lane(self) -> Lane:
        async with self._life.use():
            return self._life.carry(await self._sandbox.open_lane())

    async def connect(self, port: int) -> Stream:
        async with self._life.use():
            return TendedStream(await self._sandbox.connect(port), self._life)

    def _noted(self, seen: Noted) -> Noted:
        if not isinstance(seen, Running):
            self._life.has_ended(seen.run_id)
        return seen


class TendedStream:
    """Keeps the Stream protocol around another one, which is use until it is closed."""

    def __init__(self, stream: Stream, life: Life) -> None:
        self._stream = stream
        self._life = life
        self.read = stream.read
        self.write = stream.write
        self.drain = stream.drain
        self.write_eof = stream.write_eof
        life.hold(self)

    def close(self) -> None:
        self._life.release(self)
        self._stream.close()


class TendedJobs:
    """Keeps the Jobs protocol around another sandbox's."""

    def __init__(self, sandbox: Sandbox, life: Life) -> None:
        self._sandbox = sandbox
        self._life = life

    async def start(self, order: JobOrder) -> JobStarted:
        async with self._life.use():
            return await self._sandbox.jobs.start(order)

    async def look(self, looks: Sequence[JobLook]) -> list[JobSeen]:
        async with self._life.use():
            return await self._sandbox.jobs.look(looks)

    async def wait(self, look: JobLook, wait: JobWait) -> JobWaited:
        async with self._life.use(wait.seconds):
            return await self._sandbox.jobs.wait(look, wait)

    async def stop(self, look: JobLook, grace_s: float = 10.0) -> JobSeen:
        async with self._life.use(grace_s):
            return await self._sandbox.jobs.stop(look, grace_s)

    async def list(self, limit: int = 100) -> list[JobSeen]:
        async with self._life.use():
            return await self._sandbox.jobs.list(limit)

    async def send(self, look: JobLook, *, text: str = "", keys: Sequence[str] = ()) -> None:
        async with self._life.use():
            await self._sandbox.jobs.send(look, text=text, keys=keys)
