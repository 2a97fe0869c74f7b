"""Deployed apps through the real server: opened on this machine, and known again after a restart of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.jobs import JobRecords
from tests.support.server import Server, entry, serve
from tests.support.sshd import Sshd, free_port


@pytest.fixture(autouse=True)
async def tidy(machine: Sshd) -> AsyncIterator[None]:
    yield
    machine.reset()


def serving(port: int, folder: str = "site") -> dict[str, Any]:
    return {"command": f"exec python3 -m http.server --bind 127.0.0.1 -d ~/{folder} {port}", "port": port}


async def fetch(url: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


def opens(port: int) -> bool:
    with socket.socket() as near:
        return near.connect_ex(("127.0.0.1", port)) == 0


async def apps(server: Server, name: str) -> list[dict[str, Any]]:
    listed = {it["name"]: it for it in (await server.call("list_sandboxes"))["sandboxes"]}
    return list(listed[name].get("apps", []))


def written(home: Path) -> list[str]:
    """The sandboxes of apps that nobody has seen end."""
    database = Database(home / "state" / STATE_FILE)
    found = [record.sandbox for record in JobRecords(database).apps()]
    database.close()
    return found


async def running(server: Server, name: str) -> list[str]:
    tasks = (await server.call("list_background_tasks", sandbox_name=name, status="running"))["tasks"]
    return [task["tmux_session"] for task in tasks]


@pytest.mark.parametrize("how", ["leaves", "is killed"])
async def test_an_app_on_a_machine_is_known_again_when_the_server(machine: Sshd, tmp_path: Path, how: str) -> None:
    order = {"sandbox_id": machine.name, **serving(free_port()), "health_path": "/"}
    async with serve(tmp_path, entry(machine), hub=False) as server:
        await server.output("mkdir -p site; echo works >site/index.html")
        first = await server.call("deploy_app", **order)
        assert await fetch(first["url"]) == "works\n"
        if how == "is killed":
            os.kill(server.pid, signal.SIGKILL)
    async with serve(tmp_path, entry(machine), hub=False) as server:
        (known,) = await apps(server, machine.name)
        assert (known["port"], known["status"], known["task"]) == (order["port"], "running", first["task"])
        assert known["notes"] == ["forward_port gives it an address"]
        assert "url" not in known
        again = await server.call("deploy_app", **order)
        assert (again["status"], again["task"]) == ("running", first["task"])
        assert again["notes"] == ["it runs already, so nothing was started"]
        assert await fetch(again["url"]) == "works\n"
        assert await running(server, machine.name) == [first["task"]]


async def test_an_app_of_an_earlier_server_opens_by_its_port_and_its_end_is_reported(
    machine: Sshd, tmp_path: Path
) -> None:
    port = free_port()
    async with serve(tmp_path, entry(machine), hub=False) as server:
        await server.output("mkdir -p site; echo works >site/index.html")
        task = (await server.call("deploy_app", sandbox_id=machine.name, **serving(port)))["task"]
    async with serve(tmp_path, entry(machine), hub=False) as server:
        problem = await server.fail("deploy_app", sandbox_id=machine.name, **serving(port, "other"))
        assert f"port {port} has another app, which runs as the task {task}, so nothing was started" in problem["error"]
        forwarded = await server.call("forward_port", sandbox_id=machine.name, port=port)
        assert await fetch(forwarded["url"]) == "works\n"
        assert [it["url"] for it in await apps(server, machine.name)] == [forwarded["url"]]
        await server.call("stop_background_task", tmux_session=task)
        (known,) = await apps(server, machine.name)
        assert (known["status"], known["problem"][:7]) == ("stopped", "the app")
    async with serve(tmp_path, entry(machine), hub=False) as server:
        assert await apps(server, machine.name) == []


async def test_two_servers_know_each_others_apps(machine: Sshd, tmp_path: Path) -> None:
    port = free_port()
    async with serve(tmp_path, entry(machine)) as one, serve(tmp_path, entry(machine)) as other:
        await one.output("mkdir -p site")
        task = (await one.call("deploy_app", sandbox_id=machine.name, **serving(port)))["task"]
        assert [it["task"] for it in await apps(other, machine.name)] == [task]
        same = await other.call("deploy_app", sandbox_id=machine.name, **serving(port))
        assert same["task"] == task
        assert await running(other, machine.name) == [task]


async def test_an_app_on_a_machine_that_does_not_answer_is_listed_as_unknown(machine: Sshd, tmp_path: Path) -> None:
    async with serve(tmp_path, entry(machine)) as server:
        await server.output("mkdir -p site")
        await server.call("deploy_app", sandbox_id=machine.name, **serving(free_port()))
    async with serve(tmp_path, entry(machine, port=free_port())) as server:
        (known,) = await apps(server, machine.name)
        assert (known["status"], "url" in known) == ("unknown", False)


async def test_an_app_in_an_embedded_sandbox_ends_with_the_server_and_is_reported_so(tmp_path: Path) -> None:
    port = free_port()
    async with serve(tmp_path, hub=False) as server:
        place = str((await server.call("create_sandbox", keep=True, timeout=3600))["sandbox_id"])
        await server.output("mkdir -p site; echo works >site/index.html", sandbox_name=place)
        first = await server.call("deploy_app", sandbox_id=place, **serving(port))
        assert await fetch(first["url"]) == "works\n"
        problem = await server.fail("deploy_app", sandbox_id=place, **serving(port, "other"))
        assert f"runs as the task {first['task']} at {first['url']}" in problem["error"]
    async with serve(tmp_path, hub=False, local=True) as server:
        (known,) = await apps(server, place)
        assert (known["status"], "url" in known) == ("failed", False)
        second = await server.call("deploy_app", sandbox_id=place, **serving(port))
        assert (await fetch(second["url"]), second["task"] != first["task"]) == ("works\n", True)
        await server.call("delete_sandbox", sandbox_id=place)
        listed = (await server.call("list_sandboxes"))["sandboxes"]
        assert [it.get("apps", []) for it in listed] == [[]]
        assert written(tmp_path) == []
        assert not opens(int(second["url"].rstrip("/").rpartition(":")[2]))


async def test_an_unreadable_database_does_not_prevent_the_list(machine: Sshd, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / STATE_FILE).write_bytes(b"this is no database\n" * 1000)
    async with serve(tmp_path, entry(machine)) as server:
        assert await apps(server, machine.name) == []
        assert "apps of earlier servers are not known" in server.stderr
