"""Machines were configured and none can be used: no other sandbox takes their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote_sandbox_mcp.app import compose
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.schema import Configuration
from remote_sandbox_mcp.core.errors import ConfigError
from tests.support.config_reading import GOOD, HIDDEN, read

BROKEN_LIST = f'[{{"host": "192.0.2.1", "password": "{HIDDEN}"}}'


def refused(configuration: Configuration) -> str:
    """What is told where no sandbox is named; the local one is there all the same, by its name."""
    fleet = compose(configuration).fleet
    assert (configuration.default, fleet.default) == ("", "")
    with pytest.raises(ConfigError) as told:
        fleet.member()
    assert fleet.member("local").name == "local"
    assert HIDDEN not in str(told.value)
    assert len(str(told.value)) < 1100
    return str(told.value)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        pytest.param({"REMOTE_SANDBOX_LIST": BROKEN_LIST}, "LIST is passed over: it is not valid JSON", id="no JSON"),
        pytest.param({"REMOTE_SANDBOX_LIST": '{"host": "a"}'}, "it must be a JSON list", id="no list"),
        pytest.param({"REMOTE_SANDBOX_LIST": '[{"name": "a"}]'}, "host is missing", id="no host"),
        pytest.param({"REMOTE_SANDBOX_LIST": "[7]"}, "entry 1 is left out", id="no entry"),
        pytest.param({"REMOTE_HOST": "me@host"}, "REMOTE_HOST", id="bad host"),
        pytest.param({"REMOTE_HOST": "a", "REMOTE_PORT": "x"}, "REMOTE_PORT must be", id="bad port"),
    ],
)
def test_an_environment_that_names_no_usable_machine(environ: dict[str, str], told: str) -> None:
    assert told in refused(load(environ=environ))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("[machines.a\n", "is not valid TOML", id="no TOML"),
        pytest.param("[machines.a]\nport = 1\n", "host is missing", id="no host"),
        pytest.param("machines = 1\n", "machines is passed over", id="machines is a number"),
        pytest.param("hosts = ['*']\n", 'no host of ~/.ssh/config fits "*"', id="no host of ssh"),
        pytest.param("hosts = ['-oProxyCommand=x']\n", "is left out", id="an option"),
        pytest.param("hosts = [1]\n", "hosts is passed over", id="hosts are numbers"),
        pytest.param("default = 'gpu1'\n", 'is named "gpu1"', id="a default that is not there"),
        pytest.param("[machines.a]\nhost='a'\njump='a'\n", "lead round in a circle", id="a circle"),
    ],
)
def test_a_file_that_names_no_usable_machine(tmp_path: Path, text: str, told: str) -> None:
    assert told in refused(read(tmp_path, text))


@pytest.mark.parametrize("name", ["gone.toml", "gone.json"])
def test_a_file_that_was_given_and_is_not_there(tmp_path: Path, name: str) -> None:
    configuration = load(tmp_path / name, {})
    assert f"{name} is not there" in refused(configuration)
    assert f"{name} is not there" in configuration.settings.rules.refusal


def test_the_usual_file_that_cannot_be_read(clean_environment: Path) -> None:
    from remote_sandbox_mcp.config import paths

    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text("[machines.gpu1]\nhost =\n")
    assert "is not valid TOML" in refused(load(environ={}))


def test_where_one_machine_can_be_used_it_is_the_default(tmp_path: Path) -> None:
    for configuration in (
        load(environ={"REMOTE_SANDBOX_LIST": json.dumps([{"name": "bad"}, GOOD])}),
        load(tmp_path / "gone.toml", {"REMOTE_SANDBOX_LIST": json.dumps([GOOD])}),
        read(tmp_path, "[machines.good]\nhost = 'a'\n", REMOTE_SANDBOX_LIST=BROKEN_LIST),
    ):
        assert (configuration.default, configuration.refusal) == ("good", "")
        assert compose(configuration).fleet.member().name == "good"
        assert configuration.problems


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("", {"REMOTE_SANDBOX_LIST": "[]"}, id="an empty list"),
        pytest.param("", {"REMOTE_HOST": " ", "REMOTE_USER": "me"}, id="no host"),
        pytest.param("default = 'local'\n[machines]\n[server]\npatience_s = 'x'\n", {}, id="another mistake"),
    ],
)
def test_where_no_machine_was_configured_the_local_sandbox_serves(
    tmp_path: Path, text: str, environ: dict[str, str]
) -> None:
    configuration = read(tmp_path, text, **environ)
    assert (configuration.default, configuration.refusal) == ("local", "")
    assert configuration.settings.rules.refusal == ""
    assert compose(configuration).fleet.member().name == "local"


@pytest.mark.parametrize(
    ("text", "environ", "told"),
    [
        pytest.param("", {"OPENSANDBOX_SERVER": "ftp://x"}, "the address in OPENSANDBOX_SERVER", id="variable"),
        pytest.param("[opensandbox]\nserver_url = 'ftp://x'", {}, "[opensandbox] server_url", id="file"),
    ],
)
def test_a_platform_that_cannot_be_used_is_replaced_by_no_other(
    tmp_path: Path, text: str, environ: dict[str, str], told: str
) -> None:
    configuration = read(tmp_path, text, **environ)
    assert told in configuration.settings.rules.refusal
    assert configuration.refusal == ""
    chosen = read(tmp_path, f"{text}\n[disposable]\nprovider = 'embedded'", **environ)
    assert chosen.settings.rules.refusal == ""
