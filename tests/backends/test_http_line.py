"""Lines over HTTP: the same bytes both ways, whether the connection becomes the line or not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from remote_sandbox_mcp.backends.opensandbox.bridge import Bridge
from remote_sandbox_mcp.backends.opensandbox.line import HttpLine
from remote_sandbox_mcp.backends.outpost.client import NoOutpost
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
def bridge() -> Iterator[Bridge]:
    with Bridge(KEY, "127.0.0.1") as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
async def line(request: pytest.FixtureRequest, bridge: Bridge) -> AsyncIterator[HttpLine]:
    transport, may_upgrade = request.param
    async with httpx.AsyncClient(transport=transport()) as client:
        made = HttpLine(client, address(bridge), {"X-Line-Key": KEY}, may_upgrade=may_upgrade)
        yield made
        made.close()
        await asyncio.gather(*made._tasks, return_exceptions=True)


def address(bridge: Bridge) -> str:
    return f"http://127.0.0.1:{bridge.server_port}/line"


def sleepers(bridge: Bridge) -> list[subprocess.Popen[bytes]]:
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


async def test_nobody_opens_a_line_without_its_key(bridge: Bridge) -> None:
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


async def test_an_upgraded_line_passes_nothing_through_the_bridge(bridge: Bridge) -> None:
    async with httpx.AsyncClient() as client:
        line = HttpLine(client, address(bridge), {"X-Line-Key": KEY})
        await line.start(["sleep", "60"])
        await asyncio.to_thread(wait_until, lambda: sleepers(bridge), what="the program")
        (program,) = sleepers(bridge)
        assert program.stdin is None
        assert program.stdout is None
        program.kill()
        assert await asyncio.wait_for(line.read(), 10) == b""


async def test_lines_that_have_ended_leave_nothing_behind(bridge: Bridge) -> None:
    await asyncio.to_thread(wait_until, lambda: not bridge.lines.programs, what="the programs to be gone")
