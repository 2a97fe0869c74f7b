from __future__ import annotations

import re
import time
from pathlib import Path

from tests.cli.conftest import Cli, at_a_terminal, nobody
from tests.support.sshd import silent_port

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def welcome(cli: Cli, *words: str) -> str:
    return ESCAPES.sub("", at_a_terminal(cli, *words)).replace("\r\n", "\n")


def test_it_says_what_it_is_what_it_has_and_how_to_go_on(cli: Cli) -> None:
    with silent_port() as port:
        cli.machines = [nobody("gpu1", port), nobody("gpu2", 22, "10.1.2.3")]
        begun = time.monotonic()
        page = welcome(cli)
    assert time.monotonic() - begun < 4, "it waited for a machine"
    assert page.startswith("remote-sandbox-mcp 1.")
    assert f"nobody@127.0.0.1:{port}" in page
    assert "gpu1 *" in page
    assert re.search(r"gpu2 +ssh +nobody@10\.1\.2\.3 *\n", page)
    assert re.search(r"claude mcp add remote-sandbox -- \S*remote-sandbox-mcp\n", page)
    assert '-e REMOTE_SANDBOX_LIST=\'[{"host":"gpu1","user":"me"}]\'' in page
    assert "[mcp_servers.remote-sandbox]" in page
    assert "remote-sandbox-mcp doctor" in page


def test_it_fits_one_screen_however_much_is_configured(cli: Cli) -> None:
    cli.machines = [nobody(f"gpu{n}", host=f"10.1.2.{n}") for n in range(50)]
    page = welcome(cli)
    assert "and 46 more" in page
    assert len(page.splitlines()) <= 24


def test_problems_are_shown(cli: Cli) -> None:
    cli.machines = [{"name": "gpu1", "user": "me"}]
    assert "host is missing" in welcome(cli)


def test_a_config_file_of_ones_own_is_named(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[machines.tower]\nhost = "10.9.8.7"\n')
    page = welcome(cli, "--config", str(config))
    assert "10.9.8.7" in page
    assert str(config) in page.replace("\n", "")
