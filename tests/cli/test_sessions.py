"""`sessions`: those that agents have begun are listed, completed and closed."""

from __future__ import annotations

import asyncio
import os

from remote_sandbox_mcp.app import compose
from remote_sandbox_mcp.config.load import load
from tests.cli.conftest import Cli
from tests.support.sshd import Sshd


def begun(cli: Cli, *names: str) -> None:
    """Shell sessions in which an agent has worked."""

    async def work() -> None:
        app = compose(load(None))
        try:
            for name in names:
                await app.commands.run("cd /tmp", session=name)
        finally:
            await app.close()

    os.environ["REMOTE_SANDBOX_LIST"] = cli.env["REMOTE_SANDBOX_LIST"]
    try:
        asyncio.run(work())
    finally:
        del os.environ["REMOTE_SANDBOX_LIST"]


def test_sessions_are_listed_and_closed(cli: Cli, good: Sshd) -> None:
    assert cli("sessions").stdout == "No sessions; exec_bash with session=NAME and run_python begin them.\n"
    begun(cli, "main", "other")
    header, *rows = cli("sessions").stdout.splitlines()
    assert header.split() == ["session", "on", "state", "used", "folder"]
    assert sorted(row.split()[:3] for row in rows) == [
        ["shell:main", "shared", "idle"],
        ["shell:other", "shared", "idle"],
    ]
    assert "shell:main\ton shared" in cli("__complete", "sessions", "close", "sh").stdout
    closed = cli("sessions", "close", "shell:main", "python:none", "train", "--json")
    assert closed.code == 2
    assert closed.json["closed"] == [{"session": "shell:main", "sandbox": "shared", "status": "closed"}]
    assert [it["code"] for it in closed.json["problems"]] == ["bad_argument"] * 2
    assert cli("sessions", "close", "shell:other").stdout == "shell:other on shared is closed\n"
    assert cli("sessions", "--json").json == {"sessions": []}
