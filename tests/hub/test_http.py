"""HTTP that the hub serves: on the socket of its front, for as long as that lives, beside all other clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.types import ListRootsResult, Root

from remote_sandbox_mcp.services.hub_contact.hello import HTTP, say_hello
from remote_sandbox_mcp.services.hub_contact.place import HubPlace, reach
from tests.fronts.http.conftest import Service, connected, service
from tests.support.hub_desk import Desk, desk_in
from tests.support.hub_place import done, logins
from tests.support.hubs import hub_pid, hub_pids, is_alive, kill_hub
from tests.support.page import Browser
from tests.support.server import Caller, arguments, entry, environment, until, wire
from tests.support.sshd import Sshd, wait_until

KEY = "a-key-of-the-operators"
BOTH_MODES = ("legacy", "auto")
IDLE_S = 0.5
ALONE = "serving without a hub: "
HANDED_FILE = "/etc/passwd"


class Shared:
    """A front with its hub, in a home where there are other clients, too."""

    def __init__(self, desk: Desk, served: Service, machine: Sshd) -> None:
        self.desk = desk
        self.served = served
        self.machine = machine

    def connected(self, mode: str = "auto", roots: Any = None) -> AbstractAsyncContextManager[Caller]:
        return connected(self.served, mode=mode, headers={"X-API-Key": KEY}, roots=roots)

    @property
    def hub_log(self) -> str:
        return (self.desk.state / "hub" / "hub.log").read_text()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, machine: Sshd) -> Iterator[Shared]:
    """One machine, one that wants a password from a program, and a log on standard error."""
    home = tmp_path_factory.mktemp("home")
    program, folder = home / "password", home / "project"
    program.write_text(f"#!/bin/sh\nenv >{home}/seen\n")
    program.chmod(0o700)
    folder.mkdir()
    guarded = entry(machine, name="guarded", password=f"command:{program}", key_file="")
    given = {"REMOTE_SANDBOX_API_KEY": KEY, "OTHER": "handed over", "MCP_LOG_LEVEL": "INFO"}
    given |= {"REMOTE_SANDBOX_HUB_IDLE_S": str(IDLE_S)}
    with desk_in(home) as desk, ExitStack() as stack:
        served = service(home, entries=(entry(machine), guarded), local=False, env=given, cwd=folder)
        yield Shared(desk, stack.enter_context(served), machine)
        assert "Traceback" not in (desk.state / "hub" / "hub.log").read_text()


def is_answered(served: Service) -> bool:
    """A request over a new connection, which must not be refused."""
    return served.ask()[0] == 401


def is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False


def running(sshd: Sshd, command: str) -> bool:
    return command in sshd.processes().values()


# One process for all


async def test_clients_over_http_and_one_on_stdio_share_one_login(shared: Shared) -> None:
    is_answered(shared.served)
    kill_hub(shared.desk.home)
    before = logins(shared.machine)
    with wire(shared.desk.home, entry(shared.machine)) as line:
        line.initialize()
        for mode in BOTH_MODES:
            async with shared.connected(mode) as caller:
                assert await caller.output("echo here") == "here\n"
        assert done(line.call("exec_bash", command="echo here"))["stdout"] == "here\n"
        assert len(shared.desk.hubs) == 1
    assert logins(shared.machine) == before + 1


@pytest.mark.parametrize("mode", BOTH_MODES)
async def test_relative_paths_never_start_in_the_folder_of_the_front(shared: Shared, mode: str) -> None:
    (shared.desk.home / "project" / "here.txt").write_text("of the front")
    async with shared.connected(mode) as caller:
        refused = await caller.fail("sync_local_to_remote", local_path="here.txt", remote_path=f"over-{mode}/")
        assert "here.txt is relative, and your client has not said where it works" in refused["error"]
        whole = str(shared.desk.home / "project" / "here.txt")
        await caller.call("sync_local_to_remote", local_path=whole, remote_path=f"over-{mode}/")
    assert (shared.machine.home / f"over-{mode}" / "here.txt").read_text() == "of the front"


async def test_relative_paths_start_where_the_client_says_that_it_works(shared: Shared) -> None:
    (shared.desk.home / "theirs").mkdir(exist_ok=True)
    (shared.desk.home / "theirs" / "here.txt").write_text("of the client")

    async def roots(_: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=(shared.desk.home / "theirs").as_uri())])

    async with shared.connected("legacy", roots) as caller:
        await caller.call("sync_local_to_remote", local_path="here.txt", remote_path="by-roots/")
    assert (shared.machine.home / "by-roots" / "here.txt").read_text() == "of the client"


@pytest.mark.parametrize("mode", BOTH_MODES)
async def test_log_lines_of_http_clients_are_printed_by_the_front(shared: Shared, mode: str) -> None:
    logged = "remote-sandbox-mcp: INFO: check_file_transfer_task: "
    before = shared.served.said.count(logged)
    async with shared.connected(mode) as caller:
        await caller.fail("check_file_transfer_task", task_id=mode)
    wait_until(lambda: shared.served.said.count(logged) == before + 1, what="the line")
    assert "check_file_transfer_task" not in shared.hub_log
    assert "INFO: hub" not in shared.served.said


async def test_the_key_is_in_no_argument_no_environment_and_no_file(shared: Shared) -> None:
    """A program that prints a password is given the variables of its client, but not the key."""
    async with shared.connected() as caller:
        await caller.fail("exec_bash", command="true", sandbox_name="guarded")
    seen = (shared.desk.home / "seen").read_text()
    assert ("OTHER=handed over" in seen, KEY in seen) == (True, False)
    told = b"".join(Path(f"/proc/{shared.desk.hub}/{part}").read_bytes() for part in ("cmdline", "environ"))
    assert KEY.encode() not in told
    assert KEY not in shared.served.said
    files = [file for file in shared.desk.state.rglob("*") if file.is_file()]
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


def test_hub_status_shows_http_and_the_hub_does_not_end_meanwhile(shared: Shared) -> None:
    assert is_answered(shared.served)
    told, hub = shared.desk.status(), shared.desk.hub
    address, front = f"127.0.0.1:{shared.served.port}", shared.served.process.pid
    assert [(each["address"], each["process"]) for each in told["http"]] == [(address, front)]
    assert f"it serves HTTP on {address} for pid {front}" in shared.desk("hub")[1]
    wait_until(lambda: time.time() > told["began"] + 5 * IDLE_S, what="its idle time to pass")
    assert (told["pid"], shared.desk.hub) == (hub, hub)


async def test_http_goes_on_after_a_change_that_separates_its_clients(tmp_path: Path) -> None:
    """The front hands its socket over once more, for a configuration in which its own variables count."""
    with wire(tmp_path, env={"WHICH": "two"}, local=True) as other, ExitStack() as stack:
        other.initialize()
        # The configuration is read with the variables of the client that came first; whoever has others must go.
        done(other.call("list_sandboxes"))
        served = stack.enter_context(service(tmp_path, env={"WHICH": "one"}))
        assert await asyncio.to_thread(is_answered, served)
        hub = hub_pid(tmp_path)
        table = "[machines.new]\nhost = '127.0.0.1'\nport = 1\nuser = 'nobody'\npassword = 'env:WHICH'\n"
        arguments(tmp_path, local=True, config=table)

        async def is_seen() -> bool:
            try:
                async with connected(served) as caller:
                    return "new" in [each["name"] for each in (await caller.call("list_sandboxes"))["sandboxes"]]
            except Exception as problem:
                # The client is told to repeat it, or finds its connection closed while the socket changes hands.
                if "send it once more" not in str(problem) and not is_hung_up(problem):
                    raise
                return False

        await until(is_seen, "the new machine", 20)
        await until(lambda: hub_log_of(tmp_path).count("HTTP is served on") == 2, "the socket to come again", 20)
        assert (hub_pid(tmp_path), await is_seen()) == (hub, True)
        assert len(served.said.splitlines()) == 2


def is_hung_up(problem: BaseException) -> bool:
    """Whether the connection was closed; the SDK puts that into groups."""
    return isinstance(problem, httpx2.TransportError) or any(map(is_hung_up, getattr(problem, "exceptions", ())))


def hub_log_of(home: Path) -> str:
    return (home / "state" / "hub" / "hub.log").read_text()


# Ends


async def test_a_hub_that_is_killed_is_replaced_and_no_connection_refused(shared: Shared) -> None:
    async with shared.connected() as caller:
        assert await caller.output("echo before") == "before\n"
        first = kill_hub(shared.desk.home)
        assert await asyncio.to_thread(is_answered, shared.served)
        assert await caller.output("echo after") == "after\n"
    assert hub_pid(shared.desk.home) != first
    assert f"the hub (process {first}) has ended" in shared.served.said


async def call(connected_caller: AbstractAsyncContextManager[Caller], command: str) -> None:
    async with connected_caller as caller:
        await caller.run(command)


async def test_a_hub_that_is_stopped_gives_up_its_calls_and_another_serves(shared: Shared) -> None:
    calling = asyncio.ensure_future(call(shared.connected(), "sleep 6304"))
    await until(lambda: running(shared.machine, "sleep 6304"), "the command to start", 20)
    first = shared.desk.hub
    code, told, _ = await asyncio.to_thread(shared.desk, "hub", "stop")
    assert (code, f"for pid {shared.served.process.pid}" in told) == (0, True)
    await until(lambda: not running(shared.machine, "sleep 6304"), "the command to end")
    assert await asyncio.to_thread(is_answered, shared.served)
    assert shared.desk.hub not in (0, first)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)


async def test_a_front_that_is_killed_frees_its_port_and_its_commands_end(tmp_path: Path, machine: Sshd) -> None:
    with service(tmp_path, entries=(entry(machine),), local=False) as served, wire(tmp_path) as other:
        other.initialize()
        calling = asyncio.ensure_future(call(connected(served), "sleep 6303"))
        await until(lambda: running(machine, "sleep 6303"), "the command to start", 20)
        hub, port = hub_pid(tmp_path), served.port
        with socket.create_connection(("127.0.0.1", port), timeout=10) as idle:
            await asyncio.to_thread(served.leave, signal.SIGKILL)
            await until(lambda: is_free(port), "the port to be free")
            await until(lambda: not running(machine, "sleep 6303"), "the command to end")
            assert idle.recv(100) == b""
        assert hub_pid(tmp_path) == hub
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    assert "Traceback" not in hub_log_of(tmp_path)


def test_a_signal_ends_it_before_the_options_are_parsed() -> None:
    script = (
        "import os, signal, remote_sandbox_mcp.cli.main as command\n"
        "command.parser = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)\n"
        "command.main(['--mode', 'http'])"
    )
    assert subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, check=False).returncode == 0


# Without a hub


@pytest.mark.parametrize(
    ("words", "env"),
    [
        pytest.param(("--no-hub", "--port", "0"), {}, id="--no-hub"),
        pytest.param((), {"REMOTE_SANDBOX_NO_HUB": "1"}, id="variable"),
    ],
)
def test_http_is_served_without_a_hub_on_request(tmp_path: Path, words: tuple[str, ...], env: dict[str, str]) -> None:
    with service(tmp_path, *words, env=env) as served:
        assert is_answered(served)
        assert hub_pids(tmp_path) == []
        assert (served.leave()[1], len(served.said.splitlines())) == (0, 2)


async def test_http_is_served_without_a_hub_where_none_can_start(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "hub").write_text("in the way")
    with service(tmp_path) as served:
        async with connected(served) as caller:
            assert await caller.output("echo on") == "on\n"
        assert "remote-sandbox-mcp: WARNING: serving without a hub: " in served.said
        assert served.leave()[1] == 0


IMPATIENT = """
import sys, remote_sandbox_mcp.hub.http_front as front, remote_sandbox_mcp.cli.main as command
front.ASK_EVERY_S, front.ANSWER_S, front.RETURN_S = 0.3, 0.5, 0.3
command.main(sys.argv[1:])
"""


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Service]:
    """A front that soon notices that its hub hangs."""
    words = [sys.executable, "-c", IMPATIENT, *arguments(tmp_path, local=True)[1:], "--mode", "http", "--port", "0"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=said, env=environment(tmp_path, ()))
    served = Service(process, tmp_path)
    try:
        wait_until(lambda: "serving MCP at" in served.said, what="the server", seconds=20)
        yield served
    finally:
        for hub in filter(is_alive, hub_pids(tmp_path)):
            os.kill(hub, signal.SIGCONT)
        process.kill()
        process.wait()
    assert "Traceback" not in served.said


def hang(served: Service) -> int:
    """Stop the hub's process; returns its number once the front serves without it."""
    assert is_answered(served)
    before, hub = served.said.count(ALONE), hub_pid(served.home)
    os.kill(hub, signal.SIGSTOP)
    wait_until(lambda: served.said.count(ALONE) > before, what="the front to serve", seconds=20)
    return hub


