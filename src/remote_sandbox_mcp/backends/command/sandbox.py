"""A Sandbox behind a command that gives a shell: an outpost on its input and output, or that shell without python3."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from ...core.commands.command import Environment
from ...core.errors import ConnectError, SandboxError, Unreachable, Unsupported
from ...core.sandboxes.machine import CommandPlace
from ...core.sandboxes.sandbox import Capabilities, Description
from ...core.sandboxes.secret import Secret
from ...far import program
from ...local.waiting import undone_by, within
from ..link.client import LineLost, NoOutpost, OutpostClient
from ..link.lane import OutpostLane
from ..link.relay import RELAY, PortRelay, RelayPorts
from ..link.sandbox import OutpostSandbox
from ..mending import opened
from ..shell.sandbox import ShellAlone
from ..shell.talk import START_LINE, Talk, bring
from ..shell.transport import Printed, ShellPlace, ShellRequest
from .way import CommandEnding, CommandLine, LocalCommand, Way, last_words

OUTPOST = Capabilities(survives_disconnect=True, kills_trees=True, why_not_root="")
PLAIN = Capabilities(survives_disconnect=True, why_not_root="it has no python3, which as_root needs there")
# Some commands are slow to start: those of cloud providers look up a machine and send it a key first.
OPEN_S = 20.0
# How many lanes and relays may run beside the outpost: each is a process here, and often a login there.
MOST_BESIDE = 12
# The shell prints this before our program starts. Without it the command failed; with it, Python is missing.
SHELL_IS_HERE = "shell-"
MOST_REMEMBERED = 64 << 10
# Higher exit codes stand for signals, and 255 for an ssh whose connection was cut.
LAST_OWN_STATUS = 128
# A piece of our packed program of this length does not occur in other output by chance.
PIECE = 6
BY_HAND = "run it in a terminal to see more"

G = TypeVar("G", OutpostClient, OutpostLane, PortRelay)


class NoPython(ConnectError):
    """The command gives a shell, but no python3 that runs an outpost."""


async def open_place(place: CommandPlace) -> OutpostSandbox | ShellAlone:
    """Open what is behind a command of the operator's. Raises ConnectError."""
    return await open_behind(
        LocalCommand(place.command, place.environ),
        Description(place.name, "command"),
        place.environment,
        python=place.python,
        timeout_s=place.connect_timeout_s,
    )


async def open_behind(
    way: Way,
    description: Description,
    environment: Environment,
    *,
    python: str = "python3",
    timeout_s: float = OPEN_S,
    lane_words: tuple[str, ...] = (),
    sudo: Secret | None = None,
    queue_rate_s: float = 0.0,
) -> OutpostSandbox | ShellAlone:
    """Open what is behind a command the best way it offers. `lane_words` go to each lane. Raises ConnectError.

    `sudo` is the password for it there, where commands may be run as root. With `queue_rate_s` it is a cluster's login
    node, whose queue may be asked once in so many seconds.
    """
    entrance = Entrance(way, description.name, python, timeout_s, lane_words)

    async def connect() -> OutpostClient:
        try:
            return await entrance.outpost()
        except NoPython as problem:
            # Python worked there before, so this is a failure, and no reason to fall back to the plain shell.
            if not sandbox.hello:
                raise
            raise Unreachable.of_parts(entrance.doing, f"its Python starts no more ({problem.found})") from None

    ports = RelayPorts(description.name, lambda _: entrance.relay())
    sandbox = CommandSandbox(
        _with(OUTPOST, description), environment, connect, lambda _: entrance.lane(), ports, sudo, queue_rate_s
    )
    sandbox.start = way.open
    try:
        return await opened(sandbox)
    except NoPython:
        return await _open_plain(way, description, environment)


def _with(capabilities: Capabilities, description: Description) -> Description:
    """A description with these capabilities; a configuration that forbids commands as root goes first."""
    why_not = description.capabilities.why_not_root or capabilities.why_not_root
    return replace(description, capabilities=replace(capabilities, why_not_root=why_not))


async def _open_plain(way: Way, description: Description, environment: Environment) -> ShellAlone:
    name = description.name
    # Its temporary folder may be emptied at a restart, as on any machine, so jobs are kept in the home folder.
    place = ShellPlace(name, "machine", jobs_at_home=True)
    plain = PlainCommandSandbox(_with(PLAIN, description), environment, CommandShell(way, name), place)
    plain.start = way.open
    return await opened(plain)


