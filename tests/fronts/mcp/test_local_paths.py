"""Every argument that names a file of the user's machine passes one gate: attacks on it through the tools."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import remote_sandbox_mcp
from remote_sandbox_mcp.app import App, compose
from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.link.lane import OutpostLane
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.allowances import Allowance, allow, disallow
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.sync.transfer import Lane, Order, Place
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import Nearby, connected, member
from tests.support.server import Caller, until

SECRET = "the user's key"

# Every argument that can hold a text, of every tool: those that name a file of the user's machine ...
LOCAL = {
    "sync_local_to_remote": {"local_path", "exclude_file"},
    "sync_remote_to_local": {"local_path", "exclude_file"},
    "sync_local_to_remote_background": {"local_path", "exclude_file"},
    "upload_files": {"files[].local_path"},
    "download_files": {"local_dir"},
}
# ... those that name a folder to link, or paths in one that is linked (tests/e2e/test_workspaces.py attacks these) ...
LINKED = {"link_workspace": {"local_path", "keep_local[]", "keep_remote[]"}}
# ... those that a provider of sandboxes judges, which shows them inside of one ...
SHOWN_INSIDE = {"create_sandbox": {"image", "volumes[]"}}
# ... and those that name something else: a sandbox, a file there, a command, a text.
WATCHED = {
    *("sandbox_name", "log_file", "run_id", "cwd", "resume_command", "resume_plan_json", "checkpoint_path"),
    *("checkpoint_command", "checkpoint_format", "webhook_url", "event_command", "metadata_json", "codex_command"),
    "watch_id",
}
JOB = {*WATCHED, "command", "session_name", "watch_name", "gpu_memory", "run_for", "after[]"} - {"watch_id"}
SYNC = {"remote_path", "excludes[]", "sandbox_name"}
NOT_LOCAL = {
    "select_sandbox": {"sandbox_name"},
    "exec_bash": {"command", "cwd", "env{}", "input", "sandbox_name", "sandbox_names", "sandbox_names[]", "session"},
    "exec_bash_background": JOB,
    "exec_bash_background_watch": JOB,
    "watch_background_task": {*WATCHED, "tmux_session", "name", "launch_command"} - {"watch_id"},
    "check_background_task": {"tmux_session", "log_file", "watch_id", "sandbox_name"},
    "wait_background_task": {"tmux_session", "watch_id", "until_pattern", "sandbox_name"},
    "stop_background_task": {"tmux_session", "watch_id", "sandbox_name"},
    "list_background_tasks": {"sandbox_name", "status"},
    "send_background_input": {"tmux_session", "text", "keys[]", "sandbox_name"},
    "read_screen": {"tmux_session", "sandbox_name"},
    "raise_background_task": {"tmux_session", "sandbox_name"},
    "resume_background_task": {"tmux_session", "sandbox_name", "resume_command"},
    "list_remote_files": {"remote_path", "sandbox_name", "cursor"},
    "read_remote_file": {"remote_path", "sandbox_name"},
    "write_remote_file": {"remote_path", "content", "sandbox_name", "encoding"},
    "edit_remote_file": {"remote_path", "old_text", "new_text", "sandbox_name"},
    "search_remote_files": {"remote_path", "pattern", "glob", "sandbox_name", "cursor"},
    "sync_local_to_remote": SYNC,
    "sync_remote_to_local": SYNC,
    "sync_local_to_remote_background": SYNC,
    "link_workspace": {"remote_path", "sandbox_name"},
    "check_file_transfer_task": {"task_id"},
    "cancel_file_transfer_task": {"task_id"},
    "create_sandbox": {"env{}", "name", "memory", "network[]", "gpu", "gpu_memory", "on", "slurm{}"},
    "run_command": {"sandbox_id", "command", "cwd", "input", "env{}"},
    "run_python": {"code", "session", "sandbox_name", "python", "cwd", "gpu_memory"},
    "upload_files": {"sandbox_id", "files[].path", "files[].content", "files[].text"},
    "download_files": {"sandbox_id", "paths[]", "encoding"},
    "delete_sandbox": {"sandbox_id"},
    "run_tests": {"sandbox_id", "command", "path", "tmux_session", "gpu_memory"},
    "deploy_app": {"sandbox_id", "command", "health_path", "cwd", "gpu_memory"},
    "forward_port": {"sandbox_id"},
    "list_background_watches": {"status"},
    "snapshot_sandbox": {"sandbox_id", "name"},
    "restore_sandbox": {"snapshot", "name"},
    "renew_sandbox": {"sandbox_id"},
    "pause_sandbox": {"sandbox_id"},
    "resume_sandbox": {"sandbox_id"},
    "get_sandbox_endpoint": {"sandbox_id"},
}


def texts(schema: dict[str, Any], defs: dict[str, Any], name: str = "") -> Iterator[str]:
    """The names of all places in an argument that can hold a text."""
    schema = defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for branch in schema.get("anyOf", ()):
        yield from texts(branch, defs, name)
    if schema.get("type") == "string" or not schema.keys() & {"type", "anyOf", "enum", "const"}:
        yield name
    if isinstance(items := schema.get("items"), dict):
        yield from texts(items, defs, f"{name}[]")
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from texts(values, defs, f"{name}{{}}")
    for key, inner in schema.get("properties", {}).items():
        yield from texts(inner, defs, f"{name}.{key}" if name else key)


def test_every_argument_is_known_to_name_a_local_file_or_not() -> None:
    server = build(App(Fleet([]), settings=Settings(expose_advanced_tools=True)))
    # Also tools that are not listed: they can be called.
    for tool in filter(None, map(server._toolbox.get_tool, server._toolbox._offers)):
        # Of all that it takes: what is not listed can name a file just as well.
        takes = tool.fn_metadata.arg_model.model_json_schema()
        found = set(texts(takes, takes.get("$defs", {})))
        known = [table.get(tool.name, set()) for table in (LOCAL, LINKED, SHOWN_INSIDE, NOT_LOCAL)]
        unknown = found - set().union(*known)
        assert not unknown, f"{tool.name}: say in this file whether {unknown} names a file of the user's machine"


class Watched(Nearby):
    """A sandbox whose lanes can be stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: list[OutpostLane] = []
        self.stop_before = ""
        # A transfer opens it when its paths are allowed, and reads nothing before.
        self.is_asked, self.may_open = False, asyncio.Event()
        self.may_open.set()

    async def open_lane(self) -> Lane:
        self.is_asked = True
        await self.may_open.wait()
        lane = await here.open_lane()
        begin = lane.begin

        def begin_or_stop(order: Any, *args: Any, **more: Any) -> Any:
            if order["verb"] == self.stop_before:
                self.stop_before = ""
                os.kill(pid_of(lane), signal.SIGSTOP)
            return begin(order, *args, **more)

        lane.begin = begin_or_stop  # type: ignore[method-assign]
        self.lanes.append(lane)
        return lane


