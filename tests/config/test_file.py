from __future__ import annotations

from pathlib import Path

import pytest

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace, Machine
from remote_sandbox_mcp.core.sandboxes.network import PACKAGE_INDEXES, Network, Reach
from tests.support.config_reading import HIDDEN, A, machines, read, ways


@pytest.fixture
def ssh(clean_environment: Path) -> Path:
    folder = clean_environment / ".ssh"
    folder.mkdir()
    return folder


def test_a_machine_may_say_everything(tmp_path: Path) -> None:
    for name in ("key1", "key2", "cert"):
        (tmp_path / name).touch()
    machine = machines(
        read(
            tmp_path,
            f"""
            [machines.gpu1]
            host = "192.0.2.1"
            port = 2222
            user = "ubuntu"
            password = "keyring:gpu1/ubuntu"
            key_file = ["{tmp_path}/key1", "{tmp_path}/key2"]
            key_passphrase = "env:PHRASE"
            sudo = "keyring:sudo/gpu1"
            certificate_file = "{tmp_path}/cert"
            agent = true
            jump = "me@bastion:2200"
            shell = "bash -lc"
            init = ["source ~/env.sh", "ulimit -c 0"]
            env = {{ CUDA_VISIBLE_DEVICES = 0, HF_HOME = "/data" }}
            python = "/opt/python3"
            strict_host_keys = true
            connect_timeout_s = 20
            """,
            SSH_AUTH_SOCK="/run/agent",
            PHRASE="open",
        )
    )["gpu1"]
    assert (machine.host, machine.port, machine.login.user) == ("192.0.2.1", 2222, "ubuntu")
    assert machine.login.password
    assert machine.login.password.source == "keyring:gpu1/ubuntu"
    assert machine.login.key_passphrase
    assert machine.login.key_passphrase.reveal() == "open"
    assert machine.sudo
    assert machine.sudo.source == "keyring:sudo/gpu1"
    assert machine.login.key_files == (f"{tmp_path}/key1", f"{tmp_path}/key2")
    assert machine.login.certificate_files == (f"{tmp_path}/cert",)
    assert machine.login.agent == "/run/agent"
    assert ways(machine.hops) == ["me@bastion:2200"]
    assert machine.environment.shell == ("bash", "-lc")
    assert machine.environment.init == ("source ~/env.sh", "ulimit -c 0")
    assert machine.environment.env == {"CUDA_VISIBLE_DEVICES": "0", "HF_HOME": "/data"}
    assert (machine.python, machine.strict_host_keys, machine.connect_timeout_s) == ("/opt/python3", True, 20.0)


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    assert machines(read(tmp_path, A))["a"] == Machine("a", "192.0.2.1", login=machines(read(tmp_path, A))["a"].login)


def test_the_usual_file_is_read_without_being_named() -> None:
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text(A)
    configuration = load(environ={})
    assert [machine.name for machine in configuration.machines] == ["a"]
    assert configuration.file == str(paths.config_file())
    assert configuration.sources["machines.a"] == f"{paths.config_file()} [machines.a]"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(None, "is not there", id="not there"),
        pytest.param(b"= 1", "not valid TOML (line 1, column 1)", id="broken"),
        pytest.param(f'password = "{HIDDEN}\\x"'.encode(), "not valid TOML", id="bad escape"),
        pytest.param(b"\xff\xfe", "not valid TOML", id="not text"),
        pytest.param(A.encode() * 2, "not valid TOML", id="the same machine twice"),
    ],
)
def test_a_broken_file_is_told_and_the_environment_still_works(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_bytes(content)
    configuration = load(path, {"REMOTE_HOST": "h", "REMOTE_USER": "u"})
    (problem,) = configuration.problems
    assert problem.startswith(str(path))
    assert why in problem
    assert HIDDEN not in problem
    assert [machine.name for machine in configuration.machines] == ["h"]
    assert configuration.file == ""


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (problem,) = load(tmp_path, {}).problems
    assert "cannot be read" in problem


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(
            "machine = 1", 'unknown key "machine" is passed over; the nearest right key is "machines"', id="top"
        ),
        pytest.param("[server]\npatience = 1", 'the nearest right key is "patience_s"', id="server"),
        pytest.param("[local]\nnetwrok = true", 'the nearest right key is "network"', id="local"),
        pytest.param("server = 1", "must be a table, written as [server]", id="server is a number"),
        pytest.param('[[machines]]\nhost = "h"', "written as [machines.NAME]", id="machines is a list"),
        pytest.param("machines = { a = 1 }", "[machines.a] is left out: it must be a table", id="machine is a number"),
        pytest.param("hosts = [1]", "hosts is passed over", id="hosts are numbers"),
        pytest.param('default = "gpu9"', 'no sandbox that can be used is named "gpu9"', id="unknown default"),
        pytest.param("default = [1]", "default is passed over", id="default is a list"),
        pytest.param("[local]\nname = 'a/b'", "[local]: name must not hold", id="name of the embedded sandbox"),
    ],
)
def test_a_fault_in_the_file_is_told_and_the_rest_holds(tmp_path: Path, text: str, told: str) -> None:
    configuration = read(tmp_path, text, REMOTE_HOST="h", REMOTE_USER="u")
    (problem,) = configuration.problems
    assert problem.startswith(str(tmp_path / "config.toml"))
    assert told in problem
    assert configuration.default == "h"
    assert configuration.local is not None


