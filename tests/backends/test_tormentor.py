"""A hostile far side on every line: each call ends in a sentence or in a value, soon, and in little memory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.backends import mending
from remote_sandbox_mcp.backends.link import client as client_module
from remote_sandbox_mcp.backends.link import jobs as jobs_module
from remote_sandbox_mcp.backends.link import lane as lane_module
from remote_sandbox_mcp.backends.link import sandbox as sandbox_module
from remote_sandbox_mcp.backends.link.client import LineLost, NoOutpost, OutpostClient
from remote_sandbox_mcp.backends.link.lane import OutpostLane
from remote_sandbox_mcp.backends.link.relay import PortRelay
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.opensandbox.plain import PlainContainer
from remote_sandbox_mcp.backends.shell import jobs as shell_jobs
from remote_sandbox_mcp.backends.shell import program, search
from remote_sandbox_mcp.backends.shell import sandbox as shell_sandbox
from remote_sandbox_mcp.backends.shell import talk as talk_module
from remote_sandbox_mcp.backends.ssh.plain import PlainSandbox
from remote_sandbox_mcp.core.commands.command import Command, Environment, Running
from remote_sandbox_mcp.core.errors import BrokenRules, FileProblem, SandboxError, Unreachable
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobWait
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable
from remote_sandbox_mcp.core.sandboxes.files import Search, Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Description
from remote_sandbox_mcp.core.sync.transfer import Order, Place
from remote_sandbox_mcp.core.sync.tree import FOLDER, Tree
from remote_sandbox_mcp.far.outpost import port as far
from remote_sandbox_mcp.far.outpost import wire
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.sync.ends import End
from remote_sandbox_mcp.services.sync.lanes import Lanes
from tests.support.tormentor import (
    BOMB,
    BRACKETS,
    END_OF_LINE,
    HELLO,
    HONEST,
    IN_TIME_S,
    MEGABYTE,
    NESTED,
    ODD_VALUES,
    PIECE,
    Endless,
    Liar,
    LyingShell,
    Reply,
    bodies,
    counted_memory,
    dumped,
    ends_well,
    fields_of,
    honest,
    kinds,
    lies,
    torment,
    with_field,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in life, but sooner."""
    for module, names in {
        client_module: {"SILENCE_S": 0.05, "PONG_S": 0.05, "ANSWER_S": 0.3, "SLOWEST": 1 << 30},
        sandbox_module: {"MEND_S": 0.3, "LAST_CHECK_S": 0.1, "OVERTIME_S": 0.3},
        jobs_module: {"MEND_S": 0.3, "WAIT_S": 0.1},
        lane_module: {"SILENT_S": 0.2, "CHECK_S": 0.05},
        talk_module: {"SILENCE_S": 0.2, "ANSWER_S": 0.5},
        program: {"CHECK_S": 0.1, "LOOKS": 5},
        shell_jobs: {"MEND_S": 0.05, "WAIT_S": 0.05},
        shell_sandbox: {"MEND_S": 0.05, "START_S": 0.1, "SNAPSHOT_S": 0.1, "FORGET_S": 0.05, "OVERTIME_S": 0.1},
        mending: {"LONGEST_WAIT_S": 0.3},
    }.items():
        for name, value in names.items():
            monkeypatch.setattr(module, name, value)


@pytest.fixture
def bounded() -> Iterator[Callable[[int], None]]:
    """What memory was needed at most."""
    with counted_memory() as check:
        yield check


# The outpost


class Machine:
    """gpu1, which lies."""

    def __init__(self, reply: Reply, hello: bytes = b"", **options: Any) -> None:
        self.lines: list[Liar] = []
        self._made = lambda: Liar(reply, hello, **options)
        self.sandbox = OutpostSandbox(Description("gpu1", "ssh"), Environment(), self._connect)

    async def _connect(self) -> OutpostClient:
        line, token = self._made(), secrets.token_hex(4)
        self.lines.append(line)
        client = OutpostClient(line.greet(token), "gpu1")
        try:
            await asyncio.wait_for(client.greet(token), 2)
        except NoOutpost as problem:
            raise Unreachable(str(problem)) from None
        return client

    @property
    def sent(self) -> int:
        return sum(line.sent for line in self.lines)


