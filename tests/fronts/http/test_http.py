"""HTTP mode as clients meet it: the installed command in a process of its own, and the official client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fronts.http.conftest import Service, connected, service
from tests.support.pace import at_most
from tests.support.server import COMMAND, Entry, arguments, entry, environment, until
from tests.support.sshd import Sshd, free_port, wait_until

both_modes = pytest.mark.parametrize("mode", ["legacy", "auto"])
# One second is what is promised, to clients on other machines.
SOON_S = 1.5


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with the embedded sandbox, for tests that change nothing."""
    with service(tmp_path_factory.mktemp("http")) as served:
        yield served


def unreachable(name: str) -> Entry:
    return {"name": name, "host": "127.0.0.1", "port": 1, "user": "nobody"}


def running(sshd: Sshd, command: str) -> int:
    return list(sshd.processes().values()).count(command)


# Serving


@both_modes
@pytest.mark.parametrize("path", ["/", "/mcp"])
async def test_the_official_client_works(shared: Service, mode: str, path: str) -> None:
    async with connected(shared, mode=mode, path=path) as caller:
        assert await caller.output("echo $((6*7))") == "42\n"
        assert (await caller.fail("select_sandbox", sandbox_name="nope"))["code"] == "unknown_sandbox"


async def test_the_key_may_be_sent_in_either_way(shared: Service) -> None:
    async with connected(shared, headers={"X-API-Key": shared.key}) as caller:
        assert await caller.output("echo on") == "on\n"


@both_modes
async def test_progress_comes_while_a_call_lasts(shared: Service, mode: str) -> None:
    heard: list[str | None] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with connected(shared, mode=mode) as caller:
        await caller.call("exec_bash", command="echo step 1; echo step 2; sleep 2", progress=listen)
    assert "step 2" in heard


@both_modes
async def test_a_cancelled_call_ends_its_command(tmp_path: Path, sshd: Sshd, mode: str) -> None:
    with service(tmp_path, entries=(entry(sshd),), local=False) as served:
        async with connected(served, mode=mode) as caller:
            call = asyncio.ensure_future(caller.run("sleep 6301"))
            await until(lambda: running(sshd, "sleep 6301"), "the command to start")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: not running(sshd, "sleep 6301"), "the command to end")
            assert await caller.output("echo on") == "on\n"


