"""What can be wrong around a hub: others who start one, files that are left or planted, a full disk, another user."""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from remote_sandbox_mcp.local.processes.locks import holder
from remote_sandbox_mcp.services.hub_contact.hello import SERVE, ask, say_hello
from remote_sandbox_mcp.services.hub_contact.place import HubPlace, NoHub
from remote_sandbox_mcp.services.watchdog.daemon import LOCK_FILE
from tests.support.hubs import hub_folder, hub_pid, hub_pids, is_alive
from tests.support.means import IS_ROOT
from tests.support.root import as_root, run_as_root
from tests.support.server import Wire, arguments, entry, environment, wire
from tests.support.sshd import Sshd, all_processes, wait_until

CANARY = "canary-in-the-environment"


def use(line: Wire) -> None:
    """It serves."""
    line.initialize()
    assert line.call("list_sandboxes")["structuredContent"]


def test_fronts_that_start_at_once_share_one_hub_despite_leftovers(tmp_path: Path) -> None:
    place = HubPlace(environment(tmp_path, ()))
    place.make()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(place.socket)
    Path(place.lock).write_text("4194305 1\n")
    with ExitStack() as stack:
        lines = [stack.enter_context(wire(tmp_path, finds_hub=False)) for _ in range(4)]
        for line in lines:
            use(line)
        assert len(hub_pids(tmp_path)) == 1
        assert lines[0].stderr == ""
    wait_until(lambda: not hub_pids(tmp_path), what="the hub to end when nobody needs it", seconds=20)
    assert not Path(place.socket).exists()


def test_a_hub_whose_folder_was_removed_ends_without_harming_the_next(tmp_path: Path) -> None:
    with wire(tmp_path, finds_hub=False) as line:
        use(line)
        first = hub_pid(tmp_path)
        hub_folder(tmp_path).rename(tmp_path / "away")
        with wire(tmp_path, finds_hub=False) as other:
            use(other)
            second = hub_pid(tmp_path)
            assert second != first
            wait_until(lambda: not is_alive(first), what="the first hub to end", seconds=20)
            use_again = line.call("list_sandboxes")
            assert use_again["structuredContent"]
            assert hub_pids(tmp_path) == [second]


def test_the_commands_of_a_killed_front_end(machine: Sshd, tmp_path: Path) -> None:
    with wire(tmp_path, entry(machine)) as line, wire(tmp_path, entry(machine)) as other:
        line.initialize()
        other.initialize()
        line.start_call("exec_bash", command="sleep 672")
        wait_until(lambda: "sleep 672" in machine.processes().values(), what="the command to start", seconds=20)
        line.process.send_signal(signal.SIGKILL)
        wait_until(lambda: "sleep 672" not in machine.processes().values(), what="the command to end", seconds=20)
        assert other.call("exec_bash", command="echo on")["structuredContent"]["stdout"] == "on\n"


def test_a_front_that_was_killed_before_it_read_its_answers_is_no_failure_of_the_hub(tmp_path: Path) -> None:
    """Its line is reset then, not closed."""
    given = environment(tmp_path, ())
    with wire(tmp_path) as line:
        use(line)
        front = HubPlace(given).connect()
        front.sendall(say_hello(SERVE, given, str(tmp_path), config=""))
        wait_until(lambda: select.select([front], [], [], 0)[0], what="an answer that nobody reads", seconds=20)
        assert len(clients_of(given)) == 2
        front.close()
        wait_until(lambda: len(clients_of(given)) == 1, what="the conversation to end", seconds=20)
        log = Path(HubPlace(given).log).read_text()
        assert "began" in log
        assert "Traceback" not in log


def clients_of(given: dict[str, str]) -> list[object]:
    with HubPlace(given).connect() as asking:
        asking.sendall(ask("facts"))
        return list(json.loads(asking.makefile().readline())["clients"])


def test_a_client_that_closes_its_input_at_once_still_gets_its_answers(tmp_path: Path) -> None:
    with wire(tmp_path) as line:
        who = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        line.send("initialize", who)
        line.send("notifications/initialized", answered=False)
        line.send("tools/list")
        _, code, said = line.leave(None)
        assert code == 0
        assert [json.loads(each)["id"] for each in said.splitlines()] == [1, 2]


@contextmanager
def full_disk(folder: Path, known_hosts: str) -> Iterator[None]:
    """A state folder without a byte to spare, in which a machine is known."""
    folder.mkdir(mode=0o700)
    run_as_root("mount", "-t", "tmpfs", "-o", f"size=1m,mode=0700,uid={os.getuid()}", "tmpfs", str(folder))
    try:
        (folder / "known_hosts").write_text(known_hosts)
        with suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        yield
    finally:
        subprocess.run(as_root("umount", "-l", str(folder)), check=False)


