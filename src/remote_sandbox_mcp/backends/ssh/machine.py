"""An SSH machine as a Sandbox: with an outpost if it has Python, over plain session channels otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from ...core.errors import CUT, Unreachable, Unsupported
from ...core.sandboxes.machine import Machine
from ...core.sandboxes.sandbox import Capabilities, Description
from ...far import program
from ...local.waiting import undone_by, within
from ..link.client import NoOutpost, OutpostClient
from ..link.lane import OutpostLane
from ..link.relay import RELAY, PortRelay, RelayPorts
from ..link.sandbox import OutpostSandbox, Ports
from ..mending import opened
from .channels import ChannelLine, ProgramLine, SessionLine
from .connection import LoginGate
from .library import asyncssh
from .plain import PlainSandbox
from .ports import MachinePorts

OUTPOST = Capabilities(survives_disconnect=True, kills_trees=True)
PLAIN = Capabilities(survives_disconnect=True, why_not_root="it has no python3, which as_root needs there")
NO_SUDO = (
    'its operator has not allowed it. To do so, write sudo = "keyring:SERVICE/USER" (where the password is), or sudo = '
    '"nopasswd" where none is asked for, under [machines.%s] in config.toml'
)
T = TypeVar("T")
G = TypeVar("G", OutpostLane, PortRelay)
# Opens a session on a connection; the function it is given is called when the session ends.
Opener = Callable[["LoginGate", "asyncssh.SSHClientConnection", Callable[[], None]], Awaitable[T]]
LANE_BUFFER = 1 << 20
# How many bytes may be on their way to us on one lane: twice asyncssh's default, which tops it up at half.
LANE_WINDOW = 4 << 20
# How long a shell may take that is asked why it did not run our program.
PROBE_S = 3.0
# How often, and how long apart, such a shell is asked for again where sshd grants no session for it.
REFUSALS, REFUSED_S = 10, 0.1
SLOW_SHELL = (
    "its login shell took longer than connect_timeout_s, {:g} s: lines of its start-up files (~/.bashrc) are slow or "
    "wait for something; have only interactive shells run them (case $- in *i*) ...;; esac), or raise connect_timeout_s"
)
OTHER_SHELL = (
    "its login shell does not run the command that it is given: a start-up file (~/.bashrc) ends it, or starts another "
    "program in its place, as `exec fish` does; have only interactive shells do that: case $- in *i*) exec fish;; esac"
)
# How many further connections a machine may have; each is a login.
MOST_SPARE = 4


class NoPythonOnMachine(NoOutpost):
    """The machine cannot run an outpost. The connection is logged in; code that catches this uses or closes it."""

    def __init__(self, problem: str, connection: asyncssh.SSHClientConnection) -> None:
        super().__init__(problem)
        self.connection = connection


def describe(machine: Machine, capabilities: Capabilities = OUTPOST) -> Description:
    """The description of a machine, as far as it is known before it is opened."""
    if capabilities is OUTPOST:
        capabilities = replace(OUTPOST, why_not_root="" if machine.sudo else NO_SUDO % machine.name)
    where = machine.host, machine.port, machine.login.user
    return Description(machine.name, "ssh", *where, capabilities, writable=machine.writable_words)


async def open_machine(machine: Machine, own_known_hosts: Path) -> OutpostSandbox | PlainSandbox:
    """Open a machine with an outpost, or without one if it has no Python. Raises ConnectError."""
    return await open_through(LoginGate(machine, own_known_hosts))


async def open_through(gate: LoginGate) -> OutpostSandbox | PlainSandbox:
    """Open a machine through its LoginGate, which remembers a refused login. Raises ConnectError."""
    machine = gate.machine

    async def connect() -> OutpostClient:
        try:
            return await open_outpost(gate)
        except NoPythonOnMachine as problem:
            # Python worked there before, so this is a failure, and no reason to go on without it.
            if not sandbox.hello:
                raise
            problem.connection.abort()
            raise Unreachable(f"unable to open {machine.name}: its Python starts no more ({problem})") from None

    spares = Spares(gate)

    async def beside(client: OutpostClient, opener: Opener[T]) -> T:
        try:
            return await opener(gate, connection_of(client), lambda: None)
        except SlowStart:
            return await opener(gate, connection_of(client), lambda: None)
        except Unsupported:
            return await spares.open(opener)

    sandbox = MachineSandbox(
        describe(machine),
        machine.environment,
        connect,
        lambda client: beside(client, open_lane),
        ports_of(machine, lambda client: beside(client, open_relay)),
        machine.sudo,
        machine.slurm.rate_s if machine.slurm else 0.0,
    )
    sandbox.beside = beside
    try:
        return await opened(sandbox)
    except NoPythonOnMachine as problem:
        return await open_plain(gate, problem.connection)


def ports_of(machine: Machine, open_beside: Callable[[OutpostClient], Awaitable[PortRelay]]) -> Ports:
    """The ports of a machine; what sshd itself connects to would be beyond the walls."""
    if machine.writable is not None:
        return RelayPorts(machine.name, open_beside)
    return MachinePorts(machine.name, connection_of, open_beside)


def why_no_walls(machine: Machine, said: str) -> str:
    """Explain why a machine is refused where only some folders may be written."""
    _, mark, why = said.rpartition("writable cannot be held there: ")
    if mark or not why:
        return mark + why or f"writable cannot be held there: its {machine.python} did not start"
    return f"writable cannot be held there: its {machine.python} did not start ({why})"


async def start_line(
    connection: asyncssh.SSHClientConnection, machine: Machine, line: str, ahead: bytes = b"", *, walled: bool = True,
    **options: Any,
) -> asyncssh.SSHClientProcess[bytes]:  # fmt: skip
    """Start a line for the login shell, within walls where the operator wants them.

    `ahead` is the beginning of its input. It follows the request at once: an answer would take a round trip.
    """
    if machine.writable is not None and walled:
        line, walls = program.walled(line, machine.python, machine.writable)
        ahead = walls + ahead

    def begin() -> asyncssh.SSHClientProcess[bytes]:
        process: asyncssh.SSHClientProcess[bytes] = asyncssh.SSHClientProcess()
        # The channel is open, and asyncssh asks for the program before anything else has its turn.
        asyncio.get_running_loop().call_soon(send, process)
        return process

    def send(process: asyncssh.SSHClientProcess[bytes]) -> None:
        # If it has ended by now, its reader notices.
        with contextlib.suppress(OSError):
            process.channel.write(ahead)

    _, session = await connection.create_session(begin, line, encoding=None, **options)
    process = cast("asyncssh.SSHClientProcess[bytes]", session)
    await process.redirect(PIPE, PIPE, PIPE)
    return process


async def open_plain(gate: LoginGate, connection: asyncssh.SSHClientConnection) -> PlainSandbox:
    """Open a machine without Python, on the same connection: a second login could ask for a second one-time code."""
    machine = gate.machine
    plain = PlainSandbox(describe(machine, PLAIN), machine.environment, gate, connection)
    return await opened(plain)


def connection_of(client: OutpostClient) -> asyncssh.SSHClientConnection:
    assert isinstance(client.line, ChannelLine)
    return client.line.connection


class SlowStart(Unreachable):
    """A program was not there in time; another attempt may well succeed."""


class CutAfterLogin(Unreachable):
    """The connection was cut after the login, before the outpost had greeted."""


async def open_outpost(gate: LoginGate) -> OutpostClient:
    """Open the connection and the outpost, once more if it is cut meanwhile. Raises ConnectError, NoPythonOnMachine."""
    try:
        return await _open_outpost(gate)
    except CutAfterLogin:
        # A person is not asked for a second code in one call.
        if gate.questions.need_person:
            raise
        return await _open_outpost(gate)


async def _open_outpost(gate: LoginGate) -> OutpostClient:
    """Make one connection with one channel and one outpost, within the machine's deadline."""
    connection = await gate.enter()
    try:
        return await within(_start(connection, gate), gate.deadline_s)
    except (asyncio.TimeoutError, TimeoutError):
        why = await why_no_answer(gate, connection) or too_slow(gate)
        connection.abort()
        raise Unreachable(f"unable to open {gate.machine.name}: logged in, but {why}") from None
    except NoOutpost as problem:
        if why := await why_no_answer(gate, connection):
            connection.abort()
            raise Unreachable(f"unable to open {gate.machine.name}: logged in, but {why}") from None
        if gate.machine.writable is not None:
            connection.abort()
            why = why_no_walls(gate.machine, str(problem))
            raise Unreachable.of_parts(f"unable to open {gate.machine.name}", why) from None
        raise NoPythonOnMachine(str(problem), connection) from None
    except BaseException:
        connection.abort()
        raise


