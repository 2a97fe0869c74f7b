"""Connections to a platform that limit the size of answers: a program in a container may have written them.

Apart from api.py, because httpx is only loaded when a platform is first asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

# The largest answer that we ask for is a file of 16 MiB, as the text of a command's output.
MOST_BYTES = 64 << 20
# Marks a request whose answer is a line and has no end.
ENDLESS = {"endless_answer": True}


class BoundedTransport(httpx.AsyncHTTPTransport):
    """Refuses answers that are too large, and compressed ones, which would be too large when they are unpacked."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
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
    """The bytes of an answer, up to MOST_BYTES."""

    def __init__(self, stream: httpx.AsyncByteStream, request: httpx.Request) -> None:
        self._stream = stream
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for piece in self._stream:
            count += len(piece)
            if count > MOST_BYTES:
                raise httpx.RemoteProtocolError("an answer has no end", request=self._request)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
