"""The line is as slow, as frozen and as broken as it says."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from tests.support.line import HOST, Line, ThreadedLine
from tests.support.pace import at_most
from tests.support.sshd import Sshd, closed_port, silent_port, wait_until


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionResetError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def echo_port() -> AsyncIterator[int]:
    server = await asyncio.start_server(_echo, HOST, 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def _round_trip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    start = time.perf_counter()
    writer.write(b"x")
    await reader.readexactly(1)
    return time.perf_counter() - start


async def _nothing_arrives(reader: asyncio.StreamReader) -> bool:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.1)
    return True


@pytest.mark.parametrize("rtt_s", [0.0, 0.02, 0.1])
async def test_a_round_trip_takes_the_time_that_was_asked_for(echo_port: int, rtt_s: float) -> None:
    async with Line(echo_port, rtt_s) as line:
        reader, writer = await asyncio.open_connection(HOST, line.port)
        trips = [await _round_trip(reader, writer) for _ in range(9)]
        writer.close()
    # The shortest of them: a busy machine makes any of them longer, and nothing may make one shorter.
    assert rtt_s - 0.002 <= min(trips) <= at_most(rtt_s + 0.002)


async def test_opening_costs_two_round_trips_until_the_first_byte(sshd: Sshd) -> None:
    async with Line(sshd.port, rtt_s=0.1) as line:
        assert 0.195 < min([await _time_to_banner(line.port) for _ in range(3)]) < at_most(0.25)


async def _time_to_banner(port: int) -> float:
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        assert (await reader.readline()).startswith(b"SSH-2.0-")
    finally:
        writer.close()
    return time.perf_counter() - start


async def test_bytes_on_their_way_do_not_wait_for_each_other(echo_port: int) -> None:
    data = bytes(range(256)) * 40_000
    async with Line(echo_port, rtt_s=0.1) as line:
        reader, writer = await asyncio.open_connection(HOST, line.port)
        await _round_trip(reader, writer)
        start = time.perf_counter()
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        assert time.perf_counter() - start < at_most(1.0)
        writer.close()


async def test_the_end_of_a_stream_is_passed_on_after_its_bytes(echo_port: int) -> None:
    async with Line(echo_port, rtt_s=0.02) as line:
        reader, writer = await asyncio.open_connection(HOST, line.port)
        writer.write(b"last words")
        writer.write_eof()
        assert await reader.read() == b"last words"
        writer.close()
        await asyncio.to_thread(wait_until, lambda: line.connections == 0, what="both ends to close")


async def test_a_cut_resets_every_connection_and_new_ones_can_be_made(echo_port: int) -> None:
    async with Line(echo_port) as line:
        streams = [await asyncio.open_connection(HOST, line.port) for _ in range(3)]
        for reader, writer in streams:
            await _round_trip(reader, writer)
        assert line.connections == 3
        line.cut()
        for reader, writer in streams:
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            writer.close()
        reader, writer = await asyncio.open_connection(HOST, line.port)
        await _round_trip(reader, writer)
        assert (line.connections, line.total_opened) == (1, 4)
        writer.close()


async def test_a_refusing_line_closes_new_connections_and_keeps_old_ones(echo_port: int) -> None:
    async with Line(echo_port) as line:
        old_reader, old_writer = await asyncio.open_connection(HOST, line.port)
        await _round_trip(old_reader, old_writer)
        line.refuse()
        # The reset may come before the client has seen that it was connected.
        with pytest.raises(ConnectionResetError):
            await _time_to_banner(line.port)
        await _round_trip(old_reader, old_writer)
        assert (line.connections, line.total_opened, line.total_refused) == (1, 1, 1)
        old_writer.close()


async def test_a_frozen_line_keeps_everything_and_delivers_it_when_thawed(echo_port: int) -> None:
    async with Line(echo_port, rtt_s=0.02) as line:
        reader, writer = await asyncio.open_connection(HOST, line.port)
        await _round_trip(reader, writer)
        writer.write(b"before")
        line.freeze()
        writer.write(b" and after")
        new_reader, new_writer = await asyncio.open_connection(HOST, line.port)
        new_writer.write(b"new")
        assert await _nothing_arrives(reader)
        assert await _nothing_arrives(new_reader)
        assert line.connections == 2
        line.thaw()
        assert await reader.readexactly(16) == b"before and after"
        assert await new_reader.readexactly(3) == b"new"
        for each in (writer, new_writer):
            each.close()


async def test_an_end_that_was_frozen_on_its_way_arrives_when_thawed(echo_port: int) -> None:
    async with Line(echo_port, rtt_s=0.1) as line:
        reader, writer = await asyncio.open_connection(HOST, line.port)
        await _round_trip(reader, writer)
        writer.write_eof()
        await asyncio.sleep(0.03)
        line.freeze()
        assert await _nothing_arrives(reader)
        line.thaw()
        assert await reader.read() == b""
        writer.close()


async def test_a_target_that_refuses_is_a_reset() -> None:
    with closed_port() as port:
        async with Line(port) as line:
            with pytest.raises(ConnectionResetError):
                await _time_to_banner(line.port)


def test_a_threaded_line_is_steered_from_a_blocking_test() -> None:
    with silent_port() as port, ThreadedLine(port) as line:
        with socket.create_connection((HOST, line.port), timeout=5) as client:
            wait_until(lambda: line.connections == 1, what="the connection")
            line.freeze()
            line.thaw()
            line.cut()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        line.refuse()
        with pytest.raises(ConnectionResetError), socket.create_connection((HOST, line.port), timeout=5) as client:
            client.recv(1)
        assert (line.connections, line.total_opened, line.total_refused) == (0, 1, 1)
