"""Serving one client over standard input and output, and leaving at once when told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from mcp.server.stdio import stdio_server
from mcp_types import INVALID_PARAMS

from ...app import App, Stock
from ...config.source import ConfigSource
from ...core.client import Calls, begin_call
from ...services.fleet import Member
from ...services.hub_contact.place import NoHub
from ...services.session import KeptSelection, Session
from .clients import OneClient
from .handshake import Handshake, Learner
from .server import SandboxServer, build, prepare
from .upkeep import Upkeep

# How long connections may take to close at the end. Claude Code kills a server half a second after telling it to end.
ENDING_S = 0.1
# With disposable sandboxes: ready ones are deleted before we go, and connections are closed.
LONG_FAREWELL_S = 1.5
# How long cancelled calls may take to stop their commands.
WIND_DOWN_S = 0.15
# The longest message of a client.
LONGEST_LINE = 256 << 20
# A client counts as quiet after this long without a message.
QUIET_S = 1.0
HALF_PAIR = "the message holds half of a surrogate pair, which is no text; nothing was done, so send valid Unicode"


async def serve(
    app: App,
    source: ConfigSource,
    stock: Stock,
    members: Sequence[Member],
    handshake: Handshake | None,
    selection: KeptSelection,
) -> NoReturn:
    """Serve until the input ends or a signal comes; the process ends here. `source` is the app's configuration."""
    stopped, ended = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    who = handshake.who if handshake else {}
    session = Session(selection, name=str(who.get("session", "")))
    session.versions.restore(who.get("versions") or ())
    session.is_served = lambda: not (ended.is_set() or stopped.is_set())
    await prepare(app)
    server = build(app, OneClient(session))
    Upkeep(server, source, stock, members)
    serving = asyncio.ensure_future(_converse(server, handshake, ended))
    reviving = asyncio.ensure_future(app.revive())
    over = [asyncio.ensure_future(event.wait()) for event in (stopped, ended)]
    await asyncio.wait((serving, *over), return_when=asyncio.FIRST_COMPLETED)
    reviving.cancel()
    selection.release()
    if stopped.is_set():
        serving.cancel()
    # Every call in progress is cancelled, with its command: the client is gone.
    await asyncio.wait((serving,), timeout=WIND_DOWN_S)
    failed = serving.exception() if serving.done() and not serving.cancelled() else None
    await leave(app, failed, ENDING_S)


async def leave(app: App, failed: BaseException | None, ending_s: float) -> NoReturn:
    """End this process with everything it has open; logs what made it end."""
    if failed:
        print(f"remote-sandbox-mcp: {failed!r}", file=sys.stderr)
    await close(app, ending_s)
    sys.stderr.flush()
    # From inside the loop: its own end would wait for every call and thread that is still at work.
    os._exit(1 if failed else 0)


async def close(app: App, ending_s: float) -> None:
    """Close everything within this time, and hand unfinished transfers to the hub."""
    patience = max(LONG_FAREWELL_S, ending_s) if app.has_disposables else ending_s
    has_transfers = bool(app.transfers.needs())
    await asyncio.wait((asyncio.ensure_future(app.close()),), timeout=patience)
    if has_transfers:
        await asyncio.wait((asyncio.ensure_future(_leave_transfers(app)),), timeout=LONG_FAREWELL_S)


async def _leave_transfers(app: App) -> None:
    """Hand unfinished transfers to the hub."""
    from ...services.hub_contact.asking import leave_transfers

    try:
        await asyncio.to_thread(leave_transfers, app.jobs.config_file, 0)
    except (OSError, NoHub) as problem:
        why = getattr(problem, "strerror", None) or problem
        print(
            f"remote-sandbox-mcp: transfers wait for the next client: no hub goes on with them ({why})", file=sys.stderr
        )


async def _converse(server: SandboxServer, handshake: Handshake | None, ended: asyncio.Event) -> None:
    # Streams that cannot be polled, such as a file, are left to the SDK and its threads.
    streams: Any = await take_standard_streams(handshake, ended) if handshake else ()
    await serve_over(server, *streams)


async def serve_over(server: SandboxServer, *streams: Any) -> None:
    """Serve one client over its lines and what writes the answers; without any, over standard input and output."""
    if streams:
        lines: StdinLines = streams[0]
        lines.refusals.append(lambda line: server.waker.refusal(line, server.clients.session(None)))
    async with stdio_server(*streams) as (incoming, outgoing):
        await server.run_over(incoming, outgoing)


