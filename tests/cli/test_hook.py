"""What a client's hook answers: in a workspace with only_remote, local commands are refused; faults break nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp import __version__
from remote_sandbox_mcp.config.accepted import accept
from remote_sandbox_mcp.config.workspace_file import find
from remote_sandbox_mcp.core.workspaces.workspace import Rules, Workspace
from remote_sandbox_mcp.local.store.database import STATE_FILE
from remote_sandbox_mcp.services.workspaces.records import WorkspaceRecords
from tests.support.doc_pages import ROOT

PLUGIN = ROOT / "plugin"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With two linked projects: commands of `there` run over there alone, those of `both` anywhere."""
    (tmp_path / "state").mkdir()
    records = WorkspaceRecords(tmp_path / "state", "a configuration")
    for name, rules in (("there", Rules(only_remote=True)), ("both", Rules())):
        (tmp_path / name / "src").mkdir(parents=True)
        records.put(Workspace(name, str(tmp_path / name), "gpu1", f"/data/{name}", rules), 0)
    records.close()
    return tmp_path


def event(cwd: Path, command: object = "pytest", tool: str = "Bash") -> dict[str, Any]:
    """As Claude Code 2.1 sends it; Codex 0.166 sends the same fields."""
    return {
        "session_id": "c2773509-593c-4c06-a1a6-e093b8ab4687",
        "transcript_path": "/nowhere/c2773509.jsonl",
        "cwd": str(cwd),
        "permission_mode": "default",
        "hook_event_name": "PreToolUse",
        "tool_name": tool,
        "tool_input": {"command": command, "description": "Run the tests"},
        "tool_use_id": "toolu_0",
    }


def hooked_command() -> str:
    """What the plugin has clients run."""
    hooks = json.loads((PLUGIN / "hooks/hooks.json").read_text())["hooks"]["PreToolUse"]
    return str(hooks[0]["hooks"][0]["command"])


def ask(home: Path, said: object, folder: str = "/", **env: str) -> str:
    """The reason of a refusal, empty where the client is not kept from running it."""
    words = said if isinstance(said, bytes) else json.dumps(said).encode()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"HOME": str(home), "REMOTE_SANDBOX_MCP_HOME": str(home / "state"), "PATH": path} | env
    hook = ["sh", "-c", hooked_command()]
    done = subprocess.run(hook, input=words, env=env, cwd=folder, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0
    if not done.stdout:
        return ""
    answer = json.loads(done.stdout)["hookSpecificOutput"]
    assert (answer["hookEventName"], answer["permissionDecision"]) == ("PreToolUse", "deny")
    return str(answer["permissionDecisionReason"])


def test_a_local_command_is_refused_where_commands_run_over_there_alone(home: Path) -> None:
    why = ask(home, event(home / "there" / "src"))
    assert why.startswith(
        f"this was not run: commands of {home}/there run on gpu1 alone (only_remote), so use the tool "
    )
    assert "exec_bash" in why
    assert "only git runs" in why


def test_everything_else_is_let_through(home: Path) -> None:
    (home / "elsewhere").mkdir()
    assert ask(home, event(home / "elsewhere")) == ""
    assert ask(home, event(home / "both")) == ""
    assert ask(home, event(home / "there", "git commit -am 'x' && git push")) == ""
    assert ask(home, event(home / "there", tool="Read")) == ""


def test_a_command_for_another_folder_or_by_a_link_is_still_one_of_the_project(home: Path) -> None:
    assert "only_remote" in ask(home, event(home), folder=str(home / "there"))
    assert "only_remote" in ask(home, event(home), CLAUDE_PROJECT_DIR=str(home / "there"))
    (home / "link").symlink_to(home / "there")
    assert "only_remote" in ask(home, event(home / "link" / "src"))


def test_the_projects_accepted_file_says_so_too_and_cannot_be_edited_away(home: Path) -> None:
    file = home / "both" / ".remote-sandbox.toml"
    file.write_text("only_remote = true")
    assert ask(home, event(home / "both")) == ""
    found = find(str(file))
    assert found
    accept(found.path, found.acceptance, home / "state")
    file.write_text("only_remote = false")
    assert "only_remote" in ask(home, event(home / "both"))


@pytest.mark.parametrize(
    "said",
    [b"", b"{", b"[]", b"\xff", {"tool_name": "Bash"}, {"tool_name": "Bash", "cwd": 5, "tool_input": None}],
    ids=["nothing", "half", "list", "bytes", "no folder", "odd types"],
)
def test_a_fault_lets_the_client_go_on(home: Path, said: object) -> None:
    assert ask(home, said) == ""


def test_a_fault_of_ours_is_noted_and_lets_the_client_go_on(home: Path) -> None:
    (home / "state" / STATE_FILE).write_bytes(b"not a database, and not empty either" * 100)
    assert ask(home, event(home / "there")) == ""
    log = home / "state" / "hook.log"
    assert "unable to use" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_without_workspaces_nothing_is_made_and_little_is_loaded(tmp_path: Path) -> None:
    code = "import sys; from remote_sandbox_mcp.cli.main import main; main(); print(*sys.modules, file=sys.stderr)"
    words = [sys.executable, "-c", code, "hook", "pre-tool-use"]
    env = {"REMOTE_SANDBOX_MCP_HOME": str(tmp_path / "state")}
    done = subprocess.run(words, input=json.dumps(event(tmp_path)).encode(), env=env, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, b"")
    assert not {"asyncio", "argparse", "sqlite3", "mcp", "pydantic", "asyncssh"} & set(done.stderr.decode().split())
    assert not (tmp_path / "state").exists()


def test_an_old_or_missing_command_does_not_block_the_client(home: Path) -> None:
    """A hook that ends with 2 would refuse every command."""
    assert ask(home, event(home / "there"), PATH="/usr/bin:/bin") == ""
    old = home / "bin" / "remote-sandbox-mcp"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho there is no hook >&2\nexit 2\n")
    old.chmod(0o755)
    assert ask(home, event(home / "there"), PATH=f"{old.parent}:/usr/bin:/bin") == ""


def test_the_plugin_has_the_version_of_the_program() -> None:
    manifest = json.loads((PLUGIN / ".claude-plugin/plugin.json").read_text())
    market = json.loads((ROOT / ".claude-plugin/marketplace.json").read_text())
    assert manifest["version"] == __version__
    assert [(it["name"], ROOT / it["source"]) for it in market["plugins"]] == [(manifest["name"], PLUGIN)]
