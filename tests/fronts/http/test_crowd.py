"""Crowds of unfinished requests, on real sockets: the owner of the key is answered all the same."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.fronts.http import connections, serve
from remote_sandbox_mcp.fronts.http.gate import HttpGate, Receive, Scope, Send
from remote_sandbox_mcp.fronts.http.listener import Terms, listen
from tests.fronts.http.conftest import Service, service
from tests.support.hubs import hub_pid
from tests.support.pace import at_most

CROWD = 1050
FEW = 256
SOON_S = 5.0
HEAD = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with as many file descriptors as most systems give."""
    with service(tmp_path_factory.mktemp("http")) as running:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.prlimit(hub_pid(running.home), resource.RLIMIT_NOFILE, (1024, hard))
        yield running


@contextmanager
def room_for(files: int) -> Iterator[None]:
    """So many open files for this process, which plays all the strangers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, files + 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def crowd(port: int, first: str, later: str) -> Iterator[None]:
    with room_for(CROWD), ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(CROWD)]
        for text in (first, later):
            for line in lines:
                send(line, text)
        yield


def send(line: socket.socket, text: str) -> None:
    try:
        line.sendall(text.encode())
    except OSError:
        # It was ended, which is what the server is for.
        pass


@pytest.mark.parametrize(
    ("first", "later"),
    [
        pytest.param("POST /mcp HTTP/1.1\r\nHost: localhost\r\n", "", id="half a head"),
        pytest.param("POST /mcp HTTP/1.1\r\n", "X-A: b\r\n", id="a head that drips"),
        pytest.param("", "", id="nothing"),
        pytest.param(f"{HEAD}\r\n{{", "", id="half a body without the key"),
        pytest.param(f"{HEAD}X-API-Key: wrong\r\n\r\n{{", " ", id="a slow body with a wrong key"),
        pytest.param(f"{HEAD}X-API-Key: KEY\r\n\r\n{{", "", id="half a body with the key"),
        pytest.param(f"{HEAD}X-API-Key: KEY\r\n\r\n{{", " ", id="a slow body with the key"),
    ],
)
def test_the_owner_of_the_key_gets_in(served: Service, first: str, later: str) -> None:
    with crowd(served.port, first.replace("KEY", served.key), later):
        begun = time.monotonic()
        status, _ = served.ask(X_API_Key=served.key, Content_Type="application/json")
        assert (status, time.monotonic() - begun < at_most(SOON_S)) == (406, True)


def test_a_client_of_the_owners_stays_while_a_crowd_comes_and_goes(served: Service) -> None:
    """Half of a request with the key is waited for longer than any number of strangers' halves."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as owner:
        owner.sendall(f"{HEAD}X-API-Key: {served.key}\r\n\r\n{{".encode())
        with crowd(served.port, "POST /mcp HTTP/1.1\r\n", ""):
            owner.sendall(b" " * 8999)
            assert owner.recv(100).startswith(b"HTTP/1.1 406 ")


def test_strangers_leave_descriptors_for_other_work(tmp_path: Path) -> None:
    """With few of them, as where an administrator allows few."""
    with service(tmp_path) as running:
        pid = hub_pid(running.home)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (FEW, FEW))
        before = len(os.listdir(f"/proc/{pid}/fd"))
        with crowd(running.port, "POST /mcp HTTP/1.1\r\n", ""):
            for _ in range(20):
                assert running.ask(X_API_Key=running.key, Content_Type="application/json")[0] == 406
                assert len(os.listdir(f"/proc/{pid}/fd")) < before + FEW // 2


# Deadlines


@asynccontextmanager
async def listening() -> AsyncIterator[int]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    terms = Terms(host="127.0.0.1", port=0, key=Secret("k"), hosts=("localhost",))
    listener = listen("127.0.0.1", 0)
    web = serve._web(HttpGate(app, terms))
    serving = asyncio.ensure_future(web.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        web.should_exit = True
        await serving


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n", id="half a head"),
        pytest.param(HEAD.encode() + b"X-API-Key: k\r\n\r\n{", id="half a body"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-API-Key: k\r\n\r\nGET /", id="half of the second"),
    ],
)
async def test_what_is_not_finished_in_time_is_ended(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    monkeypatch.setattr(connections, "BODY_PIECE_S", 0.2)
    async with listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await asyncio.wait_for(is_ended(reader), 5)
        writer.close()


async def is_ended(reader: asyncio.StreamReader) -> bool:
    try:
        while await reader.read(1000):
            pass
    except ConnectionError:
        pass
    return True


async def test_a_head_that_drips_does_not_put_its_deadline_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    async with listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begun = time.monotonic()
        writer.write(b"GET / HTTP/1.1\r\nX-A: ")
        while not reader.at_eof() and not writer.is_closing() and time.monotonic() - begun < 5:
            writer.write(b"a")
            await asyncio.sleep(0.02)
        assert time.monotonic() - begun < at_most(2)
        writer.close()


async def test_a_body_that_comes_in_pieces_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    monkeypatch.setattr(connections, "BODY_PIECE_S", 0.5)
    async with listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD.replace("9000", "6").encode() + b"X-API-Key: k\r\n\r\n")
        for _ in range(6):
            await asyncio.sleep(0.15)
            writer.write(b"x")
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200 ")
        writer.close()