async def take_standard_streams(handshake: Handshake, ended: asyncio.Event) -> tuple[StdinLines, StdoutWriter]:
    """Reserve standard input and output for the protocol: a stray print goes to stderr, a child reads nothing."""
    handshake.hand_over()
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    reader = asyncio.StreamReader(LONGEST_LINE)
    # All that was read while modules were loading; Learner drops answers that the client has already.
    reader.feed_data(bytes(handshake.heard))
    if handshake.ended:
        reader.feed_eof()
    else:
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0))
    learner = Learner(handshake)
    answers = StdoutWriter(sink, learner)
    return StdinLines(reader, answers, ended, calls_of(handshake.who), learner), answers


def calls_of(who: Mapping[str, Any]) -> Calls | None:
    """Names for the calls of a conversation, as its front told; None where it has no name."""
    session = str(who.get("session") or "")
    return Calls(session, str(who.get("prefix") or ""), who.get("again") or ()) if session else None


class LineReader(Protocol):
    """Source of the client's messages."""

    async def readline(self) -> bytes: ...


class MessageSink(Protocol):
    """Sink for messages to the client."""

    async def write(self, text: str) -> None: ...


class StdinLines:
    """Input in the form that the SDK's transport reads, but on the event loop: a thread would delay every call."""

    def __init__(
        self,
        reader: LineReader,
        answers: MessageSink,
        ended: asyncio.Event,
        calls: Calls | None = None,
        learner: Learner | None = None,
    ) -> None:
        """`calls` names the calls, where another process may have begun them or may have to continue them."""
        self._reader = reader
        self._calls = calls
        self._learner = learner
        self._answers = answers
        self._ended = ended
        # Questions answered from the cache: the SDK gets them once the client is quiet, or has begun to work.
        self._put_off: list[str] = []
        self._reading: asyncio.Task[bytes] | None = None
        # Each makes the reply to a message that the SDK is not to see, or "".
        self.refusals: list[Callable[[str], str]] = [refuse_half_pairs]

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            if self._learner and self._put_off and (self._learner.is_over or await self._is_quiet()):
                yield self._put_off.pop(0)
                continue
            if not (line := await self._line()):
                break
            text = line.decode("utf-8", "replace")
            if self._calls:
                # The SDK handles a message in the context in which it was read.
                begin_call(self._calls.next())
            if self._learner and self._learner.asked(text):
                self._put_off.append(text)
            elif refusal := next(filter(None, (refuse(text) for refuse in self.refusals)), ""):
                await self._answers.write(refusal)
            else:
                yield text
        self._ended.set()

    async def _is_quiet(self) -> bool:
        self._reading = self._reading or asyncio.ensure_future(self._reader.readline())
        return not (await asyncio.wait((self._reading,), timeout=QUIET_S))[0]

    async def _line(self) -> bytes:
        reading, self._reading = self._reading, None
        return await (reading or self._reader.readline())


def refuse_half_pairs(line: str) -> str:
    """The reply to a message with half of a surrogate pair, which the SDK would drop silently; "" for all others."""
    # A cheap test first: only an escape can bring half of a pair, and almost no message has one.
    if "\\ud" not in line and "\\uD" not in line:
        return ""
    message: Any = None
    try:
        message = json.loads(line)
        json.dumps(message, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        if isinstance(message, dict) and "id" in message:
            error = {"code": INVALID_PARAMS, "message": HALF_PAIR}
            return json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}) + "\n"
    except (ValueError, RecursionError):
        pass
    return ""


class StdoutWriter:
    """Output in the form that the SDK's transport writes; one message after another, however long."""

    def __init__(self, fd: int, learner: Learner) -> None:
        self._fd = fd
        self._learner = learner
        self._turn = asyncio.Lock()
        os.set_blocking(fd, False)

    async def write(self, text: str) -> None:
        if not self._learner.passes(text):
            return
        rest = memoryview(text.encode("utf-8", "replace"))
        async with self._turn:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:
                    await self._writable()

    async def flush(self) -> None:
        """Do nothing: there is no buffer."""

    async def _writable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._fd)
