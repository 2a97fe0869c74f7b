"""The Python API: sandboxes for programs, by the same services that the tools and the command line call.

Little is imported with it: the rest, asyncio too, is loaded when it is used.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypedDict

from .core import check
from .core.commands.command import Completed, Ending, Excerpt
from .core.errors import BadArgument, FileProblem, SandboxError, UnknownSandbox
from .core.progress import Beat, Progress, StreamName, silent

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Self, Unpack

    from .app import App
    from .core.jobs.job import JobSeen
    from .core.resources.usage import Gpu
    from .core.sandboxes.files import Written
    from .core.sandboxes.sandbox import Description
    from .core.sync.transfer import Outcome, Place

__all__ = ["Box", "Chunk", "Done", "Job", "Output", "SandboxError", "Sandboxes"]

# Bytes that are kept from each end of a stream, and the most that may be asked for.
USUAL_KEPT, MOST_KEPT = 1_000_000, 2_000_000
LARGEST_READ = 16 << 20
# A job is waited for in pieces, and one in a queue is asked for so often.
WAIT_S, QUEUE_S = 240.0, 30.0


@dataclass(frozen=True)
class Done:
    """A command that has ended. Of a long stream both ends are kept; `omitted` bytes between them are left out."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    omitted: int
    # All that is known of it; its `stdout.file` and `stderr.file` hold the whole output there, for a while.
    completed: Completed

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode("utf-8", "replace")


class How(TypedDict, total=False):
    """Options of a command."""

    cwd: str
    # Variables of this command alone.
    env: Mapping[str, str]
    input: bytes | AsyncIterable[bytes]
    # Seconds, 120 by default.
    timeout: float
    # Another user of the sandbox, where its own user is root, or sudo allows it.
    user: str
    as_root: bool
    # Bytes that are kept of each end of each stream.
    keep: int


@dataclass(frozen=True)
class Chunk:
    """A piece of output, from "stdout" or "stderr"."""

    stream: StreamName
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Sandboxes:
    """The sandboxes of this user's configuration; use it as `async with Sandboxes() as boxes`."""

    def __init__(self, config: str | PathLike[str] | None = None, *, _app: App | None = None) -> None:
        """`config` is a config.toml instead of the usual one."""
        self._config = config
        self._lent = _app
        self._own: App | None = None

    async def __aenter__(self) -> Self:
        if self._lent is None and self._own is None:
            import asyncio
            from pathlib import Path

            from .app import compose
            from .config.load import load

            path = Path(self._config) if self._config else None
            self._own = compose(await asyncio.to_thread(load, path))
        return self

    async def __aexit__(self, *problem: object) -> None:
        own, self._own = self._own, None
        if own:
            await own.close()

    @property
    def _app(self) -> App:
        app = self._lent or self._own
        if app is None:
            raise BadArgument("these sandboxes are closed; use them inside of `async with Sandboxes() as boxes:`")
        return app

    @property
    def _is_free(self) -> bool:
        """Whether local paths are a person's; an extension's may come from an agent, and pass the gate."""
        return self._lent is None

    @property
    def problems(self) -> Sequence[str]:
        """Problems of the configuration, as sentences."""
        return self._app.standing_problems()

    async def list(self) -> Sequence[str]:
        """The names of all sandboxes; none is opened."""
        return [member.name for member in await self._app.fleet.offered()]

    async def open(self, name: str = "") -> Box:
        """Open a sandbox by its name or id; without one, the default."""
        member = self._app.fleet.member(name)
        await member.open()
        return Box(self, member.name)

    async def most_idle(self, *, gpu_memory: str = "", gpus: int = 0) -> Box:
        """Open the most idle machine, of those that have so many GPUs with so much free memory ("40g") each."""
        from .core.sandboxes.disposable import megabytes

        least_mb, count = megabytes(gpu_memory), gpus or (1 if gpu_memory else 0)
        seen = await self._app.survey.of_all(resources=True)
        free = {view.name: [_free_mb(card) >= least_mb for card in view.usage.gpus] for view in seen if view.usage}
        fitting = [view for view in seen if view.name in free and sum(free[view.name]) >= count]
        if not fitting:
            wanted = f"has {count} GPUs with {gpu_memory or 'any'} free memory now" if count else "answers"
            raise UnknownSandbox(f"none of the {len(seen)} sandboxes {wanted}")
        return await self.open(max(fitting, key=lambda view: view.score).name)

    async def create(
        self, image: str = "", *, name: str = "", on: str = "", gpus: int = 0, cpu: float = 0.0, memory: str = "",
        timeout: float = 0.0, env: Mapping[str, str] | None = None, network: bool | None = None,
        hosts: Sequence[str] = (),
    ) -> Box:  # fmt: skip
        """Make a clean, isolated sandbox, `on` a machine with docker, podman or slurm, or here; wait until it runs.

        It ends with `delete`, or when it has not been used for `timeout` seconds.
        """
        import asyncio

        from .core.sandboxes.disposable import PENDING, Limits, SandboxOrder, megabytes

        disposables, lifetime = self._app.disposables, timeout or self._app.settings.rules.default_timeout_s
        limits = Limits(cpu=cpu, memory_mb=megabytes(memory), gpus=gpus)
        made = await disposables.create(
            SandboxOrder(
                name=name, image=image, timeout_s=lifetime, env=dict(env or {}), limits=limits, provider=on,
                network=True if hosts else network, hosts=tuple(hosts), free=self._is_free,
            )
        )  # fmt: skip
        try:
            while made.status == PENDING:
                made = await disposables.await_start(made.id, QUEUE_S, lambda reason: None)
        except asyncio.CancelledError:
            disposables.give_up(made.id)
            raise
        return Box(self, made.id)


