"""Deployed apps: real servers started as jobs, on real sandboxes."""

from __future__ import annotations

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap.local import open_local
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.errors import BadArgument, Unreachable, Unsupported
from remote_sandbox_mcp.core.jobs.job import JobQuery
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sandboxes.port import Health, Stream
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.services.apps.deploy import check_health, check_url
from tests.support.app_world import World, deploying, fetch, web_server
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.sshd import Sshd, free_port
from tests.support.waiting import eventually


@pytest.mark.parametrize("where", ["walled", "machine"])
async def test_an_app_is_started_waited_for_and_opens_here(where: str, sshd: Sshd, tmp_path: Path) -> None:
    sandbox: Sandbox
    if where == "walled":
        sandbox = await open_local(LocalPlace(), tmp_path)
    else:
        sandbox = await open_machine(sshd.machine(), tmp_path / "known_hosts")
    async with deploying(sandbox) as world:
        await world.sandbox.write("~/health", b"well\n")
        port = free_port()
        deployed = await world.deploy(web_server(port), port, health_path="/health", timeout_s=30)
        assert (deployed.status, deployed.health.ok, deployed.health.status) == ("running", True, 200)
        assert (deployed.problem, deployed.exit_code, deployed.port) == ("", None, port)
        assert deployed.task.startswith("app-")
        assert (await fetch(f"{deployed.url}health")).text == "well\n"
        (listed,) = await world.deployments.list(world.name)
        assert (listed.status, listed.url, listed.task) == ("running", deployed.url, deployed.task)
        assert 'GET /health HTTP/1.1" 200' in listed.log


async def test_without_a_path_the_port_is_enough(walled: World) -> None:
    port = free_port()
    deployed = await walled.deploy(web_server(port), port)
    assert (deployed.status, deployed.health.ok, deployed.health.status) == ("running", True, 0)
    assert (await fetch(deployed.url)).status_code == 200


async def test_an_app_that_ends_first_has_failed_at_once_with_its_code_and_log(walled: World) -> None:
    begun = time.monotonic()
    deployed = await walled.deploy("echo no such module >&2; exit 3", free_port(), timeout_s=60)
    assert time.monotonic() - begun < 20
    assert (deployed.status, deployed.exit_code, deployed.url) == ("failed", 3, "")
    assert "no such module" in deployed.log
    assert "exit code 3" in deployed.problem
    assert walled.forwards.list() == []


async def test_a_port_that_is_taken_is_told_before_anything_starts(walled: World) -> None:
    port = free_port()
    await walled.sandbox.run(Command(web_server(port)), patience_s=0.1)
    await eventually(lambda: check_health(walled.sandbox, port), bool, "something to listen there")
    with pytest.raises(BadArgument, match=f"listens on port {port} already, so nothing was started"):
        await walled.deploy("touch ~/started", port)
    assert "started" not in {Path(entry.path).name for entry in (await walled.sandbox.list("~")).entries}


async def test_an_app_that_answers_badly_is_unhealthy_and_still_opens(walled: World) -> None:
    port = free_port()
    deployed = await walled.deploy(web_server(port), port, health_path="/none", timeout_s=2)
    assert (deployed.status, deployed.health.ok, deployed.health.status) == ("unhealthy", False, 404)
    assert deployed.problem == "GET /none answers 404"
    assert (await fetch(deployed.url)).status_code == 200
    await walled.sandbox.write("~/none", b"now it is")
    (listed,) = await walled.deployments.list()
    assert (listed.status, listed.problem) == ("running", "")


async def test_an_app_that_never_listens_is_unhealthy_when_the_time_is_over(walled: World) -> None:
    port, begun = free_port(), time.monotonic()
    deployed = await walled.deploy("echo loading; exec sleep 300", port, timeout_s=1.5)
    assert 1.4 < time.monotonic() - begun < 15
    assert deployed.status == "unhealthy"
    assert f"nothing accepts connections at port {port}" in deployed.problem
    assert any("loading" in beat.line for beat in walled.beats)


async def test_an_app_that_listens_late_is_waited_for(walled: World) -> None:
    port = free_port()
    deployed = await walled.deploy(f"sleep 1; {web_server(port)}", port, timeout_s=30)
    assert deployed.status == "running"
    assert walled.beats


async def test_an_app_that_was_stopped_on_purpose_has_not_failed_and_can_be_started_again(walled: World) -> None:
    port = free_port()
    deployed = await walled.deploy(web_server(port), port)
    await walled.sandbox.jobs.stop(JobQuery(job_id=deployed.job_id), 1)
    (listed,) = await walled.deployments.list()
    assert (listed.status, listed.url, listed.health.ok) == ("stopped", "", False)
    assert listed.problem == "the app was stopped; deploy_app starts it again"
    again = await walled.deploy(web_server(port), port)
    assert (again.status, again.job_id != deployed.job_id) == ("running", True)


async def test_a_sandbox_that_is_gone_takes_its_apps_and_addresses_along(walled: World) -> None:
    port = free_port()
    await walled.deploy(web_server(port), port)
    await walled.deployments.forget("another")
    assert len(await walled.deployments.list()) == 1
    await walled.deployments.forget(walled.name)
    assert await walled.deployments.list() == []
    assert walled.forwards.list() == []


