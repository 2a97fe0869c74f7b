"""Connections into a bubblewrap sandbox: to its outpost, to its ports, and to a lane for files."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ...core.errors import ConnectError, Unreachable, Unsupported
from ...core.sandboxes.machine import LocalPlace
from ...core.sandboxes.network import NO_NETWORK
from ...core.sandboxes.port import Stream
from ...far import program
from ...local.waiting import undone_by, within
from ..link import pipe
from ..link.client import NoOutpost, OutpostClient
from ..link.doorway import Doorway
from ..link.lane import OutpostLane
from . import landlock
from .landlock import GuardStart, LoopbackDoor
from .network import way
from .walls import Bounds, BwrapStart, Folders, hostname

T = TypeVar("T")

OPEN_S = 15.0
# The reason of an error if no further process can be started.
CROWDED = "crowded"


async def open_outpost(
    place: LocalPlace, folders: Folders, bounds: Bounds | None = None, client_kind: type[OutpostClient] = OutpostClient
) -> OutpostClient:
    """Start one bubblewrap with one outpost, within a deadline."""
    door = Doorway()

    async def greet(line: pipe.PipeLine, token: str) -> OutpostClient:
        if not door.is_inside:
            # Without namespaces its ports are ports of this computer.
            door.close()
        client = client_kind(WalledLine(line, door if door.is_inside else LoopbackDoor(line)))
        await client.greet(token)
        return client

    with undone_by(door.close):
        return await _open(place, folders, program.OUTPOST, greet, bounds or Bounds(), door)


@dataclass(frozen=True)
class Doors:
    """Connections to ports inside; made by the outpost, because each bubblewrap has its own network."""

    name: str

    async def connect(self, client: OutpostClient, port: int) -> Stream:
        assert isinstance(client.line, WalledLine)
        return await client.line.door.connect(client, port, self.name)

    async def close(self) -> None:
        """Do nothing: the doors end with their connections."""


class WalledLine:
    """A connection into the sandbox, and a second socket beside it for passing descriptors."""

    def __init__(self, line: pipe.PipeLine, door: Doorway | LoopbackDoor) -> None:
        self._line = line
        self.door = door
        self.write, self.read = line.write, line.read

    def close(self) -> None:
        self._line.close()
        self.door.close()


async def open_lane(place: LocalPlace, folders: Folders, bounds: Bounds | None = None) -> OutpostLane:
    """Start another bubblewrap with the same settings and a lane in it, which needs no network."""

    async def greet(line: pipe.PipeLine, token: str) -> OutpostLane:
        lane = OutpostLane(line, place.name)
        await lane.greet(token)
        return lane

    offline = replace(place, network=NO_NETWORK)
    return await _open(offline, folders, program.LANE, greet, bounds or Bounds())


async def _open(
    place: LocalPlace,
    folders: Folders,
    pieces: tuple[str, ...],
    greet: Callable[[pipe.PipeLine, str], Awaitable[T]],
    bounds: Bounds,
    door: Doorway | None = None,
) -> T:
    footing, doing = await landlock.find_footing(place.walls), f"unable to open {place.name}"
    if isinstance(footing, str):
        raise Unsupported(footing)
    if reason := await way.why_not(place.network, footing):
        raise Unsupported(reason)
    try:
        folders.prepare(footing, hostname(place.name))
        if footing.landlock:
            return await within(GuardStart(place, folders, footing, pieces, bounds).greeted(greet), OPEN_S)
        start = BwrapStart(place, folders, footing, pieces, bounds, door)
        return await within(start.greeted(greet), OPEN_S)
    except (asyncio.TimeoutError, TimeoutError):
        raise Unreachable.of_parts(doing, f"no answer from behind its walls in {OPEN_S:.0f} s") from None
    except (OSError, NoOutpost) as problem:
        # bubblewrap prints the kernel's message for it.
        crowded = os.strerror(errno.EAGAIN) in str(problem)
        raise ConnectError.of_parts(doing, str(problem), reason=CROWDED if crowded else "") from None