def pid_of(lane: OutpostLane) -> int:
    return int(lane._line._process.pid)  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def attacker(**settings: Any) -> AsyncIterator[tuple[Caller, Watched]]:
    """A client whose one sandbox is hostile. The operator lets agents use the home folder, but for what is closed."""
    sandbox = Watched()
    settings.setdefault("allowed_roots", (os.environ["HOME"],))
    async with connected(App(Fleet([member(sandbox)]), settings=Settings(**settings))) as tools:
        yield tools, sandbox


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """What the sandbox holds."""
    folder = tmp_path / "far"
    folder.mkdir()
    (folder / "authorized_keys").write_text("an attacker's key")
    return folder


@pytest.fixture
def home(clean_environment: Path) -> Path:
    (clean_environment / ".ssh").mkdir(mode=0o700)
    (clean_environment / ".ssh" / "id").write_text(SECRET)
    (clean_environment / "project").mkdir()
    return clean_environment


def holds_secret(folder: Path) -> bool:
    return any(SECRET in path.read_text() for path in folder.rglob("*") if path.is_file())


# A key, by its name, by another spelling and through a link; our own state and configuration.
FORBIDDEN = [
    *(".ssh/id", "project/../.ssh/id", "project/way/id"),
    *("remote-sandbox-mcp/state", "xdg/config_home/remote-sandbox-mcp/config.toml"),
]


