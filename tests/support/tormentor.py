"""Far sides that speak our protocols and lie: what a hostile machine can make of the bytes on our lines."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import os
import re
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, is_dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.core.errors import SandboxError
from remote_sandbox_mcp.core.sync.tree import Tree
from remote_sandbox_mcp.far.outpost import wire
from remote_sandbox_mcp.far.program import MAGIC

# TORMENT=2000 looks longer.
torment = settings(
    max_examples=int(os.environ.get("TORMENT", "60")),
    deadline=None,
    derandomize="TORMENT" not in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
# Generous: the slowest of them wait for a pause between connections.
IN_TIME_S = 20.0
MEGABYTE = 1 << 20
LONGEST_SENTENCE = 25_000
PIECE = 1 << 18
# What stands where a text, a number, a list or an object should.
ODD_VALUES: dict[str, Any] = {
    "nothing": None,
    "true": True,
    "text": "x",
    "long text": "x" * 3000,
    "half a letter": "\ud800",
    "escapes": "\x1b[2J\0",
    "negative": -1,
    "huge": 10**30,
    "fraction": 0.5,
    "no number": math.nan,
    "endless": math.inf,
    "list": [1, "x"],
    "lists": [[[]]],
    "object": {"x": 1},
}
NESTED = b"[" * 30_000
BRACKETS = b"[" + b"[]," * 10_000 + b"0]"


def zeros(megabytes: int) -> bytes:
    """As many megabytes of zeros, compressed; one of them is, and the rest repeats it, which takes no time."""
    packer, megabyte = zlib.compressobj(9), bytes(1 << 20)
    first, more = (packer.compress(megabyte) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    # The sum of bytes that are all zero says how many there were.
    checksum = (((megabytes << 20) % 65521) << 16) | 1
    return first + more * (megabytes - 1) + zlib.compressobj(wbits=-15).flush() + checksum.to_bytes(4, "big")


BOMB = b"z" + zeros(64)

RUN_END = {
    "state": "ended",
    "exit": 0,
    "signal": "",
    "ending": "exited",
    "seconds": 0.1,
    "out": 3,
    "err": 0,
    "folder": "/tmp/run",
    "survivors": [],
    "left": [],
}
JOB: dict[str, Any] = {
    "state": "running",
    "exit": None,
    "signal": None,
    "ending": None,
    "reason": None,
    "rebooted": False,
    "foreign": False,
    "id": "job-0123456789abcdef",
    "session": "s",
    "log_file": "/l",
    "cwd": "/",
    "command": "c",
    "via": "tmux",
    "started": 1.0,
    "seconds": 1.0,
    "log": 0,
    "log_size": 0,
    "cursor": 0,
    "silent": 0.0,
    "checkpoint": {"size": 0, "mtime": 0.0, "problem": ""},
    "usage": {"processes": 1, "memory_mb": 1.0, "cpu_s": 1.0, "gpus": {"0": 1.0}, "busy": {"0": 1.0}},
    "survivors": [],
}
# What an outpost answers that does not lie.
HONEST: dict[str, dict[str, Any]] = {
    "run": RUN_END,
    "look": RUN_END,
    "read": {"size": 3, "version": "1-1", "offset": 0, "more": False},
    "write": {"size": 3, "version": "1-1", "created": True},
    "list": {"entries": [["/a", "file", 1, 1.0]], "truncated": False, "problems": [["/b", "no"]]},
    "search": {"matches": [["/a", 1, "x"]], "truncated": False, "problems": []},
    "job_start": {
        "session": "s",
        "log": "/l",
        "cwd": "/",
        "via": "tmux",
        "recovered": False,
        "notes": ["n"],
        "cards": [],
    },
    "job_look": {"jobs": [JOB]},
    "job_wait": {"jobs": [JOB], "why": "pattern", "line": "x", "from": 0},
    "job_stop": {"jobs": [{**JOB, "state": "ended", "exit": 0}]},
    "job_list": {"jobs": [JOB]},
}
HELLO = {
    "python": "3.11.0",
    "magic": MAGIC,
    "system": "Linux",
    "node": "n",
    "home": "/",
    "time": 1.0,
    "pid": 1,
    "place": "here",
}

Reply = Callable[[str, int], "bytes | Endless"]


class Endless(bytes):
    """Sent again and again, for as long as somebody reads."""


class Liar:
    """The far end of a line in memory. `reply` makes of a request's verb and number what is sent back."""

    def __init__(self, reply: Reply, hello: bytes = b"", *, answers_pings: bool = True) -> None:
        self.sent = 0
        self.closed = False
        self._reply = reply
        self._hello = hello or wire.json_frame(wire.HELLO, 0, HELLO)
        self._answers_pings = answers_pings
        self._heard = bytearray()
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()

    def greet(self, token: str) -> Liar:
        self._waiting.put_nowait(b"noise\n" + token.encode() + b"\n" + self._hello)
        return self

    def write(self, data: bytes) -> None:
        self._heard += data
        for kind, number, body in wire.split_frames(self._heard):
            if kind == wire.PING and self._answers_pings:
                self.say(wire.frame(wire.PONG, number))
            elif kind != wire.PING and kind != wire.CANCEL:
                self.say(self._reply(verb_of(kind, body), number))

    def say(self, data: bytes) -> None:
        if data:
            self._waiting.put_nowait(data)

    async def drain(self) -> None: ...

    async def read(self) -> bytes:
        if self.closed:
            return b""
        data = await self._waiting.get()
        if isinstance(data, Endless):
            await asyncio.sleep(0)
            self._waiting.put_nowait(data)
        self.sent += len(data)
        return b"" if data == END_OF_LINE else bytes(data)

    def close(self) -> None:
        self.closed = True
        self._waiting.put_nowait(END_OF_LINE)


