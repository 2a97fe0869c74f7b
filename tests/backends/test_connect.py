"""Ports of real machines and sandboxes, by every way there is to them."""

from __future__ import annotations

import ast
import asyncio
import errno
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.bubblewrap.local import open_local
from remote_sandbox_mcp.backends.link import doorway, pipe, relay
from remote_sandbox_mcp.backends.link.client import LineLost
from remote_sandbox_mcp.backends.link.relay import RELAY
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.errors import BrokenRules, Unreachable, Unsupported
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sandboxes.port import PortClosed, Stream
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.far import program
from remote_sandbox_mcp.far.outpost import wire
from tests.backends.contract import Opener, PortContract
from tests.backends.contract.basics import said
from tests.backends.contract.ports import (
    MEGABYTE,
    ask,
    digest_all,
    pattern_sum,
    read_exactly,
    send_all,
    start_service,
)
from tests.support.means import require_bubblewrap
from tests.support.pipe import pythons
from tests.support.sshd import Fleet, Sshd, wait_until
from tests.support.waiting import eventually

NO_FORWARDING = ("AllowTcpForwarding no",)


@pytest.fixture(scope="module")
def known_hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state") / "known_hosts"


def opener_of(sshd: Sshd, known_hosts: Path) -> Opener:
    async def open_it(environment: Environment) -> Sandbox:
        return await open_machine(sshd.machine(environment=environment), known_hosts)

    return open_it


class TestForwardedBySshd(PortContract):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, fleet: Fleet, known_hosts: Path) -> Opener:
        return opener_of(fleet.machine(), known_hosts)


class TestRelayed(PortContract):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, fleet: Fleet, known_hosts: Path) -> Opener:
        return opener_of(fleet.machine(extra_config=NO_FORWARDING), known_hosts)


class TestWithoutPython(PortContract):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, fleet: Fleet, known_hosts: Path) -> Opener:
        return opener_of(fleet.machine(python=False), known_hosts)


class TestBehindWalls(PortContract):
    """With a network of its own, which is its loopback alone."""

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, tmp_path_factory: pytest.TempPathFactory) -> Opener:
        state_folder = tmp_path_factory.mktemp("state")

        async def open_it(environment: Environment) -> Sandbox:
            return await open_local(LocalPlace(environment=environment), state_folder)

        return open_it


# Machines


@asynccontextmanager
async def opened(sshd: Sshd, known_hosts: Path, **fields: Any) -> AsyncIterator[Sandbox]:
    sandbox = await open_machine(sshd.machine(**fields), known_hosts)
    try:
        yield sandbox
    finally:
        await sandbox.close()


@asynccontextmanager
async def walled(state_folder: Path, place: LocalPlace | None = None) -> AsyncIterator[OutpostSandbox]:
    sandbox = await open_local(place or LocalPlace(), state_folder)
    try:
        yield sandbox
    finally:
        await sandbox.close()


@pytest.fixture(scope="module")
def closed_to_forwarding(fleet: Fleet) -> Sshd:
    return fleet.machine(extra_config=NO_FORWARDING)


async def echo(sandbox: Sandbox, port: int, text: bytes = b"hello") -> bytes:
    stream = await ask(sandbox, port, b"echo\n" + text)
    try:
        return await read_exactly(stream, len(text))
    finally:
        stream.close()


def relays_of(sshd: Sshd) -> list[int]:
    """The processes of the machine's user that are relays, by the length of the program that they read."""
    marks = [f"read({len(program.sent(RELAY, is_compiled=is_compiled))})" for is_compiled in (False, True)]
    return [pid for pid, command in sshd.processes().items() if any(mark in command for mark in marks)]


@pytest.mark.parametrize(
    "config", [NO_FORWARDING, ("DisableForwarding yes",), ("PermitOpen 127.0.0.1:9",)], ids=lambda config: config[0]
)
async def test_a_machine_whose_sshd_forwards_nothing_has_a_relay(
    fleet: Fleet, known_hosts: Path, config: tuple[str, ...]
) -> None:
    sshd = fleet.machine(extra_config=config)
    async with opened(sshd, known_hosts) as sandbox:
        port, run_id = await start_service(sandbox)
        assert not relays_of(sshd)
        assert await asyncio.gather(*(echo(sandbox, port, b"%d" % number) for number in range(9)))
        assert len(relays_of(sshd)) == 1
        assert await echo(sandbox, port) == b"hello"
        await sandbox.stop(run_id)
    wait_until(lambda: not relays_of(sshd), what="the relay to end with its sandbox")


