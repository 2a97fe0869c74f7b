"""One request to a shell that reads its script from standard input: what is sent, and how the answer is read."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol

from ...core.commands.shell import quote
from ...core.errors import Unreachable
from ...core.sandboxes.foreign import too_much
from ...core.texts.text import last_line
from ...local.waiting import within
from ..link.client import LineLost
from .program import RUNS, source
from .transport import FULL, NoRoom, Printed, ShellRequest

# Without quotes or special characters, so that every login shell understands it alike.
START_LINE = "exec sh -s"
# While a command runs, the far side prints a beat every two seconds; a busy machine may be late.
SILENCE_S = 20.0
# Other requests print nothing until their answer is complete.
ANSWER_S = 90.0
# How long after its answer a shell may take to end, which ends its standard error, too.
LAST_WORDS_S = 1.0
LONGEST_GREETING, MOST_COMPLAINTS = 1 << 20, 1 << 20
# This variable holds a file's content and is not exported: an exported one may hold only 128 KiB on Linux.
INNER = "RSM_DATA"


class ShellLine(Protocol):
    """A shell that was started with START_LINE."""

    async def send(self, data: bytes) -> None:
        """Send to its input. Raises OSError if it has ended."""

    def end_input(self) -> None:
        """Close its input."""

    async def read(self) -> bytes:
        """The next bytes of its output; b"" at the end."""

    async def complaints(self) -> bytes:
        """Read standard error up to its end, or as much of it as is kept."""

    async def status(self) -> int | None:
        """Return the exit status, asked for after the end of the output; None if the line was cut off."""


def script_of(request: ShellRequest, token: str) -> tuple[bytes, bytes]:
    """The text for the shell in two parts: variables, and the last line, without which nothing is executed."""
    # The shell prints the token before and after its answer: what comes earlier was printed by start-up files.
    given = "".join(f"{name}={quote(value)}\n" for name, value in request.variables.items())
    names = " ".join(name for name in request.variables if name != INNER)
    last = f"""printf '\\n%s\\n' {token}; trap 'echo {token}' EXIT; exec </dev/null; eval "$RSM_PROGRAM"; exit\n"""
    return (given + f"export {names}\n").encode("utf-8", "surrogateescape"), last.encode()


async def bring(
    run: Callable[[ShellRequest], Awaitable[Printed]], place: str, base: str, name: str, content: bytes
) -> str:
    """Have the shell write a file from a variable; returns its path. `place` is named in errors. Raises NoRoom."""
    text = content.decode("utf-8", "surrogateescape")
    given = {"RSM_PROGRAM": source(RUNS), "RSM_VERB": "bring", "RSM_BASE": base, "RSM_FROM": name, INNER: text}
    printed = await run(ShellRequest(given))
    if "state brought" not in printed.lines:
        raise NoRoom(f"{place}: {FULL}")
    return f"{base}/{name}"


class Talk:
    """One request on one line. `opened` says for errors what worked before the shell failed, such as "logged in"."""

    def __init__(self, line: ShellLine, request: ShellRequest, name: str, opened: str) -> None:
        self._line = line
        self._request = request
        self._name = name
        self._opened = opened
        self._token = secrets.token_hex(16)
        self._lines: list[str] = []
        self._rest = self._noise = b""
        self._heard, self._over = False, False
        # Bytes of the lines that are kept or, before the token, of everything.
        self._size = 0

    async def hold(self) -> Printed:
        """Send the request and read its answer. Raises LineLost, BrokenRules; Unreachable if no shell runs it."""
        # A shell that ends before everything is sent may have printed why.
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
            # A command that runs for days prints many beats; only the latest matters, so none is kept or counted.
            is_passing = self._heard and line.startswith(b"beat ")
            self._size += 0 if is_passing else len(line)
            if self._heard and not self._over:
                self._hear(line.decode("utf-8", "surrogateescape"), is_passing)
        # The last lines of a start-up file may explain why the shell runs nothing.
        self._noise = (self._noise + data)[-4096:]

    def _hear(self, line: str, is_passing: bool) -> None:
        self._request.heard(line)
        if not is_passing:
            self._lines.append(line)

    async def _complaints(self) -> bytes:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return await within(self._line.complaints(), LAST_WORDS_S)
        return b""
