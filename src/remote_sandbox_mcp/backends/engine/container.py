"""A container on a machine as a Sandbox: an outpost in it, by the engine's `exec` over the machine's connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...core.command import Environment
from ...core.disposable import Disposable
from ...core.errors import ConnectError
from ...core.sandbox import Capabilities, Description, Sandbox
from ...core.shell import join
from ..command.provided import ProvidedShellAlone, open_provided
from ..command.way import CommandLine
from ..shell.transport import Gone, Paused, Place
from .cli import Cli

# How a container stands, as its provider says; empty where nobody can tell.
Fate = Callable[[Disposable], Awaitable[str]]
AS_IT_IS = Environment()
# podman drops what a program has printed if it ends while there is input for it: a shell that finds no Python does.
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
    """Open it the best way that its image offers. Raises ConnectError."""
    way = ContainerWay(cli, disposable, fate)

    def open_plain() -> ProvidedShellAlone:
        # A container that is started again finds its folders as they were.
        place = Place(disposable.title, "container", jobs_at_home=False)
        return ProvidedShellAlone(way, describe(disposable, kills_trees=False), environment, place)

    return await open_provided(way, describe(disposable), environment, open_plain)


@dataclass(frozen=True)
class ContainerWay:
    """The way into one container: its engine's `exec`, as a program on the machine."""

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
        """Nothing: its engine is asked what became of it."""
        return None

    async def why_not(self) -> ConnectError | None:
        """Why nothing can be done in it, where its engine knows."""
        title, status = self.disposable.title, await self.fate(self.disposable)
        if status == "paused":
            return Paused(f"{title} is paused; continue it with resume_sandbox")
        if status in ("gone", "expired", "ended"):
            return Gone(f"{title} is gone: it was deleted, or its time was over; create another one")
        return None
