from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

from tests.cli.conftest import COMMAND, Cli, at_a_terminal, nobody
from tests.support.means import require_local
from tests.support.pace import at_most
from tests.support.sshd import silent_port

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def welcome(cli: Cli, *words: str, **environ: str) -> str:
    return ESCAPES.sub("", at_a_terminal(cli, *words, **environ)).replace("\r\n", "\n")


def test_it_says_what_it_is_what_it_has_and_how_to_go_on(cli: Cli) -> None:
    with silent_port() as port:
        cli.machines = [nobody("gpu1", port), nobody("gpu2", 22, "192.0.2.3")]
        begun = time.monotonic()
        page = welcome(cli)
    assert time.monotonic() - begun < at_most(4), "it waited for a machine"
    assert page.startswith("remote-sandbox-mcp 1.")
    assert f"nobody@127.0.0.1:{port}" in page
    assert "gpu1 *" in page
    assert re.search(r"gpu2 +ssh +nobody@192\.0\.2\.3 *\n", page)
    assert re.search(r"claude mcp add remote-sandbox -- \S*remote-sandbox-mcp\n", page)
    assert '-e REMOTE_SANDBOX_LIST=\'[{"host":"gpu1","user":"me"}]\'' in page
    assert "remote-sandbox-mcp doctor" in page


def test_the_lines_for_clients_lead_to_this_program_whatever_else_has_its_name(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "remote-sandbox-mcp"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    (linked := tmp_path / "linked").mkdir()
    (linked / "remote-sandbox-mcp").symlink_to(COMMAND)
    # As it is while a virtual environment is active; the next terminal would not find the name.
    active = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
    for path, program in (
        (active, COMMAND),
        (f"{active}:{linked}", "remote-sandbox-mcp"),
        (f"{active}:{tmp_path}:{linked}", COMMAND),
    ):
        page = welcome(cli, PATH=path)
        assert f"  claude mcp add remote-sandbox -- {program}\n" in page
        assert f"  codex mcp add remote-sandbox -- {program}\n" in page
        (block,) = re.findall(r'^ +(\{"mcpServers".*)$', page, re.M)
        assert json.loads(block) == {"mcpServers": {"remote-sandbox": {"command": program}}}


def test_it_fits_one_screen_however_much_is_configured(cli: Cli) -> None:
    # Without it the page says what to install, too.
    require_local()
    cli.machines = [nobody(f"gpu{n}", host=f"192.0.2.{n}") for n in range(50)]
    page = welcome(cli)
    assert "and 46 more" in page
    assert len(page.splitlines()) <= 24


def test_setup_is_named_where_no_machine_is_configured(cli: Cli) -> None:
    assert re.search(r"remote-sandbox-mcp setup +find your machines", welcome(cli))
    cli.machines = [nobody("gpu1")]
    assert "remote-sandbox-mcp setup" not in welcome(cli)


def test_problems_are_shown(cli: Cli) -> None:
    cli.machines = [{"name": "gpu1", "user": "me"}]
    assert "host is missing" in welcome(cli)


def test_a_config_file_of_ones_own_is_named(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[machines.tower]\nhost = "192.0.2.7"\n')
    page = welcome(cli, "--config", str(config))
    assert "192.0.2.7" in page
    assert str(config) in page.replace("\n", "")