END_OF_LINE = b"-- the end --"


def verb_of(kind: int, body: bytes) -> str:
    if kind != wire.REQUEST:
        return f"kind {kind}"
    return str(json.loads(body.partition(b"\0")[0])["verb"])


def honest(verb: str, number: int) -> bytes:
    return wire.json_frame(wire.END, number, HONEST.get(verb, {}))


def fields_of(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every field of an answer, and of what is in it."""
    if way:
        yield way
    for name, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from fields_of(inner, (*way, name))


def with_field(value: Any, way: tuple[Any, ...], odd: Any) -> Any:
    """The same answer with one field that is something else, or (for Ellipsis) not there."""
    changed = inner = copy.deepcopy(value)
    for name in way[:-1]:
        inner = inner[name]
    if odd is ...:
        del inner[way[-1]]
    else:
        inner[way[-1]] = odd
    return changed


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


# Frames that hypothesis makes up.
scalars = st.one_of(st.sampled_from(list(ODD_VALUES.values())), st.integers(), st.floats(), st.text(max_size=20))
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
bodies = st.one_of(
    st.binary(max_size=40),
    values.map(dumped),
    st.sampled_from([b"", b"{}", b"[]", b"null", NESTED, BRACKETS, BOMB[:1000], b"\xff" * 9, b"9" * 5000]),
)
kinds = st.one_of(st.integers(10, 18), st.integers(40, 55), st.integers(0, 255))
shifts = st.sampled_from([0, 0, 0, 0, 1, -1, 1 << 31])


@st.composite
def lies(draw: st.DrawFn) -> Callable[[str, int], bytes]:
    """A few frames in answer to each request, the last of them perhaps honest, cut off, or the end of the line."""
    frames = draw(st.lists(st.tuples(kinds, shifts, bodies), max_size=4))
    last = draw(st.sampled_from(["honest", "nothing", "half", "length", "end"]))

    def reply(verb: str, number: int) -> bytes:
        said = b"".join(wire.frame(kind, (number + shift) % (1 << 32), body) for kind, shift, body in frames)
        if last == "honest":
            return said + honest(verb, number)
        if last == "half":
            return said + honest(verb, number)[:-2]
        if last == "length":
            return said + wire.HEADER.pack(1 << 31, wire.OUT, number)
        return said if said or last == "nothing" else END_OF_LINE

    return reply


# What comes of it.


def check_value(value: Any) -> None:
    """What may be handed on: texts that can be encoded, numbers that others can hold."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        for name, inner in value.items():
            check_value(name)
            check_value(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_value(inner)
    elif isinstance(value, str):
        value.encode("utf-8", "surrogateescape")
    elif isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, int):
        assert abs(value) < 1 << 63
    else:
        assert value is None or isinstance(value, bytes)


async def ends_well(call: Awaitable[Any], most_s: float = IN_TIME_S) -> Any:
    """A value that may be handed on, or one sentence."""
    try:
        value = await asyncio.wait_for(call, most_s)
    except SandboxError as problem:
        value = problem
    if isinstance(value, SandboxError):
        check_value(str(value))
        assert 0 < len(str(value)) < LONGEST_SENTENCE
    elif not isinstance(value, list | Tree):
        check_value(value)
    return value


@contextmanager
def counted_memory() -> Iterator[Callable[[int], None]]:
    """Count what memory is needed at most, from now on."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]

    def check(most: int) -> None:
        needed = tracemalloc.get_traced_memory()[1] - before
        assert needed < most, f"{needed >> 20} MiB"

    try:
        yield check
    finally:
        tracemalloc.stop()


# A machine's shell that lies.


class LyingShell:
    """In the place of the channels of a machine without Python: every process answers what `reply` says."""

    def __init__(self, reply: Callable[[str], list[bytes]]) -> None:
        self.is_open = True
        self.opened = 0
        self.sent = 0
        self._reply = reply

    @asynccontextmanager
    async def process(self, command: str, **_: Any) -> AsyncIterator[Any]:
        self.opened += 1
        yield LyingProcess(self)

    async def close(self) -> None: ...

    def answer(self, asked: bytes) -> list[bytes]:
        (token,) = re.findall(rb"echo (\w{32})' EXIT", asked)
        return self._reply(token.decode())


class LyingProcess:
    """What asyncssh's process offers, as far as it is used."""

    def __init__(self, shell: LyingShell) -> None:
        self._shell = shell
        self._asked = bytearray()
        self._answers: list[bytes] = []
        self.exit_status = 0
        self.stdin = SimpleNamespace(write=self._asked.extend, write_eof=self._answer, drain=self._drain)
        self.stdout = SimpleNamespace(read=self._read)
        self.stderr = SimpleNamespace(read=self._nothing)

    def _answer(self) -> None:
        self._answers = self._shell.answer(bytes(self._asked))

    async def _drain(self) -> None: ...

    async def _nothing(self, _: int) -> bytes:
        return b""

    async def _read(self, most: int) -> bytes:
        await asyncio.sleep(0)
        if not self._answers:
            return b""
        piece = self._answers[0] if isinstance(self._answers[0], Endless) else self._answers.pop(0)
        self._shell.sent += len(piece)
        return bytes(piece[:most])

    async def wait_closed(self) -> None: ...

    def close(self) -> None: ...
