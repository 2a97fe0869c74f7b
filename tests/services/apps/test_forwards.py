"""Forwarded ports: real sockets on this machine, real services behind walls and on machines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from remote_sandbox_mcp.backends import stream as stream_module
from remote_sandbox_mcp.backends.bubblewrap.local import open_local
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.backends.stream import over_asyncio
from remote_sandbox_mcp.core.commands.command import Command, Running
from remote_sandbox_mcp.core.errors import BadArgument, Unreachable, Unsupported
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sandboxes.port import Forward, Stream
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.local.processes import descriptors
from remote_sandbox_mcp.services.apps import forwards as forwards_module
from remote_sandbox_mcp.services.apps.forwards import Forwards
from tests.backends.contract.ports import (
    MEGABYTE,
    PIECE,
    digest_all,
    pattern_sum,
    read_exactly,
    send_all,
    start_service,
)
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.means import require_local
from tests.support.pace import at_most
from tests.support.server import until
from tests.support.sshd import Sshd, free_port
from tests.support.waiting import eventually


def only(*sandboxes: Sandbox) -> Callable[[str], Awaitable[Sandbox]]:
    named = {sandbox.description.name: sandbox for sandbox in sandboxes}

    async def get(name: str) -> Sandbox:
        return named[name]

    return get


@asynccontextmanager
async def forwarding(*sandboxes: Sandbox, allowed: tuple[str, ...] = ("1-65535",)) -> AsyncIterator[Forwards]:
    forwards = Forwards(only(*sandboxes), allowed)
    try:
        yield forwards
    finally:
        await forwards.close()
        for sandbox in sandboxes:
            await sandbox.close()


async def dial(forward: Forward) -> Stream:
    reader, writer = await asyncio.open_connection("127.0.0.1", forward.local_port)
    return over_asyncio(reader, writer, "the forward")


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        stream.write(data)
        await stream.drain()


async def echoed(forward: Forward, text: bytes = b"hello", first: bytes = b"") -> bytes:
    stream = await dial(forward)
    try:
        stream.write(first + text)
        stream.write_eof()
        answer = await read_exactly(stream, len(text))
        assert await stream.read() == b""
        return answer
    finally:
        stream.close()


@pytest.fixture
def fake() -> FakeSandbox:
    sandbox = FakeSandbox()
    sandbox.ports[free_port()] = echo
    return sandbox


def port_of(fake: FakeSandbox) -> int:
    return next(iter(fake.ports))


def listeners(port: int) -> set[str]:
    """The addresses on which this machine listens at a port, as the kernel writes them."""
    lines = "".join(Path(f"/proc/net/{table}").read_text() for table in ("tcp", "tcp6"))
    return {found[1] for found in re.finditer(rf": ([0-9A-F]+):{port:04X} [0-9A-F:]+ 0A ", lines)}


# Decisions


async def test_a_port_is_carried_to_the_same_number_here_if_that_is_free(fake: FakeSandbox) -> None:
    async with forwarding(fake) as forwards:
        forward = await forwards.open("fake", port_of(fake))
        assert forward.local_port == forward.port == port_of(fake)
        assert forward.url == f"http://127.0.0.1:{port_of(fake)}/"
        assert await echoed(forward) == b"hello"


async def test_without_permission_the_system_chooses_the_port(fake: FakeSandbox) -> None:
    """Else an app in a sandbox could take the place of a service that people expect at its port."""
    async with forwarding(fake, allowed=()) as forwards:
        forward = await forwards.open("fake", port_of(fake))
        assert forward.local_port != port_of(fake)
        assert listeners(port_of(fake)) == set()
        assert await echoed(forward) == b"hello"


async def test_a_caller_chooses_only_ports_that_are_allowed(fake: FakeSandbox) -> None:
    wanted = free_port()
    async with forwarding(fake, allowed=("1024-1030",)) as forwards:
        with pytest.raises(BadArgument, match=rf'forward_ports = \["{wanted}"\] under \[server\] in config.toml'):
            await forwards.open("fake", port_of(fake), local_port=wanted)
        assert (listeners(wanted), forwards.list()) == (set(), [])
    async with forwarding(fake, allowed=("1024-1030", str(wanted))) as forwards:
        assert (await forwards.open("fake", port_of(fake), local_port=wanted)).local_port == wanted


async def test_it_listens_on_loopback_alone(fake: FakeSandbox) -> None:
    async with forwarding(fake) as forwards:
        forward = await forwards.open("fake", port_of(fake))
        assert listeners(forward.local_port) == {"0100007F"}
    assert listeners(forward.local_port) == set()


async def test_where_the_number_is_taken_another_one_serves(fake: FakeSandbox) -> None:
    with socket.create_server(("127.0.0.1", port_of(fake))):
        async with forwarding(fake) as forwards:
            forward = await forwards.open("fake", port_of(fake))
            assert forward.local_port != forward.port
            assert await echoed(forward) == b"hello"


async def test_a_port_below_1024_gets_a_number_above(fake: FakeSandbox) -> None:
    fake.ports[80] = echo
    async with forwarding(fake) as forwards:
        assert (await forwards.open("fake", 80)).local_port >= 1024


async def test_a_wanted_number_is_given_or_refused(fake: FakeSandbox) -> None:
    async with forwarding(fake) as forwards:
        wanted = free_port()
        forward = await forwards.open("fake", port_of(fake), local_port=wanted)
        assert forward.local_port == wanted
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BadArgument, match="cannot be used"):
            await forwards.open("fake", port_of(fake), local_port=taken.getsockname()[1])
        assert await echoed(forward) == b"hello"


async def test_all_who_ask_share_one(fake: FakeSandbox) -> None:
    async with forwarding(fake) as forwards:
        opened = await asyncio.gather(*(forwards.open("fake", port_of(fake)) for _ in range(10)))
        assert len({forward.local_port for forward in opened}) == 1
        assert len(forwards.list()) == 1


async def test_another_wanted_number_replaces_it(fake: FakeSandbox) -> None:
    async with forwarding(fake) as forwards:
        first = await forwards.open("fake", port_of(fake))
        second = await forwards.open("fake", port_of(fake), local_port=free_port())
        assert [forward.local_port for forward in forwards.list()] == [second.local_port]
        assert listeners(first.local_port) == set()


async def test_a_port_that_nobody_has_opened_yet_may_be_forwarded(fake: FakeSandbox) -> None:
    async with forwarding(fake) as forwards:
        forward = await forwards.open("fake", 6006)
        # What is started next may want that number on this very machine.
        assert (forward.answers, forward.local_port != 6006) == (False, True)
        fake.ports[6006] = echo
        assert await echoed(forward) == b"hello"


@pytest.mark.parametrize(
    "problem", [Unreachable("unable to open fake: no answer"), Unsupported("fake forwards no ports")], ids=str
)
async def test_what_cannot_be_reached_is_told_at_once(fake: FakeSandbox, problem: Unreachable | Unsupported) -> None:
    async with forwarding(fake) as forwards:
        fake.fail(problem)
        with pytest.raises(type(problem)):
            await forwards.open("fake", port_of(fake))
        assert forwards.list() == []


@pytest.mark.parametrize(("port", "local_port"), [(0, 0), (65536, 0), (80, -1), (80, 65536)])
async def test_numbers_that_are_no_ports_are_refused(fake: FakeSandbox, port: int, local_port: int) -> None:
    async with forwarding(fake) as forwards:
        with pytest.raises(BadArgument, match="from 1 to 65535"):
            await forwards.open("fake", port, local_port=local_port)


async def test_a_connection_that_fails_is_told_in_the_log_and_harms_nobody(
    fake: FakeSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    async with forwarding(fake) as forwards:
        forward = await forwards.open("fake", port_of(fake))
        fake.fail(Unreachable("unable to open fake: no answer"))
        stream = await dial(forward)
        with caplog.at_level(logging.WARNING):
            assert await asyncio.wait_for(end_of(stream), 10)
        stream.close()
        assert "no answer" in caplog.text
        assert "no answer" in forwards.list()[0].trouble
        fake.fail(None)
        assert await echoed(forward) == b"hello"
        assert forwards.list()[0].served == 1


async def end_of(stream: Stream) -> bool:
    try:
        return await stream.read() == b""
    except Unreachable:
        return True


async def test_a_cut_line_ends_a_connection_and_the_next_has_another(fake: FakeSandbox) -> None:
    async with forwarding(fake) as forwards:
        forward = await forwards.open("fake", port_of(fake))
        stream = await dial(forward)
        stream.write(b"x")
        assert await read_exactly(stream, 1) == b"x"
        fake.lose_contact()
        assert await asyncio.wait_for(end_of(stream), 10)
        stream.close()
        assert await echoed(forward) == b"hello"


async def test_closing_says_what_was_closed_and_ends_its_connections() -> None:
    one, two = FakeSandbox(name="one"), FakeSandbox(name="two")
    one.ports = {7001: echo, 7002: echo}
    two.ports = {7001: echo}
    async with forwarding(one, two) as forwards:
        opened = [await forwards.open(name, port) for name, port in (("one", 7001), ("one", 7002), ("two", 7001))]
        streams = [await dial(forward) for forward in opened]
        for stream in streams:
            stream.write(b"x")
            assert await read_exactly(stream, 1) == b"x"
        assert [forward.connections for forward in forwards.list()] == [1, 1, 1]
        assert [closed.port for closed in await forwards.close("one", 7002)] == [7002]
        assert {(left.sandbox, left.port) for left in forwards.list()} == {("one", 7001), ("two", 7001)}
        assert [closed.sandbox for closed in await forwards.close("one")] == ["one"]
        assert [await asyncio.wait_for(end_of(stream), 10) for stream in streams[:2]] == [True, True]
        streams[2].write(b"y")
        assert await read_exactly(streams[2], 1) == b"y"
        assert await forwards.close("nobody") == []
        for stream in streams:
            stream.close()


async def test_a_sandbox_that_does_not_answer_keeps_nobody_from_the_others() -> None:
    one, two = FakeSandbox(name="one"), FakeSandbox(name="two")
    one.delay_s = 3600
    two.ports = {7003: echo}
    async with forwarding(one, two) as forwards:
        waiting = asyncio.ensure_future(forwards.open("one", 7003))
        await asyncio.sleep(0)
        forward = await asyncio.wait_for(forwards.open("two", 7003), 10)
        assert await echoed(forward) == b"hello"
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert [left.sandbox for left in forwards.list()] == ["two"]


# Bounds


async def spoken(forward: Forward) -> Stream:
    """A connection in which something was sent and answered."""
    stream = await dial(forward)
    await speak(stream)
    return stream


async def speak(stream: Stream) -> None:
    stream.write(b"x")
    assert await asyncio.wait_for(read_exactly(stream, 1), 10) == b"x"


async def test_the_longest_silent_connection_goes_for_a_new_one(
    fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwards_module, "MOST_AT_A_PORT", 3)
    async with forwarding(fake) as forwards:
        forward = await forwards.open("fake", port_of(fake))
        first, second, third = [await spoken(forward) for _ in range(3)]
        await speak(first)
        fourth = await spoken(forward)
        assert await asyncio.wait_for(end_of(second), 10)
        for stream in (first, third, fourth):
            await speak(stream)
            stream.close()
        second.close()


async def test_a_crowd_at_one_port_takes_nothing_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "for_forwards", lambda: 4)
    one, two = FakeSandbox(name="one"), FakeSandbox(name="two")
    one.ports[7003] = two.ports[7003] = echo
    async with forwarding(one, two) as forwards:
        quiet, crowded = await forwards.open("one", 7003), await forwards.open("two", 7003)
        kept = await spoken(quiet)
        streams = [await spoken(crowded) for _ in range(12)]
        assert [forward.connections for forward in forwards.list()] == [1, 3]
        await speak(kept)
        for stream in (kept, *streams):
            stream.close()


HELD: list[Stream] = []


async def hold(stream: Stream) -> None:
    """Read all that comes, and never close: many programs are like that."""
    HELD.append(stream)
    while await stream.read():
        pass
    await asyncio.sleep(3600)


async def drip(stream: Stream) -> None:
    """Answer after the client's end, a little at a time."""
    while await stream.read():
        pass
    for _ in range(10):
        await asyncio.sleep(0.1)
        stream.write(b"x")
        await stream.drain()


