"""A disposable sandbox in use by this process: use renews its expiry, and its end is noticed."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ...core.commands.command import Command, Completed, Missing, Observation, Running
from ...core.errors import ConnectError, LostContact, SandboxError, UnknownSandbox, Unreachable, Unsupported
from ...core.jobs.job import JobQuery, Jobs, JobSeen, JobWait, JobWaited
from ...core.progress import Progress, silent
from ...core.sandboxes.disposable import PENDING, Disposable, Provider, Traits, is_pending
from ...core.sandboxes.port import Stream
from ...core.sandboxes.sandbox import Capabilities, Description, Sandbox
from ...core.sync.transfer import Lane
from ...local.store.disposables import ENDED, EXPIRED, GONE, OVER, PAUSED, RUNNING, Kept
from ...local.waiting import within
from .policy import ending_text, is_about_to_expire, why_ended

if TYPE_CHECKING:
    from .registry import Registry

# How long a provider may take to report a sandbox's state, and to renew it.
CHECK_S = 5.0
RENEW_S = 15.0
JOBS_S = 10.0
# After its timeout, a command has two seconds of grace; then its result has to be sent.
MARGIN_S = 10.0
# Nothing is begun in a sandbox that lives for less than this.
LEAST_S = 1.0
TOUCH_S = 15.0

log = logging.getLogger(__name__)


class Life:
    """Counts the use of a sandbox, and keeps it alive as long as there is any."""

    def __init__(self, kept: Kept, registry: Registry) -> None:
        self.kept = kept
        # Of its provider.
        self.traits = registry.offered.get(kept.disposable.provider, Traits())
        # Set while it is being ended here, to what will be said of it.
        self.ending = ""
        self.raw: Sandbox | None = None
        self._registry = registry
        self._calls = 0
        self._runs: dict[str, float] = {}
        self._lanes: list[Lane] = []
        # Weak references: a stream that was dropped without closing does not count as use.
        self._streams: weakref.WeakSet[object] = weakref.WeakSet()
        self._touched = kept.idle_since
        self._renewing = asyncio.Lock()
        self._opening = asyncio.Lock()

    @property
    def disposable(self) -> Disposable:
        return self.kept.disposable

    @property
    def _provider(self) -> Provider:
        return self._registry.provider_of(self.kept)

    def follow(self, kept: Kept) -> None:
        """Take over the row's current values; of the times of use, the later one."""
        self.kept = replace(kept, idle_since=max(kept.idle_since, self.kept.idle_since))

    def describe(self) -> Description:
        it = self.disposable
        capabilities = Capabilities(through_platform=self.traits.is_platform, on_machine=it.machine)
        return Description(it.title, it.kind, it.machine, capabilities=capabilities)

    # The sandbox itself

    async def open_raw(self) -> Sandbox:
        """The sandbox as its provider opens it; opening does not count as use."""
        async with self._opening:
            if self.disposable.status == PENDING:
                await self._see_that_it_has_started()
            self.raw = self.raw or await self._provider.open(self.disposable)
        return self.raw

    async def close(self) -> None:
        if self.raw is not None:
            await self.raw.close()

    @asynccontextmanager
    async def explaining(self) -> AsyncIterator[None]:
        """Turn failures into "it is gone" where the sandbox no longer exists."""
        try:
            yield
        except SandboxError as problem:
            if isinstance(problem, ConnectError | LostContact | UnknownSandbox) or type(problem) is SandboxError:
                raise await self.explain(problem) from problem
            raise

    # Use

    @asynccontextmanager
    async def use(self, needs_s: float = 0.0) -> AsyncIterator[None]:
        """Use around work in the sandbox that may take `needs_s` seconds."""
        self._calls += 1
        try:
            await self._ready(needs_s)
            async with self.explaining():
                yield
        finally:
            self._calls -= 1
            self.touch()

    def touch(self) -> None:
        """Note that it is used now; written to the row soon, without making the call wait."""
        now = self._registry.now()
        self.kept = replace(self.kept, idle_since=max(now, self.kept.idle_since))
        if now - self._touched >= TOUCH_S:
            self._registry.spawn(self.write_touch())

    async def write_touch(self) -> None:
        self._touched = self._registry.now()
        await asyncio.to_thread(self._registry.rows.touch, self.kept.id, self.kept.idle_since)

    def goes_on(self, run_id: str, seconds: float) -> None:
        """A run outlasted its call: it counts as use until its time limit, or until its end is seen."""
        self._runs[run_id] = self._registry.now() + seconds + MARGIN_S

    def has_ended(self, run_id: str) -> None:
        self._runs.pop(run_id, None)

    def carry(self, lane: Lane) -> Lane:
        """A lane counts as use while it is open."""
        self._lanes = [*(each for each in self._lanes if each.is_alive), lane]
        return lane

    def hold(self, stream: object) -> None:
        """A connection to one of its ports counts as use while it is open."""
        self._streams.add(stream)

    def release(self, stream: object) -> None:
        self._streams.discard(stream)
        self.touch()

    @property
    def is_busy(self) -> bool:
        now = self._registry.now()
        self._runs = {run_id: until for run_id, until in self._runs.items() if until > now}
        self._lanes = [lane for lane in self._lanes if lane.is_alive]
        return bool(self._calls or self._runs or self._lanes or self._streams)

    @property
    def needs_s(self) -> float:
        """Return how long the longest of its runs may still take."""
        return max((until - self._registry.now() for until in self._runs.values()), default=0.0)

    async def has_jobs(self) -> bool:
        """Whether a background job runs in it. Raises SandboxError where that cannot be determined."""
        try:
            sandbox = await within(self.open_raw(), JOBS_S)
            return any(job.is_running for job in await within(sandbox.jobs.list(), JOBS_S))
        except Unsupported:
            return False
        except asyncio.TimeoutError:
            raise Unreachable(f"{self.disposable.title} has not answered within {JOBS_S:g} s") from None

    # How long it lives

    async def _ready(self, needs_s: float) -> None:
        """Make sure that it is not paused and lives long enough; raises why not."""
        if self.disposable.status == PAUSED:
            await self._see_that_it_is_awake()
        try:
            await self.live_on(needs_s)
        except SandboxError as problem:
            explained = await self.explain(problem)
            if explained is not problem:
                raise explained from problem
            # It lives, and the work may be done before it expires.
            log.warning("%s could not be renewed: %s", self.disposable.title, problem)

    async def _see_that_it_is_awake(self) -> None:
        """Ask its provider, because another process may have resumed it."""
        row = await asyncio.to_thread(self._registry.rows.get, self.kept.id)
        self.follow(row or self.kept)
        if self.disposable.status == PAUSED:
            raise ConnectError(f"{self.disposable.title} is paused; continue it with resume_sandbox")

    async def _see_that_it_has_started(self) -> None:
        """Raises ConnectError with why it is pending. Where its queue does not answer, opening it will say so."""
        seen = await self._inspect()
        if seen is not None and seen.status == PENDING:
            raise is_pending(seen)
        if seen is not None and seen.status == RUNNING:
            await self.note_started(self.kept, seen)

    async def note_started(self, row: Kept, seen: Disposable) -> Kept:
        """Record that one that was pending runs: its time counts from its start."""
        now = self._registry.now()
        expires = (min(seen.started, now) or now) + row.timeout_s if row.timeout_s else seen.ends_by
        expires = min(expires, seen.ends_by or expires)
        await asyncio.to_thread(self._registry.rows.note_started, row.id, expires, now)
        it = replace(row.disposable, status=RUNNING, reason="", expires=expires)
        self.follow(replace(row, disposable=it, idle_since=max(now, row.idle_since)))
        return self.kept

    async def live_on(self, needs_s: float = 0.0) -> None:
        """Make sure that it lives for `needs_s`; renew it in the background when half of its time is over."""
        if not self.disposable.expires:
            return
        least = needs_s + MARGIN_S if needs_s else LEAST_S
        if self.disposable.expires - self._registry.now() < least:
            await self.extend(max(self.kept.timeout_s, least))
        elif is_about_to_expire(self.kept, self._registry.now()) and not self._renewing.locked():
            self._registry.spawn(self.extend(self.kept.timeout_s))

    async def extend(self, seconds: float) -> None:
        """Renew it with its provider, unless it was already renewed for as long."""
        async with self._renewing:
            expires = self._registry.now() + seconds
            before = await asyncio.to_thread(self._registry.rows.extend, self.kept.id, expires)
            if before is None or before.ended:
                raise ConnectError(f"{self.disposable.title} is not there any more")
            # A renewal of a moment ago is enough: without this tolerance, every call would renew it a little.
            if not before.disposable.expires or before.disposable.expires >= expires - LEAST_S:
                self._note_expires(before.disposable.expires)
                return
            try:
                renewed = await self._renew(seconds)
            except SandboxError:
                await asyncio.to_thread(self._registry.rows.take_back, before, expires)
                raise
            except BaseException:
                self._registry.spawn(asyncio.to_thread(self._registry.rows.take_back, before, expires))
                raise
            # The provider may have set another expiry than we asked for.
            if abs(renewed.expires - expires) > LEAST_S:
                await asyncio.to_thread(self._registry.rows.note_expires, self.kept.id, renewed.expires)
            self._note_expires(renewed.expires)

    async def _renew(self, seconds: float) -> Disposable:
        try:
            return await within(self._provider.renew(self.disposable, seconds), RENEW_S)
        except asyncio.TimeoutError:
            raise Unreachable(f"{self.disposable.title} could not be renewed within {RENEW_S:g} s") from None

    def _note_expires(self, expires: float) -> None:
        self.kept = replace(self.kept, disposable=replace(self.disposable, expires=expires))

    # What became of it

    async def explain(self, problem: SandboxError) -> SandboxError:
        """Explain why something failed: the sandbox is gone, or paused; else the original problem."""
        row = await asyncio.to_thread(self._registry.rows.get, self.kept.id)
        if row is None or row.ended:
            now = self._registry.now()
            self._registry.drop(self.kept.id)
            why, ended = (row.why, row.ended) if row else (self.ending or why_ended(self.kept, GONE, now), now)
            return _as(problem, ending_text(self.disposable.title, why, ended))
        seen = await self._inspect()
        if seen is not None and seen.status in OVER:
            return _as(problem, await self.note_end(row, seen))
        if seen is not None and seen.status == PENDING:
            return is_pending(seen)
        if seen is not None and seen.status == PAUSED:
            return ConnectError(f"{self.disposable.title} is paused; continue it with resume_sandbox")
        return problem

    async def _inspect(self) -> Disposable | None:
        try:
            return await within(self._provider.inspect(self.disposable), CHECK_S)
        except (SandboxError, asyncio.TimeoutError):
            return None

    async def note_end(self, row: Kept, seen: Disposable) -> str:
        """Record that it has ended, as its provider reports; returns what callers are told from now on."""
        now, status = self._registry.now(), seen.status
        why = self.ending or seen.reason or why_ended(row, status, now)
        await asyncio.to_thread(self._registry.rows.end, self.kept.id, status, why, now)
        self._registry.drop(self.kept.id)
        if status in (EXPIRED, ENDED):
            # Remove what is left of one that expired or ended by itself.
            self._registry.spawn(self._provider.delete(self.disposable))
        return ending_text(self.disposable.title, why, now)


