"""Every kind of machine proves itself to the real OpenSSH client, or to asyncssh where that one would ask."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import asyncssh
import pytest

from remote_sandbox_mcp.core.sandboxes.machine import Machine
from tests.support.means import require_program
from tests.support.root import WHY_NOT, can_be_root
from tests.support.sshd import HOST, Auth, Fleet, Sshd, closed_port, fleet_users, silent_port, wait_until


def run(sshd: Sshd, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        sshd.client(command, *options), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def output(sshd: Sshd, command: str, *options: str) -> str:
    done = run(sshd, command, *options)
    assert done.returncode == 0, f"{done.stderr}\n{sshd.log}"
    return done.stdout.strip()


def connect(machine: Machine) -> AbstractAsyncContextManager[asyncssh.SSHClientConnection]:
    login = machine.login
    return asyncssh.connect(
        machine.host,
        machine.port,
        config=None,
        username=login.user,
        known_hosts=list(machine.known_hosts_files),
        client_keys=list(login.key_files) or None,
        client_certs=list(login.certificate_files),
        passphrase=login.key_passphrase and login.key_passphrase.reveal(),
        password=login.password and login.password.reveal(),
    )


def start(sshd: Sshd, command: str) -> subprocess.Popen[bytes]:
    """Begin a command that prints a line and goes on; returns when the line is there."""
    process = subprocess.Popen(
        sshd.client(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stdout.readline()
    return process


def end(process: subprocess.Popen[bytes]) -> int:
    process.communicate(timeout=10)
    return process.returncode


def test_a_user_of_its_own_logs_in_to_a_home_of_its_own(sshd: Sshd) -> None:
    assert output(sshd, "id -un; pwd; echo $HOME; id -u") == f"{sshd.user}\n{sshd.home}\n{sshd.home}\n{sshd.uid}"
    assert sshd.uid != 0


def test_machines_differ_in_everything(fleet: Fleet, sshd: Sshd) -> None:
    other = fleet.machine("other")
    assert other.port != sshd.port
    assert other.host_key != sshd.host_key
    assert other.home != sshd.home
    assert output(other, "whoami") == other.user
    refused = run(other, "true", "-i", sshd.key_file, "-l", sshd.user)
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr


@pytest.mark.parametrize("auth", ["key", "certificate"])
def test_a_key_or_a_certificate_opens_it(fleet: Fleet, auth: Auth) -> None:
    machine = fleet.machine(auth=auth)
    assert output(machine, "whoami") == machine.user
    assert bool(machine.certificate_file) == (auth == "certificate")


def test_a_certificate_machine_refuses_the_bare_key(fleet: Fleet) -> None:
    machine = fleet.machine(auth="certificate")
    bare = [word for word in machine.client("true") if not word.startswith("CertificateFile=")]
    bare = [word for word, after in zip(bare, [*bare[1:], ""], strict=True) if word != "-o" or "=" in after]
    assert subprocess.run(bare, capture_output=True, check=False).returncode == 255


@pytest.mark.parametrize("auth", ["key", "certificate", "password", "encrypted_key"])
async def test_the_machine_value_holds_all_that_a_client_needs(fleet: Fleet, auth: Auth) -> None:
    sshd = fleet.machine(auth=auth)
    async with connect(sshd.machine()) as connection:
        done = await connection.run("whoami", check=True)
    assert str(done.stdout).strip() == sshd.user


def test_an_encrypted_key_is_of_no_use_without_its_passphrase(fleet: Fleet) -> None:
    assert run(fleet.machine(auth="encrypted_key"), "true").returncode == 255


@pytest.mark.parametrize(
    ("shell", "question", "answer"),
    [
        ("/bin/bash", "echo ${BASH_VERSION:+bash}", "bash"),
        ("/bin/dash", "readlink /proc/$$/exe", "/usr/bin/dash"),
        ("/usr/bin/fish", "set -q FISH_VERSION; and echo fish", "fish"),
        ("/bin/tcsh", "if ($?tcsh) echo tcsh", "tcsh"),
        ("busybox", "readlink /proc/$$/exe", "/usr/bin/busybox"),
    ],
    ids=["bash", "dash", "fish", "tcsh", "busybox"],
)
def test_the_login_shell_is_the_one_asked_for(fleet: Fleet, shell: str, question: str, answer: str) -> None:
    assert output(fleet.machine(shell=shell), question) == answer


@pytest.mark.parametrize(
    ("options", "missing", "present"),
    [
        ({"python": False}, ["python3", "python", "python3.11"], ["bash", "tmux", "ls"]),
        ({"tmux": False}, ["tmux"], ["bash", "python3"]),
        ({"shell": "busybox"}, ["bash", "python3", "tmux", "rsync"], ["ls", "sh", "awk"]),
        ({}, [], ["bash", "python3", "tmux"]),
    ],
    ids=["no python", "no tmux", "busybox", "all"],
)
def test_what_is_not_there_cannot_be_found(
    fleet: Fleet, options: dict[str, object], missing: list[str], present: list[str]
) -> None:
    machine = fleet.machine(**options)  # type: ignore[arg-type]
    question = f"for name in {' '.join(missing + present)}; do command -v $name >/dev/null && echo $name; done; true"
    assert output(machine, question).split() == present
    assert output(machine, f"exec $SHELL -lc '{question}'").split() == present


def test_a_bashrc_may_print_into_every_command(fleet: Fleet) -> None:
    machine = fleet.machine(bashrc="echo Welcome to the cluster")
    assert output(machine, "echo done") == "Welcome to the cluster\ndone"


def test_extra_settings_win_over_the_usual_ones(fleet: Fleet) -> None:
    machine = fleet.machine(extra_config=["PubkeyAuthentication no"])
    assert "Permission denied" in run(machine, "true").stderr


async def test_sessions_on_one_connection_are_limited(fleet: Fleet) -> None:
    async with connect(fleet.machine(max_sessions=1).machine()) as connection, connection.create_process("cat"):
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.run("true")


def test_a_jump_host_is_passed_through(fleet: Fleet, sshd: Sshd) -> None:
    jump = fleet.machine("jump")
    proxy = " ".join(jump.client("", "-W", f"{HOST}:{sshd.port}")[:-1])
    assert output(sshd, "whoami", "-o", f"ProxyCommand={proxy}") == sshd.user
    assert f"Accepted publickey for {jump.user}" in jump.log
    machine = sshd.through(jump, name="behind")
    assert (machine.name, machine.port, [hop.port for hop in machine.hops]) == ("behind", sshd.port, [jump.port])
    assert machine.known_hosts_files == (str(sshd.known_hosts), str(jump.known_hosts))


def test_stop_ends_listener_and_sessions_but_no_command_and_start_brings_it_back(sshd: Sshd) -> None:
    client = start(sshd, "echo up; exec sleep 1000")
    assert sshd.sessions()
    sshd.stop()
    assert end(client) == 255
    assert not sshd.sessions()
    assert list(sshd.processes().values()) == ["sleep 1000"]
    assert "refused" in run(sshd, "true").stderr
    sshd.start()
    assert output(sshd, "echo back") == "back"


def test_killed_sessions_look_like_a_cut(sshd: Sshd) -> None:
    client = start(sshd, "echo up; exec sleep 1001")
    sshd.kill_sessions()
    assert end(client) == 255
    assert list(sshd.processes().values()) == ["sleep 1001"]
    assert output(sshd, "echo again") == "again"


def test_a_frozen_machine_answers_nobody_and_loses_nothing(sshd: Sshd) -> None:
    client = start(sshd, "echo up; exec cat")
    sshd.freeze()
    with socket.create_connection((HOST, sshd.port), timeout=0.2) as silent, pytest.raises(TimeoutError):
        silent.recv(1)
    assert client.poll() is None
    sshd.thaw()
    assert client.communicate(b"still here\n", timeout=10)[0] == b"still here\n"


def test_a_changed_host_key_is_refused_by_who_knew_the_old_one(fleet: Fleet) -> None:
    machine = fleet.machine()
    before = machine.host_key
    machine.change_host_key()
    assert machine.host_key != before
    assert "HOST IDENTIFICATION HAS CHANGED" in run(machine, "true").stderr


def test_a_reset_leaves_nothing_running(sshd: Sshd) -> None:
    client = start(sshd, "(setsid sleep 1002 >/dev/null 2>&1 &); echo up; exec cat")
    sshd.freeze()
    sshd.reset()
    assert end(client) == 255
    assert (sshd.sessions(), sshd.processes()) == ({}, {})


def test_a_silent_port_accepts_and_says_nothing() -> None:
    with (
        silent_port() as port,
        socket.create_connection((HOST, port), timeout=0.2) as client,
        pytest.raises(TimeoutError),
    ):
        client.recv(1)


def test_a_closed_port_refuses() -> None:
    with closed_port() as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), timeout=5)


def test_nothing_is_left_when_a_fleet_ends() -> None:
    with Fleet() as fleet:
        machine = fleet.machine()
        client = start(machine, "tmux new-session -d 'exec sleep 1003'; (setsid sleep 1004 &); echo up; exec cat")
        wait_until(lambda: "sleep 1003" in machine.processes().values(), what="tmux")
        listening = fleet.machine(shell="busybox")
    end(client)
    for gone in (machine, listening):
        assert (gone.sessions(), gone.processes()) == ({}, {})
        assert gone.user not in [user.pw_name for user in fleet_users()]
    assert not fleet.folder.exists()
    assert not Path(f"/tmp/tmux-{machine.uid}").exists()


@pytest.mark.skipif(not can_be_root(), reason=WHY_NOT)
def test_the_next_fleet_removes_what_a_killed_run_left_behind() -> None:
    killed = """if True:
        import os
        from tests.support.sshd import Fleet
        machine = Fleet().__enter__().machine()
        print(machine.user, machine.folder, machine.port, flush=True)
        os._exit(9)
    """
    done = subprocess.run([sys.executable, "-c", killed], capture_output=True, text=True, check=False)
    user, folder, port = done.stdout.split()
    socket.create_connection((HOST, int(port)), timeout=5).close()
    with Fleet():
        pass
    assert user not in [each.pw_name for each in fleet_users()]
    assert not Path(folder).parent.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, int(port)), timeout=5)


def test_the_environment_is_clean(clean_environment: Path) -> None:
    require_program("ssh")
    assert Path.home() == clean_environment
    assert not [name for name in os.environ if name.startswith(("MCP_", "OPENSANDBOX_", "OPEN_SANDBOX_", "SSH_AUTH"))]
    ours = {name for name in os.environ if name.startswith("REMOTE_")}
    assert ours == {"REMOTE_SANDBOX_MCP_HOME", "REMOTE_SANDBOX_HUB_IDLE_S"}
    assert shutil.which("ssh")
