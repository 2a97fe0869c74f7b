"""Connections to forwarded ports, over all ports of this process: beyond a limit, the longest silent one is ended.

Any user of this computer can connect to such a port. To refuse new connections would let the first who opens enough of
them keep everybody else out, so that an old one has to go. It is taken from the port with the most connections: a
crowd at one port does no harm to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakSet

from ...local.processes import descriptors

MOST_AT_A_PORT = 512


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
    """All ports of a process."""

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
