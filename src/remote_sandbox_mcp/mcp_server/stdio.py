"""Serving one client over standard input and output, and leaving at once when told to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

from mcp.server.stdio import stdio_server

from ..app import App
from .early import Early, Learner
from .server import SandboxServer, build

FAREWELL_S = 0.15
LONGEST_LINE = 256 << 20


def serve(app: App, early: Early | None) -> None:
    """Serve until the input ends or a signal comes; the process ends here."""
    failed = asyncio.run(_serve(app, early))
    if failed:
        print(f"remote-sandbox-mcp: {failed!r}", file=sys.stderr)
    sys.stderr.flush()
    # Nothing is left to be done that could not be left undone: a slow library must not keep a client waiting.
    os._exit(1 if failed else 0)


async def _serve(app: App, early: Early | None) -> BaseException | None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    serving = asyncio.ensure_future(_converse(build(app), early))
    waiting = asyncio.ensure_future(stopped.wait())
    done, _ = await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(app.close(), FAREWELL_S)
    return serving.exception() if serving in done else None


async def _converse(server: SandboxServer, early: Early | None) -> None:
    # What cannot be waited for, such as a file, is left to the SDK and its threads.
    streams: Any = await take_standard_streams(early) if early else ()
    async with stdio_server(*streams) as (incoming, outgoing):
        lowlevel = server._lowlevel_server
        await lowlevel.run(incoming, outgoing, lowlevel.create_initialization_options())


async def take_standard_streams(early: Early) -> tuple[Lines, Answers]:
    """Standard input and output for the protocol alone: a stray print goes to stderr, a child reads nothing."""
    early.hand_over()
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    reader = asyncio.StreamReader(LONGEST_LINE)
    reader.feed_data(bytes(early.heard))
    if early.ended:
        reader.feed_eof()
    else:
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0))
    learner = Learner(early)
    return Lines(reader, learner), Answers(sink, learner)


class Lines:
    """Input as the SDK's transport reads it, but on the event loop: a thread would add to every call."""

    def __init__(self, reader: asyncio.StreamReader, learner: Learner) -> None:
        self._reader = reader
        self._learner = learner

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await self._reader.readline():
            text = line.decode("utf-8", "replace")
            self._learner.asked(text)
            yield text


class Answers:
    """Output as the SDK's transport writes it."""

    def __init__(self, fd: int, learner: Learner) -> None:
        self._fd = fd
        self._learner = learner
        os.set_blocking(fd, False)

    async def write(self, text: str) -> None:
        if not self._learner.passes(text):
            return
        rest = memoryview(text.encode("utf-8", "replace"))
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                await self._writable()

    async def flush(self) -> None:
        """Nothing is held back."""

    async def _writable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._fd)
