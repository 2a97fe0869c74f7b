"""The near end of a line over HTTP: one long answer to read from, and short requests to write with."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..outpost.client import NoOutpost

if TYPE_CHECKING:
    import httpx

# As much as one request carries, and as much as may wait before a writer has to.
LARGEST_PART, ENOUGH_WAITING = 4 << 20, 8 << 20
MOST_UNREAD = 64


class HttpLine:
    """A program behind a bridge, as a line that says when it has room for more."""

    def __init__(self, client: httpx.AsyncClient, url: str, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        self._headers = headers
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue(MOST_UNREAD)
        self._waiting = bytearray()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, argv: Sequence[str]) -> None:
        """Start the program. Raises NoOutpost."""
        self._tasks = [asyncio.create_task(self._receive(argv))]
        head = b""
        while b"\n" not in head:
            piece = await self.read()
            head += piece
            if not piece:
                raise NoOutpost("the bridge to it does not answer")
        number, _, rest = head.partition(b"\n")
        if rest:
            # Nothing else reads yet, and the next piece comes after this one.
            self._first = rest
        self._tasks.append(asyncio.create_task(self._send(f"{self._url}/{number.decode()}")))

    _first = b""

    async def read(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        if self._ended and self._arrived.empty():
            return b""
        return await self._arrived.get()

    async def _receive(self, argv: Sequence[str]) -> None:
        """The one task that holds the answer: it gives it up when it is cancelled."""
        import httpx

        body = json.dumps({"argv": list(argv)}).encode()
        # What a program prints may be a long time coming; that a line is dead is found out by asking over it.
        patience = httpx.Timeout(self._client.timeout.connect, read=None)
        try:
            with contextlib.suppress(httpx.HTTPError, OSError):
                async with self._client.stream(
                    "POST", self._url, content=body, headers=self._headers, timeout=patience
                ) as answer:
                    if answer.status_code == 200:
                        async for piece in answer.aiter_raw():
                            await self._arrived.put(piece)
        finally:
            self._end()

    def write(self, data: bytes) -> None:
        if self._ended:
            return
        self._waiting += data
        self._news.set()
        if len(self._waiting) > ENOUGH_WAITING:
            self._room.clear()

    async def drain(self) -> None:
        await self._room.wait()

    async def _send(self, url: str) -> None:
        """One request at a time: their order is the order of the bytes."""
        import httpx

        with contextlib.suppress(httpx.HTTPError, OSError):
            while True:
                await self._news.wait()
                self._news.clear()
                while self._waiting:
                    part = bytes(self._waiting[:LARGEST_PART])
                    del self._waiting[: len(part)]
                    if len(self._waiting) <= ENOUGH_WAITING:
                        self._room.set()
                    (await self._client.post(url, content=part, headers=self._headers)).raise_for_status()
        self.close()

    def _end(self) -> None:
        self._ended = True
        self._waiting.clear()
        self._room.set()
        # Who waits for more has to be told; who has not yet read what came finds the end after it.
        with contextlib.suppress(asyncio.QueueFull):
            self._arrived.put_nowait(b"")

    def close(self) -> None:
        """The far side finds the end of its input when the answer is given up."""
        for task in self._tasks:
            task.cancel()
