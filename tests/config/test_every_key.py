"""Every key of a machine's table counts, however the machine is named, before ssh_config is asked and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import machine_member
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.schema import MACHINE_KEYS
from remote_sandbox_mcp.core.sandboxes.machine import NOPASSWD, Engine, Machine
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.services.gate.paths import private_files
from tests.support.config_reading import ways

SSH_CONFIG = """
Host far
    HostName 192.0.2.7
    User alias
    Port 2207
Host door
    HostName 192.0.2.8
    User porter
"""
JUMP = '[machines.door]\nhost = "192.0.2.8"\nuser = "porter"\n'
# How a machine may be named: the keys of its table, and further tables.
WAYS: dict[str, tuple[dict[str, str], str]] = {
    "in full": ({"host": '"192.0.2.7"', "user": '"u"'}, ""),
    "alias": ({"ssh_alias": '"far"'}, ""),
    "alias with another address": ({"ssh_alias": '"far"', "host": '"192.0.2.9"'}, ""),
    "without a user": ({"host": '"192.0.2.7"'}, ""),
    "over OpenSSH": ({"host": '"192.0.2.7"', "user": '"u"', "transport": '"openssh"'}, ""),
    "behind a machine": ({"host": '"192.0.2.7"', "user": '"u"', "jump": '"door"'}, JUMP),
    "behind an alias": ({"host": '"192.0.2.7"', "user": '"u"', "jump": '"door"'}, ""),
    "alias behind an alias over OpenSSH": ({"ssh_alias": '"far"', "jump": '"door"', "transport": '"openssh"'}, ""),
}


@dataclass(frozen=True)
class Key:
    """A value of a key, what comes of it, and where; `late`: only ssh_config says all of it."""

    written: str
    expected: object
    seen: Callable[[Machine], object]
    late: bool = False


def revealed(secret: Secret | None) -> str:
    return secret.reveal() if secret else ""


KEYS: dict[str, Key] = {
    "name": Key('"other"', "other", lambda it: it.name),
    "host": Key('"192.0.2.20"', "192.0.2.20", lambda it: it.host),
    "port": Key("2222", 2222, lambda it: it.port),
    "user": Key('"someone"', "someone", lambda it: it.login.user),
    "key_file": Key('"/k"', ("/k",), lambda it: it.login.key_files),
    "certificate_file": Key('"/c.pub"', ("/c.pub",), lambda it: it.login.certificate_files),
    "agent": Key('"/run/mine"', "/run/mine", lambda it: it.login.agent),
    "jump": Key('"door"', ["porter@192.0.2.8:22"], lambda it: ways(it.hops), late=True),
    "shell": Key('["zsh", "-c"]', ("zsh", "-c"), lambda it: it.environment.shell),
    "init": Key('"module load x"', ("module load x",), lambda it: it.environment.init),
    "env": Key('{ A = "1" }', {"A": "1"}, lambda it: dict(it.environment.env)),
    "python": Key('"/opt/python3"', "/opt/python3", lambda it: it.python),
    "strict_host_keys": Key("true", True, lambda it: it.strict_host_keys),
    "connect_timeout_s": Key("17", 17.0, lambda it: it.connect_timeout_s),
    "ssh_alias": Key('"door"', "192.0.2.8", lambda it: it.host, late=True),
    "direct": Key('{ gpu2 = "gpu2.lan" }', {"gpu2": "gpu2.lan"}, lambda it: dict(it.direct)),
    "docker": Key('["sudo", "docker"]', Engine("docker", ("sudo", "docker")), lambda it: it.engine),
    "podman": Key("true", Engine("podman", ("podman",)), lambda it: it.engine),
    "slurm": Key('{ partition = "gpu" }', {"partition": "gpu"}, lambda it: it.slurm and dict(it.slurm.defaults)),
    "forward_agent": Key("true", True, lambda it: it.forward_agent),
    "writable": Key('["~/project"]', ("~/project",), lambda it: it.writable),
    "read_only": Key("true", (), lambda it: it.writable),
    "transport": Key('"asyncssh"', "asyncssh", lambda it: it.transport),
    "password": Key('"hidden"', "hidden", lambda it: revealed(it.login.password)),
    "key_passphrase": Key('"hidden"', "hidden", lambda it: revealed(it.login.key_passphrase)),
    "sudo": Key('"nopasswd"', NOPASSWD, lambda it: it.sudo),
    "otp": Key('"command:printf hidden"', "hidden", lambda it: revealed(it.login.otp)),
    "otp_seed": Key('"hidden"', "hidden", lambda it: revealed(it.login.otp_seed)),
}


def read(tmp_path: Path, way: str, more: dict[str, str]) -> Any:
    named, others = WAYS[way]
    table = {**named, **more}
    # An alias of its own counts only where no address is written.
    if "ssh_alias" in more:
        table.pop("host", None)
    path = tmp_path / "config.toml"
    lines = "\n".join(f"{key} = {value}" for key, value in table.items())
    path.write_text(f"[machines.it]\n{lines}\n{others}")
    path.chmod(0o600)
    return load(path, {})


@pytest.fixture(autouse=True)
def ssh_config(clean_environment: Path) -> None:
    folder = clean_environment / ".ssh"
    folder.mkdir()
    (folder / "config").write_text(SSH_CONFIG)


def test_the_table_of_this_test_has_every_key() -> None:
    assert KEYS.keys() == set(MACHINE_KEYS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", KEYS)
def test_a_key_counts_however_the_machine_is_named(tmp_path: Path, way: str, key: str) -> None:
    case = KEYS[key]
    machine = read(tmp_path, way, {key: case.written}).machines[0]
    complete = machine.complete()
    assert complete.asking is None
    assert case.seen(complete) == case.expected
    if not case.late:
        assert case.seen(machine) == case.expected
    # What is decided before the machine is opened, must be what is decided when it is.
    early, late = machine_member(machine), machine_member(complete)
    for fact in ("name", "engine", "slurm", "environment", "is_by_pattern"):
        assert getattr(early, fact) == getattr(late, fact)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", ["password", "key_passphrase", "otp", "otp_seed"])
def test_the_file_of_a_secret_is_private_however_the_machine_is_named(tmp_path: Path, way: str, key: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    secret.chmod(0o600)
    assert str(secret) in private_files(read(tmp_path, way, {key: f'"file:{secret}"'}))
