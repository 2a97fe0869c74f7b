from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.config_reading import A, machines, read, ways


@pytest.fixture
def ssh(clean_environment: Path) -> Path:
    folder = clean_environment / ".ssh"
    folder.mkdir()
    return folder


# --- aliases of ~/.ssh/config ----------------------------------------------------------------------------------------

CONFIG = """
Host gpu2
    HostName 192.0.2.2
    Port 2222
    User ubuntu
    IdentityFile ~/.ssh/work
    ProxyJump bastion
    StrictHostKeyChecking yes
    ConnectTimeout 11
    HostKeyAlias farm
    UserKnownHostsFile /etc/farm
Host bastion
    HostName bastion.example.com
    User jump
    ProxyJump outer
Host outer
    User out
    ProxyCommand nc %h %p
"""


def test_hosts_are_aliases(tmp_path: Path, ssh: Path) -> None:
    (ssh / "config").write_text(CONFIG)
    (ssh / "work").touch()
    machine = machines(read(tmp_path, 'hosts = ["gpu2"]\n', SSH_AUTH_SOCK="/run/agent"))["gpu2"]
    assert (machine.host, machine.port, machine.login.user) == ("192.0.2.2", 2222, "ubuntu")
    assert (machine.login.key_files, machine.login.agent) == ((f"{ssh}/work",), "/run/agent")
    assert ways(machine.hops) == ["out@outer:22", "jump@bastion.example.com:22"]
    assert machine.proxy_command == ("/bin/sh", "-c", "exec nc outer 22")
    assert (machine.strict_host_keys, machine.connect_timeout_s) == (True, 11.0)
    assert machine.host_key_name == "farm"
    assert machine.known_hosts_files[0] == "/etc/farm"


def test_a_machine_takes_from_an_alias_what_it_does_not_say(tmp_path: Path, ssh: Path) -> None:
    (ssh / "config").write_text(CONFIG)
    (ssh / "mine").touch()
    machine = machines(
        read(
            tmp_path,
            """
            [machines.fast]
            ssh_alias = "gpu2"
            user = "root"
            port = 22
            key_file = "~/.ssh/mine"
            jump = "none"
            strict_host_keys = false
            connect_timeout_s = 3
            """,
            SSH_AUTH_SOCK="/run/agent",
        )
    )["fast"]
    assert (machine.host, machine.port, machine.login.user) == ("192.0.2.2", 22, "root")
    assert (machine.login.key_files, machine.login.agent) == ((f"{ssh}/mine",), "")
    assert machine.hops == ()
    assert (machine.strict_host_keys, machine.connect_timeout_s) == (False, 3.0)
    assert machine.host_key_name == "farm"


def test_an_alias_with_a_password_keeps_its_keys(tmp_path: Path, ssh: Path) -> None:
    (ssh / "config").write_text(CONFIG)
    (ssh / "work").touch()
    login = machines(read(tmp_path, '[machines.gpu2]\nssh_alias = "gpu2"\npassword = "x"\n'))["gpu2"].login
    assert login.password
    assert login.key_files == (f"{ssh}/work",)


@pytest.mark.parametrize(
    ("agent", "socket"),
    [
        pytest.param("true", "/run/agent", id="on"),
        pytest.param("false", "", id="off"),
        pytest.param('"~/sock"', "~/sock", id="socket"),
        pytest.param('"$OTHER"', "/run/other", id="variable"),
        pytest.param('"none"', "", id="none"),
    ],
)
def test_the_agent_can_be_chosen(tmp_path: Path, agent: str, socket: str) -> None:
    configuration = read(tmp_path, f"{A}agent = {agent}\n", SSH_AUTH_SOCK="/run/agent", OTHER="/run/other")
    assert machines(configuration)["a"].login.agent == os.path.expanduser(socket)


# --- jump hosts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jump", "expected"),
    [
        pytest.param('"me@h:2200"', ["me@h:2200"], id="all of it"),
        pytest.param('"ssh://me@h:2200"', ["me@h:2200"], id="as an address"),
        pytest.param('"me@[fd00::1]:2200"', ["me@fd00::1:2200"], id="IPv6"),
        pytest.param('"me@h, you@i"', ["me@h:22", "you@i:22"], id="with commas"),
        pytest.param('["me@h", "you@i"]', ["me@h:22", "you@i:22"], id="list"),
        pytest.param('"bastion"', ["out@outer:22", "jump@bastion.example.com:22"], id="alias with a jump of its own"),
        pytest.param('"it@bastion:9"', ["out@outer:22", "it@bastion.example.com:9"], id="alias with another user"),
        pytest.param(
            '["me@h", "bastion"]', ["me@h:22", "jump@bastion.example.com:22"], id="only the first is followed"
        ),
        pytest.param('"a"', ["u@192.0.2.1:22"], id="machine"),
        pytest.param('"b"', ["u@192.0.2.1:22", "v@192.0.2.2:22"], id="machine with a jump of its own"),
        pytest.param('["me@h", "b"]', ["me@h:22", "v@192.0.2.2:22"], id="machine after another host"),
    ],
)
def test_jump_hosts(tmp_path: Path, ssh: Path, jump: str, expected: list[str]) -> None:
    (ssh / "config").write_text(CONFIG)
    second = '[machines.b]\nhost = "192.0.2.2"\nuser = "v"\njump = "a"\n'
    text = f'{A}password = "x"\n{second}[machines.c]\nhost = "192.0.2.3"\njump = {jump}\n'
    hops = machines(read(tmp_path, text))["c"].hops
    assert ways(hops) == expected
    assert all(bool(hop.login.password) == (hop.host == "192.0.2.1") for hop in hops)


def test_jump_hosts_in_a_circle_are_told_and_the_others_work(tmp_path: Path) -> None:
    circle = '[machines.b]\nhost = "h"\njump = "c"\n[machines.c]\nhost = "i"\njump = "b"\n'
    configuration = read(tmp_path, f"{A}{circle}")
    assert [machine.name for machine in configuration.machines] == ["a"]
    assert len(configuration.problems) == 2
    assert all("circle" in problem for problem in configuration.problems)


def test_aliases_in_a_circle_are_told(tmp_path: Path, ssh: Path) -> None:
    (ssh / "config").write_text("Host x\n ProxyJump y\nHost y\n ProxyJump x\nHost z\n ProxyJump other\n")
    configuration = read(tmp_path, 'hosts = ["x", "z"]')
    assert {machine.name: len(machine.hops) for machine in configuration.machines} == {"z": 1}
    assert "circle" in configuration.problems[0]
