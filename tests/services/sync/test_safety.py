"""A machine that means harm, and a target that is changed under our hands: nothing outside of the target is touched."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.link.lane import OutpostLane
from remote_sandbox_mcp.core.errors import BadArgument, FileProblem, SandboxError, Unreachable
from remote_sandbox_mcp.core.sync.plan import PIECE as INDEXED
from remote_sandbox_mcp.core.sync.transfer import Order, Outcome, Place
from remote_sandbox_mcp.core.sync.tree import FOLDER
from remote_sandbox_mcp.far.lane.large import SAME
from remote_sandbox_mcp.far.lane.source import ENTRY, PIECE, names_in_order
from remote_sandbox_mcp.far.outpost import wire
from remote_sandbox_mcp.services.sync.ends import End
from remote_sandbox_mcp.services.sync.engine import Synchronization
from remote_sandbox_mcp.services.sync.lanes import Lanes
from tests.services.sync.conftest import Pool
from tests.support.trees import MIB, File, Folder, Link, Snapshot, noise, put, snapshot

TOKEN = "token"
LAST = (wire.END, wire.FAIL)
HONEST = {"kind": "dir", "path": "/x", "real": "/x", "home": "/home/x"}
FILE, LINK = 0o100644, 0o120777
# Whatever a machine says, this is far more than we need to see through it, beside other work, too.
SOON_S = 25.0

Frame = tuple[int, bytes] | bytes
Answer = Callable[..., Iterable[Frame]]


@dataclass(frozen=True)
class Asked:
    """A request as a machine gets it."""

    verb: str
    number: int
    order: dict[str, Any]
    raw: bytes


def end(**fields: Any) -> Frame:
    return wire.END, json.dumps(fields).encode()


def listing(folders: dict[bytes, dict[bytes, bytes]]) -> bytes:
    parts = [b"="]
    for folder, entries in folders.items():
        block = b"\0".join(part for entry in entries.items() for part in entry)
        parts += [FOLDER.pack(len(folder), len(block), len(entries)), folder, block]
    return b"".join(parts)


def record(number: int, data: bytes, mode: int = FILE, length: int | None = None) -> bytes:
    return ENTRY.pack(number, mode, 0, len(data) if length is None else length) + data


@dataclass
class Evil:
    """What a machine answers. Whatever it is not told to do, it does as an honest one would."""

    folders: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    def answer(self, asked: Asked) -> Iterable[Frame]:
        return (self.answers.get(asked.verb) or getattr(self, asked.verb, None) or (lambda _: [end()]))(asked)

    def inspect(self, asked: Asked) -> Iterable[Frame]:
        return [end(**(HONEST | self.fields))]

    def scan(self, asked: Asked) -> Iterable[Frame]:
        return [(wire.OUT, listing(self.folders)), end(**(HONEST | self.fields))]

    def send(self, asked: Asked) -> Iterable[Frame]:
        names = list(names_in_order(asked.raw))
        records = b"".join(record(number, b"evil") for number in range(len(names)))
        return [(wire.FILES, records), (wire.DONE, b""), end()]

    def part(self, asked: Asked) -> Iterable[Frame]:
        data = noise(min(asked.order["length"], 100), 1)
        return [(wire.PART, PIECE.pack(asked.order["offset"], 0) + data), (wire.DONE, b""), end()]

    def check(self, asked: Asked) -> Iterable[Frame]:
        return [end(size=5 * MIB, mtime=7, mode=0o644)]

    def mark(self, asked: Asked) -> Iterable[Frame]:
        return [(wire.OUT, b"mark"), end()]


class EvilLine:
    """The line to such a machine. What it says may be plain bytes, and so for another request, or no frame at all."""

    def __init__(self, evil: Evil) -> None:
        self._evil = evil
        self._inbox = bytearray()
        self._said: asyncio.Queue[bytes] = asyncio.Queue()
        hello = wire.json_frame(wire.HELLO, 0, {"squeezers": ["zlib"]})
        self._said.put_nowait(b"\n" + TOKEN.encode() + b"\n" + hello)

    def write(self, data: bytes) -> None:
        self._inbox += data
        for kind, number, body in wire.split_frames(self._inbox):
            assert kind == wire.REQUEST
            head, _, raw = body.partition(b"\0")
            order = json.loads(head)
            for said in self._evil.answer(Asked(order.pop("verb"), number, order, raw)):
                self._said.put_nowait(said if isinstance(said, bytes) else wire.frame(said[0], number, said[1]))

    async def read(self) -> bytes:
        return await self._said.get()

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        self._said.put_nowait(b"")


class Trap:
    """A target with a neighbour that must stay as it is."""

    def __init__(self, pool: Pool, lanes: Lanes) -> None:
        self.pool = pool
        self.target = pool.target
        self.outside = pool.folder / "outside"
        put(os.fsencode(self.outside), Folder({b"x": File(10, 1)}))
        self.before = self.around()
        self.lanes = lanes

    def add_large_neighbour(self) -> None:
        """One that is worth comparing, for what could be led to it; to look at it takes longer than most tests."""
        put(os.fsencode(self.outside / "large"), File(5 * MIB, 1))
        self.before = self.around()

    def around(self) -> Snapshot:
        """Everything but the target, and what is at the target's place where it is no folder."""
        top = os.fsencode(self.pool.folder)
        inside = os.fsencode(self.target.name) + b"/"
        seen = {path: seen for path, seen in snapshot(top).items() if not path.startswith(inside)}
        seen.pop(inside[:-1], None)
        return seen

    async def pull(self, evil: Evil, path: str = "/x", *, around: bool = True, **more: Any) -> Outcome | SandboxError:
        """What comes of it, soon; nothing outside is touched."""

        async def open_lane() -> OutpostLane:
            lane = OutpostLane(EvilLine(evil), "evil")
            await lane.greet(TOKEN)
            return lane

        order = Order(source=Place("evil", path), target=Place("", str(self.target)), **more)
        lanes = Lanes("evil", open_lane, 2)
        job = Synchronization(order, End(order.source, lanes), End(order.target, self.lanes), self.pool.chunks)

        async def work() -> Outcome:
            await job.prepare()
            return await job.carry_out()

        try:
            return await asyncio.wait_for(work(), SOON_S)
        except SandboxError as problem:
            return problem
        finally:
            await lanes.close()
            if around:
                assert self.around() == self.before


