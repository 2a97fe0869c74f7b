from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.services.setup import clients
from remote_sandbox_mcp.services.setup.clients import McpClient, StartCommand, State
from remote_sandbox_mcp.services.setup.journal import SetupChange, SetupJournal
from remote_sandbox_mcp.services.setup.undo import undo
from tests.support.programs import look_in

OURS = "/opt/bin/remote-sandbox-mcp"
PROGRAM = StartCommand("remote-sandbox-mcp", OURS)
# Another program's registration under our name, with what only its owner knows.
OLD = {"command": "/old/one", "args": ["-v"], "env": {"TOKEN": "hush"}}
# Does to its file what Claude Code's command does, and writes it anew each time, as that does.
CLAUDE = """#!{python}
import json, os, sys
path = os.path.join(os.path.expanduser("~"), ".claude.json")
document = json.load(open(path)) if os.path.exists(path) else {{}}
servers = document.setdefault("mcpServers", {{}})
if sys.argv[1:5] == ["mcp", "add", "--scope", "user"]:
    if sys.argv[5] in servers or os.path.exists(path + ".full"):
        sys.exit("MCP server already exists")
    servers[sys.argv[5]] = {{"type": "stdio", "command": sys.argv[7], "args": [], "env": {{}}}}
elif sys.argv[1:5] == ["mcp", "remove", "--scope", "user"]:
    del servers[sys.argv[5]]
document["runs"] = document.get("runs", 0) + 1
json.dump(document, open(path, "w"), indent=2)
"""


