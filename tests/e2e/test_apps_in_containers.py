"""Apps and jobs in containers of a real platform: they open in a browser, and are looked after, without the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.platform import API_KEY, IMAGE, WITHOUT_PYTHON, Platform
from tests.support.server import Server, serve, until

from .test_apps import apps, fetch, running, serving
from .test_jobs import end_watchdog

# The engine and its images take their time to start, once.
pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(240)]

HEADER = "OPEN-SANDBOX-API-KEY"


@asynccontextmanager
async def serving_from(platform: Platform, home: Path, *, proxied: bool) -> AsyncIterator[Server]:
    config = f'[opensandbox]\nserver_url = "{platform.url}"\ndefault_image = "{IMAGE}"\n'
    config += f"use_server_proxy = {'true' if proxied else 'false'}\n"
    given = {"OPEN_SANDBOX_API_KEY": API_KEY, "REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS": "1"}
    async with serve(home, env=given, config=config, hub=False) as server:
        yield server
    assert API_KEY not in server.everything_said


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "server proxy"])
async def test_an_app_in_a_container_opens_and_is_known_again(
    platform: Platform, tmp_path: Path, proxied: bool
) -> None:
    order = {**serving(8123), "health_path": "/"}
    async with serving_from(platform, tmp_path, proxied=proxied) as server:
        place = str((await server.call("create_sandbox", keep=True, timeout=600))["sandbox_id"])
        await server.output("mkdir -p site; echo works >site/index.html", sandbox_name=place)
        first = await server.call("deploy_app", sandbox_id=place, **order)
        assert (first["status"], await fetch(first["url"])) == ("running", "works\n")
        # A forwarded port: the agent behind a platform's own address keeps a connection for every request.
        assert first["url"].startswith("http://127.0.0.1:")
        assert first["url"].count("/") == 3
        assert str(platform.port) not in first["url"]
        shown = await server.call("get_sandbox_endpoint", sandbox_id=place, port=8123)
        assert [HEADER in note for note in shown.get("notes", [])] == ([True] if proxied else [])
    async with serving_from(platform, tmp_path, proxied=proxied) as server:
        (known,) = await apps(server, place)
        # Nothing is forwarded for who only looks.
        assert (known["status"], known["task"], "url" in known) == ("running", first["task"], False)
        again = await server.call("deploy_app", sandbox_id=place, **order)
        assert (again["task"], await fetch(again["url"])) == (first["task"], "works\n")
        assert await running(server, place) == [first["task"]]
        forwarded = await server.call("forward_port", sandbox_id=place, port=8123)
        assert forwarded["url"] == f"http://127.0.0.1:{forwarded['local_port']}/"
        assert await fetch(forwarded["url"]) == "works\n"
        await server.call("delete_sandbox", sandbox_id=place)
    assert platform.containers() == []


async def test_jobs_and_apps_need_no_python_in_the_container(platform: Platform, tmp_path: Path) -> None:
    # What the test's own agent runs on, which nobody else finds; the app could be anything that listens.
    command = "exec /opt/aside/python3 -m http.server -d ~/site 8123"
    async with serving_from(platform, tmp_path, proxied=False) as server:
        made = await server.call("create_sandbox", image=WITHOUT_PYTHON, keep=True, timeout=600)
        place = str(made["sandbox_id"])
        await server.output("mkdir -p site; echo works >site/index.html; ! command -v python3", sandbox_name=place)
        order = {"sandbox_id": place, "command": command, "port": 8123, "health_path": "/"}
        app = await server.call("deploy_app", **order)
        assert (app["status"], await fetch(app["url"])) == ("running", "works\n")
        assert (await server.call("deploy_app", **order))["task"] == app["task"]
        job = {"tmux_session": "long", "sandbox_name": place}
        command = "echo ready; sleep 60"
        await server.call("exec_bash_background", command=command, session_name="long", sandbox_name=place, watch=False)
        waited = await server.call("wait_background_task", until_pattern="^ready$", timeout_s=20, **job)
        assert (waited["running"], waited["log_tail"]) == (True, "ready")
    async with serving_from(platform, tmp_path, proxied=False) as server:
        assert sorted(await running(server, place)) == sorted([app["task"], "long"])
        stopped = await server.call("stop_background_task", **job)
        assert (stopped["stopped"], stopped["running"]) == (True, False)
        assert [known["status"] for known in await apps(server, place)] == ["running"]
        await server.call("delete_sandbox", sandbox_id=place)


async def test_a_watched_job_is_looked_after_on_a_platform_that_only_the_environment_names(
    platform: Platform, tmp_path: Path
) -> None:
    given = {
        "OPENSANDBOX_SERVER": platform.url,
        "OPEN_SANDBOX_API_KEY": API_KEY,
        "OPENSANDBOX_DEFAULT_IMAGE": IMAGE,
    }
    events = tmp_path / "state" / "events"
    try:
        async with serve(tmp_path, env=given) as server:
            place = str((await server.call("create_sandbox", keep=True, timeout=600))["sandbox_id"])
            command = "until [ -e go ]; do sleep 0.1; done; exit 7"
            await server.call("exec_bash_background", command=command, sandbox_name=place, interval_s=1)
            assert not [event.read_text() for event in events.glob("*.json")]
            await server.output("touch go", sandbox_name=place)
        (told,) = await until(lambda: list(events.glob("*.json")), "the watchdog to tell the end", 30)
        event = json.loads(told.read_text())
        assert (event["event_type"], event["payload"].get("exit_code")) == ("completed", 7), event
    finally:
        end_watchdog(tmp_path)
    async with serve(tmp_path, env=given) as server:
        await server.call("delete_sandbox", sandbox_id=place)
    assert platform.containers() == []