@pytest.fixture(scope="module")
async def lanes() -> AsyncIterator[Lanes]:
    """To this machine; as usable after each test as before."""
    lanes = Lanes("this machine", here.open_lane, 2)
    yield lanes
    await lanes.close()


@pytest.fixture
def trap(pool: Pool, lanes: Lanes) -> Trap:
    return Trap(pool, lanes)


def problems(outcome: Outcome | SandboxError) -> dict[str, str]:
    assert isinstance(outcome, Outcome), outcome
    return {problem.path: problem.reason for problem in outcome.problems}


SMALL, BIG = b"f644 4 0", b"f644 %d 7" % (5 * MIB)


async def test_an_honest_machine_is_believed(trap: Trap) -> None:
    outcome = await trap.pull(Evil({b"": {b"a": SMALL, b"d": b"d755 0 9"}, b"d": {b"b": SMALL, b"large": BIG}}))
    assert problems(outcome) == {}
    assert {os.fsdecode(path) for path in snapshot(os.fsencode(trap.target))} == {"a", "d", "d/b", "d/large"}


# Names

BAD_NAMES = [b"..", b".", b"", b"../outside/x", b"a/../../outside/x", b"/tmp/x", b"a/b", b"outside/"]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_name_that_leads_elsewhere_ends_the_transfer(trap: Trap, name: bytes) -> None:
    for meta in (SMALL, BIG, b"d755 0 0", b"l777 0 0 /etc"):
        outcome = await trap.pull(Evil({b"": {b"first": SMALL, name: meta}}))
        assert isinstance(outcome, FileProblem)
        assert not trap.target.exists()


@pytest.mark.parametrize("folder", [b"..", b"../outside", b"a/../../outside", b"/etc", b"a//b", b"/", b"a/", b"."])
async def test_a_folder_that_leads_elsewhere_ends_the_transfer(trap: Trap, folder: bytes) -> None:
    outcome = await trap.pull(Evil({b"": {b"a": b"d755 0 0"}, folder: {b"x": SMALL}}))
    assert isinstance(outcome, FileProblem)
    assert not trap.target.exists()


