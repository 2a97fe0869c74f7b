from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.schema import Configuration
from tests.support.config_reading import GOOD, HIDDEN, from_list, names, only, read, the_problem

BAD_ENTRIES = [
    pytest.param("gpu1", "must be a table", id="text"),
    pytest.param(7, "must be a table", id="number"),
    pytest.param(None, "must be a table", id="null"),
    pytest.param([GOOD], "must be a table", id="list"),
    pytest.param({"user": "u", "password": HIDDEN}, "host is missing", id="no host"),
    pytest.param({"host": " ", "user": "u"}, "host is missing", id="blank host"),
    pytest.param({"host": 10, "user": "u"}, "host must be text", id="host is a number"),
    pytest.param({"host": f"root:{HIDDEN}@h"}, "host must be a host name", id="login in the host"),
    pytest.param({"host": "h:22"}, "host must be a host name", id="port in the host"),
    pytest.param({"host": "-oProxyCommand=x"}, "host must be a host name", id="option as host"),
    pytest.param({"host": "h", "port": 0}, "port must be", id="port 0"),
    pytest.param({"host": "h", "port": 65536}, "port must be", id="port too high"),
    pytest.param({"host": "h", "port": -22}, "port must be", id="port below 0"),
    pytest.param({"host": "h", "port": True}, "port must be", id="port true"),
    pytest.param({"host": "h", "port": 22.0}, "port must be", id="port with a fraction"),
    pytest.param({"host": "h", "port": "ssh"}, "port must be", id="port in words"),
    pytest.param({"host": "h", "port": "²²"}, "port must be", id="other digits"),
    pytest.param({"host": "h", "name": "a\nb"}, "name must not hold", id="newline in the name"),
    pytest.param({"host": "h", "name": "\ud800"}, "name must not hold", id="half a character"),
    pytest.param({"host": "h", "name": 1}, "name must be text", id="name is a number"),
    pytest.param({"host": "h", "password": 123456}, "password must be text", id="password is a number"),
    pytest.param({"host": "h", "password": [HIDDEN]}, "password must be text", id="password is a list"),
    pytest.param({"host": "h", "password": f"{HIDDEN}\ud800"}, "password holds", id="password not text"),
    pytest.param(
        {"host": "h", "otp": HIDDEN}, "otp must say where a new code is had", id="a code that is written down"
    ),
    pytest.param({"host": "h", "key_file": {"a": HIDDEN}}, "key_file must be text", id="key_file is a table"),
    pytest.param({"host": "h", "jump": "a:b:c"}, "jump must be", id="jump"),
    pytest.param({"host": "h", "docker": "tcp://h:2375"}, "docker must be true, false, or a list", id="an address"),
    pytest.param({"host": "h", "podman": []}, "podman must be true, false, or a list", id="no words"),
    pytest.param({"host": "h", "docker": ["-H", "x"]}, "docker must be true, false, or a list", id="option first"),
    pytest.param({"host": "h", "writable": "project"}, "writable must be folders such as", id="a folder of nowhere"),
    pytest.param(
        {"host": "h", "writable": "~/a/../.."}, "writable must be folders such as", id="a way out of a folder"
    ),
    pytest.param({"host": "h", "writeable": "~/a"}, '"writeable" is not known here, and walls', id="walls misspelt"),
    pytest.param({"host": "h", "readonly": True}, '"readonly" is not known here, and walls', id="walls misspelt too"),
    pytest.param(
        {"host": "h", "read_only": True, "writable": "~/a"}, "writable contradict each other", id="nothing and a folder"
    ),
    pytest.param({"host": "h", "writable": "~/a", "slurm": True}, "slurm makes programs write", id="walls and a queue"),
    pytest.param({"host": "h", "read_only": True, "sudo": "nopasswd"}, "sudo makes programs", id="walls and sudo"),
    pytest.param({"host": "h", "slurm": "gpu"}, "slurm must be true, false, or a table", id="a partition alone"),
    pytest.param({"host": "h", "slurm": {"partion": "g"}}, "did you mean partition?", id="unknown option of Slurm"),
    pytest.param(
        {"host": "h", "slurm": {"output": "/etc/x"}}, "option 'output', which cannot", id="option with a file"
    ),
    pytest.param({"host": "h", "slurm": {"qos": "a\n#SBATCH"}}, "qos has a value that sbatch", id="two lines in one"),
    pytest.param({"host": "h", "slurm": {"rate_s": 0}}, "slurm must be a number of seconds above 0", id="no rate"),
    pytest.param({"host": "h", "jump": "a:99999"}, "jump must be", id="port of jump"),
    pytest.param({"host": "h", "jump": "bad"}, "circle", id="jump to itself"),
    pytest.param({"host": "h", "env": {"a b": "1"}}, "env holds a name", id="name of a variable"),
    pytest.param({"host": "h", "env": {"A": True}}, "env must be text", id="value of a variable"),
    pytest.param({"host": "h", "env": "A=1"}, "env must be a table", id="env is text"),
    pytest.param({"host": "h", "shell": "bash 'x"}, "shell has a quote", id="quotes in the shell"),
    pytest.param({"host": "h", "init": [1]}, "init must be text", id="init is a number"),
    pytest.param({"host": "h", "strict_host_keys": "perhaps"}, "strict_host_keys must be", id="flag"),
    pytest.param({"host": "h", "connect_timeout_s": 0}, "connect_timeout_s must be", id="no time"),
    pytest.param({"host": "h", "ssh_alias": "gpu*"}, "ssh_alias must be", id="wild alias"),
    pytest.param({"host": "h h", "port": 0}, ", and port must be", id="two faults, one sentence"),
]