@pytest.mark.parametrize(
    ("tool", "argument"), [(tool, name) for tool, names in LOCAL.items() for name in sorted(names)]
)
async def test_no_local_path_goes_around_the_gate(home: Path, far: Path, tool: str, argument: str) -> None:
    (home / "project" / "way").symlink_to(home / ".ssh")
    async with attacker(expose_advanced_tools=True) as (tools, sandbox):
        for path in FORBIDDEN:
            forbidden = home / path
            if not forbidden.exists():
                forbidden.parent.mkdir(parents=True, exist_ok=True)
                forbidden.write_text(SECRET)
            problem = await tools.fail(tool, **arguments(tool, argument, home, far, forbidden))
            assert problem["code"] == "bad_argument", path
            assert "allow_hidden" in problem["error"] or "remote-sandbox-mcp itself" in problem["error"], path
            assert forbidden.read_text() == SECRET, path
        assert not sandbox.lanes
    assert not holds_secret(far)
    assert not list(home.rglob("authorized_keys"))


def arguments(tool: str, argument: str, home: Path, far: Path, forbidden: Path) -> dict[str, Any]:
    """An ordinary call of a tool, but for one argument."""
    push = {"local_path": str(home / "project"), "remote_path": str(far / "got")}
    given: dict[str, Any] = {
        "sync_local_to_remote": push,
        "sync_local_to_remote_background": push,
        "sync_remote_to_local": {"local_path": str(home / "project" / "x"), "remote_path": str(far)},
        "upload_files": {"sandbox_id": "fake", "files": [{"path": str(far / "got"), "local_path": str(forbidden)}]},
        "download_files": {"sandbox_id": "fake", "paths": [str(far / "authorized_keys")]},
    }[tool]
    named = forbidden.parent if tool == "download_files" else forbidden
    return given if "[" in argument else given | {argument: str(named)}


async def test_a_link_that_appears_while_a_pull_waits_is_not_followed(home: Path, far: Path) -> None:
    door = home / "project" / "door"
    async with attacker() as (tools, sandbox):
        sandbox.stop_before = "scan"
        waiting = asyncio.ensure_future(tools.fail("sync_remote_to_local", remote_path=str(far), local_path=str(door)))
        await until(lambda: sandbox.lanes and not sandbox.stop_before, "the first pull to wait")
        # Pulls leave such a link out themselves; whoever makes it, it is not followed.
        door.symlink_to(home / ".ssh")
        os.kill(pid_of(sandbox.lanes[0]), signal.SIGCONT)
        problem = await waiting
    assert "a link was put there" in problem["error"]
    assert os.listdir(home / ".ssh") == ["id"]


async def test_a_link_that_appears_while_a_push_waits_is_not_followed(home: Path, far: Path) -> None:
    """The folder was ordinary when it was allowed."""
    door = home / "project" / "door"
    door.mkdir()
    async with attacker() as (tools, sandbox):
        sandbox.may_open.clear()
        waiting = asyncio.ensure_future(
            tools.fail("sync_local_to_remote", local_path=str(door), remote_path=str(far / "got"))
        )
        await until(lambda: sandbox.is_asked, "the push to wait")
        door.rmdir()
        door.symlink_to(home / ".ssh")
        sandbox.may_open.set()
        problem = await waiting
    assert "a link was put there" in problem["error"]
    assert not holds_secret(far)


async def test_links_that_the_user_has_on_purpose_lead_on(home: Path, far: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "project").mkdir(parents=True)
    (tmp_path / "data" / "project" / "mine").write_text("x")
    (home / "work").symlink_to(tmp_path / "data")
    path = str(home / "work" / "project")
    async with attacker() as (tools, _):
        pulled = await tools.call("sync_remote_to_local", remote_path=str(far), local_path=path)
        pushed = await tools.call("sync_local_to_remote", local_path=path, remote_path=str(far))
    assert (pulled["downloaded_files"], pushed["uploaded_files"]) == (1, 1)
    assert (tmp_path / "data" / "project" / "authorized_keys").exists()
    assert (far / "mine").exists()


RUN_SOMETHING = [
    *(".git/hooks/post-checkout", ".git/config", ".mcp.json", ".claude/settings.local.json", ".codex/config.toml"),
    *(".cursor/mcp.json", ".vscode/tasks.json", ".envrc", "sub/.MCP.json"),
]