@pytest.mark.parametrize("size", [4, 5 * MIB])
@pytest.mark.parametrize("there", [False, True], ids=["new", "there already"])
async def test_nothing_is_written_through_a_link(trap: Trap, size: int, there: bool) -> None:
    """A link to a folder outside, and then files in that link as if it were a folder."""
    trap.add_large_neighbour()
    if there:
        put(os.fsencode(trap.target), Folder({b"evil": Link(os.fsencode(trap.outside))}))
    outside = os.fsencode(trap.outside)
    link = b"l777 0 0 " + outside
    inner = {b"x": b"f644 %d 7" % size, b"large": BIG, b"new": SMALL, b"deep": b"d700 0 0"}
    evil = Evil({b"": {b"evil": link, b"fine": SMALL}, b"evil": inner, b"evil/deep": {b"y": SMALL}})

    def send(asked: Asked) -> Iterable[Frame]:
        for number, (_, name) in enumerate(names_in_order(asked.raw)):
            yield wire.FILES, record(number, *((outside, LINK) if name == b"evil" else (b"evil", FILE)))
        yield wire.DONE, b""
        yield end()

    evil.answers["send"] = send
    for _ in range(2):
        outcome = await trap.pull(evil)
        assert problems(outcome)
        assert (trap.target / "fine").read_bytes() == b"evil"


async def test_a_link_of_the_target_is_replaced_by_a_folder_of_that_name(trap: Trap) -> None:
    trap.add_large_neighbour()
    put(os.fsencode(trap.target), Folder({b"sub": Link(os.fsencode(trap.outside)), b"x": Link(b"../outside/x")}))
    outcome = await trap.pull(Evil({b"": {b"sub": b"d755 0 5", b"x": SMALL}, b"sub": {b"x": SMALL, b"large": BIG}}))
    assert problems(outcome) == {}
    assert not (trap.target / "sub").is_symlink()
    assert not (trap.target / "x").is_symlink()


async def test_a_very_deep_folder_is_no_trouble(trap: Trap) -> None:
    deep = b"/".join([b"d"] * 3000)
    trap.target.mkdir()
    evil = Evil({b"": {b"a": SMALL}, deep: {b"x": SMALL, b"large": BIG}})
    try:
        outcome = await trap.pull(evil, around=False)
        assert isinstance(outcome, Outcome | FileProblem)
        assert (trap.target / "a").exists()
    finally:
        # Too deep for Python.
        subprocess.run(["rm", "-rf", trap.target], check=True)  # noqa: ASYNC221
    assert trap.around() == trap.before


async def test_a_file_is_called_as_its_user_called_it(trap: Trap) -> None:
    """Else whoever wants one file into his home folder gets another .bashrc."""
    trap.target.mkdir()
    for told in ("/x/.bashrc", "/x/..", "/x/", "/x/a\0b", "../../outside/x", "/x"):
        evil = Evil(fields={"kind": "file", "path": told, "real": told, "meta": "f644 4 0"})
        outcome = await trap.pull(evil, path="/x/report.txt")
        assert os.listdir(trap.target) in ([], ["report.txt"]), outcome
    for said in ("..", "~", ".", "/", "", "~someone"):
        evil = Evil(fields={"kind": "file", "path": "/x/.bashrc", "real": "/x/.bashrc", "meta": "f644 4 0"})
        assert isinstance(await trap.pull(evil, path=said), BadArgument | FileProblem)
    assert os.listdir(trap.target) == ["report.txt"]


async def test_what_is_excluded_is_not_taken_even_if_it_is_offered(trap: Trap) -> None:
    rules = ("/.*", "*.key")
    folders = {b"": {b".bashrc": SMALL, b"a.key": SMALL, b"fine": SMALL, b".ssh": b"d700 0 0"}, b".ssh": {b"rc": SMALL}}
    outcome = await trap.pull(Evil(folders), excludes=rules)
    assert problems(outcome) == {}
    assert os.listdir(trap.target) == ["fine"]
    evil = Evil(fields={"kind": "file", "path": "/x/.bashrc", "real": "/x/.bashrc", "meta": "f644 4 0"})
    assert isinstance(await trap.pull(evil, path="/x/.bashrc", excludes=rules), BadArgument)
    assert os.listdir(trap.target) == ["fine"]


# Numbers


