"""The Python API: sandboxes for programs, by the same services that the tools and the command line call.

Little is imported with it: the rest, asyncio too, is loaded when it is used.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from os import PathLike, fspath, path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypedDict, TypeVar

from .core import check
from .core.commands.command import Completed, Ending, Excerpt
from .core.errors import BadArgument, FileProblem, SandboxError, UnknownSandbox
from .core.progress import Beat, Progress, StreamName, listener_in, silent

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Self, Unpack

    from .app import App
    from .core.jobs.job import JobSeen
    from .core.sandboxes.files import Written
    from .core.sandboxes.sandbox import Description
    from .core.sync.transfer import Outcome
    from .services.hub_contact.calling import HubCalls

__all__ = ["Box", "Chunk", "Done", "Job", "Output", "SandboxError", "Sandboxes"]

# Bytes that are kept from each end of a stream, and the most that may be asked for.
USUAL_KEPT, MOST_KEPT = 1_000_000, 2_000_000
LARGEST_READ = 16 << 20
# The person who wrote the program may choose any local port; forward_ports of the configuration is for agents.
ANY_PORT = ("1-65535",)
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


P = ParamSpec("P")
R = TypeVar("R")
Me = TypeVar("Me")
# What a hub carries out for programs, by name.
CALLS: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {}


def by_hub(
    method: Callable[Concatenate[Me, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Me, P], Coroutine[Any, Any, R]]:
    """A method that the hub carries out where these sandboxes are its, and this process otherwise."""
    name = method.__qualname__
    CALLS[name] = method

    @functools.wraps(method)
    async def call(me: Me, /, *args: P.args, **named: P.kwargs) -> R:
        hub: HubCalls | None = getattr(me, "_hub")  # noqa: B009
        if hub is None:
            return await method(me, *args, **named)
        done: R = await hub.call(name, (me, *args), named)
        return done

    return call


class Sandboxes:
    """The sandboxes of this user's configuration; use it as `async with Sandboxes() as boxes`."""

    def __init__(
        self, config: str | PathLike[str] | None = None, *, _app: App | None = None, _is_free: bool = False
    ) -> None:
        """`config` is a config.toml instead of the usual one.

        A lent app is a hub's. Local paths of one that is not free may come from an agent, and pass the gate.
        """
        self._config = config
        self._lent = _app
        self._is_free = _is_free or _app is None
        self._own: App | None = None
        self._hub: HubCalls | None = None

    async def __aenter__(self) -> Self:
        if not (self._lent or self._own or self._hub):
            from pathlib import Path

            from .services.hub_contact.calling import HubCalls

            config = Path(self._config) if self._config else None
            self._hub = await HubCalls.found(self, config)
            if self._hub is None:
                import asyncio

                from .app import compose
                from .config.load import load

                self._own = compose(await asyncio.to_thread(load, config))
        return self

    async def __aexit__(self, *problem: object) -> None:
        own, self._own = self._own, None
        hub, self._hub = self._hub, None
        if hub:
            hub.close()
        if own:
            await own.close()

    @property
    def _app(self) -> App:
        app = self._lent or self._own
        if app is None:
            raise BadArgument("these sandboxes are closed; use them inside of `async with Sandboxes() as boxes:`")
        return app

    @property
    def problems(self) -> Sequence[str]:
        """Problems of the configuration, as sentences."""
        return self._hub.problems if self._hub else self._app.standing_problems()

    @by_hub
    async def list(self) -> Sequence[str]:
        """The names of all sandboxes; none is opened."""
        return [member.name for member in await self._app.fleet.offered()]

    @by_hub
    async def open(self, name: str = "") -> Box:
        """Open a sandbox by its name or id; without one, the default."""
        member = self._app.fleet.member(name)
        return Box(self, member.name, (await member.open()).description)

    @by_hub
    async def most_idle(self, *, gpu_memory: str = "", gpus: int = 0) -> Box:
        """Open the machine that fits best now: with so many free GPUs of that memory ("40g") each, or the most idle."""
        from .core.jobs.job import NoCards
        from .core.jobs.placement import ANY, read_request

        cards = read_request(gpus or int(bool(gpu_memory)), gpu_memory)
        try:
            return await self.open(await self._app.jobs.waiting.one_of((ANY,), cards))
        except NoCards as problem:
            raise UnknownSandbox(str(problem)) from None

    @by_hub
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
                made = await disposables.service.await_start(made.id, QUEUE_S, lambda reason: None)
        except asyncio.CancelledError:
            disposables.give_up(made.id)
            raise
        return Box(self, made.id, self._app.fleet.member(made.id).describe())


