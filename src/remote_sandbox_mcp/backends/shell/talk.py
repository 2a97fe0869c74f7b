"""One request to a shell that reads it from its input: what is sent, and how the answer is heard to its end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol

from ...core.errors import Unreachable
from ...core.foreign import too_much
from ...core.shell import quote
from ...core.text import last_line
from ...waiting import within
from ..outpost.client import LineLost
from .program import RUNS, source
from .transport import FULL, NoRoom, Printed, Request

# Plain words only, so that every login shell takes it alike.
START_LINE = "exec sh -s"
# The far side says something every two seconds while a command runs; it may be very busy, or stopped.
SILENCE_S = 20.0
# Other requests say nothing until their answer is there.
ANSWER_S = 90.0
# How long a shell that has answered may take to end, and with it what it complains about.
LAST_WORDS_S = 1.0
LONGEST_GREETING, MOST_COMPLAINTS = 1 << 20, 1 << 20
# Cannot be an exported variable: one that is may hold 128 KiB on Linux.
INNER = "RSM_DATA"


class ShellLine(Protocol):
    """A shell that was started with START_LINE."""

    async def send(self, data: bytes) -> None:
        """Raises OSError where it has ended."""
        ...

    def end_input(self) -> None:
        """Nothing more will be sent."""
        ...

    async def read(self) -> bytes:
        """The next bytes of its output, or b"" at its end."""
        ...

    async def complaints(self) -> bytes:
        """What it has said on standard error until its end, or the most that is kept of that."""
        ...

    async def status(self) -> int | None:
        """Its exit status, asked for after the end of its output; None where it was cut off."""
        ...


def script_of(request: Request, token: str) -> tuple[bytes, bytes]:
    """What is sent to the shell; nothing of it happens before the last line has arrived.

    Bytes before the token are a start-up file's and mean nothing.
    """
    given = "".join(f"{name}={quote(value)}\n" for name, value in request.variables.items())
    names = " ".join(name for name in request.variables if name != INNER)
    last = f"""printf '\\n%s\\n' {token}; trap 'echo {token}' EXIT; exec </dev/null; eval "$RSM_PROGRAM"; exit\n"""
    return (given + f"export {names}\n").encode("utf-8", "surrogateescape"), last.encode()


async def bring(run: Callable[[Request], Awaitable[Printed]], place: str, base: str, name: str, content: bytes) -> str:
    """The path of a file that the shell itself writes from a variable; `place` is named in errors. Raises NoRoom."""
    text = content.decode("utf-8", "surrogateescape")
    given = {"RSM_PROGRAM": source(RUNS), "RSM_VERB": "bring", "RSM_BASE": base, "RSM_FROM": name, INNER: text}
    printed = await run(Request(given))
    if "state brought" not in printed.lines:
        raise NoRoom(f"{place}: {FULL}")
    return f"{base}/{name}"


class Talk:
    """One line on which something is asked. `opened` says what was reached before its shell, as in "logged in"."""

    def __init__(self, line: ShellLine, request: Request, name: str, opened: str) -> None:
        self._line = line
        self._request = request
        self._name = name
        self._opened = opened
        self._token = secrets.token_hex(16)
        self._lines: list[str] = []
        self._rest = self._noise = b""
        self._heard, self._over = False, False
        # Of what is kept, or was heard before the token.
        self._size = 0

    async def hold(self) -> Printed:
        """Ask, and listen until the last word. Raises LineLost, BrokenRules; Unreachable where no shell runs it."""
        # Who ends before everything is sent may have said why.
        with contextlib.suppress(OSError):
            await self._send()
        while not self._over:
            self._take(await self._read())
            if self._size + len(self._rest) > (self._request.most if self._heard else LONGEST_GREETING):
                raise too_much(self._name)
        complaints = await self._complaints()
        return Printed(self._lines, tuple(complaints.decode("utf-8", "surrogateescape").splitlines()))

    async def _send(self) -> None:
        text, last = script_of(self._request, self._token)
        await self._line.send(text)
        self._request.sent = True
        await self._line.send(last)
        self._line.end_input()

    async def _read(self) -> bytes:
        limit = ANSWER_S if self._request.urgent else SILENCE_S
        if data := await within(self._line.read(), limit):
            return data
        status = await within(self._line.status(), SILENCE_S)
        if not self._heard and status is not None:
            noise = last_line(self._noise) or last_line(await self._complaints())
            said = noise or f"it ended with status {status}"
            raise Unreachable(f"{self._name}: {self._opened}, but its shell does not run commands: {said}")
        raise LineLost

    def _take(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            if line == self._token.encode():
                self._heard, self._over, self._size = True, self._heard, 0
                continue
            # Of a command that goes on for days there are many beats, and none is needed when the next has come.
            is_passing = self._heard and line.startswith(b"beat ")
            self._size += 0 if is_passing else len(line)
            if self._heard and not self._over:
                self._hear(line.decode("utf-8", "surrogateescape"), is_passing)
        # A start-up file's last words may be why no shell runs anything.
        self._noise = (self._noise + data)[-4096:]

    def _hear(self, line: str, is_passing: bool) -> None:
        self._request.heard(line)
        if not is_passing:
            self._lines.append(line)

    async def _complaints(self) -> bytes:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return await within(self._line.complaints(), LAST_WORDS_S)
        return b""
