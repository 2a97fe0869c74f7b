"""A disposable sandbox in use by this process: use renews its expiry, and its end is noticed."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from ..core.command import Command, Completed, Missing, Observation, Running
from ..core.disposable import Disposable, Provider, Traits
from ..core.errors import ConnectError, LostContact, SandboxError, UnknownSandbox, Unreachable, Unsupported
from ..core.files import FileSlice, Found, Listing, Search, Span, Written
from ..core.job import JobLook, JobOrder, Jobs, JobSeen, JobStarted, JobWait, JobWaited
from ..core.port import Stream
from ..core.progress import Progress, silent
from ..core.sandbox import Capabilities, Description, Sandbox
from ..core.transfer import Lane
from ..store.disposables import ENDED, EXPIRED, GONE, OVER, PAUSED, DisposableRows, Kept
from ..waiting import within
from .policy import farewell, is_about_to_expire, why_ended

# How long a provider may take to say how one is, and to renew it.
LOOK_S = 5.0
RENEW_S = 15.0
JOBS_S = 10.0
# A command's own timeout is followed by two seconds of grace, and by its result.
MARGIN_S = 10.0
# The shortest life with which anything is begun.
LEAST_S = 1.0
TOUCH_S = 15.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """What a life needs of the house: its clock, its rows, a place for work that nobody waits for."""

    now: Callable[[], float]
    rows: DisposableRows
    spawn: Callable[[Awaitable[object]], None]
    # The row is written already: take it out of the fleet.
    bury: Callable[[str], None]


class Life:
    """Counts what is done in a sandbox and lets it live as long as anything is."""

    def __init__(self, kept: Kept, provider: Callable[[], Provider], around: Surroundings, traits: Traits) -> None:
        self.kept = kept
        # Of its provider.
        self.traits = traits
        # Set while it is being ended here, to what will be said of it.
        self.ending = ""
        self.raw: Sandbox | None = None
        self._provider = provider
        self._around = around
        self._calls = 0
        self._runs: dict[str, float] = {}
        self._lanes: list[Lane] = []
        # Weak: one that nobody has any more is no use, closed or not.
        self._streams: weakref.WeakSet[object] = weakref.WeakSet()
        self._touched = kept.idle_since
        self._renewing = asyncio.Lock()
        self._opening = asyncio.Lock()

    @property
    def disposable(self) -> Disposable:
        return self.kept.disposable

    def follow(self, kept: Kept) -> None:
        """What the row says by now; of use, whichever was later."""
        self.kept = replace(kept, idle_since=max(kept.idle_since, self.kept.idle_since))

    def describe(self) -> Description:
        capabilities = Capabilities(through_platform=self.traits.is_platform)
        return Description(self.disposable.title, self.disposable.provider, capabilities=capabilities)

    # The sandbox itself

    async def open_raw(self) -> Sandbox:
        """The sandbox as its provider gives it; opening it is no use of it."""
        async with self._opening:
            self.raw = self.raw or await self._provider().open(self.disposable)
        return self.raw

    async def close(self) -> None:
        if self.raw is not None:
            await self.raw.close()

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """What fails because it is not there any more is told as that."""
        try:
            yield
        except SandboxError as problem:
            if isinstance(problem, ConnectError | LostContact | UnknownSandbox) or type(problem) is SandboxError:
                raise await self.explain(problem) from problem
            raise

    # Use

    @asynccontextmanager
    async def use(self, needs_s: float = 0.0) -> AsyncIterator[None]:
        """While something is done in it that may take so long."""
        self._calls += 1
        try:
            await self._ready(needs_s)
            async with self.telling():
                yield
        finally:
            self._calls -= 1
            self.touch()

    def touch(self) -> None:
        """It is used now; others learn it soon, and no call waits for that."""
        now = self._around.now()
        self.kept = replace(self.kept, idle_since=max(now, self.kept.idle_since))
        if now - self._touched >= TOUCH_S:
            self._around.spawn(self.write_touch())

    async def write_touch(self) -> None:
        self._touched = self._around.now()
        await asyncio.to_thread(self._around.rows.touch, self.kept.id, self.kept.idle_since)

    def goes_on(self, run_id: str, seconds: float) -> None:
        """A run has outlasted its caller: it is use until its own time is over, or somebody sees its end."""
        self._runs[run_id] = self._around.now() + seconds + MARGIN_S

    def has_ended(self, run_id: str) -> None:
        self._runs.pop(run_id, None)

    def carry(self, lane: Lane) -> Lane:
        """A line for files is use as long as it is open."""
        self._lanes = [*(known for known in self._lanes if known.is_alive), lane]
        return lane

    def hold(self, stream: object) -> None:
        """A connection to one of its ports is use as long as it is open."""
        self._streams.add(stream)

    def release(self, stream: object) -> None:
        self._streams.discard(stream)
        self.touch()

    @property
    def is_busy(self) -> bool:
        now = self._around.now()
        self._runs = {run_id: until for run_id, until in self._runs.items() if until > now}
        self._lanes = [lane for lane in self._lanes if lane.is_alive]
        return bool(self._calls or self._runs or self._lanes or self._streams)

    @property
    def needs_s(self) -> float:
        """How long the longest of its runs may still take."""
        return max((until - self._around.now() for until in self._runs.values()), default=0.0)

    async def has_jobs(self) -> bool:
        """Whether a background job runs in it. Raises SandboxError where that cannot be learned."""
        try:
            sandbox = await within(self.open_raw(), JOBS_S)
            return any(job.is_running for job in await within(sandbox.jobs.list(), JOBS_S))
        except Unsupported:
            return False
        except asyncio.TimeoutError:
            raise Unreachable(f"{self.disposable.title} has not answered within {JOBS_S:g} s") from None

    # How long it lives

    async def _ready(self, needs_s: float) -> None:
        """It is awake and lives long enough, or it is told why not."""
        if self.disposable.status == PAUSED:
            await self._see_that_it_is_awake()
        try:
            await self.live_on(needs_s)
        except SandboxError as problem:
            told = await self.explain(problem)
            if told is not problem:
                raise told from problem
            # It lives, and the work may well be done before its time is over.
            log.warning("%s could not be renewed: %s", self.disposable.title, problem)

    async def _see_that_it_is_awake(self) -> None:
        """Another process may have resumed it."""
        row = await asyncio.to_thread(self._around.rows.get, self.kept.id)
        self.follow(row or self.kept)
        if self.disposable.status == PAUSED:
            raise ConnectError(f"{self.disposable.title} is paused; continue it with resume_sandbox")

    async def live_on(self, needs_s: float = 0.0) -> None:
        """See to it that it lives for so long; with less than half of its time left it is renewed in passing."""
        if not self.disposable.expires:
            return
        least = needs_s + MARGIN_S if needs_s else LEAST_S
        if self.disposable.expires - self._around.now() < least:
            await self.extend(max(self.kept.timeout_s, least))
        elif is_about_to_expire(self.kept, self._around.now()) and not self._renewing.locked():
            self._around.spawn(self.extend(self.kept.timeout_s))

    async def extend(self, seconds: float) -> None:
        """Renew it with its provider, unless somebody has, for as long."""
        async with self._renewing:
            expires = self._around.now() + seconds
            before = await asyncio.to_thread(self._around.rows.extend, self.kept.id, expires)
            if before is None or before.ended:
                raise ConnectError(f"{self.disposable.title} is not there any more")
            # A renewal that began a moment ago will do: the same wish is always a little later.
            if not before.disposable.expires or before.disposable.expires >= expires - LEAST_S:
                self._note_expires(before.disposable.expires)
                return
            try:
                renewed = await self._renew(seconds)
            except SandboxError:
                await asyncio.to_thread(self._around.rows.take_back, before, expires)
                raise
            except BaseException:
                self._around.spawn(asyncio.to_thread(self._around.rows.take_back, before, expires))
                raise
            # As the provider has set it, which may be another time than was asked for.
            if abs(renewed.expires - expires) > LEAST_S:
                await asyncio.to_thread(self._around.rows.note_expires, self.kept.id, renewed.expires)
            self._note_expires(renewed.expires)

    async def _renew(self, seconds: float) -> Disposable:
        try:
            return await within(self._provider().renew(self.disposable, seconds), RENEW_S)
        except asyncio.TimeoutError:
            raise Unreachable(f"{self.disposable.title} could not be renewed within {RENEW_S:g} s") from None

    def _note_expires(self, expires: float) -> None:
        self.kept = replace(self.kept, disposable=replace(self.disposable, expires=expires))

    # What became of it

    async def explain(self, problem: SandboxError) -> SandboxError:
        """Why it failed: that it is not there any more, or is paused, or what was said in the first place."""
        row = await asyncio.to_thread(self._around.rows.get, self.kept.id)
        if row is None or row.ended:
            now = self._around.now()
            self._around.bury(self.kept.id)
            why, ended = (row.why, row.ended) if row else (self.ending or why_ended(self.kept, GONE, now), now)
            return _as(problem, farewell(self.disposable.title, why, ended))
        seen = await self._look()
        if seen is not None and seen.status in OVER:
            return _as(problem, await self.note_end(row, seen.status))
        if seen is not None and seen.status == PAUSED:
            return ConnectError(f"{self.disposable.title} is paused; continue it with resume_sandbox")
        return problem

    async def _look(self) -> Disposable | None:
        try:
            return await within(self._provider().look(self.disposable), LOOK_S)
        except (SandboxError, asyncio.TimeoutError):
            return None

    async def note_end(self, row: Kept, status: str) -> str:
        """Its provider says that it is over; what is to be said of it from now on."""
        now = self._around.now()
        why = self.ending or why_ended(row, status, now)
        await asyncio.to_thread(self._around.rows.end, self.kept.id, status, why, now)
        self._around.bury(self.kept.id)
        if status in (EXPIRED, ENDED):
            # Something is still there of one whose time is over, or that has ended by itself.
            self._around.spawn(self._provider().delete(self.disposable))
        return farewell(self.disposable.title, why, now)


def _as(problem: SandboxError, sentence: str) -> SandboxError:
    """The sentence in place of the problem's own; what a command had printed until then stays."""
    if isinstance(problem, LostContact):
        return LostContact(sentence, outcome="lost", so_far=problem.so_far)
    return ConnectError(sentence)


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
