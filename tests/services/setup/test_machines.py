from __future__ import annotations

from pathlib import Path

import pytest

from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.services.setup import config_file
from remote_sandbox_mcp.services.setup.machines import Finder, named

SSH_CONFIG = """Include more
Host gpu1 gpu-?
  HostName gpu1.example.org
  User alice
Host * !gpu1
  Port 2222
"""


@pytest.fixture
def config(clean_environment: Path, tmp_path: Path) -> Path:
    folder = clean_environment / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "config").write_text(SSH_CONFIG)
    (folder / "more").write_text("Host old gpu9\n  HostName 192.0.2.9\n")
    config = tmp_path / "config.toml"
    config.write_text('hosts = ["old"]\n')
    return config


def test_hosts_are_those_that_are_named_in_full_and_not_yet_configured(config: Path) -> None:
    finder = Finder(load(config))
    assert [candidate.name for candidate in finder.configured()] == ["old"]
    assert [(it.name, it.address) for it in finder.hosts()] == [
        ("gpu9", f"{finder.hosts()[0].machine.login.user}@192.0.2.9:2222"),
        ("gpu1", "alice@gpu1.example.org"),
    ]


@pytest.mark.parametrize(
    ("text", "name", "address"),
    [
        pytest.param("bob@192.0.2.1", "192.0.2.1", "bob@192.0.2.1", id="user and host"),
        pytest.param("bob@192.0.2.1:2200", "192.0.2.1", "bob@192.0.2.1:2200", id="a port"),
        pytest.param("ssh://bob@[2001:db8::1]:2200", "2001-db8--1", "bob@[2001:db8::1]:2200", id="an address of IPv6"),
        pytest.param("gpu-7", "gpu-7", "alice@gpu1.example.org", id="a host that a pattern fits"),
        pytest.param("bob@taken.example.org:24", "taken.example.org-24", "bob@taken.example.org:24", id="a taken name"),
    ],
)
def test_a_machine_is_written_as_people_write_it(config: Path, text: str, name: str, address: str) -> None:
    found = Finder(load(config)).typed(text, {"taken.example.org"})
    assert (found.name, found.address.partition(":")[0]) == (name, address.partition(":")[0])


def test_machines_that_are_named_at_once_get_names_of_their_own_and_each_is_taken_once(config: Path) -> None:
    finder = Finder(load(config))
    candidates = [*finder.configured(), *finder.hosts()]
    names = ["ann@gpu", "bob@gpu", "old", "ann@gpu", "bob@gpu9:24", "gpu9", "old"]
    found = [(it.name, it.machine.login.user) for it in named(candidates, finder, names)]
    me = finder.configured()[0].machine.login.user
    assert found == [("gpu", "ann"), ("gpu-22", "bob"), ("old", me), ("gpu9-24", "bob"), ("gpu9", me)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("no such machine", "is no machine; write it as", id="blanks"),
        pytest.param("-oProxyCommand=x", "is no machine", id="an option"),
        pytest.param("bob@host;rm", "is no machine", id="for a shell"),
        pytest.param("bob@host:99999", "is no machine", id="no port"),
        pytest.param("old", "old is configured or chosen already", id="configured"),
    ],
)
def test_what_is_no_machine_is_told(config: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Finder(load(config)).typed(text)


def test_a_change_with_a_new_problem_is_put_back(config: Path) -> None:
    before = config.read_text()
    planned = config_file.plan(config, [config_file.NewMachine("bad", {"host": "a b"})])
    with pytest.raises(ConfigError, match="was put back as it was, because with the change it would say"):
        config_file.carry_out(planned, config)
    assert config.read_text() == before
    assert [path.name for path in config.parent.iterdir()] == ["config.toml"]
