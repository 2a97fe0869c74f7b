from __future__ import annotations

import getpass
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.config.machines import Alias, resolve_alias
from remote_sandbox_mcp.config.ssh_config import SshConfig, expand, matches, split
from tests.support.means import require_program

ENVIRON = {"LOGNAME": "me", "SSH_AUTH_SOCK": "/run/agent", "OTHER": "/run/other", "KEYS": "/keys"}


@pytest.fixture
def ssh(clean_environment: Path) -> Path:
    folder = clean_environment / ".ssh"
    folder.mkdir()
    return folder


def resolve(ssh: Path, text: str, alias: str = "gpu", *, user: str = "", told: list[str] | None = None) -> Alias:
    (ssh / "config").write_text(text)
    tell = ([] if told is None else told).append
    return resolve_alias(alias, SshConfig.read(tell, ["~/.ssh/config"]), ENVIRON, tell, user=user)


@pytest.mark.parametrize(
    ("patterns", "value", "expected"),
    [
        pytest.param(["gpu"], "gpu", True, id="itself"),
        pytest.param(["gpu"], "gpu1", False, id="longer"),
        pytest.param(["gpu*"], "gpu1", True, id="star"),
        pytest.param(["gpu?"], "gpu1", True, id="question mark"),
        pytest.param(["gpu?"], "gpu", False, id="question mark wants one"),
        pytest.param(["*", "!gpu1"], "gpu1", False, id="negated"),
        pytest.param(["!gpu1", "*"], "gpu2", True, id="others are left"),
        pytest.param(["!gpu1"], "gpu2", False, id="negation alone fits nothing"),
        pytest.param(["a.b"], "axb", False, id="a dot is a dot"),
        pytest.param(["[ab]"], "a", False, id="brackets are not special"),
        pytest.param([], "a", False, id="no pattern"),
    ],
)
def test_patterns(patterns: list[str], value: str, expected: bool) -> None:
    assert matches(patterns, value) == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("a b", ("a", "b"), id="two"),
        pytest.param('"a b" c', ("a b", "c"), id="double quotes"),
        pytest.param("'a b'", ("a b",), id="single quotes"),
        pytest.param('x"a b"y', ("xa by",), id="quotes inside"),
        pytest.param("a # note", ("a",), id="comment"),
        pytest.param("a#b", ("a#b",), id="no comment"),
        pytest.param("", (), id="empty"),
    ],
)
def test_words(line: str, words: tuple[str, ...]) -> None:
    assert split(line) == words


def test_tokens_and_variables() -> None:
    assert expand("%h-%%-%z-${A}-${B}", {"h": "host", "%": "%"}, {"A": "a"}) == "host-%-%z-a-${B}"


def test_an_alias_has_all_that_its_block_says(ssh: Path) -> None:
    for name in ("work", "work-cert.pub", "extra-cert.pub"):
        (ssh / name).touch()
    alias = resolve(
        ssh,
        """
        # a comment
        Host gpu other
            HostName=%h.example.com
            Port 2222
            User "ubuntu"
            IdentityFile ~/.ssh/work
            IdentityFile ~/.ssh/not-there
            CertificateFile ~/.ssh/extra-cert.pub
            UserKnownHostsFile ~/.ssh/gpu_hosts none
            StrictHostKeyChecking yes
            HostKeyAlias farm
            ConnectTimeout 12
            ProxyJump me@bastion:2200,second
        """,
    )
    assert (alias.host, alias.port, alias.login.user) == ("gpu.example.com", 2222, "ubuntu")
    assert alias.login.key_files == (f"{ssh}/work",)
    assert alias.login.certificate_files == (f"{ssh}/extra-cert.pub", f"{ssh}/work-cert.pub")
    assert alias.login.agent == "/run/agent"
    assert alias.known_hosts_files[:2] == (f"{ssh}/gpu_hosts", "/dev/null")
    assert (alias.strict_host_keys, alias.host_key_name, alias.connect_timeout_s) == (True, "farm", 12.0)
    assert alias.jump == ("me@bastion:2200", "second")
    assert alias.known


def test_a_name_without_a_block_is_taken_as_it_is(ssh: Path) -> None:
    (ssh / "id_ed25519").touch()
    alias = resolve(ssh, "Host *\n  Port 2200\nHost other\n  Port 1\n")
    assert (alias.host, alias.port, alias.login.user, alias.known) == ("gpu", 2200, "me", False)
    assert alias.login.key_files == (f"{ssh}/id_ed25519",)
    assert alias.known_hosts_files == ()


def test_no_file_is_as_good_as_an_empty_one(clean_environment: Path) -> None:
    told: list[str] = []
    SshConfig.read(told.append, [str(clean_environment / "nowhere")])
    assert told == []


def test_a_folder_in_place_of_a_file_is_told(clean_environment: Path) -> None:
    told: list[str] = []
    SshConfig.read(told.append, [str(clean_environment)])
    assert len(told) == 1
    assert "cannot be read" in told[0]


