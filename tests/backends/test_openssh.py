"""OpenSSH's client as the transport: its errors, the user's own connection, what ssh_config must not bring along."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import compose
from remote_sandbox_mcp.backends.ssh import connection
from remote_sandbox_mcp.backends.ssh.connection import LoginGate
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.backends.ssh.openssh import arguments, choose_transport, distrust, explain, open_over_openssh
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.errors import (
    ConnectError,
    HostKeyProblem,
    LoginRefused,
    SandboxError,
    Unreachable,
    Unsupported,
)
from remote_sandbox_mcp.core.sandboxes.machine import Login, Machine
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.sandboxes.transport import TransportChoice
from remote_sandbox_mcp.core.sync.transfer import Order, Place
from tests.support.means import require_program
from tests.support.openssh import logins, master, open_it, over_openssh
from tests.support.root import run_as_root
from tests.support.sshd import Fleet, Sshd, closed_port, silent_port, wait_until

NOBODY = "65534"


@pytest.fixture(autouse=True)
def _has_ssh() -> None:
    require_program("ssh")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: the path of a socket has a limit."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


async def printed(sandbox: Sandbox, script: str) -> str:
    outcome = await sandbox.run(Command(script))
    assert isinstance(outcome, Completed)
    return outcome.stdout.head.decode()


# --- failures --------------------------------------------------------------------------------------------------------


@contextmanager
def trouble(kind: str, sshd: Sshd, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What is wrong, as fields of the machine."""
    if kind == "closed port":
        with closed_port() as port:
            yield {"port": port}
    elif kind == "silent port":
        with silent_port() as port:
            yield {"port": port, "connect_timeout_s": 1.0}
    elif kind == "unknown name":
        yield {"host": "nowhere.invalid"}
    elif kind == "strict":
        (tmp_path / "none").touch()
        yield {"strict_host_keys": True, "known_hosts_files": (str(tmp_path / "none"),)}
    elif kind == "changed key":
        other = tmp_path / "other"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
        known = tmp_path / "changed"
        known.write_text(f"[{sshd.host}]:{sshd.port} {Path(f'{other}.pub').read_text()}")
        yield {"known_hosts_files": (str(known),)}
    else:
        key = tmp_path / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        yield {"login": Login(sshd.user, key_files=(str(key),))}


@pytest.mark.parametrize(
    ("kind", "error", "same"),
    [
        pytest.param("closed port", Unreachable, "nothing listens on that port; check port", id="closed port"),
        pytest.param("silent port", Unreachable, "no answer within 1 s", id="silent port"),
        pytest.param("unknown name", Unreachable, "the host name cannot be found; check host", id="unknown name"),
        pytest.param("strict", HostKeyProblem, "is not known and strict_host_keys", id="strict"),
        pytest.param("changed key", HostKeyProblem, "the host key has changed since it was first seen", id="changed"),
        pytest.param("refused", LoginRefused, "the login was refused; check user", id="refused"),
    ],
)
async def test_failures_have_the_same_sentences_as_over_asyncssh(
    sshd: Sshd, own: Path, tmp_path: Path, kind: str, error: type[ConnectError], same: str
) -> None:
    told = []
    with trouble(kind, sshd, tmp_path) as fields:
        machine = replace(over_openssh(sshd), **fields)
        assert machine.openssh
        given = ("-l", sshd.user, "-p", str(machine.port), "-o", "IdentitiesOnly=yes", "-i", machine.login.key_files[0])
        machine = replace(machine, openssh=replace(machine.openssh, options=given, destination=machine.host))
        for opening in (open_it(machine, own), open_machine(machine, own)):
            with pytest.raises(error) as caught:
                await opening
            told.append(str(caught.value))
    who = f"unable to open {machine.name} ({'' if machine.port == 22 else '['}"
    assert all(problem.startswith(who) and same in problem for problem in told), told
    assert told[0].partition(": ")[0] == told[1].partition(": ")[0]