@pytest.fixture
def home(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    look_in(monkeypatch, clean_environment / "bin")
    (clean_environment / "bin").mkdir()
    return clean_environment


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path


def client(key: str) -> McpClient:
    return next(client for client in clients.find() if client.key == key)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_each_client_has_its_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [it.title for it in clients.find() if it.is_there]
    monkeypatch.setattr(sys, "platform", "linux")
    assert {it.key: str(it.file.relative_to(home)) for it in clients.find()} == {
        "claude-code": ".claude.json",
        "codex": ".codex/config.toml",
        "cursor": ".cursor/mcp.json",
        "vscode": ".config/Code/User/mcp.json",
        "claude-desktop": ".config/Claude/claude_desktop_config.json",
    }
    monkeypatch.setattr(sys, "platform", "darwin")
    assert client("vscode").file == home / "Library/Application Support/Code/User/mcp.json"
    assert client("claude-desktop").file == home / "Library/Application Support/Claude/claude_desktop_config.json"


def test_variables_name_other_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.setenv(name, f"/elsewhere/{name}")
    found = [str(it.file).partition("/elsewhere/")[2] for it in clients.find()]
    assert found[:2] == ["CLAUDE_CONFIG_DIR/.claude.json", "CODEX_HOME/config.toml"]
    assert found[3] == "XDG_CONFIG_HOME/Code/User/mcp.json"


def test_a_client_is_there_by_its_folder_its_file_or_its_command(home: Path) -> None:
    (home / ".cursor").mkdir()
    write(home / ".claude.json", "{}")
    write(home / "bin/codex", "#!/bin/sh\n").chmod(0o755)
    assert [it.key for it in clients.find() if it.is_there] == ["claude-code", "codex", "cursor"]


def test_windows_get_the_whole_path_and_terminals_the_name(home: Path) -> None:
    entries = {it.key: clients.plan(it, PROGRAM).entry for it in clients.find()}
    assert entries == {
        "claude-code": {"type": "stdio", "command": "remote-sandbox-mcp"},
        "codex": {"command": "remote-sandbox-mcp"},
        "cursor": {"command": OURS},
        "vscode": {"type": "stdio", "command": OURS},
        "claude-desktop": {"command": OURS},
    }


@pytest.mark.parametrize(
    ("server", "state", "said"),
    [
        pytest.param({"remote-sandbox": {"command": OURS}}, State.REGISTERED, "remote-sandbox", id="the same"),
        pytest.param({"gpus": {"command": "remote-sandbox-mcp"}}, State.REGISTERED, "gpus", id="by another name"),
        pytest.param(
            {"remote-sandbox": {"command": "/old/remote-sandbox-mcp", "env": {"K": "hush"}, "args": ["hush"]}},
            State.TAKEN,
            "'remote-sandbox' stands for /old/remote-sandbox-mcp there",
            id="another program",
        ),
        pytest.param(
            {"remote-sandbox": {"url": "https://me:hush@example.org/mcp?key=hush"}},
            State.TAKEN,
            "'remote-sandbox' stands for example.org/mcp there",
            id="an address",
        ),
        pytest.param({"other": {"command": "other"}}, State.NEW, "", id="others"),
    ],
)
def test_what_is_there_is_seen_and_never_shown_with_its_secrets(
    home: Path, server: object, state: State, said: str
) -> None:
    text = json.dumps({"mcpServers": server})
    file = write(home / ".cursor/mcp.json", text)
    planned = clients.plan(client("cursor"), PROGRAM)
    assert (planned.state, planned.said) == (state, said)
    assert "hush" not in planned.said + planned.lines
    assert file.read_text() == text


def test_a_client_that_has_our_plugin_is_registered(home: Path) -> None:
    write(home / ".claude/settings.json", '{"enabledPlugins": {"remote-sandbox@remote-sandbox": true}}')
    codex = write(home / ".codex/config.toml", '[plugins."remote-sandbox@remote-sandbox"]\nenabled = true\n')
    for key in ("claude-code", "codex"):
        planned = clients.plan(client(key), PROGRAM)
        assert (planned.state, planned.said) == (State.REGISTERED, "the plugin remote-sandbox@remote-sandbox")
    codex.write_text('[plugins."remote-sandbox@remote-sandbox"]\nenabled = false\n')
    assert clients.plan(client("codex"), PROGRAM).state is State.NEW


def test_another_program_is_replaced_when_that_is_wanted_and_comes_back(home: Path, state: Path) -> None:
    before = '{"mcpServers": {"remote-sandbox": {"command": "/old/one"}, "x": {}}}'
    file = write(home / ".cursor/mcp.json", before)
    file.chmod(0o640)
    journal = SetupJournal(state)
    journal.add(clients.carry_out(clients.overriding(clients.plan(client("cursor"), PROGRAM))))
    assert json.loads(file.read_text())["mcpServers"] == {"remote-sandbox": {"command": OURS}, "x": {}}
    assert file.stat().st_mode & 0o777 == 0o640
    assert [it.is_done for it in undo(state)] == [True]
    assert file.read_text() == before
    assert sorted(path.name for path in file.parent.iterdir()) == ["mcp.json"]
    assert undo(state) == []


def test_a_file_that_was_changed_since_loses_only_our_entry(home: Path, state: Path) -> None:
    file, codex = write(home / ".cursor/mcp.json", '{"x": 1}'), write(home / ".codex/config.toml", "# mine\n")
    journal = SetupJournal(state)
    for key in ("cursor", "codex"):
        journal.add(clients.carry_out(clients.plan(client(key), PROGRAM)))
    later = json.loads(file.read_text())
    later["mcpServers"]["new"] = {"command": "new"}
    file.write_text(json.dumps(later, indent=2))
    codex.write_text(codex.read_text() + "\n[mcp_servers.new]\ncommand = 'new'\n")
    looked = undo(state, is_dry=True)
    assert [it.is_done for it in looked] == [True, True]
    assert "remote-sandbox" in file.read_text() + codex.read_text()
    assert [it.is_done for it in undo(state)] == [True, True]
    assert json.loads(file.read_text()) == {"x": 1, "mcpServers": {"new": {"command": "new"}}}
    assert codex.read_text() == "# mine\n\n[mcp_servers.new]\ncommand = 'new'\n"


@pytest.fixture
def claude(home: Path) -> Path:
    """Claude Code's command, and its file with an entry of another program under our name."""
    write(home / "bin/claude", CLAUDE.format(python=sys.executable)).chmod(0o755)
    return write(home / ".claude.json", json.dumps({"mcpServers": {"remote-sandbox": OLD, "x": {}}}))


def replace_entry(key: str, state: Path) -> SetupChange:
    change = clients.carry_out(clients.overriding(clients.plan(client(key), PROGRAM)))
    SetupJournal(state).add(change)
    return change


def test_a_replaced_entry_comes_back_also_where_the_file_was_changed_since(home: Path, state: Path) -> None:
    file = write(home / ".cursor/mcp.json", json.dumps({"mcpServers": {"remote-sandbox": OLD, "x": {}}}, indent=2))
    replace_entry("cursor", state)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"theme": "dark"}, indent=2))
    (result,) = undo(state)
    assert result.is_done
    assert "what it had replaced put back" in result.said
    assert json.loads(file.read_text()) == {"mcpServers": {"remote-sandbox": OLD, "x": {}}, "theme": "dark"}
    assert [path.name for path in file.parent.iterdir()] == ["mcp.json"]