async def test_many_clients_are_served_at_once(shared: Service) -> None:
    async def work(number: int) -> str:
        async with connected(shared, mode="legacy" if number % 2 else "auto") as caller:
            return await caller.output(f"sleep 0.2; echo {number}")

    answers = await asyncio.gather(*(work(number) for number in range(12)))
    assert answers == [f"{number}\n" for number in range(12)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with two machines, neither of which answers, for tests of what is selected in a session."""
    entries = (unreachable("one"), unreachable("two"))
    with service(tmp_path_factory.mktemp("two"), entries=entries, local=False) as served:
        yield served


async def test_the_selected_sandbox_belongs_to_the_session(two: Service) -> None:
    async with connected(two, mode="legacy") as first, connected(two, mode="legacy") as second:
        await first.call("select_sandbox", sandbox_name="two")
        assert (await first.call("get_active_sandbox"))["active_sandbox"] == "two"
        assert (await first.fail("exec_bash", command="true"))["sandbox"] == "two"
        assert (await second.call("get_active_sandbox"))["active_sandbox"] == "one"
        assert (await second.fail("exec_bash", command="true"))["sandbox"] == "one"
        assert (await second.call("list_sandboxes"))["active_sandbox"] == "one"


async def test_a_client_without_a_session_is_told_that_it_cannot_select(two: Service) -> None:
    async with connected(two) as session:
        assert session.client.protocol_version == "2026-07-28"
        told = await session.fail("select_sandbox", sandbox_name="two")
        assert told["code"] == "unsupported"
        assert told["error"].endswith("name sandbox_name in each call")
        assert (await session.fail("exec_bash", command="true"))["sandbox"] == "one"
        assert "sandbox" not in await session.fail("exec_bash", command="true", sandbox_name="two")


async def test_a_session_of_another_client_cannot_be_borrowed(two: Service) -> None:
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    ask = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
    given = {"Authorization": f"Bearer {two.key}"}
    _, headers = two.ask(body=json.dumps(message).encode(), **ask, **given)
    async with connected(two, headers={**given, "Mcp-Session-Id": headers["mcp-session-id"]}) as modern:
        assert (await modern.fail("select_sandbox", sandbox_name="two"))["code"] == "unsupported"


# Who is let in


def test_without_the_key_nothing_is_served(shared: Service) -> None:
    status, headers = shared.ask()
    assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="remote-sandbox-mcp"')
    status, headers = shared.ask(Authorization="Bearer wrong")
    assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="remote-sandbox-mcp", error="invalid_token"')
    assert "server" not in headers


def test_a_strange_name_and_a_strange_page_are_refused_even_with_the_key(shared: Service) -> None:
    assert shared.ask(X_API_Key=shared.key, Host="evil.example.com")[0] == 421
    status, headers = shared.ask(X_API_Key=shared.key, Origin="https://evil.example.com")
    assert status == 403
    assert not [name for name in headers if name.lower().startswith("access-control-")]
    assert shared.ask("OPTIONS", Origin="https://evil.example.com")[0] == 403


def test_what_strangers_send_along_is_not_read(shared: Service) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=5) as line:
        line.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n")
        answer = line.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_a_request_that_is_too_large_is_refused(shared: Service) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=5) as line:
        line.sendall(
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {shared.key}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {1 << 30}\r\n\r\n".encode()
        )
        assert line.makefile("rb").readline().startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="a batch"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"\\ud800"}}', id="half a pair"),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
def test_what_is_no_message_is_refused_and_the_server_goes_on(shared: Service, body: bytes, version: str) -> None:
    given = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    status, _ = shared.ask(body=body, X_API_Key=shared.key, MCP_Protocol_Version=version, **given)
    assert 400 <= status < 500
    assert shared.process.poll() is None


def test_browsers_get_their_answer_for_pages_that_are_allowed(tmp_path: Path) -> None:
    page = "https://app.example.com"
    with service(tmp_path, config=f'[http]\nallowed_origins = ["{page}"]\n') as served:
        status, headers = served.ask("OPTIONS", Origin=page)
        assert (status, headers["access-control-allow-origin"]) == (204, page)
        status, headers = served.ask(Origin=page)
        assert status == 401


# The key


def test_the_key_is_made_once_and_told_in_one_line(tmp_path: Path) -> None:
    with service(tmp_path, config="[logging]\nlevel = 'DEBUG'\nfile = 'server.log'\n") as served:
        key = served.key
        assert served.ask(X_API_Key=key, Content_Type="application/json")[0] == 406
        assert [line.count(key) for line in served.said.splitlines()] == [0, 1]
        served.leave()
    file = tmp_path / "state" / "http.key"
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"{key}\n", 0o600)
    assert (tmp_path / "server.log").stat().st_mode & 0o777 == 0o600
    assert key not in (tmp_path / "server.log").read_text()
    with service(tmp_path) as again:
        assert again.key == key


async def test_a_key_of_the_operators_is_told_nowhere(tmp_path: Path) -> None:
    key = "a-key-of-the-operators"
    with service(tmp_path, env={"REMOTE_SANDBOX_API_KEY": key}) as served:
        assert served.ask()[0] == 401
        async with connected(served, headers={"X-API-Key": key}) as caller:
            assert await caller.output("env | grep -c REMOTE_SANDBOX_API_KEY || true") == "0\n"
        assert key not in served.said
        assert key.encode() not in Path(f"/proc/{served.process.pid}/cmdline").read_bytes()
    assert not (tmp_path / "state" / "http.key").exists()


async def test_without_a_key_on_this_machine(tmp_path: Path) -> None:
    with service(tmp_path, "--port", "0", "--no-auth") as served:
        async with connected(served, headers={}) as caller:
            assert await caller.output("echo on") == "on\n"
        assert served.ask(Host="evil.example.com")[0] == 421
        assert served.key == ""


# Where it listens


def refused(tmp_path: Path, *words: str, config: str = "") -> list[str]:
    """What it says where it does not start."""
    done = subprocess.run(
        [*arguments(tmp_path, local=True, config=config), "--mode", "http", *words],
        env=environment(tmp_path, ()),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("words", "config", "told"),
    [
        pytest.param(("--host", "0.0.0.0"), "", "set a key of your own", id="no key"),
        pytest.param(("--host", "0.0.0.0"), "api_key = 'k'", "under which names it is called", id="no names"),
        pytest.param(("--host", "0.0.0.0", "--no-auth"), "", "--no-auth is for this machine alone", id="no auth"),
        pytest.param((), "host = '0.0.0.0'", "set a key of your own", id="configured"),
        pytest.param((), "api_key = 'env:NOT_SET'", "is not set", id="a key that is not there"),
        pytest.param(
            ("--host", "203.0.113.1"), "api_key = 'k'\nallowed_hosts = ['a']", "--host and --port", id="not here"
        ),
    ],
)
def test_where_it_must_not_listen_it_does_not_start(
    tmp_path: Path, words: tuple[str, ...], config: str, told: str
) -> None:
    last = refused(tmp_path, "--port", "0", *words, config=f"[http]\n{config}\n")[-1]
    assert told in last
    assert last.startswith("remote-sandbox-mcp: ")


def test_beyond_this_machine_it_is_called_by_the_names_that_were_given(tmp_path: Path) -> None:
    config = "[http]\napi_key = 'k'\nallowed_hosts = ['mcp.example.com']\n"
    with service(tmp_path, "--host", "0.0.0.0", "--port", "0", config=config) as served:
        assert served.ask(X_API_Key="k", Host="mcp.example.com", Content_Type="application/json")[0] == 406
        assert served.ask(X_API_Key="k", Host="localhost")[0] == 421


def test_a_port_in_use_is_told(tmp_path: Path, shared: Service) -> None:
    (told,) = refused(tmp_path, "--port", str(shared.port))
    assert told == (
        f"remote-sandbox-mcp: unable to listen on 127.0.0.1, port {shared.port}: another program listens there; "
        "end it, or choose another port with --port."
    )


def test_options_of_http_go_with_http() -> None:
    done = subprocess.run([COMMAND, "--port", "3"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"go with --mode http" in done.stderr


# The end


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_leaves_soon(tmp_path: Path, how: signal.Signals) -> None:
    with service(tmp_path) as served:
        seconds, code = served.leave(how)
        assert (seconds < at_most(SOON_S), code) == (True, 0)
        assert len(served.said.splitlines()) == 2


def test_its_address_and_its_key_are_told_in_one_piece(tmp_path: Path) -> None:
    """Who waits for the address may end it before it says more. Each write is a message here."""
    words = [*arguments(tmp_path, local=True), "--mode", "http", "--port", "0"]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.settimeout(20)
    with (
        ours,
        theirs,
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=theirs, env=environment(tmp_path, ())) as process,
    ):
        told = ours.recv(1 << 16).decode()
        process.terminate()
    first, second = told.splitlines()
    assert first.startswith("remote-sandbox-mcp: serving MCP at ")
    assert "Authorization: Bearer " in second
    assert process.returncode == 0


def test_a_signal_before_it_serves_is_no_failure(tmp_path: Path) -> None:
    """It is held where it tells its address: into a pipe that is full."""
    port, (reading, writing) = free_port(), os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"x"):
            pass
    os.set_blocking(writing, True)
    words = [*arguments(tmp_path, local=True), "--mode", "http", "--port", str(port)]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=writing, env=environment(tmp_path, ())) as process:
        wait_until(lambda: accepts(port), what="the server", seconds=20)
        process.terminate()
        assert process.wait(10) == 0
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_its_options_are_read_is_no_failure(how: signal.Signals) -> None:
    told = f"main.parser = lambda *_, **__: os.kill(os.getpid(), {how.value})"
    words = f"import os; from remote_sandbox_mcp.cli import main; {told}; main.main(['--mode', 'http'])"
    done = subprocess.run([sys.executable, "-c", words], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionError:
        return False
    return True


@both_modes
async def test_it_leaves_soon_with_a_command_running_and_ends_that(tmp_path: Path, sshd: Sshd, mode: str) -> None:
    async def call(served: Service) -> None:
        async with connected(served, mode=mode) as caller:
            await caller.run("sleep 6302")

    with service(tmp_path, entries=(entry(sshd),), local=False) as served:
        calling = asyncio.ensure_future(call(served))
        await until(lambda: running(sshd, "sleep 6302"), "the command to start")
        seconds, code = await asyncio.to_thread(served.leave)
        assert (seconds < at_most(SOON_S), code) == (True, 0)
        assert len(served.said.splitlines()) == 2
        await until(lambda: not running(sshd, "sleep 6302"), "the command to end")
        calling.cancel()
        await asyncio.wait({calling})


def test_it_can_be_started_again_at_once_on_the_same_port(tmp_path: Path) -> None:
    with service(tmp_path) as served:
        port = served.port
        served.ask()
        served.leave()
    with service(tmp_path, "--port", str(port)) as again:
        assert again.ask()[0] == 401


def test_standard_output_is_left_alone(tmp_path: Path) -> None:
    words = [*arguments(tmp_path, local=True), "--mode", "http", "--port", "0"]
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path, ())
    )
    assert process.stdout
    assert process.stderr
    with process, process.stdout, process.stderr:
        process.stderr.readline()
        process.terminate()
        assert process.stdout.read() == b""


def test_config_json_of_the_published_form_is_served_with(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"opensandbox": {"default_timeout": 60}, "logging": {"level": "INFO", "file": "l.log"}}))
    words = [COMMAND, "--config", str(file), "--mode", "http", "--port", "0"]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(tmp_path, ()))
    assert process.stderr
    with process, process.stderr:
        assert process.stderr.readline().startswith(b"remote-sandbox-mcp: serving MCP at ")
        process.terminate()
    assert (tmp_path / "l.log").exists()