async def test_a_refused_login_is_not_repeated_at_once(sshd: Sshd, own: Path, tmp_path: Path) -> None:
    with trouble("refused", sshd, tmp_path) as fields:
        machine = over_openssh(sshd)
        assert machine.openssh
        given = ("-l", sshd.user, "-p", str(sshd.port), "-o", "IdentitiesOnly=yes", "-i", fields["login"].key_files[0])
        gate = LoginGate(replace(machine, openssh=replace(machine.openssh, options=given)), own)
        for expected in (1, 1):
            with pytest.raises(LoginRefused) as caught:
                await open_over_openssh(gate, TransportChoice("openssh", ""))
            refused = sshd.log.count(f"Connection closed by authenticating user {sshd.user}")
            assert refused >= expected
    assert "not tried again for another" in str(caught.value)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        pytest.param("me@h: Permission denied (publickey,gssapi-with-mic).", LoginRefused, id="refused"),
        pytest.param("Received disconnect from h: Too many authentication failures", LoginRefused, id="too many"),
        pytest.param(
            "Host key verification failed.\nConnection closed by UNKNOWN port 65535", HostKeyProblem, id="jump"
        ),
        pytest.param("Unable to negotiate with h port 22: no matching host key type found", HostKeyProblem, id="types"),
        pytest.param("kex_exchange_identification: Connection closed by remote host", Unreachable, id="kex"),
        pytest.param("Connection reset by 192.0.2.1 port 22", Unreachable, id="reset"),
        pytest.param("ssh: connect to host h port 22: No route to host", Unreachable, id="no route"),
        pytest.param("channel 0: open failed: connect failed: Connection refused", Unreachable, id="behind a jump"),
        pytest.param("something else", type(None), id="anything else"),
    ],
)
def test_last_words(sshd: Sshd, own: Path, said: str, error: type) -> None:
    assert type(explain(LoginGate(over_openssh(sshd), own), said.encode())) is error


async def test_unknown_messages_of_the_client_are_quoted(sshd: Sshd, own: Path) -> None:
    machine = over_openssh(sshd, options=("-o", "NoSuchOption=1"))
    with pytest.raises(Unreachable, match=r"OpenSSH's client ended with status 255 .*said: .*nosuchoption"):
        await open_it(machine, own)


# --- a connection of the user's -------------------------------------------------------------------------------------


async def test_a_live_connection_of_the_users_is_used_and_left(sshd: Sshd, own: Path, folder: Path) -> None:
    machine = over_openssh(sshd, control_path=str(folder / "cm"), transport="auto")
    with master(sshd, folder / "cm") as process:
        before = logins(sshd)
        choice = await choose_transport(machine)
        assert (choice.transport, choice.master) == ("openssh", str(folder / "cm"))
        sandbox = await open_over_openssh(LoginGate(machine, own), choice)
        assert await printed(sandbox, "whoami") == f"{sshd.user}\n"
        await (await sandbox.open_lane()).close()
        await sandbox.close()
        assert logins(sshd) == before
        assert process.poll() is None


async def test_a_connection_that_is_opened_after_a_refused_login_is_used_at_once(
    sshd: Sshd, own: Path, folder: Path
) -> None:
    machine = over_openssh(sshd, control_path=str(folder / "cm"), transport="auto")
    gate = LoginGate(machine, own)
    gate.note_refusal(LoginRefused("refused: a code is asked for"))
    with master(sshd, folder / "cm"):
        sandbox = await open_over_openssh(gate, await choose_transport(machine))
        assert await printed(sandbox, "whoami") == f"{sshd.user}\n"
        await sandbox.close()


async def test_a_full_connection_of_the_users_causes_no_login(
    fleet: Fleet, own: Path, folder: Path, tmp_path: Path
) -> None:
    """A login without the second factor would be refused, and several of them lock the user out."""
    narrow = fleet.machine(max_sessions=2)
    with master(narrow, folder / "cm"):
        before = logins(narrow)
        sandbox = await open_it(over_openssh(narrow, control_path=str(folder / "cm")), own)
        lane = await sandbox.open_lane()
        with pytest.raises(Unsupported, match="your own connection to it grants no further session"):
            await sandbox.open_lane()
        assert await printed(sandbox, "whoami") == f"{narrow.user}\n"
        await lane.close()
        await sandbox.close()
        assert logins(narrow) == before