LOOK = JobQuery(job_id="job-0123456789abcdef")
CALLS: dict[str, Callable[[OutpostSandbox], Awaitable[Any]]] = {
    "open": lambda gpu1: gpu1.open(),
    "run": lambda gpu1: gpu1.run(Command("true", timeout_s=0.2, keep=1000)),
    "look": lambda gpu1: gpu1.observe("run-0123456789abcdef", keep=1000),
    "stop": lambda gpu1: gpu1.stop("run-0123456789abcdef", keep=1000),
    "read": lambda gpu1: gpu1.read("/a", Span(limit=1000)),
    "write": lambda gpu1: gpu1.write("/a", b"abc"),
    "list": lambda gpu1: gpu1.list("/", limit=10),
    "search": lambda gpu1: gpu1.search(Search("/", pattern="x", limit=10)),
    "job_start": lambda gpu1: gpu1.jobs.start(JobOrder(session="s", script="true")),
    "job_look": lambda gpu1: gpu1.jobs.inspect([LOOK]),
    "job_wait": lambda gpu1: gpu1.jobs.wait(LOOK, JobWait(seconds=0.2)),
    "job_stop": lambda gpu1: gpu1.jobs.stop(LOOK, 0.0),
    "job_list": lambda gpu1: gpu1.jobs.list(10),
    "job_send": lambda gpu1: gpu1.jobs.send(LOOK, text="x"),
}


async def tormented(machine: Machine, verb: str) -> Any:
    try:
        return await ends_well(CALLS[verb](machine.sandbox))
    finally:
        await machine.sandbox.close()


@pytest.mark.parametrize("verb", CALLS)
async def test_an_honest_outpost_is_believed(verb: str) -> None:
    assert not isinstance(await tormented(Machine(honest), verb), SandboxError)


@pytest.mark.parametrize("verb", HONEST)
async def test_any_value_in_any_field_of_any_answer_is_read_or_refused(verb: str) -> None:
    for way in fields_of(HONEST[verb]):
        for odd in (*ODD_VALUES.values(), ...):
            body = dumped(with_field(HONEST[verb], way, odd))
            machine = Machine(lambda _, number, body=body: wire.frame(wire.END, number, body))
            await tormented(machine, verb)
            assert len(machine.lines) <= 2, (way, odd)


@pytest.mark.parametrize("odd", [*ODD_VALUES.values(), ...], ids=[*ODD_VALUES, "missing"])
async def test_a_greeting_of_any_kind_is_believed_or_refused(odd: Any) -> None:
    for way in fields_of(HELLO):
        hello = wire.frame(wire.HELLO, 0, dumped(with_field(HELLO, way, odd)))
        await tormented(Machine(honest, hello), "read")


GREETINGS = {
    "nested": wire.frame(wire.HELLO, 0, NESTED),
    "brackets": wire.frame(wire.HELLO, 0, BRACKETS),
    "another kind": wire.frame(wire.OUT, 0, b"{}"),
    "a refusal without words": wire.frame(wire.FAIL, 0, b"{}"),
    "nested refusal": wire.frame(wire.FAIL, 0, NESTED),
    "no object": wire.frame(wire.HELLO, 0, b"[]"),
    "longer than all": wire.HEADER.pack(1 << 25, wire.HELLO, 0) + b"x" * 100,
    "half": wire.HEADER.pack(100, wire.HELLO, 0),
}


@pytest.mark.parametrize("hello", GREETINGS.values(), ids=GREETINGS)
@pytest.mark.parametrize("verb", ["open", "run", "job_start"])
async def test_a_greeting_that_is_none_is_a_sentence_of_that_machine(hello: bytes, verb: str) -> None:
    seen = await ends_well(CALLS[verb](Machine(honest, hello).sandbox)) if hello is not GREETINGS["half"] else None
    assert seen is None or isinstance(seen, Unreachable)