@pytest.mark.parametrize("tool", ["sync_remote_to_local", "download_files"])
async def test_a_pull_leaves_out_what_would_run_something_and_tells_it(home: Path, far: Path, tool: str) -> None:
    for path in (*RUN_SOMETHING, ".git/HEAD", "sub/main.py"):
        (far / path).parent.mkdir(parents=True, exist_ok=True)
        (far / path).write_text("x")
    async with attacker() as (tools, _):
        if tool == "download_files":
            given: dict[str, Any] = {"sandbox_id": "fake", "paths": [str(far)], "local_dir": str(home / "project")}
            done = (await tools.call(tool, **given))["files"][0]
            expected = {path for path in RUN_SOMETHING if not path.startswith((".git/", ".vscode/"))}
        else:
            given = {"remote_path": str(far), "local_path": str(home / "project" / "far"), "default_excludes": False}
            done, expected = await tools.call(tool, **given), set(RUN_SOMETHING)
        # A second pull must not bring it, either.
        await tools.call(tool, **given)
    got = home / "project" / "far"
    assert (got / "sub" / "main.py").exists()
    assert not [path for path in RUN_SOMETHING if (got / path).exists()]
    told = {problem["path"] for problem in done["problems"]}
    assert {path for path in expected if not {path, *map(str, Path(path).parents)} & told} == set()
    assert all("fetch it by its very path" in problem["reason"] for problem in done["problems"])


async def test_a_folder_that_is_named_comes_without_what_would_run_something(home: Path, far: Path) -> None:
    for path in (".git/HEAD", ".git/config", ".git/hooks/post-checkout"):
        (far / path).parent.mkdir(parents=True, exist_ok=True)
        (far / path).write_text("x")
    given = {"remote_path": str(far / ".git"), "local_path": str(home / "project" / ".git")}
    async with attacker() as (tools, _):
        done = await tools.call("sync_remote_to_local", **given)
    assert os.listdir(home / "project" / ".git") == ["HEAD"]
    assert {problem["path"] for problem in done["problems"]} == {"config", "hooks"}
    assert all("allow_hidden" in problem["reason"] for problem in done["problems"])


async def test_a_push_takes_all_of_a_project_along_but_names_of_secrets(home: Path, far: Path) -> None:
    for path in RUN_SOMETHING:
        (home / "project" / path).parent.mkdir(parents=True, exist_ok=True)
        (home / "project" / path).write_text("x")
    given = {"local_path": str(home / "project"), "remote_path": str(far / "got"), "default_excludes": False}
    async with attacker() as (tools, _):
        done = await tools.call("sync_local_to_remote", **given)
    secrets = {".mcp.json", ".codex/config.toml", ".cursor/mcp.json", ".envrc", "sub/.MCP.json"}
    assert set(done["secrets_not_sent"]) == secrets
    assert done["uploaded_files"] == len(RUN_SOMETHING) - len(secrets)
    assert "problems" not in done


@pytest.mark.parametrize("path", ["bin", "bin/ls", "project/.git/hooks", "project/.git/config", "project/.mcp.json"])
async def test_no_single_file_is_written_where_it_would_run(home: Path, far: Path, path: str) -> None:
    (home / "bin").mkdir()
    async with attacker() as (tools, _):
        given = {"remote_path": str(far / "authorized_keys"), "local_path": str(home / path)}
        problem = await tools.fail("sync_remote_to_local", **given)
        (far / ".mcp.json").write_text("x")
        given = {"remote_path": str(far / ".mcp.json"), "local_path": str(home / "project")}
        into = await tools.fail("sync_remote_to_local", **given)
    assert "allow_hidden" in problem["error"]
    assert "allow_hidden" in into["error"]
    assert not list((home / "bin").iterdir())
    assert not list((home / "project").iterdir())


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/cron.d", "/usr/local/lib/x", "/boot", "/var/spool/cron", "/lib/x", "/sys/x"),
        *("/run/systemd/system", "/run/user/0/dbus-1", "/var/lib/docker"),
    ],
)
async def test_the_system_is_not_written_not_even_as_root(far: Path, path: str) -> None:
    # Not even where the operator allows everything.
    async with attacker(allowed_roots=("/",)) as (tools, _):
        # Were it allowed, this would only have looked.
        given = {"remote_path": str(far), "local_path": path, "dry_run": True}
        assert "a folder of the system" in (await tools.fail("sync_remote_to_local", **given))["error"]