def test_clients_are_served_on_a_full_disk(machine: Sshd, tmp_path: Path) -> None:
    with (
        full_disk(tmp_path / "state", machine.known_hosts.read_text()),
        wire(tmp_path, entry(machine), finds_hub=False) as line,
    ):
        use(line)
        assert line.call("exec_bash", command="echo on")["structuredContent"]["stdout"] == "on\n"
        kill_hub_if_any(tmp_path)
        again = line.call("exec_bash", command="echo on")
        assert again.get("structuredContent", {}).get("stdout") == "on\n", (again, line.stderr)


def test_a_watchdog_begins_on_a_full_disk(tmp_path: Path) -> None:
    """Only that it cannot sign its lock, so nobody learns which process it is."""
    state = tmp_path / "state"
    with full_disk(state, ""):
        words, given = [*arguments(tmp_path, local=False), "watchdog", "run"], environment(tmp_path, ())
        process = subprocess.Popen(words, env=given, stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: holder(state / LOCK_FILE) or process.poll() is not None, what="its lock", seconds=40)
            assert process.poll() is None
        finally:
            process.terminate()
            _, said = process.communicate(timeout=40)
        assert "Traceback" not in said


def test_a_full_disk_is_named_where_people_and_agents_look(machine: Sshd, tmp_path: Path) -> None:
    """Also before there is a state file; calls go on, and the log has one warning."""
    state = tmp_path / "state"
    with full_disk(state, machine.known_hosts.read_text()):
        with wire(tmp_path, entry(machine), hub=False) as line:
            use(line)
            assert full_disk_problems(line, state)
            for _ in range(3):
                assert line.call("exec_bash", command="echo on")["structuredContent"]["stdout"] == "on\n"
            assert full_disk_problems(line, state)
            line.leave(None)
            assert line.stderr.count("Calls on sandboxes go on") == 1
        (state / "state.db").unlink(missing_ok=True)
        words, given = [*arguments(tmp_path, local=False), "doctor"], environment(tmp_path, (entry(machine),))
        done = subprocess.run(words, env=given, capture_output=True, text=True, check=False)
        assert (done.returncode, "its disk is full; free some space" in done.stdout) == (1, True), done.stdout


def full_disk_problems(line: Wire, state: Path) -> list[str]:
    problems = line.call("list_sandboxes")["structuredContent"].get("problems", [])
    return [each for each in problems if each.startswith(f"unable to use {state}/state.db: its disk is full; free ")]


def kill_hub_if_any(home: Path) -> None:
    """On a full disk the lock may not be signed."""
    for process in all_processes():
        if "remote_sandbox_mcp.hub" in process.command and str(home).encode() in environ_of(process.pid):
            os.kill(process.pid, signal.SIGKILL)


def environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_a_hub_of_another_version_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = HubPlace(environment(tmp_path, ()))
    with monkeypatch.context() as patch:
        patch.setattr("remote_sandbox_mcp.services.hub_contact.place.__version__", "0.0.1")
        older = HubPlace(environment(tmp_path, ()))
    assert older.socket != ours.socket
    older.make()
    lock = older.take_lock()
    # One that speaks no language that we know.
    with older.listen() as listener, wire(tmp_path, finds_hub=False) as line:
        use(line)
        listener.settimeout(0.01)
        with pytest.raises(TimeoutError):
            listener.accept()
        assert Path(older.socket).exists()
    os.close(lock)


def test_the_next_hub_removes_the_sockets_of_those_that_were_killed_and_no_others(tmp_path: Path) -> None:
    environ = environment(tmp_path, ())
    killed, living, ours = HubPlace(environ, "0" * 16), HubPlace(environ, "1" * 16), HubPlace(environ)
    ours.make()
    locks = [place.take_lock() for place in (living, killed, ours)]
    for place in (living, killed, ours):
        place.listen().close()
    # As one leaves it that is killed before its socket was in its place.
    os.link(killed.socket, f"{killed.socket[:-5]}.4711")
    os.link(ours.socket, f"{ours.socket[:-5]}.4711")
    before = {file.name for file in hub_folder(tmp_path).iterdir()}
    for lock in locks[1:]:
        os.close(lock)
    with wire(tmp_path, finds_hub=False) as line:
        use(line)
        found = {file.name for file in hub_folder(tmp_path).iterdir()} - {"hub.log"}
        assert before - found == {f"{killed.name}.sock", f"{killed.name}.4711", f"{ours.name}.4711"}
        assert hub_pid(tmp_path)
    os.close(locks[0])


