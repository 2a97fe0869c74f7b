from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tests.cli.conftest import Cli, entry
from tests.support.sshd import Sshd


def own_known_hosts(cli: Cli) -> Path:
    return Path(cli.env["REMOTE_SANDBOX_MCP_HOME"]) / "known_hosts"


def test_what_was_accepted_is_listed_with_its_machine(cli: Cli, good: Sshd) -> None:
    assert cli("exec", "true").code == 0
    page = cli("hosts", "list").stdout
    assert f"[127.0.0.1]:{good.port}  {good.name}  ssh-ed25519  SHA256:" in page
    (host,) = cli("hosts", "list", "--json").json["hosts"]
    assert host["machines"] == [good.name]
    assert host["fingerprint"].startswith("SHA256:")


def test_an_empty_list_says_so(cli: Cli) -> None:
    assert "No host key was accepted yet" in cli("hosts", "list").stdout
    assert cli("hosts", "list", "--json").json["hosts"] == []


def test_hosts_alone_lists(cli: Cli) -> None:
    assert cli("hosts").stdout == cli("hosts", "list").stdout
    assert cli("hosts", "--json").json == cli("hosts", "list", "--json").json


def test_forgetting_drops_the_machine_and_its_jump_hosts(cli: Cli, good: Sshd, with_password: Sshd) -> None:
    cli.machines.append(entry(with_password, name="inner", jump=good.name))
    assert cli("exec", "--sandbox", "inner", "true").code == 0
    outcome = cli("hosts", "forget", "inner", "--json")
    gone = [f"[127.0.0.1]:{with_password.port}", f"[127.0.0.1]:{good.port}"]
    assert outcome.json == {"name": "inner", "forgotten": gone, "also_known_elsewhere": []}
    assert own_known_hosts(cli).read_text() == ""
    assert cli("hosts", "forget", "inner").stdout == "No host key of inner was remembered.\n"


def test_the_users_own_file_is_left_alone_and_the_command_is_told(cli: Cli, good: Sshd) -> None:
    file = Path.home() / ".ssh/known_hosts"
    file.parent.mkdir()
    file.write_text(good.known_hosts.read_text())
    page = cli("hosts", "forget", good.name).stdout
    command = f"ssh-keygen -R '[127.0.0.1]:{good.port}' -f {file}"
    assert page == (
        f"No host key of {good.name} was remembered.\n"
        "It is also known in files that are yours, which are left alone. If the key has changed, run:\n"
        f"  {command}\n"
    )
    assert file.read_text() == good.known_hosts.read_text()
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    assert cli("hosts", "forget", good.name).stdout == f"No host key of {good.name} was remembered.\n"


def test_a_machine_that_is_no_longer_configured_is_forgotten_by_its_host(cli: Cli, good: Sshd) -> None:
    assert cli("exec", "true").code == 0
    cli.machines = []
    page = cli("hosts", "forget", f"[127.0.0.1]:{good.port}").stdout
    assert page.startswith(f"Forgotten: [127.0.0.1]:{good.port}.")
    assert own_known_hosts(cli).read_text() == ""


def test_an_unknown_name_is_a_mistake(cli: Cli, good: Sshd) -> None:
    outcome = cli("hosts", "forget", "nobody")
    assert outcome.code == 2
    assert f"no SSH machine or remembered host is named 'nobody'; there are: {good.name}" in outcome.stderr


def test_a_host_key_alias_is_forgotten_as_both_transports_write_it(cli: Cli, clean_environment: Path) -> None:
    (clean_environment / ".ssh").mkdir(mode=0o700)
    (clean_environment / ".ssh" / "config").write_text("Host far\n HostName h\n Port 2200\n HostKeyAlias farm\n")
    cli.machines = [{"ssh_alias": "far"}]
    own = clean_environment / "remote-sandbox-mcp" / "known_hosts"
    own.parent.mkdir(mode=0o700)
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAabcdefghijklmnopqrstuvwxyz0123456789ABCDEF"
    own.write_text(f"[farm]:2200 {key}\nfarm {key}\nother {key}\n")
    assert cli("hosts", "forget", "far").code == 0
    assert own.read_text() == f"other {key}\n"