async def test_a_dead_control_socket_is_ignored(sshd: Sshd, own: Path, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "cm"))
    machine = over_openssh(sshd, control_path=str(folder / "cm"))
    assert not (await choose_transport(replace(machine, transport="auto"))).is_openssh
    before = logins(sshd)
    sandbox = await open_over_openssh(LoginGate(machine, own), TransportChoice("openssh", "", str(folder / "cm")))
    assert await printed(sandbox, "whoami") == f"{sshd.user}\n"
    await sandbox.close()
    assert logins(sshd) == before + 1


async def test_a_connection_that_ends_is_replaced_by_a_login_of_our_own(sshd: Sshd, own: Path, folder: Path) -> None:
    machine = over_openssh(sshd, control_path=str(folder / "cm"))
    with master(sshd, folder / "cm") as process:
        sandbox = await open_it(machine, own)
        running = asyncio.ensure_future(printed(sandbox, "touch begun; sleep 1; echo whole"))
        await asyncio.to_thread(wait_until, (sshd.home / "begun").exists, what="the command")
        process.kill()
        assert await running == "whole\n"
        await sandbox.close()


async def test_a_cut_leaves_a_commands_true_result(sshd: Sshd, own: Path) -> None:
    sandbox = await open_it(over_openssh(sshd), own)
    running = asyncio.ensure_future(printed(sandbox, "touch begun-2; sleep 1; echo whole"))
    await asyncio.to_thread(wait_until, (sshd.home / "begun-2").exists, what="the command")
    await asyncio.to_thread(sshd.kill_sessions)
    assert await running == "whole\n"
    await sandbox.close()


@pytest.mark.parametrize(
    ("case", "why"),
    [
        pytest.param("missing", "it is not there", id="missing"),
        pytest.param("file", "it is no socket", id="a file"),
        pytest.param("link", "it is no socket", id="a link to a socket"),
        pytest.param("foreign socket", "it belongs to another user", id="a socket of another user"),
        pytest.param("foreign folder", "its folder belongs to another user", id="a folder of another user"),
        pytest.param("foreign folder above", "its folder belongs to another user", id="a folder above of another user"),
        pytest.param("open folder", "other users may write to its folder", id="a folder that all may write to"),
        pytest.param("sticky folder", "", id="a folder like /tmp"),
        pytest.param("good", "", id="good"),
    ],
)
async def test_a_control_socket_that_others_could_have_made_is_not_used(
    sshd: Sshd, own: Path, folder: Path, case: str, why: str
) -> None:
    above, place = folder / "above", folder / "above" / "inner"
    above.mkdir(mode=0o700)
    place.mkdir(mode=0o700)
    path = place / "cm"
    if case == "file":
        path.touch()
    elif case != "missing":
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(place / "real" if case == "link" else path))
    if case == "link":
        path.symlink_to("real")
    if case.startswith("foreign"):
        run_as_root("chown", NOBODY, str({"foreign socket": path, "foreign folder": place}.get(case, above)))
    modes = {"open folder": 0o777, "sticky folder": 0o1777}
    if case in modes:
        place.chmod(modes[case])
    assert distrust(str(path)) == why
    words = [word async for word in _arguments_with(sshd, own, str(path))]
    assert (f'ControlPath="{path}"' in words) == (not why)
    assert ("ControlPath=none" in words) == bool(why)


async def _arguments_with(sshd: Sshd, own: Path, path: str) -> Any:
    machine = over_openssh(sshd, control_path=path)
    assert machine.openssh
    for word in arguments(LoginGate(machine, own), machine.openssh, "" if distrust(path) else path):
        yield word


# --- what ssh_config must not bring along -----------------------------------------------------------------------------


def configured(tmp_path: Path, text: str, ssh_config: str, **environ: str) -> Any:
    """The app of a config.toml and of a ~/.ssh/config."""
    (Path.home() / ".ssh").mkdir(mode=0o700, exist_ok=True)
    (Path.home() / ".ssh" / "config").write_text(ssh_config)
    (tmp_path / "config.toml").write_text(text)
    return compose(load(tmp_path / "config.toml", {"PATH": os.environ["PATH"], **environ}))