@dataclass(frozen=True)
class Box:
    """One sandbox. Every method reconnects after a cut, and returns the true result; nothing is started twice."""

    _boxes: Sandboxes = field(repr=False)
    name: str

    @property
    def _app(self) -> App:
        return self._boxes._app

    @property
    def description(self) -> Description:
        """Kind, host, port and user of the sandbox, and what it can do."""
        member = self._app.fleet.member(self.name)
        return member.sandbox.description if member.sandbox else member.describe()

    async def run(self, command: str, **how: Unpack[How]) -> Done:
        """Run shell source to its end. At its timeout, its whole process tree is ended.

        A command that fails is no error. Raises SandboxError where it cannot be started, or its end cannot be learned.
        """
        return await self.stream(command, **how)._run(silent)

    def stream(self, command: str, **how: Unpack[How]) -> Output:
        """Run shell source, with its output as it comes: `async for chunk in`. Leaving the loop stops the command."""
        return Output(self, command, how)

    async def read(self, path: str, *, offset: int = 0, limit: int = LARGEST_READ) -> bytes:
        """A file's bytes, from `offset` on. One with more than `limit` bytes is refused if no part was asked for."""
        from .core.sandboxes.files import Span

        # Not by the service for agents, which refuses to write what has changed since it was read.
        sandbox = await self._app.fleet.get(self.name)
        found = await sandbox.read(check.text_argument("path", path), Span(offset, limit))
        if found.more and not offset and limit == LARGEST_READ:
            raise FileProblem(f"{path} has {found.size} bytes; read it in parts (offset, limit), or pull it", "large")
        return found.data

    async def write(self, path: str, data: bytes | str, *, force: bool = False) -> Written:
        """Create or replace a file at once; its folders are made. `force`: even one that is read-only."""
        raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
        sandbox = await self._app.fleet.get(self.name)
        return await sandbox.write(check.text_argument("path", path), raw, force=force)

    async def push(
        self, local: str | PathLike[str], remote: str, *, delete: bool = False, exclude: Sequence[str] = ()
    ) -> Outcome:
        """Make a file or folder there like the one here: only what differs is sent."""
        return await self._copy(self._here(local), self._there(remote), delete, exclude)

    async def pull(
        self, remote: str, local: str | PathLike[str], *, delete: bool = False, exclude: Sequence[str] = ()
    ) -> Outcome:
        """Make a file or folder here like the one there."""
        return await self._copy(self._there(remote), self._here(local), delete, exclude)

    def _here(self, local: str | PathLike[str]) -> Place:
        return self._app.transfers.place(fspath(local), sandbox=None, free=self._boxes._is_free)

    def _there(self, remote: str) -> Place:
        return self._app.transfers.place(remote, sandbox=self.name, free=True)

    async def _copy(self, source: Place, target: Place, delete: bool, exclude: Sequence[str]) -> Outcome:
        from .core.sync.transfer import Order

        free, transfers = self._boxes._is_free, self._app.transfers
        rules = transfers.rules(exclude, free=free)
        return await transfers.copy(
            Order(source=source, target=target, excludes=rules, delete_extras=delete, by_command_line=free)
        )

    async def start(
        self, command: str, *, name: str = "", cwd: str = "", gpus: int = 0, resume: str = "", checkpoint: str = "",
        watch: bool = False, slurm: Mapping[str, object] | None = None, gpu_memory: str = "",
    ) -> Job:  # fmt: skip
        """Start a job that outlives this program and the connection; it waits for free `gpus` ("40g" each), if any.

        `resume` is the command that goes on from its checkpoint after an interruption; the watchdog runs it.
        """
        from .core.jobs.placement import read_request
        from .core.jobs.watch import WatchOrder
        from .services.jobs.values import Wanted

        watched = WatchOrder(resume_command=resume, auto_resume=bool(resume), checkpoint_path=checkpoint)
        order, cards = watched if watch or resume or checkpoint else None, read_request(gpus, gpu_memory)
        wanted = Wanted(
            command=command, session=name, cwd=cwd, sandbox=self.name, watch=order, slurm=slurm, cards=cards
        )
        begun = await self._app.jobs.start(wanted, self._app.ensure_watchdog)
        return Job(self, begun.started.session, begun.notes)

    def job(self, name: str) -> Job:
        """A job that was started before, by its name."""
        return Job(self, name)

    @asynccontextmanager
    async def forward(self, port: int, *, local_port: int = 0) -> AsyncIterator[int]:
        """Let a port of the sandbox be reached on this computer: `async with box.forward(6006) as port`."""
        opened = await self._app.apps.forward(self.name, port, local_port=local_port)
        try:
            yield opened.local_port
        finally:
            await self._app.apps.close_port(self.name, port)

    async def delete(self) -> None:
        """End a sandbox that `create` has made, with all that runs in it."""
        await self._app.disposables.delete(self.name)