@pytest.mark.parametrize(
    "meta",
    [
        b"f644 %d 0" % 2**62,
        b"f644 %d 0" % 10**30,
        b"f644 99999999999999999999999999 0",
        b"f644 -5 0",
        b"f644 4 %d" % 10**40,
        b"f644 %d -%d" % (5 * MIB, 10**30),
        b"f77777777777 5000000 0",
        b"f-7 5000000 0",
        b"d777777777 0 0",
        b"d755 0 %d" % 10**30,
        b"d755 0",
        b"q644 4 0",
        b"f644",
        b"f",
        b"",
        b"l777 0 0",
        b"f644 four 0",
        b"f644 4 \xff",
    ],
)
async def test_a_meta_that_cannot_be_true_is_told(trap: Trap, meta: bytes) -> None:
    for checksum in (False, True):
        put(os.fsencode(trap.target), Folder({b"there": File(4)}))
        evil = Evil({b"": {b"first": SMALL, b"new": meta, b"there": meta}})
        outcome = await trap.pull(evil, checksum=checksum)
        assert isinstance(outcome, Outcome | FileProblem)
        assert "\n" not in str(outcome)


@pytest.mark.parametrize(
    "said",
    [
        b"?",
        b"",
        b"z",
        b"znot compressed",
        b"=" + FOLDER.pack(5, 5, 5),
        b"=" + FOLDER.pack(65535, 2**32 - 1, 2**32 - 1) + b"x",
        b"=" + FOLDER.pack(0, 3, 1) + b"a\0f"[:2],
        b"=" + FOLDER.pack(0, 1, 1) + b"a",
        b"z" + zlib.compress(bytes(MIB))[:-5],
    ],
    ids=range(9),
)
async def test_a_listing_that_is_none_is_told(trap: Trap, said: bytes) -> None:
    evil = Evil()
    evil.answers["scan"] = lambda asked: [(wire.OUT, said), end(**HONEST)]
    outcome = await trap.pull(evil)
    assert isinstance(outcome, Outcome | FileProblem)
    assert not snapshot(os.fsencode(trap.target))


async def test_a_folder_that_is_listed_twice_is_refused(trap: Trap) -> None:
    said = listing({b"": {b"a": SMALL}})
    evil = Evil(answers={"scan": lambda asked: [(wire.OUT, said + said[1:]), end(**HONEST)]})
    assert isinstance(await trap.pull(evil), FileProblem)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": None},
        {"kind": "elsewhere"},
        {"kind": "file", "path": None},
        {"kind": "file", "meta": "nonsense"},
        {"kind": "file", "meta": "d755 0 0"},
        {"kind": "file", "meta": "l777 0 0 /etc/passwd"},
        {"kind": "file", "meta": ""},
        {"kind": "file", "path": "\ud800", "real": "\ud800"},
        {"path": 5, "real": []},
        {"problems": 5},
        {"problems": [["only a path"]]},
        {"problems": [["a", "No space left on device"]], "problem_count": 10**30},
        {"problem_count": "many"},
        {"unread": "x"},
        {"gitignores": [["", "a"], 5]},
        {"gitignores": [["..", "*"]], "hits": [1, None], "leftovers": ["../outside/x"]},
        {"home": "\ud800"},
    ],
)
async def test_answers_that_are_none_are_told(trap: Trap, fields: dict[str, Any]) -> None:
    evil = Evil({b"": {b"a": SMALL}}, fields=fields)
    outcome = await trap.pull(evil, respect_gitignore=True)
    assert isinstance(outcome, Outcome | FileProblem | BadArgument)
    assert "\n" not in str(outcome)


@pytest.mark.parametrize("kind", [wire.END, wire.FAIL])
@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b"\xff", b"[]", b"5", b'"x"', b"null", b"{}"])
async def test_a_last_word_that_is_none_ends_the_transfer(trap: Trap, kind: int, body: bytes) -> None:
    for verb in ("scan", "send", "part", "check", "mark", "index"):
        evil = Evil({b"": {b"a": SMALL, b"large": BIG}}, {verb: lambda asked: [(kind, body)]})
        assert isinstance(await trap.pull(evil), Outcome | FileProblem | Unreachable)


# Content

