"""Conversations with the hub: a front's, MCP line by line, and a person's at a terminal, who logs in to a machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..core.errors import SandboxError, Unsupported
from ..core.sandboxes.login import LONGEST_ANSWER, Challenge
from ..fronts.mcp.prefetch import Opening
from ..local.asking import Answers, NoAnswer, Question, asking
from ..services.hub_contact.hello import read, say_version
from ..services.session import KeptSelection, Session, begin
from .houses import House, Houses, client_of

if TYPE_CHECKING:
    from ..fronts.mcp.stdio import LineReader
from .passing import Caller

# After the client's end: time for calls to stop their commands.
WIND_DOWN_S = 0.15
# After this long without a line, a front has sent all that its client has said so far.
QUIET_S = 0.005
# Time for calls in progress, before the conversation has to be opened again under another configuration.
MOVE_S = 10.0


async def converse(houses: Houses, front: Caller) -> None:
    """Serve one front until it goes."""
    config, session = client_of(front.said)
    house = await houses.enter(config, session)
    session.selection = selection = KeptSelection(house.app.identity, front.pid)
    conversation = Conversation(house, session, front.said, AnswerWriter(front.writer, front.leaving))
    try:
        await front.say({"pid": os.getpid(), "version": __version__, "notes": house.app.problems})
        heard = Heard(front.reader)
        if not house.is_made:
            await heard.until(house.made, Opening(house.app, selection, session.folder))
        await conversation.hold(heard)
    finally:
        houses.leave_house(house, session)
        await asyncio.to_thread(selection.release)


async def next_line(reader: asyncio.StreamReader) -> bytes:
    """The next line; empty when the other process is gone, even if it was killed before it read what we sent."""
    try:
        return await reader.readline()
    except ConnectionError:
        return b""


class Heard:
    """Lines of a front; some may have come before the server was ready to answer."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._lines: list[bytes] = []
        self._reading: asyncio.Future[bytes] | None = None

    async def until(self, ready: Callable[[], Awaitable[object]], opening: Opening) -> None:
        """Read lines while waiting for `ready`, and already open the machines that the calls name."""
        # A client that already waits for a call has sent it: then opening its machine comes before loading the SDK.
        while not opening.is_asked and await self._hear(opening, timeout=QUIET_S):
            pass
        await opening.prepared()
        waiting = asyncio.ensure_future(ready())
        while not waiting.done() and b"" not in self._lines:
            await self._hear(opening, waiting)
        await waiting

    async def _hear(self, opening: Opening, *others: asyncio.Future[Any], timeout: float | None = None) -> bool:
        """Wait for a line, or until any of `others` is done; returns whether a line came and more may follow."""
        self._reading = self._reading or asyncio.ensure_future(next_line(self._reader))
        either: tuple[asyncio.Future[Any], ...] = (self._reading, *others)
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not self._reading.done():
            return False
        self._lines.append(await self._reading)
        self._reading = None
        opening.take_line(self._lines[-1])
        return self._lines[-1] != b""

    async def readline(self) -> bytes:
        if self._lines:
            return self._lines.pop(0)
        reading, self._reading = self._reading, None
        return await (reading or next_line(self._reader))