def host(sshd: Sshd) -> str:
    return (
        f"Host far\n HostName {sshd.host}\n Port {sshd.port}\n User {sshd.user}\n IdentityFile {sshd.key_file}\n"
        f" UserKnownHostsFile {sshd.known_hosts}\n"
    )


OBTRUSIVE = """\
 LocalForward 127.0.0.1:{port} 127.0.0.1:22
 ExitOnForwardFailure yes
 RemoteCommand exec top
 RequestTTY force
 PermitLocalCommand yes
 LocalCommand touch {marker}
 ControlMaster auto
 ControlPath {folder}/cm
 ControlPersist yes
 StrictHostKeyChecking no
 LogLevel QUIET
 ForwardAgent yes
 ForwardX11 yes
"""


async def test_settings_for_people_do_not_disturb(sshd: Sshd, tmp_path: Path, folder: Path) -> None:
    with closed_port() as port:
        text = OBTRUSIVE.format(port=port, marker=tmp_path / "ran", folder=folder)
        with agent(folder) as sock:
            app = configured(
                tmp_path, '[machines.far]\nssh_alias = "far"\ntransport = "openssh"\n', host(sshd) + text,
                SSH_AUTH_SOCK=sock,
            )  # fmt: skip
            sandbox = await app.fleet.get("far")
            assert await printed(sandbox, "tty; echo $SSH_AUTH_SOCK $DISPLAY") == "not a tty\n\n"
            await app.close()
    assert not (tmp_path / "ran").exists()
    assert not (folder / "cm").exists()


@contextmanager
def agent(folder: Path) -> Iterator[str]:
    path = folder / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(path.exists, what="the agent")
            yield str(path)
        finally:
            process.terminate()


@pytest.mark.parametrize("transport", ["openssh", "asyncssh"])
async def test_the_agent_is_forwarded_only_where_our_configuration_says_so(
    sshd: Sshd, tmp_path: Path, folder: Path, transport: str
) -> None:
    seen = []
    with agent(folder) as sock:
        for forward in ("false", "true"):
            text = f'[machines.far]\nssh_alias = "far"\ntransport = "{transport}"\nforward_agent = {forward}\n'
            app = configured(tmp_path, text, host(sshd) + " ForwardAgent yes\n", SSH_AUTH_SOCK=sock)
            seen.append(await printed(await app.fleet.get("far"), 'test -S "$SSH_AUTH_SOCK" && echo forwarded; true'))
            await app.close()
    assert seen == ["", "forwarded\n"]


@pytest.mark.parametrize("transport", ["openssh", "asyncssh"])
async def test_programs_of_ssh_config_get_no_secret_of_ours(sshd: Sshd, tmp_path: Path, transport: str) -> None:
    proxy = f" ProxyCommand bash -c 'env > {tmp_path}/env; exec 3<>/dev/tcp/%h/%p; cat <&3 & exec cat >&3'\n"
    text = (
        f'[machines.far]\nssh_alias = "far"\ntransport = "{transport}"\n[machines.b]\nhost = "h"\n'
        'password = "env:GUARD"\n[server]\npass_env = ["AWS_PROFILE"]\n'
    )
    ours = {"GUARD": "hidden", "REMOTE_PASSWORD": "hidden", "OPEN_SANDBOX_API_KEY": "hidden", "SECRET_TOKEN": "hidden"}
    theirs = {
        "AWS_PROFILE": "lab",
        "HOME": str(Path.home()),
        "USER": "me",
        "LANG": "C.UTF-8",
        "SSH_AUTH_SOCK": "/nowhere",
    }
    environ = ours | theirs
    app = configured(tmp_path, text, host(sshd) + proxy, **environ)
    assert await printed(await app.fleet.get("far"), "whoami") == f"{sshd.user}\n"
    await app.close()
    # The program that a connection went through ends after it.
    await connection._ending.settle(10)
    seen = (tmp_path / "env").read_text()
    assert "hidden" not in seen
    assert {f"{name}={value}" for name, value in theirs.items()} <= set(seen.splitlines())


