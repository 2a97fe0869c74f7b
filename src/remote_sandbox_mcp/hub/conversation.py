"""One front's conversation with the hub: MCP, line by line, from its hello to its end."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from mcp.server.stdio import stdio_server

from .. import __version__
from ..mcp_server.stdio import Lines
from ..selection import KeptSelection
from ..session import Session, begin
from .houses import House, Houses

# After the client's end: for calls to give up their commands.
WIND_DOWN_S = 0.15


async def converse(
    houses: Houses, said: dict[str, Any], front: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    config = Path(str(said["config"])) if said.get("config") else None
    environ = {str(name): str(value) for name, value in dict(said.get("environ") or {}).items()}
    folder = str(said.get("folder") or "/")
    house = await houses.enter(config, environ, folder)
    selection = KeptSelection(house.app.identity, front)
    session = Session(
        selection, name=str(said.get("session") or ""), folder=folder, environ=environ, again=said.get("again") or ()
    )
    try:
        await _say(writer, {"pid": os.getpid(), "version": __version__, "notes": house.configuration.problems})
        await _serve(house, session, reader, writer)
    finally:
        houses.leave_house(house)
        await asyncio.to_thread(selection.release)


async def _say(writer: asyncio.StreamWriter, what: dict[str, Any]) -> None:
    writer.write(json.dumps(what).encode() + b"\n")
    await writer.drain()


async def _serve(house: House, session: Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    ended = asyncio.Event()
    serving = asyncio.ensure_future(_speak(house, session, reader, writer, ended))
    over = asyncio.ensure_future(ended.wait())
    await asyncio.wait((serving, over), return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    # Every call in progress is given up, and its command with it: nobody is left to hear of it.
    await asyncio.wait((serving,), timeout=WIND_DOWN_S)
    serving.cancel()
    await asyncio.wait((serving,), timeout=WIND_DOWN_S)
    if serving.done() and not serving.cancelled() and (failed := serving.exception()):
        raise failed


async def _speak(
    house: House, session: Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ended: asyncio.Event
) -> None:
    begin(session)
    answers = Answers(writer)
    streams: Any = (Lines(reader, answers, ended), answers)
    async with stdio_server(*streams) as (incoming, outgoing):
        lowlevel = house.server._lowlevel_server
        await lowlevel.run(incoming, outgoing, lowlevel.create_initialization_options())


class Answers:
    """Output as the SDK's transport writes it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        self._writer.write(text.encode("utf-8", "replace"))
        await self._writer.drain()

    async def flush(self) -> None:
        """Nothing is held back."""