def without_hub(served: Service) -> str:
    """What the page reads about the process that serves it: why that is not the hub."""
    browser = Browser(served.port)
    assert browser.enter(served.key).status == 200
    with browser.stream() as stream:
        return str(stream.row("about", "hub", bool).get("without_hub", ""))


def test_http_goes_back_to_a_hub_that_hung(impatient: Service) -> None:
    """Twice, and its socket refuses nobody meanwhile."""
    for times in (1, 2):
        hub = hang(impatient)
        assert is_answered(impatient)
        assert f"the hub (process {hub}) has not answered" in without_hub(impatient)
        os.kill(hub, signal.SIGCONT)
        wait_until(
            lambda times=times: hub_log_of(impatient.home).count("HTTP is served on") > times,
            what="the hub to serve again", seconds=20,
        )  # fmt: skip
        assert is_answered(impatient)
        assert (hub_pid(impatient.home), without_hub(impatient)) == (hub, "")
    assert impatient.leave()[1] == 0


async def test_a_call_ends_before_a_hub_that_hung_serves_again(impatient: Service) -> None:
    hub = await asyncio.to_thread(hang, impatient)
    async with connected(impatient) as caller, connected(impatient) as other:
        command = "touch begun; until test -e go; do sleep 0.1; done; echo ended"
        calling = asyncio.ensure_future(caller.output(command))
        await other.run("until test -e begun; do sleep 0.1; done")
        os.kill(hub, signal.SIGCONT)
        await until(lambda: "a hub answers again" in impatient.said, "the hub to answer", 20)
        assert hub_log_of(impatient.home).count("HTTP is served on") == 1
        await other.run("touch go")
        assert await calling == "ended\n"
    await until(lambda: hub_log_of(impatient.home).count("HTTP is served on") == 2, "the hub to serve again", 20)


