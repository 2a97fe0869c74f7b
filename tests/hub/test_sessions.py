"""Sessions of one hub: each has its own machines, secrets, folder, selection and log; equal machines are shared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import remote_sandbox_mcp
from tests.support.hub_place import Place, done, logins, names, told
from tests.support.pace import Deadline
from tests.support.server import entry
from tests.support.sshd import Fleet, Sshd

SOURCE = Path(remote_sandbox_mcp.__file__).parent.parent


@pytest.fixture(scope="module")
def machine(fleet: Fleet) -> Sshd:
    return fleet.machine("one", extra_config=["LogLevel VERBOSE"])


@pytest.fixture(scope="module")
def guarded(fleet: Fleet) -> Sshd:
    """A machine that wants a password."""
    return fleet.machine("guarded", auth="password", extra_config=["LogLevel VERBOSE"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("home"))
    place.write("[local]\nenabled = false\n")
    yield place
    place.end()


def test_equal_machines_of_different_configurations_are_logged_in_to_once(place: Place, machine: Sshd) -> None:
    before = logins(machine)
    other = {"name": "other", "host": "127.0.0.1", "port": 1, "user": "nobody"}
    with place.front(entry(machine)) as one, place.front(entry(machine), other, env={"UNUSED": "x"}) as two:
        for line in (one, two):
            assert done(line.call("exec_bash", command="echo here", sandbox_name="one"))["stdout"] == "here\n"
        assert names(one) == ["one"]
        assert names(two) == ["one", "other"]
        assert len(place.hubs()) == 1
    assert logins(machine) == before + 1


def test_clients_with_different_secrets_get_separate_logins(place: Place, guarded: Sshd) -> None:
    """The second session's password is wrong, so that it must be refused although the first is logged in."""
    machine = entry(guarded, password="env:GUARD")
    with (
        place.front(machine, env={"GUARD": guarded.password}) as right,
        place.front(machine, env={"GUARD": "wrong"}) as wrong,
    ):
        assert done(right.call("exec_bash", command="echo in"))["stdout"] == "in\n"
        refused = wrong.call("exec_bash", command="echo in")
        assert refused["isError"]
        assert "refused" in told(refused)
        assert done(right.call("exec_bash", command="echo in"))["stdout"] == "in\n"


def test_a_command_that_prints_a_secret_runs_with_the_sessions_variables(place: Place, guarded: Sshd) -> None:
    machine = entry(guarded, password="command:printenv GUARD", name="by-command")
    with (
        place.front(machine, env={"GUARD": guarded.password}) as right,
        place.front(machine, env={"GUARD": "wrong"}) as wrong,
    ):
        assert done(right.call("exec_bash", command="echo in"))["stdout"] == "in\n"
        assert "refused" in told(wrong.call("exec_bash", command="echo in"))


def test_a_proxy_command_runs_with_the_sessions_variables(place: Place, machine: Sshd) -> None:
    (place.home / ".ssh").mkdir(exist_ok=True)
    (place.home / ".ssh" / "config").write_text(
        f"Host proxied\n HostName {machine.host}\n Port {machine.port}\n User {machine.user}\n"
        f" IdentityFile {machine.key_file}\n"
        " ProxyCommand bash -c 'test $LEAVE = yes || exit 1; exec 3<>/dev/tcp/%h/%p; cat <&3 & exec cat >&3'\n"
    )
    alias = {"name": "proxied", "ssh_alias": "proxied"}
    with place.front(alias, env={"LEAVE": "no"}) as shut, place.front(alias, env={"LEAVE": "yes"}) as open_one:
        assert done(open_one.call("exec_bash", command="echo through"))["stdout"] == "through\n"
        assert shut.call("exec_bash", command="echo through")["isError"]
    (place.home / ".ssh" / "config").unlink()


def test_a_session_does_not_reach_machines_of_another_by_name(place: Place, machine: Sshd, tmp_path: Path) -> None:
    private = entry(machine, name="private")
    with place.front(private) as owner, place.front(entry(machine)) as stranger:
        started = done(owner.call("exec_bash_background", command="sleep 60", session_name="of-the-owner", watch=False))
        assert started["sandbox"] == "private"
        for tool, given in (
            ("exec_bash", {"command": "true", "sandbox_name": "private"}),
            ("select_sandbox", {"sandbox_name": "private"}),
            ("sync_local_to_remote", {"local_path": str(tmp_path), "remote_path": "x", "sandbox_name": "private"}),
            ("sync_remote_to_local", {"remote_path": "private:x", "local_path": str(tmp_path / "got")}),
            ("check_background_task", {"tmux_session": "of-the-owner", "sandbox_name": "private"}),
            ("forward_port", {"sandbox_id": "private", "port": 80}),
            ("run_tests", {"sandbox_id": "private"}),
        ):
            answer = stranger.call(tool, **given)
            assert answer.get("isError"), (tool, answer)
            assert "private:x" in told(answer) or "no sandbox is named 'private'" in told(answer), told(answer)
        read = stranger.ask("resources/read", {"uri": "sandbox://private/status"})
        assert "no sandbox is named" in read["error"]["message"]
        assert "private" not in json.dumps(stranger.ask("resources/read", {"uri": "sandbox://list"}))
        done(owner.call("stop_background_task", tmux_session="of-the-owner", sandbox_name="private"))