async def test_a_machine_that_forwards_has_no_relay(sshd: Sshd, known_hosts: Path) -> None:
    async with opened(sshd, known_hosts) as sandbox:
        port, run_id = await start_service(sandbox)
        assert await echo(sandbox, port) == b"hello"
        assert not relays_of(sshd)
        await sandbox.stop(run_id)


async def test_a_relay_finds_a_session_where_the_first_connection_has_none_left(
    fleet: Fleet, known_hosts: Path
) -> None:
    sshd = fleet.machine(max_sessions=1, extra_config=NO_FORWARDING)
    async with opened(sshd, known_hosts) as sandbox:
        port, run_id = await start_service(sandbox)
        assert await asyncio.gather(*(echo(sandbox, port) for _ in range(5))) == [b"hello"] * 5
        assert len(relays_of(sshd)) == 1
        await sandbox.stop(run_id)


async def test_many_lanes_find_sessions_on_as_many_connections_as_they_need(fleet: Fleet, known_hosts: Path) -> None:
    sshd = fleet.machine(max_sessions=2)
    async with opened(sshd, known_hosts) as sandbox:
        lanes = await asyncio.gather(*(sandbox.open_lane() for _ in range(6)))
        assert connections(sshd) == 4
        for lane in lanes:
            await lane.close()
        await until(lambda: connections(sshd) == 1, "what is not used any more to end")


def connections(sshd: Sshd) -> int:
    """Each has two processes, of which one serves its user."""
    return sum("@" in process for process in sshd.sessions().values())


async def test_an_unused_relay_gives_its_session_back(
    closed_to_forwarding: Sshd, known_hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "IDLE_S", 0.2)
    async with opened(closed_to_forwarding, known_hosts) as sandbox:
        port, run_id = await start_service(sandbox)
        stream = await ask(sandbox, port, b"echo\nx")
        for text in (b"one", b"two"):
            assert await echo(sandbox, port, text) == text
        assert await read_exactly(stream, 1) == b"x"
        assert relays_of(closed_to_forwarding)
        stream.close()
        await until(lambda: not relays_of(closed_to_forwarding), "the relay to end")
        assert await echo(sandbox, port, b"again") == b"again"
        await sandbox.stop(run_id)


async def test_without_python_and_forwarding_there_is_no_way_and_it_says_so(fleet: Fleet, known_hosts: Path) -> None:
    sshd = fleet.machine(python=False, extra_config=NO_FORWARDING)
    async with opened(sshd, known_hosts) as sandbox:
        with pytest.raises(Unsupported, match=r"forwards no ports.*AllowTcpForwarding.*python3"):
            await sandbox.connect(80)


@pytest.mark.parametrize("kind", ["forwarded", "relayed", "plain"])
async def test_a_cut_line_ends_its_connections_and_the_next_opens_another(
    fleet: Fleet, known_hosts: Path, kind: str
) -> None:
    sshd = fleet.machine(python=kind != "plain", extra_config=NO_FORWARDING if kind == "relayed" else ())
    async with opened(sshd, known_hosts) as sandbox:
        port, run_id = await start_service(sandbox)
        stream = await ask(sandbox, port, b"echo\nx")
        assert await read_exactly(stream, 1) == b"x"
        sshd.kill_sessions()
        assert await ends(stream)
        stream.close()
        assert await asyncio.gather(*(echo(sandbox, port) for _ in range(5))) == [b"hello"] * 5
        await sandbox.stop(run_id)


async def ends(stream: Stream) -> bool:
    """Whether nothing more comes: the end, or a sentence that it was cut."""
    try:
        return await asyncio.wait_for(stream.read(), 15) == b""
    except Unreachable as problem:
        return "was cut" in str(problem)


