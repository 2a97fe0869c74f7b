"""Verbs of the command line in the hub: one login for all of them, and what they start lives on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.test_login import at_terminal
from tests.support.hub_desk import Desk, desk_in
from tests.support.means import require_bubblewrap
from tests.support.second_factor import machine_with_code
from tests.support.server import COMMAND, Entry, entry, environment
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
    require_bubblewrap()
    config = tmp_path / "config.toml"
    config.write_text("[local]\nenabled = true\n")
    config.chmod(0o600)
    code, out, error = desk("--config", str(config), "jobs", "start", "--sandbox", "local", "--", "sleep", "60")
    assert code == 0, error
    shown = desk("--config", str(config), "jobs", "list", "--json")[1]
    rows = {row["tmux_session"]: row["status"] for row in json.loads(shown)["tasks"]}
    assert rows[out.strip()] == "running"


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
