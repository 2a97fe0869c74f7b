"""Connections to a platform that bound its answers, and send its key to nobody else.

A program in a container may have written an answer. Apart from api.py, because httpx is only loaded when a platform is
first asked.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

# The largest answer that we ask for is a file of 16 MiB, as the text of a command's output.
MOST_BYTES = 64 << 20
# All other answers are a few fields; as objects they may be ten times as large.
MOST_FIELDS_BYTES = 8 << 20
# Each is an object in memory, however short it is in the answer.
MOST_BRACKETS = 20_000
# An answer that comes more slowly than so many bytes a second is given up.
SLOWEST = 10_000
KEY = "OPEN-SANDBOX-API-KEY"
# Marks a request whose answer is a line and has no end.
ENDLESS = {"endless_answer": True}


class TooMuch(httpx.RemoteProtocolError):
    """An answer is larger than any that we ask for."""


class Astray(httpx.RequestError):
    """A request would have taken the platform's key to another host."""


class BoundedTransport(httpx.AsyncHTTPTransport):
    """Refuses answers that are too large, and compressed ones, which would be too large when they are unpacked."""

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(**options)
        # The platform's: no other one gets its key.
        self._host = host

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if KEY in request.headers and request.url.host != self._host:
            raise Astray("the key is for the platform alone", request=request)
        if "endless_answer" in request.extensions:
            return await super().handle_async_request(request)
        request.headers["Accept-Encoding"] = "identity"
        answer = await super().handle_async_request(request)
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            await answer.stream.aclose()
            raise httpx.RemoteProtocolError("an answer is compressed, which was not asked for", request=request)
        answer.stream = BoundedStream(answer.stream, request)
        return answer


class BoundedStream(httpx.AsyncByteStream):
    """The bytes of an answer, up to a size that fits the request, and for as long as they come."""

    def __init__(self, stream: httpx.AsyncByteStream, request: httpx.Request) -> None:
        self._stream = stream
        self._request = request
        is_text = "event-stream" in request.headers.get("Accept", "") or request.url.path.endswith("/files/download")
        self._most = MOST_BYTES if is_text else MOST_FIELDS_BYTES
        # The time limit of httpx is for each piece. Events come when there are some, and have none.
        patience_s = request.extensions.get("timeout", {}).get("read") or math.inf
        self._until = time.monotonic() + patience_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = brackets = 0
        async for piece in self._stream:
            count += len(piece)
            brackets += piece.count(b"{") + piece.count(b"[")
            if count > self._most or brackets > MOST_BRACKETS:
                raise TooMuch("an answer has no end", request=self._request)
            if time.monotonic() > self._until + count / SLOWEST:
                raise httpx.ReadTimeout("an answer comes too slowly", request=self._request)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