def _as(problem: SandboxError, sentence: str) -> SandboxError:
    """The problem with another sentence; output that a command had printed is kept."""
    if isinstance(problem, LostContact):
        return LostContact(sentence, outcome="lost", so_far=problem.so_far)
    return ConnectError(sentence)


P = ParamSpec("P")
R = TypeVar("R")
Noted = TypeVar("Noted", Completed | Running, Completed | Running | Missing)


def _counted(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The method of that name of what is wrapped, counted as use."""

    async def call(self: Tended | TendedJobs, /, *args: P.args, **named: P.kwargs) -> R:
        async with self._life.use():
            found: R = await getattr(self._wrapped, method.__name__)(*args, **named)
            return found

    return call


class Tended:
    """A Sandbox around another one that counts use. Opening and closing do not count."""

    def __init__(self, sandbox: Sandbox, life: Life) -> None:
        self._sandbox = self._wrapped = sandbox
        self._life = life

    @property
    def description(self) -> Description:
        # One from the pool was made before it had its name.
        return replace(self._sandbox.description, name=self._life.disposable.title)

    @property
    def is_open(self) -> bool:
        return self._sandbox.is_open

    @property
    def connection(self) -> object | None:
        return self._sandbox.connection

    @property
    def unnoticed(self) -> Sandbox:
        """Return the sandbox for looks that do not count as use: a page that is open must not keep it alive."""
        return self._sandbox

    @property
    def jobs(self) -> Jobs:
        return TendedJobs(self._sandbox, self._life)

    async def open(self) -> None:
        async with self._life.explaining():
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
                # It may still be running.
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

    read = _counted(Sandbox.read)
    write = _counted(Sandbox.write)
    list = _counted(Sandbox.list)
    search = _counted(Sandbox.search)

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
    """A Stream around another one that counts as use until it is closed."""

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
    """The Jobs of the wrapped sandbox, counted as use."""

    def __init__(self, sandbox: Sandbox, life: Life) -> None:
        self._sandbox = sandbox
        self._life = life

    @property
    def _wrapped(self) -> Jobs:
        return self._sandbox.jobs

    start = _counted(Jobs.start)
    inspect = _counted(Jobs.inspect)
    list = _counted(Jobs.list)
    send = _counted(Jobs.send)

    async def wait(self, query: JobQuery, wait: JobWait) -> JobWaited:
        async with self._life.use(wait.seconds):
            return await self._wrapped.wait(query, wait)

    async def stop(self, query: JobQuery, grace_s: float = 10.0) -> JobSeen:
        async with self._life.use(grace_s):
            return await self._wrapped.stop(query, grace_s)