def too_slow(gate: LoginGate) -> str:
    return f"{gate.machine.python} there took longer than connect_timeout_s, {gate.deadline_s:g} s; raise that, or wait"


async def why_no_answer(gate: LoginGate, connection: asyncssh.SSHClientConnection) -> str:
    """Explain why the machine's login shell runs no command; empty where it does."""
    import asyncssh

    token, said = secrets.token_hex(8), b""
    try:
        asking = functools.partial(connection.create_process, f"echo {token}", encoding=None)
        process = await within(_when_granted(asking), PROBE_S)
        process.stdin.write_eof()
        said = await within(process.stdout.read(), PROBE_S)
    except (asyncio.TimeoutError, TimeoutError):
        return SLOW_SHELL.format(gate.deadline_s)
    except (OSError, asyncssh.Error) as problem:
        is_full = isinstance(problem, asyncssh.ChannelOpenError) and not connection.is_closed()
        return "" if is_full else "it does not answer any more"
    return "" if token.encode() in said else OTHER_SHELL


async def _when_granted(
    start: Callable[[], Awaitable[asyncssh.SSHClientProcess[bytes]]],
) -> asyncssh.SSHClientProcess[bytes]:
    """Start a program; an sshd with MaxSessions 1 may still count the session that has just ended, so ask again."""
    import asyncssh

    for _ in range(REFUSALS):
        try:
            return await start()
        except asyncssh.ChannelOpenError:
            await asyncio.sleep(REFUSED_S)
    return await start()


