"""Makes containers with the engine of a machine, finds them again by their labels, and removes them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from ...core.commands.shell import join
from ...core.errors import ConnectError, SandboxError, UnknownSandbox, Unreachable, Unsupported
from ...core.jobs.cards import CardRequest
from ...core.jobs.job import JobOrder, JobQuery, Jobs
from ...core.sandboxes.disposable import Disposable, DisposableRules, SandboxOrder
from ...core.sandboxes.foreign import not_understood, understood
from ...core.sandboxes.machine import Engine
from ...core.sandboxes.sandbox import Sandbox
from ...core.texts.text import harmless
from ...local.waiting import Chores
from ..command.console import ConsoleOutput
from ..command.way import Way, last_words
from . import kind_of, traits_of
from .container import GONE, NO_IMAGE, NO_INIT, NOTHING, REMOVING, Cli, open_container
from .order import KEY, MARK, Seen, check_walls, checked, container_name, read_seen, remove_words, renewal, run_words

RUN_S, PULL_S = 60.0, 3600.0
SWEEP_S, SOON_S, GONE_S = 30.0, 0.1, 10.0
# A list younger than this is reused: clients that follow their sandboxes ask often, and each is a command there.
FRESH_S = 5.0
MOST_IMAGES = 30
# Waits for a container, whose image may have to be pulled first, and then for its end.
HOLD = """turns=0
until {is_there}; do turns=$((turns + 1)); [ $turns -lt {turns} ] || exit 1; sleep 2; done
while {is_there}; do {waits} || sleep 2; done"""


def holder_name(disposable_id: str) -> str:
    """The job on the machine that holds the cards of a container."""
    return f"sandbox-{disposable_id}"


class EngineProvider:
    """Provider of containers (core.disposable.Provider). `mark` names the user's installation: only that is touched."""

    def __init__(
        self,
        machine: str,
        engine: Engine,
        way: Way,
        rules: DisposableRules,
        mark: str,
        env: Mapping[str, str] = NOTHING,
        jobs: Callable[[], Awaitable[Jobs]] | None = None,
        *,
        beyond_walls: bool = False,
    ) -> None:
        """`jobs` are the machine's: one of them holds the cards of each container that has some.

        `beyond_walls`: only some folders there may be written.
        """
        self.rules = rules
        self.traits = traits_of(machine)
        self._kind = kind_of(engine.tool, machine)
        self._cli = Cli(machine, engine, way, env, beyond_walls=beyond_walls)
        self._beyond_walls = beyond_walls
        self._mark = mark
        # A SandboxError of a chore is not logged: the next request meets the same problem and reports it.
        self._chores = Chores("work on a container", expected=(SandboxError,))
        self._listing: asyncio.Future[Sequence[Seen]] | None = None
        self._listed_at = 0.0
        self._has_init = True
        self._jobs = jobs

    @property
    def where(self) -> str:
        return self._cli.where

    async def images(self) -> Sequence[str]:
        """The images that the machine has already, newest first. Raises SandboxError."""
        said = await self._command("images", "--format={{.Repository}}:{{.Tag}}", "--filter=dangling=false")
        self._check(said, f"unable to list the images on {self._cli.machine}")
        named = (harmless(line.encode()) for line in said.out.splitlines())
        return list(dict.fromkeys(line for line in named if line and "<none>" not in line))[:MOST_IMAGES]

    # Making one

    async def create(self, disposable_id: str, order: SandboxOrder) -> Disposable:
        order, begun = checked(order, self._cli.machine), time.time()
        if self._beyond_walls:
            check_walls(order, self._cli.engine, self._cli.machine)
        doing = f"unable to create a sandbox from {order.image} on {self._cli.machine}"
        order, lease = await self._lease(disposable_id, order)
        try:
            started, said, notes = await self._run_or_pull(disposable_id, order, doing)
            key = await self._made(said, doing)
        except (ConnectError, asyncio.CancelledError):
            # The engine may still make the container after we stopped waiting.
            self._chores.start(self._sweep(disposable_id))
            raise
        except SandboxError:
            with contextlib.suppress(SandboxError):
                await self._remove_all(disposable_id)
            with contextlib.suppress(SandboxError):
                await self._release(lease)
            raise
        finally:
            self._listing = None
        # The engine warns of limits that it cannot enforce, such as on a kernel without swap limits.
        warnings = [line.partition(":")[2] for line in harmless(said.err).splitlines() if line.startswith("WARNING:")]
        return Disposable(
            id=disposable_id,
            provider=self._kind,
            key=key,
            name=order.name,
            image=order.image,
            created=begun,
            # Counted from its start: pulling the image may take longer than the container is to live.
            expires=started + max(1, round(order.timeout_s)) if order.timeout_s else 0.0,
            limits=order.limits,
            network=bool(order.network),
            notes=(*notes, *(f"engine: {warning.strip()}" for warning in warnings)),
        )

    async def _lease(self, disposable_id: str, order: SandboxOrder) -> tuple[SandboxOrder, str]:
        """Lease as many cards as were asked for, by a job that lives as long as the container. Raises NoCards."""
        # A container does not see the machine's leases. Cards that the caller chose are the caller's own affair.
        limits = order.limits
        if self._jobs is None or not limits.gpus or limits.cards:
            return order, ""
        name = container_name(disposable_id)
        is_there = self._cli.line_of([*self._cli.engine.command, "inspect", "--type=container", name])
        waits = self._cli.line_of([*self._cli.engine.command, "wait", name])
        wanted = JobOrder(
            session=holder_name(disposable_id),
            script=HOLD.format(is_there=f"({is_there}) >/dev/null 2>&1", waits=f"({waits})", turns=round(PULL_S / 2)),
            log_file="/dev/null",
            cards=CardRequest(limits.gpus, limits.gpu_memory_mb),
            run_for_s=order.timeout_s,
        )
        started = await (await self._jobs()).start(wanted)
        return replace(order, limits=replace(limits, cards=started.cards)), started.job_id

    async def _release(self, job_id: str) -> None:
        if job_id and self._jobs is not None:
            await (await self._jobs()).stop(JobQuery(job_id=job_id), grace_s=1.0)

    async def _run_or_pull(
        self, disposable_id: str, order: SandboxOrder, doing: str
    ) -> tuple[float, ConsoleOutput, tuple[str, ...]]:
        """Run the image, pulling it first if needed; return the time, the engine's answer, and notes for the caller."""
        started, said = time.time(), await self._run(disposable_id, order)
        if not said.status or not said.says(NO_IMAGE):
            return started, said, ()
        begun = time.monotonic()
        await self._pull(order.image, doing)
        note = f"image: it was not on {self._cli.machine} yet, and was pulled in {time.monotonic() - begun:.0f} s"
        return time.time(), await self._run(disposable_id, order), (note,)

    async def _run(self, disposable_id: str, order: SandboxOrder) -> ConsoleOutput:
        words = run_words(self._cli.engine, disposable_id, order, self._mark, has_init=self._has_init)
        # In an engine's env file, values are not quoted.
        variables = [f"{name}={value}" for name, value in order.env.items()]
        said = await self._cli.ask(words, variables, limit_s=RUN_S)
        if said.status and self._has_init and said.says(NO_INIT):
            self._has_init = False
            return await self._run(disposable_id, order)
        return said

    async def _pull(self, image: str, doing: str) -> None:
        said = await self._cli.ask([*self._cli.engine.command, "pull", "--quiet", image], limit_s=PULL_S)
        if said.status:
            raise SandboxError.of_parts(
                doing,
                f"the image is not there, and {self._cli.where} could not pull it: {last_words(said.err)}",
                f"check its name, pull or load it on {self._cli.machine} by hand, or log in to its registry there",
            )

    async def _made(self, said: ConsoleOutput, doing: str) -> str:
        """The id of the started container, after checking that a shell runs in it. Raises SandboxError."""
        if said.status:
            raise self._cli.problem(doing, said)
        key = said.out.rpartition("\n")[2].strip()
        if not KEY.match(key):
            raise not_understood(self._cli.where, ValueError("it is no id of a container"))
        tried = await self._command("exec", key, "/bin/sh", "-c", ":")
        if tried.status:
            raise SandboxError.of_parts(
                doing, f"no shell runs in it ({last_words(tried.err)})", "use an image that has /bin/sh and sleep"
            )
        return key

    async def _sweep(self, disposable_id: str) -> None:
        """Remove a container whose creation was given up; it may appear a while later."""
        until = time.monotonic() + SWEEP_S
        while time.monotonic() < until:
            with contextlib.suppress(SandboxError):
                if await self._remove_all(disposable_id):
                    return
            await asyncio.sleep(10 * SOON_S)

    async def _remove_all(self, disposable_id: str) -> bool:
        """Remove all containers with that id; returns whether there was one."""
        found = [seen for seen in await self._all() if seen.is_ours(self._mark, disposable_id)]
        for seen in found:
            await self._remove(seen.key, f"unable to remove what is left of {disposable_id}")
        return bool(found)

    # Using it

    async def open(self, disposable: Disposable) -> Sandbox:
        doing = f"unable to open {disposable.title}"
        seen = await self._must_be_mine(disposable, doing)
        if seen.status == "paused":
            raise ConnectError(f"{doing}: it is paused; continue it with resume_sandbox")
        return await open_container(self._cli, disposable, self._fate)

    async def _fate(self, disposable: Disposable) -> str:
        """The status of a container that does not answer; empty if the engine does not answer either."""
        with contextlib.suppress(SandboxError):
            return (await self.inspect(disposable)).status
        return ""

    async def inspect(self, disposable: Disposable) -> Disposable:
        seen = await self._inspect(disposable.key, f"unable to look at {disposable.title}")
        if seen is None or not seen.is_ours(self._mark, disposable.id):
            is_over = 0 < disposable.expires <= time.time()
            return replace(disposable, status="expired" if is_over else "gone")
        return replace(disposable, status=seen.status)

    async def list(self) -> Sequence[Disposable]:
        if self._listing is None or time.monotonic() - self._listed_at > FRESH_S:
            self._listed_at = time.monotonic()
            self._listing = self._chores.start(self._all())
        found = await asyncio.shield(self._listing)
        return [seen.disposable(self._kind) for seen in found if seen.is_ours(self._mark)]

    async def delete(self, disposable: Disposable) -> None:
        doing = f"unable to delete {disposable.title}"
        if await self._mine(disposable, doing):
            await self._remove(disposable.key, doing)
            if disposable.limits.gpus and self._jobs is not None:
                # It would end by itself, but whoever waits for the cards need not wait for that.
                await (await self._jobs()).stop(JobQuery(session=holder_name(disposable.id)), grace_s=1.0)

    async def renew(self, disposable: Disposable, timeout_s: float) -> Disposable:
        doing, begun = f"unable to renew {disposable.title}", time.time()
        seen = await self._must_be_mine(disposable, doing)
        if seen.status == "paused":
            raise ConnectError(f"{doing}: it is paused; continue it with resume_sandbox")
        self._check(await self._command("exec", disposable.key, "/bin/sh", "-c", renewal(timeout_s)), doing)
        return replace(disposable, expires=begun + max(1, round(timeout_s)) if timeout_s else 0.0)

    async def pause(self, disposable: Disposable) -> Disposable:
        return await self._turn(disposable, "pause", "paused")

    async def resume(self, disposable: Disposable) -> Disposable:
        return await self._turn(disposable, "unpause", "running")

    async def _turn(self, disposable: Disposable, verb: str, status: str) -> Disposable:
        doing = f"unable to {'pause' if status == 'paused' else 'resume'} {disposable.title}"
        seen = await self._must_be_mine(disposable, doing)
        if seen.status != status:
            self._check(await self._command(verb, disposable.key), doing)
            self._listing = None
        return replace(disposable, status=status)

    async def snapshot(self, disposable: Disposable, name: str = "") -> str:
        tool, machine = self._cli.engine.tool, self._cli.machine
        raise Unsupported(
            f"{disposable.title} is a container on {machine}, of which no image is made here; download what you want "
            f"to keep, or use {tool} commit on {machine}"
        )

    async def endpoint(self, disposable: Disposable, port: int) -> str:
        raise Unsupported(
            f"{disposable.title} is a container on {self._cli.machine}, whose ports have no address; forward the port"
        )

    async def close(self) -> None:
        await self._chores.close()

    # What the engine is asked

    async def _command(self, *words: str) -> ConsoleOutput:
        return await self._cli.ask([*self._cli.engine.command, *words])

    def _check(self, said: ConsoleOutput, doing: str) -> None:
        """Raises UnknownSandbox for a container that is gone by now, SandboxError for other failures."""
        if said.status and said.says(GONE):
            raise _gone(doing)
        if said.status:
            raise self._cli.problem(doing, said)

    async def _inspect(self, key: str, doing: str) -> Seen | None:
        """The container with that id; None if there is none."""
        if not KEY.match(key):
            return None
        said = await self._command("inspect", "--type=container", key)
        if said.status and said.says(GONE):
            return None
        self._check(said, doing)
        return next((seen for seen in self._read(said) if seen.key == key), None)

    def _read(self, said: ConsoleOutput) -> Sequence[Seen]:
        with understood(self._cli.where):
            return read_seen(said.out)

    async def _all(self) -> Sequence[Seen]:
        """All containers with our mark, except those that vanish meanwhile."""
        tool = self._cli.engine.command
        ids = join([*tool, "ps", "--all", "--quiet", "--no-trunc", f"--filter=label={MARK}={self._mark}"])
        inspect = join([*tool, "inspect", "--type=container"])
        said = await self._cli.run(f'{{ ids=$({ids}) && {{ [ -z "$ids" ] || {inspect} $ids; }}; }}')
        if said.status and not said.says(GONE):
            raise self._cli.problem(f"unable to list the sandboxes on {self._cli.machine}", said)
        return self._read(said)

    async def _remove(self, key: str, doing: str) -> None:
        """Remove a container with its unnamed volumes; returns when it is gone."""
        self._listing = None
        said = await self._cli.ask(remove_words(self._cli.engine, key))
        if said.status and not said.says((*GONE, *REMOVING)):
            raise self._cli.problem(doing, said)
        until = time.monotonic() + GONE_S
        while await self._inspect(key, doing) is not None:
            if time.monotonic() > until:
                raise Unreachable(f"{doing}: it is still being removed after {GONE_S:g} s; try again later")
            await asyncio.sleep(SOON_S)
        self._listing = None

    async def _mine(self, disposable: Disposable, doing: str) -> Seen | None:
        """The container; None if it is gone. Raises UnknownSandbox for one that is not ours."""
        seen = await self._inspect(disposable.key, doing)
        if seen is not None and not seen.is_ours(self._mark, disposable.id):
            raise UnknownSandbox(f"{doing}: its container belongs to somebody else, and is left alone")
        return seen

    async def _must_be_mine(self, disposable: Disposable, doing: str) -> Seen:
        seen = await self._mine(disposable, doing)
        if seen is None:
            raise _gone(doing)
        return seen


def _gone(doing: str) -> UnknownSandbox:
    return UnknownSandbox(f"{doing}: it is gone: it was deleted, or its time was over; create another one")
