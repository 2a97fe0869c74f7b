"""Calls of a program to the hub: what the Python API is asked for is carried out there, with the hub's connections.

After the hello, both ends send frames: a length, then a tuple of plain values and of values of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import itertools
import os
import pickle
import socket
import struct
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from ... import __file__ as PACKAGE
from ...config.paths import NO_HUB
from ...core.errors import BadArgument, SandboxError
from ...core.progress import StreamName
from .asking import hubs, whole
from .hello import PROGRAM, say_hello
from .place import LIVED_BY, HubPlace, NoHub, current_folder, reach

HEADER = struct.Struct(">Q")
LONGEST_FRAME = 256 << 20
# What a program may send, and get: values of these rooms.
ROOMS = ("remote_sandbox_mcp.core.", "remote_sandbox_mcp.api")
# How long a hub may take to answer a hello, and to confirm that a call has ended.
GREETING_S, CANCEL_S = 30.0, 8.0
# A call that would be made twice, if it were made again after the end of a hub.
NOT_AGAIN = ("Sandboxes.create",)
# What stands for the program's own objects in a frame.
BOXES, LISTENER, INPUT = "boxes", "listener", "input"


class HubEnded(Exception):
    """The hub has hung up; another one may go on."""


# Frames


def revived(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An error of ours as it was, without its initializer."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class Packer(pickle.Pickler):
    """Packs plain values and those of our rooms; `names` gives what stands for an object of the program."""

    def __init__(self, file: io.BytesIO, names: Callable[[object], str | None]) -> None:
        super().__init__(file, protocol=4)
        self._names = names

    def persistent_id(self, value: object) -> str | None:
        return self._names(value)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, SandboxError):
            return revived, (type(value), value.args, value.__dict__)
        if isinstance(value, Enum) and is_ours(type(value)):
            # Before Python 3.11.4 it would be `getattr`, which nothing may call.
            return type(value), (value.value,)
        if isinstance(value, Mapping) and not isinstance(value, dict):
            return dict, (dict(value),)
        if not is_ours(value if isinstance(value, type) else type(value)) and value not in (revived, dict):
            raise BadArgument(f"a {type(value).__name__} cannot be given to the hub; give a plain value")
        return NotImplemented


class Unpacker(pickle.Unpickler):
    """Reads a frame. It makes values of ours, and calls nothing else."""

    def __init__(self, file: io.BytesIO, named: Callable[[str], object]) -> None:
        super().__init__(file)
        self._named = named

    def persistent_load(self, name: str) -> object:
        return self._named(name)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ((__name__, "revived"), ("builtins", "dict")):
            return revived if name == "revived" else dict
        found = getattr(import_module(module), name, None) if module.startswith(ROOMS) else None
        if not (isinstance(found, type) and is_ours(found)):
            raise pickle.UnpicklingError(f"{module}.{name} is no value of ours")
        return found


def is_ours(kind: type) -> bool:
    return kind.__module__.startswith(ROOMS) and (is_dataclass(kind) or issubclass(kind, (Enum, SandboxError)))


def sources() -> str:
    """Digest of all that both ends must have in common: the values in frames, and the methods that are called."""
    package = Path(PACKAGE).parent
    files = [package / "api.py", Path(__file__), *sorted((package / "core").rglob("*.py"))]
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=16).hexdigest()


def suits(said: Mapping[str, Any]) -> bool:
    """Whether this hub may carry out the calls of a program, by what that says of itself."""
    same = LIVED_BY - {"PYTHONPATH", "TMPDIR"}
    environ, common = said["environ"], said.get("sources")
    return not common or (common == sources() and all(environ.get(name) == os.environ.get(name) for name in same))


def pack(what: tuple[Any, ...], names: Callable[[object], str | None]) -> bytes:
    """A frame. Raises BadArgument."""
    file = io.BytesIO()
    Packer(file, names).dump(what)
    return HEADER.pack(file.tell()) + file.getvalue()


async def next_frame(reader: asyncio.StreamReader, named: Callable[[str], object]) -> tuple[Any, ...] | None:
    """The next frame of the other end; None once that is gone. Raises ValueError."""
    try:
        (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        if size > LONGEST_FRAME:
            raise ValueError("a frame is too long")
        data = await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    try:
        said = Unpacker(io.BytesIO(data), named).load()
    except (pickle.UnpicklingError, AttributeError, ImportError, TypeError, EOFError) as problem:
        raise ValueError(f"a frame cannot be read: {problem}") from None
    return said if isinstance(said, tuple) else None


# The program's end


class PendingCall:
    """A call that waits for its end."""

    def __init__(self) -> None:
        self.listener: Any = None
        self.input: AsyncIterator[bytes] | None = None
        self.giving: asyncio.Task[None] | None = None
        self._heard: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        # What became of it ("done", "failed" or "ended"), and its result or error.
        self.answer: asyncio.Future[tuple[str, Any]] = asyncio.get_running_loop().create_future()

    def finish(self, outcome: str, what: Any) -> None:
        if not self.answer.done():
            self.answer.set_result((outcome, what))

    def result(self) -> Any:
        """The result of the call. Raises its error, and HubEnded."""
        outcome, what = self.answer.result()
        if outcome == "done":
            return what
        raise HubEnded if outcome == "ended" else what

    def hear(self, stream: StreamName, offset: int, data: bytes) -> None:
        """Pass output on, each byte once: another hub sends it from its beginning."""
        known = self._heard.get(stream, 0)
        if fresh := data[max(0, known - offset) :]:
            self._heard[stream] = known + len(fresh)
            self.listener.heard(stream, fresh)


class HubCalls:
    """A program's line to the hub. If the hub ends, the next one goes on with each call."""

    def __init__(self, boxes: object, config: Path | None) -> None:
        self._boxes = boxes
        self._config = config
        self._session = os.urandom(6).hex()
        self._numbers = itertools.count()
        self._calls: dict[int, PendingCall] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._turn, self._draining = asyncio.Lock(), asyncio.Lock()
        # Of the configuration, as sentences.
        self.problems: tuple[str, ...] = ()

    @classmethod
    async def found(cls, boxes: object, config: Path | None) -> HubCalls | None:
        """The hub that runs, of another environment where this one has none; None where none suits.

        Raises ConfigError as reading the configuration does.
        """
        own = HubPlace(os.environ).name
        for place in [] if os.environ.get(NO_HUB) else hubs():
            calls = cls(boxes, config)
            with contextlib.suppress(NoHub, OSError, HubEnded, ValueError, asyncio.TimeoutError):
                await calls._open(place.connect, "" if place.name == own else sources())
                return calls
        return None

    async def _open(self, connect: Callable[[], socket.socket], common: str = "") -> None:
        """Raises NoHub, OSError, HubEnded, ValueError, TimeoutError, and what the hub says of the configuration."""
        from ...local.waiting import within

        line = await asyncio.to_thread(connect)
        line.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=line)
        try:
            mine = {"session": self._session, "config": whole(self._config), "sources": common}
            writer.write(say_hello(PROGRAM, os.environ, current_folder(), **mine))
            said = await within(next_frame(reader, self._named), GREETING_S)
            if said is None:
                raise HubEnded
            if isinstance(said[1], SandboxError):
                raise said[1]
        except BaseException:
            writer.close()
            raise
        self._writer, self.problems = writer, said[1]
        self._reading = asyncio.ensure_future(self._read(reader, writer))

    def close(self) -> None:
        """Hang up: the hub stops what is being carried out."""
        if self._reading:
            self._reading.cancel()
        if self._writer:
            self._writer.close()

    async def call(self, method: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The result of a method of the API, carried out in the hub."""
        number, begun, again = next(self._numbers), time.monotonic(), False
        pending = PendingCall()
        while True:
            waited_s = time.monotonic() - begun if again else 0.0
            self._calls[number] = pending
            try:
                await self._ready()
                await self._send(("call", number, method, args, named, again, waited_s), pending)
                # Unlike the future itself, this may be cancelled: then what becomes of it is still waited for.
                await asyncio.wait((pending.answer,))
                return pending.result()
            except asyncio.CancelledError:
                await self._cancel(number, pending)
                raise
            except (HubEnded, ConnectionError):
                if method in NOT_AGAIN or pending.input:
                    raise SandboxError(
                        f"the hub has ended before {method} was done, and what it had done is not known; look first"
                    ) from None
                again = True
                pending.begin()
            finally:
                if pending.giving:
                    pending.giving.cancel()
                self._calls.pop(number, None)

    async def _ready(self) -> None:
        async with self._turn:
            if self._reading and not self._reading.done():
                return
            try:
                await self._open(lambda: reach(HubPlace(os.environ))[0])
            except (NoHub, OSError, HubEnded, ValueError, asyncio.TimeoutError) as problem:
                raise SandboxError(f"the hub has ended, and no other answers: {problem}") from None

    async def _send(self, what: tuple[Any, ...], pending: PendingCall | None = None) -> None:
        def names(value: object) -> str | None:
            if value is self._boxes:
                return BOXES
            if pending and hasattr(value, "heard"):
                pending.listener = value
                return LISTENER
            if pending and isinstance(value, AsyncIterable):
                pending.input = aiter(value)
                return INPUT
            return None

        assert self._writer is not None
        self._writer.write(pack(what, names))
        if self._reading and self._reading.done():
            raise HubEnded
        async with self._draining:
            await self._writer.drain()

    async def _cancel(self, number: int, pending: PendingCall) -> None:
        """Have the hub end a call, and wait until it has."""
        with contextlib.suppress(HubEnded, ConnectionError):
            await self._send(("cancel", number))
            await asyncio.wait((pending.answer,), timeout=CANCEL_S)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while said := await next_frame(reader, self._named):
                kind, number, *rest = said
                if pending := self._calls.get(number):
                    self._take(kind, number, pending, rest)
        finally:
            writer.close()
            for pending in self._calls.values():
                pending.finish("ended", None)

    def _take(self, kind: str, number: int, pending: PendingCall, rest: list[Any]) -> None:
        if kind == "heard" and pending.listener:
            pending.hear(*rest)
        elif kind == "give" and pending.input:
            pending.giving = asyncio.ensure_future(self._give(number, pending.input))
        elif kind in ("done", "failed"):
            pending.finish(kind, rest[0])

    async def _give(self, number: int, parts: AsyncIterator[bytes]) -> None:
        """Give the hub the next part of an input, for which it has asked; an empty one is its end."""
        part: bytes | SandboxError
        try:
            part = bytes(await anext(parts, b""))
        except Exception as problem:  # noqa: BLE001
            # It is the program's own. The command must not take a part for the whole.
            part = SandboxError(f"its input ended with an error: {problem!r}")
        with contextlib.suppress(HubEnded, ConnectionError):
            await self._send(("part", number, part))

    def _named(self, name: str) -> object:
        if name != BOXES:
            raise ValueError(f"a hub has no {name}")
        return self._boxes