@pytest.mark.parametrize("path", ["/home/stranger/x", "/opt/app", "/var/lib/app", "/run/user/0/containers/auth.json"])
async def test_as_root_no_place_is_open_that_nobody_allowed(home: Path, far: Path, path: str) -> None:
    async with attacker() as (tools, _):
        for tool in ("sync_remote_to_local", "sync_local_to_remote"):
            problem = await tools.fail(tool, remote_path=str(far), local_path=path, dry_run=True)
            assert problem["code"] == "bad_argument"


@pytest.mark.parametrize("path", [".", "other"], ids=["around the project", "beside the project"])
@pytest.mark.parametrize("tool", ["sync_remote_to_local", "sync_local_to_remote"])
async def test_only_the_project_is_open_by_itself(
    home: Path, far: Path, monkeypatch: pytest.MonkeyPatch, tool: str, path: str
) -> None:
    (home / "other").mkdir()
    monkeypatch.chdir(home / "project")
    async with attacker(allowed_roots=()) as (tools, sandbox):
        problem = await tools.fail(tool, remote_path=str(far), local_path=str(home / path))
        option = " --read" if tool == "sync_local_to_remote" else ""
        assert problem["error"].endswith(f"remote-sandbox-mcp allow '{os.path.normpath(home / path)}'{option}")
        assert not sandbox.lanes
        await tools.call(tool, remote_path=str(far), local_path="x" if tool == "sync_remote_to_local" else ".")


