"""A container as a Sandbox: an outpost in it, over a line through the platform's HTTP proxies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...core.commands.command import Environment
from ...core.commands.shell import quote
from ...core.errors import ConnectError, SandboxError, Unreachable
from ...core.sandboxes.disposable import Disposable
from ...core.sandboxes.sandbox import Capabilities, Description
from ...far import program
from ...far.http_bridge import IN_PLACE
from ...far.program import read_program
from ...local.waiting import undone_by, unlogged, within
from ..command.provided import FatedSandbox
from ..link.client import NoOutpost, OutpostClient
from ..link.lane import OutpostLane
from ..link.relay import RELAY, PortRelay, RelayPorts
from ..shell.transport import Gone, Paused
from . import KIND
from .api import IN_MEMORY, Link
from .http_line import HttpLine
from .problems import too_old

if TYPE_CHECKING:
    from opensandbox.models.execd import Execution

PYTHON = "python3"
G = TypeVar("G", OutpostClient, OutpostLane, PortRelay)
SOON_OPEN_S, OPEN_S = 6.0, 20.0
# A line over an upgraded connection is greeted within this time. If it is not, a proxy accepted the upgrade but does
# not pass on any bytes.
UPGRADED_S = 6.0
NOT_FOUND = 127
LONGEST_PORT = 5


class NoPythonInContainer(Exception):
    """There is no python3 in the container."""


def describe(disposable: Disposable, *, kills_trees: bool = True) -> Description:
    capabilities = Capabilities(
        survives_disconnect=True, kills_trees=kills_trees, network=disposable.network, through_platform=True
    )
    return Description(disposable.title, KIND, capabilities=capabilities)


class BridgeWay:
    """Opens lines to one container: starts a bridge in it, which carries any number of lines."""

    def __init__(self, link: Link, disposable: Disposable) -> None:
        self._link = link
        self.disposable = disposable
        self._address: tuple[str, dict[str, str]] | None = None
        self._building: asyncio.Task[tuple[str, dict[str, str]]] | None = None
        # The platform's own proxy does not support upgraded connections.
        self._may_upgrade = not link.platform.use_server_proxy

    async def outpost(self) -> OutpostClient:
        """Raises ConnectError, NoPythonInContainer."""
        # A paused container accepts connections, too, and leaves them waiting.
        if self._address and isinstance(fate := await self._link.why_not(self.disposable), (Gone, Paused)):
            raise fate
        return await self._greeted(program.OUTPOST, lambda line: OutpostClient(line, self.disposable.title))

    async def lane(self) -> OutpostLane:
        """Raises ConnectError."""
        return await self._greeted(program.LANE, lambda line: OutpostLane(line, self.disposable.title))

    async def relay(self) -> PortRelay:
        """Raises ConnectError."""
        return await self._greeted(RELAY, lambda line: PortRelay(line, self.disposable.title))

    async def _greeted(self, pieces: tuple[str, ...], make: Callable[[HttpLine], G]) -> G:
        """Open a line, start a program on it, and wait for its greeting. Raises ConnectError, NoPythonInContainer."""
        # If that fails on an upgraded connection, it is tried again without an upgrade.
        line, token = await self._line(pieces, self._may_upgrade)
        try:
            return await self._hear(line, token, make)
        except (NoOutpost, asyncio.TimeoutError) as problem:
            if not line.is_upgraded:
                raise await self._why(str(problem) or "no answer in time") from None
        line, token = await self._line(pieces, may_upgrade=False)
        try:
            spoken = await self._hear(line, token, make)
        except (NoOutpost, asyncio.TimeoutError) as problem:
            raise await self._why(str(problem) or "no answer in time") from None
        self._may_upgrade = False
        return spoken

    async def _hear(self, line: HttpLine, token: str, make: Callable[[HttpLine], G]) -> G:
        """Raises NoOutpost, TimeoutError, Unreachable."""
        spoken = make(line)
        with undone_by(line.close):
            await within(spoken.greet(token), UPGRADED_S if line.is_upgraded else OPEN_S)
        return spoken

    async def _line(self, pieces: tuple[str, ...], may_upgrade: bool, *, again: bool = True) -> tuple[HttpLine, str]:
        """Start a program on a new line; if the bridge is gone, start a new bridge first."""
        try:
            # Not within the time limit below: each part of it has its own, and a busy platform may be slow.
            address = await self._bridge()
            return await within(self._start(address, pieces, may_upgrade), SOON_OPEN_S if again else OPEN_S)
        except (NoOutpost, asyncio.TimeoutError) as problem:
            self._address = None
            if not again:
                raise await self._why(str(problem) or "no answer in time") from None
        if why := await self._link.why_not(self.disposable):
            raise why
        return await self._line(pieces, may_upgrade, again=False)

    async def _start(
        self, address: tuple[str, dict[str, str]], pieces: tuple[str, ...], may_upgrade: bool
    ) -> tuple[HttpLine, str]:
        url, headers = address
        token = secrets.token_hex(16)
        line = HttpLine(self._link.client, f"{url}/line", headers, may_upgrade=may_upgrade)
        with undone_by(line.close):
            await line.start([PYTHON, "-IS", "-c", program.loader(pieces), token])
        line.write(program.packed(pieces))
        return line, token

    async def _bridge(self) -> tuple[str, dict[str, str]]:
        """The address of the bridge; callers that come while it is being started share it."""
        if self._address is None:
            if self._building is None or self._building.done():
                self._building = unlogged(asyncio.create_task(self._build()))
            self._address = await asyncio.shield(self._building)
        return self._address

    async def _build(self) -> tuple[str, dict[str, str]]:
        doing, key = f"unable to open {self.disposable.title}", secrets.token_hex(16)
        # The platform's agent in a paused container accepts requests and never answers them.
        if why := await self._link.why_not(self.disposable):
            raise why
        try:
            done, printed = await self._run_in(
                f"exec {PYTHON} -IS -c {quote(read_program('http_bridge.py'))}", key, doing
            )
            # Older agents ignore variables, so that the key did not reach the bridge.
            if any("KeyError: 'LINE_" in message.text for message in done.logs.stderr):
                raise too_old(doing, self._link.name)
            port = _port(done, printed)
            url, headers = await self._link.endpoint(self.disposable.key, port, doing)
        except ConnectError:
            raise
        except SandboxError as problem:
            raise ConnectError(str(problem)) from None
        return url, {**headers, "X-Line-Key": key}

    async def _run_in(self, script: str, key: str, doing: str) -> tuple[Execution, str]:
        """Run a command through the platform's agent; returns its end and what it printed."""
        from opensandbox.models.execd import RunCommandOpts

        sandbox = await self._link.sandbox(self.disposable.key, doing)
        place = f"{IN_MEMORY}/remote-sandbox-{secrets.token_hex(16)}"
        options = RunCommandOpts(envs={"LINE_KEY": key, "LINE_PLACE": place})
        try:
            done = await within(self._link.checked_by_agent(doing, sandbox.commands.run(script, opts=options)), OPEN_S)
            if done.exit_code == IN_PLACE:
                return done, (await self._link.take_file(self.disposable.key, place, doing)).decode("utf-8", "replace")
        except Unreachable:
            # The container's address may have changed at a restart of the platform.
            self._link.forget(self.disposable.key)
            raise
        return done, "\n".join(message.text for message in done.logs.stdout)

    async def _why(self, problem: str) -> ConnectError:
        """The platform's reason why a container does not answer, or else `problem`."""
        why = await self._link.why_not(self.disposable)
        return why or Unreachable(f"unable to open {self.disposable.title}: {problem}")


def _port(done: Execution, printed: str) -> int:
    if done.exit_code == NOT_FOUND:
        raise NoPythonInContainer
    for line in printed.splitlines():
        word, _, number = line.partition(" ")
        if word == "bridge" and len(number) <= LONGEST_PORT and number.isascii() and number.isdigit():
            return int(number)
    complaint = " ".join(message.text for message in done.logs.stderr)[-200:]
    raise NoOutpost(f"its Python could not start the line: {complaint or f'exit code {done.exit_code}'}")


class ContainerSandbox(FatedSandbox):
    """An outpost in a container, which may be paused or killed, or expire, at any moment."""

    def __init__(self, way: BridgeWay, environment: Environment) -> None:
        ports = RelayPorts(way.disposable.title, lambda _: way.relay())
        super().__init__(describe(way.disposable), environment, self._enter, lambda _: way.lane(), ports)
        self._way = way

    async def _enter(self) -> OutpostClient:
        try:
            client = await self._way.outpost()
        except ConnectError as problem:
            self.fate = problem
            raise
        self.fate = None
        return client
