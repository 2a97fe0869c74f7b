"""Programs that use the Python API: the hub carries out their calls, with its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ..api import CALLS, Sandboxes
from ..core.client import Call, begin_call
from ..core.errors import Defect, SandboxError
from ..core.progress import Beat, StreamName
from ..local.waiting import end_all
from ..services.fleet import unforeseen
from ..services.hub_contact.calling import BOXES, INPUT, LISTENER, next_frame, pack, suits
from ..services.session import begin
from .houses import Houses, client_of
from .passing import Caller


async def serve_program(houses: Houses, caller: Caller) -> None:
    """Serve one program until it goes; then what is being carried out for it is stopped."""
    if not suits(caller.said):
        return
    config, session = client_of(caller.said)
    begin(session)
    try:
        house = await houses.enter(config, session, refresh=True)
    except SandboxError as problem:
        caller.writer.write(pack(("ready", problem), lambda value: None))
        return await caller.writer.drain()
    program = Program(Sandboxes(_app=house.app, _is_free=True), session.name, caller)
    try:
        await program.say("ready", tuple(house.app.standing_problems()))
        await program.listen(caller.reader)
    finally:
        await program.close()
        houses.leave_house(house, session)


class Work:
    """A call in progress, and the program's objects that it uses."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.number = 0
        self._parts: asyncio.Queue[bytes | SandboxError] = asyncio.Queue()
        self._sent: dict[str, int] = {}
        self.task: asyncio.Task[None] | None = None

    def __call__(self, beat: Beat, /) -> None:
        """Signs of life are not passed on."""

    def heard(self, stream: StreamName, data: bytes) -> None:
        """Pass output on; what a command keeps of it bounds how much."""
        offset = self._sent.get(stream, 0)
        self._sent[stream] = offset + len(data)
        self._program.put("heard", self.number, stream, offset, data)

    def take(self, part: bytes | SandboxError) -> None:
        self._parts.put_nowait(part)

    async def input(self) -> AsyncIterator[bytes]:
        """The program's input, a part at a time as the command takes it."""
        while True:
            self._program.put("give", self.number)
            part = await self._parts.get()
            if isinstance(part, SandboxError):
                raise part
            if not part:
                return
            yield part


class Program:
    """A program at the other end of a line."""

    def __init__(self, boxes: Sandboxes, session: str, caller: Caller) -> None:
        self._boxes = boxes
        self._session = session
        self._caller = caller
        self._draining = asyncio.Lock()
        self._works: dict[int, Work] = {}
        self._named: Work | None = None

    async def listen(self, reader: asyncio.StreamReader) -> None:
        while said := await next_frame(reader, self._object):
            kind, number, *rest = said
            work = self._works.get(number)
            if kind == "call" and rest[0] in CALLS:
                work, self._named = self._named or Work(self), None
                work.number, self._works[number] = number, work
                work.task = asyncio.ensure_future(self._carry_out(number, *rest))
            elif kind == "cancel" and work and work.task:
                work.task.cancel()
            elif kind == "part" and work:
                work.take(*rest)

    async def close(self) -> None:
        await end_all([work.task for work in self._works.values() if work.task])

    def put(self, *what: Any) -> None:
        """Send something, unless the hub is leaving: the next one then answers."""
        if not self._caller.leaving.is_set() and not self._caller.writer.is_closing():
            self._caller.writer.write(pack(what, lambda value: BOXES if value is self._boxes else None))

    async def say(self, *what: Any) -> None:
        self.put(*what)
        async with self._draining:
            await self._caller.writer.drain()

    def _object(self, name: str) -> object:
        """Stand-in for an object of the program."""
        if name == BOXES:
            return self._boxes
        self._named = self._named or Work(self)
        return {LISTENER: self._named, INPUT: self._named.input()}[name]

    async def _carry_out(
        self, number: int, method: str, args: Sequence[Any], named: Mapping[str, Any], again: bool, waited_s: float
    ) -> None:
        # What it begins has a name of its own, by which another hub finds it.
        begin_call(Call(f"{self._session} {number}", again, waited_s))
        try:
            await self.say("done", number, await CALLS[method](*args, **named))
        except asyncio.CancelledError:
            self.put("failed", number, SandboxError("it was cancelled"))
            raise
        except SandboxError as problem:
            await self.say("failed", number, problem)
        except ConnectionError:
            # The program is gone.
            return
        except Exception as problem:  # noqa: BLE001 (logged as a defect)
            await self.say("failed", number, Defect(unforeseen(problem, f"carrying out {method}")))
        finally:
            self._works.pop(number, None)
