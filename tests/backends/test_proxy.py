"""The proxy that holds a list of hosts, in this process: what it carries on, what it turns back, and its bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from ipaddress import ip_address

import pytest

from remote_sandbox_mcp.backends.bubblewrap.network import proxy
from remote_sandbox_mcp.backends.bubblewrap.network.kernel import Routes
from remote_sandbox_mcp.backends.bubblewrap.network.proxy import Guard, Proxy, Turned
from remote_sandbox_mcp.core.sandboxes.network import Address

HERE = "127.0.0.1"


@asynccontextmanager
async def serving(handle: Callable[..., Awaitable[None]], limit: int = proxy.MOST_HEAD) -> AsyncIterator[int]:
    server = await asyncio.start_server(handle, HERE, 0, limit=limit)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Stands for a host: tells what it was asked."""
    with suppress(EOFError):
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + asked)
    writer.close()


@asynccontextmanager
async def listed(*hosts: str) -> AsyncIterator[tuple[int, int]]:
    """A proxy for a host of this machine, which the operator has allowed, and the host's port."""
    async with serving(answer) as port:
        with closing(Routes()) as routes:
            guard = Guard([host.format(port=port) for host in hosts], [HERE], routes)
            async with serving(Proxy(guard).accept) as at:
                yield at, port


async def ask(at: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(HERE, at)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


async def test_a_request_names_the_host_that_was_checked_and_no_other_can_follow() -> None:
    async with listed(f"{HERE}:{{port}}") as (at, port):
        request = f"GET http://{HERE}:{port}/a?b=1 HTTP/1.1\r\nHost: fronted.example.org\r\nProxy-Authorization: x\r\n"
        said = await ask(at, f"{request}Connection: keep-alive\r\nX-Mine: 1\r\n\r\n".encode())
    assert said.endswith(
        f"GET /a?b=1 HTTP/1.1\r\nHost: {HERE}:{port}\r\nConnection: close\r\nX-Mine: 1\r\n\r\n".encode()
    )


TURNED = {
    "a page, not a proxy": (b"GET / HTTP/1.1\r\n\r\n", b"400", b"this is a proxy"),
    "a page behind TLS": (b"GET https://pypi.org/ HTTP/1.1\r\n\r\n", b"400", b"CONNECT"),
    "a tunnel without a port": (b"CONNECT pypi.org HTTP/1.1\r\n\r\n", b"400", b"host and a port"),
    "a user": (b"GET http://user@pypi.org/ HTTP/1.1\r\n\r\n", b"400", b"whole address"),
    "no HTTP": (b"HELO pypi.org\r\n\r\n", b"400", b"neither"),
    "a line within a line": (b"GET http://pypi.org/ HTTP/1.1\r\nA: b\nHost: c\r\n\r\n", b"400", b"does not end"),
    "a head without end": (b"GET http://pypi.org/ HTTP/1.1\r\nA: " + b"x" * 40_000, b"431", b"longer than"),
    "not listed": (b"CONNECT example.net:443 HTTP/1.1\r\n\r\n", b"403", b"example.net is not in the list"),
    "loopback by another name": (b"CONNECT 2130706433:80 HTTP/1.1\r\n\r\n", b"403", b"not in the list"),
    "loopback, version 6": (b"CONNECT [::1]:80 HTTP/1.1\r\n\r\n", b"403", b"::1 is not in the list"),
    "listed, but of this machine": (b"CONNECT [::ffff:127.0.0.2]:80 HTTP/1.1\r\n\r\n", b"403", b"private_ranges"),
}


@pytest.mark.parametrize(("request_", "status", "words"), TURNED.values(), ids=TURNED.keys())
async def test_a_refused_request_gets_a_sentence(request_: bytes, status: bytes, words: bytes) -> None:
    async with listed("pypi.org", "::ffff:127.0.0.2") as (at, _):
        said = await ask(at, request_)
    assert said.startswith(b"HTTP/1.1 " + status)
    # In the first line too, which is what pip shows.
    assert words in said.partition(b"\r\n")[0]
    assert words in said.rpartition(b"\r\n")[2]


async def test_a_name_that_leads_elsewhere_the_second_time_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def resolve(name: str, port: int) -> list[Address]:
        asked.append(name)
        return [ip_address("10.0.0.1"), ip_address("192.168.0.1"), ip_address(HERE)]

    monkeypatch.setattr(proxy, "_resolve", resolve)
    async with listed("rebound.example.org:{port}") as (at, port):
        said = await ask(at, f"GET http://Rebound.example.org.:{port}/ HTTP/1.1\r\n\r\n".encode())
    assert b"200 OK" in said
    assert asked == ["rebound.example.org"]


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "127.0.0.1", "::1", "fe80::1", "::ffff:10.0.0.1"])
async def test_a_listed_name_that_leads_to_the_users_networks_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    async def resolve(name: str, port: int) -> list[Address]:
        return [ip_address(address)]

    monkeypatch.setattr(proxy, "_resolve", resolve)
    with closing(Routes()) as routes, pytest.raises(Turned, match="private network") as caught:
        await Guard(["pypi.org"], [], routes).connect("pypi.org", 443)
    assert caught.value.status == 403


async def test_the_number_of_connections_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MOST_CONNECTIONS", 1)
    async with listed("pypi.org") as (at, _):
        _, first = await asyncio.open_connection(HERE, at)
        assert (await ask(at, b"")).startswith(b"HTTP/1.1 503 this sandbox has 1 connections already")
        first.close()


async def test_a_client_that_sends_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "HEAD_S", 0.05)
    async with listed("pypi.org") as (at, _):
        assert await ask(at, b"GET http://pypi") == b""


async def test_a_connection_in_which_nothing_moves_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "IDLE_S", 0.1)
    async with listed(f"{HERE}:{{port}}") as (at, port):
        said = await ask(at, f"CONNECT {HERE}:{port} HTTP/1.1\r\n\r\n".encode())
    assert said == b"HTTP/1.1 200 Connection established\r\n\r\n"


SOCKS = {
    "a name": (b"\x03\x09localhost\x00\x50", 2),
    "an address": (b"\x01\x7f\x00\x00\x01\x00\x50", 2),
    "an address of version 6": (b"\x04" + b"\0" * 15 + b"\x01\x00\x50", 2),
    "another kind": (b"\x09", 8),
}


@pytest.mark.parametrize(("target", "code"), SOCKS.values(), ids=SOCKS.keys())
async def test_socks_refuses_what_is_not_listed(target: bytes, code: int) -> None:
    async with listed("pypi.org") as (at, _):
        said = await ask(at, b"\x05\x01\x00" + b"\x05\x01\x00" + target)
    assert said[:4] == bytes((5, 0, 5, code))


async def test_socks_refuses_to_bind() -> None:
    async with listed("pypi.org") as (at, _):
        said = await ask(at, b"\x05\x01\x00" + b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50")
    assert said[:4] == bytes((5, 0, 5, 7))