# Others


def as_user(uid: int, code: str, *words: str) -> subprocess.Popen[bytes]:
    if not IS_ROOT:
        pytest.skip("needs root")
    program = ["/usr/bin/python3", "-I", "-c", code, *words]
    return subprocess.Popen(program, user=uid, group=pwd.getpwuid(uid).pw_gid, extra_groups=(), stdout=subprocess.PIPE)


CONNECT = """
import socket, sys
line = socket.socket(socket.AF_UNIX)
try:
    line.connect(sys.argv[1])
    line.sendall(b'{"hello": "ask", "question": "status"}\\n')
    print("heard", line.recv(100))
except OSError as problem:
    print(type(problem).__name__)
"""
LISTEN = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listener.listen()
print("listening", flush=True)
if listener.accept()[0].recv(100000):
    print("heard something", flush=True)
"""


def test_another_user_cannot_reach_the_hub(machine: Sshd) -> None:
    # Not in pytest's own folder, which others cannot enter.
    with TemporaryDirectory(prefix="rsmcp-open-", dir="/tmp") as folder, wire(Path(folder)) as line:
        home = Path(folder)
        use(line)
        place = HubPlace(environment(home, ()))
        assert os.stat(place.folder).st_mode & 0o777 == 0o700
        assert os.stat(place.socket).st_mode & 0o777 == 0o600
        for opened in (False, True):
            if opened:
                # Even where all of these are open to everybody.
                for path in (place.socket, place.folder, home / "state", home):
                    os.chmod(path, 0o777)
            said = as_user(machine.uid, CONNECT, place.socket).communicate(timeout=20)[0]
            assert said in (
                (b"heard b''\n", b"ConnectionResetError\n", b"BrokenPipeError\n") if opened else (b"PermissionError\n",)
            )


def test_a_socket_that_another_user_has_planted_is_not_used(machine: Sshd, tmp_path: Path) -> None:
    place = HubPlace(environment(tmp_path, ()))
    place.make()
    open_folder = Path("/tmp") / f"rsmcp-planted-{os.getpid()}"
    open_folder.mkdir(mode=0o777)
    open_folder.chmod(0o777)
    planted = as_user(machine.uid, LISTEN, str(open_folder / "sock"))
    try:
        assert planted.stdout
        assert planted.stdout.readline() == b"listening\n"
        os.rename(open_folder / "sock", place.socket)
        with wire(tmp_path, env={"CANARY": CANARY}, finds_hub=False) as line:
            use(line)
            assert "belongs to another user" in line.stderr
    finally:
        planted.kill()
        heard = planted.communicate()[0]
        (open_folder).rmdir()
    assert b"heard something" not in heard


@pytest.mark.parametrize("wrong", ["a link", "open to a group", "another user's"])
def test_a_folder_that_others_could_have_made_is_not_used(wrong: str, tmp_path: Path) -> None:
    place = HubPlace(environment(tmp_path, ()))
    place.make()
    if wrong == "a link":
        os.rename(place.folder, tmp_path / "elsewhere")
        os.symlink(tmp_path / "elsewhere", place.folder)
    elif wrong == "open to a group":
        os.chmod(place.folder, 0o770)
    else:
        run_as_root("chown", "12345", place.folder)
    with pytest.raises(NoHub, match="not a folder of this user's alone"):
        place.make()


def test_secrets_of_a_client_are_in_no_file_and_in_no_list_of_processes(machine: Sshd, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 << 20))
    env = {"SOME_TOKEN": CANARY, "REMOTE_SANDBOX_INLINE_SYNC_MAX_BYTES": "1"}
    with wire(tmp_path, entry(machine, password=f"{CANARY}-2"), env=env, finds_hub=False) as line:
        line.initialize()
        assert line.call("exec_bash", command="echo on")["structuredContent"]["stdout"] == "on\n"
        result = line.call("sync_local_to_remote", local_path=str(source), remote_path="target")
        assert result["structuredContent"]["status"] in ("completed", "running")
        hub = hub_pid(tmp_path)
        family = {process.pid for process in all_processes() if process.pid == hub or process.parent == hub}
        for pid in family:
            assert CANARY.encode() not in environ_of(pid)
            assert CANARY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        # What the front itself was given is its client's doing.
        assert CANARY.encode() in environ_of(line.process.pid)
    for file in (tmp_path / "state").rglob("*"):
        assert not file.is_file() or CANARY.encode() not in file.read_bytes(), file