SMALL_SAID: dict[str, Callable[[Asked], Iterator[Frame]]] = {
    "no end": lambda asked: iter([(wire.FILES, record(0, b"evil")), end()]),
    "no data": lambda asked: iter([(wire.DONE, b""), end()]),
    "nothing": lambda asked: iter([end()]),
    "an end twice": lambda asked: iter([(wire.DONE, b""), (wire.DONE, b""), end(), end()]),
    "data after the end": lambda asked: iter([(wire.DONE, b""), (wire.FILES, record(0, b"evil")), end()]),
    "data after the last word": lambda asked: iter([(wire.DONE, b""), end(), (wire.FILES, record(0, b"evil"))]),
    "a number too high": lambda asked: iter([(wire.FILES, record(1, b"evil")), end()]),
    "the highest number": lambda asked: iter([(wire.FILES, record(2**32 - 1, b"evil")), end()]),
    "the same twice": lambda asked: iter([(wire.FILES, record(0, b"one") + record(0, b"two")), end()]),
    "more than announced": lambda asked: iter([(wire.FILES, record(0, b"evil", length=2)), end()]),
    "less than announced": lambda asked: iter([(wire.FILES, record(0, b"evil", length=2**32 - 1)), end()]),
    "half a record": lambda asked: iter([(wire.FILES, record(0, b"evil")[:10]), end()]),
    "a large one": lambda asked: iter([(wire.FILES, record(0, bytes(2 * MIB))), end()]),
    "a folder": lambda asked: iter([(wire.FILES, record(0, b"", 0o040755)), end()]),
    "a device": lambda asked: iter([(wire.FILES, record(0, b"", 0o020666)), end()]),
    "a strange mode": lambda asked: iter([(wire.FILES, record(0, b"x", 0xFFFFFFFF)), end()]),
    "an empty link": lambda asked: iter([(wire.FILES, record(0, b"", LINK)), end()]),
    "a link with a zero": lambda asked: iter([(wire.FILES, record(0, b"a\0b", LINK)), end()]),
    "a very long link": lambda asked: iter([(wire.FILES, record(0, b"a" * 100_000, LINK)), end()]),
    "a part": lambda asked: iter([(wire.PART, PIECE.pack(0, 0) + b"x"), end()]),
    "a copy": lambda asked: iter([(wire.COPY, SAME.pack(0, 0, 5)), end()]),
    "not compressed": lambda asked: iter([(wire.SQUEEZED, b"\x28znot compressed"), end()]),
    "compressed nothing": lambda asked: iter([(wire.SQUEEZED, b""), end()]),
    "compressed unknown": lambda asked: iter([(wire.SQUEEZED, b"\x28sxxxx"), end()]),
    "compressed twice": lambda asked: iter([(wire.SQUEEZED, b"\x2bz" + zlib.compress(b"\x28z")), end()]),
    "a bomb": lambda asked: iter([(wire.SQUEEZED, b"\x28z" + zlib.compress(bytes(80 * MIB), 1)), end()]),
    "a request": lambda asked: iter([(wire.REQUEST, evil_request(asked)), end()]),
    "other numbers": lambda asked: iter(
        [*(wire.frame(wire.FILES, asked.number + at, record(0, b"evil")) for at in range(-9, 9) if at), end()]
    ),
    "other ends": lambda asked: iter([*(wire.frame(wire.DONE, asked.number + at) for at in range(-9, 9)), end()]),
    "frames of all kinds": lambda asked: iter([*((kind, b"xxxx") for kind in range(60) if kind not in LAST), end()]),
    "problems of its own": lambda asked: iter(
        [(wire.DONE, b""), end(problems=[["../x", "\n" * 50]], problem_count=-5)]
    ),
    "no problems": lambda asked: iter([(wire.DONE, b""), end(problems=7)]),
    "a failure after data": lambda asked: iter(
        [(wire.FILES, record(0, b"evil")), (wire.FAIL, b'{"reason": "x", "message": "y"}')]
    ),
}


def evil_request(asked: Asked) -> bytes:
    return json.dumps({"verb": "clear", "root": "/", "number": asked.number}).encode() + b"\0etc/passwd"


@pytest.mark.parametrize("said", SMALL_SAID)
async def test_whatever_is_said_of_a_small_file_it_ends_and_stays_inside(trap: Trap, said: str) -> None:
    put(os.fsencode(trap.target), Folder({b"mine": File(50, 3)}))
    evil = Evil({b"": {b"a": SMALL}}, {"send": SMALL_SAID[said]})
    outcome = await trap.pull(evil)
    assert isinstance(outcome, Outcome | FileProblem)
    found = snapshot(os.fsencode(trap.target))
    assert found.keys() <= {b"a", b"mine"}
    assert found[b"mine"].content == noise(50, 3)
    assert b"a" not in found or found[b"a"].kind in ("file", "link")
    # It is as usable as before.
    assert problems(await trap.pull(Evil({b"": {b"a": b"f644 4 5"}}))) == {}


# Kinds and modes

