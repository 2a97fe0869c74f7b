"""Forwarded ports: connections to a port on this computer's loopback are carried to a port of a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

from ...backends.stream import carry_both_ways, over_socket
from ...core.errors import BadArgument, SandboxError
from ...core.permission import allow_local_port, is_allowed_port
from ...core.sandboxes.port import Forward, PortClosed, Stream, check_port
from ...core.sandboxes.sandbox import Sandbox
from ...local.processes import descriptors
from ...local.waiting import Chores, within

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
# Ports below need root on most systems.
FIRST_PORT = 1024
WAITING_IN_KERNEL = 128
# When no connection can be accepted, for want of descriptors most likely.
RETRY_S = 1.0
# How long a connection to ourselves takes to show up, for a sandbox that is this very computer.
LOOP_S = 0.1
MOST_AT_A_PORT = 512

Get = Callable[[str], Awaitable[Sandbox]]
Note = Callable[[str, int, int], None]


def _forgotten(sandbox: str, port: int, local_port: int) -> None:
    """A process that serves one client does not record its forwards."""


@dataclass(eq=False)
class Guest:
    """One connection; `end` ends it."""

    end: Callable[[], object]


class Queue:
    """The connections of one port, the longest silent one first."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._silent: dict[Guest, None] = {}

    def __len__(self) -> int:
        return len(self._silent)

    def admit(self, end: Callable[[], object]) -> Guest:
        """Add a connection; where there are too many, others are ended for it."""
        self._guests.make_room(self)
        guest = Guest(end)
        self._silent[guest] = None
        return guest

    def moved(self, guest: Guest) -> None:
        """Note that data was sent in a connection. One that was ended stays so."""
        if guest in self._silent:
            del self._silent[guest]
            self._silent[guest] = None

    def leave(self, guest: Guest) -> None:
        self._silent.pop(guest, None)

    def end_longest_silent(self) -> None:
        guest = next(iter(self._silent))
        self.leave(guest)
        guest.end()


class Guests:
    """The connections of all ports of a process: beyond a limit, the longest silent one is ended.

    Any user of this computer can connect to such a port. To refuse new connections would let the first who opens enough
    of them keep everybody else out, so that an old one has to go. It is taken from the port with the most connections:
    a crowd at one port does no harm to the others.
    """

    def __init__(self) -> None:
        self._queues: WeakSet[Queue] = WeakSet()

    def queue(self) -> Queue:
        """The queue of a new port; forgotten with it."""
        self._queues.add(queue := Queue(self))
        return queue

    def make_room(self, queue: Queue) -> None:
        """End what has to go for one more connection of that port."""
        if len(queue) >= MOST_AT_A_PORT:
            queue.end_longest_silent()
        if sum(map(len, self._queues)) >= descriptors.for_forwards():
            max(self._queues, key=len).end_longest_silent()


# Descriptors are counted by process, so that all configurations in it share this one.
GUESTS = Guests()


class Forwards:
    """All forwarded ports of this process: one per port of a sandbox, shared by all callers.

    `allowed` are the ports of this machine that a caller may choose; all others are chosen by the system, so that no
    caller can take the place of a service that people expect at its port.

    A sandbox is known by the name that `get` takes. A forward stays when the line to its sandbox is cut: the next
    connection opens a new one.
    """

    def __init__(self, get: Get, allowed: Sequence[str] = (), note: Note = _forgotten) -> None:
        """`note` is called for each that is opened and, with local port 0, for each that is closed."""
        self._get = get
        self._note = note
        self.allowed = allowed
        self._doors: dict[tuple[str, int], _Door] = {}
        # One lock per port: a machine that does not answer must not block the others.
        self._turns: dict[tuple[str, int], asyncio.Lock] = {}

    async def open(self, sandbox_name: str, port: int, *, local_port: int = 0) -> Forward:
        """The forward that there is, or a new one: at `local_port`, else at the same number where that may be chosen,
        else at one that the system chooses.

        Raises BadArgument where the wanted port is taken or not allowed, ConnectError or Unsupported where the sandbox
        has no way.
        """
        check_port("port", port)
        if local_port:
            allow_local_port(check_port("local_port", local_port), self.allowed)
        async with self._turns.setdefault((sandbox_name, port), asyncio.Lock()):
            door = self._doors.get((sandbox_name, port))
            if door is None or (local_port and door.local_port != local_port):
                fresh = await self._open(sandbox_name, port, local_port)
                if door:
                    await door.close()
                door = self._doors[sandbox_name, port] = fresh
                self._note(sandbox_name, port, door.local_port)
            return door.forward()

    async def reopen(self, sandbox_name: str, port: int, local_port: int) -> None:
        """Reopen one that an earlier process had open; the sandbox is contacted with the first connection."""
        async with self._turns.setdefault((sandbox_name, port), asyncio.Lock()):
            door = _Door(self._get, sandbox_name, port, answers=True)
            if (sandbox_name, port) not in self._doors and await door.listen(local_port):
                self._doors[sandbox_name, port] = door

    async def _open(self, sandbox_name: str, port: int, local_port: int) -> _Door:
        door = _Door(self._get, sandbox_name, port)
        # Tried first, so that the caller learns of a failure, instead of each connection later.
        door.answers = await answers(await self._get(sandbox_name), port)
        # If nothing listens there yet, do not take the same number here: a program on this computer may want it.
        same = door.answers and port >= FIRST_PORT and is_allowed_port(port, self.allowed)
        choices = (local_port,) if local_port else (port, 0) if same else (0,)
        for choice in choices:
            if await door.listen(choice):
                return door
        raise BadArgument(
            f"local_port {local_port} cannot be used: something on this machine has it already; "
            "choose another that is allowed, or leave it out for any that is free"
        )

    def find(self, sandbox_name: str, port: int) -> Forward | None:
        """The open forward of a port, if any."""
        door = self._doors.get((sandbox_name, port))
        return door.forward() if door else None

    def list(self, sandbox_name: str = "") -> Sequence[Forward]:
        """All of them, or those of one sandbox."""
        doors = [door for (name, _), door in self._doors.items() if sandbox_name in ("", name)]
        return [door.forward() for door in doors]

    async def close(self, sandbox_name: str = "", port: int = 0) -> Sequence[Forward]:
        """Close one, all of a sandbox, or all; returns those that were closed."""
        keys = [key for key in self._doors if sandbox_name in ("", key[0]) and port in (0, key[1])]
        doors = [self._doors.pop(key) for key in keys]
        closed = [door.forward() for door in doors]
        await asyncio.gather(*(door.close() for door in doors))
        for forward in closed if sandbox_name else ():
            self._note(forward.sandbox, forward.port, 0)
        return closed