@torment
@given(reply=lies(), verb=st.sampled_from(list(CALLS)))
async def test_whatever_an_outpost_sends_a_call_ends_in_a_value_or_a_sentence(reply: Reply, verb: str) -> None:
    machine = Machine(reply)
    await tormented(machine, verb)
    assert len(machine.lines) <= 8


def endless(kind: int, body: bytes = bytes(PIECE)) -> Reply:
    return lambda _, number: Endless(wire.frame(kind, number, body))


ENDLESS: dict[str, Callable[[int], bytes]] = {
    "out": lambda number: wire.frame(wire.OUT, number, bytes(PIECE)),
    "tails": lambda number: wire.frame(wire.ERR_TAIL, number, bytes(100)),
    "empty frames": lambda number: wire.frame(wire.OUT, number) * 1000,
    "beats": lambda number: wire.json_frame(wire.BEAT, number, {"bytes": 1, "line": "x"}) * 100,
    "signs of life": lambda number: wire.frame(wire.PONG, 0) * 1000,
    "answers of others": lambda number: wire.frame(wire.OUT, number + 7, bytes(1000)) * 10,
    "one long frame": lambda number: wire.HEADER.pack(60 << 20, wire.OUT, number) + bytes(PIECE),
    "one long answer": lambda number: wire.HEADER.pack(60 << 20, wire.END, number) + bytes(PIECE),
    "a frame for nobody": lambda number: wire.HEADER.pack(60 << 20, wire.END, number + 9) + bytes(PIECE),
}


