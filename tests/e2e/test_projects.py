"""What comes with a project in the current folder: nothing of it runs, is imported, or is sent anywhere."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.local.processes.locks import holder
from remote_sandbox_mcp.local.processes.process import module_words
from remote_sandbox_mcp.services.watchdog.daemon import LOCK_FILE
from tests.support import warm
from tests.support.pace import at_most
from tests.support.server import COMMAND, Server, entry, environment, serve, until
from tests.support.sshd import Sshd, wait_until

COMMAND_S = 60
SECRET = "hunter2-do-not-send"
# What Python itself loads for `python -m`, before anything of ours, cannot be kept from the current folder.
LOADED_LATER = ("mcp", "asyncio", "asyncssh", "anyio", "json", "argparse", "pydantic", "keyring", "rich", "sqlite3")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A cloned repository, in which the server is started."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Is there as soon as anything of the project has run."""
    return tmp_path / "mark"


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that whoever has sent the project runs on this computer: its port, and what was sent to it."""
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(65536))
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


def write_config(project: Path, **opensandbox: Any) -> Path:
    path = project / "config.json"
    path.write_text(json.dumps({"opensandbox": {"default_image": "python:3.12", **opensandbox}}))
    return path


def config(home: Path, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What a user runs in the project's folder."""
    done = warm.run([COMMAND, "config", *words], environment(home, ()), timeout=COMMAND_S, cwd=str(project))
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


async def use(server: Server) -> list[str]:
    """The calls that would reach a platform; gives what is told of the configuration."""
    await server.ask("create_sandbox")
    return list((await server.call("list_sandboxes")).get("problems", []))


@pytest.mark.parametrize("is_accepted", [False, True], ids=["as cloned", "accepted"])
async def test_a_projects_config_json_runs_nothing_and_connects_only_if_accepted(
    tmp_path: Path, project: Path, mark: Path, is_accepted: bool
) -> None:
    async with listening() as (port, heard):
        command = f"command:sh -c 'touch {mark}; echo key'"
        path = write_config(project, server_url=f"http://127.0.0.1:{port}", api_key=command, pool={"x": 1})
        door = {"door": {"command": ["sh", "-c", f"touch {mark}"]}}
        path.write_text(json.dumps({**json.loads(path.read_text()), "sandboxes": door}))
        (project / "config.toml").write_text(f"[sandboxes.door]\ncommand = {json.dumps(door['door']['command'])}\n")
        if is_accepted:
            assert config(tmp_path, project, "allow", "--yes").returncode == 0
        async with serve(tmp_path, local=True, cwd=project) as server:
            told = "\n".join(await use(server))
        assert not mark.exists()
        assert bool(heard) == is_accepted
        assert ("api_key, pool, sandboxes passed over" if is_accepted else "counts for nothing until") in told
        assert told.partition("\n")[0] in server.stderr


