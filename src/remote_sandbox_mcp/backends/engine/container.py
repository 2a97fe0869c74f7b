"""A container on a machine as a Sandbox: its outpost is started by the engine's `exec` on that machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...core.command import Command, Completed, Environment, Running
from ...core.disposable import Disposable
from ...core.errors import ConnectError, LostContact, Unreachable
from ...core.progress import Progress, silent
from ...core.sandbox import Capabilities, Description, Sandbox
from ...core.shell import join
from ..command.sandbox import OPEN_S, Entrance, NoPython
from ..command.shell import CommandShell
from ..command.way import CommandLine
from ..outpost.client import OutpostClient
from ..outpost.relay import RelayPorts
from ..outpost.sandbox import OutpostSandbox
from ..shell.alone import ShellAlone
from ..shell.sandbox import lost_with
from ..shell.transport import Gone, Paused, Place
from .cli import Cli

# Asks the provider for a container's status; empty if the engine does not answer.
Fate = Callable[[Disposable], Awaitable[str]]
AS_IT_IS = Environment()
# podman drops the output of a program that ends before its input was read, as a shell does that finds no Python.
UNTIL_HEARD = "trap 'sleep 1' EXIT"


def describe(disposable: Disposable, *, kills_trees: bool = True) -> Description:
    capabilities = Capabilities(
        survives_disconnect=True,
        kills_trees=kills_trees,
        network=disposable.network,
        on_machine=disposable.machine,
    )
    return Description(disposable.title, disposable.kind, disposable.machine, capabilities=capabilities)


async def open_container(cli: Cli, disposable: Disposable, fate: Fate, environment: Environment = AS_IT_IS) -> Sandbox:
    """Open a container with an outpost, or with a plain shell if its image has no Python. Raises ConnectError."""
    way = ContainerWay(cli, disposable, fate)
    sandbox = ContainerSandbox(way, environment)
    try:
        await sandbox.open()
        return sandbox
    except NoPython:
        await sandbox.close()
    except BaseException:
        await sandbox.close()
        raise
    plain = PlainContainer(way, environment)
    try:
        await plain.open()
    except BaseException:
        await plain.close()
        raise
    return plain


@dataclass(frozen=True)
class ContainerWay:
    """Starts programs in one container: by the engine's `exec`, which is a program on the machine."""

    cli: Cli
    disposable: Disposable
    fate: Fate

    @property
    def what(self) -> str:
        return f"{self.cli.engine.tool} exec on {self.cli.machine}"

    async def open(self, shell_line: str) -> CommandLine:
        if self.cli.engine.tool == "podman":
            shell_line = f"{UNTIL_HEARD}; {shell_line}"
        words = [*self.cli.engine.command, "exec", "--interactive", self.disposable.key, "/bin/sh", "-c", shell_line]
        return await self.cli.way.open(f"exec {join(words)}")

    def explain(self, complaints: bytes) -> ConnectError | None:
        """None: why_not asks the engine instead."""
        return None

    async def why_not(self) -> ConnectError | None:
        """Why the container cannot answer, if the engine knows."""
        title, status = self.disposable.title, await self.fate(self.disposable)
        if status == "paused":
            return Paused(f"{title} is paused; continue it with resume_sandbox")
        if status in ("gone", "expired", "ended"):
            return Gone(f"{title} is gone: it was deleted, or its time was over; create another one")
        return None


class ContainerSandbox(OutpostSandbox):
    """An outpost in a container, which may be paused or killed, or expire, at any moment."""

    def __init__(self, way: ContainerWay, environment: Environment) -> None:
        name = way.disposable.title
        self._way = way
        self._entrance = Entrance(way, name, "python3", OPEN_S)
        self._fate: ConnectError | None = None
        ports = RelayPorts(name, lambda _: self._entrance.relay())
        super().__init__(describe(way.disposable), environment, self._enter, lambda _: self._entrance.lane(), ports)

    async def _enter(self) -> OutpostClient:
        self._fate = None
        try:
            return await self._entrance.outpost()
        except (NoPython, Unreachable) as problem:
            # The engine knows best why a container does not answer.
            self._fate = await self._way.why_not()
            if self._fate is not None:
                raise self._fate from None
            if isinstance(problem, NoPython) and self.hello:
                raise Unreachable(f"unable to open {self.description.name}: its Python starts no more") from None
            raise

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        try:
            return await super().run(command, patience_s=patience_s, progress=progress)
        except LostContact as lost:
            raise lost_with(self.description.name, self._fate, lost.so_far) or lost from None


class PlainContainer(ShellAlone):
    """A container without python3: a POSIX shell in it, started anew for each request."""

    def __init__(self, way: ContainerWay, environment: Environment) -> None:
        name = way.disposable.title
        # A restart keeps a container's temporary folder, so jobs need not be in the home folder.
        place = Place(name, "container", jobs_at_home=False)
        described = describe(way.disposable, kills_trees=False)
        super().__init__(described, environment, ContainerShell(way, name), place)


class ContainerShell(CommandShell):
    """A Transport that asks the engine why its container does not answer."""

    def __init__(self, way: ContainerWay, name: str) -> None:
        super().__init__(way, name)
        self._container = way

    async def why_not(self) -> ConnectError | None:
        return await self._container.why_not()