@pytest.mark.parametrize("flood", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("verb", ["run", "read", "list", "search", "job_look", "write"])
async def test_a_far_side_that_sends_more_than_was_asked_for_is_cut_off(
    flood: Callable[[int], bytes], verb: str, bounded: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_S", IN_TIME_S)
    monkeypatch.setattr(sandbox_module, "OVERTIME_S", IN_TIME_S)
    machine = Machine(lambda _, number: Endless(flood(number)))
    seen = await tormented(machine, verb)
    assert "gpu1 sent more than it was asked for; the connection was closed" in str(seen)
    assert len(machine.lines) == 1
    assert machine.sent < 8 * MEGABYTE
    bounded(24 * MEGABYTE)


@pytest.mark.parametrize("body", [NESTED, BRACKETS, b"[" + b"[]," * 200_000 + b"0]", b'{"a":' * 9000], ids=len)
async def test_an_answer_made_of_brackets_takes_no_memory(body: bytes, bounded: Callable[[int], None]) -> None:
    machine = Machine(lambda _, number: wire.frame(wire.END, number, body))
    assert isinstance(await tormented(machine, "list"), BrokenRules)
    bounded(16 * MEGABYTE)


@pytest.mark.parametrize("verb", [verb for verb in CALLS if verb != "open"])
async def test_a_far_side_that_lives_but_never_answers_is_given_up(verb: str) -> None:
    seen = await tormented(Machine(lambda verb, number: b""), verb)
    assert verb == "run" or isinstance(seen, SandboxError)


@pytest.mark.parametrize(
    "reply",
    [
        lambda _, number: wire.frame(wire.BEAT, number, b"{}"),
        lambda _, number: wire.frame(wire.FAIL, number, b"{}"),
        lambda _, number: END_OF_LINE,
    ],
    ids=["a beat without a number", "a refusal without words", "the end of the line"],
)
async def test_a_machine_whose_lines_die_at_once_is_not_reconnected_without_pause(
    reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "MEND_S", 2.0)
    monkeypatch.setattr(mending, "LONGEST_WAIT_S", 1.0)
    machine = Machine(reply)
    seen = await ends_well(machine.sandbox.run(Command("true", timeout_s=60)))
    assert isinstance(seen, SandboxError)
    assert "gpu1" in str(seen)
    assert len(machine.lines) <= 10
    # Nor by who does not give up.
    for _ in range(20):
        await ends_well(machine.sandbox.observe("run-0123456789abcdef"))
    assert len(machine.lines) <= 12
    await machine.sandbox.close()


async def test_a_malformed_answer_of_one_machine_does_not_affect_the_others() -> None:
    """Asked all at once, as list_sandboxes does."""
    members = []
    machines = [Machine(honest), *(Machine(honest, hello) for hello in list(GREETINGS.values())[:-1])]
    machines += [Machine(lambda _, number: wire.frame(wire.FAIL, number, b"{}")), Machine(honest)]
    for at, machine in enumerate(machines):

        async def opener(machine: Machine = machine) -> OutpostSandbox:
            await machine.sandbox.open()
            return machine.sandbox

        members.append(Member(f"gpu{at}", lambda: Description("gpu", "ssh"), opener))
    views = await asyncio.wait_for(App(Fleet(members)).survey.of_all(), IN_TIME_S)
    alive = [view.alive for view in views]
    assert alive == [True, *[False] * (len(GREETINGS) - 1), True, True]
    assert all(view.trouble for view in views if not view.alive)
    for machine in machines:
        await machine.sandbox.close()


# A lane

LANE_HELLO = wire.json_frame(wire.HELLO, 0, {"squeezers": ["zlib"]})
SCANNED = {"kind": "dir", "path": "/a", "real": "/a", "home": "/", "problems": [["/a/b", "no"]], "gitignores": []}


async def lane_to(line: Liar) -> OutpostLane:
    lane = OutpostLane(line.greet("token"), "gpu1")
    await asyncio.wait_for(lane.greet("token"), 2)
    return lane


async def scanned(reply: Reply) -> tuple[Any, Liar]:
    """A scan over a lane whose far side lies."""
    line = Liar(reply, LANE_HELLO)
    lane = await lane_to(line)
    end = End(Place("gpu1", "/a"), Lanes("gpu1", lambda: None, 1), taken=[lane])  # type: ignore[arg-type, return-value]
    order = Order(source=Place("gpu1", "/a"), target=Place("", "/b"))
    try:
        return await ends_well(entered(end.scan(order))), line
    finally:
        await lane.close()


async def entered(scan: Awaitable[Tree]) -> Tree:
    """A tree whose folders can all be read."""
    tree = await scan
    for folder in tree.folders:
        tree.entries(folder)
    return tree


def record(folder: bytes, block: bytes) -> bytes:
    return FOLDER.pack(len(folder), len(block), 1) + folder + block


def numbered(number: int) -> bytes:
    """A new folder each time."""
    return b"=" + b"".join(record(b"%d-%d" % (number, at), b"") for at in range(1000))


LISTINGS: dict[str, Callable[[int], bytes]] = {
    "a bomb": lambda number: wire.frame(wire.OUT, number, BOMB),
    "parts without end": lambda number: Endless(wire.frame(wire.OUT, number, b"=" + bytes(PIECE))),
    "empty parts": lambda number: Endless(wire.frame(wire.OUT, number) * 1000),
    "a huge folder": lambda number: Endless(
        wire.frame(wire.OUT, number, b"=" + FOLDER.pack(0, (1 << 32) - 1, 0) + bytes(PIECE))
    ),
    "a huge answer": lambda number: wire.HEADER.pack(60 << 20, wire.END, number) + bytes(PIECE),
    "a huge frame": lambda number: wire.HEADER.pack(60 << 20, wire.OUT, number) + bytes(PIECE),
    "nested": lambda number: wire.frame(wire.END, number, NESTED),
    "files that nobody wants": lambda number: Endless(wire.frame(wire.FILES, number, bytes(PIECE))),
}


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)
async def test_a_listing_without_end_is_given_up(
    listing: Callable[[int], bytes], bounded: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "SILENT_S", IN_TIME_S)
    monkeypatch.setattr("remote_sandbox_mcp.services.sync.ends.MOST_BYTES", 32 * MEGABYTE)
    seen, line = await scanned(lambda _, number: listing(number))
    assert isinstance(seen, BrokenRules | FileProblem)
    assert line.sent < 100 * MEGABYTE
    assert line.closed
    bounded(48 * MEGABYTE)


async def test_folders_without_number_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.core.sync.tree.MOST_FOLDERS", 5000)
    parts = [wire.frame(wire.OUT, 0, numbered(at))[wire.HEADER.size :] for at in range(20)]
    seen, _ = await scanned(lambda _, number: b"".join(wire.frame(wire.OUT, number, part) for part in parts))
    assert isinstance(seen, FileProblem)
    assert "5000 folders" in str(seen)


async def test_a_listing_in_tiny_parts_is_read_as_it_is() -> None:
    told = record(b"", b"a\0f644 1 1") + record(b"d", b"b\0f644 2 2")

    def reply(_: str, number: int) -> bytes:
        parts = [wire.frame(wire.OUT, number, b"=%c" % byte) for byte in told]
        return b"".join(parts) + wire.frame(wire.END, number, dumped(SCANNED))

    tree, _ = await scanned(reply)
    assert tree.folders == {b"": b"a\0f644 1 1", b"d": b"b\0f644 2 2"}


@pytest.mark.parametrize("way", list(fields_of(SCANNED)), ids=str)
async def test_any_value_in_the_end_of_a_scan_is_read_or_refused(way: tuple[Any, ...]) -> None:
    for odd in (*ODD_VALUES.values(), ...):
        body = dumped(with_field(SCANNED, way, odd))
        await scanned(lambda _, number, body=body: wire.frame(wire.END, number, body))


@torment
@given(frames=st.lists(st.tuples(kinds, bodies), max_size=4), honest_end=st.booleans())
async def test_whatever_a_lane_sends_a_scan_ends(frames: list[tuple[int, bytes]], honest_end: bool) -> None:
    def reply(_: str, number: int) -> bytes:
        said = b"".join(wire.frame(kind, number, body) for kind, body in frames)
        return said + (wire.frame(wire.END, number, dumped(SCANNED)) if honest_end else b"")

    await scanned(reply)


async def test_a_source_passes_on_no_more_than_was_asked_for() -> None:
    passed: list[int] = []

    async def room() -> None: ...

    target = SimpleNamespace(pass_on=lambda kind, number, body: passed.append(len(body)), room=room)
    line = Liar(lambda _, number: Endless(wire.frame(wire.PART, number, bytes(PIECE))), LANE_HELLO)
    lane = await lane_to(line)
    seen = await ends_well(lane.begin({"verb": "part"}, to=target, passes=4 * MEGABYTE))  # type: ignore[arg-type]
    assert "sent more than it was asked for" in str(seen)
    assert sum(passed) <= 4 * MEGABYTE
    await lane.close()


# A relay


async def relayed(reply: Reply, read: int = 1 << 16) -> tuple[Any, Liar]:
    """Connect, write, and read what comes until it ends."""
    line = Liar(reply, wire.json_frame(wire.HELLO, 0, {}))
    relay = PortRelay(line.greet("token"), "gpu1")
    await asyncio.wait_for(relay.greet("token"), 2)

    async def converse() -> int:
        stream = await relay.connect(80)
        stream.write(bytes(2 * far.PORT_WINDOW))
        count = 0
        while read and (data := await stream.read(read)):
            count += len(data)
        await stream.drain()
        return count

    try:
        return await ends_well(converse()), line
    except LineLost:
        return None, line
    finally:
        await relay.close()


def dialled(number: int, said: bytes = b"") -> bytes:
    return wire.frame(far.DIALLED, number) + said


async def test_a_relay_keeps_to_its_window(bounded: Callable[[int], None]) -> None:
    def reply(verb: str, number: int) -> bytes:
        flood = wire.frame(far.BYTES, number, bytes(1 << 16))
        return Endless(dialled(number, flood)) if verb == f"kind {far.DIAL}" else b""

    seen, line = await relayed(reply, read=0)
    assert "sent more than it was asked for" in str(seen)
    assert line.closed
    assert line.sent < 4 * MEGABYTE
    bounded(16 * MEGABYTE)


ROOMS = [b"-5", b"0", b"x", b"", b"9" * 5000, b"99999999999999", b"\xff", b"1048576"]


@pytest.mark.parametrize("room", ROOMS, ids=repr)
async def test_an_impossible_window_ends_the_relay(room: bytes) -> None:
    seen, line = await relayed(lambda _, number: dialled(number, wire.frame(far.ROOM, number, room)))
    assert isinstance(seen, Unreachable)
    assert line.closed


@torment
@given(frames=st.lists(st.tuples(st.integers(49, 56), bodies), max_size=5))
async def test_whatever_a_relay_sends_a_conversation_ends(frames: list[tuple[int, bytes]]) -> None:
    def reply(verb: str, number: int) -> bytes:
        if verb != f"kind {far.DIAL}":
            return b""
        return b"".join(wire.frame(kind, number, body) for kind, body in frames) + END_OF_LINE

    line = Liar(reply, wire.json_frame(wire.HELLO, 0, {}))
    await asyncio.wait_for(_relay_ends(line), IN_TIME_S)


async def _relay_ends(line: Liar) -> None:
    relay = PortRelay(line.greet("token"), "gpu1")
    await relay.greet("token")
    connecting = asyncio.ensure_future(relay.connect(80))
    await asyncio.sleep(0)
    line.close()
    try:
        stream = await connecting
        while await stream.read():
            pass
    except (SandboxError, LineLost):
        pass
    await relay.close()


# A shell, of a machine and of a container

SHELL_CALLS: dict[str, Callable[[PlainSandbox | PlainContainer], Awaitable[Any]]] = {
    "run": lambda box: box.run(Command("true", timeout_s=0.2, keep=1000), patience_s=0.3),
    "look": lambda box: box.observe("run-0123456789abcdef", keep=1000),
    "stop": lambda box: box.stop("run-0123456789abcdef", keep=1000),
    "search": lambda box: box.search(Search("/", pattern="x", limit=10)),
    "names": lambda box: box.search(Search("/", glob="*", limit=10)),
    "jobs": lambda box: box.jobs.inspect([LOOK]),
    "start a job": lambda box: box.jobs.start(JobOrder(session="train", script="true")),
    "wait for a job": lambda box: box.jobs.wait(LOOK, JobWait(seconds=0.1, pattern="x")),
    "list jobs": lambda box: box.jobs.list(10),
}
CONTAINER_CALLS: dict[str, Callable[[PlainContainer], Awaitable[Any]]] = {
    **SHELL_CALLS,
    "read": lambda box: box.read("/a", Span(limit=1000)),
    "write": lambda box: box.write("/a", b"abc"),
    "list": lambda box: box.list("/", limit=10),
}


async def over_shell(shell: LyingShell, verb: str) -> Any:
    gate = SimpleNamespace(machine=SimpleNamespace(name="gpu1"))
    sandbox = PlainSandbox(Description("gpu1", "ssh"), Environment(), gate)  # type: ignore[arg-type]
    sandbox._shell._transport._channels = shell  # type: ignore[attr-defined]
    sandbox._shell._home = "/home"
    try:
        return await ends_well(SHELL_CALLS[verb](sandbox))
    finally:
        await sandbox.close()


@pytest.mark.parametrize("verb", SHELL_CALLS)
@pytest.mark.parametrize(
    ("flood", "looks"),
    [
        (Endless(bytes(PIECE)), 5),
        # Nothing is kept of these, so that time alone ends them.
        (Endless(b"beat 1 x\n" * 1000), 1),
        (Endless(b"out.data " + b"x" * PIECE + b"\n"), 5),
    ],
    ids=["bytes", "beats", "lines"],
)
async def test_a_shell_that_does_not_stop_is_cut_off(
    flood: bytes, looks: int, verb: str, bounded: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_NAMED", 2 * MEGABYTE)
    monkeypatch.setattr(program, "LOOKS", looks)
    shell = LyingShell(lambda token: [f"noise\n{token}\n".encode(), flood])
    seen = await over_shell(shell, verb)
    assert isinstance(seen, SandboxError | Running)
    assert shell.sent < 48 * MEGABYTE
    bounded(140 * MEGABYTE)


async def test_a_shell_that_beats_and_never_ends_does_not_keep_its_caller() -> None:
    shell = LyingShell(lambda token: [f"\n{token}\nclaimed\n".encode(), Endless(b"beat 1 eA==\n")])
    assert isinstance(await over_shell(shell, "look"), Unreachable)


CONTAINER_WORDS = [
    *("base", "home", "state", "end", "begun", "now", "clock", "out.data", "out.size", "err.data", "err.size", "why"),
    *("found", "data", "start", "version", "created", "entries", "below", "names", "large", "lines", "complaint"),
    *("refused", "jobs", "0.state", "0.end", "0.begun", "0.size", "0.ordered", "0.grown", "0.usage", "0.saved"),
    *("0.trouble", "0.data", "0.session", "0.log", "0.start", "place", "claimed", "beat", "reason"),
]
CONTAINER_VALUES = [
    "",
    "x",
    "-1",
    "nan",
    "inf inf",
    "1 2",
    "1e999",
    "²",
    "9" * 5000,
    "ended",
    "exited 0 1",
    "YWJj",
    "81a4 3",
]
container_lines = st.dictionaries(st.sampled_from(CONTAINER_WORDS), st.sampled_from(CONTAINER_VALUES), max_size=12)


@torment
@given(printed=container_lines, verb=st.sampled_from(list(SHELL_CALLS)), is_whole=st.booleans())
async def test_whatever_a_machines_shell_says_a_call_ends_in_a_value_or_a_sentence(
    printed: dict[str, str], verb: str, is_whole: bool
) -> None:
    said = "".join(f"{word} {value}\n" for word, value in printed.items())
    shell = LyingShell(lambda token: [f"noise\n{token}\n{said}{token if is_whole else ''}\n".encode()])
    await over_shell(shell, verb)
    # Who waits for a line of a log asks for the next part of it as soon as one has come.
    assert shell.opened <= 12 or verb == "wait for a job"


@settings(torment, max_examples=2 * torment.max_examples)
@given(printed=container_lines, call=st.sampled_from(list(CONTAINER_CALLS)), is_framed=st.booleans())
async def test_whatever_a_container_prints_a_call_ends_in_a_value_or_a_sentence(
    printed: dict[str, str], call: str, is_framed: bool
) -> None:
    async def run(*_: Any, **__: Any) -> Any:
        framed = {"here": "", "base": "/tmp/x", **printed, "over": ""} if is_framed else {"base": "/tmp/x", **printed}
        messages = [SimpleNamespace(text=f"{word} {value}".strip()) for word, value in framed.items()]
        return SimpleNamespace(logs=SimpleNamespace(stdout=messages, stderr=[]), exit_code=0)

    async def handle(*_: Any) -> Any:
        return SimpleNamespace(commands=SimpleNamespace(run=run))

    async def nothing(*_: Any) -> None:
        return None

    async def checked_by_agent(_: str, answer: Awaitable[Any]) -> Any:
        return await answer

    async def take_file(*_: Any) -> bytes:
        return "\n".join(f"{word} {value}" for word, value in printed.items()).encode()

    link = SimpleNamespace(sandbox=handle, why_not=nothing, forget=lambda key: None)
    link.checked_by_agent, link.take_file = checked_by_agent, take_file
    box = PlainContainer(link, Disposable(id="sb-1", provider="opensandbox", key="k"), Environment())  # type: ignore[arg-type]
    try:
        await ends_well(CONTAINER_CALLS[call](box))
    finally:
        await box.close()