async def test_a_call_that_is_cancelled_stops_the_app(walled: World) -> None:
    call = asyncio.ensure_future(walled.deploy("exec sleep 300", free_port(), session="late"))

    async def state() -> str:
        return (await walled.sandbox.jobs.inspect([JobQuery(session="late")]))[0].state.value

    await eventually(state, lambda state: state == "running", "the job to run")
    await eventually(lambda: asyncio.sleep(0, walled.beats), bool, "the call to wait for it")
    call.cancel()
    await asyncio.wait((call,))
    await eventually(state, lambda state: state == "ended", "the job to be stopped")


# Decisions


async def well(stream: Stream) -> None:
    await stream.read()
    stream.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await stream.drain()


async def test_a_port_is_forwarded_though_the_platform_has_an_address_of_its_own() -> None:
    """The agent behind that address keeps a connection for every request, long after its answer."""
    sandbox = FakeSandbox()
    async with deploying(sandbox, "https://box.example/8080") as world:
        starting = asyncio.ensure_future(world.deploy("serve", 8080, health_path="/"))
        await eventually(lambda: asyncio.sleep(0, sandbox.jobs.started), bool, "the job")
        sandbox.ports[8080] = well
        deployed = await starting
        (forwarded,) = world.forwards.list()
        assert (deployed.status, deployed.url) == ("running", forwarded.url)


async def test_the_platforms_address_is_told_where_a_port_cannot_be_forwarded() -> None:
    sandbox = FakeSandbox()

    async def no_way(port: int) -> Stream:
        raise Unsupported("fake forwards no ports")

    sandbox.connect = no_way  # type: ignore[method-assign]
    url = f"http://127.0.0.1:{free_port()}/"
    async with deploying(sandbox, url) as world:
        deployed = await world.deploy("serve", 8080, timeout_s=1)
        assert (deployed.status, deployed.url, world.forwards.list()) == ("unhealthy", url, [])
        assert [known.url for known in await world.deployments.list()] == [url]


async def test_a_port_that_cannot_be_asked_for_a_while_is_asked_again() -> None:
    sandbox, lost = FakeSandbox(), 0
    connect = sandbox.connect

    async def cut(port: int) -> Stream:
        nonlocal lost
        if sandbox.jobs.started and lost < 3:
            lost += 1
            raise Unreachable("unable to open fake: no answer")
        if lost:
            sandbox.ports[port] = well
        return await connect(port)

    sandbox.connect = cut  # type: ignore[method-assign]
    async with deploying(sandbox) as world:
        deployed = await world.deploy("serve", free_port())
        assert (deployed.status, lost) == ("running", 3)


@pytest.mark.parametrize(
    ("said", "health"),
    [
        (b"HTTP/1.1 204 None\r\n\r\n", Health(True, 204)),
        (b"HTTP/1.1 500 Oh\r\n\r\n", Health(False, 500, problem="GET /x answers 500")),
        (b"SSH-2.0-x\r\n", Health(problem="the answer to GET /x is no HTTP")),
        (b"", Health(problem="the app closed the connection without an answer to GET /x")),
    ],
    ids=["well", "ill", "no http", "silent"],
)
async def test_health_is_what_the_app_answers(said: bytes, health: Health) -> None:
    async def answer(stream: Stream) -> None:
        await stream.read()
        stream.write(said)
        await stream.drain()

    sandbox = FakeSandbox()
    sandbox.ports[80] = answer
    found = await check_health(sandbox, 80, "/x")
    assert found
    assert (found.ok, found.status, found.problem) == (health.ok, health.status, health.problem)
    assert await check_health(sandbox, 81, "/x") is None
    await sandbox.close()


async def test_an_app_that_never_answers_is_not_waited_for_longer_than_said() -> None:
    async def never(stream: Stream) -> None:
        await asyncio.sleep(3600)

    sandbox = FakeSandbox()
    sandbox.ports[80] = never
    found = await check_health(sandbox, 80, "/x", seconds=0.1)
    assert found
    assert "no answer to GET /x" in found.problem
    await sandbox.close()


class Answers(BaseHTTPRequestHandler):
    """A platform's proxy: 502 for what does not listen."""

    def do_GET(self) -> None:
        self.send_response({"/up/health": 200, "/up/ill": 500}.get(self.path, 502))
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None: ...


async def test_a_platforms_address_is_asked_where_the_sandbox_has_no_way() -> None:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/up/"
        healthy, ill = await check_url(url, "/health"), await check_url(url, "/ill")
        assert healthy
        assert ill
        assert (healthy.ok, healthy.status, ill.ok, ill.status) == (True, 200, False, 500)
        assert await check_url(f"http://127.0.0.1:{server.server_port}/down", "/health") is None
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert await check_url(url, "/health") is None


async def test_without_a_way_and_an_address_nothing_is_started() -> None:
    class Unreached(FakeSandbox):
        async def connect(self, port: int) -> Stream:
            raise Unsupported("fake forwards no ports")

    sandbox = Unreached()
    async with deploying(sandbox) as world:
        with pytest.raises(Unsupported):
            await world.deploy("serve", 80)
        assert sandbox.jobs.started == []