def test_a_new_hub_takes_the_place_of_one_that_hung_and_died(impatient: Service) -> None:
    hub = hang(impatient)
    os.kill(hub, signal.SIGKILL)
    wait_until(lambda: hub_log_of(impatient.home).count("HTTP is served on") == 2, what="another hub", seconds=20)
    assert is_answered(impatient)
    assert hub_pid(impatient.home) not in (0, hub)
    assert impatient.leave()[1] == 0


# What a front may hand over


class Attacker:
    """A process of the same user that speaks as a front does."""

    def __init__(self, place: HubPlace) -> None:
        self._place = place

    @property
    def descriptors(self) -> int:
        """How many of the kinds that are handed over the hub has open; it may open its own files at any time."""
        folder, found = f"/proc/{hub_pid(Path(self._place.state).parent)}/fd", []
        for name in os.listdir(folder):
            with suppress(OSError):
                found.append(os.readlink(f"{folder}/{name}"))
        return sum(link.startswith("socket:") or link == HANDED_FILE for link in found)

    def hand_over(self, *passed: int, early: bool = False, **terms: Any) -> dict[str, Any]:
        """What the hub says in the end."""
        told = {"host": "127.0.0.1", "port": 0, "key": "k", "hosts": ["localhost"], "origins": [], **terms}
        hello = say_hello(HTTP, {}, "/", http=told, config="")
        line, _ = reach(self._place)
        with line, line.makefile("rb") as heard:
            line.settimeout(20)
            if early:
                socket.send_fds(line, [hello], passed)
            else:
                line.sendall(hello)
            if b'"send"' in (answer := heard.readline()):
                socket.send_fds(line, [b"\0"], [] if early else passed)
                answer = heard.readline()
            return dict(json.loads(answer or b"{}"))