class CommandSandbox(OutpostSandbox):
    """A sandbox behind a command. `start` runs a shell line there as a program with its own line."""

    start: Callable[[str], Awaitable[CommandLine]]


class PlainCommandSandbox(ShellAlone):
    """A sandbox behind a command, without python3."""

    start: Callable[[str], Awaitable[CommandLine]]


class Entrance:
    """Starts our programs behind a command, and waits until they greet."""

    def __init__(self, way: Way, name: str, python: str, timeout_s: float, lane_words: tuple[str, ...] = ()) -> None:
        self._way = way
        self._lane_words = lane_words
        self._name = name
        self._python = python
        self._timeout_s = timeout_s
        self._beside = 0
        self._node = ""
        self.doing = f"unable to open {name}"

    async def outpost(self) -> OutpostClient:
        """Raises ConnectError, NoPython."""
        client = await self._greeted(program.OUTPOST, OutpostClient, lambda: None)
        self._node = str(client.hello.get("node", ""))
        return client

    async def lane(self) -> OutpostLane:
        """Raises ConnectError, and Unsupported if too many run already."""
        lane = await self._greeted(program.LANE, OutpostLane, self._take_place(), self._lane_words)
        await self._check_same(lane)
        return lane

    async def relay(self) -> PortRelay:
        """Raises ConnectError, and Unsupported if too many run already."""
        relay = await self._greeted(RELAY, PortRelay, self._take_place())
        await self._check_same(relay)
        return relay

    async def _check_same(self, beside: OutpostLane | PortRelay) -> None:
        """Raise Unsupported if this line leads elsewhere: a command may start a new container each time."""
        if beside.node == self._node:
            return
        await beside.close()
        what = f"{self._way.what} leads to another place each time that it is started, so files cannot be synced"
        raise Unsupported(f"{self._name}: {what} and ports not reached; name one that leads to the same place")

    def _take_place(self) -> Callable[[], None]:
        """Count a further line; returns the function to call at its end. Raises Unsupported."""
        if self._beside >= MOST_BESIDE:
            raise Unsupported(f"{self._name}: {self._way.what} runs {MOST_BESIDE} times already; try again later")
        self._beside += 1
        return self._give_place_back

    def _give_place_back(self) -> None:
        self._beside -= 1

    async def _greeted(
        self,
        pieces: tuple[str, ...],
        make: Callable[[Beginning, str], G],
        closed: Callable[[], None],
        words: tuple[str, ...] = (),
    ) -> G:
        token = secrets.token_hex(16)
        start = f"echo {SHELL_IS_HERE}{token}; {program.start_line(self._python, token, pieces, *words)}"
        with undone_by(closed):
            line = Beginning(await self._started(start), closed)
        with undone_by(line.close):
            return await self._greeting(line, token, pieces, make)

    async def _started(self, shell_line: str) -> CommandLine:
        try:
            return await within(self._way.open(shell_line), self._timeout_s)
        except ConnectError as problem:
            found, reason = problem.found or str(problem), problem.reason
            raise type(problem).of_parts(self.doing, found, problem.remedy, reason=reason) from None
        except (asyncio.TimeoutError, TimeoutError):
            found = f"{self._way.what} could not be started in {self._timeout_s:g} s"
            raise Unreachable.of_parts(self.doing, found) from None

    async def _greeting(
        self, line: Beginning, token: str, pieces: tuple[str, ...], make: Callable[[Beginning, str], G]
    ) -> G:
        """Send a program and wait for its greeting. Raises ConnectError, NoPython; the caller closes the line."""
        line.write(program.packed(pieces))
        spoken = make(line, self._name)
        try:
            await within(spoken.greet(token), self._timeout_s)
        except NoOutpost:
            raise self._explained(line, token, await line.ending()) from None
        except (asyncio.TimeoutError, TimeoutError):
            raise self._explained(line, token, None) from None
        line.heard.clear()
        line.is_greeted = True
        return spoken

    def _explained(self, line: Beginning, token: str, end: CommandEnding | None) -> SandboxError:
        """Explain why our program did not greet; `end` is None if the time was over."""
        mark, heard = f"{SHELL_IS_HERE}{token}".encode(), bytes(line.heard)
        complaints = end.complaints if end else line.complaints
        words = last_words(complaints) or last_words(heard.replace(mark, b""))
        said = f", and said: {words}" if words else ""
        if mark + b"\r" in heard or (mark + b"\n" not in heard and comes_back(program.packed(), heard)):
            found = f"{self._way.what} changes what is sent over it, as a terminal does"
            return ConnectError.of_parts(self.doing, found, "take out the option that asks for one, as -t does")
        # With the line end: a command that only echoes its argument has not run it.
        if mark + b"\n" not in heard:
            if explained := self._way.explain(complaints):
                return explained
            found = f"{self._way.what} {self._how_it_ended(line, end)} without giving a shell{said}"
            return Unreachable.of_parts(self.doing, found, BY_HAND)
        if end is None:
            found = f"its shell answered, but {self._python} did not start in {self._timeout_s:g} s{said}"
            return Unreachable.of_parts(self.doing, found)
        # Only a shell that exited by itself proves that there is no Python; one that was killed means a cut.
        if end.status is None or not 0 <= end.status <= LAST_OWN_STATUS:
            return Unreachable.of_parts(self.doing, f"{self._way.what} was cut off while {self._python} started{said}")
        return NoPython.of_parts(self.doing, f"{self._python} did not start{said}")

    def _how_it_ended(self, line: Beginning, end: CommandEnding | None) -> str:
        if len(line.heard) >= MOST_REMEMBERED:
            return "went on printing"
        if end is None:
            return f"went on for {self._timeout_s:g} s"
        return f"ended with status {end.status}" if end.status is not None else "was cut off"