@pytest.mark.parametrize("is_changed", [True, False], ids=["changed since", "as setup left it"])
def test_an_entry_that_claude_code_had_comes_back(claude: Path, state: Path, is_changed: bool) -> None:
    replace_entry("claude-code", state)
    assert json.loads(claude.read_text())["mcpServers"]["remote-sandbox"]["command"] == "remote-sandbox-mcp"
    if is_changed:
        claude.write_text(json.dumps(json.loads(claude.read_text()) | {"runs": 9}))
    assert [it.is_done for it in undo(state)] == [True]
    assert json.loads(claude.read_text())["mcpServers"] == {"remote-sandbox": OLD, "x": {}}
    assert not [*claude.parent.glob("*.before-setup-*")]


def test_an_entry_that_others_took_out_leaves_the_backup_and_names_it(claude: Path, state: Path) -> None:
    change = replace_entry("claude-code", state)
    claude.write_text('{"mcpServers": {}}')
    (result,) = undo(state)
    assert result.is_done
    assert f"The file as it was before is {change.backup}." in result.said
    assert json.loads(Path(change.backup).read_text())["mcpServers"]["remote-sandbox"] == OLD
    assert claude.read_text() == '{"mcpServers": {}}'


def test_where_claude_codes_command_fails_the_entry_that_it_took_out_is_put_back(claude: Path) -> None:
    claude.with_name(".claude.json.full").touch()
    with pytest.raises(ConfigError, match="MCP server already exists"):
        clients.carry_out(clients.overriding(clients.plan(client("claude-code"), PROGRAM)))
    assert json.loads(claude.read_text())["mcpServers"] == {"x": {}, "remote-sandbox": OLD}
    assert not [*claude.parent.glob("*.before-setup-*")]


def test_where_that_cannot_be_put_back_the_backup_stays_and_is_named(claude: Path) -> None:
    planned = clients.overriding(clients.plan(client("claude-code"), PROGRAM))
    # A command that leaves a broken file behind.
    write(claude.parent / "bin/claude", f"#!/bin/sh\necho '{{' > {claude}\nexit 3\n").chmod(0o755)
    with pytest.raises(ConfigError, match=r"ended with 3.*The file as it was before is \S*before-setup"):
        clients.carry_out(planned)
    (backup,) = claude.parent.glob("*.before-setup-*")
    assert json.loads(backup.read_text())["mcpServers"]["remote-sandbox"] == OLD


def test_an_entry_that_was_changed_since_is_left_and_told(home: Path, state: Path) -> None:
    file = write(home / ".cursor/mcp.json", "{}")
    SetupJournal(state).add(clients.carry_out(clients.plan(client("cursor"), PROGRAM)))
    changed = file.read_text().replace(OURS, "/other")
    file.write_text(changed)
    (result,) = undo(state)
    assert (result.is_done, file.read_text()) == (False, changed)
    assert "take the entry 'remote-sandbox' of Cursor out of it yourself" in result.said
    assert len(undo(state)) == 1


def test_a_file_that_setup_made_is_removed(home: Path, state: Path) -> None:
    (home / ".cursor").mkdir()
    change = clients.carry_out(clients.plan(client("cursor"), PROGRAM))
    SetupJournal(state).add(change)
    assert Path(change.path).stat().st_mode & 0o777 == 0o600
    undo(state)
    assert not Path(change.path).exists()