def test_a_password_in_a_file_that_others_may_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'{A}password = "{HIDDEN}"\n')
    path.chmod(0o644)
    assert load(path, {}).problems == (f"{path} holds a password, and other users may read it: run chmod 600 {path}.",)
    path.write_text(f'{A}password = "env:PW"\n')
    assert load(path, {"PW": HIDDEN}).problems == ()


def test_the_environment_replaces_a_machine_of_the_file(tmp_path: Path) -> None:
    listed = '[{"name": "a", "host": "other", "user": "u"}]'
    configuration = read(tmp_path, f'{A}[machines.h]\nhost = "x"\n', REMOTE_SANDBOX_LIST=listed, REMOTE_HOST="h")
    assert {name: machine.host for name, machine in machines(configuration).items()} == {"a": "other", "h": "h"}
    assert configuration.sources["machines.h"] == "REMOTE_HOST"


def test_an_alias_and_a_machine_of_one_name_are_told(tmp_path: Path, ssh: Path) -> None:
    configuration = read(tmp_path, f'hosts = ["a"]\n{A}')
    (problem,) = configuration.problems
    assert problem.startswith(f'{tmp_path}/config.toml hosts "a" is left out')
    assert [machine.host for machine in configuration.machines] == ["192.0.2.1"]


def test_the_default_is_the_one_that_is_named(tmp_path: Path) -> None:
    assert read(tmp_path, f'default = "local"\n{A}').default == "local"
    assert read(tmp_path, f'default = "b"\n{A}[machines.b]\nhost = "h"\n').default == "b"


# --- the embedded sandbox --------------------------------------------------------------------------------------------


def test_the_embedded_sandbox_can_be_shaped(tmp_path: Path) -> None:
    text = '[local]\nname = "here"\nnetwork = true\nshell = ["sh", "-c"]\ninit = "set -u"\nenv = { A = "1" }\n'
    local = read(tmp_path, text).local
    assert local is not None
    assert (local.name, local.network.reach) == ("here", Reach.OUTSIDE)
    assert (local.environment.shell, local.environment.init) == (("sh", "-c"), ("set -u",))
    assert local.environment.env == {"A": "1"}


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("", Network()),
        ("network = false", Network()),
        ("network = []", Network()),
        ("network = true", Network(Reach.OUTSIDE)),
        ('network = "host"', Network(Reach.HOST)),
        ('network = ["pypi.org", "*.example.org:443"]', Network(Reach.HOSTS, ("pypi.org", "*.example.org:443"))),
        (
            'network = true\nprivate_ranges = ["10.1.2.3", "192.168.5.0/24"]',
            Network(Reach.OUTSIDE, (), ("10.1.2.3", "192.168.5.0/24")),
        ),
    ],
)
def test_the_network_of_the_embedded_sandbox_is_the_operators_choice(
    tmp_path: Path, text: str, network: Network
) -> None:
    configuration = read(tmp_path, f"[local]\n{text}\n")
    assert configuration.problems == ()
    assert configuration.local == LocalPlace(network=network)