@pytest.mark.parametrize(
    ("text", "agent"),
    [
        pytest.param("", "/run/agent", id="not said"),
        pytest.param("IdentityAgent none", "", id="none"),
        pytest.param("IdentityAgent SSH_AUTH_SOCK", "/run/agent", id="SSH_AUTH_SOCK"),
        pytest.param("IdentityAgent $OTHER", "/run/other", id="variable"),
        pytest.param("IdentityAgent ${OTHER}.sock", "/run/other.sock", id="variable inside"),
        pytest.param('IdentityAgent "/a b/%r.sock"', "/a b/ubuntu.sock", id="token"),
    ],
)
def test_agents(ssh: Path, text: str, agent: str) -> None:
    assert resolve(ssh, f"User ubuntu\n{text}\n").login.agent == agent


def test_identities_only_limits_the_agent_to_the_named_keys(ssh: Path) -> None:
    for name in ("work", "work.pub", "held.pub"):
        (ssh / name).touch()
    login = resolve(ssh, "IdentitiesOnly yes\nIdentityFile ~/.ssh/work\nIdentityFile ~/.ssh/held.pub\n").login
    assert login.key_files == (f"{ssh}/work",)
    assert login.agent == "/run/agent"
    assert login.agent_identities == (f"{ssh}/work.pub", f"{ssh}/held.pub")


def test_identities_only_without_public_keys_leaves_the_agent_out(ssh: Path) -> None:
    (ssh / "work").touch()
    login = resolve(ssh, "IdentitiesOnly yes\nIdentityFile ~/.ssh/work\n").login
    assert (login.key_files, login.agent, login.agent_identities) == ((f"{ssh}/work",), "", ())


@pytest.mark.parametrize(
    ("text", "command", "jump"),
    [
        pytest.param("ProxyCommand nc -x p %h %p # x", ("/bin/sh", "-c", "exec nc -x p h 22 # x"), (), id="command"),
        pytest.param("ProxyCommand none", (), (), id="no command"),
        pytest.param("ProxyJump none", (), (), id="no jump"),
        pytest.param("ProxyJump a\nProxyCommand b", (), ("a",), id="jump first"),
        pytest.param("ProxyCommand b\nProxyJump a", ("/bin/sh", "-c", "exec b"), (), id="command first"),
        pytest.param("ProxyJump none\nProxyCommand b", (), (), id="none first"),
        pytest.param("ProxyJump gpu", (), (), id="to itself"),
    ],
)
def test_proxies(ssh: Path, text: str, command: tuple[str, ...], jump: tuple[str, ...]) -> None:
    alias = resolve(ssh, f"HostName h\n{text}\n")
    assert (alias.proxy_command, alias.jump) == (command, jump)


@pytest.mark.parametrize("value", ["no", "accept-new", "ask", "off"])
def test_only_yes_is_strict(ssh: Path, value: str) -> None:
    assert not resolve(ssh, f"StrictHostKeyChecking {value}\n").strict_host_keys


@pytest.mark.parametrize("line", ["Port 99999", "Port x", "ConnectTimeout soon", "ConnectTimeout -1"])
def test_a_bad_number_is_told_and_passed_over(ssh: Path, line: str) -> None:
    told: list[str] = []
    alias = resolve(ssh, f"User me\n{line}\n", told=told)
    assert (alias.port, alias.connect_timeout_s) == (22, None)
    assert len(told) == 1
    assert "config line 2" in told[0]


@pytest.mark.parametrize(
    ("line", "applies"),
    [
        pytest.param("Match all", True, id="all"),
        pytest.param("Match host h.example.com", True, id="host is the HostName"),
        pytest.param("Match host gpu", False, id="host is not the alias"),
        pytest.param("Match originalhost gpu", True, id="originalhost"),
        pytest.param("Match originalhost=gpu", True, id="with an equals sign"),
        pytest.param("Match user ubuntu,root host *.com", True, id="two criteria"),
        pytest.param("Match user root host *.com", False, id="one of two"),
        pytest.param("Match !user root", True, id="negated"),
        pytest.param("Match user *,!ubuntu", False, id="negated pattern"),
        pytest.param("Match localuser me", True, id="localuser"),
        pytest.param("Match canonical", False, id="canonical"),
        pytest.param("Match final all", False, id="final"),
        pytest.param("Match", False, id="nothing"),
        pytest.param("Host", False, id="no host"),
        pytest.param('Host ""', False, id="empty host"),
    ],
)
def test_match(ssh: Path, line: str, applies: bool) -> None:
    alias = resolve(ssh, f"Host gpu\n HostName h.example.com\n User ubuntu\n{line}\n Port 99\n")
    assert (alias.port == 99) == applies