@pytest.mark.parametrize("folder", ["/", "~", "~/..", "/tmp", "/etc"])
async def test_a_client_that_was_started_in_no_project_has_none(
    home: Path, far: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """As Claude Desktop starts its servers in /, and a terminal opens in the home folder."""
    monkeypatch.chdir(os.path.expanduser(folder))
    async with attacker(allowed_roots=()) as (tools, _):
        for path in (home / "project", "x"):
            problem = await tools.fail("sync_remote_to_local", remote_path=str(far), local_path=str(path), dry_run=True)
            assert problem["code"] == "bad_argument"


# Folders of programs, as conda, go and a virtual environment leave them in PATH; variables that lead elsewhere.
VARIABLES = {
    "miniconda3/bin": {"PATH": "~/miniconda3/bin:/usr/bin"},
    "go/bin": {"PATH": "/usr/bin:~/go/bin"},
    "env/lib": {"VIRTUAL_ENV": "~/env"},
    "claude": {"CLAUDE_CONFIG_DIR": "~/claude"},
    "codex": {"CODEX_HOME": "~/codex"},
    "settings/autostart": {"XDG_CONFIG_HOME": "~/settings"},
    "runtime/systemd/user": {"XDG_RUNTIME_DIR": "~/runtime"},
    "runtime/dbus-1": {"XDG_RUNTIME_DIR": "~/runtime"},
}
# Of these, nothing is read, either.
LED_TO_KEYS = {
    "kube.yaml": {"KUBECONFIG": "~/other.yaml:~/kube.yaml"},
    "cloud.json": {"GOOGLE_APPLICATION_CREDENTIALS": "~/cloud.json"},
    "pgp/key": {"GNUPGHOME": "~/pgp"},
    "krb5cc": {"KRB5CCNAME": "FILE:~/krb5cc"},
    "tokens/x": {"MY_TOKEN_DIR": "~/tokens"},
}


@pytest.mark.parametrize(("path", "variables"), [*VARIABLES.items(), *LED_TO_KEYS.items()])
async def test_where_a_variable_leads_nothing_is_written(
    home: Path, far: Path, monkeypatch: pytest.MonkeyPatch, path: str, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("~", str(home)))
    async with attacker() as (tools, _):
        given = {"remote_path": str(far / "authorized_keys"), "local_path": str(home / path)}
        assert "allow_hidden" in (await tools.fail("sync_remote_to_local", **given))["error"]
        given = {"sandbox_id": "fake", "paths": [str(far / "authorized_keys")], "local_dir": str(home / path)}
        assert "allow_hidden" in (await tools.fail("download_files", **given))["error"]
        # A tree that is pulled to a folder around it leaves it out.
        (far / "tree" / path).parent.mkdir(parents=True)
        (far / "tree" / path).write_text("x")
        done = await tools.call("sync_remote_to_local", remote_path=str(far / "tree"), local_path=str(home))
        assert [path.startswith(problem["path"]) for problem in done["problems"]] == [True]
    assert not (home / path).exists()


@pytest.mark.parametrize(("path", "variables"), LED_TO_KEYS.items())
async def test_where_a_variable_leads_to_keys_nothing_is_read(
    home: Path, far: Path, monkeypatch: pytest.MonkeyPatch, path: str, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("~", str(home)))
    (home / path).parent.mkdir(exist_ok=True)
    (home / path).write_text(SECRET)
    async with attacker() as (tools, _):
        given = {"remote_path": str(far / "got"), "local_path": str(home / path)}
        assert "allow_hidden" in (await tools.fail("sync_local_to_remote", **given))["error"]
        await tools.call("sync_local_to_remote", remote_path=str(far / "all"), local_path=str(home))
    assert not holds_secret(far)


@pytest.mark.parametrize(("link", "target"), [(".ssh/id_rsa", "project/key"), (".config/app", "dotfiles/app/rc")])
async def test_what_a_link_of_a_hidden_folder_leads_to_is_closed(home: Path, far: Path, link: str, target: str) -> None:
    (home / link).parent.mkdir(exist_ok=True)
    (home / target).parent.mkdir(parents=True, exist_ok=True)
    (home / target).write_text(SECRET)
    (home / link).symlink_to(home / target)
    async with attacker() as (tools, _):
        given = {"remote_path": str(far / "authorized_keys"), "local_path": str(home / target)}
        assert "allow_hidden" in (await tools.fail("sync_remote_to_local", **given))["error"]
        if link.startswith(".ssh"):
            given = {"remote_path": str(far / "got"), "local_path": str(home / target)}
            assert "allow_hidden" in (await tools.fail("sync_local_to_remote", **given))["error"]
            await tools.call("sync_local_to_remote", remote_path=str(far / "all"), local_path=str(home / "project"))
            assert not holds_secret(far)
    assert (home / target).read_text() == SECRET


async def test_this_very_program_and_its_python_are_not_written(far: Path) -> None:
    package = Path(remote_sandbox_mcp.__file__).parent
    async with attacker(allowed_roots=("/",)) as (tools, _):
        for path in (package / "x.py", package.parent / "e.pth", Path(sys.prefix) / "lib" / "x.pth"):
            given = {"remote_path": str(far / "authorized_keys"), "local_path": str(path)}
            assert "the program remote-sandbox-mcp" in (await tools.fail("sync_remote_to_local", **given))["error"]
            assert not path.exists()


async def test_a_folder_that_may_be_read_is_not_written(home: Path, far: Path) -> None:
    (home / "data").mkdir()
    (home / "data" / "x").write_text("x")
    async with attacker(allowed_roots=(), allowed_roots_read=(str(home / "data"),)) as (tools, _):
        done = await tools.call("sync_local_to_remote", local_path=str(home / "data"), remote_path=str(far / "got"))
        assert done["uploaded_files"] == 1
        problem = await tools.fail("sync_remote_to_local", local_path=str(home / "data"), remote_path=str(far))
        assert problem["error"].endswith(f"remote-sandbox-mcp allow '{home}/data'")


async def test_what_a_person_allows_is_open_at_once_and_until_it_is_taken_back(home: Path, far: Path) -> None:
    place, given = str(home / "other"), {"remote_path": str(far), "local_path": str(home / "other" / "x")}
    async with attacker(allowed_roots=()) as (tools, _):
        await tools.fail("sync_remote_to_local", **given)
        allow(Allowance(place, until=time.time() + 60), paths.state_folder())
        await tools.call("sync_remote_to_local", **given)
        disallow(place, paths.state_folder())
        await tools.fail("sync_remote_to_local", **given)
        allow(Allowance(place, until=time.time() - 1), paths.state_folder())
        await tools.fail("sync_remote_to_local", **given)
        allow(Allowance(place, writing=False), paths.state_folder())
        await tools.fail("sync_remote_to_local", **given)
        await tools.call("sync_local_to_remote", **given)
        allow(Allowance(place, session="another one"), paths.state_folder())
        allow(Allowance(str(home / ".ssh")), paths.state_folder())
        closed = await tools.fail("sync_local_to_remote", remote_path=str(far), local_path=str(home / ".ssh"))
    assert "hidden part of your home folder" in closed["error"]


async def test_the_roots_of_the_operator_bind_syncs(home: Path, far: Path) -> None:
    (home / "other").mkdir()
    (home / "project" / "out").symlink_to(home / "other")
    (home / "rules").write_text("*.o")
    async with attacker(allowed_roots=(str(home / "project"),)) as (tools, _):
        for path in ("other", "project/out", "project/../other", "."):
            for tool in ("sync_remote_to_local", "sync_local_to_remote"):
                problem = await tools.fail(tool, remote_path=str(far), local_path=str(home / path))
                assert "remote-sandbox-mcp allow" in problem["error"]
        given = {"remote_path": str(far), "local_path": str(home / "project" / "x")}
        problem = await tools.fail("sync_remote_to_local", **given, exclude_file=str(home / "rules"))
        assert "remote-sandbox-mcp allow" in problem["error"]
        assert (await tools.call("sync_remote_to_local", **given))["downloaded_files"] == 1
    assert not list((home / "other").iterdir())


async def test_a_configuration_and_the_keys_it_names_are_closed(home: Path, far: Path) -> None:
    (home / "keys").mkdir()
    (home / "keys" / "login").write_text(SECRET)
    (home / "password").write_text(SECRET)
    config = home / "settings" / "mine.toml"
    config.parent.mkdir()
    config.write_text(
        f'[server]\nallow_hidden = ["{home}"]\nallowed_roots = ["{home}", "{far}"]\n'
        f'[machines.gpu1]\nhost = "192.0.2.1"\nuser = "me"\nkey_file = "{home}/keys/login"\n'
        f'password = "file:{home}/password"\n[hooks.tell]\ncommand = ["{home}/hook"]\n'
    )
    app = compose(load(config))
    fake = App(Fleet([member(Nearby())]), settings=app.settings, private=app.transfers.gate._private)
    await app.close()
    written = config.read_text()
    (far / "mine.toml").write_text("[hooks.x]\ncommand = ['/bin/false']")
    async with connected(fake) as tools:
        for path in ("keys/login", "password", "hook", "settings/mine.toml"):
            given = {"remote_path": str(far / "mine.toml"), "local_path": str(home / path)}
            assert "itself" in (await tools.fail("sync_remote_to_local", **given))["error"], path
            given = {"remote_path": str(far / "got"), "local_path": str(home / path)}
            assert "itself" in (await tools.fail("sync_local_to_remote", **given))["error"], path
        pulled = await tools.call("sync_remote_to_local", remote_path=str(far), local_path=str(config.parent))
        assert [problem["path"] for problem in pulled["problems"]] == ["mine.toml"]
        await tools.call("sync_local_to_remote", remote_path=str(far / "got"), local_path=str(home))
    assert config.read_text() == written
    assert not holds_secret(far)
    assert not (far / "got" / "keys" / "login").exists()


async def test_a_transfer_goes_on_where_nobody_knows_the_client_of_its_project(
    home: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "project" / "x").write_text("x")
    monkeypatch.chdir(home / "project")
    app = App(Fleet([member(Nearby())]), identity="one")
    order = Order(source=app.transfers.place(".", sandbox=None), target=Place("fake", str(far / "got")))
    begun = await app.transfers.queue(order)
    monkeypatch.chdir("/")
    done = await app.transfers.check(begun.id, wait_s=20)
    await app.close()
    assert done.status == "completed", done.error
    assert (far / "got" / "x").exists()


async def test_who_carries_a_transfer_on_asks_the_gate_again(home: Path, far: Path) -> None:
    app = App(Fleet([member(Nearby())]), identity="one")
    order = Order(source=Place("", str(home / ".ssh")), target=Place("fake", str(far / "got")))
    begun = await app.transfers.background.queue(order)
    done = await app.transfers.check(begun.id, wait_s=20)
    await app.close()
    assert done.status == "failed"
    assert "hidden part of your home folder" in done.error


async def test_the_person_at_the_machine_is_not_asked(home: Path, far: Path) -> None:
    app = App(Fleet([member(Nearby())]))
    copies = app.transfers
    order = Order(
        source=copies.place(str(home / ".ssh"), sandbox=None, free=True),
        target=copies.place(str(far / "got"), sandbox="fake"),
        excludes=copies.rules((), str(home / ".ssh" / "id"), free=True),
    )
    await copies.sync(order, wait_s=0)
    await app.close()
    assert holds_secret(far)