def test_claude_code_is_told_by_its_own_command(home: Path, state: Path) -> None:
    write(home / "bin/claude", CLAUDE.format(python=sys.executable)).chmod(0o755)
    file = write(home / ".claude.json", '{"oauth": "hush"}')
    planned = clients.plan(client("claude-code"), PROGRAM)
    assert planned.lines == f"{home}/bin/claude mcp add --scope user remote-sandbox -- remote-sandbox-mcp"
    SetupJournal(state).add(change := clients.carry_out(planned))
    assert json.loads(file.read_text())["mcpServers"]["remote-sandbox"]["command"] == "remote-sandbox-mcp"
    assert Path(change.backup).read_text() == '{"oauth": "hush"}'
    assert clients.plan(client("claude-code"), PROGRAM).state is State.REGISTERED
    assert [it.is_done for it in undo(state)] == [True]
    assert json.loads(file.read_text()) == {"oauth": "hush", "mcpServers": {}, "runs": 2}


def test_without_its_command_its_file_is_changed(home: Path, state: Path) -> None:
    file = write(home / ".claude.json", '{\n  "oauth": "hush"\n}\n')
    SetupJournal(state).add(clients.carry_out(clients.plan(client("claude-code"), PROGRAM)))
    assert json.loads(file.read_text())["mcpServers"]["remote-sandbox"]["type"] == "stdio"
    undo(state)
    assert file.read_text() == '{\n  "oauth": "hush"\n}\n'


def test_a_link_is_followed_and_a_foreign_kind_of_file_left_alone(home: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "dotfiles/mcp.json", "{}")
    (home / ".cursor").mkdir()
    (home / ".cursor/mcp.json").symlink_to(target)
    clients.carry_out(clients.plan(client("cursor"), PROGRAM))
    assert (home / ".cursor/mcp.json").is_symlink()
    assert "remote-sandbox" in target.read_text()
    (home / ".codex/config.toml").mkdir(parents=True)
    refused = clients.plan(client("codex"), PROGRAM)
    assert refused.state is State.REFUSED
    assert "is not an ordinary file" in refused.said


def test_a_file_that_changes_while_a_person_decides_is_left_alone(home: Path) -> None:
    file = write(home / ".cursor/mcp.json", "{}")
    planned = clients.plan(client("cursor"), PROGRAM)
    file.write_text('{"by": "another"}')
    with pytest.raises(Exception, match="was changed by another program"):
        clients.carry_out(planned)
    assert file.read_text() == '{"by": "another"}'
    assert [path.name for path in file.parent.iterdir()] == ["mcp.json"]


# Entries of the original, 0.x

LISTED = '[{"name": "gpu1", "host": "gpu1.example.org", "user": "me", "password": "hush"}]'
UVX = {"command": "uvx", "args": ["remote-sandbox-mcp"], "env": {"REMOTE_SANDBOX_LIST": LISTED, "OTHER": "1"}}
TOML = f"""# mine
[mcp_servers.gpus]
command = "uvx"  # once
args = ["remote-sandbox-mcp"]
startup_timeout_sec = 30

[mcp_servers.gpus.env]
REMOTE_SANDBOX_LIST = '{LISTED}'
OTHER = "1"

[mcp_servers.last]
command = "other"
"""


@pytest.mark.parametrize("key", ["claude-code", "cursor"])
def test_an_entry_of_the_original_keeps_its_name_and_variables(home: Path, state: Path, key: str) -> None:
    program = home / "bin/claude"
    write(program, CLAUDE.format(python=sys.executable)).chmod(0o755)
    file = write(client(key).file, json.dumps({"mcpServers": {"gpus": UVX}}))
    planned = clients.plan(client(key), PROGRAM)
    assert planned.state is State.ORIGINAL
    assert "hush" not in planned.lines
    assert "REMOTE_SANDBOX_LIST" in planned.lines
    change = clients.carry_out(planned)
    (entry,) = json.loads(file.read_text())["mcpServers"].items()
    assert entry == ("gpus", {**UVX, "command": planned.entry["command"], "args": []})
    assert "hush" not in change.value
    assert clients.plan(client(key), PROGRAM).state is State.REGISTERED
    SetupJournal(state).add(change)
    assert [it.is_done for it in undo(state)] == [True]
    assert json.loads(file.read_text())["mcpServers"] == {"gpus": UVX}