@pytest.mark.parametrize(
    ("reference", "is_accepted"),
    [
        pytest.param("env:TOKEN", False, id="a variable, as cloned"),
        pytest.param("file:{secret}", True, id="a file, accepted"),
    ],
)
async def test_a_projects_config_json_sends_no_secret_away(
    tmp_path: Path, project: Path, reference: str, is_accepted: bool
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    async with listening() as (port, heard):
        key = reference.format(secret=tmp_path / "secret")
        write_config(project, server_url=f"http://127.0.0.1:{port}", api_key=key)
        if is_accepted:
            config(tmp_path, project, "allow", "--yes")
        async with serve(
            tmp_path, local=True, cwd=project, env={"TOKEN": SECRET, "OPEN_SANDBOX_API_KEY": SECRET}
        ) as server:
            await use(server)
        assert bool(heard) == is_accepted
        assert SECRET.encode() not in b"".join(heard)
        assert SECRET not in server.everything_said


async def test_a_projects_log_file_is_written_once_it_is_accepted(tmp_path: Path, project: Path) -> None:
    document = {"opensandbox": {}, "logging": {"level": "INFO", "file": "server.log"}}
    (project / "config.json").write_text(json.dumps(document))
    for is_accepted in (False, True):
        async with serve(tmp_path, local=True, cwd=project) as server:
            await server.call("get_active_sandbox")
        written = (project / "server.log").read_text() if (project / "server.log").exists() else ""
        assert ("get_active_sandbox" in written) == is_accepted
        config(tmp_path, project, "allow", "--yes")


async def test_a_project_is_accepted_by_its_content_and_can_be_denied_again(tmp_path: Path, project: Path) -> None:
    path = write_config(project, max_concurrent_sandboxes=1, api_key="env:KEY")
    allowed = config(tmp_path, project, "allow", "--yes")
    assert allowed.stdout == f"Accepted as it is now: {path}\n"
    assert "What counts of it:\n  opensandbox.default_image = python:3.12\n" in allowed.stderr
    assert "  opensandbox.max_concurrent_sandboxes = 1\n" in allowed.stderr
    assert "api_key passed over" in allowed.stderr
    async with serve(tmp_path, local=True, cwd=project) as server:
        await server.call("create_sandbox")
        assert "max_concurrent_sandboxes is 1" in (await server.fail("create_sandbox"))["error"]
    assert (tmp_path / "state" / "accepted-projects.json").stat().st_mode & 0o777 == 0o600
    write_config(project, max_concurrent_sandboxes=1, default_timeout=1)
    assert "has changed since it was accepted" in config(tmp_path, project, "show").stdout
    config(tmp_path, project, "allow", "--yes", str(project))
    assert "counts for nothing" not in config(tmp_path, project, "show").stdout
    assert config(tmp_path, project, "deny", "config.json").stdout == "config.json is not accepted any more.\n"
    assert "counts for nothing" in config(tmp_path, project, "show").stdout


def test_only_a_file_for_us_can_be_accepted(tmp_path: Path, project: Path) -> None:
    nothing = config(tmp_path, project, "allow", "--yes")
    (project / "config.json").write_text("{}")
    other = config(tmp_path, project, "allow", "--yes")
    assert (nothing.returncode, other.returncode) == (2, 2)
    assert "is not there, so there is nothing to accept" in nothing.stderr
    assert 'is not a JSON object with an "opensandbox" part' in other.stderr


def test_a_projects_workspace_file_is_accepted_as_it_is_and_shown(tmp_path: Path, project: Path) -> None:
    (project / "config.json").write_text('{"name": "web-app"}')
    path = project / ".remote-sandbox.toml"
    path.write_text('sandbox = "gpu1"\ninit = "echo \u202eevil"\nonly_remote = true\nsudo = "nopasswd"\n')
    assert "counts for nothing until the user accepts it" in config(tmp_path, project, "show").stdout
    allowed = config(tmp_path, project, "allow", "--yes")
    said = "What counts of it:\n  sandbox = gpu1\n  init = echo \\u202eevil\n  only_remote = yes\n"
    assert allowed.stdout == f"Accepted as it is now: {path}\n"
    assert said in allowed.stderr
    assert '  | init = "echo \\u202eevil"\n' in allowed.stderr
    assert 'the unknown key "sudo" is passed over' in allowed.stderr
    shown = json.loads(config(tmp_path, project, "show", "--json").stdout)
    assert shown["workspace_file"]["only_remote"] is True
    path.write_text("only_remote = 3")
    refused = config(tmp_path, project, "allow", "--yes", str(path))
    assert (refused.returncode, "only_remote must be true or false" in refused.stderr) == (2, True)
    assert "stays in force" in config(tmp_path, project).stdout
    assert "is not accepted any more" in config(tmp_path, project, "deny").stdout


# Modules and programs


def put_decoys(project: Path, mark: Path, names: tuple[str, ...] = ()) -> None:
    """Modules of every name that any program of ours could import, and what other programs read or start."""
    say = f"open({str(mark)!r}, 'a').write(__name__ + '\\n')\n"
    standard = {name for name in sys.stdlib_module_names if name not in sys.builtin_module_names}
    everything = standard | set(packages_distributions()) | {"remote_sandbox_mcp", "sitecustomize", "usercustomize"}
    for name in names or everything:
        (project / f"{name}.py").write_text(say)
    for name in ("sh", "bash", "bwrap", "tmux", "ssh", "ps", "python3", "docker", "notify-send"):
        (project / name).write_text(f"#!/bin/sh\necho {name} >>{mark}\n")
        (project / name).chmod(0o755)
    for folder in ("state", ".config/remote-sandbox-mcp", ".ssh", "config/remote-sandbox-mcp"):
        (project / folder).mkdir(parents=True)
    machine = f"[machines.decoy]\nhost = '127.0.0.1'\npassword = 'command:touch {mark}'\n"
    for name in (".config/remote-sandbox-mcp/config.toml", "config/remote-sandbox-mcp/config.toml", "config.toml"):
        (project / name).write_text(machine)
    (project / ".env").write_text("REMOTE_HOST=127.0.0.1\nFASTMCP_DEBUG=true\nPYTHONPATH=.\n")
    (project / ".ssh" / "config").write_text(f"Host *\n ProxyCommand touch {mark}\n")


def seen(mark: Path) -> str:
    return mark.read_text() if mark.exists() else ""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """The state folder, whose daemon does not outlive the test."""
    lock = tmp_path / "state" / LOCK_FILE
    yield lock
    if found := holder(lock):
        os.kill(found.pid, signal.SIGKILL)
        wait_until(lambda: not holder(lock), what="the daemon to be gone")


async def test_the_server_and_its_daemon_load_nothing_from_the_current_folder(
    tmp_path: Path, project: Path, mark: Path, daemon: Path, machine: Sshd
) -> None:
    put_decoys(project, mark)
    async with serve(tmp_path, entry(machine), local=True, cwd=project) as server:
        listed = await server.call("list_sandboxes", check_resources=True)
        assert [sandbox["name"] for sandbox in listed["sandboxes"]] == [machine.name, "local"]
        begun = await server.call("exec_bash_background", command="echo hi", session_name="job")
        await server.call("wait_background_task", tmux_session="job")
        await until(lambda: holder(daemon), f"the daemon to run: {begun}")
        await server.call("search_remote_files", pattern="hi", sandbox_name="local")
        await server.call("create_sandbox")
    assert seen(mark) == ""
    assert "Error" not in (tmp_path / "state" / "hub" / "hub.log").read_text()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        pytest.param((COMMAND, "sandboxes", "--json"), (), id="installed"),
        pytest.param((*module_words("remote_sandbox_mcp"), "sandboxes", "--json"), (), id="as the service is started"),
        pytest.param(
            (sys.executable, "-m", "remote_sandbox_mcp.server", "sandboxes", "--json"), LOADED_LATER, id="-m server"
        ),
    ],
)
def test_no_way_to_start_it_loads_a_module_of_the_current_folder(
    tmp_path: Path, project: Path, mark: Path, words: tuple[str, ...], names: tuple[str, ...]
) -> None:
    put_decoys(project, mark, names)
    done = subprocess.run(
        words, env=environment(tmp_path, ()), cwd=project, capture_output=True, text=True, timeout=at_most(30)
    )
    assert (seen(mark), done.returncode) == ("", 0), done.stderr
    assert [sandbox["name"] for sandbox in json.loads(done.stdout)["sandboxes"]] == ["local"]
