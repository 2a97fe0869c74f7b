"""A proxy that reaches only the hosts of a list, for a sandbox that has no other network: HTTP, CONNECT and SOCKS5.

It resolves names itself and connects to the address that it has checked, so that an allowed name cannot lead into the
user's private networks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from ....core.errors import Unreachable
from ....core.sandboxes.network import Address, HostRule, ranges, read_rule
from ....local.processes import descriptors
from ....local.waiting import within
from ...stream import carry_both_ways, over_asyncio
from . import kernel
from .enter import READY

MOST_CONNECTIONS = 256
MOST_HEAD = 32 << 10
HEAD_S = 15.0
CONNECT_S = 15.0
MOST_ADDRESSES = 4
MOST_LOOKUPS = 8
IDLE_S = 300.0
CHECK_S = 1.0
PIECE = 1 << 16
# Most programs show the status line of a refusal.
LONGEST_REASON = 300
SOCKS5 = b"\x05"
SOCKS_CONNECT, SOCKS_4, SOCKS_NAME, SOCKS_6 = 1, 1, 3, 4
SOCKS_NOT_ALLOWED, SOCKS_UNREACHABLE, SOCKS_NO_COMMAND, SOCKS_NO_KIND = 2, 4, 7, 8
# Headers for one connection only; a body's length and coding concern the other end.
HOP_BY_HOP = {b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"host", b"upgrade"}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Turned(Exception):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Guard:
    """Decides where a connection may go, and opens it. Raises Turned."""

    def __init__(self, hosts: Iterable[str], private_ranges: Iterable[str], routes: kernel.Routes) -> None:
        self._hosts = tuple(hosts)
        self._rules = tuple(rule for rule in map(read_rule, self._hosts) if rule)
        self._excepted = ranges(private_ranges)
        self._routes = routes

    async def connect(self, host: str, port: int) -> Streams:
        name = host.lower().rstrip(".")
        trouble = "no address"
        for address in (await self.addresses(name, port))[:MOST_ADDRESSES]:
            try:
                return await within(asyncio.open_connection(str(address), port, limit=PIECE), CONNECT_S)
            except (OSError, asyncio.TimeoutError) as problem:
                trouble = getattr(problem, "strerror", "") or "no answer"
        raise Turned(502, f"{name}:{port} could not be reached: {trouble}")

    async def addresses(self, name: str, port: int) -> list[Address]:
        """The addresses that may be reached; never empty."""
        literal = _literal(name)
        if literal is not None:
            found = [literal] if any(rule.allows_address(literal, port) for rule in self._rules) else []
        else:
            is_listed = any(rule.allows_name(name, port) for rule in self._rules)
            found = await _resolve(name, port) if is_listed else []
        if not found:
            raise Turned(403, self._not_listed(name, port))
        allowed = [address for address in found if self._routes.may_reach(address, self._excepted)]
        if not allowed:
            raise Turned(
                403,
                f"{name} leads to {found[0]}, which is of this computer or of a private network, where a sandbox "
                "may not go; its operator can allow it with private_ranges in config.toml",
            )
        return allowed

    def _not_listed(self, name: str, port: int) -> str:
        if any(HostRule(rule.name, rule.range, port).allows_name(name, port) for rule in self._rules):
            return f"port {port} of {name} is not in the list of hosts that this sandbox may reach; write {name}:{port}"
        return f"{name} is not in the list of hosts that this sandbox may reach: {', '.join(self._hosts)}"


def _literal(name: str) -> Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


async def _resolve(name: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        # As bytes: for a str, Python would load its IDNA codec, which no listed name needs.
        found = await within(loop.getaddrinfo(name.encode(), port, type=socket.SOCK_STREAM), CONNECT_S)
    except (OSError, UnicodeError, asyncio.TimeoutError):
        raise Turned(502, f"{name} could not be resolved to an address") from None
    # An address with a zone belongs to a link of this computer.
    addresses = [_literal(str(entry[4][0])) for entry in found]
    return list(dict.fromkeys(address for address in addresses if address is not None))


class Proxy:
    """Serves every connection from inside, at most `MOST_CONNECTIONS` at once, or as many as it has descriptors for."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._open = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        most = min(MOST_CONNECTIONS, descriptors.for_carrier())
        try:
            if self._open > most:
                writer.write(page(503, f"this sandbox has {most} connections already; close some first"))
                return
            await self._serve(reader, writer)
        except (OSError, EOFError, asyncio.TimeoutError):
            # The client has gone, or never sent a request.
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await within(reader.readexactly(1), HEAD_S)
        if first == SOCKS5:
            await self._serve_socks(reader, writer)
            return
        try:
            head = first + await within(_read_head(reader), HEAD_S)
            there, rest, answer = await self._begin(head)
        except Turned as turned:
            writer.write(page(turned.status, str(turned)))
            await writer.drain()
            return
        there[1].write(rest)
        writer.write(answer)
        await tie((reader, writer), there)

    async def _begin(self, head: bytes) -> tuple[Streams, bytes, bytes]:
        """The connection that a request asks for, what is sent ahead on it, and the answer."""
        line, _, fields = head.partition(b"\r\n")
        if b"\n" in fields.replace(b"\r\n", b"") or b"\n" in line:
            raise Turned(400, "a line of the request's head does not end as HTTP wants it")
        method, target, version = _words(line)
        if method == "CONNECT":
            host, port = split_port(target)
            return await self._guard.connect(host, port), b"", b"HTTP/1.1 200 Connection established\r\n\r\n"
        host, port, path = split_url(target)
        shown = f"[{host}]" if ":" in host else host
        authority = shown if port == 80 else f"{shown}:{port}"
        # The allowed host, whatever the request's Host header says; and a single request, so that no other can follow.
        first = f"{method} {path} {version}\r\nHost: {authority}\r\nConnection: close\r\n".encode("latin-1")
        kept = [field for field in fields.split(b"\r\n") if field.partition(b":")[0].strip().lower() not in HOP_BY_HOP]
        return await self._guard.connect(host, port), first + b"\r\n".join(kept), b""

    async def _serve_socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        methods = (await within(reader.readexactly(1), HEAD_S))[0]
        await within(reader.readexactly(methods), HEAD_S)
        # No login: only the sandbox can connect here.
        writer.write(b"\x05\x00")
        _, command, _, kind = await within(reader.readexactly(4), HEAD_S)
        if command != SOCKS_CONNECT or kind not in (SOCKS_4, SOCKS_NAME, SOCKS_6):
            writer.write(_socks_answer(SOCKS_NO_COMMAND if command != SOCKS_CONNECT else SOCKS_NO_KIND))
            return
        host, port = await within(_read_socks_target(reader, kind), HEAD_S)
        try:
            there = await self._guard.connect(host, port)
        except Turned as turned:
            writer.write(_socks_answer(SOCKS_NOT_ALLOWED if turned.status == 403 else SOCKS_UNREACHABLE))
            return
        writer.write(_socks_answer(0))
        await tie((reader, writer), there)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Turned(431, f"the request's head is longer than {MOST_HEAD} bytes") from None


