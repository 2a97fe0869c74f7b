"""Verbs of the command line in the hub: one login for all of them, and what they start lives on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.test_login import at_terminal
from tests.support.hub_desk import Desk, desk_in
from tests.support.means import require_local
from tests.support.second_factor import machine_with_code
from tests.support.server import COMMAND, Entry, entry, environment, wire
from tests.support.sshd import Fleet, Sshd, wait_until
from tests.support.warm import Heard, at_a_terminal, start


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        yield desk


def begin(desk: Desk, machine: Entry, *words: str, **env: str) -> Heard:
    process = start([COMMAND, *words], environment(desk.home, (machine,), env))
    desk.started.append(process)
    return process


def run(desk: Desk, machine: Entry, *words: str, **env: str) -> tuple[int, str, str]:
    process = begin(desk, machine, *words, **env)
    out, error = process.communicate(timeout=40)
    return process.wait(), out.decode(), error.decode()


def test_verbs_start_a_hub_and_share_its_connection(machine: Sshd, desk: Desk) -> None:
    who = entry(machine)
    assert run(desk, who, "exec", "echo $PPID; exit 7")[0] == 7
    hub = desk.hub
    assert hub
    parents = {run(desk, who, "exec", "echo $SSH_CONNECTION")[1] for _ in range(2)}
    assert len(parents) == 1
    assert all(parents)
    assert run(desk, who, "sandboxes", "--json")[0] == 0
    assert machine.name in desk.status()["connected"]
    assert desk.hubs == [hub]


def test_a_client_uses_the_connection_of_a_verb(machine: Sshd, desk: Desk) -> None:
    who = entry(machine)
    seen = run(desk, who, "exec", "echo $SSH_CONNECTION")[1]
    with desk.client(who) as client:
        client.initialize()
        found = client.call("exec_bash", command="echo $SSH_CONNECTION", sandbox_name=machine.name)
    assert seen.strip() in json.dumps(found)


@pytest.mark.parametrize("how", [("--no-hub",), ()])
def test_without_a_hub_a_verb_works_in_its_own_process(machine: Sshd, desk: Desk, how: tuple[str, ...]) -> None:
    env = {} if how else {"REMOTE_SANDBOX_NO_HUB": "1"}
    assert run(desk, entry(machine), *how, "exec", "echo here; exit 3", **env) == (3, "here\n", "")
    assert not desk.hubs


def test_words_are_completed_by_a_hub_that_runs_and_none_is_started_for_them(machine: Sshd, desk: Desk) -> None:
    who, asked = entry(machine), ("__complete", "exec", "--on", "")
    config = desk.home / "other.toml"
    config.write_text('[local]\nname = "den"\n[machines.gpu7]\nhost = "gpu7.example.org"\n')
    config.chmod(0o600)
    here = ("__complete", "--config", "other.toml", "exec", "--on", "")

    def complete(*words: str) -> tuple[set[str], str]:
        command = [sys.executable, "-X", "importtime", "-m", "remote_sandbox_mcp", *words]
        env = environment(desk.home, (who,), {})
        done = subprocess.run(command, env=env, cwd=desk.home, capture_output=True, text=True, timeout=40, check=True)
        return {line.partition("\t")[0] for line in done.stdout.splitlines()}, done.stderr

    alone = complete(*asked)[0], complete(*here)[0]
    assert "argparse" in complete(*asked)[1]
    assert not desk.hubs
    assert machine.name in alone[0]
    assert {"den", "gpu7"} <= alone[1]
    assert run(desk, who, "exec", "true")[0] == 0
    for words, expected in zip((asked, here), alone, strict=True):
        found, imports = complete(*words)
        assert found == expected
        # Somebody waits for it with a finger on the key.
        assert "argparse" not in imports


def test_after_a_login_a_verb_asks_nothing(fleet: Fleet, desk: Desk) -> None:
    factor = machine_with_code(fleet, name="clinic")
    who = entry(factor.renew().machine)
    (desk.home / "config.toml").write_text("[local]\nenabled = false\n")
    (desk.home / "config.toml").chmod(0o600)
    code, seen = at_terminal(desk.home, who, factor.code)
    assert code == 0, seen
    logins, config = factor.logins, ("--config", str(desk.home / "config.toml"))
    assert run(desk, who, *config, "exec", "--sandbox", "clinic", "echo in") == (0, "in\n", "")
    assert factor.logins == logins


def test_a_job_in_the_local_sandbox_outlives_its_verb(desk: Desk, tmp_path: Path) -> None:
    require_local()
    config = tmp_path / "config.toml"
    config.write_text("[local]\nenabled = true\n")
    config.chmod(0o600)
    code, out, error = desk("--config", str(config), "jobs", "start", "--sandbox", "local", "--", "sleep", "60")
    assert code == 0, error
    shown = desk("--config", str(config), "jobs", "list", "--json")[1]
    rows = {row["tmux_session"]: row["status"] for row in json.loads(shown)["tasks"]}
    assert rows[out.strip()] == "running"


def test_a_job_that_nobody_watches_is_not_promised_a_resume(desk: Desk, tmp_path: Path) -> None:
    """In words that both faces share."""
    require_local()
    config = tmp_path / "config.toml"
    config.write_text("[local]\nenabled = true\n")
    config.chmod(0o600)
    told = (
        "a job in local ends with this server and is not watched, so it cannot be resumed; leave the resume command out"
    )
    words = ("jobs", "start", "--sandbox", "local", "--resume", "again", "--", "sleep", "60")
    code, _, error = desk("--config", str(config), *words)
    assert (code, told in error) == (2, True), error
    with wire(tmp_path, local=True) as line:
        line.initialize()
        order = {"command": "sleep 60", "auto_resume": True, "resume_command": "again", "sandbox_name": "local"}
        answer = line.call("exec_bash_background", **order)
        assert (answer["isError"], told in answer["content"][0]["text"]) == (True, True), answer
    assert json.loads(desk("--config", str(config), "jobs", "list", "--json")[1])["tasks"] == []


def test_ctrl_c_ends_the_command_there(machine: Sshd, desk: Desk, tmp_path: Path) -> None:
    process = begin(desk, entry(machine), "exec", "echo $$; exec sleep 271.8")
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10) == (b"", b"remote-sandbox-mcp: the command was told to stop\n")
    assert process.wait() == 130
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the end of the command")


def test_a_killed_verb_ends_its_command(machine: Sshd, desk: Desk) -> None:
    process = begin(desk, entry(machine), "exec", "echo $$; exec sleep 271.9")
    pid = int(process.stdout.readline())
    process.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the end of the command")


def test_a_reader_that_stops_reading_holds_up_nobody_else(machine: Sshd, desk: Desk) -> None:
    slow = begin(desk, entry(machine), "exec", "head -c 1500000 /dev/zero; echo done >&2")
    assert slow.stdout.read(1) == b"\0"
    assert run(desk, entry(machine), "exec", "echo quick")[:2] == (0, "quick\n")
    out, _ = slow.communicate(timeout=20)
    assert len(out) == 1_499_999


def test_a_verb_runs_in_its_own_folder_with_its_own_variables(machine: Sshd, desk: Desk) -> None:
    other = entry(machine) | {"name": "other"}
    assert run(desk, entry(machine), "exec", "--sandbox", machine.name, "true")[0] == 0
    code, _, error = run(desk, other, "exec", "--sandbox", machine.name, "true")
    assert code == 2
    assert "other" in error
    assert len(desk.hubs) == 1


def test_a_shell_has_the_size_and_the_keys_of_this_terminal(machine: Sshd, desk: Desk) -> None:
    import fcntl
    import pty
    import struct
    import termios

    terminal, inside = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
    env = environment(desk.home, (entry(machine),), {"TERM": "xterm-256color"})
    before = termios.tcgetattr(terminal)
    process = at_a_terminal([COMMAND, "shell", machine.name], env, inside)
    seen = b""
    # The shell's first words; what is typed before the terminal is taken over is dropped.
    while not seen:
        seen += os.read(terminal, 4096)
    os.write(terminal, b"stty size; tty; echo $TERM; exit 9\n")
    while b"xterm-256color\r\n" not in seen:
        seen += os.read(terminal, 4096)
    assert process.wait(20) == 9
    assert b"31 97\r\n" in seen
    assert b"/dev/pts/" in seen
    # It is given back as it was.
    assert termios.tcgetattr(terminal) == before
    os.close(inside)
    os.close(terminal)


def piped(desk: Desk, machine: Entry, given: bytes, *words: str, **env: str) -> tuple[int, bytes, bytes]:
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        how = environment(desk.home, (machine,), env)
        done = subprocess.run([COMMAND, *words], env=how, stdin=file, capture_output=True, timeout=40)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("hub", ["1", ""])
def test_standard_input_reaches_the_command(machine: Sshd, desk: Desk, hub: str) -> None:
    env = {} if hub else {"REMOTE_SANDBOX_NO_HUB": "1"}
    data = bytes(range(256)) * 2000
    assert piped(desk, entry(machine), data, "exec", "cat", **env) == (0, data, b"")
    assert piped(desk, entry(machine), b"x", "exec", "-n", "cat; echo end", **env) == (0, b"end\n", b"")


def test_a_pipe_is_passed_on_as_it_comes(machine: Sshd, desk: Desk) -> None:
    how = environment(desk.home, (entry(machine),), {})
    words = [COMMAND, "exec", "while read -r line; do echo got $line; done; exit 4"]
    with subprocess.Popen(words, env=how, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for word in (b"one", b"two"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"got " + word + b"\n"
        process.stdin.close()
        assert process.wait(30) == 4


def test_files_go_through_the_hubs_connection_from_the_folder_of_the_verb(
    machine: Sshd, desk: Desk, tmp_path: Path
) -> None:
    who = entry(machine)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.txt").write_text("one\n")
    how = environment(desk.home, (who,), {"REMOTE_SANDBOX_HUB_IDLE_S": "60"})

    def in_folder(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [COMMAND, *words],
            env=how,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    connection = in_folder("exec", "echo $SSH_CONNECTION")[1]
    assert in_folder("push", "here", f"{machine.name}:copied")[0] == 0
    assert in_folder("exec", "cat copied/a.txt")[:2] == (0, "one\n")
    assert in_folder("pull", f"{machine.name}:copied", "back")[0] == 0
    assert (tmp_path / "back" / "a.txt").read_text() == "one\n"
    code, out, error = in_folder("link", f"{machine.name}:linked", "here", "--yes", "--json")
    assert code == 0, error
    assert json.loads(out)["local_path"] == str(tmp_path / "here")
    states = json.loads(in_folder("workspaces", "--json")[1])["workspaces"]
    assert [state["status"] for state in states] == ["in step"]
    assert in_folder("unlink", "here")[0] == 0
    table = json.loads(in_folder("top", "--json")[1])
    assert machine.name in {row["name"] for row in table["machines"]}
    # One login for all of them.
    assert in_folder("exec", "echo $SSH_CONNECTION")[1] == connection
    assert len(desk.hubs) == 1


def test_a_forward_of_the_command_line_ends_with_it(machine: Sshd, desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = begin(desk, entry(machine), "forward", machine.name, str(port))
        address = process.stdout.readline().decode().strip()
        local = int(address.rsplit(":", 1)[1].strip("/"))
        with socket.create_connection(("127.0.0.1", local), timeout=10) as client:
            client.sendall(b"hello")
            # Some are opened only to see whether something listens.
            said = b""
            while said != b"hello":
                guest, _ = server.accept()
                with guest:
                    said = guest.recv(5)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", local), timeout=10).close()


def test_a_stopped_terminal_stops_nobody_else(machine: Sshd, desk: Desk) -> None:
    """A terminal that is not read, as after Ctrl-S, while a shell in it prints without end."""
    import pty

    terminal, inside = pty.openpty()
    env = environment(desk.home, (entry(machine),), {"TERM": "xterm-256color"})
    process = at_a_terminal([COMMAND, "shell", machine.name], env, inside)
    while not os.read(terminal, 4096):
        pass
    os.write(terminal, b"yes\n")
    assert os.read(terminal, 1)
    assert run(desk, entry(machine), "exec", "echo quick")[:2] == (0, "quick\n")
    process.kill()
    process.wait(20)
    os.close(inside)
    os.close(terminal)
