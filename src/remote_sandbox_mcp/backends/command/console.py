"""Commands on a machine, one shell for each: what a program there prints and complains about, and how it ended."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.commands.shell import join
from ...core.errors import ConnectError, Unreachable, Unsupported
from ...core.sandboxes.foreign import too_much
from ...core.sandboxes.machine import says
from ...local.waiting import within
from .way import CommandLine, Way, last_words

# Plain words only, so that every login shell takes it alike.
START_LINE = "exec sh -s"
ASK_S = 20.0
# Of what one command prints: all of our containers, on a machine that has many.
MOST_PRINTED = 4 << 20
# Each is a session of the machine, and work for its engine or cluster. What takes minutes must not keep others waiting.
AT_ONCE, LONG_AT_ONCE = 4, 2
LONG_S = 120.0


@dataclass(frozen=True)
class ConsoleOutput:
    """Exit status and output of a command."""

    status: int
    out: str
    err: bytes

    def says(self, words: Sequence[str]) -> bool:
        """Whether its complaints contain one of these."""
        return says(self.err.decode("utf-8", "replace"), words)


class Console:
    """Runs commands on a machine, a few at once. `where` stands for what is asked in sentences."""

    def __init__(
        self, machine: str, way: Way, where: str, *, start_line: str = START_LINE, first: Sequence[str] = ()
    ) -> None:
        """`start_line` starts the shell, which runs the lines of `first` before each command."""
        self._start_line = start_line
        self._first = first
        self.machine = machine
        self.way = way
        self.where = where
        self._turns, self._long_turns = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(LONG_AT_ONCE)

    async def ask(self, words: Sequence[str], given: Sequence[str] = (), *, limit_s: float = ASK_S) -> ConsoleOutput:
        """One command; `given` are the lines of its standard input. Raises ConnectError."""
        return await self.run(join(words), given, limit_s=limit_s)

    async def run(self, script: str, given: Sequence[str] = (), *, limit_s: float = ASK_S) -> ConsoleOutput:
        """Run a line of shell; every word of it that is not ours was quoted."""
        async with self._turns if limit_s < LONG_S else self._long_turns:
            try:
                return await within(self._run(script, given), limit_s)
            except asyncio.TimeoutError:
                raise Unreachable(f"{self.where} has not answered within {limit_s:g} s") from None
            except Unsupported as problem:
                raise Unreachable(f"{self.where} cannot be asked now: {problem}") from None

    async def _run(self, script: str, given: Sequence[str]) -> ConsoleOutput:
        line = await self.way.open(self._start_line)
        try:
            token = secrets.token_hex(16)
            line.write(_source(script, given, token, self._first))
            out, _, word = (await self._printed(line, token)).rpartition(b"\n")
            status = int(word) if word.isdigit() and len(word) < 4 else 1
            return ConsoleOutput(status, out.decode("utf-8", "replace").strip(), (await line.ending()).complaints)
        finally:
            line.close()

    async def _printed(self, line: CommandLine, token: str) -> bytes:
        """Read the output between the token and its return, which the status follows."""
        heard, first, last = bytearray(), f"\n{token}\n".encode(), f"\n{token} ".encode()
        while True:
            begin, end = heard.find(first), heard.rfind(last)
            if 0 <= begin < end and heard.endswith(b"\n"):
                status = heard[end + len(last) :].strip()
                return bytes(heard[begin + len(first) : end]) + b"\n" + bytes(status)
            data = await line.read()
            if not data:
                complaints = last_words((await line.ending()).complaints)
                # Before its first word, a start-up file may have said why no shell runs.
                raise self._cut(complaints or ("" if begin >= 0 else last_words(bytes(heard))))
            heard += data
            if len(heard) > MOST_PRINTED:
                raise too_much(self.where)

    def _cut(self, words: str) -> ConnectError:
        return Unreachable(f"{self.where} was cut off while it was asked{f': {words}' if words else ''}; try again")


def _source(script: str, given: Sequence[str], token: str, first: Sequence[str] = ()) -> bytes:
    """Build the shell's input: the command's input is not in its arguments, which everybody on the machine can see."""
    lines = "\n".join((*given, token))
    source = f"printf '\\n%s\\n' {token}\n{script} <<'{token}'\n{lines}\nprintf '\\n%s %s\\n' {token} \"$?\"\nexit\n"
    source = "".join(f"{line}\n" for line in first) + source
    return source.encode("utf-8", "surrogateescape")