async def test_a_half_closed_connection_in_which_nothing_moves_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "HALF_CLOSED_S", 0.3)
    fake = FakeSandbox()
    fake.ports[7003] = hold
    async with forwarding(fake) as forwards:
        forward = await forwards.open("fake", 7003)
        half, whole = await dial(forward), await dial(forward)
        half.write(b"x")
        half.write_eof()
        assert await asyncio.wait_for(end_of(half), 10)
        await until(lambda: forwards.list()[0].connections == 1, "the end of the half-closed one")
        # The other has said nothing either, but may yet.
        whole.write(b"x")
        await whole.drain()
        assert forwards.list()[0].connections == 1
        half.close()
        whole.close()


async def test_a_half_closed_connection_that_still_moves_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "HALF_CLOSED_S", 0.5)
    fake = FakeSandbox()
    fake.ports[7003] = drip
    async with forwarding(fake) as forwards:
        stream = await dial(await forwards.open("fake", 7003))
        stream.write(b"GET / HTTP/1.0\r\n\r\n")
        stream.write_eof()
        assert await read_exactly(stream, 10) == b"x" * 10
        stream.close()


async def test_a_port_goes_on_after_a_moment_without_descriptors(
    fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwards_module, "RETRY_S", 0.05)
    async with forwarding(fake) as forwards:
        forward = await forwards.open("fake", port_of(fake))
        waiting = socket.socket()
        waiting.setblocking(False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with contextlib.suppress(BlockingIOError):
                waiting.connect(("127.0.0.1", forward.local_port))
            await until(lambda: "Too many open files" in forwards.list()[0].trouble, "the kernel's refusal")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            waiting.close()
        assert await echoed(forward) == b"hello"


# Real services


@pytest.fixture
async def walled(tmp_path: Path) -> AsyncIterator[OutpostSandbox]:
    require_local()
    sandbox = await open_local(LocalPlace(), tmp_path)
    yield sandbox
    await sandbox.close()


async def serve_http(sandbox: Sandbox, port: int) -> str:
    await sandbox.write("~/site/hello.txt", b"hello\n")
    script = f"cd ~/site && exec /usr/bin/python3 -m http.server --bind 127.0.0.1 {port}"
    seen = await sandbox.run(Command(script, timeout_s=300), patience_s=0.05)
    assert isinstance(seen, Running)
    return seen.run_id


async def test_a_web_server_behind_walls_opens_here(walled: OutpostSandbox) -> None:
    async with forwarding(walled) as forwards:
        port = free_port()
        await serve_http(walled, port)
        forward = await forwards.open("local", port)
        async with httpx2.AsyncClient(trust_env=False) as client:

            async def ask() -> str:
                try:
                    return (await client.get(f"{forward.url}hello.txt")).text
                except httpx2.HTTPError as problem:
                    return str(problem)

            await eventually(ask, lambda text: text == "hello\n", "the web server")
            answers = await asyncio.gather(*(client.get(f"{forward.url}hello.txt") for _ in range(50)))
            assert {answer.text for answer in answers} == {"hello\n"}
            assert (await client.get(f"{forward.url}none")).status_code == 404


@pytest.mark.parametrize("where", ["walled", "machine"])
async def test_any_protocol_passes_in_any_amount(
    where: str, walled: OutpostSandbox, sshd: Sshd, tmp_path: Path
) -> None:
    sandbox = walled if where == "walled" else await open_machine(sshd.machine(), tmp_path / "known_hosts")
    size = 40 * MEGABYTE
    async with forwarding(sandbox) as forwards:
        port, run_id = await start_service(sandbox)
        forward = await forwards.open(sandbox.description.name, port)
        # As after the upgrade of a websocket: both talk when they like.
        talk = await dial(forward)
        talk.write(b"echo\n")
        for number in range(50):
            talk.write(b"%03d" % number)
            assert await read_exactly(talk, 3) == b"%03d" % number
        up, down = await dial(forward), await dial(forward)
        up.write(b"sum\n")
        down.write(b"give %d\n" % size)
        sending = asyncio.ensure_future(send_all(up, size))
        assert await digest_all(down) == (size, pattern_sum(size))
        await sending
        summed = f"{size} {pattern_sum(size)}".encode()
        assert await read_exactly(up, len(summed)) == summed
        assert await up.read() == b""
        answers = await asyncio.gather(*(echoed(forward, b"%02d" % number, b"echo\n") for number in range(50)))
        assert answers == [b"%02d" % number for number in range(50)]
        for stream in (talk, up, down):
            stream.close()
        await sandbox.stop(run_id)


async def test_a_slow_reader_here_makes_its_writer_there_wait_and_nobody_else(walled: OutpostSandbox) -> None:
    async with forwarding(walled) as forwards:
        port, run_id = await start_service(walled)
        forward = await forwards.open("local", port)
        slow = await dial(forward)
        slow.write(b"give %d\n" % (64 * MEGABYTE))
        assert await read_exactly(slow, 256) == PIECE[:256]
        assert await echoed(forward, b"quick", b"echo\n") == b"quick"
        slow.close()

        async def left() -> int:
            return forwards.list()[0].connections

        await eventually(left, lambda number: number == 0, "the connections to end")
        await walled.stop(run_id)


async def test_a_line_that_is_cut_is_opened_by_the_next_connection(sshd: Sshd, tmp_path: Path) -> None:
    machine = await open_machine(sshd.machine(), tmp_path / "known_hosts")
    async with forwarding(machine) as forwards:
        port, run_id = await start_service(machine)
        forward = await forwards.open(machine.description.name, port)
        assert await echoed(forward, first=b"echo\n") == b"hello"
        sshd.kill_sessions()
        begun = time.monotonic()
        assert await echoed(forward, first=b"echo\n") == b"hello"
        assert time.monotonic() - begun < at_most(10)
        await machine.stop(run_id)


async def test_a_machine_that_is_this_one_is_never_carried_to_itself(sshd: Sshd, tmp_path: Path) -> None:
    machine = await open_machine(sshd.machine(), tmp_path / "known_hosts")
    async with forwarding(machine) as forwards:
        port = free_port()
        with pytest.raises(BadArgument, match="cannot be used"):
            await forwards.open(machine.description.name, port, local_port=port)
        assert listeners(port) == set()
        # On the other loopback it is there, and the number is free on this one.
        port, run_id = await start_service(machine, "::1")
        forward = await forwards.open(machine.description.name, port)
        assert forward.local_port != port
        assert await echoed(forward, first=b"echo\n") == b"hello"
        await machine.stop(run_id)
