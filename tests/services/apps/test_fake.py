"""Ports of the sandbox for tests."""

from __future__ import annotations

import asyncio

import pytest

from remote_sandbox_mcp.core.errors import BadArgument, Unreachable
from remote_sandbox_mcp.core.sandboxes.port import PortClosed, Stream
from tests.backends.contract.ports import digest_all, pattern_sum, read_exactly, send_all
from tests.support.fakes.sandbox import MOST_UNREAD, FakeSandbox

MEGABYTE = 1 << 20


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        stream.write(data)
        await stream.drain()


async def never(stream: Stream) -> None:
    await asyncio.sleep(3600)


async def test_a_service_answers_at_its_port() -> None:
    sandbox = FakeSandbox()
    sandbox.ports[80] = echo
    stream = await sandbox.connect(80)
    sending = asyncio.ensure_future(send_all(stream, 2 * MEGABYTE))
    assert await digest_all(stream) == (2 * MEGABYTE, pattern_sum(2 * MEGABYTE))
    await sending
    stream.close()


@pytest.mark.parametrize(("port", "problem"), [(81, PortClosed), (0, BadArgument)])
async def test_other_ports_are_closed_or_none(port: int, problem: type[Exception]) -> None:
    sandbox = FakeSandbox()
    with pytest.raises(problem):
        await sandbox.connect(port)


async def test_a_cut_line_ends_what_is_on_it() -> None:
    sandbox = FakeSandbox()
    sandbox.ports[80] = echo
    stream = await sandbox.connect(80)
    stream.write(b"x")
    assert await read_exactly(stream, 1) == b"x"
    sandbox.lose_contact()
    with pytest.raises(Unreachable, match="the line was lost"):
        await stream.read()
    with pytest.raises(Unreachable):
        await stream.drain()
    again = await sandbox.connect(80)
    again.close()
    await sandbox.close()


async def test_who_is_not_read_waits() -> None:
    sandbox = FakeSandbox()
    sandbox.ports[80] = never
    stream = await sandbox.connect(80)
    stream.write(b"x" * MOST_UNREAD)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(stream.drain(), 0.05)
    stream.close()
    await sandbox.close()