SENT_INSTEAD = {
    "a link out": (b"/etc/passwd", LINK),
    "a link up": (b"../outside/x", LINK),
    "a link within": (b"other", LINK),
    "a folder": (b"", 0o040755),
    "a fifo": (b"", 0o010644),
}


@pytest.mark.parametrize(("data", "mode"), SENT_INSTEAD.values(), ids=SENT_INSTEAD)
async def test_a_file_that_comes_as_something_else_is_refused(trap: Trap, data: bytes, mode: int) -> None:
    evil = Evil({b"": {b"a": SMALL, b"other": SMALL}})
    said = record(0, data, mode) + record(1, b"evil")
    evil.answers["send"] = lambda asked: [(wire.FILES, said), (wire.DONE, b""), end()]
    assert "not what its machine listed" in problems(await trap.pull(evil))["a"]
    assert os.listdir(trap.target) == ["other"]


async def test_a_link_is_the_one_that_was_listed(trap: Trap) -> None:
    evil = Evil({b"": {b"link": b"l777 0 0 within", b"other": b"l777 0 0 within"}})
    said = record(0, b"/etc/passwd", LINK) + record(1, b"evil")
    evil.answers["send"] = lambda asked: [(wire.FILES, said), (wire.DONE, b""), end()]
    assert problems(await trap.pull(evil)).keys() == {"link", "other"}
    assert os.listdir(trap.target) == []


async def test_modes_are_those_of_the_listing_and_never_make_a_program_run_as_another(trap: Trap) -> None:
    modes = {b"a": b"f4755 4 0", b"b": b"f600 4 0", b"d": b"d3777 0 9"}
    evil = Evil({b"": modes, b"d": {b"large": b"f6711 %d 7" % (5 * MIB), b"same": b"f4755 4 5000000000"}})

    def send(asked: Asked) -> Iterable[Frame]:
        count = len(list(names_in_order(asked.raw)))
        yield wire.FILES, b"".join(record(number, b"evil", 0o106777) for number in range(count))
        yield wire.DONE, b""
        yield end()

    evil.answers["send"] = send
    # Of the same content, and so only given a mode.
    put(os.fsencode(trap.target), Folder({b"d": Folder({b"same": File(4, 1, 0o644, 5 * 10**9)})}))
    assert problems(await trap.pull(evil)) == {}
    found = {os.fsdecode(path): seen.mode for path, seen in snapshot(os.fsencode(trap.target)).items()}
    assert found == {"a": 0o755, "b": 0o600, "d": 0o777, "d/large": 0o711, "d/same": 0o755}


async def test_a_single_file_has_no_special_bits_either(trap: Trap) -> None:
    for size in (4, 5 * MIB):
        evil = Evil(fields={"kind": "file", "path": "/x/f", "real": "/x/f", "meta": f"f6755 {size} 7"})
        evil.answers["send"] = lambda asked: [(wire.FILES, record(0, b"evil", 0o106755)), (wire.DONE, b""), end()]
        assert problems(await trap.pull(evil, path="/x/f")) == {}
        assert trap.target.stat().st_mode & 0o7777 == 0o755
        trap.target.unlink()
    for meta in ("l777 0 0 /etc/passwd", "l777 0 0 within", "d755 0 0", ""):
        evil = Evil(fields={"kind": "file", "path": "/x/f", "real": "/x/f", "meta": meta})
        evil.answers["send"] = lambda asked: [(wire.FILES, record(0, b"/etc/passwd", LINK)), (wire.DONE, b""), end()]
        assert isinstance(await trap.pull(evil, path="/x/f"), FileProblem)
        assert not os.path.lexists(trap.target)


async def test_links_that_lead_out_are_left_out_and_told(trap: Trap) -> None:
    links = {b"home": b"l777 0 0 /root/.ssh", b"up": b"l777 0 0 ../outside", b"in": b"l777 0 0 d/x", b"d": b"d755 0 9"}
    evil = Evil({b"": links, b"d": {b"up": b"l777 0 0 ../in", b"out": b"l777 0 0 ../../outside"}})

    def send(asked: Asked) -> Iterable[Frame]:
        for number, (folder, name) in enumerate(names_in_order(asked.raw)):
            yield wire.FILES, record(number, evil.folders[folder][name].split(b" ", 3)[3], LINK)
        yield wire.DONE, b""
        yield end()

    evil.answers["send"] = send
    told = problems(await trap.pull(evil))
    assert told.keys() == {"home", "up", "d/out"}
    assert all("leads out" in reason for reason in told.values())
    assert snapshot(os.fsencode(trap.target)).keys() == {b"in", b"d", b"d/up"}


