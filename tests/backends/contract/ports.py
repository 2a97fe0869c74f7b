"""What the ports of every Sandbox keep to."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator

import pytest

from remote_sandbox_mcp.core.commands.command import Command, Running
from remote_sandbox_mcp.core.errors import BadArgument, Unreachable
from remote_sandbox_mcp.core.sandboxes.port import PortClosed, Stream
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.support.waiting import eventually

from .basics import Basics, read_pid, said

# By its full path: it is on no machine's PATH that is said to have none.
PYTHON = "/usr/bin/python3"
MEGABYTE = 1 << 20
PIECE = bytes(range(256)) * 256

# Each connection says in its first line what it wants: everything back, all taken and summed up, or so many bytes.
SERVICE = """
import hashlib, os, socket, sys, threading

PIECE = bytes(range(256)) * 256

def serve(connection):
    with connection, connection.makefile("rb") as words:
        verb = words.readline().split()
        if verb == [b"echo"]:
            while True:
                data = words.read1(65536)
                if not data:
                    break
                connection.sendall(data)
        elif verb == [b"sum"]:
            total, seen = hashlib.sha256(), 0
            while True:
                data = words.read1(65536)
                if not data:
                    break
                total.update(data)
                seen += len(data)
            connection.sendall(b"%d %s" % (seen, total.hexdigest().encode()))
        elif verb[:1] == [b"give"]:
            left = int(verb[1])
            while left:
                part = PIECE[:left]
                connection.sendall(part)
                left -= len(part)

def answer(connection):
    try:
        serve(connection)
    except OSError:
        pass

listener = socket.socket(socket.AF_INET6 if sys.argv[1] == "::1" else socket.AF_INET)
listener.bind((sys.argv[1], 0))
listener.listen(128)
with open(sys.argv[2] + ".new", "w") as file:
    file.write("%d\\n" % listener.getsockname()[1])
os.rename(sys.argv[2] + ".new", sys.argv[2])
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"""


def pattern_sum(size: int) -> str:
    """The digest of what `give` gives."""
    total = hashlib.sha256()
    for _ in range(size // len(PIECE)):
        total.update(PIECE)
    total.update(PIECE[: size % len(PIECE)])
    return total.hexdigest()


async def start_service(sandbox: Sandbox, host: str = "127.0.0.1") -> tuple[int, str]:
    """Start the service behind the sandbox's walls: its port, and the run that it is."""
    name = f"service-{secrets.token_hex(4)}"
    await sandbox.write(f"~/{name}.py", SERVICE.encode())
    script = f"cd; exec {PYTHON} {name}.py {host} {name}.port"
    seen = await sandbox.run(Command(script, timeout_s=300), patience_s=0.05)
    assert isinstance(seen, Running)
    # A number in a file: it is read as a pid is.
    return await read_pid(sandbox, f"~/{name}.port"), seen.run_id


async def ask(sandbox: Sandbox, port: int, words: bytes) -> Stream:
    stream = await sandbox.connect(port)
    stream.write(words)
    await stream.drain()
    return stream


