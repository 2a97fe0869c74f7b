"""Runs an engine's command line on its machine, each command in a shell of its own, and explains its failures."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.engine import says, trouble
from ...core.errors import ConnectError, SandboxError, Unreachable, Unsupported
from ...core.foreign import too_much
from ...core.machine import Engine
from ...core.shell import join
from ...waiting import within
from ..command.way import CommandLine, Way, last_words

# Without quotes or special characters, so that every login shell understands it alike.
START_LINE = "exec sh -s"
ASK_S = 20.0
# The most bytes of an answer: the details of all our containers on a machine that has many.
MOST_PRINTED = 4 << 20
# How many commands run at once: each is a session on the machine, and work for its engine. Those that may take minutes
# are counted apart, so that they do not delay the others.
AT_ONCE, LONG_AT_ONCE = 4, 2
LONG_S = 120.0
NOT_FOUND = 127

# Parts of the engines' error messages, for which they have no codes.
GONE = ("no such container", "no such object", "no container with name or id")
NO_IMAGE = ("no such image", "image not known", "unable to find image", "does not resolve to an image")
# Podman's init may be a separate package that is not installed; then our keeper is the container's first process.
NO_INIT = ("container-init binary not found", "init binary not found", '"docker-init": executable file not found')
REMOVING = ("removal of container", "already in progress", "is being removed")


@dataclass(frozen=True)
class Said:
    """The exit status of a command, and what it printed."""

    status: int
    out: str
    err: bytes

    def says(self, words: Sequence[str]) -> bool:
        """Whether its error output contains one of these."""
        return says(self.err.decode("utf-8", "replace"), words)


class Cli:
    """Runs one engine's commands on its machine, a few at once."""

    def __init__(self, machine: str, engine: Engine, way: Way) -> None:
        self.machine = machine
        self.engine = engine
        self.way = way
        self._turns, self._long_turns = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(LONG_AT_ONCE)

    @property
    def where(self) -> str:
        return f"{self.engine.tool} on {self.machine}"

    async def ask(self, words: Sequence[str], given: Sequence[str] = (), *, limit_s: float = ASK_S) -> Said:
        """Run one command of the engine; `given` are the lines of its standard input. Raises ConnectError."""
        return await self.run(join(words), given, limit_s=limit_s)

    async def run(self, script: str, given: Sequence[str] = (), *, limit_s: float = ASK_S) -> Said:
        """Like ask, for a line of shell in which the caller has quoted every word that is not ours."""
        async with self._turns if limit_s < LONG_S else self._long_turns:
            try:
                return await within(self._run(script, given), limit_s)
            except asyncio.TimeoutError:
                raise Unreachable(f"{self.where} has not answered within {limit_s:g} s") from None
            except Unsupported as problem:
                raise Unreachable(f"{self.where} cannot be asked now: {problem}") from None

    async def _run(self, script: str, given: Sequence[str]) -> Said:
        line = await self.way.open(START_LINE)
        try:
            token = secrets.token_hex(16)
            line.write(_source(script, given, token))
            printed = await self._printed(line, token)
            return Said(_status(printed.rpartition(b"\n")[2]), _text(printed), (await line.ending()).complaints)
        finally:
            line.close()

    async def _printed(self, line: CommandLine, token: str) -> bytes:
        """What is printed between the two tokens, and the status after the second one in a last line."""
        heard, first, last = bytearray(), f"\n{token}\n".encode(), f"\n{token} ".encode()
        while True:
            begin, end = heard.find(first), heard.rfind(last)
            if 0 <= begin < end and heard.endswith(b"\n"):
                status = heard[end + len(last) :].strip()
                return bytes(heard[begin + len(first) : end]) + b"\n" + bytes(status)
            data = await line.read()
            if not data:
                complaints = last_words((await line.ending()).complaints)
                # Before the first token, a start-up file may have printed why no shell runs.
                raise self._cut(complaints or ("" if begin >= 0 else last_words(bytes(heard))))
            heard += data
            if len(heard) > MOST_PRINTED:
                raise too_much(self.where)

    def _cut(self, words: str) -> ConnectError:
        return Unreachable(f"{self.where} was cut off while it was asked{f': {words}' if words else ''}; try again")

    def problem(self, doing: str, said: Said) -> SandboxError:
        """Why a command failed, and what to do."""
        tool, machine = self.engine.tool, self.machine
        found, remedy = trouble(tool, machine, said.err.decode("utf-8", "replace"))
        if found:
            return SandboxError.of_parts(doing, found, remedy)
        if said.status == NOT_FOUND and not said.says(("/bin/sh",)):
            return SandboxError.of_parts(
                doing, f"there is no {self.engine.command[0]} on {machine}", f"install {tool} there, or name it in full"
            )
        words = last_words(said.err) or f"it ended with status {said.status}"
        return SandboxError.of_parts(doing, f"{self.where} said: {words}")


def _source(script: str, given: Sequence[str], token: str) -> bytes:
    """The text for the shell. The command's input is a here-document: arguments can be seen by every user there."""
    lines = "\n".join((*given, token))
    source = f"printf '\\n%s\\n' {token}\n{script} <<'{token}'\n{lines}\nprintf '\\n%s %s\\n' {token} \"$?\"\nexit\n"
    return source.encode("utf-8", "surrogateescape")


def _text(printed: bytes) -> str:
    return printed.rpartition(b"\n")[0].decode("utf-8", "replace").strip()


def _status(word: bytes) -> int:
    return int(word) if word.isdigit() and len(word) < 4 else 1