class Output:
    """The output of a command as it comes; `done` is its end, once the loop is over.

    The first `keep` bytes of a stream come as they are printed, and at its end the last ones.
    """

    def __init__(self, box: Box, command: str, how: How) -> None:
        self._box = box
        self._command = command
        self._how = how
        self.done: Done | None = None

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        import asyncio

        # Bounded by what the command keeps.
        chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()
        listener = _Listener(chunks)
        running = asyncio.ensure_future(self._run(listener))
        running.add_done_callback(lambda _: chunks.put_nowait(None))
        try:
            while chunk := await chunks.get():
                yield chunk
            seen = (await running).completed
            listener.complete("stdout", seen.stdout)
            listener.complete("stderr", seen.stderr)
            while not chunks.empty() and (chunk := chunks.get_nowait()):
                yield chunk
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _run(self, progress: Progress) -> Done:
        how: dict[str, Any] = dict(self._how)
        keep, timeout_s = how.pop("keep", USUAL_KEPT), how.pop("timeout", 120.0)
        check.in_range("keep", keep, 1, MOST_KEPT)
        how |= {"limit": (keep + 1) // 2, "name": self._box.name, "progress": progress, "timeout_s": timeout_s}
        seen = (await self._box._app.commands.run(self._command, **how)).seen
        # Without a limit to its patience, a call returns no other.
        assert isinstance(seen, Completed)
        out, err = _ends(seen.stdout, keep), _ends(seen.stderr, keep)
        omitted = seen.stdout.total + seen.stderr.total - len(out) - len(err)
        self.done = Done(seen.exit_code, out, err, seen.ending is Ending.TIMED_OUT, omitted, seen)
        return self.done


class _Listener:
    """Takes output as it comes."""

    def __init__(self, chunks: asyncio.Queue[Chunk | None]) -> None:
        self._chunks = chunks
        self._taken: dict[str, int] = {"stdout": 0, "stderr": 0}

    def __call__(self, beat: Beat, /) -> None:
        """Signs of life are not passed on."""

    def heard(self, stream: StreamName, data: bytes) -> None:
        self._taken[stream] += len(data)
        self._chunks.put_nowait(Chunk(stream, data))

    def complete(self, stream: StreamName, excerpt: Excerpt) -> None:
        """Pass on what has not been heard of a stream when it ends."""
        rest = excerpt.head[self._taken[stream] :] + excerpt.tail
        if rest:
            self._chunks.put_nowait(Chunk(stream, rest))


@dataclass(frozen=True)
class Job:
    """A background job: it goes on when this program ends."""

    box: Box
    name: str
    # What the caller should know, such as why it is not watched.
    notes: Sequence[str] = ()

    async def check(self, *, lines: int = 50) -> JobSeen:
        """Return its state, with the last lines of its log."""
        return await self.box._app.jobs.check(self._which, lines=lines)

    async def tail(self, *, lines: int = 50) -> str:
        """The last lines of its log."""
        return (await self.check(lines=lines)).log.decode("utf-8", "replace")

    async def wait(self, *, timeout: float | None = None, pattern: str = "") -> JobSeen:
        """Wait for its end, or for a line of its log that fits the pattern, so many seconds at most."""
        from .core.jobs.job import JobWait

        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_S if until is None else min(WAIT_S, max(0.0, until - time.monotonic()))
            waited = await self.box._app.jobs.wait(self._which, JobWait(seconds=left, pattern=pattern))
            if waited.why != "timeout" or (until is not None and time.monotonic() >= until):
                return waited.seen

    async def stop(self) -> JobSeen:
        """End its whole process tree; it is not resumed."""
        return await self.box._app.jobs.stop(self._which)

    @property
    def _which(self) -> Any:
        from .services.jobs.values import Which

        return Which(session=self.name, sandbox=self.box.name)


def _ends(excerpt: Excerpt, keep: int) -> bytes:
    """Return both ends of a stream, `keep` bytes each at most."""
    return excerpt.head[:keep] + (excerpt.head[keep:] + excerpt.tail)[-keep:]


def _free_mb(card: Gpu) -> float:
    """Free memory of a card; none of one that a job has leased."""
    return -1 if card.lease else (card.mem_total_mb or 0) - (card.mem_used_mb or 0)
