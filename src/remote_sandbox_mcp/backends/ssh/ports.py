"""The ports of an SSH machine: forwarded by its sshd or, if that forwards none, by a relay on the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ...core.errors import Unreachable, Unsupported
from ...core.sandboxes.port import PortClosed, Stream, check_port
from ...local.waiting import unlogged, within
from ..link.client import LineLost, OutpostClient
from ..link.relay import CONNECT_S, PortRelay, RelayPorts
from ..mending import ask_again
from ..stream import PairStream
from .connection import LoginGate
from .library import asyncssh

LOOPBACKS = ("127.0.0.1", "::1")
# How many bytes may be on their way to us on one connection; small, because many are open at once.
PORT_WINDOW = 1 << 20


class Forbidden(Exception):
    """The sshd does not forward this port; the message is its reason."""


async def dial(connection: asyncssh.SSHClientConnection, port: int, name: str) -> Stream:
    """Connect to a port through sshd itself. Raises PortClosed, Forbidden, LineLost, Unreachable."""
    why = ""
    for host in LOOPBACKS:
        try:
            return await within(_dial(connection, host, port, name), CONNECT_S)
        except PortClosed as problem:
            why = why or str(problem)
        except (asyncio.TimeoutError, TimeoutError):
            raise Unreachable(f"{name}: no answer from port {port} in {CONNECT_S:.0f} s") from None
    raise PortClosed(f"{name}: nothing accepts connections at port {port}: {why}")


async def _dial(connection: asyncssh.SSHClientConnection, host: str, port: int, name: str) -> Stream:
    try:
        reader, writer = await connection.open_connection(host, port, encoding=None, window=PORT_WINDOW)
    except (asyncssh.Error, OSError) as problem:
        raise judge(problem, connection.is_closed()) from None
    # Without a write buffer, drain() returns only when all bytes have been sent.
    writer.channel.set_write_buffer_limits(0)
    failures = (OSError, asyncssh.Error)
    return PairStream(reader, writer, writer.channel.abort, f"port {port} of {name}", failures)


def judge(problem: Exception, closed: bool) -> Exception:
    """Turn a failed connection through sshd into one of our errors."""
    from asyncssh.constants import OPEN_CONNECT_FAILED, OPEN_RESOURCE_SHORTAGE

    if closed or not isinstance(problem, asyncssh.ChannelOpenError):
        return LineLost()
    if problem.code == OPEN_CONNECT_FAILED:
        return PortClosed(problem.reason)
    if problem.code == OPEN_RESOURCE_SHORTAGE:
        return Unreachable(f"the machine has no room for another connection: {problem.reason}")
    return Forbidden(problem.reason)


class MachinePorts:
    """The ports of a machine with an outpost: through sshd, or through a relay for ports that sshd does not forward."""

    def __init__(
        self,
        name: str,
        connection_of: Callable[[OutpostClient], asyncssh.SSHClientConnection],
        open_relay: Callable[[OutpostClient], Awaitable[PortRelay]],
    ) -> None:
        self._name = name
        self._connection_of = connection_of
        self._relayed = RelayPorts(name, open_relay)
        self._forbidden: set[int] = set()

    async def connect(self, client: OutpostClient, port: int) -> Stream:
        # Shows soon whether the line is frozen; then it is closed, and this attempt ends with it.
        sign = unlogged(asyncio.create_task(client.ping()))
        try:
            return await self._connect(client, port)
        finally:
            sign.cancel()

    async def close(self) -> None:
        await self._relayed.close()

    async def _connect(self, client: OutpostClient, port: int) -> Stream:
        if port not in self._forbidden:
            try:
                return await dial(self._connection_of(client), port, self._name)
            except Forbidden:
                # Not asked again: a refusal costs a round trip, and is written to the machine's log.
                self._forbidden.add(port)
        try:
            return await self._relayed.connect(client, port)
        except Unsupported as problem:
            why = "its sshd forwards no ports (AllowTcpForwarding), and grants no session for a relay"
            raise Unsupported(f"{self._name}: {why}: {problem}") from None


class PlainPorts:
    """The ports of a machine without Python, over their own connection: those of its commands come and go."""

    def __init__(self, gate: LoginGate, shared: Callable[[], asyncssh.SSHClientConnection | None]) -> None:
        self._gate = gate
        # Gives the connection of the machine's commands, used if it asks for a code at each login.
        self._shared = shared
        self._connection: asyncssh.SSHClientConnection | None = None
        self._turn = asyncio.Lock()

    async def connect(self, port: int) -> Stream:
        check_port("port", port)
        name = self._gate.machine.name

        async def ask() -> Stream:
            connection = await self._reach()
            try:
                return await dial(connection, port, name)
            except LineLost:
                connection.abort()
                raise

        try:
            return await ask_again(name, ask)
        except Forbidden as problem:
            raise Unsupported(
                f"{name}: its sshd forwards no ports ({problem}); set AllowTcpForwarding there, or install python3"
            ) from None

    async def _reach(self) -> asyncssh.SSHClientConnection:
        if self._gate.asks_for_code and (shared := self._shared()):
            return shared
        async with self._turn:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._gate.enter()
            return self._connection

    async def close(self) -> None:
        if self._connection:
            self._connection.abort()
            await asyncio.gather(self._connection.wait_closed(), return_exceptions=True)
