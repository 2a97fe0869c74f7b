"""Which machines need OpenSSH's own client, and what it is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.core.sandboxes.machine import Machine
from remote_sandbox_mcp.core.sandboxes.transport import choose
from tests.support.means import require_program


@pytest.fixture
def ssh(clean_environment: Path) -> Path:
    require_program("ssh")
    folder = clean_environment / ".ssh"
    folder.mkdir()
    return folder


def machine(tmp_path: Path, ssh: Path, said: str, text: str = 'hosts = ["gpu1"]\n', **environ: str) -> Machine:
    (ssh / "config").write_text(f"Host gpu1\n HostName h\n{said}\n")
    (tmp_path / "config.toml").write_text(text)
    return load(tmp_path / "config.toml", environ).machines[0].complete()


@pytest.mark.parametrize(
    ("said", "need"),
    [
        pytest.param("Port 2200", "", id="nothing special"),
        pytest.param("GSSAPIAuthentication yes", "", id="Kerberos: most systems' ssh_config says so"),
        pytest.param("ProxyCommand nc %h %p", "", id="a ProxyCommand that we can run"),
        pytest.param("ControlMaster auto\nControlPath /run/cm-%C\nControlPersist yes", "", id="a control socket"),
        pytest.param("ProxyCommand nc --key %k %h %p", "the tokens of its ProxyCommand", id="a token of its own"),
        pytest.param("ProxyUseFdpass yes\nProxyCommand nc -F %h %p", "ProxyUseFdpass", id="a descriptor"),
        pytest.param("PKCS11Provider /usr/lib/opensc.so", "PKCS11Provider", id="a smart card"),
        pytest.param("KnownHostsCommand /bin/echo %h", "KnownHostsCommand", id="keys by a command"),
        pytest.param("HostbasedAuthentication yes", "HostbasedAuthentication", id="by host"),
        pytest.param("RevokedHostKeys /etc/ssh/revoked", "RevokedHostKeys", id="revoked keys"),
        pytest.param("VerifyHostKeyDNS yes", "VerifyHostKeyDNS", id="keys by DNS"),
        pytest.param("BindAddress 192.0.2.1", "BindAddress", id="an address of ours"),
        pytest.param("AddressFamily inet6", "AddressFamily", id="IPv6 alone"),
        pytest.param('Match originalhost gpu1 exec "exit 1"', "Match exec", id="a command decides"),
        pytest.param('Match originalhost other exec "exit 1"', "", id="a command that decides about others"),
        pytest.param("IdentityFile ~/.ssh/token", "a key on a security token", id="FIDO2"),
        pytest.param("ProxyJump bastion\nHost bastion\n PKCS11Provider /x.so", "PKCS11Provider", id="of a jump host"),
    ],
)
def test_what_only_openssh_can_do_is_left_to_it(tmp_path: Path, ssh: Path, said: str, need: str) -> None:
    (ssh / "token").touch()
    (ssh / "token.pub").write_text("sk-ssh-ed25519@openssh.com AAAA\n")
    found = machine(tmp_path, ssh, said)
    assert found.openssh
    assert found.openssh.needs == ((need,) if need else ())
    assert choose(found).is_openssh == bool(need)


def test_the_control_path_is_the_one_of_this_user_and_port(tmp_path: Path, ssh: Path) -> None:
    text = '[machines.a]\nssh_alias = "gpu1"\nuser = "me"\nport = 2200\n'
    found = machine(tmp_path, ssh, "ControlPath /run/%r-%p", text)
    assert found.openssh
    assert found.openssh.control_path == "/run/me-2200"


def test_our_own_settings_become_options(tmp_path: Path, ssh: Path) -> None:
    for name in ("key", "cert"):
        (tmp_path / name).touch()
    text = f"""
    [machines.a]
    host = "h.example.org"
    user = "me"
    port = 2200
    key_file = "{tmp_path}/key"
    certificate_file = "{tmp_path}/cert"
    agent = false
    jump = "none"
    transport = "openssh"
    """
    found = machine(tmp_path, ssh, "", text)
    assert found.openssh
    assert found.openssh.destination == "h.example.org"
    assert found.openssh.options == (
        *("-l", "me", "-p", "2200", "-o", "IdentitiesOnly=yes", "-i", f"{tmp_path}/key"),
        *("-o", f'CertificateFile="{tmp_path}/cert"', "-o", "IdentityAgent=none", "-o", "ProxyJump=none"),
    )


@pytest.mark.parametrize(
    ("more", "lacks"),
    [
        pytest.param('password = "x"', ("password",), id="password"),
        pytest.param('otp = "command:true"', ("otp",), id="code"),
        pytest.param('key_passphrase = "x"', ("key_passphrase",), id="passphrase"),
        pytest.param(
            'jump = "b"\n[machines.b]\nhost = "b"\nuser = "u"\npassword = "x"', ("password of a jump host",), id="jump"
        ),
    ],
)
def test_what_openssh_cannot_be_given_is_known(tmp_path: Path, ssh: Path, more: str, lacks: tuple[str, ...]) -> None:
    found = machine(tmp_path, ssh, "", f'[machines.a]\nssh_alias = "gpu1"\n{more}\n')
    assert found.openssh
    assert found.openssh.lacks == lacks


def test_a_machine_that_ssh_config_has_no_say_in_is_not_asked_about(tmp_path: Path, ssh: Path) -> None:
    found = machine(tmp_path, ssh, f'Match exec "touch {tmp_path}/asked"', '[machines.a]\nhost = "h"\nuser = "u"\n')
    assert (found.openssh, found.asking) == (None, None)
    assert not (tmp_path / "asked").exists()