async def _start(
    connection: asyncssh.SSHClientConnection, gate: LoginGate, *, is_second_try: bool = False
) -> OutpostClient:
    machine, token, is_compiled = gate.machine, secrets.token_hex(16), gate.python.is_ours()
    who = f"unable to open {machine.name}"
    sent = await asyncio.to_thread(functools.partial(program.sent, is_compiled=is_compiled))
    line = program.start_line(machine.python, token, is_compiled=is_compiled)
    try:
        starting = functools.partial(start_line, connection, machine, line, sent)
        process = await (_when_granted(starting) if is_second_try else starting())
    except (OSError, asyncssh.Error) as problem:
        kind = CutAfterLogin if connection.is_closed() else Unreachable
        raise kind(f"{who}: logged in, but no session could be opened: {problem}") from None
    client = OutpostClient(ChannelLine(connection, process), machine.name)
    try:
        await client.greet(token)
    except (OSError, NoOutpost) as problem:
        await process.wait_closed()
        if is_compiled and not connection.is_closed():
            gate.python.refuse()
            return await _start(connection, gate, is_second_try=True)
        # Only a shell that exited by itself proves that there is no Python; one that was killed means a shutdown.
        if process.exit_status is None or not 0 <= process.exit_status <= 128:
            kind = CutAfterLogin if connection.is_closed() else Unreachable
            raise kind(f"{who}: logged in, but its shell was cut off") from None
        raise NoOutpost(str(problem)) from None
    gate.python.note(client.hello.get("magic"))
    return client


class Spares:
    """Further connections to a machine, used when its sshd grants no more sessions on the first (MaxSessions)."""

    def __init__(self, gate: LoginGate) -> None:
        self._gate = gate
        self._spares: list[Spare] = []

    async def open(self, opener: Opener[T]) -> T:
        """Open a session on one of them. Raises Unsupported if none is granted, ConnectError."""
        if self._gate.asks_for_code:
            name = self._gate.machine.name
            raise Unsupported(f"{name}: all sessions are taken, and a further login would ask for another code")
        full: list[Spare] = []
        while True:
            spare = next((it for it in self._spares if it not in full), None)
            if spare is None:
                spare = Spare(self._gate)
                self._spares.append(spare)
            try:
                return await spare.open(opener)
            except Unsupported:
                # A connection without other sessions refused one, so this sshd grants none at all.
                if spare.is_unused or len(self._spares) >= MOST_SPARE:
                    raise
                full.append(spare)


class Spare:
    """One further connection; it is closed with its last session."""

    def __init__(self, gate: LoginGate) -> None:
        self._gate = gate
        self._connection: asyncssh.SSHClientConnection | None = None
        self._sessions = 0
        self._turn = asyncio.Lock()

    @property
    def is_unused(self) -> bool:
        return not self._sessions

    async def open(self, opener: Opener[T]) -> T:
        """Open a session on this connection. Raises Unsupported if it is full, too, ConnectError."""
        async with self._turn:
            if self._connection is None or self._connection.is_closed():
                self._connection, self._sessions = await self._gate.enter(), 0
        self._sessions += 1
        with undone_by(self._closed):
            return await opener(self._gate, self._connection, self._closed)

    def _closed(self) -> None:
        self._sessions -= 1
        if not self._sessions and self._connection:
            self._connection.abort()


