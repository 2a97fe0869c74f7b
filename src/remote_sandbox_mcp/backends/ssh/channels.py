"""Session channels of one machine, spread over connections, because sshd limits each; and programs in them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from ...core.errors import ConnectError, Unreachable
from ...local.waiting import Chores, within
from ..command.way import CommandEnding
from ..link.client import LineLost
from ..mending import Pace
from .connection import KEEPALIVE_S, LoginGate
from .library import asyncssh

# OpenSSH's default for MaxSessions. A smaller limit is learned from its refusals, a larger one by trying.
USUAL_SESSIONS = 10
MOST_CONNECTIONS = 16
# More connections for urgent requests, such as stopping a run, which must not wait for the runs themselves.
SPARE_CONNECTIONS = 2
OPENING_AT_ONCE = 3
# Keepalive while a channel is open: a sign of life is asked for after BUSY_S; so many missed ones end the connection.
BUSY_S, MISSED_SIGNS = 1.5, 2
IDLE_S = 30.0
RETRY_S = 5.0
CLOSING_S = 10.0
REFUSALS = 5

T = TypeVar("T")


class NoSubsystem(Exception):
    """The machine opened a session but did not start the subsystem or command in it."""


class _Link:
    """One connection and the channels on it, counted from before they open until after they have closed."""

    def __init__(self, connection: asyncssh.SSHClientConnection, limit: int) -> None:
        self.connection = connection
        self.limit = limit
        self.used = self.refusals = 0

    @property
    def is_alive(self) -> bool:
        return not self.connection.is_closed()

    @property
    def has_room(self) -> bool:
        return self.is_alive and self.used < self.limit

    def take(self) -> _Link:
        if not self.used:
            self.connection.set_keepalive(BUSY_S, MISSED_SIGNS)
        self.used += 1
        return self

    def give_back(self) -> None:
        self.used -= 1
        if not self.used and self.is_alive:
            self.connection.set_keepalive(KEEPALIVE_S, 3)


class Channels:
    """A pool of connections; every channel opened here is counted until sshd has let go of it."""

    def __init__(self, gate: LoginGate) -> None:
        self._gate = gate
        self._links: list[_Link] = []
        self._pace = Pace(gate.machine.name)
        self._limit = USUAL_SESSIONS
        # Whether this sshd has refused a session: until then it may grant more than the usual number.
        self._has_refused = False
        self._waiting = 0
        self._changed = asyncio.Event()
        self._opening: set[asyncio.Task[None]] = set()
        self._failure: ConnectError | None = None
        self._not_before = 0.0
        self._chores = Chores("work on a connection")

    @property
    def is_open(self) -> bool:
        return any(link.is_alive for link in self._links)

    @property
    def connection(self) -> asyncssh.SSHClientConnection | None:
        """A connection that is alive, if there is one."""
        return next((link.connection for link in self._links if link.is_alive), None)

    def adopt(self, connection: asyncssh.SSHClientConnection) -> None:
        """Use a connection that is already logged in; it is closed with the pool."""
        self._pace.opened()
        self._links.append(_Link(connection, self._limit))
        self._chores.start(self._watch(connection))

    async def close(self) -> None:
        links, self._links = self._links, []
        tasks = (*self._opening, *self._chores)
        for task in tasks:
            task.cancel()
        for link in links:
            link.connection.abort()
        await asyncio.gather(*tasks, *(link.connection.wait_closed() for link in links), return_exceptions=True)

    @contextlib.asynccontextmanager
    async def process(
        self, command: str, *, urgent: bool = False, stderr: int = asyncio.subprocess.DEVNULL
    ) -> AsyncIterator[asyncssh.SSHClientProcess[bytes]]:
        """Run a command on a channel of its own. Raises ConnectError, or LineLost if the connection is cut."""
        process, let_go = await self.own_process(command, urgent=urgent, stderr=stderr)
        try:
            yield process
        finally:
            process.close()
            let_go()

    async def own_process(
        self, command: str, *, urgent: bool = False, stderr: int = asyncio.subprocess.PIPE
    ) -> tuple[asyncssh.SSHClientProcess[bytes], Callable[[], None]]:
        """Start a process; also return the function to call when its channel was closed."""
        try:
            link, process = await self._open_channel(
                lambda connection: connection.create_process(command, encoding=None, stderr=stderr), urgent
            )
        except NoSubsystem as problem:
            raise Unreachable(f"{self._name}: logged in, but no command could be started: {problem}") from None
        return process, lambda: self._let_go(link, process)

    async def own_sftp(self) -> tuple[asyncssh.SFTPClient, Callable[[], None]]:
        """An SFTP client for one caller, and the function to end it. Raises ConnectError, LineLost or NoSubsystem."""
        link, client = await self._open_channel(lambda connection: connection.start_sftp_client(), False)

        def let_go() -> None:
            client.exit()
            self._let_go(link, client)

        return client, let_go

    async def _open_channel(
        self, opener: Callable[[asyncssh.SSHClientConnection], Awaitable[T]], urgent: bool
    ) -> tuple[_Link, T]:
        while True:
            link = await self._take(urgent)
            channel = await self._try(link, opener)
            if channel is not None:
                return link, channel

    async def _try(self, link: _Link, opener: Callable[[asyncssh.SSHClientConnection], Awaitable[T]]) -> T | None:
        """A channel; None if this connection grants no more of them."""
        # Shielded: a channel that opens after its caller was cancelled still has to be closed and counted.
        opening = asyncio.ensure_future(opener(link.connection))
        try:
            channel = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda _: self._abandon(link, opening))
            raise
        except (OSError, asyncssh.Error) as problem:
            await self._learn(link, problem)
            return None
        link.refusals = 0
        if link.used > link.limit:
            self._limit = link.limit = 2 * link.limit
            self._notify()
        return channel

    async def _learn(self, link: _Link, problem: Exception) -> None:
        """Give the place back, and learn from a refusal how many sessions this sshd grants. Raises final failures."""
        from asyncssh import ChannelOpenError
        from asyncssh.constants import OPEN_REQUEST_SESSION_FAILED

        self._give_back(link)
        if not link.is_alive:
            raise LineLost from problem
        if not isinstance(problem, ChannelOpenError) or problem.code == OPEN_REQUEST_SESSION_FAILED:
            raise NoSubsystem(str(problem)) from problem
        self._has_refused = True
        # Several refusals at once lower the limit one by one, down to the number that was granted.
        link.limit = max(1, min(link.limit, link.used))
        self._limit = min(self._limit, link.limit)
        if not link.used:
            link.refusals += 1
            if link.refusals >= REFUSALS:
                raise Unreachable(f"{self._name}: logged in, but no session could be opened: {problem.reason}")
            await asyncio.sleep(0.1)

    @property
    def _name(self) -> str:
        return self._gate.machine.name

    def _abandon(self, link: _Link, opening: asyncio.Future[Any]) -> None:
        """Close a channel whose caller was cancelled while it opened."""
        if opening.cancelled() or opening.exception():
            self._give_back(link)
            return
        channel = opening.result()
        channel.exit() if hasattr(channel, "exit") else channel.close()
        self._let_go(link, channel)

    def _let_go(self, link: _Link, channel: Any) -> None:
        self._chores.start(self._wait_closed(link, channel))

    async def _wait_closed(self, link: _Link, channel: Any) -> None:
        """Count a channel until it has closed: sshd counts a session until its shell has ended."""
        try:
            with contextlib.suppress(asyncio.TimeoutError, OSError):
                await within(channel.wait_closed(), CLOSING_S)
        finally:
            self._give_back(link)

    def _give_back(self, link: _Link) -> None:
        link.give_back()
        self._notify()
        if not link.used and len(self._links) > 1:
            self._chores.start(self._close_if_idle(link))

    async def _close_if_idle(self, link: _Link) -> None:
        await asyncio.sleep(IDLE_S)
        if not link.used and link in self._links and len(self._links) > 1:
            self._links.remove(link)
            link.connection.close()

    async def _take(self, urgent: bool) -> _Link:
        """Take a place on a connection: a free one, one on a new connection, or the first that becomes free."""
        asked = False
        while True:
            for dead in [link for link in self._links if not link.is_alive]:
                self._links.remove(dead)
            link = next((link for link in self._links if link.has_room), None) or self._one_to_try()
            if link:
                return link.take()
            if asked and self._failure and not self._opening and (urgent or not self._links):
                raise self._failure
            self._waiting += 1
            self._open_more(urgent)
            try:
                # With a time limit, so that a failed connection is tried again even if nothing else changes.
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(self._changed.wait(), RETRY_S)
            finally:
                self._waiting -= 1
            asked = True

    def _one_to_try(self) -> _Link | None:
        """A full connection on which one session more is tried before another login is made; None if that failed."""
        if self._has_refused or self._is_trying:
            return None
        return next(iter(self._links), None)

    @property
    def _is_trying(self) -> bool:
        return any(link.used > link.limit for link in self._links)

    def _open_more(self, urgent: bool) -> None:
        """Open as many connections as waiting callers need, a few at a time: sshd drops logins that come in a crowd."""
        most = MOST_CONNECTIONS + (SPARE_CONNECTIONS if urgent else 0)
        if self._gate.asks_for_code:
            # Each login would ask for another code, so all callers share one connection.
            most = 1
        needed = -(-self._waiting // self._limit)
        pausing = self._links and (self._is_trying or (not urgent and time.monotonic() < self._not_before))
        if len(self._opening) < min(needed, OPENING_AT_ONCE, most - len(self._links)) and not pausing:
            task = asyncio.create_task(self._open_link())
            self._opening.add(task)
            task.add_done_callback(self._opened)

    async def _open_link(self) -> None:
        try:
            await self._pace.wait()
            connection = await self._gate.enter()
        except ConnectError as problem:
            self._failure, self._not_before = problem, time.monotonic() + RETRY_S
            return
        self._failure = None
        self.adopt(connection)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._notify()

    async def _watch(self, connection: asyncssh.SSHClientConnection) -> None:
        await connection.wait_closed()
        self._pace.ended(time.monotonic())
        # Without this the socket of a frozen connection would stay open.
        connection.abort()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


# How many of the last bytes of standard error are kept.
KEPT = 256 << 10
# How long a program whose output has ended may take to exit and to close its standard error.
END_S = 2.0


class SessionLine:
    """A session channel as a Line; closing it closes that channel alone, and `closed` is called once."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], closed: Callable[[], None] = lambda: None) -> None:
        self._process = process
        self._closed: Callable[[], None] | None = closed

    def write(self, data: bytes) -> None:
        # The reader notices the end of the line.
        with contextlib.suppress(OSError):
            self._process.stdin.write(data)

    async def drain(self) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            await self._process.stdin.drain()

    async def read(self) -> bytes:
        try:
            return await self._process.stdout.read(1 << 18)
        except (OSError, asyncssh.Error):
            return b""

    def close(self) -> None:
        self._process.channel.abort()
        closed, self._closed = self._closed, None
        if closed:
            closed()


class ChannelLine(SessionLine):
    """The outpost's line; closing it closes the whole connection."""

    def __init__(self, connection: asyncssh.SSHClientConnection, process: asyncssh.SSHClientProcess[bytes]) -> None:
        super().__init__(process)
        self.connection = connection

    def close(self) -> None:
        self.connection.abort()


class ProgramLine(SessionLine):
    """A program in a session of its own, whose standard error is kept; closing it ends the session."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], closed: Callable[[], None]) -> None:
        super().__init__(process, closed)
        self._complaints = bytearray()
        self._hearing = asyncio.ensure_future(self._hear())

    @property
    def complaints(self) -> bytes:
        return bytes(self._complaints)

    async def ending(self) -> CommandEnding:
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._process.wait_closed(), END_S)
        with contextlib.suppress(asyncio.TimeoutError):
            await within(asyncio.shield(self._hearing), END_S)
        return CommandEnding(self._process.exit_status, self.complaints)

    async def _hear(self) -> None:
        """Read standard error, so that the program never blocks on it, and keep the last part."""
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await self._process.stderr.read(1 << 16):
                self._complaints += data
                del self._complaints[:-KEPT]

    def close(self) -> None:
        self._hearing.cancel()
        super().close()
