from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli

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
