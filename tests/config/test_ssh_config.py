from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.config.aliases import Alias, current_user, read_alias
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.openssh import ask
from remote_sandbox_mcp.config.problems import Fault
from remote_sandbox_mcp.config.ssh_config import HostSettings, SshConfig, expand, matches, split
from remote_sandbox_mcp.config.variables import for_programs
from tests.support.means import require_program

ENVIRON = {"LOGNAME": "me", "SSH_AUTH_SOCK": "/run/agent", "OTHER": "/run/other", "KEYS": "/keys"}


@pytest.fixture
def ssh(clean_environment: Path) -> Path:
    folder = clean_environment / ".ssh"
    folder.mkdir()
    return folder


@pytest.fixture(params=["asked", "read"])
def way(request: pytest.FixtureRequest) -> str:
    """What a name means is asked of OpenSSH; where it is not installed, it is read from Host blocks."""
    if request.param == "asked":
        require_program("ssh")
    return str(request.param)


def resolve(ssh: Path, text: str, way: str, alias: str = "gpu", *, user: str = "") -> Alias:
    (ssh / "config").write_text(text)
    return read_alias(say(alias, way, user), ENVIRON, pytest.fail)


def say(alias: str, way: str, user: str = "", told: list[str] | None = None) -> HostSettings:
    if way == "asked":
        return ask(alias, for_programs(ENVIRON, (), ENVIRON), user)
    tell = ([] if told is None else told).append
    return SshConfig.read(tell, ["~/.ssh/config"]).say(alias, current_user({}), tell, user)