def _words(line: bytes) -> tuple[str, str, str]:
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Turned(400, "this is a proxy for HTTP/1 and SOCKS5, and that was neither")
    return words[0], words[1], words[2]


def split_port(target: str) -> tuple[str, int]:
    """host:port, [address]:port"""
    host, _, port = target.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or not bare.isascii() or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise Turned(400, "CONNECT takes a host and a port, such as example.org:443")
    return bare, int(port)


def split_url(target: str) -> tuple[str, int, str]:
    """Host, port and the rest of a URL."""
    try:
        url = urlsplit(target)
        host, port = url.hostname or "", url.port or 80
    except ValueError:
        host, port = "", 0
    if not host or url.scheme != "http" or "@" in url.netloc or not target.isascii():
        raise Turned(
            400, "this is a proxy: a request needs a whole address, such as http://example.org/; https, CONNECT"
        )
    path = url.path or "/"
    return host, port, f"{path}?{url.query}" if url.query else path


async def _read_socks_target(reader: asyncio.StreamReader, kind: int) -> tuple[str, int]:
    size = {SOCKS_4: 4, SOCKS_6: 16}.get(kind) or (await reader.readexactly(1))[0]
    raw = await reader.readexactly(size)
    host = raw.decode("latin-1") if kind == SOCKS_NAME else str(ipaddress.ip_address(raw))
    return host, struct.unpack("!H", await reader.readexactly(2))[0]


def _socks_answer(code: int) -> bytes:
    return bytes((5, code, 0, SOCKS_4, 0, 0, 0, 0, 0, 0))


def page(status: int, reason: str) -> bytes:
    """An answer with one sentence, also in the status line: programs show that for a refused tunnel."""
    plain = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in reason)
    body = f"{plain}\n".encode()
    head = f"HTTP/1.1 {status} {plain[:LONGEST_REASON]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


async def tie(here: Streams, there: Streams) -> None:
    """Copy until both sides have ended, one is cut, or nothing has moved for `IDLE_S`."""
    with contextlib.suppress(Unreachable):
        await carry_both_ways(over_asyncio(*here, "inside"), over_asyncio(*there, "outside"), idle_s=IDLE_S)


def serve_proxy(listener: int, settings: Mapping[str, Any], line: socket.socket, parent: int) -> None:
    """Serve until the parent ends."""
    guard = Guard(settings["hosts"], settings["private_ranges"], kernel.Routes())
    line.sendall(READY)
    line.close()
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_serve(Proxy(guard), socket.socket(fileno=listener), parent))


async def _serve(proxy: Proxy, listener: socket.socket, parent: int) -> None:
    # Set here: asyncio would import it later, when this process may not read Python's folders any more.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MOST_LOOKUPS))
    listener.setblocking(False)
    await asyncio.start_server(proxy.accept, sock=listener, limit=MOST_HEAD)
    loop, over, end = asyncio.get_running_loop(), asyncio.Event(), kernel.end_of(parent)
    if end is not None:
        loop.add_reader(end, over.set)
    while kernel.lives(parent) and not over.is_set():
        with contextlib.suppress(asyncio.TimeoutError):
            await within(over.wait(), CHECK_S)
