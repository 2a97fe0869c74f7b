"""Lines over HTTP: the same bytes both ways, whether the connection becomes the line or not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from remote_sandbox_mcp.backends.link.client import NoOutpost
from remote_sandbox_mcp.backends.opensandbox import container as opened
from remote_sandbox_mcp.backends.opensandbox import transport
from remote_sandbox_mcp.backends.opensandbox.http_line import HttpLine
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, Platform
from remote_sandbox_mcp.far.http_bridge import PROTOCOL, BridgeServer
from tests.support.sshd import wait_until

KEY = "key-of-the-line"
LARGE = os.urandom(9_000_000)


class WithoutUpgrades(httpx.AsyncHTTPTransport):
    """A proxy on the way that knows requests and answers alone, and leaves out what it does not know."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers.pop("Upgrade", None)
        request.headers["Connection"] = "keep-alive"
        return await super().handle_async_request(request)


class AgainstUpgrades(httpx.AsyncHTTPTransport):
    """A proxy on the way that refuses what it does not know."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if "Upgrade" in request.headers:
            return httpx.Response(400, request=request)
        return await super().handle_async_request(request)


WAYS: dict[str, tuple[type[httpx.AsyncHTTPTransport], bool]] = {
    "upgraded": (httpx.AsyncHTTPTransport, True),
    "passed over": (WithoutUpgrades, True),
    "refused": (AgainstUpgrades, True),
    "never asked": (httpx.AsyncHTTPTransport, False),
}


@pytest.fixture(scope="module")
def bridge() -> Iterator[BridgeServer]:
    with BridgeServer(KEY, "127.0.0.1") as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
async def line(request: pytest.FixtureRequest, bridge: BridgeServer) -> AsyncIterator[HttpLine]:
    transport, may_upgrade = request.param
    async with httpx.AsyncClient(transport=transport()) as client:
        made = HttpLine(client, address(bridge), {"X-Line-Key": KEY}, may_upgrade=may_upgrade)
        yield made
        made.close()
        await asyncio.gather(*made._tasks, return_exceptions=True)


def address(bridge: BridgeServer) -> str:
    return f"http://127.0.0.1:{bridge.server_port}/line"


def sleepers(bridge: BridgeServer) -> list[subprocess.Popen[bytes]]:
    return [program for program in list(bridge.lines.programs.values()) if program.args == ["sleep", "60"]]


async def read_exactly(line: HttpLine, size: int) -> bytes:
    got = bytearray()
    while len(got) < size and (data := await line.read()):
        got += data
    return bytes(got)


async def test_what_is_written_comes_back_in_its_order(line: HttpLine) -> None:
    await line.start(["cat"])
    reading = asyncio.create_task(read_exactly(line, len(LARGE)))
    for at in range(0, len(LARGE), 77_777):
        line.write(LARGE[at : at + 77_777])
        await line.drain()
    assert await asyncio.wait_for(reading, 20) == LARGE


async def test_the_end_of_the_program_is_the_end_of_the_line(line: HttpLine) -> None:
    await line.start(["sh", "-c", "echo last; echo words >&2"])
    assert await asyncio.wait_for(read_exactly(line, 1 << 20), 10) == b"last\nwords\n"
    assert await line.read() == b""


async def test_the_program_finds_the_end_of_its_input_when_the_line_is_closed(line: HttpLine, tmp_path: Path) -> None:
    await line.start(["sh", "-c", 'cat >"$1/heard"; echo >"$1/ended"', "sh", str(tmp_path)])
    heard = tmp_path / "heard"
    line.write(b"hello")
    await asyncio.to_thread(wait_until, lambda: heard.exists() and heard.read_bytes() == b"hello", what="the word")
    line.close()
    await asyncio.to_thread(wait_until, (tmp_path / "ended").exists, what="the end of the program")


async def test_words_of_any_kind_reach_the_program(line: HttpLine) -> None:
    words = ["a b", "'\"\\", "é雪", "", "x\ny"]
    await line.start(["printf", "[%s]", *words])
    said = await read_exactly(line, 1 << 20)
    assert said.decode() == "".join(f"[{word}]" for word in words)


async def test_a_line_is_not_opened_without_the_key(bridge: BridgeServer) -> None:
    async with httpx.AsyncClient() as client:
        line = HttpLine(client, address(bridge), {"X-Line-Key": "another"})
        with pytest.raises(NoOutpost):
            await asyncio.wait_for(line.start(["true"]), 10)


@pytest.mark.parametrize("said", [b"../../sandboxes/sb-1/pause\n", b"", b"x" * 100, b"\xff\n", b"-1\n"], ids=repr)
async def test_a_bridge_cannot_lead_requests_elsewhere(said: bytes) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, content=said)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        line = HttpLine(client, "http://platform/proxy/1/line", {"X-Line-Key": KEY})
        with pytest.raises(NoOutpost):
            await asyncio.wait_for(line.start(["true"]), 10)
    assert asked == ["/proxy/1/line"]


async def pretend_to_switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
    """A proxy that answers an upgrade with 101 and passes nothing on; other requests go to the bridge."""
    writers = [writer]
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"\r\nupgrade:" in head.lower():
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
            await reader.read()
        else:
            beyond, out = await asyncio.open_connection("127.0.0.1", target)
            writers.append(out)
            out.write(head)
            await asyncio.gather(pour(reader, out), pour(beyond, writer))
    finally:
        await end(*writers)


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def end(*writers: asyncio.StreamWriter) -> None:
    """Closed, and gone."""
    for writer in writers:
        writer.transport.abort()
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_a_proxy_that_falsely_claims_an_upgrade_is_remembered_and_avoided(
    bridge: BridgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "UPGRADED_S", 0.3)
    asked: list[str] = []

    async def note(request: httpx.Request) -> None:
        asked.append(request.headers.get("Upgrade", "plain") if request.url.path == "/line" else "part")

    async def no_reason(disposable: Disposable) -> None:
        return None

    proxies: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(pretend_to_switch(reader, writer, bridge.server_port))
        proxies.add(task)
        task.add_done_callback(proxies.discard)

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    async with httpx.AsyncClient(event_hooks={"request": [note]}) as client:
        link = SimpleNamespace(
            client=client, platform=Platform(server_url="http://x", use_server_proxy=False), why_not=no_reason
        )
        way = opened.BridgeWay(link, Disposable(id="sb-1", provider="opensandbox"))  # type: ignore[arg-type]
        way._address = (f"http://127.0.0.1:{port}", {"X-Line-Key": KEY})
        for _ in range(2):
            lane = await asyncio.wait_for(way.lane(), 15)
            assert (await lane.begin({"verb": "look", "path": "/"})).end["kind"] == "dir"
            await lane.close()
    proxy.close()
    tasks = list(proxies)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [way for way in asked if way != "part"] == [PROTOCOL, "plain", "plain"]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n" + b"9" * 100_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n1\n\r\nffffffff\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n1\n",
        b"HTTP/1.1 999 \r\n\r\n",
        b"\xff\xff\xff",
        b"",
    ],
    ids=["endless number", "a piece without end", "early end", "compressed", "no status", "no HTTP", "nothing"],
)
async def test_whatever_a_bridge_answers_a_line_ends_in_a_sentence(answer: bytes) -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(lie, "127.0.0.1", 0)
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/line"
        line = HttpLine(client, url, {"X-Line-Key": KEY})
        with contextlib.suppress(NoOutpost):
            await asyncio.wait_for(line.start(["true"]), 10)
            while await asyncio.wait_for(line.read(), 10):
                pass
        line.close()
        await asyncio.gather(*line._tasks, return_exceptions=True)
    server.close()


async def test_a_receipt_without_end_ends_the_line() -> None:
    """What is answered to a part that was sent is nothing; who answers a gigabyte is not listened to."""
    told = 0

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal told
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if b"/line/1 " in head:
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
                    told += 0x10000
                    await writer.drain()
        else:
            writer.write(b"2\r\n1\n\r\n")
            await reader.read()
        writer.close()

    server = await asyncio.start_server(lie, "127.0.0.1", 0)
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/line"
        line = HttpLine(client, url, {"X-Line-Key": KEY}, may_upgrade=False)
        await asyncio.wait_for(line.start(["true"]), 10)
        line.write(b"hello")
        assert await asyncio.wait_for(line.read(), 10) == b""
        await asyncio.gather(*line._tasks, return_exceptions=True)
    server.close()
    assert told < 16 << 20


@pytest.mark.parametrize("headers", [b"", b"Content-Encoding: gzip\r\n"], ids=["endless", "compressed"])
async def test_an_answer_of_the_platform_has_bounds(headers: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_FIELDS_BYTES", 1 << 20)

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + headers + b"Transfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(200):
                writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(lie, "127.0.0.1", 0)
    async with httpx.AsyncClient(transport=transport.BoundedTransport("127.0.0.1")) as client:
        with pytest.raises(httpx.RemoteProtocolError, match=r"no end|compressed"):
            await client.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    server.close()


async def test_an_upgraded_line_passes_nothing_through_the_bridge(bridge: BridgeServer) -> None:
    async with httpx.AsyncClient() as client:
        line = HttpLine(client, address(bridge), {"X-Line-Key": KEY})
        await line.start(["sleep", "60"])
        await asyncio.to_thread(wait_until, lambda: sleepers(bridge), what="the program")
        (program,) = sleepers(bridge)
        assert program.stdin is None
        assert program.stdout is None
        program.kill()
        assert await asyncio.wait_for(line.read(), 10) == b""


async def test_lines_that_have_ended_leave_nothing_behind(bridge: BridgeServer) -> None:
    await asyncio.to_thread(wait_until, lambda: not bridge.lines.programs, what="the programs to be gone")