@pytest.mark.parametrize(
    ("patterns", "value", "expected"),
    [
        pytest.param(["gpu"], "gpu", True, id="itself"),
        pytest.param(["gpu"], "gpu1", False, id="longer"),
        pytest.param(["gpu*"], "gpu1", True, id="star"),
        pytest.param(["gpu?"], "gpu1", True, id="question mark"),
        pytest.param(["*a*b?"], "xaxaxbxby", True, id="several"),
        pytest.param(["*a*b?"], "xaxaxbxb", False, id="several, and one is missing"),
        pytest.param(["*" + "a*" * 30 + "b"], "a" * 250, False, id="many that nearly fit"),
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
            UserKnownHostsFile /etc/gpu_hosts /dev/null
            StrictHostKeyChecking yes
            HostKeyAlias farm
            ConnectTimeout 12
            ProxyJump me@bastion:2200,second
        """,
        way,
    )
    assert (alias.host, alias.port, alias.login.user) == ("gpu.example.com", 2222, "ubuntu")
    assert alias.login.key_files == (f"{ssh}/work",)
    assert alias.login.certificate_files == (f"{ssh}/extra-cert.pub", f"{ssh}/work-cert.pub")
    assert alias.login.agent == "/run/agent"
    assert alias.known_hosts_files[:2] == ("/etc/gpu_hosts", "/dev/null")
    assert (alias.strict_host_keys, alias.host_key_name, alias.connect_timeout_s) == (True, "farm", 12.0)
    assert alias.jump == ("me@bastion:2200", "second")


def test_a_name_without_a_block_is_taken_as_it_is(ssh: Path, way: str) -> None:
    (ssh / "id_ed25519").touch()
    alias = resolve(ssh, "Host *\n  Port 2200\nHost other\n  Port 1\n", way)
    assert (alias.host, alias.port, alias.login.user) == ("gpu", 2200, current_user({}))
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
def test_agents(ssh: Path, way: str, text: str, agent: str) -> None:
    assert resolve(ssh, f"User ubuntu\n{text}\n", way).login.agent == agent


def test_identities_only_limits_the_agent_to_the_named_keys(ssh: Path, way: str) -> None:
    for name in ("work", "work.pub", "held.pub"):
        (ssh / name).touch()
    login = resolve(ssh, "IdentitiesOnly yes\nIdentityFile ~/.ssh/work\nIdentityFile ~/.ssh/held.pub\n", way).login
    assert login.key_files == (f"{ssh}/work",)
    assert login.agent == "/run/agent"
    assert login.agent_identities == (f"{ssh}/work.pub", f"{ssh}/held.pub")


def test_identities_only_without_public_keys_leaves_the_agent_out(ssh: Path, way: str) -> None:
    (ssh / "work").touch()
    login = resolve(ssh, "IdentitiesOnly yes\nIdentityFile ~/.ssh/work\n", way).login
    assert (login.key_files, login.agent, login.agent_identities) == ((f"{ssh}/work",), "", ())


@pytest.mark.parametrize(
    ("text", "command", "jump"),
    [
        pytest.param("ProxyCommand nc -x p %h %p # x", ("/bin/sh", "-c", "exec nc -x p h 22 # x"), (), id="command"),
        pytest.param("ProxyCommand none", (), (), id="no command"),
        pytest.param("ProxyJump none", (), (), id="no jump"),
        pytest.param("ProxyJump a\nProxyCommand b", (), ("a",), id="jump first"),
        pytest.param("ProxyCommand b\nProxyJump a", ("/bin/sh", "-c", "exec b"), (), id="command first"),
    ],
)
def test_proxies(ssh: Path, way: str, text: str, command: tuple[str, ...], jump: tuple[str, ...]) -> None:
    alias = resolve(ssh, f"HostName h\n{text}\n", way)
    assert (alias.proxy_command, alias.jump) == (command, jump)


@pytest.mark.parametrize("value", ["no", "accept-new", "ask", "off"])
def test_only_yes_is_strict(ssh: Path, way: str, value: str) -> None:
    assert not resolve(ssh, f"StrictHostKeyChecking {value}\n", way).strict_host_keys


@pytest.mark.parametrize("line", ["Port 99999", "ConnectTimeout soon", "Prot 22"])
def test_what_openssh_refuses_is_said_in_its_words(ssh: Path, line: str) -> None:
    require_program("ssh")
    (ssh / "config").write_text(f"User me\n{line}\n")
    with pytest.raises(Fault, match=r"ssh -G says: .*config.*line 2.*; correct that"):
        say("gpu", "asked")


def test_a_bad_number_is_told_and_passed_over_without_openssh(ssh: Path) -> None:
    told: list[str] = []
    (ssh / "config").write_text("Port 99999\n")
    assert read_alias(say("gpu", "read"), ENVIRON, told.append).port == 22
    assert told == [
        '~/.ssh/config: port of "gpu" is passed over: it must be a whole number from 1 to 65535.',
    ]


@pytest.mark.parametrize(
    ("line", "applies"),
    [
        pytest.param("Match all", True, id="all"),
        pytest.param("Match host h.example.com", True, id="host is the HostName"),
        pytest.param("Match host gpu", False, id="host is not the alias"),
        pytest.param("Match originalhost=gpu user ubuntu,root", True, id="two criteria"),
        pytest.param("Match user *,!ubuntu", False, id="negated pattern"),
        pytest.param('Match exec "exit 0"', True, id="a command of the user's that succeeds"),
        pytest.param('Match exec "exit 1"', False, id="one that fails"),
    ],
)
def test_openssh_decides_on_match(ssh: Path, line: str, applies: bool) -> None:
    require_program("ssh")
    alias = resolve(ssh, f"Host gpu\n HostName h.example.com\n User ubuntu\n{line}\n Port 99\n", "asked")
    assert (alias.port == 99) == applies


def test_without_openssh_match_is_told_and_runs_nothing(ssh: Path, tmp_path: Path) -> None:
    told: list[str] = []
    (ssh / "config").write_text(f'Match exec "touch {tmp_path}/ran"\n Port 99\nMatch all\n Port 98\n')
    assert say("gpu", "read", told=told).first("port") == "98"
    assert told == [
        f"{ssh}/config line 1: Match is passed over, because only OpenSSH decides on it; install its client, ssh."
    ]
    assert not (tmp_path / "ran").exists()


def test_what_ssh_runs_gets_its_own_variables_and_those_that_are_named(ssh: Path, tmp_path: Path) -> None:
    require_program("ssh")
    (ssh / "config").write_text(
        f'Match exec "env > {tmp_path}/env; : $MENTIONED"\n Port 99\nHost gpu\n IdentityFile ${{KEYS}}/id\n'
    )
    ours = {"REMOTE_PASSWORD": "x", "OPEN_SANDBOX_API_KEY": "y"}
    theirs = {**ENVIRON, "AWS_PROFILE": "p", "MENTIONED": "m", "SECRET_TOKEN": "s"}
    (tmp_path / "config.toml").write_text('hosts = ["gpu"]\n[server]\npass_env = ["AWS_*", "OPEN_SANDBOX_API_KEY"]\n')
    (machine,) = load(tmp_path / "config.toml", ours | theirs).machines
    assert machine.complete().port == 99
    seen = (tmp_path / "env").read_text()
    assert {"SSH_AUTH_SOCK=/run/agent", "KEYS=/keys", "AWS_PROFILE=p", "MENTIONED=m"} <= set(seen.splitlines())
    assert not [name for name in ("SECRET_TOKEN", *ours) if name in seen]


def test_a_question_that_takes_too_long_is_given_up(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_program("ssh")
    monkeypatch.setattr("remote_sandbox_mcp.config.openssh.LONGEST_S", 0.2)
    (ssh / "config").write_text('Match exec "exec sleep 30"\n Port 99\n')
    with pytest.raises(Fault, match="did not end within"):
        ask("gpu", {})


@pytest.mark.parametrize(
    ("text", "known"),
    [
        pytest.param("Host gpu", True, id="by name"),
        pytest.param("Host g*", True, id="by a pattern"),
        pytest.param("Match originalhost a,gpu", True, id="by Match"),
        pytest.param("Host *", False, id="only all"),
        pytest.param("Host * !gpu other", False, id="excluded"),
        pytest.param("Match all", False, id="Match all"),
    ],
)
def test_hosts_that_a_file_is_meant_for(ssh: Path, text: str, known: bool) -> None:
    (ssh / "config").write_text(f"{text}\n Port 1\n")
    assert SshConfig.read(pytest.fail, ["~/.ssh/config"]).knows("gpu") == known


def test_included_files_are_read_in_place_and_in_order(ssh: Path, way: str) -> None:
    (ssh / "conf.d").mkdir()
    (ssh / "conf.d" / "1.conf").write_text("Host gpu\n Port 1001\n")
    (ssh / "conf.d" / "2.conf").write_text("Host gpu\n Port 1002\n User two\n")
    alias = resolve(ssh, "Include conf.d/*.conf nowhere\nHost gpu\n Port 1003\n HostName h\n", way)
    assert (alias.port, alias.login.user, alias.host) == (1001, "two", "h")


def test_an_include_inside_a_block_is_for_that_block(ssh: Path, way: str) -> None:
    (ssh / "more").write_text("Port 1001\nHost *\n User all\n")
    text = "Host other\n Include more\n HostKeyAlias in-other\nHost gpu\n HostName h\n"
    assert resolve(ssh, text, way, "other").port == 1001
    assert resolve(ssh, text, way, "other").host_key_name == "in-other"
    alias = resolve(ssh, text, way, user="me")
    assert (alias.port, alias.login.user, alias.host, alias.host_key_name) == (22, "me", "h", "")


def test_files_that_include_each_other_come_to_an_end(ssh: Path) -> None:
    told: list[str] = []
    (ssh / "config").write_text("Include more\nPort 99\n")
    (ssh / "more").write_text("Include config more\n")
    assert say("gpu", "read", told=told).first("port") == "99"
    assert told == [f"{ssh}/more line 1: Include is passed over: the file would include itself."] * 2


HOSTS = st.sampled_from(["gpu", "gpu1", "*", "gpu?", "!gpu1", "g*", "*.example.com", "other"])
CONDITIONS = st.lists(HOSTS, min_size=1, max_size=3).map(lambda names: f"Host {' '.join(names)}") | st.just("Match all")
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


@settings(max_examples=40, deadline=None)
@given(text=CONFIGS, alias=st.sampled_from(["gpu", "gpu1", "other"]))
def test_openssh_reads_it_the_same_way(tmp_path_factory: pytest.TempPathFactory, text: str, alias: str) -> None:
    require_program("ssh")
    file = tmp_path_factory.getbasetemp() / "differential"
    file.write_text(f"{text}\nHost *\n User me\n")
    said = openssh(file, alias)
    found = SshConfig.read(pytest.fail, [str(file)]).say(alias, "me", pytest.fail)
    for keyword in ("hostname", "user", "port", "hostkeyalias", "proxyjump", "identityfile"):
        if keyword in found.values:
            assert [value for value in found.all(keyword) if value != "none"] == said.get(keyword, [])
    assert (found.first("identitiesonly") or "no") == said["identitiesonly"][0]
    assert (found.first("connecttimeout") or "none") == said["connecttimeout"][0]
    assert bool(found.first("stricthostkeychecking")) == (said["stricthostkeychecking"][0] == "true")


def openssh(file: Path, alias: str) -> dict[str, list[str]]:
    """What `ssh -G` makes of an alias; it connects to nothing."""
    done = subprocess.run(["ssh", "-G", "-F", str(file), alias], capture_output=True, text=True, check=True)
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value)
    return said
