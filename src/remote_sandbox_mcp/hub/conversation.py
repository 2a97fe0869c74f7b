"""One front's conversation with the hub: MCP, line by line, from its hello to its end."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from mcp.server.stdio import stdio_server

from .. import __version__
from ..core.variables import ClientVariables
from ..mcp_server.stdio import Lines
from ..selection import KeptSelection
from ..session import Session, begin
from .houses import House, Houses

# After the client's end: for calls to give up their commands.
WIND_DOWN_S = 0.15
# For calls in progress, where the conversation has to be opened anew.
MOVE_S = 10.0


async def converse(
    houses: Houses, said: dict[str, Any], front: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    config = Path(str(said["config"])) if said.get("config") else None
    folder = str(said.get("folder") or "/")
    given = {str(name): str(value) for name, value in dict(said.get("environ") or {}).items()}
    environ = ClientVariables(given, folder)
    session = Session(
        name=str(said.get("session") or ""), folder=folder, environ=environ, again=said.get("again") or ()
    )
    house = await houses.enter(config, session)
    session.selection = selection = KeptSelection(house.app.identity, front)
    try:
        await _say(writer, {"pid": os.getpid(), "version": __version__, "notes": house.app.problems})
        await _serve(house, session, reader, writer)
    finally:
        houses.leave_house(house, session)
        await asyncio.to_thread(selection.release)


async def _say(writer: asyncio.StreamWriter, what: dict[str, Any]) -> None:
    writer.write(json.dumps(what).encode() + b"\n")
    await writer.drain()


async def _serve(house: House, session: Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    ended = asyncio.Event()
    answers = Answers(writer)
    serving = asyncio.ensure_future(_speak(house, session, reader, answers, ended))
    over = [asyncio.ensure_future(event.wait()) for event in (ended, session.moved)]
    await asyncio.wait((serving, *over), return_when=asyncio.FIRST_COMPLETED)
    for waiting in over:
        waiting.cancel()
    if session.moved.is_set():
        # The front opens the conversation anew, with all that is not answered, and is given its new place.
        await asyncio.wait((asyncio.ensure_future(session.calls.settled()),), timeout=MOVE_S)
        answers.is_muted = True
    # Every call in progress is given up, and its command with it: nobody is left to hear of it.
    await asyncio.wait((serving,), timeout=WIND_DOWN_S)
    serving.cancel()
    await asyncio.wait((serving,), timeout=WIND_DOWN_S)
    if serving.done() and not serving.cancelled() and (failed := serving.exception()):
        raise failed


async def _speak(
    house: House, session: Session, reader: asyncio.StreamReader, answers: Answers, ended: asyncio.Event
) -> None:
    begin(session)
    streams: Any = (Lines(reader, answers, ended), answers)
    async with stdio_server(*streams) as (incoming, outgoing):
        await house.server.run_over(incoming, outgoing)


class Answers:
    """Output as the SDK's transport writes it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.is_muted = False

    async def write(self, text: str) -> None:
        if self.is_muted:
            return
        self._writer.write(text.encode("utf-8", "replace"))
        await self._writer.drain()

    async def flush(self) -> None:
        """Nothing is held back."""