def test_match_exec_is_told_once_and_runs_nothing(ssh: Path, tmp_path: Path) -> None:
    told: list[str] = []
    text = f'Match exec "touch {tmp_path}/ran"\n Port 99\nMatch user nobody-else exec "x"\n Port 98\n'
    assert resolve(ssh, text, told=told).port == 22
    assert told == [f'{ssh}/config line 1: Match "exec" is not supported, so its block is passed over.']
    assert not (tmp_path / "ran").exists()


def test_included_files_are_read_in_place_and_in_order(ssh: Path) -> None:
    (ssh / "conf.d").mkdir()
    (ssh / "conf.d" / "1.conf").write_text("Host gpu\n Port 1001\n")
    (ssh / "conf.d" / "2.conf").write_text("Host gpu\n Port 1002\n User two\n")
    alias = resolve(ssh, "Include conf.d/*.conf nowhere\nHost gpu\n Port 1003\n HostName h\n")
    assert (alias.port, alias.login.user, alias.host) == (1001, "two", "h")


def test_an_include_inside_a_block_is_for_that_block(ssh: Path) -> None:
    (ssh / "more").write_text("Port 1001\nHost *\n User all\n")
    text = "Host other\n Include more\n HostKeyAlias in-other\nHost gpu\n HostName h\n"
    assert resolve(ssh, text, "other").port == 1001
    assert resolve(ssh, text, "other").host_key_name == "in-other"
    alias = resolve(ssh, text, user="me")
    assert (alias.port, alias.login.user, alias.host, alias.host_key_name) == (22, "me", "h", "")


def test_files_that_include_each_other_come_to_an_end(ssh: Path) -> None:
    told: list[str] = []
    (ssh / "more").write_text("Include config more\n")
    assert resolve(ssh, "Include more\nPort 99\n", told=told).port == 99
    assert told == [f"{ssh}/more line 1: Include is passed over: the file would include itself."] * 2


HOSTS = st.sampled_from(["gpu", "gpu1", "*", "gpu?", "!gpu1", "g*", "*.example.com", "other"])
USERS = st.sampled_from(["root", "ubuntu", "*", "!root", "u?untu"])
CONDITIONS = st.one_of(
    st.lists(HOSTS, min_size=1, max_size=3).map(lambda names: f"Host {' '.join(names)}"),
    st.lists(HOSTS, min_size=1, max_size=2).map(lambda names: f"Match host {','.join(names)}"),
    st.lists(HOSTS, min_size=1, max_size=2).map(lambda names: f"Match originalhost {','.join(names)}"),
    st.lists(USERS, min_size=1, max_size=2).map(lambda names: f"Match user {','.join(names)}"),
    st.tuples(HOSTS, USERS).map(lambda pair: f"Match !host {pair[0]} user {pair[1]}"),
    st.just("Match all"),
)
SETTINGS = st.sampled_from(
    [
        *("HostName %h.example.com", "HostName=gpu1", "User ubuntu", 'User "root"', "Port 2222", "port = 22"),
        *("ProxyJump bastion", "ProxyJump none", "HostKeyAlias farm", "ConnectTimeout 7", "IdentitiesOnly yes"),
        *("IdentityFile /k/one", "IdentityFile /k/two # note", "StrictHostKeyChecking yes", "HashKnownHosts no"),
    ]
)
CONFIGS = st.lists(st.tuples(CONDITIONS, st.lists(SETTINGS, max_size=4)), max_size=6).map(
    lambda blocks: "\n".join(f"{condition}\n" + "".join(f"  {line}\n" for line in lines) for condition, lines in blocks)
)


@settings(max_examples=80, deadline=None)
@given(text=CONFIGS, alias=st.sampled_from(["gpu", "gpu1", "other"]))
def test_openssh_reads_it_the_same_way(tmp_path_factory: pytest.TempPathFactory, text: str, alias: str) -> None:
    require_program("ssh")
    file = tmp_path_factory.getbasetemp() / "differential"
    file.write_text(f"{text}\nHost *\n User me\n")
    said = openssh(file, alias)
    found = SshConfig.read(pytest.fail, [str(file)]).look_up(alias, said["localuser"][0])
    assert found.host == said["hostname"][0]
    assert found.user == said["user"][0]
    assert (found.first("port") or "22") == said["port"][0]
    assert found.first("hostkeyalias") == said.get("hostkeyalias", [""])[0]
    assert (found.first("connecttimeout") or "none") == said["connecttimeout"][0]
    assert found.first("proxyjump").replace("none", "") == said.get("proxyjump", [""])[0]
    assert (found.first("identitiesonly") or "no") == said["identitiesonly"][0]
    assert bool(found.first("stricthostkeychecking")) == (said["stricthostkeychecking"][0] == "true")
    if keys := found.several.get("identityfile"):
        assert keys == said["identityfile"]


def openssh(file: Path, alias: str) -> dict[str, list[str]]:
    """What `ssh -G` makes of an alias; it connects to nothing."""
    done = subprocess.run(["ssh", "-G", "-F", str(file), alias], capture_output=True, text=True, check=True)
    said: dict[str, list[str]] = {"localuser": [getpass.getuser()]}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value)
    return said
