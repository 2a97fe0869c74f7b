"""Hosts of ~/.ssh/config: which are offered, which may be named, and when OpenSSH is asked about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote_sandbox_mcp.app import compose
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.schema import Configuration
from remote_sandbox_mcp.core.errors import ConfigError, UnknownSandbox
from remote_sandbox_mcp.services.gate.paths import private_files
from tests.support.config_reading import names
from tests.support.means import require_program

HOSTS = """
Host gpu1 gpu-old git@bad
    User ubuntu
Host gpu*
    Port 2200
Host lab
    IdentityFile /data/keys/lab
    IdentityFile /data/by-user/%r
Host *
    Port 22
"""


@pytest.fixture
def ssh(clean_environment: Path) -> Path:
    require_program("ssh")
    folder = clean_environment / ".ssh"
    folder.mkdir()
    (folder / "config").write_text(HOSTS)
    return folder


def configured(tmp_path: Path, text: str) -> Configuration:
    (tmp_path / "config.toml").write_text(text)
    return load(tmp_path / "config.toml", {})


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        pytest.param('hosts = ["*"]', ["gpu1", "gpu-old", "lab"], id="all"),
        pytest.param('hosts = ["gpu*", "!gpu-old"]', ["gpu1"], id="without one"),
        pytest.param('hosts = "gpu?"', ["gpu1"], id="one character"),
        pytest.param('hosts = ["lab", "gpu*"]', ["lab", "gpu1", "gpu-old"], id="names first"),
        pytest.param('hosts = ["*"]\n[machines.gpu1]\nhost = "h"\nuser = "u"', ["gpu1", "gpu-old", "lab"], id="table"),
        pytest.param('hosts = ["*"]\n[machines.x]\nssh_alias = "gpu1"', ["x", "gpu-old", "lab"], id="by another name"),
    ],
)
def test_hosts_are_offered_by_patterns(tmp_path: Path, ssh: Path, text: str, offered: list[str]) -> None:
    configuration = configured(tmp_path, text)
    assert configuration.problems == ()
    assert names(configuration) == offered


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param('hosts = ["-oX*"]', "names of hosts, or patterns", id="an option"),
        pytest.param('hosts = ["a;b*"]', "names of hosts, or patterns", id="for a shell"),
        pytest.param('hosts = ["cpu*"]', 'no host of ~/.ssh/config fits "cpu*"', id="none fits"),
        pytest.param("hosts_at_run_time = true", "has no effect without hosts", id="no hosts"),
        pytest.param('hosts = ["*"]\nhosts_at_run_time = "perhaps"', "hosts_at_run_time must be", id="no flag"),
    ],
)
def test_a_mistake_in_the_patterns_is_told(tmp_path: Path, ssh: Path, text: str, told: str) -> None:
    (problem,) = configured(tmp_path, text).problems
    assert told in problem


def test_openssh_is_asked_once_when_a_machine_is_first_used(tmp_path: Path, ssh: Path) -> None:
    (ssh / "config").write_text(f'Match originalhost gpu1 exec "echo >> {tmp_path}/asked"\n User ubuntu\n{HOSTS}')
    configuration = configured(tmp_path, 'hosts = ["*"]')
    assert compose(configuration).fleet.default == "gpu1"
    assert not (tmp_path / "asked").exists()
    machine = configuration.machines[0]
    assert {machine.complete().port for _ in range(3)} == {2200}
    assert (tmp_path / "asked").read_text() == "\n"


def test_a_change_of_another_host_leaves_a_machine_that_is_in_use(tmp_path: Path, ssh: Path) -> None:
    before = configured(tmp_path, 'hosts = ["gpu1", "lab"]')
    assert before.machines[0].complete().port == 2200
    (ssh / "config").write_text(HOSTS + "Host another\n Port 99\n")
    assert configured(tmp_path, 'hosts = ["gpu1", "lab"]').machines == before.machines
    (ssh / "config").write_text("Host gpu1\n Port 99\n" + HOSTS)
    after = configured(tmp_path, 'hosts = ["gpu1", "lab"]')
    assert after.machines[0] != before.machines[0]
    assert after.machines[0].complete().port == 99


def test_a_name_that_openssh_cannot_explain_is_one_sentence(tmp_path: Path, ssh: Path) -> None:
    configuration = configured(tmp_path, 'hosts = ["gpu1"]')
    (ssh / "config").write_text("Host gpu1\n Prot 22\n")
    with pytest.raises(ConfigError, match=r'hosts "gpu1" cannot be used: ssh -G says: .*prot; correct that'):
        configuration.machines[0].complete()


BY_NAME = 'hosts = ["gpu*", "lab", "!gpu-old"]\nhosts_at_run_time = true\n'


def test_a_host_is_found_by_a_name_that_fits_and_is_known(tmp_path: Path, ssh: Path) -> None:
    fleet = compose(configured(tmp_path, BY_NAME)).fleet
    assert fleet.member("gpu17") is fleet.member("gpu17")
    assert fleet.member("gpu17").describe().host == "gpu17"
    with pytest.raises(UnknownSandbox, match=r"no sandbox is named 'cpu1'.*each host of ~/.ssh/config that fits gpu\*"):
        fleet.member("cpu1")


def test_names_that_are_only_tried_do_not_pile_up(tmp_path: Path, ssh: Path) -> None:
    fleet = compose(configured(tmp_path, BY_NAME)).fleet
    for number in range(300):
        fleet.member(f"gpu-{number}")
    assert len(fleet.names) < 120
    assert "gpu-299" in fleet.names


@pytest.mark.parametrize(
    "name",
    [
        *(
            "-oProxyCommand=x",
            "gpu-old",
            "cpu1",
            "root@gpu1",
            "gpu1;x",
            "gpu$(x)",
            "gpu1\n",
            "gpu 1",
            "gpu*",
            "gpu\x00",
        ),
        *("gpu/1", "gpu" + 300 * "1", "gpu`x`", "gpu|x", " gpu7"),
    ],
)
def test_other_names_are_refused_and_openssh_is_not_asked(tmp_path: Path, ssh: Path, name: str) -> None:
    (ssh / "config").write_text(f'{HOSTS}Match exec "touch {tmp_path}/asked"\n Port 9\n')
    with pytest.raises(UnknownSandbox):
        compose(configured(tmp_path, BY_NAME)).fleet.member(name)
    assert not (tmp_path / "asked").exists()


def test_no_name_is_found_where_the_operator_does_not_allow_it(tmp_path: Path, ssh: Path) -> None:
    with pytest.raises(UnknownSandbox):
        compose(configured(tmp_path, 'hosts = ["gpu*"]')).fleet.member("gpu17")


def test_a_project_adds_no_host_and_no_program(tmp_path: Path, ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / ".ssh").mkdir(parents=True)
    monkeypatch.chdir(project)
    hostile = f"Host gpu1 evil\n ProxyCommand touch {tmp_path}/ran\n Port 666\n"
    for name in ("config", ".ssh/config", "ssh_config"):
        (project / name).write_text(hostile)
    (project / "config.json").write_text('{"opensandbox": {}, "hosts": ["*"], "hosts_at_run_time": true}')
    (project / "ssh").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (project / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", ".:/usr/bin:/bin")
    configuration = configured(tmp_path, 'hosts = ["*"]')
    assert names(configuration) == ["gpu1", "gpu-old", "lab"]
    assert configuration.machines[0].complete().port == 2200
    assert not (tmp_path / "ran").exists()


def test_keys_of_hosts_that_were_not_asked_about_are_closed_to_agents(tmp_path: Path, ssh: Path) -> None:
    closed = private_files(configured(tmp_path, 'hosts = ["*"]'))
    assert {"/data/keys/lab", "/data/by-user"} <= set(closed)
