from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.sandboxes.machine import Engine
from remote_sandbox_mcp.core.sandboxes.slurm import Cluster
from tests.support.config_reading import GOOD, HIDDEN, from_list, names, only, read, the_problem

# --- what the published variables mean -------------------------------------------------------------------------------


def test_nothing_configured_offers_the_embedded_sandbox() -> None:
    configuration = load(environ={})
    assert configuration.machines == ()
    assert configuration.local is not None
    assert (configuration.local.name, configuration.default) == ("local", "local")
    assert configuration.settings == Settings(None, False, 5.0, False, 200, 67108864)
    assert (configuration.problems, configuration.file) == ((), "")


def test_one_machine_from_its_variables(clean_environment: Path) -> None:
    key = clean_environment / "key"
    key.touch()
    machine = only(
        load(
            environ={
                "REMOTE_HOST": "1.2.3.4",
                "REMOTE_PORT": "2222",
                "REMOTE_USER": "ubuntu",
                "REMOTE_PASSWORD": HIDDEN,
                "REMOTE_KEY_FILE": "~/key",
                "REMOTE_KEY_PASSPHRASE": "open",
                "SSH_AUTH_SOCK": "/run/agent",
            }
        )
    )
    assert (machine.name, machine.host, machine.port, machine.login.user) == ("1.2.3.4", "1.2.3.4", 2222, "ubuntu")
    assert machine.login.password
    assert machine.login.password.reveal() == HIDDEN
    assert machine.login.key_passphrase
    assert machine.login.key_passphrase.reveal() == "open"
    assert (machine.login.key_files, machine.login.agent) == ((str(key),), "")


def test_empty_variables_are_as_good_as_none() -> None:
    others = ("PORT", "USER", "PASSWORD", "KEY_FILE", "KEY_PASSPHRASE", "SANDBOX_LIST", "SANDBOX_PATIENCE_S")
    machine = only(load(environ={"REMOTE_HOST": "h", **{f"REMOTE_{name}": "" for name in others}})).complete()
    assert (machine.port, machine.login.user) == (22, getpass.getuser())
    assert (machine.login.password, machine.login.key_passphrase) == (None, None)


def test_several_machines_from_the_list_keep_their_order() -> None:
    configuration = from_list(
        {"name": "A100", "host": "192.0.2.1", "port": 22, "user": "ubuntu", "password": "xxx"},
        {"host": "192.0.2.2", "user": "root", "port": "2200", "name": None},
        GOOD,
    )
    assert names(configuration) == ["A100", "192.0.2.2", "good"]
    assert [machine.port for machine in configuration.machines] == [22, 2200, 22]
    assert (configuration.default, configuration.problems) == ("A100", ())
    assert configuration.sources["machines.A100"] == 'REMOTE_SANDBOX_LIST entry 1 ("A100")'


def test_list_and_single_machine_both_count_and_the_list_comes_first() -> None:
    assert names(from_list(GOOD, REMOTE_HOST="h", REMOTE_USER="u")) == ["good", "h"]


ENGINES = {
    "none": ({}, None),
    "docker": ({"docker": True}, Engine("docker", ("docker",))),
    "podman": ({"podman": True, "docker": False}, Engine("podman", ("podman",))),
    "words": ({"docker": ["sudo", "-n", "docker"]}, Engine("docker", ("sudo", "-n", "docker"))),
}


@pytest.mark.parametrize(("said", "engine"), ENGINES.values(), ids=ENGINES)
def test_an_engine_makes_sandboxes_only_where_the_operator_says_so(said: dict[str, object], engine: object) -> None:
    assert only(from_list({**GOOD, **said})).engine == engine


def test_of_two_engines_one_is_used_and_that_is_told() -> None:
    configuration = from_list({**GOOD, "docker": True, "podman": True})
    assert configuration.machines[0].engine == Engine("docker", ("docker",))
    assert "docker and podman are both allowed, and only docker is used" in the_problem(configuration)


CLUSTERS = {
    "none": ({}, None),
    "not one": ({"slurm": False}, None),
    "as it is": ({"slurm": True}, Cluster()),
    "with defaults": (
        {"slurm": {"partition": "gpu", "cpus-per-task": 4, "rate_s": 60, "login_jobs": True}},
        Cluster({"partition": "gpu", "cpus_per_task": "4"}, rate_s=60, login_jobs=True),
    ),
}


@pytest.mark.parametrize(("said", "cluster"), CLUSTERS.values(), ids=CLUSTERS)
def test_a_machine_is_a_cluster_only_where_the_operator_says_so(said: dict[str, object], cluster: object) -> None:
    assert only(from_list({**GOOD, **said})).slurm == cluster


def test_an_ipv6_address_makes_a_name_that_can_be_used() -> None:
    machine = only(from_list({"host": "[fd00::1]", "user": "u"}))
    assert (machine.name, machine.host) == ("fd00--1", "fd00::1")


@pytest.mark.parametrize(
    ("password", "plain", "source"),
    [
        pytest.param("a b\\c$", "a b\\c$", "", id="literal"),
        pytest.param("env:PW", HIDDEN, "env:PW", id="reference"),
        pytest.param("literal:env:PW", "env:PW", "", id="escaped"),
        pytest.param(" x ", " x ", "", id="blanks belong to it"),
    ],
)
def test_passwords_in_the_list(password: str, plain: str, source: str) -> None:
    secret = only(from_list({"host": "h", "user": "u", "password": password}, PW=HIDDEN)).login.password
    assert secret
    assert (secret.reveal(), secret.source) == (plain, source)


