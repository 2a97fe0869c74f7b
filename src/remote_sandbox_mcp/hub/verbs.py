"""Verbs of the command line, carried out in the hub on the descriptors of the process that a person started."""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from ..local.asking import asking
from ..services.hub_contact.hello import read
from ..services.session import Session, begin
from .conversation import Terminal, next_line
from .houses import Houses, client_of
from .passing import Caller

STREAMS = 3
FAILED = 1


async def serve_verb(houses: Houses, caller: Caller) -> None:
    """Carry out one verb until it ends or its process goes; sends the exit code."""
    descriptors = await caller.passed("streams")
    if len(descriptors) != STREAMS:
        for fd in descriptors:
            os.close(fd)
        raise ConfigError(f"{len(descriptors)} descriptors instead of {STREAMS} were handed over")
    client = VerbClient(houses, caller, descriptors)
    task = asyncio.ensure_future(client.run())
    listening = asyncio.ensure_future(client.listen(caller.reader, task))
    try:
        code = await task
    except asyncio.CancelledError:
        code = 128 + client.signalled
    finally:
        await client.caller.close()
        listening.cancel()
    await client.terminal.say({"exit": code})


class VerbClient:
    """A process that waits for its verb: its streams, signals and answers."""

    def __init__(self, houses: Houses, caller: Caller, descriptors: list[int]) -> None:
        # The command line is above the hub: which verbs there are is decided there.
        self._verbs: Any = importlib.import_module("..cli.in_hub", __package__)
        self._houses = houses
        self._said = caller.said
        _, self._session = client_of(caller.said)
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.caller = self._verbs.HubCaller(descriptors, self._session.environ)
        self.terminal = Terminal(self, caller)
        # The signal that ended it.
        self.signalled = 0

    async def run(self) -> int:
        begin(self._session)
        if self._said.get("can_ask"):
            asking.set(self.terminal)
        return int(await self._verbs.run(self.caller, self._said.get("argv") or (), self._enter))

    async def _enter(self, config: Path | None) -> tuple[Any, Any]:
        """The app of the client's configuration, and what to call at the end."""
        session: Session = self._session
        house = await self._houses.enter(_whole(config, session.folder), session, refresh=True)
        return house.app, lambda: self._houses.leave_house(house, session)

    async def listen(self, reader: asyncio.StreamReader, task: asyncio.Task[int]) -> None:
        """Take the client's messages; the verb ends with its client."""
        while line := await next_line(reader):
            said = read(line)
            if number := int(said.get("signal") or 0):
                if not self.caller.signal(number) and number in self._verbs.ENDING:
                    self.signalled = number
                    task.cancel()
            else:
                self._answers.put_nowait(line)
        self._answers.put_nowait(b"")
        task.cancel()

    async def readline(self) -> bytes:
        """The next answers of the person at the terminal."""
        return await self._answers.get()


def _whole(config: Path | None, folder: str) -> Path | None:
    """The path of a configuration file as the client means it."""
    return None if config is None else Path(folder, os.path.expanduser(config))