async def answers(sandbox: Sandbox, port: int) -> bool:
    """Whether something accepts connections there. Raises ConnectError, Unsupported."""
    try:
        stream = await sandbox.connect(port)
    except PortClosed:
        return False
    stream.close()
    return True


@dataclass(eq=False)
class _Door:
    """One listening port."""

    get: Get
    sandbox: str
    port: int
    local_port: int = 0
    answers: bool = False
    served: int = 0
    trouble: str = ""
    listener: socket.socket | None = None
    retrying: asyncio.TimerHandle | None = None
    queue: Queue = field(default_factory=GUESTS.queue)
    # False while it is tried out, and for connections that were pending when it was closed.
    serves: bool = False
    carriers: Chores = field(default_factory=lambda: Chores("carrying a connection"))
    knocked: asyncio.Event = field(default_factory=asyncio.Event)

    def forward(self) -> Forward:
        return Forward(
            sandbox=self.sandbox, port=self.port, local_port=self.local_port, answers=self.answers,
            connections=len(self.carriers), served=self.served, trouble=self.trouble,
        )  # fmt: skip

    async def listen(self, local_port: int) -> bool:
        """Listen on loopback. False where the port is taken, or leads back to itself."""
        try:
            self.listener = socket.create_server((HOST, local_port), backlog=WAITING_IN_KERNEL)
        except (OSError, OverflowError):
            return False
        self.listener.setblocking(False)
        self.local_port = int(self.listener.getsockname()[1])
        self._await_connections()
        try:
            self.serves = self.local_port != self.port or not await self._is_own_port()
        finally:
            if not self.serves:
                await self.close()
        return self.serves

    async def _is_own_port(self) -> bool:
        """Whether the port leads to us: with this computer's own network we would connect to ourselves."""
        self.knocked.clear()
        with contextlib.suppress(SandboxError):
            if await answers(await self.get(self.sandbox), self.port):
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(self.knocked.wait(), LOOP_S)
        return self.knocked.is_set()

    async def close(self) -> None:
        self.serves = False
        if self.retrying:
            self.retrying.cancel()
        if self.listener:
            asyncio.get_running_loop().remove_reader(self.listener)
            self.listener.close()
        await self.carriers.close()

    def _await_connections(self) -> None:
        """Accept one in each turn of the loop. asyncio's server would accept a hundred before it looks at the first."""
        assert self.listener
        asyncio.get_running_loop().add_reader(self.listener, self._accept_one, self.listener)

    def _accept_one(self, listener: socket.socket) -> None:
        try:
            self._accept(listener.accept()[0])
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # The client has gone already.
            pass
        except OSError as problem:
            self._note(f"no connection can be accepted: {problem.strerror}")
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            self.retrying = loop.call_later(RETRY_S, self._await_connections)

    def _accept(self, sock: socket.socket) -> None:
        self.knocked.set()
        if not self.serves:
            sock.close()
            return
        guest = self.queue.admit(sock.close)
        carrier = self.carriers.start(self._carry(sock, guest))
        guest.end = carrier.cancel

        def left(_: object) -> None:
            self.queue.leave(guest)
            # In any case, even if it never ran: so that the client does not wait for ever.
            sock.close()

        carrier.add_done_callback(left)

    async def _carry(self, sock: socket.socket, guest: Guest) -> None:
        try:
            here = await over_socket(sock, f"127.0.0.1:{self.local_port}")
            try:
                if there := await self._reach():
                    self.served += 1
                    await carry_both_ways(here, there, moved=lambda: self.queue.moved(guest))
            finally:
                here.close()
        except (SandboxError, OSError) as problem:
            # Normal: people close windows, and apps cut connections.
            log.info("a connection to port %d of %s: %s", self.port, self.sandbox, problem)

    async def _reach(self) -> Stream | None:
        try:
            return await (await self.get(self.sandbox)).connect(self.port)
        except SandboxError as problem:
            self._note(str(problem))
            return None

    def _note(self, trouble: str) -> None:
        self.trouble = trouble
        log.warning("a connection to port %d of %s: %s", self.port, self.sandbox, trouble)