async def read_exactly(stream: Stream, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        data = await stream.read(size - len(parts))
        assert data, f"the end after {len(parts)} bytes"
        parts += data
    return parts


async def digest_all(stream: Stream) -> tuple[int, str]:
    """How much comes until the end, and what it is."""
    total, size = hashlib.sha256(), 0
    while data := await stream.read():
        total.update(data)
        size += len(data)
    return size, total.hexdigest()


async def send_all(stream: Stream, size: int) -> None:
    while size:
        part = PIECE[:size]
        stream.write(part)
        await stream.drain()
        size -= len(part)
    stream.write_eof()


class PortContract(Basics):
    """A service in the sandbox is reached through its port, by any number at once."""

    @pytest.fixture(scope="class")
    @classmethod
    async def port(cls, sandbox: Sandbox) -> AsyncIterator[int]:
        port, run_id = await start_service(sandbox)
        yield port
        await sandbox.stop(run_id)

    async def test_bytes_go_both_ways_as_they_come(self, sandbox: Sandbox, port: int) -> None:
        stream = await ask(sandbox, port, b"echo\n")
        for number in range(100):
            stream.write(b"%06d" % number)
            await stream.drain()
            assert await read_exactly(stream, 6) == b"%06d" % number
        stream.close()

    async def test_who_has_said_its_last_still_hears(self, sandbox: Sandbox, port: int) -> None:
        stream = await ask(sandbox, port, b"sum\nall of it")
        stream.write_eof()
        answer = await read_exactly(stream, 66)
        assert answer == b"9 " + hashlib.sha256(b"all of it").hexdigest().encode()
        assert await stream.read() == b""
        stream.close()

    async def test_what_the_other_side_sends_last_is_the_end(self, sandbox: Sandbox, port: int) -> None:
        stream = await ask(sandbox, port, b"give 3\n")
        assert await read_exactly(stream, 3) == PIECE[:3]
        assert await stream.read() == b""
        stream.close()

    async def test_much_arrives_whole_both_ways_at_once(self, sandbox: Sandbox, port: int) -> None:
        size = 8 * MEGABYTE + 17
        stream = await ask(sandbox, port, b"echo\n")
        sending = asyncio.ensure_future(send_all(stream, size))
        assert await digest_all(stream) == (size, pattern_sum(size))
        await sending
        stream.close()

    async def test_fifty_at_once(self, sandbox: Sandbox, port: int) -> None:
        async def one(number: int) -> bytes:
            stream = await ask(sandbox, port, b"echo\n")
            stream.write(b"%04d" % number)
            stream.write_eof()
            answer = await read_exactly(stream, 4)
            assert await stream.read() == b""
            stream.close()
            return answer

        answers = await asyncio.gather(*(one(number) for number in range(50)))
        assert answers == [b"%04d" % number for number in range(50)]

    async def test_a_slow_reader_delays_nobody_else(self, sandbox: Sandbox, port: int) -> None:
        size = 24 * MEGABYTE
        slow = [await ask(sandbox, port, b"give %d\n" % size) for _ in range(3)]
        assert await read_exactly(slow[0], 10) == PIECE[:10]
        stream = await asyncio.wait_for(ask(sandbox, port, b"echo\n"), 10)
        stream.write(b"quick")
        assert await asyncio.wait_for(read_exactly(stream, 5), 10) == b"quick"
        assert await asyncio.wait_for(said(sandbox, "echo quick"), 10) == b"quick\n"
        assert await digest_all(slow[1]) == (size, pattern_sum(size))
        for each in (*slow, stream):
            each.close()

    async def test_a_port_where_nobody_listens_is_closed(self, sandbox: Sandbox) -> None:
        with pytest.raises(PortClosed, match=r"nothing accepts connections at port 1\b"):
            await sandbox.connect(1)

    @pytest.mark.parametrize("number", [0, -1, 65536])
    async def test_a_number_that_is_no_port_is_refused(self, sandbox: Sandbox, number: int) -> None:
        with pytest.raises(BadArgument, match="from 1 to 65535"):
            await sandbox.connect(number)

    async def test_a_service_that_dies_ends_its_connections_and_its_port(self, sandbox: Sandbox) -> None:
        port, run_id = await start_service(sandbox)
        stream = await ask(sandbox, port, b"echo\nx")
        assert await read_exactly(stream, 1) == b"x"
        await sandbox.stop(run_id)
        try:
            assert await asyncio.wait_for(stream.read(), 10) == b""
        except Unreachable:
            # As a connection that was reset.
            pass
        stream.close()
        with pytest.raises(PortClosed):
            await sandbox.connect(port)

    async def test_a_service_on_the_other_loopback_is_found(self, sandbox: Sandbox) -> None:
        port, run_id = await start_service(sandbox, "::1")
        stream = await ask(sandbox, port, b"give 2\n")
        assert await read_exactly(stream, 2) == PIECE[:2]
        stream.close()
        await sandbox.stop(run_id)

    async def test_what_is_closed_here_ends_there(self, sandbox: Sandbox, port: int) -> None:
        script = f"grep -c ': 0100007F:{port:04X} .* 01 ' /proc/net/tcp || true"
        streams = [await ask(sandbox, port, b"echo\n") for _ in range(5)]

        async def count() -> int:
            return int(await said(sandbox, script))

        assert await count() >= 5
        for stream in streams:
            stream.close()
        await eventually(count, lambda number: number == 0, "the connections to end")