async def test_bytes_that_are_no_frames_are_a_cut_line(trap: Trap) -> None:
    for nonsense in (b"\xff" * 100, wire.HEADER.pack(2**31, wire.OUT, 1)):
        evil = Evil({b"": {b"a": SMALL}}, {"send": lambda asked, said=nonsense: [said]})
        assert isinstance(await trap.pull(evil), Unreachable)


def index(*pieces: tuple[int, bytes]) -> Frame:
    return wire.OUT, b"".join(INDEXED.pack(length, digest.ljust(16, b"\0")) for length, digest in pieces)


def first_part(*frames: Frame) -> Callable[[Asked], Iterable[Frame]]:
    return lambda asked: [*frames, (wire.DONE, b""), end()]


LARGE_SAID: dict[str, dict[str, Any]] = {
    "beyond the end": {"part": first_part((wire.PART, PIECE.pack(5 * MIB - 1, 0) + b"xx"))},
    "far beyond the end": {"part": first_part((wire.PART, PIECE.pack(2**63, 0) + b"xx"))},
    "the last place of all": {"part": first_part((wire.PART, PIECE.pack(2**64 - 1, 2**64 - 1)))},
    "a hole beyond the end": {"part": first_part((wire.PART, PIECE.pack(0, 2**40)))},
    "half a part": {"part": first_part((wire.PART, b"xx"))},
    "records": {"part": first_part((wire.FILES, record(0, b"evil")))},
    "a copy": {"part": first_part((wire.COPY, SAME.pack(0, 0, 100)))},
    "a copy beyond the end": {"part": first_part((wire.COPY, SAME.pack(5 * MIB, 0, 100)))},
    "a copy from beyond the end": {"part": first_part((wire.COPY, SAME.pack(0, 2**60, 2**20)))},
    "half a copy": {"part": first_part((wire.COPY, b"xxx"))},
    "no data": {"part": first_part()},
    "no end": {"part": lambda asked: [end()]},
    "a failure": {"part": lambda asked: [(wire.FAIL, b'{"reason": "x", "message": "y"}')]},
    "a stale failure": {"part": lambda asked: [(wire.FAIL, b'{"reason": "stale", "message": "y"}')]},
    "a negative size": {"check": lambda asked: [end(size=-5, mtime=7)]},
    "a size that is none": {"check": lambda asked: [end(size="x", mtime=7)]},
    "an absurd size": {"check": lambda asked: [end(size=10**30, mtime=10**30)]},
    "no size": {"check": lambda asked: [end()]},
    "no mark": {"mark": lambda asked: [end()]},
    "a long mark": {"mark": lambda asked: [(wire.OUT, bytes(MIB)), end()]},
    "no index": {"index": lambda asked: [end()]},
    "half an index": {"index": lambda asked: [(wire.OUT, b"x" * 30), end()]},
    "an index of nothing": {"index": lambda asked: [index(*[(0, b"")] * 1000), end()]},
    "an index too long": {"index": lambda asked: [index(*[(2**32 - 1, b"a")] * 1000), end()]},
    "an index too short": {"index": lambda asked: [index((5, b"a")), end()]},
}


@pytest.mark.parametrize("there", [False, True], ids=["new", "compared"])
@pytest.mark.parametrize("said", LARGE_SAID)
async def test_whatever_is_said_of_a_large_file_it_ends_and_stays_inside(trap: Trap, said: str, there: bool) -> None:
    old = {b"large": File(5 * MIB + 5, 3)} if there else {}
    put(os.fsencode(trap.target), Folder({b"mine": File(50, 3), **old}))
    mine = snapshot(os.fsencode(trap.target))[b"mine"]
    outcome = await trap.pull(Evil({b"": {b"large": BIG}}, LARGE_SAID[said]))
    assert isinstance(outcome, Outcome | FileProblem)
    found = snapshot(os.fsencode(trap.target))
    assert found.keys() <= {b"large", b"mine"}
    assert found[b"mine"] == mine
    if b"large" in found:
        assert (trap.target / "large").stat().st_size in (5 * MIB, 5 * MIB + 5)


