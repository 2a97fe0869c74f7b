"""Terminals in the browser: a shell in a sandbox, or the window of a job, each over a WebSocket of its own.

Bytes are what the terminal shows, and what is typed. Text is a JSON object: what to open, first; `opened`; a new size;
`took`, how many bytes came to their end; and `end`. A side sends no more than MOST_AHEAD bytes before they are taken.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...app import App
from ...core.errors import SandboxError
from ...services.history import MadeCall
from ...services.jobs.attach import Attached, Window, open_shell
from ...services.jobs.values import Which
from ...views.results import sentence
from .calls import CLIENT
from .http import SOCKET, PageRefusal, Receive, Send, to_json

# At once.
MOST_TERMINALS = 16
# The size of a terminal, and of what one message shows; terminal.js knows MOST_AHEAD, too.
MOST_ROWS, MOST_COLUMNS, PIECE_BYTES, MOST_AHEAD = 500, 1000, 32 << 10, 256 << 10


class Terminals:
    """Terminals that are open."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._count = 0

    async def show(self, receive: Receive, send: Send) -> None:
        """Open one for a browser that was let in, until it ends or the browser goes."""
        # First it says that there is one.
        await receive()
        await send({"type": "websocket.accept", "subprotocol": SOCKET})
        wire, trouble = Wire(receive, send), ""
        self._count += 1
        try:
            if self._count > MOST_TERMINALS:
                raise PageRefusal(429, f"{MOST_TERMINALS} terminals are open; close one")
            attached = await self._open(await wire.text())
            try:
                await wire.carry(attached)
            finally:
                await attached.close()
        except PageRefusal as refused:
            trouble = str(refused)
        except SandboxError as problem:
            trouble = sentence(problem)
        finally:
            self._count -= 1
        await wire.say(end=trouble)
        with suppress(OSError):
            await send({"type": "websocket.close"})

    async def _open(self, wanted: Mapping[str, Any]) -> Attached:
        sandbox, job = (str(wanted.get(name, ""))[:500] for name in ("sandbox", "job"))
        begun, window = time.time(), window_of(wanted)
        if job:
            attached = await self._app.jobs.attach(Which(session=job, sandbox=sandbox), window)
        else:
            attached = await open_shell(await self._app.fleet.get(sandbox), window)
        # What is typed may be a password, and is not kept.
        given = {"sandbox_name": sandbox, "tmux_session": job}
        seconds = time.time() - begun
        self._app.history.note(
            MadeCall(tool="terminal", arguments=given, outcome="done", begun=begun, seconds=seconds, client=CLIENT)
        )
        return attached


class Wire:
    """The WebSocket of one terminal."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        # What waits for the program: a size, and what was typed.
        self._window: Window | None = None
        self._typed = bytearray()
        self._given, self._drawn = asyncio.Event(), asyncio.Event()
        # Of what was typed, what the program has not taken; and of what was shown, what the browser has not drawn.
        self._untaken = self._undrawn = 0

    async def carry(self, attached: Attached) -> None:
        """Until one side has ended. A browser that does not draw holds the program up."""
        await self.say(opened=True)
        work = [asyncio.ensure_future(it(attached)) for it in (self._show, self._hear, self._type)]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def say(self, **fields: Any) -> None:
        await self._tell("text", to_json(fields).decode())

    async def _tell(self, kind: str, value: str | bytes) -> None:
        # To a browser that has gone; receive() says that, too.
        with suppress(OSError):
            await self._send({"type": "websocket.send", kind: value})

    async def text(self) -> dict[str, Any]:
        """Raises PageRefusal."""
        given = await self._next()
        if not isinstance(given, dict):
            raise PageRefusal(400, "the body must be a JSON object")
        return given

    async def _next(self) -> bytes | dict[str, Any] | None:
        """Wait for what is typed, or a text; None where the browser has gone. Raises PageRefusal."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            return None
        if (text := message.get("text")) is None:
            return bytes(message["bytes"])
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise PageRefusal(400, "the body is not valid JSON") from None
        if not isinstance(value, dict):
            raise PageRefusal(400, "the body must be a JSON object")
        return value

    async def _show(self, attached: Attached) -> None:
        while data := await attached.read():
            for at in range(0, len(data), PIECE_BYTES):
                await self._put(data[at : at + PIECE_BYTES])

    async def _put(self, piece: bytes) -> None:
        while self._undrawn + len(piece) > MOST_AHEAD:
            self._drawn.clear()
            await self._drawn.wait()
        self._undrawn += len(piece)
        await self._tell("bytes", piece)

    async def _hear(self, _: Attached) -> None:
        while (given := await self._next()) is not None:
            if isinstance(given, bytes):
                self._untaken += len(given)
                if self._untaken > MOST_AHEAD:
                    raise PageRefusal(413, "the program in the terminal does not read what is typed")
                self._typed += given
            elif "took" in given:
                self._take(given["took"])
            else:
                self._window = window_of(given)
            self._given.set()

    def _take(self, count: object) -> None:
        if type(count) is not int or not 0 <= count <= self._undrawn:
            raise PageRefusal(400, "more was taken than was sent")
        self._undrawn -= count
        self._drawn.set()

    async def _type(self, attached: Attached) -> None:
        while await self._given.wait():
            self._given.clear()
            if self._window:
                attached.resize(self._window)
            data, self._typed, self._window = bytes(self._typed), bytearray(), None
            # Waits for the program, which may not read.
            await attached.type(data)
            self._untaken -= len(data)
            if data:
                await self.say(took=len(data))


def window_of(wanted: Mapping[str, Any]) -> Window:
    """Raises PageRefusal."""
    rows, columns = wanted.get("rows"), wanted.get("columns")
    if type(rows) is not int or type(columns) is not int:
        raise PageRefusal(400, "rows and columns must be whole numbers")
    return Window(min(max(rows, 1), MOST_ROWS), min(max(columns, 2), MOST_COLUMNS))