def test_relative_local_paths_start_in_the_clients_own_folder(place: Place, machine: Sshd, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_text(folder.name)
        (folder / "rules").write_text(f"*.{folder.name}\n")
        (folder / "tree").mkdir()
        for kind in ("a", "b"):
            (folder / "tree" / f"x.{kind}").touch()
    with place.front(entry(machine), cwd=folders[0]) as one, place.front(entry(machine), cwd=folders[1]) as two:
        for line, folder in ((one, folders[0]), (two, folders[1])):
            far = f"from-{folder.name}"
            done(line.call("sync_local_to_remote", local_path="file", remote_path=far))
            assert done(line.call("exec_bash", command=f"cat {far}"))["stdout"] == folder.name
            done(line.call("upload_files", sandbox_id="one", files=[{"path": f"{far}-2", "local_path": "file"}]))
            done(line.call("download_files", sandbox_id="one", paths=[f"{far}-2"], local_dir="back"))
            assert (folder / "back" / f"{far}-2").read_text() == folder.name
            done(line.call("sync_local_to_remote", local_path="tree/", remote_path=f"{far}-tree", exclude_file="rules"))
            left = {"a": "x.b\n", "b": "x.a\n"}[folder.name]
            assert done(line.call("exec_bash", command=f"ls {far}-tree"))["stdout"] == left


def test_selection_and_versions_belong_to_a_session(place: Place, machine: Sshd) -> None:
    machines = (entry(machine), entry(machine, name="again"))
    with place.front(*machines) as one, place.front(*machines) as two:
        done(one.call("select_sandbox", sandbox_name="again"))
        assert done(one.call("exec_bash", command="true"))["sandbox"] == "again"
        assert done(two.call("exec_bash", command="true"))["sandbox"] == "one"
        done(one.call("write_remote_file", remote_path="shared-file", content="1", sandbox_name="one"))
        done(two.call("write_remote_file", remote_path="shared-file", content="2", sandbox_name="one"))
        stale = one.call("write_remote_file", remote_path="shared-file", content="3", sandbox_name="one")
        assert "changed since" in told(stale)


def test_a_background_transfer_has_the_sessions_machines(place: Place, machine: Sshd, tmp_path: Path) -> None:
    """It must go on with machines that only this client's variables name."""
    (tmp_path / "file").write_text("moved")
    env = {"REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS": "1"}
    with place.front(entry(machine, name="mine"), env=env, cwd=tmp_path) as line:
        begun = done(line.call("sync_local_to_remote_background", local_path="file", remote_path="far-file"))
        deadline = Deadline(20)
        while (seen := done(line.call("check_file_transfer_task", task_id=begun["task_id"])))["status"] != "completed":
            assert seen["status"] in ("queued", "running"), seen
            assert not deadline.has_passed(), seen
        assert done(line.call("exec_bash", command="cat far-file"))["stdout"] == "moved"


def test_each_configuration_has_its_own_log_with_its_own_calls(place: Place, machine: Sshd) -> None:
    for name in ("a", "b"):
        place.write(
            f'[local]\nenabled = false\n[logging]\nlevel = "INFO"\nfile = "{place.home}/{name}.log"\n', f"{name}.toml"
        )
    with (
        place.front(entry(machine), config="a.toml") as one,
        place.front(entry(machine), config="b.toml") as two,
        place.front(entry(machine)) as silent,
    ):
        done(one.call("exec_bash", command="true"))
        done(two.call("list_sandboxes"))
        done(silent.call("list_remote_files", remote_path="."))
    first, second = ((place.home / f"{name}.log").read_text() for name in ("a", "b"))
    assert "exec_bash" in first
    assert "list_sandboxes" not in first
    assert "list_sandboxes" in second
    assert "exec_bash" not in second
    assert "list_remote_files" not in first + second
    assert (place.home / "a.log").stat().st_mode & 0o077 == 0


def test_relative_paths_of_keys_and_secrets_start_in_the_clients_own_folder(
    place: Place, machine: Sshd, guarded: Sshd, tmp_path: Path
) -> None:
    machines = (entry(machine, key_file="key"), entry(guarded, password="file:secret"))
    for name, password in (("right", guarded.password), ("wrong", "wrong")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret").write_text(password)
        (tmp_path / name / "secret").chmod(0o600)
    (tmp_path / "right" / "key").symlink_to(machine.key_file)
    with (
        place.front(*machines, cwd=tmp_path / "right") as right,
        place.front(*machines, cwd=tmp_path / "wrong") as wrong,
    ):
        for name in ("one", "guarded"):
            assert done(right.call("exec_bash", command="echo in", sandbox_name=name))["stdout"] == "in\n"
            assert wrong.call("exec_bash", command="echo in", sandbox_name=name)["isError"]


def test_a_front_loads_next_to_nothing() -> None:
    """There is one for each client, and it lives as long as that."""
    script = (
        "import sys, os, remote_sandbox_mcp.cli.main, remote_sandbox_mcp.cli.serve\n"
        "from remote_sandbox_mcp.hub import front\n"
        "front.HubPlace(os.environ)\n"
        "print(*sorted({'hashlib', 'pathlib', 'typing', 'subprocess', 'dataclasses', 'asyncio'} & {*sys.modules}))\n"
    )
    # Without what a virtual environment loads at the start of each interpreter.
    words = [sys.executable, "-S", "-c", script]
    found = subprocess.run(words, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE)})
    assert found.stdout == "\n"