async def test_a_machine_that_claims_more_than_it_has_fills_no_disk(trap: Trap) -> None:
    """As large as a file may be here; only what is sent takes place."""
    evil = Evil({b"": {b"large": b"f644 %d 7" % (1 << 40)}})
    evil.answers["part"] = lambda asked: [(wire.DONE, b""), end()]
    begun = os.statvfs(trap.pool.folder).f_bavail
    pulling = asyncio.ensure_future(trap.pull(evil))
    await asyncio.wait((pulling,), timeout=0.3)
    pulling.cancel()
    await asyncio.wait((pulling,))
    assert begun - os.statvfs(trap.pool.folder).f_bavail < (1 << 30) // 4096


async def test_a_machine_that_sends_far_more_than_it_listed_fills_no_disk(trap: Trap) -> None:
    """Each file is as large as a small one may be, and all of them are a few bytes on the line."""
    names = [b"%d" % number for number in range(200)]

    def send(asked: Asked) -> Iterable[Frame]:
        for number in range(len(list(names_in_order(asked.raw)))):
            data = bytes([wire.FILES]) + b"z" + zlib.compress(record(number, bytes(MIB)))
            yield wire.SQUEEZED, data
        yield wire.DONE, b""
        yield end()

    outcome = await trap.pull(Evil({b"": dict.fromkeys(names, b"f644 1 0")}, {"send": send}))
    assert "more came than" in next(iter(problems(outcome).values()))
    assert sum(path.stat().st_size for path in trap.target.iterdir()) <= 9 * MIB


# A hostile target


async def test_a_target_that_means_harm_is_sent_nothing_from_elsewhere(trap: Trap) -> None:
    """Whatever it says is there, it learns of no file that is not in the source."""
    received: list[bytes] = []

    class Listening(EvilLine):
        def write(self, data: bytes) -> None:
            received.append(data)
            frames = wire.split_frames(bytearray(data))
            super().write(b"".join(wire.frame(*frame) for frame in frames if frame[0] == wire.REQUEST))

    secret = noise(10, 1)
    put(os.fsencode(trap.pool.source), Folder({b"a": File(300, 4), b"sub": Link(os.fsencode(trap.outside))}))
    evil = Evil({b"": {b"sub": b"d755 0 0"}, b"sub": {b"x": SMALL}}, fields={"leftovers": ["../outside/x", "\udcff"]})
    evil.answers["receive"] = lambda asked: [end(files=1, bytes=4, problems=[["../x", "y"]], problem_count=1)]
    trap.before = trap.around()

    async def open_lane() -> OutpostLane:
        lane = OutpostLane(Listening(evil), "evil")
        await lane.greet(TOKEN)
        return lane

    order = Order(source=Place("", str(trap.pool.source)), target=Place("evil", "/x"), delete_extras=True)
    lanes = Lanes("evil", open_lane, 2)
    job = Synchronization(order, End(order.source, trap.lanes), End(order.target, lanes), trap.pool.chunks)
    await job.prepare()
    await asyncio.wait_for(job.carry_out(), SOON_S)
    await lanes.close()
    assert trap.around() == trap.before
    assert noise(300, 4) in b"".join(received)
    assert secret not in b"".join(received)


# A target that is changed meanwhile


@pytest.mark.parametrize("moment", range(4, 24, 3))
async def test_a_folder_that_becomes_a_link_in_the_middle_leads_nowhere(trap: Trap, moment: int) -> None:
    pool, frames = trap.pool, 0
    files = {b"%d" % number: File(3000, number) for number in range(300)}
    put(os.fsencode(pool.source), Folder({b"sub": Folder({**files, b"large": File(5 * MIB, 1), b"x": File(10, 2)})}))
    put(os.fsencode(pool.target), Folder({b"sub": Folder({b"large": File(5 * MIB, 4)})}))
    trap.before = trap.around()

    def hear(lane: object) -> None:
        nonlocal frames
        frames += 1
        if frames == moment:
            os.rename(trap.target / "sub", trap.target / "moved")
            os.symlink(trap.outside, trap.target / "sub")

    pool.heard = hear
    with contextlib.suppress(FileProblem):
        await asyncio.wait_for(pool.sync(), SOON_S)
    assert trap.around() == trap.before
    pool.heard = lambda lane: None
    if frames >= moment:
        await pool.sync(delete_extras=True)
        wanted, found = snapshot(os.fsencode(pool.source)), snapshot(os.fsencode(pool.target))
        assert wanted == found
    assert trap.around() == trap.before