@pytest.mark.parametrize("kind", ["forwarded", "relayed"])
async def test_a_frozen_line_is_noticed_and_replaced(fleet: Fleet, known_hosts: Path, kind: str) -> None:
    sshd = fleet.machine(extra_config=NO_FORWARDING if kind == "relayed" else ())
    async with opened(sshd, known_hosts, connect_timeout_s=2) as sandbox:
        port, run_id = await start_service(sandbox)
        assert await echo(sandbox, port) == b"hello"
        sshd.freeze()
        with pytest.raises(Unreachable):
            await asyncio.wait_for(sandbox.connect(port), 25)
        sshd.thaw()
        assert await echo(sandbox, port) == b"hello"
        await sandbox.stop(run_id)


async def test_a_call_that_is_cancelled_leaves_no_connection(closed_to_forwarding: Sshd, known_hosts: Path) -> None:
    async with opened(closed_to_forwarding, known_hosts) as sandbox:
        port, run_id = await start_service(sandbox)
        assert await echo(sandbox, port) == b"hello"
        calls = [asyncio.ensure_future(sandbox.connect(port)) for _ in range(10)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        for call in calls:
            if not call.cancelled():
                call.result().close()
        await no_connections(sandbox, port)
        assert await echo(sandbox, port) == b"hello"
        await sandbox.stop(run_id)


async def no_connections(sandbox: Sandbox, port: int) -> None:
    async def count() -> int:
        return int(await said(sandbox, f"grep -c ': 0100007F:{port:04X} .* 01 ' /proc/net/tcp || true"))

    await eventually(count, lambda number: number == 0, "the connections to end")


async def until(holds: Callable[[], bool], what: str) -> None:
    async def ask_it() -> bool:
        return holds()

    await eventually(ask_it, bool, what)


# Behind walls


async def test_no_command_in_the_sandbox_has_the_socket_for_descriptors(tmp_path: Path) -> None:
    async with walled(tmp_path) as sandbox:
        port, run_id = await start_service(sandbox)
        assert await echo(sandbox, port) == b"hello"
        kinds = await said(sandbox, "for fd in /proc/[0-9]*/fd/*; do readlink $fd || true; done 2>/dev/null")
        sockets = {line for line in kinds.splitlines() if line.startswith(b"socket")}
        # The one that the service listens with, and perhaps one whose end it has not seen yet.
        assert len(sockets) <= 2
        await sandbox.stop(run_id)


async def test_each_sandbox_has_ports_of_its_own(tmp_path: Path) -> None:
    require_bubblewrap()
    places = [LocalPlace(name) for name in ("one", "two")]
    async with walled(tmp_path, places[0]) as one, walled(tmp_path, places[1]) as two:
        port, run_id = await start_service(one)
        assert await echo(one, port) == b"hello"
        with pytest.raises(PortClosed):
            await two.connect(port)
        with socket.socket() as outside, pytest.raises(ConnectionRefusedError):
            outside.connect(("127.0.0.1", port))
        await one.stop(run_id)


async def test_connections_to_ports_end_with_the_sandbox(tmp_path: Path) -> None:
    async with walled(tmp_path) as sandbox:
        port, _ = await start_service(sandbox)
        stream = await ask(sandbox, port, b"echo\nx")
        assert await read_exactly(stream, 1) == b"x"
        assert sandbox._client
        sandbox._client.line.close()
        assert await ends(stream)
        stream.close()
        with pytest.raises(PortClosed):
            await sandbox.connect(port)


async def test_a_cancelled_call_leaves_no_passed_socket_open(tmp_path: Path) -> None:
    async with walled(tmp_path) as sandbox:
        port, run_id = await start_service(sandbox)
        call = asyncio.ensure_future(sandbox.connect(port))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait((call,))
        # What was handed out in spite of it is closed by the next who comes to the door.
        assert await echo(sandbox, port) == b"hello"
        await no_connections(sandbox, port)
        await sandbox.stop(run_id)


def test_only_tcp_connections_are_accepted_as_passed_descriptors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    left, right = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as wanted:
        taken = doorway.connection_of(os.dup(wanted.fileno()))
        assert taken
        assert taken.getpeername() == server.getsockname()
        taken.close()
    for other in (os.open(tmp_path / "file", os.O_RDONLY), left.detach(), right.detach()):
        assert doorway.connection_of(other) is None
        with pytest.raises(OSError):
            os.fstat(other)


class Outpost:
    """A stand-in for the outpost's client whose far side sends what a test wants."""

    def __init__(self, door: doorway.Doorway, packets: list[tuple[bytes, list[int]]]) -> None:
        self.far = socket.socket(fileno=os.dup(door.far))
        self.far.setblocking(False)
        self.door = door
        self.packets = packets
        self.line = self
        self.is_closed = False

    def begin(self, order: dict[str, Any], raw: bytes = b"") -> None:
        """It learns nothing."""

    async def ask(self, order: dict[str, Any]) -> None:
        for word, descriptors in self.packets:
            while not self.is_closed:
                try:
                    socket.send_fds(self.far, [word.replace(b"TOKEN", order["token"].encode())], descriptors)
                    break
                except OSError as problem:
                    # An ordinary user may have only so many descriptors under way.
                    if problem.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                        raise
                    await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        if self.is_closed:
            raise LineLost

    def close(self) -> None:
        self.is_closed = True


@contextmanager
def tcp_pair() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        yield near


async def knock(packets: list[tuple[bytes, list[int]]]) -> tuple[Outpost, str]:
    """The outpost, and why no connection came of it."""
    door = doorway.Doorway()
    outpost = Outpost(door, packets)
    said = ""
    try:
        await door.connect(outpost, 7003, "hostile")  # type: ignore[arg-type]
    except Unreachable as problem:
        said = str(problem)
    finally:
        door.close()
        outpost.far.close()
    return outpost, said


async def test_sockets_that_nobody_asked_for_end_a_hostile_outpost() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with tcp_pair() as near:
        outpost, said = await knock([(b"nobody", [near.fileno()] * 4)] * 3000)
    assert outpost.is_closed
    assert said == "hostile sent sockets that nobody had asked for, and was ended"
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("word", [b"", b"TOKEN", b"other"], ids=["no word", "the token", "another"])
async def test_descriptors_of_a_message_that_is_not_used_are_closed(word: bytes, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = os.open(tmp_path, os.O_RDONLY)
    _, said = await knock([(word, [file] * 8)])
    os.close(file)
    assert "its socket was not handed out" in said
    assert len(os.listdir("/proc/self/fd")) == before


async def test_callers_who_give_up_do_not_fill_the_doorway(tmp_path: Path) -> None:
    """What is sent for them is read all the same, or the outpost could send nothing any more."""
    async with walled(tmp_path) as sandbox:
        port, run_id = await start_service(sandbox)
        for _ in range(40):
            calls = [asyncio.ensure_future(sandbox.connect(port)) for _ in range(10)]
            await asyncio.sleep(0.01)
            for call in calls:
                call.cancel()
            for ended in await asyncio.gather(*calls, return_exceptions=True):
                if not isinstance(ended, BaseException):
                    ended.close()
        assert await asyncio.wait_for(echo(sandbox, port), 20) == b"hello"
        await sandbox.stop(run_id)


# The relay on its own


@asynccontextmanager
async def relay_here(python: str = sys.executable) -> AsyncIterator[relay.PortRelay]:
    """A relay on a pipe, to this machine's own ports."""
    token = secrets.token_hex(16)
    line = await pipe.start([python, "-IS", "-c", program.loader(RELAY), token], {})
    line.write(program.packed(RELAY))
    near = relay.PortRelay(line, "here")
    await near.greet(token)
    try:
        yield near
    finally:
        await near.close()


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize("pieces", [RELAY, doorway.HANDOVER], ids=lambda pieces: pieces[-1])
def test_the_programs_need_no_newer_python_than_3_6(pieces: tuple[str, ...]) -> None:
    ast.parse(program.source(pieces), feature_version=(3, 6))


def test_what_an_outpost_learns_replaces_nothing_that_it_knows() -> None:
    def names(pieces: tuple[str, ...]) -> set[str]:
        body = ast.parse(program.source(pieces)).body
        assigned = {target.id for node in body if isinstance(node, ast.Assign) for target in named(node)}
        return assigned | {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}

    def named(node: ast.Assign) -> list[ast.Name]:
        return [target for target in node.targets if isinstance(target, ast.Name)]

    assert names(doorway.HANDOVER) & (names(program.OUTPOST) | names(program.JOBS)) <= {"MYPY"}


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
async def test_the_relay_runs_under_every_python(python: str) -> None:
    async with echo_server() as port, relay_here(python) as near:
        stream = await near.connect(port)
        sending = asyncio.ensure_future(send_all(stream, 3 * MEGABYTE))
        assert await digest_all(stream) == (3 * MEGABYTE, pattern_sum(3 * MEGABYTE))
        await sending
        stream.close()
        with pytest.raises(PortClosed, match="Connection refused"):
            await near.connect(1)


async def test_a_relay_that_sends_no_frames_is_given_up() -> None:
    class Babbler:
        def __init__(self) -> None:
            self.heard: asyncio.Queue[bytes] = asyncio.Queue()
            self.closed = False

        def write(self, data: bytes) -> None: ...

        async def drain(self) -> None: ...

        async def read(self) -> bytes:
            return await self.heard.get()

        def close(self) -> None:
            self.closed = True

    line = Babbler()
    near = relay.PortRelay(line, "babbler")
    line.heard.put_nowait(b"\ntoken\n" + wire.json_frame(wire.HELLO, 0, {}))
    await near.greet("token")
    calling = asyncio.ensure_future(near.connect(80))
    await asyncio.sleep(0)
    line.heard.put_nowait(b"\xff" * 20)
    with pytest.raises(BrokenRules, match="babbler"):
        await calling
    assert (line.closed, near.is_alive) == (True, False)
    await near.close()


# Much


def memory_mb(pid: int | str = "self") -> float:
    """What a process holds in memory now."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


@asynccontextmanager
async def watched_memory(find: Callable[[], list[int]]) -> AsyncIterator[Callable[[], tuple[float, float]]]:
    """How much this process has grown at most since then, and how large the largest of others was."""
    begun, most, others = memory_mb(), 0.0, 0.0

    async def watch() -> None:
        nonlocal most, others
        while True:
            most = max(most, memory_mb() - begun)
            others = max([others, *map(memory_mb, find())])
            await asyncio.sleep(0.1)

    task = asyncio.ensure_future(watch())
    try:
        yield lambda: (most, others)
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def move_much(sandbox: Sandbox, find: Callable[[], list[int]], size: int) -> tuple[float, float]:
    port, run_id = await start_service(sandbox)
    assert await echo(sandbox, port) == b"hello"
    async with watched_memory(find) as most:
        # One who never reads holds no more than a window of it.
        idle = await ask(sandbox, port, b"give %d\n" % size)
        up = await ask(sandbox, port, b"sum\n")
        down = await ask(sandbox, port, b"give %d\n" % size)
        sending = asyncio.ensure_future(send_all(up, size))
        assert await digest_all(down) == (size, pattern_sum(size))
        await sending
        summed = f"{size} {pattern_sum(size)}".encode()
        assert await read_exactly(up, len(summed)) == summed
        for stream in (idle, up, down):
            stream.close()
        grown = most()
    await sandbox.stop(run_id)
    return grown


@pytest.mark.parametrize("kind", ["forwarded", "relayed"])
async def test_sixty_megabytes_each_way_stay_out_of_memory(fleet: Fleet, known_hosts: Path, kind: str) -> None:
    sshd = fleet.machine(extra_config=NO_FORWARDING if kind == "relayed" else ())
    async with opened(sshd, known_hosts) as sandbox:
        near, far = await move_much(sandbox, lambda: relays_of(sshd), 60 * MEGABYTE)
    assert near < 32
    assert far < 40


async def test_sixty_megabytes_each_way_through_walls_stay_out_of_memory(tmp_path: Path) -> None:
    async with walled(tmp_path) as sandbox:
        near, _ = await move_much(sandbox, list, 60 * MEGABYTE)
    assert near < 16