class Conversation:
    """The conversation with one client."""

    def __init__(self, house: House, session: Session, said: dict[str, Any], answers: AnswerWriter) -> None:
        self._house = house
        self._session = session
        self._said = said
        self._answers = answers
        self._ended = asyncio.Event()

    async def hold(self, reader: Heard) -> None:
        begin(self._session)
        self._session.is_served = lambda: not self._ended.is_set() and self._answers.is_open
        serving = asyncio.ensure_future(self._speak(reader))
        over = [asyncio.ensure_future(event.wait()) for event in (self._ended, self._session.moved)]
        chores = [asyncio.ensure_future(self._give_up(left)) for left in self._said.get("cancelled") or ()]
        self._session.versions.restore(self._said.get("versions") or ())
        self._session.versions.noted = self._answers.note_version
        if self._said.get("resumed"):
            chores.append(asyncio.ensure_future(self._house.app.apps.reopen()))
        await asyncio.wait((serving, *over), return_when=asyncio.FIRST_COMPLETED)
        for waiting in over:
            waiting.cancel()
        if self._session.moved.is_set():
            # The front opens the conversation again with all unanswered requests, and gets the new configuration.
            await asyncio.wait((asyncio.ensure_future(self._session.calls.settled()),), timeout=MOVE_S)
            self._answers.is_muted = True
        # Cancel every call in progress, with its command: the client that asked is gone.
        await asyncio.wait((serving, *chores), timeout=WIND_DOWN_S)
        serving.cancel()
        await asyncio.wait((serving,), timeout=WIND_DOWN_S)
        if serving.done() and not serving.cancelled() and (failed := serving.exception()):
            raise failed

    async def _give_up(self, left: dict[str, Any]) -> None:
        """End the command of a call that the client cancelled, in case the previous hub died before it could."""
        with contextlib.suppress(SandboxError):
            where = str(left.get("sandbox") or "") or await self._session.selection.name()
            if not where and (workspace := self._house.app.workspaces.find(self._session.folder)):
                where = workspace.sandbox
            several = left.get("sandboxes") or ()
            await self._house.app.commands.give_up(f"{self._session.name} {left.get('name')}", where, several)

    async def _speak(self, reader: Heard) -> None:
        from ..fronts.mcp.stdio import StdinLines, calls_of, serve_over

        server, _ = await self._house.made()
        lines = StdinLines(reader, self._answers, self._ended, calls_of(self._said))
        await serve_over(server, lines, self._answers)


class AnswerWriter:
    """Output as the SDK's transport writes it."""

    def __init__(self, writer: asyncio.StreamWriter, leaving: asyncio.Event) -> None:
        self._writer = writer
        self._leaving = leaving
        self._turn = asyncio.Lock()
        self.is_muted = False

    @property
    def is_open(self) -> bool:
        return not self.is_muted and not self._leaving.is_set()

    async def write(self, text: str) -> None:
        # A hub that ends closes its connections, and calls fail; the client must not see that, because another hub goes
        # on.
        if not self.is_open:
            return
        # If the front is gone, reading its lines ends the conversation.
        with contextlib.suppress(ConnectionError):
            async with self._turn:
                self._writer.write(text.encode("utf-8", "replace"))
                await self._writer.drain()

    def note_version(self, sandbox: str, path: str, version: str | None) -> None:
        """Have the front keep a file's version for another hub; written before the answer that shows the file."""
        if self.is_open:
            self._writer.write(say_version(sandbox, path, version))

    async def flush(self) -> None:
        """Do nothing: there is no buffer."""


GONE = "the person at the terminal gave no answer"


class Terminal:
    """Asks the person at the other end of the line."""

    is_terminal = True

    def __init__(self, reader: LineReader, caller: Caller) -> None:
        self._reader = reader
        self._caller = caller

    def takes(self, challenge: Challenge) -> bool:
        return True

    async def __call__(self, question: Question) -> Answers:
        asked = question.challenge
        prompts = [{"text": prompt.text, "is_shown": prompt.is_shown} for prompt in asked.prompts]
        await self.say({"ask": prompts, "host": asked.host, "note": asked.note})
        try:
            answers = read(await self._reader.readline() or b"{}").get("answers")
        except (ConnectionError, ValueError):
            raise NoAnswer(GONE) from None
        if not isinstance(answers, list) or len(answers) != len(prompts) or not all(map(_is_answer, answers)):
            raise NoAnswer(GONE)
        return tuple(answers)

    async def say(self, what: dict[str, Any]) -> None:
        # That the person is gone shows at the next read.
        with contextlib.suppress(ConnectionError):
            await self._caller.say(what)


def _is_answer(answer: object) -> bool:
    return isinstance(answer, str) and len(answer) <= LONGEST_ANSWER


async def log_in(houses: Houses, caller: Caller) -> None:
    """Open the machine that the caller names, with the caller's configuration, and send how that ended."""
    config, session = client_of(caller.said)
    house = await houses.enter(config, session)
    terminal = Terminal(caller.reader, caller)
    begin(session)
    asking.set(terminal)
    try:
        member = house.app.fleet.member(str(caller.said.get("name") or ""))
        if member.questions is None:
            raise Unsupported(f"{member.name} is no SSH machine, so there is nothing to log in to")
        was_open = member.sandbox is not None and member.sandbox.is_open
        await member.open()
        await terminal.say({"name": member.name, "was_open": was_open, "asked": member.questions.need_person})
    except SandboxError as problem:
        await terminal.say({"trouble": str(problem)})
    finally:
        houses.leave_house(house, session)
