"""A Sandbox for SSH machines without Python: a POSIX shell over plain session channels, sync over SFTP."""

from __future__ import annotations

import asyncio

from ...core.commands.command import Environment
from ...core.errors import ConnectError, Unreachable
from ...core.sandboxes.port import Stream
from ...core.sandboxes.sandbox import Description
from ..link.client import LineLost
from ..mending import ask_again
from ..shell.sandbox import ShellAlone
from ..shell.talk import MOST_COMPLAINTS, START_LINE, Talk, bring
from ..shell.transport import Printed, ShellPlace, ShellRequest
from .channels import Channels, ProgramLine
from .connection import LoginGate
from .library import asyncssh
from .ports import PlainPorts
from .sftp_lane import SftpLane, open_lane


class ChannelShell:
    """A Transport whose requests are session channels, on which a shell reads the variables and the program."""

    def __init__(self, channels: Channels, name: str) -> None:
        self._channels = channels
        self._name = name

    @property
    def is_open(self) -> bool:
        return self._channels.is_open

    async def why_not(self) -> ConnectError | None:
        return None

    async def close(self) -> None:
        await self._channels.close()

    async def run(self, request: ShellRequest) -> Printed:
        try:
            async with self._channels.process(
                START_LINE, urgent=request.urgent, stderr=asyncio.subprocess.PIPE
            ) as process:
                line = ChannelTalk(process)
                try:
                    return await Talk(line, request, self._name, "logged in").hold()
                finally:
                    await line.close()
        except (LineLost, OSError, asyncssh.Error, asyncio.TimeoutError) as problem:
            raise Unreachable(f"{self._name}: the connection was cut; try again") from problem

    async def upload(self, base: str, name: str, content: bytes) -> str:
        """Send a file through the shell itself: a machine may have no SFTP."""
        return await bring(self.run, self._name, base, name, content)


class ChannelTalk:
    """A session channel as a ShellLine."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._process = process
        self._listening = asyncio.ensure_future(self._listen())

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def send(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except asyncssh.Error as problem:
            raise OSError(problem.reason) from None

    def end_input(self) -> None:
        self._process.stdin.write_eof()

    async def read(self) -> bytes:
        return await self._process.stdout.read(1 << 18)

    async def complaints(self) -> bytes:
        try:
            return await asyncio.shield(self._listening)
        except asyncssh.Error as problem:
            raise OSError(problem.reason) from None

    async def _listen(self) -> bytes:
        heard = bytearray()
        while data := await self._process.stderr.read(1 << 16):
            # What is not kept is still read, so that the program does not block.
            heard += data[: MOST_COMPLAINTS - len(heard)]
        return bytes(heard)

    async def status(self) -> int | None:
        await self._process.wait_closed()
        return self._process.exit_status


class PlainSandbox(ShellAlone):
    """A machine with a POSIX shell. Trees of files are copied over SFTP, where it has that."""

    def __init__(
        self,
        description: Description,
        environment: Environment,
        gate: LoginGate,
        connection: asyncssh.SSHClientConnection | None = None,
    ) -> None:
        """`connection` is logged in already."""
        self._channels = Channels(gate)
        if connection is not None:
            self._channels.adopt(connection)
        # A machine's temporary folder may be emptied at a restart, so jobs are kept in the home folder.
        place = ShellPlace(description.name, "machine", jobs_at_home=True)
        super().__init__(description, environment, ChannelShell(self._channels, description.name), place)
        self._ports = PlainPorts(gate, lambda: self._channels.connection)

    @property
    def connection(self) -> object | None:
        return self._channels.connection

    async def close(self) -> None:
        await self._ports.close()
        await super().close()

    async def open_lane(self) -> SftpLane:
        home = await self._shell.home()
        return await ask_again(self.description.name, lambda: open_lane(self._channels, self.description.name, home))

    async def connect(self, port: int) -> Stream:
        return await self._ports.connect(port)

    async def start(self, line: str, *, walled: bool = True) -> ProgramLine:
        """Start a program by a line for the login shell, on a channel of its own. Raises ConnectError."""
        process, let_go = await ask_again(self.description.name, lambda: self._channels.own_process(line))
        return ProgramLine(process, let_go)
