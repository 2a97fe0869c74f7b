"""A project here, its commands there: a real client in a linked folder, a real server, a real machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.types import ElicitResult

from remote_sandbox_mcp.config.accepted import accept
from remote_sandbox_mcp.config.workspace_file import find
from remote_sandbox_mcp.core.workspaces import workspace as bounds
from tests.support import warm
from tests.support.hubs import kill_hub
from tests.support.in_process import serve_here
from tests.support.ports import free_port
from tests.support.server import Server, arguments, entry, environment, serve, until
from tests.support.sshd import Sshd

TEST = """
import os, unittest

class Colour(unittest.TestCase):
    def test_it(self):
        self.assertEqual(os.environ.get("COLOUR"), "blue")
"""


class Scene:
    """A home folder with projects, and the machine that they are linked to."""

    def __init__(self, home: Path, machine: Sshd) -> None:
        self.home = home
        self.machine = machine

    def project(self, name: str = "project", **files: str) -> Path:
        folder = self.home / name
        folder.mkdir()
        for file, content in {"a.py": "print('one')\n", **files}.items():
            (folder / file).write_text(content)
        return folder

    def there(self, name: str) -> Path:
        return self.machine.home / name

    async def shell(self, command: str) -> None:
        """A person works on the machine."""
        await asyncio.to_thread(subprocess.run, self.machine.client(command), check=True, timeout=10)

    @asynccontextmanager
    async def client(self, folder: Path, **how: Any) -> AsyncIterator[Server]:
        async with serve(self.home, entry(self.machine), cwd=folder, **how) as server:
            yield server


@pytest.fixture
def scene(tmp_path: Path, machine: Sshd) -> Scene:
    return Scene(tmp_path, machine)


@pytest.fixture
def remote(request: pytest.FixtureRequest) -> str:
    """A folder on the machine that no other test has used."""
    return request.node.name.replace("[", "-").rstrip("]")[:80]


async def link(server: Server, machine: Sshd, remote: str) -> dict[str, Any]:
    return await server.call("link_workspace", remote_path=f"{machine.name}:{remote}")


@pytest.mark.parametrize("hub", [True, False], ids=["hub", "no_hub"])
async def test_what_is_edited_here_runs_there_and_what_comes_of_it_comes_back(
    scene: Scene, remote: str, hub: bool
) -> None:
    project = scene.project(**{".env": "TOKEN=1\n", "main.c": "x\n"})
    (project / "src").mkdir()
    async with scene.client(project, hub=hub) as server:
        linked = await link(server, scene.machine, remote)
        assert (linked["status"], linked["local_path"]) == ("linked", str(project))
        assert linked["remote_path"] == f"{scene.machine.name}:{scene.there(remote)}"
        assert linked["notes"][0].startswith("not sent, because the name is that of a secret: .env;")
        assert await server.output("pwd; python3 a.py") == f"{scene.there(remote)}\none\n"
        (project / "a.py").write_text("print('two')\n")
        seen = await server.run("python3 a.py; sed -i s/x/y/ main.c; mkdir results; echo 1 >results/log.csv")
        assert seen["stdout"] == "two\n"
        assert seen["workspace"].startswith("sent a.py (13 bytes); came back: main.c, results/log.csv")
        assert ((project / "main.c").read_text(), (project / "results/log.csv").read_text()) == ("y\n", "1\n")
        assert not scene.there(f"{remote}/.env").exists()
        assert "workspace" not in await server.run("true")
        await server.call("edit_remote_file", remote_path="a.py", old_text="two", new_text="three")
        assert (project / "a.py").read_text() == "print('three')\n"
        (project / "main.c").unlink()
        assert "main.c" not in await server.output("ls")
        listed = await server.call("list_sandboxes")
        assert listed["sandboxes"][0]["workspace"] == f"{project} = {scene.there(remote)}"
        assert (await server.call("link_workspace"))["status"] == "in step"
        ended = await server.call("link_workspace", unlink=True)
        assert ended["status"] == "unlinked"
        assert await server.output("pwd") == f"{scene.machine.home}\n"
        assert (project / "a.py").exists()
        assert scene.there(f"{remote}/a.py").exists()


async def test_a_client_in_a_folder_of_the_project_works_in_the_same_folder_there(scene: Scene, remote: str) -> None:
    project = scene.project()
    inner = project / "src/deep"
    inner.mkdir(parents=True)
    (inner / "b.txt").write_text("b\n")
    async with scene.client(project) as server:
        await link(server, scene.machine, remote)
    async with scene.client(inner) as server:
        there = scene.there(remote)
        assert await server.output("pwd; cat b.txt") == f"{there}/src/deep\nb\n"
        assert await server.output("pwd", cwd="src") == f"{there}/src\n"
        assert await server.output("pwd", cwd=str(project)) == f"{there}\n"
        assert await server.output("pwd", cwd="/") == "/\n"
        (inner / "b.txt").write_text("c\n")
        assert (await server.call("read_remote_file", remote_path="src/deep/b.txt"))["content"] == "c\n"


async def test_a_conflict_is_told_and_decided_by_the_tool(scene: Scene, remote: str) -> None:
    project = scene.project(**{"b.py": "b\n"})
    async with scene.client(project) as server:
        await link(server, scene.machine, remote)
        command = "echo theirs | tee a.py >b.py"
        await scene.shell(f"cd {remote} && {command}")
        (project / "a.py").write_text("ours here\n")
        (project / "b.py").write_text("ours here\n")
        told = (await server.run("cat a.py"))["workspace"]
        assert "in conflict: a.py, b.py changed on both sides" in told
        state = await server.call("link_workspace")
        assert (state["status"], state["conflicts"]) == ("in conflict", ["a.py", "b.py"])
        assert (await server.call("read_remote_file", remote_path="a.py"))["content"] == "theirs\n"
        assert (project / "a.py").read_text() == "ours here\n"
        await server.call("link_workspace", keep_local=["a.py"], keep_remote=[str(project / "b.py")])
        assert await server.output("cat a.py") == "ours here\n"
        assert (project / "b.py").read_text() == "theirs\n"
        assert (await server.call("link_workspace"))["status"] == "in step"


async def test_init_lines_run_before_tests_and_python_sessions_as_before_commands(scene: Scene, remote: str) -> None:
    project = scene.project(**{"test_a.py": TEST, ".remote-sandbox.toml": 'init = ["echo hello", ". ./env.sh"]'})
    (project / "env.sh").write_text("export COLOUR=blue\n")
    (project / "sub").mkdir()
    (project / "sub/test_b.py").write_text(TEST)
    file = find(str(project / ".remote-sandbox.toml"))
    assert file
    async with scene.client(project, hub=False) as server:
        accept(file.path, file.acceptance, scene.home / "state")
        await link(server, scene.machine, remote)
        assert await server.output("echo $COLOUR") == "hello\nblue\n"
        for path in ("", "sub"):
            assert (await server.call("run_tests", path=path))["passed"] == 1
        done = await server.call("run_python", code="import os; print('out'); os.environ['COLOUR'], os.getcwd()")
        assert (done["value"], done["stdout"]) == (str(("blue", str(scene.there(remote)))), "out\n")
        await server.call("stop_background_task", tmux_session="python:main")


async def test_an_app_and_a_shell_session_begin_in_the_linked_folder_on_what_is_here(scene: Scene, remote: str) -> None:
    project, port = scene.project(), free_port()
    async with scene.client(project, hub=False) as server:
        await link(server, scene.machine, remote)
        (project / "page.txt").write_text("newest\n")
        app = await server.call("deploy_app", command=f"pwd; python3 -m http.server {port}", port=port)
        assert app["status"] == "running", app
        assert await server.output(f"curl -s 127.0.0.1:{port}/page.txt || cat page.txt") == "newest\n"
        assert await server.output("pwd", session="main") == f"{scene.there(remote)}\n"
        await server.call("stop_background_task", tmux_session=app["task"])
        (listed,) = (await server.call("list_sandboxes"))["sandboxes"]
        assert [it["status"] for it in listed["apps"]] == ["stopped"]
        await server.call("stop_background_task", tmux_session="shell:main")


async def test_two_clients_share_one_workspace(scene: Scene, remote: str) -> None:
    project = scene.project()
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(scene.client(project)) for _ in range(2)]
        await link(one, scene.machine, remote)
        (project / "a.py").write_text("print('two')\n")
        outputs = await asyncio.gather(*(client.output("python3 a.py") for client in (one, other) * 3))
        assert set(outputs) == {"two\n"}
        await other.run("echo new >made.txt")
        assert (project / "made.txt").read_text() == "new\n"
        assert "workspace" not in await one.run("true")


async def test_what_a_job_made_comes_when_it_has_ended(scene: Scene, remote: str) -> None:
    project = scene.project()
    async with scene.client(project) as server:
        await link(server, scene.machine, remote)
        (project / "go.sh").write_text("mkdir -p results; echo 7 >results/n\n")
        job = await server.call("exec_bash_background", command="sh go.sh", watch=False)
        assert job["workspace"].startswith("sent go.sh")
        ended = await server.call("wait_background_task", tmux_session=job["tmux_session"], timeout_s=20)
        assert (ended["exit_code"], "results/n" in ended["workspace"]) == (0, True)
        assert (project / "results/n").read_text() == "7\n"
        assert scene.there(f"{remote}/.codex_logs").exists()
        assert not (project / ".codex_logs").exists()


async def test_a_hub_that_dies_during_a_call_leaves_the_workspace_in_step(scene: Scene, remote: str) -> None:
    project = scene.project()
    async with scene.client(project) as server:
        await link(server, scene.machine, remote)
        (project / "a.py").write_text("print('two')\n")
        command = "touch begun; echo run >>runs; python3 a.py; while [ ! -e go ]; do sleep 0.05; done; echo 1 >new.txt"
        call = asyncio.ensure_future(server.run(command))
        begun = scene.there(f"{remote}/begun")
        await until(begun.exists, "the command")
        await asyncio.to_thread(kill_hub, scene.home)
        await scene.shell(f"touch {remote}/go")
        done = await call
        assert (done["exit_code"], done["stdout"]) == (0, "two\n")
        assert (project / "new.txt").read_text() == "1\n"
        assert (project / "runs").read_text() == "run\n"


# A large first send


def answering(agreed: bool | None) -> Callable[..., Any]:
    async def fill_in(context: Any, params: Any) -> ElicitResult:
        assert "Send 3 files" in params.message
        if agreed is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=dict.fromkeys(params.requested_schema["properties"], agreed))

    return fill_in


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("agreed", [True, False, None], ids=["yes", "no", "declined"])
async def test_a_large_first_send_is_asked_about(
    scene: Scene, remote: str, mode: str, agreed: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = scene.project(**{"b": "b", "c": "c"})
    monkeypatch.chdir(project)
    monkeypatch.setattr(bounds, "MOST_UNASKED_FILES", 2)
    async with serve_here(scene.home, entry(scene.machine), mode=mode, elicitation=answering(agreed)) as server:
        if agreed:
            assert (await link(server, scene.machine, remote))["status"] == "linked"
            assert (await server.output("ls")).split() == ["a.py", "b", "c"]
        else:
            told = await server.fail("link_workspace", remote_path=f"{scene.machine.name}:{remote}")
            assert "3 files" in told["error"]
            assert not scene.there(remote).exists()


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_declined_send_is_not_overruled_by_confirm(
    scene: Scene, remote: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, asked = scene.project(**{"b": "b", "c": "c"}), list[str]()
    monkeypatch.chdir(project)
    monkeypatch.setattr(bounds, "MOST_UNASKED_FILES", 2)

    async def decline(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="decline")

    async with serve_here(scene.home, entry(scene.machine), mode=mode, elicitation=decline) as server:
        place = f"{scene.machine.name}:{remote}"
        for confirm in (True, False, True):
            told = await server.fail("link_workspace", remote_path=place, confirm=confirm)
            assert "declined" in told["error"]
            assert f"remote-sandbox-mcp link {scene.machine.name}:" in told["error"]
            assert "confirm=true" not in told["error"]
    assert (len(asked), scene.there(remote).exists()) == (1, False)


async def test_a_large_first_send_that_nobody_can_be_asked_about_needs_confirm(
    scene: Scene, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = scene.project(**{"b": "b", "c": "c"})
    monkeypatch.chdir(project)
    monkeypatch.setattr(bounds, "MOST_UNASKED_FILES", 2)
    async with serve_here(scene.home, entry(scene.machine)) as server:
        place = f"{scene.machine.name}:{remote}"
        told = await server.fail("link_workspace", remote_path=place)
        assert "confirm=true" in told["error"]
        would = await server.call("link_workspace", remote_path=place, dry_run=True)
        assert (would["would_send_files"], scene.there(remote).exists()) == (3, False)
        assert (await server.call("link_workspace", remote_path=place, confirm=True))["status"] == "linked"


# An agent that was talked into it


async def test_what_more_than_a_project_depends_on_is_not_linked(scene: Scene, remote: str) -> None:
    project, keys = scene.project(), scene.home / ".ssh"
    keys.mkdir()
    (keys / "id_rsa").write_text("key")
    (scene.home / "innocent").symlink_to(keys)
    async with scene.client(project) as server:
        for local in ("~/.ssh", str(scene.home / "innocent"), "/", "~", "..", str(scene.home / "state"), "/etc"):
            told = await server.fail("link_workspace", local_path=local, remote_path=f"{scene.machine.name}:{remote}")
            assert told["code"] in ("bad_argument", "workspace"), (local, told)
        for there in ("~", "/", "", ".", "~/.ssh", "/etc", "/tmp", "~/..", f"../{scene.machine.home.name}"):
            told = await server.fail("link_workspace", sandbox_name=scene.machine.name, remote_path=there or "~/")
            assert told["code"] in ("bad_argument", "workspace"), (there, told)
        assert (await server.call("link_workspace"))["status"] == "none"
    assert not scene.there(remote).exists()
    assert [path.name for path in scene.machine.home.glob("**/id_rsa")] == []


async def test_names_of_secrets_stay_here_and_are_named_with_what_an_agent_can_do(scene: Scene, remote: str) -> None:
    project = scene.project(**{".mcp.json": "{}", "office.ovpn": "key"})
    for folder, name in ((".docker", "config.json"), (".ssh", "known_hosts")):
        (project / folder).mkdir()
        (project / folder / name).write_text("secret")
    async with scene.client(project) as server:
        for folder in (".ssh", ".docker/config.json"):
            told = await server.fail("link_workspace", local_path=folder, remote_path=f"{scene.machine.name}:{remote}")
            assert "not linked for an agent" in told["error"]
        note = (await link(server, scene.machine, remote))["notes"][0]
        assert all(name in note for name in (".docker/config.json", ".mcp.json", ".ssh", "office.ovpn"))
        assert "sync_local_to_remote" in note
        assert "--include" not in note
        assert (await server.output("find . -type f")).split() == ["./a.py"]


async def test_to_link_again_keeps_the_rules_of_the_person_who_linked(
    scene: Scene, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = scene.project(**{"data.bin": "kept here"})
    monkeypatch.chdir(project)
    words = arguments(scene.home, local=False)
    place, env = f"{scene.machine.name}:{remote}", environment(scene.home, (entry(scene.machine),))
    linked = warm.run([*words, "link", place, "--exclude", "data.bin"], env, timeout=30)
    assert linked.returncode == 0, linked.stderr
    async with scene.client(project) as server:
        assert (await link(server, scene.machine, remote))["status"] == "linked"
        assert await server.output("ls") == "a.py\n"
        moved = await server.fail("link_workspace", remote_path=f"{place}-elsewhere")
        assert "unlink it first" in moved["error"]


async def test_a_client_cannot_touch_the_workspace_of_another_folder(scene: Scene, remote: str) -> None:
    project, another = scene.project(), scene.project("another")
    async with scene.client(project) as server, scene.client(another) as stranger:
        await link(server, scene.machine, remote)
        for given in ({"unlink": True}, {"keep_remote": ["a.py"]}, {}):
            told = await stranger.fail("link_workspace", local_path=str(project), **given)
            assert "is not the workspace that you work in" in told["error"]
        nested = await stranger.fail("link_workspace", remote_path=f"{scene.machine.name}:{remote}/inner")
        assert nested["code"] in ("bad_argument", "workspace")
        for path in ("../another/a.py", "/etc/passwd", "", "."):
            told = await server.fail("link_workspace", keep_remote=[path])
            assert told["code"] == "bad_argument", path
        assert (await server.call("link_workspace"))["status"] == "in step"
    assert os.path.exists(another / "a.py")
