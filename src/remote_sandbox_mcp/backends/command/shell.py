"""The shell behind a command where there is no python3: each request is one start of the command."""

from __future__ import annotations

import asyncio

from ...core.errors import ConnectError, Unreachable
from ..outpost.client import LineLost
from ..shell.talk import START_LINE, Talk, bring
from ..shell.transport import Printed, Request
from .way import CommandLine, Way

# Requests that run a command hold theirs until its end; the others are short, and must not wait behind those.
MOST_HELD, MOST_URGENT = 16, 8


class CommandShell:
    """A Transport for the shell program."""

    def __init__(self, way: Way, name: str) -> None:
        self._way = way
        self._name = name
        self._held, self._urgent = asyncio.Semaphore(MOST_HELD), asyncio.Semaphore(MOST_URGENT)
        self.is_open = False

    async def why_not(self) -> ConnectError | None:
        return None

    async def close(self) -> None:
        self.is_open = False

    async def run(self, request: Request) -> Printed:
        async with self._urgent if request.urgent else self._held:
            try:
                printed = await self._run(request)
            except ConnectError:
                self.is_open = False
                raise
            self.is_open = True
            return printed

    async def _run(self, request: Request) -> Printed:
        line = await self._way.open(START_LINE)
        try:
            return await Talk(ProcessTalk(line), request, self._name, f"{self._way.what} was started").hold()
        except (LineLost, OSError, asyncio.TimeoutError):
            raise Unreachable(f"{self._name}: {self._way.what} was cut off; try again") from None
        finally:
            line.close()

    async def upload(self, base: str, name: str, content: bytes) -> str:
        return await bring(self.run, self._name, base, name, content)


class ProcessTalk:
    """A command's line as a ShellLine. Its input stays open: the script itself says where it ends."""

    def __init__(self, line: CommandLine) -> None:
        self._line = line
        self.read = line.read

    async def send(self, data: bytes) -> None:
        self._line.write(data)
        await self._line.drain()

    def end_input(self) -> None:
        """Do nothing: some commands end when their input does, before the answer has come."""

    async def complaints(self) -> bytes:
        return (await self._line.ending()).complaints

    async def status(self) -> int | None:
        return (await self._line.ending()).status