@dataclass(frozen=True)
class Box:
    """One sandbox. Every method reconnects after a cut, and returns the true result; nothing is started twice."""

    _boxes: Sandboxes = field(repr=False)
    name: str
    # Kind, host, port and user of the sandbox, and what it can do.
    description: Description = field(compare=False)

    @property
    def _app(self) -> App:
        return self._boxes._app

    @property
    def _hub(self) -> HubCalls | None:
        return self._boxes._hub

    async def run(self, command: str, **how: Unpack[How]) -> Done:
        """Run shell source to its end. At its timeout, its whole process tree is ended.

        A command that fails is no error. Raises SandboxError where it cannot be started, or its end cannot be learned.
        """
        return await self._run(command, how)

    def stream(self, command: str, **how: Unpack[How]) -> Output:
        """Run shell source, with its output as it comes: `async for chunk in`. Leaving the loop stops the command."""
        return Output(self, command, how)

    @by_hub
    async def _run(self, command: str, given: How, progress: Progress | None = None) -> Done:
        how: dict[str, Any] = dict(given)
        if unknown := sorted({*how} - {*How.__annotations__}):
            raise BadArgument(f"a command takes no {unknown[0]}; it takes {', '.join(How.__annotations__)}")
        keep, timeout_s = how.pop("keep", USUAL_KEPT), how.pop("timeout", 120.0)
        check.in_range("keep", keep, 1, MOST_KEPT)
        how |= {"limit": (keep + 1) // 2, "name": self.name, "progress": progress or silent, "timeout_s": timeout_s}
        broken: list[Exception] = []
        if isinstance(how.get("input"), AsyncIterable):
            how["input"] = _watched(how["input"], broken)
        try:
            seen = (await self._app.commands.run(command, **how)).seen
        finally:
            if broken:
                raise broken[0] from None
        # Without a limit to its patience, a call returns no other.
        assert isinstance(seen, Completed)
        out, err = _ends(seen.stdout, keep), _ends(seen.stderr, keep)
        omitted = seen.stdout.total + seen.stderr.total - len(out) - len(err)
        return Done(seen.exit_code, out, err, seen.ending is Ending.TIMED_OUT, omitted, seen)

    @by_hub
    async def read(self, path: str, *, offset: int = 0, limit: int = LARGEST_READ) -> bytes:
        """A file's bytes, from `offset` on. One with more than `limit` bytes is refused if no part was asked for."""
        from .core.sandboxes.files import Span

        # Not by the service for agents, which refuses to write what has changed since it was read.
        sandbox = await self._app.fleet.get(self.name)
        found = await sandbox.read(check.text_argument("path", path), Span(offset, limit))
        if found.more and not offset and limit == LARGEST_READ:
            raise FileProblem(f"{path} has {found.size} bytes; read it in parts (offset, limit), or pull it", "large")
        return found.data

    @by_hub
    async def write(self, path: str, data: bytes | str, *, force: bool = False) -> Written:
        """Create or replace a file at once; its folders are made. `force`: even one that is read-only."""
        raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
        sandbox = await self._app.fleet.get(self.name)
        return await sandbox.write(check.text_argument("path", path), raw, force=force)

    async def push(
        self, local: str | PathLike[str], remote: str, *, delete: bool = False, exclude: Sequence[str] = ()
    ) -> Outcome:
        """Make a file or folder there like the one here: only what differs is sent."""
        return await self._copy(self._here(local), remote, True, delete, exclude)

    async def pull(
        self, remote: str, local: str | PathLike[str], *, delete: bool = False, exclude: Sequence[str] = ()
    ) -> Outcome:
        """Make a file or folder here like the one there."""
        return await self._copy(self._here(local), remote, False, delete, exclude)

    def _here(self, local: str | PathLike[str]) -> str:
        """A local path as the program means it; an extension's begins in the folder of its client."""
        given = fspath(local)
        return path.abspath(path.expanduser(given)) if self._boxes._is_free else given

    @by_hub
    async def _copy(self, local: str, remote: str, is_push: bool, delete: bool, exclude: Sequence[str]) -> Outcome:
        from .core.sync.transfer import Order

        free, transfers = self._boxes._is_free, self._app.transfers
        here = transfers.place(local, sandbox=None, free=free)
        there = transfers.place(remote, sandbox=self.name, free=True)
        source, target = (here, there) if is_push else (there, here)
        rules = transfers.rules(exclude, free=free)
        return await transfers.copy(
            Order(source=source, target=target, excludes=rules, delete_extras=delete, by_command_line=free)
        )

    @by_hub
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
        import asyncio

        told: asyncio.Queue[Chunk | None] = asyncio.Queue()
        carrying = asyncio.ensure_future(self._carry(port, local_port, _Listener(told)))
        opened = asyncio.ensure_future(told.get())
        try:
            await asyncio.wait((carrying, opened), return_when=asyncio.FIRST_COMPLETED)
            if carrying.done():
                await carrying
            yield int((await opened or Chunk("stdout", b"0")).data)
        finally:
            opened.cancel()
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)

    @by_hub
    async def _carry(self, port: int, local_port: int, opened: Progress) -> None:
        """Carry connections until this is cancelled; `opened` hears the local port."""
        import asyncio

        from .services.apps.forwards import Forwards

        app = self._app
        # Of its own: it ends with this call, and the forwards of agents stay as they are.
        forwards = Forwards(app.fleet.get, ANY_PORT if self._boxes._is_free else app.settings.forward_ports)
        try:
            found = await forwards.open(self.name, port, local_port=local_port)
            if listener := listener_in(opened):
                listener.heard("stdout", str(found.local_port).encode())
            await asyncio.Event().wait()
        finally:
            await forwards.close()

    @by_hub
    async def delete(self) -> None:
        """End a sandbox that `create` has made, with all that runs in it."""
        await self._app.disposables.service.delete(self.name)


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
        running = asyncio.ensure_future(self._box._run(self._command, self._how, listener))
        running.add_done_callback(lambda _: chunks.put_nowait(None))
        try:
            while chunk := await chunks.get():
                yield chunk
            self.done = await running
            seen = self.done.completed
            listener.complete("stdout", seen.stdout)
            listener.complete("stderr", seen.stderr)
            while not chunks.empty() and (chunk := chunks.get_nowait()):
                yield chunk
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


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

    @property
    def _hub(self) -> HubCalls | None:
        return self.box._hub

    @by_hub
    async def check(self, *, lines: int = 50) -> JobSeen:
        """Return its state, with the last lines of its log."""
        return await self.box._app.jobs.check(self._which, lines=lines)

    async def tail(self, *, lines: int = 50) -> str:
        """The last lines of its log."""
        return (await self.check(lines=lines)).log.decode("utf-8", "replace")

    async def wait(self, *, timeout: float | None = None, pattern: str = "") -> JobSeen:
        """Wait for its end, or for a line of its log that fits the pattern, so many seconds at most."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_S if until is None else min(WAIT_S, max(0.0, until - time.monotonic()))
            why, seen = await self._wait(left, pattern)
            if why != "timeout" or (until is not None and time.monotonic() >= until):
                return seen

    @by_hub
    async def _wait(self, seconds: float, pattern: str) -> tuple[str, JobSeen]:
        from .core.jobs.job import JobWait

        waited = await self.box._app.jobs.wait(self._which, JobWait(seconds=seconds, pattern=pattern))
        return waited.why, waited.seen

    @by_hub
    async def stop(self) -> JobSeen:
        """End its whole process tree; it is not resumed."""
        return await self.box._app.jobs.stop(self._which)

    @property
    def _which(self) -> Any:
        from .services.jobs.values import Which

        return Which(session=self.name, sandbox=self.box.name)


async def _watched(parts: AsyncIterable[bytes], broken: list[Exception]) -> AsyncIterator[bytes]:
    """Pass an input on. If it breaks off, its command is stopped, and the caller gets the program's own error."""
    try:
        async for part in parts:
            yield part
    except Exception as problem:
        broken.append(problem)
        raise OSError("its input broke off") from problem


def _ends(excerpt: Excerpt, keep: int) -> bytes:
    """Return both ends of a stream, `keep` bytes each at most."""
    return excerpt.head[:keep] + (excerpt.head[keep:] + excerpt.tail)[-keep:]