async def test_jump_hosts_of_our_own_have_their_own_logins(sshd: Sshd, own: Path) -> None:
    machine = over_openssh(sshd, hops=(sshd.hop(), sshd.hop()))
    before = logins(sshd)
    sandbox = await open_it(machine, own)
    assert await printed(sandbox, "whoami") == f"{sshd.user}\n"
    await sandbox.close()
    assert logins(sshd) == before + 3


async def test_jump_hosts_of_ssh_config_are_asked_for_no_password(sshd: Sshd, tmp_path: Path) -> None:
    """OpenSSH would try empty passwords there, and the user might be locked out."""
    text = '[machines.behind]\nssh_alias = "behind"\ntransport = "openssh"\n'
    behind = f"Host behind\n HostName 127.0.0.1\n Port {sshd.port}\n ProxyJump far\n"
    app = configured(tmp_path, text, host(sshd) + f"Host *\n User {sshd.user}\n IdentityFile {sshd.key_file}\n{behind}")
    machine = app.fleet.member("behind")
    assert await printed(await machine.open(), "whoami") == f"{sshd.user}\n"
    await app.close()
    refused = configured(tmp_path, text, host(sshd).replace(sshd.user, "nobody-there") + behind)
    with pytest.raises(LoginRefused, match="the login was refused"):
        await refused.fleet.get("behind")
    await refused.close()
    assert "Failed password" not in sshd.log


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("way", ["logins of their own", "a connection of the user's"])
async def test_files_move_over_several_clients(sshd: Sshd, tmp_path: Path, folder: Path, way: str) -> None:
    text = '[machines.far]\nssh_alias = "far"\ntransport = "openssh"\n'
    (folder / "tree").mkdir()
    for number in range(40):
        (folder / "tree" / f"{number}").write_bytes(os.urandom(2000))
    (folder / "tree" / "large").write_bytes(os.urandom(9 << 20))
    there, back = Place("far", f"got-{tmp_path.name}"), Place("", str(folder / "back"), free=True)
    with ExitStack() as stack:
        if way == "a connection of the user's":
            stack.enter_context(master(sshd, folder / "cm"))
        before = logins(sshd)
        app = configured(tmp_path, text, host(sshd) + f" ControlPath {folder}/cm\n")
        await app.transfers.sync(Order(source=Place("", str(folder / "tree"), free=True), target=there), wait_s=60)
        await app.transfers.sync(Order(source=there, target=back), wait_s=60)
        await app.close()
        assert (logins(sshd) == before) == (way == "a connection of the user's")
    assert content(folder / "back") == content(folder / "tree")


async def test_a_new_host_key_is_remembered_in_our_own_file(sshd: Sshd, own: Path, tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    machine = over_openssh(sshd, known_hosts_files=(str(tmp_path / "none"),))
    sandbox = await open_it(machine, own)
    await sandbox.close()
    assert own.read_text().split()[:3] == [f"[{sshd.host}]:{sshd.port}", *sshd.host_key.split()]
    assert (tmp_path / "none").read_text() == ""
    # asyncssh finds it there, too.
    await (await open_machine(replace(machine, strict_host_keys=True), own)).close()


async def test_a_password_cannot_be_given_to_openssh(sshd: Sshd, tmp_path: Path) -> None:
    text = '[machines.far]\nssh_alias = "far"\ntransport = "openssh"\npassword = "x"\n'
    app = configured(tmp_path, text, host(sshd))
    with pytest.raises(SandboxError, match=r"password is configured, which OpenSSH's client cannot be given; put the"):
        await app.fleet.get("far")
    await app.close()


def test_what_is_configured_becomes_no_option_by_accident(sshd: Sshd, own: Path) -> None:
    machine: Machine = over_openssh(sshd)
    assert machine.openssh
    words = arguments(LoginGate(machine, own), replace(machine.openssh, destination="-oProxyCommand=x"))
    assert words[-2:] == ["--", "-oProxyCommand=x"]
