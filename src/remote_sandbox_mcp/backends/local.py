"""The embedded sandbox: an outpost behind bubblewrap's walls, with a home and a /tmp that stay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..core.errors import ConnectError, Unreachable, Unsupported
from ..core.machine import LocalPlace
from ..core.port import Stream
from ..core.sandbox import Capabilities, Description
from . import bubblewrap
from .bubblewrap import why_not
from .deadline import within
from .outpost import pipe, program
from .outpost.client import NoOutpost, OutpostClient
from .outpost.doorway import Doorway
from .outpost.lane import OutpostLane
from .outpost.sandbox import OutpostSandbox
from .walls import USER, Bounds, Folders, Start, hostname

__all__ = ["Bounds", "Doors", "Folders", "describe", "open_lane", "open_local", "open_outpost", "why_not"]

T = TypeVar("T")

OPEN_S = 15.0


def describe(place: LocalPlace) -> Description:
    """What is known of the place before it is opened."""
    return Description(
        place.name, "local", user=USER, capabilities=Capabilities(kills_trees=True, network=place.network)
    )


async def open_local(place: LocalPlace, state_folder: Path) -> OutpostSandbox:
    """Open it behind its walls, or not at all. Raises Unsupported, ConnectError."""
    folders = Folders.of(place, state_folder)
    sandbox = OutpostSandbox(
        describe(place),
        place.environment,
        lambda: open_outpost(place, folders),
        lambda _: open_lane(place, folders),
        Doors(place.name),
    )
    try:
        await sandbox.open()
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def open_outpost(
    place: LocalPlace, folders: Folders, bounds: Bounds | None = None, client_kind: type[OutpostClient] = OutpostClient
) -> OutpostClient:
    """One bubblewrap, one outpost, in time."""
    door = Doorway()

    async def greet(line: pipe.PipeLine, token: str) -> OutpostClient:
        client = client_kind(WalledLine(line, door), place.name)
        await client.greet(token)
        return client

    try:
        return await _open(place, folders, program.OUTPOST, greet, bounds or Bounds(), door)
    except BaseException:
        door.close()
        raise


@dataclass(frozen=True)
class Doors:
    """The ways to ports inside, which no other bubblewrap would see: each has a network of its own."""

    name: str

    async def connect(self, client: OutpostClient, port: int) -> Stream:
        assert isinstance(client.line, WalledLine)
        return await client.line.door.connect(client, port, self.name)

    async def close(self) -> None:
        """They end with their lines."""


class WalledLine:
    """A line through the walls, and the door beside it for what is no frame."""

    def __init__(self, line: pipe.PipeLine, door: Doorway) -> None:
        self._line = line
        self.door = door
        self.write, self.read = line.write, line.read

    def close(self) -> None:
        self._line.close()
        self.door.close()


async def open_lane(place: LocalPlace, folders: Folders, bounds: Bounds | None = None) -> OutpostLane:
    """Another bubblewrap with the same walls, and a lane in it."""

    async def greet(line: pipe.PipeLine, token: str) -> OutpostLane:
        lane = OutpostLane(line, place.name)
        await lane.greet(token)
        return lane

    return await _open(place, folders, program.LANE, greet, bounds or Bounds())


async def _open(
    place: LocalPlace,
    folders: Folders,
    pieces: tuple[str, ...],
    greet: Callable[[pipe.PipeLine, str], Awaitable[T]],
    bounds: Bounds,
    door: Doorway | None = None,
) -> T:
    footing = await bubblewrap.find_footing()
    if isinstance(footing, str):
        raise Unsupported(footing)
    try:
        folders.prepare(footing, hostname(place.name))
        start = Start(place, folders, footing, pieces, bounds, door)
        return await within(start.greeted(greet), OPEN_S)
    except (asyncio.TimeoutError, TimeoutError):
        raise Unreachable(f"unable to open {place.name}: no answer from behind its walls in {OPEN_S:.0f} s") from None
    except (OSError, NoOutpost) as problem:
        raise ConnectError(f"unable to open {place.name}: {problem}") from None
