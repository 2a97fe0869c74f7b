"""The near end of a line over HTTP: a connection of its own, or one answer and many requests where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..outpost.client import NoOutpost
from .http_bridge import PROTOCOL

if TYPE_CHECKING:
    import httpx

# As much as is sent in one go, and as much as may wait before a writer has to.
LARGEST_PART, ENOUGH_WAITING = 4 << 20, 8 << 20
# As much as the event loop reads at once.
PIECE, MOST_UNREAD = 256 << 10, 64
LONGEST_NUMBER = 20
UPGRADE = {"Connection": "Upgrade", "Upgrade": PROTOCOL}
UPGRADED, OPENED = 101, 200
# What a bridge answers to a part that it was sent: nothing at all.
LONGEST_RECEIPT = 1024


class HttpLine:
    """A program behind a bridge, as a line that says when it has room for more."""

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
        # Whether the connection itself became the line, or was said to.
        self.is_upgraded = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, argv: Sequence[str]) -> None:
        """Start the program. Raises NoOutpost."""
        self._tasks = [asyncio.create_task(self._hold(argv))]
        await self._opened.wait()
        if self._send is None:
            raise NoOutpost("the bridge to it does not answer")
        self._tasks.append(asyncio.create_task(self._tell(self._send)))

    async def _hold(self, argv: Sequence[str]) -> None:
        """The one task that holds the answer: it gives it up when it is cancelled."""
        import httpx

        from .transport import ENDLESS

        headers = {**self._headers, "X-Line-Argv": json.dumps(list(argv))}
        # What a program prints may be a long time coming; that a line is dead is found out by asking over it.
        patience = httpx.Timeout(self._client.timeout.connect, read=None)
        try:
            with contextlib.suppress(*cuts()):
                # A proxy may pass over what it does not know, or refuse it.
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
        """All that is said on an open line; False where there is none."""
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
            # It becomes part of an address, to which the platform's key may be sent: anything else is no container's.
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

    async def _tell(self, send: Callable[[memoryview], Awaitable[object]]) -> None:
        """One part after another: their order is the order of the bytes."""
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
            # To the end, so that the connection can be used again.
            async for piece in answer.aiter_raw():
                heard += len(piece)
                if heard > LONGEST_RECEIPT:
                    raise httpx.RemoteProtocolError("a bridge says more than it was asked for")

    def _end(self) -> None:
        self._ended = True
        self._waiting.clear()
        self._room.set()
        self._opened.set()
        # Who waits for more has to be told; who has not yet read what came finds the end after it.
        with contextlib.suppress(asyncio.QueueFull):
            self._arrived.put_nowait(b"")

    def close(self) -> None:
        """The far side finds the end of its input when the answer is given up."""
        for task in self._tasks:
            task.cancel()


def cuts() -> tuple[type[Exception], ...]:
    """What comes of a line that is cut."""
    import httpcore
    import httpx

    return httpx.HTTPError, httpcore.NetworkError, httpcore.TimeoutException, OSError