def test_entries_of_the_original_in_projects_of_claude_code_are_found(home: Path, state: Path) -> None:
    """`claude mcp add` keeps an entry for the folder that it is called in."""
    projects = {
        "/home/me/first": {"mcpServers": {"remote-sandbox": UVX}},
        "/home/me/second": {"mcpServers": {"other": {"command": "other"}}},
        "/home/me/third": {"mcpServers": {"gpus": UVX}},
    }
    file = write(client("claude-code").file, before := json.dumps({"projects": projects}))
    titles = []
    for planned in clients.plans(client("claude-code"), PROGRAM):
        assert "hush" not in planned.lines
        titles.append(planned.client.title)
        SetupJournal(state).add(clients.carry_out(planned))
    assert titles == ["Claude Code", "Claude Code in /home/me/first", "Claude Code in /home/me/third"]
    after = json.loads(file.read_text())
    for folder, name in (("/home/me/first", "remote-sandbox"), ("/home/me/third", "gpus")):
        found = after["projects"][folder]["mcpServers"][name]
        assert (found["command"], found["env"]) == (PROGRAM.name, UVX["env"])
    assert after["projects"]["/home/me/second"] == projects["/home/me/second"]
    assert after["mcpServers"]["remote-sandbox"]["command"] == PROGRAM.name
    assert [planned.state for planned in clients.plans(client("claude-code"), PROGRAM)] == [State.REGISTERED]
    assert all(it.is_done for it in undo(state))
    assert file.read_text() == before


def test_an_entry_of_the_original_in_codex_is_changed_line_by_line(home: Path, state: Path) -> None:
    file = write(home / ".codex/config.toml", TOML)
    planned = clients.plan(client("codex"), PROGRAM)
    assert (planned.state, planned.name) == (State.ORIGINAL, "gpus")
    assert "hush" not in planned.lines
    SetupJournal(state).add(clients.carry_out(planned))
    before, after = TOML.splitlines(), file.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new for _, new in changed] == ['command = "remote-sandbox-mcp"', "args = []"]
    undo(state)
    assert file.read_text() == TOML


def test_variables_of_an_entry_can_be_taken_out(home: Path) -> None:
    write(home / ".codex/config.toml", TOML)
    planned = clients.plan(client("codex"), PROGRAM)
    fewer = clients.with_entry(replace(planned, entry={**planned.entry, "env": {"OTHER": "1"}}))
    assert fewer.state is State.ORIGINAL
    assert "hush" not in fewer.after
    assert 'OTHER = "1"' in fewer.after


@pytest.mark.parametrize(
    ("entry", "is_original"),
    [
        ({"command": "uvx", "args": ["remote-sandbox-mcp@0.7.6"]}, True),
        ({"command": "/opt/bin/uvx", "args": ["remote-sandbox-mcp==0.7.6"]}, True),
        ({"command": "uv", "args": ["tool", "run", "remote-sandbox-mcp"]}, True),
        ({"command": "python3", "args": ["-m", "remote_sandbox_mcp.server"]}, True),
        ({"command": "/home/me/project/.venv/bin/remote-sandbox-mcp", "env": {"REMOTE_HOST": "h"}}, True),
        ({"command": "/home/me/other/bin/remote-sandbox-mcp", "args": ["--config", "mine.toml"]}, False),
        ({"command": "uvx", "args": ["--from", "/src/ours", "remote-sandbox-mcp"]}, False),
        ({"command": "uvx", "args": ["another-mcp"]}, False),
        ({"url": "https://gpu1.example.org/mcp"}, False),
        ({"command": 7, "args": None}, False),
    ],
)
def test_which_entries_are_the_originals(home: Path, entry: object, is_original: bool) -> None:
    write(client("cursor").file, json.dumps({"mcpServers": {"x": entry}}))
    assert (clients.plan(client("cursor"), PROGRAM).state is State.ORIGINAL) == is_original