class MachineSandbox(OutpostSandbox):
    """An SSH machine with an outpost, on which further programs can be started beside it."""

    beside: Callable[[OutpostClient, Opener[ProgramLine]], Awaitable[ProgramLine]]

    async def start(self, line: str, *, walled: bool = True) -> ProgramLine:
        """Start a line for the login shell in a session that ends with its line. Raises ConnectError, Unsupported."""
        return await self.beside(await self._reach(), functools.partial(start_program, line, walled=walled))


async def start_program(
    line: str,
    gate: LoginGate,
    connection: asyncssh.SSHClientConnection,
    closed: Callable[[], None],
    *,
    walled: bool = True,
) -> ProgramLine:
    """Start any program in a further session; open_session does that for our own."""
    return ProgramLine(await start_further(line, gate, connection, walled=walled), closed)


async def start_further(
    line: str, gate: LoginGate, connection: asyncssh.SSHClientConnection, ahead: bytes = b"", *, walled: bool = True
) -> asyncssh.SSHClientProcess[bytes]:
    try:
        process = await start_line(connection, gate.machine, line, ahead, walled=walled, window=LANE_WINDOW)
    except asyncssh.ChannelOpenError as problem:
        raise Unsupported(f"{gate.machine.name}: no further session is granted: {problem.reason}") from None
    except (OSError, asyncssh.Error) as problem:
        raise no_session(gate, connection, str(problem)) from None
    process.channel.set_write_buffer_limits(LANE_BUFFER)
    return process


def no_session(gate: LoginGate, connection: asyncssh.SSHClientConnection, why: str) -> Unreachable:
    """The error for a further session that could not be had; it says whether the whole connection was cut."""
    is_cut = connection.is_closed()
    why = "the connection was cut" if is_cut else why or f"{gate.machine.python} ended at once, and did not say why"
    return Unreachable(f"{gate.machine.name}: no further session could be started: {why}", CUT if is_cut else "")


async def open_lane(
    gate: LoginGate, connection: asyncssh.SSHClientConnection, closed: Callable[[], None]
) -> OutpostLane:
    """Open a lane on an open connection. Raises Unsupported if its sshd grants no further session."""
    # With this argument the lane may connect to another machine, which the operator has allowed.
    words = ("bridge",) if gate.machine.direct else ()
    return await open_session(gate, connection, closed, OutpostLane, program.LANE, words)


async def open_relay(
    gate: LoginGate, connection: asyncssh.SSHClientConnection, closed: Callable[[], None]
) -> PortRelay:
    """Open a relay for ports on an open connection. Raises like open_lane."""
    return await open_session(gate, connection, closed, PortRelay, RELAY)


async def open_session(
    gate: LoginGate,
    connection: asyncssh.SSHClientConnection,
    closed: Callable[[], None],
    near: Callable[[SessionLine, str], G],
    pieces: tuple[str, ...],
    words: tuple[str, ...] = (),
) -> G:
    """Start one of our programs in a further session; returns its near side after the greeting."""
    machine, token, is_compiled = gate.machine, secrets.token_hex(16), gate.python.is_ours()
    sent = await asyncio.to_thread(functools.partial(program.sent, pieces, is_compiled=is_compiled))
    line = program.start_line(machine.python, token, pieces, *words, is_compiled=is_compiled)
    process = await start_further(line, gate, connection, sent)
    greeting = near(SessionLine(process, closed), machine.name)
    try:
        await within(greeting.greet(token), gate.deadline_s)
    except BaseException as problem:
        process.close()
        if is_compiled and isinstance(problem, (OSError, NoOutpost)) and not connection.is_closed():
            gate.python.refuse()
            return await open_session(gate, connection, closed, near, pieces, words)
        if isinstance(problem, asyncio.TimeoutError):
            raise SlowStart(f"{machine.name}: no further session could be started: {too_slow(gate)}") from None
        if isinstance(problem, (OSError, NoOutpost)):
            raise no_session(gate, connection, str(problem)) from None
        raise
    return greeting