def test_a_password_alone_tries_no_keys_and_no_agent(clean_environment: Path) -> None:
    (clean_environment / ".ssh").mkdir()
    (clean_environment / ".ssh" / "id_rsa").touch()
    login = only(from_list(GOOD, SSH_AUTH_SOCK="/run/agent")).login
    assert (login.key_files, login.agent) == ((), "")


def test_without_key_and_password_the_usual_keys_and_the_agent_are_tried(clean_environment: Path) -> None:
    (clean_environment / ".ssh").mkdir()
    for name in ("id_rsa", "id_ed25519", "id_ed25519-cert.pub", "id_dsa"):
        (clean_environment / ".ssh" / name).touch()
    login = only(from_list({"host": "h", "user": "u"}, SSH_AUTH_SOCK="/run/agent")).login
    assert [Path(path).name for path in login.key_files] == ["id_ed25519", "id_rsa"]
    assert [Path(path).name for path in login.certificate_files] == ["id_ed25519-cert.pub"]
    assert login.agent == "/run/agent"


def test_a_missing_user_is_the_one_of_ssh_config(clean_environment: Path) -> None:
    (clean_environment / ".ssh").mkdir()
    (clean_environment / ".ssh" / "config").write_text("Host h\n User ubuntu\n HostName elsewhere\n Port 99\n")
    machine = only(from_list({"host": "h"}))
    assert (machine.host, machine.port, machine.login.user) == ("h", 22, "ubuntu")


# --- settings --------------------------------------------------------------------------------------------------------

SETTINGS = """
[server]
patience_s = 30
strict_host_keys = true
connect_timeout_s = 7.5
expose_advanced_tools = true
inline_sync_max_files = 5
inline_sync_max_bytes = 6
"""


def test_settings_from_the_file(tmp_path: Path) -> None:
    configuration = read(tmp_path, SETTINGS, REMOTE_HOST="h")
    assert configuration.settings == Settings(30.0, True, 7.5, True, 5, 6)
    machine = only(configuration)
    assert (machine.strict_host_keys, machine.connect_timeout_s) == (True, 7.5)
    assert configuration.sources["server.patience_s"] == str(tmp_path / "config.toml")


def test_settings_from_the_environment_beat_the_file(tmp_path: Path) -> None:
    configuration = read(
        tmp_path,
        SETTINGS,
        REMOTE_SANDBOX_PATIENCE_S="12.5",
        REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS="0",
        REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES="0",
        REMOTE_SANDBOX_INLINE_SYNC_MAX_BYTES="1",
    )
    assert configuration.settings == Settings(12.5, True, 7.5, False, 0, 1)
    assert configuration.sources["server.patience_s"] == "REMOTE_SANDBOX_PATIENCE_S"
    assert configuration.problems == ()


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        pytest.param("REMOTE_SANDBOX_PATIENCE_S", "soon", "number of seconds", id="patience in words"),
        pytest.param("REMOTE_SANDBOX_PATIENCE_S", "-1", "above 0", id="patience below zero"),
        pytest.param("REMOTE_SANDBOX_PATIENCE_S", "nan", "number of seconds", id="patience not a number"),
        pytest.param("REMOTE_SANDBOX_PATIENCE_S", "inf", "number of seconds", id="endless patience"),
        pytest.param("REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS", "maybe", "true or false", id="flag"),
        pytest.param("REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES", "-5", "whole number", id="files"),
        pytest.param("REMOTE_SANDBOX_INLINE_SYNC_MAX_BYTES", "64M", "whole number", id="bytes"),
    ],
)
def test_a_bad_setting_is_told_and_the_default_holds(variable: str, value: str, why: str) -> None:
    configuration = load(environ={variable: value})
    problem = the_problem(configuration)
    assert variable in problem
    assert why in problem
    assert configuration.settings == Settings()


def test_a_bad_setting_in_the_file_does_not_spoil_the_others(tmp_path: Path) -> None:
    configuration = read(tmp_path, "[server]\npatience_s = true\nconnect_timeout_s = 9\n")
    assert "[server]: patience_s must be a number of seconds" in the_problem(configuration)
    assert configuration.settings == Settings(connect_timeout_s=9.0)


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_advanced_tools_can_be_exposed(value: str) -> None:
    assert load(environ={"REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS": value}).settings.expose_advanced_tools


def test_extensions_are_whole_paths_of_the_operators_file(tmp_path: Path) -> None:
    tools, file = tmp_path / "tools.py", tmp_path / "config.toml"
    file.write_text(f'extensions = ["{tools}"]\n')
    missing = load(file, {})
    assert [path for path, _ in missing.settings.extensions] == [str(tools)]
    assert str(tools) in missing.read_from
    tools.write_text("")
    assert load(file, {}).settings != missing.settings
    file.write_text('extensions = ["tools.py"]\n')
    wrong = load(file, {})
    assert wrong.settings.extensions == ()
    assert any("extensions must be whole paths" in problem for problem in wrong.problems)