def test_walls_are_pinned_for_disposable_sandboxes_too(tmp_path: Path) -> None:
    for more in ("", "enabled = false\n"):
        configuration = read(tmp_path, f'[local]\nwalls = "landlock"\n{more}')
        assert configuration.settings.rules.walls == "landlock"
    wrong = read(tmp_path, '[local]\nwalls = "paper"\n')
    assert len(wrong.problems) == 1
    assert wrong.settings.rules.walls == ""


@pytest.mark.parametrize(
    "text",
    [
        '[local]\nnetwork = "some"',
        '[local]\nnetwork = ["https://pypi.org"]',
        '[local]\nprivate_ranges = ["10.0.0.1/8"]',
        '[disposable]\nnetwork = "all"',
        "[disposable]\nnetwork = true",
        '[disposable]\nprivate_ranges = ["home"]',
        '[disposable]\nnetwork_hosts = ["https://pypi.org"]',
        "[disposable]\nnetwork_hosts = true",
    ],
)
def test_a_network_that_makes_no_sense_is_told_and_stays_closed(tmp_path: Path, text: str) -> None:
    configuration = read(tmp_path, f"{text}\n")
    assert len(configuration.problems) == 1
    assert configuration.local == LocalPlace()
    assert not configuration.settings.rules.shares_host_network
    assert configuration.settings.rules.network_hosts == PACKAGE_INDEXES


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        pytest.param("", PACKAGE_INDEXES, id="the usual ones"),
        pytest.param("network_hosts = []", (), id="none"),
        pytest.param('network_hosts = "*"', ("*",), id="all"),
        pytest.param('network_hosts = ["*.example.org:8443"]', ("*.example.org:8443",), id="some"),
    ],
)
def test_the_operator_says_which_hosts_agents_may_choose(tmp_path: Path, text: str, hosts: tuple[str, ...]) -> None:
    configuration = read(tmp_path, f"[disposable]\n{text}\n")
    assert (configuration.settings.rules.network_hosts, configuration.problems) == (hosts, ())


def test_disposable_sandboxes_share_the_hosts_network_only_where_the_operator_says_so(tmp_path: Path) -> None:
    rules = read(tmp_path, '[disposable]\nnetwork = "host"\nprivate_ranges = "10.0.0.0/8"\n').settings.rules
    assert (rules.shares_host_network, rules.private_ranges) == (True, ("10.0.0.0/8",))
    assert not read(tmp_path, '[disposable]\nnetwork = "own"\n').settings.rules.shares_host_network


def test_the_embedded_sandbox_can_be_turned_off(tmp_path: Path) -> None:
    configuration = read(tmp_path, "[local]\nenabled = false\n")
    assert (configuration.local, configuration.default, configuration.problems) == (None, "", ())


def test_a_machine_named_like_the_embedded_sandbox_comes_first(tmp_path: Path) -> None:
    configuration = read(tmp_path, '[machines.local]\nhost = "h"\n')
    (problem,) = configuration.problems
    assert "a machine is named" in problem
    assert configuration.local is None
    assert configuration.default == "local"
    quiet = read(tmp_path, '[machines.local]\nhost = "h"\n[local]\nname = "here"\n')
    assert (quiet.local, quiet.problems) == (LocalPlace("here"), ())


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        pytest.param('["3000-3010", 8888]', ("3000-3010", "8888"), id="a list"),
        pytest.param("8888", ("8888",), id="a number"),
        pytest.param('"3000 - 3010"', ("3000-3010",), id="blanks"),
        pytest.param("[]", (), id="none"),
    ],
)
def test_ports_are_numbers_and_ranges(tmp_path: Path, written: str, taken: tuple[str, ...]) -> None:
    (tmp_path / "config.toml").write_text(f"[server]\nforward_ports = {written}")
    configuration = load(tmp_path / "config.toml", {})
    assert (configuration.problems, configuration.settings.forward_ports) == ((), taken)


@pytest.mark.parametrize("written", ["0", "70000", '"3010-3000"', '"3000-"', '"-1"', '"all"', "true", "[[1]]"])
def test_what_is_no_port_allows_none(tmp_path: Path, written: str) -> None:
    (tmp_path / "config.toml").write_text(f"[server]\nforward_ports = {written}")
    configuration = load(tmp_path / "config.toml", {})
    assert "forward_ports" in configuration.problems[0]
    assert configuration.settings.forward_ports == ()
