"""A Sandbox for SSH machines without Python: a POSIX shell over plain session channels, files over SFTP."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, TypeVar

from ...core.command import Environment
from ...core.errors import ConnectError, FileProblem, Unreachable
from ...core.files import FileSlice, Found, Listing, Search, Span, Written
from ...core.foreign import too_much
from ...core.port import Stream
from ...core.sandbox import Description
from ...core.shell import quote
from ...core.text import last_line
from ...waiting import within
from ..mending import ask_again
from ..outpost.client import LineLost
from ..shell.files import ShellFiles
from ..shell.program import RUNS, source
from ..shell.sandbox import ShellSandbox
from ..shell.search import find_matches
from ..shell.transport import FULL, NoRoom, Place, Printed, Request
from .channels import Channels
from .connection import Gate
from .plain_files import PlainFiles
from .ports import PlainPorts
from .sftp_lane import SftpLane, open_lane

if TYPE_CHECKING:
    import asyncssh

# Plain words only, so that every login shell takes it alike.
START_LINE = "exec sh -s"
# The far side says something every two seconds while a command runs; it may be very busy, or stopped.
SILENCE_S = 20.0
# Other requests say nothing until their answer is there.
ANSWER_S = 90.0
LONGEST_GREETING, MOST_COMPLAINTS = 1 << 20, 1 << 20
# Cannot be an exported variable: one that is may hold 128 KiB on Linux.
INNER = "RSM_DATA"

T = TypeVar("T")


class ChannelShell:
    """Each request is one session channel, on which a shell reads the variables and then the program."""

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

    async def run(self, request: Request) -> Printed:
        import asyncssh

        try:
            async with self._channels.process(
                START_LINE, urgent=request.urgent, stderr=asyncio.subprocess.PIPE
            ) as process:
                return await _Talk(process, request, self._name).hold()
        except (LineLost, OSError, asyncssh.Error, asyncio.TimeoutError) as problem:
            raise Unreachable(f"{self._name}: the connection was cut; try again") from problem

    async def upload(self, base: str, name: str, content: bytes) -> str:
        """Through the shell itself: a machine may have no SFTP."""
        text = content.decode("utf-8", "surrogateescape")
        given = {"RSM_PROGRAM": source(RUNS), "RSM_VERB": "bring", "RSM_BASE": base, "RSM_FROM": name, INNER: text}
        printed = await self.run(Request(given))
        if "state brought" not in printed.lines:
            raise NoRoom(f"{self._name}: {FULL}")
        return f"{base}/{name}"


def script_of(request: Request, token: str) -> tuple[bytes, bytes]:
    """What is sent to the shell; nothing of it happens before the last line has arrived.

    Bytes before the token are a start-up file's and mean nothing.
    """
    given = "".join(f"{name}={quote(value)}\n" for name, value in request.variables.items())
    names = " ".join(name for name in request.variables if name != INNER)
    last = f"""printf '\\n%s\\n' {token}; trap 'echo {token}' EXIT; exec </dev/null; eval "$RSM_PROGRAM"; exit\n"""
    return (given + f"export {names}\n").encode("utf-8", "surrogateescape"), last.encode()


class _Talk:
    """One channel on which something was asked."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], request: Request, name: str) -> None:
        self._process = process
        self._request = request
        self._name = name
        self._token = secrets.token_hex(16)
        self._lines: list[str] = []
        self._rest = self._noise = b""
        self._heard, self._over = False, False
        # Of what is kept, or was heard before the token.
        self._size = 0

    async def hold(self) -> Printed:
        """Ask, and listen until the last word. Raises LineLost, BrokenRules; Unreachable where no shell runs it."""
        import asyncssh

        complaints = asyncio.ensure_future(self._complaints())
        try:
            # Who ends before everything is sent may have said why.
            with contextlib.suppress(OSError, asyncssh.Error):
                await self._send()
            while not self._over:
                self._take(await self._read())
                if self._size + len(self._rest) > (self._request.most if self._heard else LONGEST_GREETING):
                    raise too_much(self._name)
            await asyncio.wait((complaints,), timeout=1.0)
            return Printed(self._lines, complaints.result() if complaints.done() else ())
        finally:
            complaints.cancel()
            await asyncio.gather(complaints, return_exceptions=True)

    async def _send(self) -> None:
        text, last = script_of(self._request, self._token)
        stdin = self._process.stdin
        stdin.write(text)
        await stdin.drain()
        self._request.sent = True
        stdin.write(last)
        stdin.write_eof()

    async def _read(self) -> bytes:
        limit = ANSWER_S if self._request.urgent else SILENCE_S
        if data := await within(self._process.stdout.read(1 << 18), limit):
            return data
        await within(self._process.wait_closed(), SILENCE_S)
        if not self._heard and self._process.exit_status is not None:
            said = last_line(self._noise) or f"it ended with status {self._process.exit_status}"
            raise Unreachable(f"{self._name}: logged in, but its shell does not run commands: {said}")
        raise LineLost

    def _take(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            if line == self._token.encode():
                self._heard, self._over, self._size = True, self._heard, 0
                continue
            # Of a command that goes on for days there are many beats, and none is needed when the next has come.
            is_passing = self._heard and line.startswith(b"beat ")
            self._size += 0 if is_passing else len(line)
            if self._heard and not self._over:
                self._hear(line.decode("utf-8", "surrogateescape"), is_passing)
        # A start-up file's last words may be why no shell runs anything.
        self._noise = (self._noise + data)[-4096:]

    def _hear(self, line: str, is_passing: bool) -> None:
        self._request.heard(line)
        if not is_passing:
            self._lines.append(line)

    async def _complaints(self) -> tuple[str, ...]:
        heard = bytearray()
        while data := await self._process.stderr.read(1 << 16):
            # What is not kept is read all the same: who complains must not wait for us.
            heard += data[: MOST_COMPLAINTS - len(heard)]
        return tuple(heard.decode("utf-8", "surrogateescape").splitlines())


class PlainSandbox(ShellSandbox):
    """A machine with a POSIX shell. Its files come over SFTP, which is faster, and knows any size."""

    def __init__(
        self,
        description: Description,
        environment: Environment,
        gate: Gate,
        connection: asyncssh.SSHClientConnection | None = None,
    ) -> None:
        """`connection`: one that is logged in already."""
        self._channels = Channels(gate)
        if connection is not None:
            self._channels.adopt(connection)
        # A machine's temporary folder may be emptied when it starts.
        place = Place(description.name, "machine", jobs_at_home=True)
        super().__init__(description, environment, ChannelShell(self._channels, description.name), place)
        self._files = PlainFiles(self._channels, description.name, self._shell.home)
        self._ports = PlainPorts(gate, lambda: self._channels.connection)

    async def close(self) -> None:
        await self._ports.close()
        await super().close()

    async def read(self, path: str, span: Span) -> FileSlice:
        return await ask_again(self.description.name, lambda: self._files.read(path, span))

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        with contextlib.suppress(LineLost):
            return await self._files.write(path, data, expected)
        # It may have been written before the cut: then the file says so.
        with contextlib.suppress(FileProblem):
            found = await self.read(path, Span(limit=len(data) + 1))
            if found.data == data:
                return Written(found.size, found.version)
        return await ask_again(self.description.name, lambda: self._files.write(path, data, expected))

    async def list(self, path: str, *, recursive: bool = False, limit: int = 200) -> Listing:
        return await ask_again(self.description.name, lambda: self._files.list(path, recursive, limit))

    async def search(self, search: Search) -> Found:
        return await find_matches(ShellFiles(self._shell), search)

    async def open_lane(self) -> SftpLane:
        home = await self._shell.home()
        return await ask_again(self.description.name, lambda: open_lane(self._channels, self.description.name, home))

    async def connect(self, port: int) -> Stream:
        return await self._ports.connect(port)
