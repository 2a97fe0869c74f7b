"""A client's line to the hub: what the hub says there, and descriptors that the client passes over it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..core.errors import ConfigError
from ..local.waiting import within

# Time for the client to pass them after we ask.
HAND_OVER_S = 10.0
# Beyond this number the kernel closes them.
MOST_PASSED = 16


@dataclass(frozen=True)
class Caller:
    """A process that has connected to the hub: what it said first, its pid, and its line."""

    said: dict[str, Any]
    pid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    # Set once the hub ends: then nothing more is answered.
    leaving: asyncio.Event

    async def say(self, what: dict[str, Any]) -> None:
        self.writer.write(json.dumps(what).encode() + b"\n")
        await self.writer.drain()

    async def passed(self, what: str) -> list[int]:
        """Ask it for `what`; returns the descriptors that come after the question. Raises ConfigError."""
        transport: Any = self.writer.transport
        # asyncio's stream would read the message and drop the descriptors.
        transport.pause_reading()
        with transport.get_extra_info("socket").dup() as line:
            try:
                await self.say({"pid": os.getpid(), "version": __version__, "send": what})
                await within(_readable(line), HAND_OVER_S)
                # One byte: messages of the client may follow.
                _, found, _, _ = socket.recv_fds(line, 1, MOST_PASSED, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
            except asyncio.TimeoutError:
                raise ConfigError(f"no {what} was handed over in time") from None
            finally:
                transport.resume_reading()
        return found


async def _readable(line: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(line.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(line.fileno())