@pytest.mark.parametrize(("entry", "why"), BAD_ENTRIES)
def test_one_bad_entry_is_told_and_the_others_work(entry: Any, why: str) -> None:
    if isinstance(entry, dict):
        entry = {"user": "u", "name": "bad", **entry}
    configuration = from_list(entry, GOOD)
    problem = the_problem(configuration)
    assert problem.startswith("REMOTE_SANDBOX_LIST entry 1")
    assert "is left out: " in problem
    assert why in problem
    assert names(configuration) == ["good"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("[{", "not valid JSON (line 1, column 3)", id="cut off"),
        pytest.param(f'[{{"password": "{HIDDEN}\\x"}}]', "not valid JSON", id="bad escape"),
        pytest.param(HIDDEN, "not valid JSON", id="no JSON at all"),
        pytest.param("[" * 100_000, "not valid JSON", id="too deep"),
        pytest.param(json.dumps(GOOD), "JSON list", id="one object"),
        pytest.param("null", "JSON list", id="null"),
    ],
)
def test_a_broken_list_is_one_problem_and_the_file_still_works(tmp_path: Path, text: str, why: str) -> None:
    configuration = read(tmp_path, '[machines.a]\nhost = "h"\nuser = "u"\n', REMOTE_SANDBOX_LIST=text)
    assert why in the_problem(configuration)
    assert names(configuration) == ["a"]


def test_a_bad_port_of_the_single_machine_is_told_by_its_variable() -> None:
    environ = {"REMOTE_HOST": "h", "REMOTE_PORT": "22x", "REMOTE_PASSWORD": HIDDEN}
    configuration = load(environ=environ)
    assert the_problem(configuration) == "REMOTE_HOST is left out: REMOTE_PORT must be a whole number from 1 to 65535."
    assert configuration.machines == ()


def test_the_later_of_two_with_one_name_is_left_out() -> None:
    configuration = from_list(GOOD, {"name": "good", "host": "h", "user": "u"})
    assert the_problem(configuration) == (
        'REMOTE_SANDBOX_LIST entry 2 ("good") is left out: its name "good" is that of REMOTE_SANDBOX_LIST entry 1 '
        '("good") already; give it a name of its own.'
    )
    assert only(Configuration(configuration.machines)).host == "192.0.2.9"


def test_an_unknown_key_is_told_with_the_nearest_and_the_entry_works() -> None:
    configuration = from_list({"host": "h", "user": "u", "pasword": HIDDEN})
    assert 'unknown key "pasword" is passed over; the nearest right key is "password"' in the_problem(configuration)
    assert names(configuration) == ["h"]


def test_an_unknown_key_that_is_near_to_none_lists_them_all() -> None:
    assert "the keys are agent, certificate_file, " in the_problem(from_list({"host": "h", "user": "u", "zzz": 1}))


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        pytest.param({"key_file": "~/nowhere"}, 'the file "~/nowhere" is not there', id="no key"),
        pytest.param({"certificate_file": "/nowhere"}, 'the file "/nowhere" is not there', id="no certificate"),
        pytest.param({"key_file": "~/k.pub"}, "public key", id="public key"),
        pytest.param({"password": "env:NOT_SET"}, "password is kept elsewhere, and that environment", id="no variable"),
        pytest.param({"key_passphrase": "file:/nowhere"}, "cannot be found", id="no file"),
        pytest.param({"password": f"command:echo '{HIDDEN}"}, "check its quotes", id="broken command"),
        pytest.param({"agent": True}, "SSH_AUTH_SOCK is not set", id="no agent"),
        pytest.param({"ssh_alias": "nobody"}, 'no Host in ~/.ssh/config fits "nobody"', id="no alias"),
    ],
)
def test_what_may_be_right_at_login_is_told_and_kept(clean_environment: Path, entry: Any, told: str) -> None:
    (clean_environment / "k.pub").touch()
    configuration = from_list({"host": "h", "user": "u", **entry})
    assert told in the_problem(configuration)
    assert len(configuration.machines) == 1
