"""An allocation as a Sandbox: an outpost in its batch step, by srun over the login node's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from ...core.commands.command import Environment
from ...core.commands.shell import join, quote
from ...core.errors import ConnectError, Unsupported
from ...core.sandboxes.disposable import Disposable, is_pending
from ...core.sandboxes.sandbox import Capabilities, Description, Sandbox
from ..command.provided import ProvidedShellAlone, ProvidedWay, open_provided
from ..command.way import CommandLine, Way
from ..shell.transport import Gone, ShellPlace
from .order import step_line
from .queue import ClusterQueue

# The present state of an allocation in its queue; None if the queue does not say.
Fate = Callable[[Disposable], Awaitable[Disposable | None]]
# It takes so long until srun has made a step, on a busy controller.
OPEN_S = 60.0
# Where sites have them that put them into the PATH of people only.
USUAL_FOLDERS = "export PATH=$PATH:/opt/slurm/bin:/usr/local/slurm/bin:/cm/shared/apps/slurm/current/bin"
FIND_COMMANDS = "command -v sbatch && command -v srun && command -v squeue"


Wrap = Callable[[str], str]


class LoginWay(Way):
    """The login node, with what brings Slurm there: nothing, its table's lines, usual folders, or a login shell."""

    def __init__(self, way: Way, environment: Environment) -> None:
        self._way = way
        self._environment = environment
        self._wrap: Wrap | None = None
        self._finding = asyncio.Lock()

    @property
    def what(self) -> str:
        return self._way.what

    async def open(self, shell_line: str) -> CommandLine:
        async with self._finding:
            self._wrap = self._wrap or await self._find()
        return await self._way.open(self._wrap(shell_line))

    async def _find(self) -> Wrap:
        query = f"exec {join(['sh', '-c', FIND_COMMANDS])}"
        for wrap in self._wraps():
            line = await self._way.open(wrap(query))
            try:
                while await line.read():
                    pass
                if (await line.ending()).status == 0:
                    return wrap
            finally:
                line.close()
        # The first command will say that there are none.
        return str

    def _wraps(self) -> Iterator[Wrap]:
        # No more than is needed: the table's lines may hold what others should not see in a list of processes.
        yield str
        if self._environment.init or self._environment.shell or "PATH" in self._environment.env:
            yield self._by_table
        yield lambda line: f"exec {join(['sh', '-c', f'{USUAL_FOLDERS}; {line}'])}"
        yield lambda line: f"exec {join(['bash', '-lc', line])}"

    def _by_table(self, line: str) -> str:
        path = self._environment.env.get("PATH", "")
        source = self._environment.source(f"export PATH={quote(path)}\n{line}" if path else line)
        return f"exec {join([*(self._environment.shell or ('bash', '-c')), source])}"


@dataclass(frozen=True)
class AllocationWay(ProvidedWay):
    """The way into one allocation: a step of srun, which hands the shell line to the holder there."""

    queue: ClusterQueue
    disposable: Disposable
    fate: Fate

    @property
    def what(self) -> str:
        return f"srun on {self.queue.machine}"

    async def open(self, shell_line: str) -> CommandLine:
        return await self.open_step("L", shell_line)

    async def open_step(self, wanted: str, text: str) -> CommandLine:
        it, version = self.disposable, await self.queue.version()
        return await self.queue.console.way.open(step_line(it.key, it.id, wanted, text, version))

    async def why_not(self) -> ConnectError | None:
        title, seen = self.disposable.title, await self.fate(self.disposable)
        if seen is None or seen.status == "running":
            return None
        if seen.status == "pending":
            return is_pending(seen)
        why = seen.reason or "has ended: it was deleted, or its time was over"
        return Gone(f"{title} {why}; create another one")


def describe(disposable: Disposable, *, has_holder: bool = True) -> Description:
    capabilities = Capabilities(
        survives_disconnect=has_holder, kills_trees=has_holder, network=True, on_machine=disposable.machine
    )
    return Description(disposable.title, disposable.kind, disposable.machine, capabilities=capabilities)


async def open_allocation(way: AllocationWay, environment: Environment) -> Sandbox:
    """Open it the best way that its node offers. Raises ConnectError."""

    def open_plain() -> PlainAllocation:
        return PlainAllocation(way, environment)

    return await open_provided(way, describe(way.disposable), environment, open_plain, OPEN_S)


class PlainAllocation(ProvidedShellAlone):
    """An allocation on a node without Python: each command is a step of its own, and nothing outlives its step."""

    def __init__(self, way: AllocationWay, environment: Environment) -> None:
        place = ShellPlace(way.disposable.title, "machine", jobs_at_home=False)
        super().__init__(way, describe(way.disposable, has_holder=False), environment, place)
        self.jobs = NoJobs(way.disposable.title)


class NoJobs:
    """Every method raises Unsupported."""

    def __init__(self, name: str) -> None:
        self._why = Unsupported(
            f"{name}: there is no python3 on its node, so a background job would end with the call that starts it; "
            "submit it to the cluster itself with exec_bash_background, or ask for nodes with Python"
        )

    async def start(self, *_given: Any, **_options: Any) -> NoReturn:
        raise self._why

    inspect = wait = stop = list = send = start
