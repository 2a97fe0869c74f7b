"""The near end of a line over HTTP: an upgraded connection or, if proxies allow none, one answer and many requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...far.http_bridge import PROTOCOL
from ..link.client import NoOutpost

if TYPE_CHECKING:
    import httpx

# The most bytes of one request, and how many bytes may wait to be sent before drain() waits.
LARGEST_PART, ENOUGH_WAITING = 4 << 20, 8 << 20
# How much is read at once, and how many such pieces may wait to be read.
PIECE, MOST_UNREAD = 256 << 10, 64
LONGEST_NUMBER = 20
UPGRADE = {"Connection": "Upgrade", "Upgrade": PROTOCOL}
UPGRADED, OPENED = 101, 200
# A bridge answers a part with an empty body; more than this is refused.
LONGEST_RECEIPT = 1024


class HttpLine:
    """A line to a program that a bridge has started; its writer can wait for room."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, headers: Mapping[str, str], *, may_upgrade: bool = True
    ) -> None:
        self._client = client
        self._url = url
        self._headers = headers
        self._may_upgrade = may_upgrade
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue(MOST_UNREAD)
        self._waiting = bytearray()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._opened = asyncio.Event()
        self._send: Callable[[memoryview], Awaitable[object]] | None = None
        self._ended = False
        # Whether the connection itself became the line, or a proxy claims so.
        self.is_upgraded = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, argv: Sequence[str]) -> None:
        """Start the program. Raises NoOutpost."""
        self._tasks = [asyncio.create_task(self._hold(argv))]
        await self._opened.wait()
        if self._send is None:
            raise NoOutpost("the bridge to it does not answer")
        self._tasks.append(asyncio.create_task(self._send_with(self._send)))

    async def _hold(self, argv: Sequence[str]) -> None:
        """Make the request and read its answer, which is the line; cancelling this task closes the connection."""
        import httpx

        from .transport import ENDLESS

        headers = {**self._headers, "X-Line-Argv": json.dumps(list(argv))}
        # No time limit for reading: a program may be silent for long. A dead line is noticed by the outpost's PING.
        patience = httpx.Timeout(self._client.timeout.connect, read=None)
        try:
            with contextlib.suppress(*cuts()):
                # A proxy may ignore an upgrade that it does not know, or refuse the request.
                for further in [UPGRADE, {}] if self._may_upgrade else [{}]:
                    asking = self._client.stream(
                        "POST", self._url, headers=headers | further, timeout=patience, extensions=ENDLESS
                    )
                    async with asking as answer:
                        if await self._receive(answer):
                            return
        finally:
            self._end()

    async def _receive(self, answer: httpx.Response) -> bool:
        """Read an open line to its end; False if the answer opens none."""
        if answer.status_code == UPGRADED:
            await self._receive_upgraded(answer)
        elif answer.status_code == OPENED:
            await self._receive_pieces(answer)
        return answer.status_code in (UPGRADED, OPENED)

    async def _receive_upgraded(self, answer: httpx.Response) -> None:
        stream = answer.extensions["network_stream"]
        self.is_upgraded = True
        self._open(stream.write)
        while data := await stream.read(PIECE):
            await self._arrived.put(data)

    async def _receive_pieces(self, answer: httpx.Response) -> None:
        pieces, head = answer.aiter_raw(), b""
        while b"\n" not in head and len(head) < LONGEST_NUMBER:
            head += await anext(pieces, b"\n")
        number, _, rest = head.partition(b"\n")
        if not number.isdigit():
            # It becomes part of a URL to which the platform's key may be sent, and a container may have written it.
            return
        self._open(partial(self._post, f"{self._url}/{number.decode()}"))
        if rest:
            await self._arrived.put(rest)
        async for piece in pieces:
            await self._arrived.put(piece)

    def _open(self, send: Callable[[memoryview], Awaitable[object]]) -> None:
        self._send = send
        self._opened.set()

    async def read(self) -> bytes:
        if self._ended and self._arrived.empty():
            return b""
        return await self._arrived.get()

    def write(self, data: bytes) -> None:
        if self._ended:
            return
        self._waiting += data
        self._news.set()
        if len(self._waiting) > ENOUGH_WAITING:
            self._room.clear()

    async def drain(self) -> None:
        await self._room.wait()

    async def _send_with(self, send: Callable[[memoryview], Awaitable[object]]) -> None:
        """Send what was written, one part after another, so that the bytes stay in order."""
        with contextlib.suppress(*cuts()):
            while True:
                await self._news.wait()
                self._news.clear()
                waiting, self._waiting = memoryview(self._waiting), bytearray()
                self._room.set()
                for at in range(0, len(waiting), LARGEST_PART):
                    await send(waiting[at : at + LARGEST_PART])
        self.close()

    async def _post(self, url: str, part: memoryview) -> None:
        import httpx

        asking = self._client.stream("POST", url, content=bytes(part), headers=self._headers)
        async with asking as answer:
            answer.raise_for_status()
            heard = 0
            # Read to the end, so that the connection can be reused.
            async for piece in answer.aiter_raw():
                heard += len(piece)
                if heard > LONGEST_RECEIPT:
                    raise httpx.RemoteProtocolError("a bridge says more than it was asked for")

    def _end(self) -> None:
        self._ended = True
        self._waiting.clear()
        self._room.set()
        self._opened.set()
        # Wakes a reader that waits. With a full queue none does, and the reader finds `_ended` after the last piece.
        with contextlib.suppress(asyncio.QueueFull):
            self._arrived.put_nowait(b"")

    def close(self) -> None:
        """Close the line; the program at the far end gets an end of its input."""
        for task in self._tasks:
            task.cancel()


def cuts() -> tuple[type[Exception], ...]:
    """The exceptions that mean that a line was cut."""
    import httpcore
    import httpx

    return httpx.HTTPError, httpcore.NetworkError, httpcore.TimeoutException, OSError
