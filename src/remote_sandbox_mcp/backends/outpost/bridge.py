"""A lane to a target that begins at the source's machine, so that files between the two do not pass through here."""

from __future__ import annotations

import asyncio
import secrets

from ...core.errors import FileProblem, Unreachable, Unsupported
from ...core.foreign import too_much
from ..deadline import within
from . import program
from .client import NoOutpost
from .lane import OutpostLane

OPEN_S = 15.0
MOST_UNREAD = 32 << 20
# Never a question, never an unknown host: the machine's own keys and known_hosts decide.
SSH = (
    "ssh",
    "-T",
    "-e",
    "none",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ClearAllForwardings=yes",
    "--",
)


class BridgeLine:
    """The far end of a bridge as a Line: its bytes travel in frames of the lane that it begins at."""

    def __init__(self, lane: OutpostLane) -> None:
        self._lane = lane
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._unread = 0

    def feed(self, data: bytes) -> None:
        """Raises BrokenRules: the far lane answers what it is asked, which is never as much as this."""
        self._unread += len(data)
        if self._unread > MOST_UNREAD:
            raise too_much(self._lane.name)
        self._arrived.put_nowait(data)

    def write(self, data: bytes) -> None:
        self._lane.forward(data)

    async def read(self) -> bytes:
        data = await self._arrived.get()
        self._unread -= len(data)
        return data

    async def drain(self) -> None:
        await self._lane.room()

    def close(self) -> None:
        self.feed(b"")


async def open_bridge(lane: OutpostLane, name: str, destination: str, python: str) -> OutpostLane:
    """A lane to `destination` as the machine of `lane` knows it. Raises Unsupported where there is no way."""
    token = secrets.token_hex(16)
    argv = [*SSH, destination, program.start_line(python, token, program.LANE)]
    line = BridgeLine(lane)
    lane.listen_for(line.feed)
    target = OutpostLane(line, name)
    try:
        await lane.begin("bridge", program.packed(program.LANE), argv=argv)
        await within(target.greet(token), OPEN_S)
    except (NoOutpost, FileProblem, Unreachable, asyncio.TimeoutError) as problem:
        raise Unsupported(f"{lane.name} does not reach {name} as {destination}: {problem}") from None
    return target