@pytest.fixture(scope="module")
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    home = tmp_path_factory.mktemp("attacked")
    (home / "state").mkdir(mode=0o700)
    with wire(home) as line, pytest.MonkeyPatch.context() as patch:
        line.initialize()
        done(line.call("list_sandboxes"))
        for name, value in environment(home, ()).items():
            patch.setenv(name, value)
        yield Attacker(HubPlace(environment(home, ())))


def listening(host: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((host, 0))


def connected_pair() -> list[Any]:
    listener = listening()
    near = socket.create_connection(listener.getsockname())
    return [near, listener]


def bound(kind: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, kind)
    made.bind(("127.0.0.1", 0))
    return made


def unix_listener() -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind("")
    made.listen()
    return made


@pytest.mark.parametrize(
    ("make", "count", "told"),
    [
        pytest.param(lambda: [], 0, "0 descriptors", id="nothing"),
        pytest.param(lambda: [listening(), listening()], 2, "2 descriptors", id="two"),
        pytest.param(lambda: [listening() for _ in range(40)], 40, "16 descriptors", id="many"),
        pytest.param(lambda: [open(HANDED_FILE, "rb")], 1, "no socket", id="a file"),
        pytest.param(connected_pair, 1, "no socket that listens", id="a connected socket"),
        pytest.param(lambda: [bound(socket.SOCK_STREAM)], 1, "no socket that listens", id="one that does not listen"),
        pytest.param(lambda: [bound(socket.SOCK_DGRAM)], 1, "no socket that listens", id="UDP"),
        pytest.param(lambda: [unix_listener()], 1, "no socket that listens", id="a unix socket"),
        pytest.param(lambda: [listening("0.0.0.0")], 1, "beyond this machine", id="beyond this machine"),
    ],
)
def test_anything_but_one_listening_socket_is_refused_and_closed(
    attacker: Attacker, make: Callable[[], list[Any]], count: int, told: str
) -> None:
    before = attacker.descriptors
    with ExitStack() as stack:
        made = [stack.enter_context(each) for each in make()]
        answer = attacker.hand_over(*(each.fileno() for each in made[:count]))
    assert told in answer["refused"]
    wait_until(lambda: attacker.descriptors <= before, what="the hub to close what it was given")


def test_a_socket_that_is_sent_unasked_is_refused(attacker: Attacker) -> None:
    before = attacker.descriptors
    with listening() as listener:
        assert "0 descriptors" in attacker.hand_over(listener.fileno(), early=True)["refused"]
    wait_until(lambda: attacker.descriptors <= before, what="the hub to close it")


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param({"key": ""}, id="an empty key"),
        pytest.param({"key": 7}, id="a key that is no text"),
        pytest.param({"hosts": None}, id="no names"),
        pytest.param({"host": "0.0.0.0", "key": None}, id="beyond this machine without a key"),
        pytest.param({"host": "0.0.0.0", "hosts": []}, id="beyond this machine without names"),
    ],
)
def test_terms_that_would_let_strangers_in_are_refused(attacker: Attacker, terms: dict[str, Any]) -> None:
    with listening("0.0.0.0") as listener:
        assert attacker.hand_over(listener.fileno(), **terms)["refused"]


def test_a_front_that_is_gone_leaves_nothing_open(attacker: Attacker) -> None:
    before = attacker.descriptors
    with ExitStack() as stack:
        listener = stack.enter_context(listening())
        port = listener.getsockname()[1]
        assert attacker.hand_over(listener.fileno()) == {"serving": True}
        assert is_alive(hub_pid(Path(attacker._place.state).parent))
    wait_until(lambda: is_free(port) and attacker.descriptors <= before, what="the hub to close all")