class Beginning:
    """The line of a command that remembers the output before the greeting; `closed` is called at its end."""

    def __init__(self, line: CommandLine, closed: Callable[[], None]) -> None:
        self._line = line
        self._closed = closed
        self._is_closed = False
        self.heard = bytearray()
        self.is_greeted = False
        self.write, self.drain, self.ending = line.write, line.drain, line.ending

    async def read(self) -> bytes:
        data = await self._line.read()
        if not self.is_greeted:
            self.heard += data[: MOST_REMEMBERED - len(self.heard)]
        return data

    @property
    def complaints(self) -> bytes:
        """The command's standard error so far."""
        return self._line.complaints

    def close(self) -> None:
        self._line.close()
        if not self._is_closed:
            self._is_closed = True
            self._closed()


def comes_back(sent: bytes, heard: bytes) -> bool:
    """Whether pieces of what was sent came back: a terminal echoes what is typed, and changes some of it."""
    pieces = {sent[at : at + PIECE] for at in range(len(sent) - PIECE)}
    return any(heard[at : at + PIECE] in pieces for at in range(len(heard) - PIECE))


# Requests that run a command hold theirs until its end; the others are short, and must not wait behind those.
MOST_HELD, MOST_URGENT = 16, 8


WhyNot = Callable[[], Coroutine[Any, Any, ConnectError | None]]


async def _unknown() -> None:
    """Explain nothing: nobody knows what became of what a command leads to."""


class CommandShell:
    """A Transport for the shell program; `why_not` asks who provides the place what became of it."""

    def __init__(self, way: Way, name: str, why_not: WhyNot = _unknown) -> None:
        self._way = way
        self._name = name
        self._held, self._urgent = asyncio.Semaphore(MOST_HELD), asyncio.Semaphore(MOST_URGENT)
        self.is_open = False
        self.why_not = why_not

    async def close(self) -> None:
        self.is_open = False

    async def run(self, request: ShellRequest) -> Printed:
        async with self._urgent if request.urgent else self._held:
            try:
                printed = await self._run(request)
            except ConnectError:
                self.is_open = False
                raise
            self.is_open = True
            return printed

    async def _run(self, request: ShellRequest) -> Printed:
        line = await self._way.open(START_LINE)
        try:
            return await Talk(ProcessTalk(line), request, self._name, f"{self._way.what} was started").hold()
        except (LineLost, OSError, asyncio.TimeoutError):
            raise Unreachable(f"{self._name}: {self._way.what} was cut off; try again") from None
        finally:
            line.close()

    async def upload(self, base: str, name: str, content: bytes) -> str:
        return await bring(self.run, self._name, base, name, content)


class ProcessTalk:
    """A command's line as a ShellLine. Its input stays open: the script itself says where it ends."""

    def __init__(self, line: CommandLine) -> None:
        self._line = line
        self.read = line.read

    async def send(self, data: bytes) -> None:
        self._line.write(data)
        await self._line.drain()

    def end_input(self) -> None:
        """Do nothing: some commands end when their input does, before the answer has come."""

    async def complaints(self) -> bytes:
        return (await self._line.ending()).complaints

    async def status(self) -> int | None:
        return (await self._line.ending()).status
