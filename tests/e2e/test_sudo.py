"""Commands as root by a real sudo, on a machine with sudoers of its own."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.core.commands.shell_session import AS_BEFORE
from remote_sandbox_mcp.far.outpost import sudo
from tests.support.means import require_program
from tests.support.root import as_root, run_as_root
from tests.support.server import Server, entry, serve, text_of
from tests.support.sshd import Fleet, Sshd, wait_until

PASSWORD = secrets.token_hex(8)
ALLOWED = "Defaults use_pty, secure_path=/usr/sbin:/usr/bin:/sbin:/bin\nUSER ALL=(ALL) ALL"


@pytest.fixture(scope="module")
def roots_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the machine has in the place of /root."""
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def machine(fleet: Fleet, roots_home: Path) -> Sshd:
    require_program("sudo")
    made = fleet.machine("rooted", sudoers=ALLOWED, mounts={"/root": roots_home})
    made.set_password(PASSWORD)
    return made


@pytest.fixture(scope="module")
async def server(machine: Sshd, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A server that knows the machine by several names: with the password, with a wrong one, without one."""
    home = tmp_path_factory.mktemp("sudo")
    (home / "password").write_text(f"{PASSWORD}\n")
    (home / "wrong").write_text("not the password\n")
    for file in ("password", "wrong"):
        (home / file).chmod(0o600)
    known = {machine.name: f"file:{home}/password", "wrong": f"file:{home}/wrong", "free": "nopasswd", "closed": ""}
    async with serve(home, config="".join(table(machine, name, given) for name, given in known.items())) as server:
        yield server


def table(machine: Sshd, name: str, given: str) -> str:
    fields = entry(machine) | ({"sudo": given} if given else {})
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items() if key != "name"]
    return "\n".join((f"[machines.{name}]", *lines, 'env = { COLOUR = "blue" }', ""))


@pytest.fixture(autouse=True)
def usual_sudoers(machine: Sshd) -> Iterator[None]:
    yield
    machine.allow(ALLOWED)


def processes() -> dict[int, str]:
    """All of this system."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
    return found


def text_as_root(file: Path) -> str:
    return subprocess.run(as_root("cat", str(file)), capture_output=True, text=True, check=False).stdout


def files_with(text: str, folder: Path) -> str:
    assert folder.is_dir()
    words = as_root("grep", "-rlaF", "-D", "skip", text, str(folder))
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode < 2, found.stderr
    return found.stdout


def runs(command: str) -> bool:
    return command in processes().values()


async def until(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what=what)


async def test_a_command_is_root_and_all_else_is_as_without(server: Server, machine: Sshd) -> None:
    """The same exit code, streams, folder, variables and signal; and nothing to read."""
    done = await server.run("id -u; pwd; echo $COLOUR; cat; echo problem >&2; exit 7", as_root=True)
    assert done == {"exit_code": 7, "stdout": f"0\n{machine.home}\nblue\n", "stderr": "problem\n"}
    assert (await server.run("kill -SEGV $$", as_root=True))["signal"] == "SIGSEGV"
    assert await server.output("pwd", cwd="/root", as_root=True) == "/root\n"
    lost = await server.fail("exec_bash", command="pwd", cwd="/no/such/folder", as_root=True)
    assert "unable to enter /no/such/folder: No such file or directory (nothing was started)" in lost["error"]
    long = await server.run("seq 100000", as_root=True)
    assert long["stdout_bytes"] == 588895
    rows = await server.run("id -u", sandbox_names=[machine.name, "closed"], as_root=True)
    assert [row.get("stdout", row.get("code")) for row in rows["results"]] == ["0\n", "unsupported"]


async def test_without_as_root_nothing_is_root(server: Server, machine: Sshd) -> None:
    assert await server.output("id -u") == f"{machine.uid}\n"
    # The password was given to one command, and is not remembered for those that follow.
    assert (await server.run("sudo -n id -u"))["exit_code"] == 1


async def test_the_password_is_in_no_process_file_log_or_answer(server: Server, machine: Sshd) -> None:
    command = "ls -l /proc/$$/fd /proc/$PPID/fd | grep -c pipe; timeout 1 cat <&0; env; sleep 4721"
    call = asyncio.ensure_future(server.run(command, as_root=True, timeout_s=60))
    await until(lambda: runs("sleep 4721"), "the command to run")
    for pid in processes():
        for name in ("cmdline", "environ"):
            try:
                assert PASSWORD.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue
    for folder in (paths.state_folder(), machine.home, Path(f"/tmp/remote-sandbox-{machine.uid}")):
        assert not files_with(PASSWORD, folder)
    sleeping = next(pid for pid, words in processes().items() if words == "sleep 4721")
    run_as_root("kill", str(sleeping))
    assert (await call)["exit_code"] == 143
    assert PASSWORD not in server.everything_said
    assert PASSWORD not in machine.log


@pytest.mark.parametrize("command", ["sleep 4722", "trap '' TERM; setsid sleep 4723 & sleep 4724"], ids=["one", "deaf"])
async def test_a_timeout_ends_all_that_runs_as_root(server: Server, command: str) -> None:
    begun = time.monotonic()
    done = await server.run(command, as_root=True, timeout_s=0.5)
    assert (done["exit_code"], done["timed_out"]) == (124, True)
    assert "still_alive" not in done
    assert time.monotonic() - begun < 10
    assert not any(words.startswith("sleep 472") for words in processes().values())


async def test_a_cancelled_call_and_a_killed_keeper_end_what_runs_as_root(server: Server, machine: Sshd) -> None:
    call = asyncio.ensure_future(server.run("sleep 4725", as_root=True))
    await until(lambda: runs("sleep 4725"), "the command to run")
    call.cancel()
    await until(lambda: not runs("sleep 4725"), "the command to end")
    call = asyncio.ensure_future(server.ask("exec_bash", command="sleep 4726", as_root=True))
    await until(lambda: runs("sleep 4726"), "the command to run")
    run_as_root("kill", "-KILL", *map(str, machine.processes()))
    await until(lambda: not runs("sleep 4726"), "the command to end")
    assert (await call).is_error


async def test_a_running_command_is_found_and_stopped_by_its_handle(server: Server) -> None:
    call = asyncio.ensure_future(server.run("sleep 4727", as_root=True))
    await until(lambda: runs("sleep 4727"), "the command to run")
    tasks = (await server.call("list_background_tasks", status="running"))["tasks"]
    task = next(task for task in tasks if task["command"] == "sleep 4727")
    stopped = await server.call("stop_background_task", tmux_session=task["tmux_session"])
    assert stopped["stopped"]
    assert not runs("sleep 4727")
    assert (await call)["exit_code"] == 143


async def test_a_wrong_password_is_tried_once_however_many_ask(server: Server, machine: Sshd) -> None:
    log = machine.folder / "sudo.log"
    machine.allow(f"Defaults logfile={log}\n{ALLOWED}")
    asked = [server.fail("exec_bash", command="touch ~/never", sandbox_name="wrong", as_root=True) for _ in range(5)]
    errors = [problem["error"] for problem in await asyncio.gather(*asked)]
    assert sum("sudo refused the password. It was tried once" in error for error in errors) == 1
    assert sum("not tried again for another" in error for error in errors) == 4
    # sudo writes it down when it has seen that no further password comes.
    await until(lambda: "attempt" in text_as_root(log), "sudo to write its log")
    assert "1 incorrect password attempt" in text_as_root(log)
    assert text_as_root(log).count("PWD=") == 1
    assert not (machine.home / "never").exists()


@pytest.mark.parametrize(
    ("name", "sudoers", "told"),
    [
        ("free", "USER ALL=(ALL) ALL", "for a password there, and `sudo` in the machine's table says nopasswd"),
        ("free", "Defaults requiretty\nUSER ALL=(ALL) NOPASSWD: ALL", "sudo demands a terminal there (requiretty)"),
        ("rooted", "root ALL=(ALL) ALL", "is not in the sudoers file there: its administrator has to allow it"),
        ("rooted", "USER ALL=(ALL) /bin/ls", "run only certain commands there, and as_root needs all of them"),
        ("closed", "USER ALL=(ALL) NOPASSWD: ALL", 'write sudo = "keyring:SERVICE/USER" (where the password is)'),
    ],
    ids=["asks for a password", "requiretty", "not in sudoers", "certain commands", "not in the table"],
)
async def test_what_sudo_refuses_is_one_sentence(
    server: Server, machine: Sshd, name: str, sudoers: str, told: str
) -> None:
    machine.allow(sudoers)
    problem = await server.ask("exec_bash", command="id -u", sandbox_name=name, as_root=True)
    assert problem.is_error
    assert told in text_of(problem)
    assert "nothing was" in text_of(problem)


async def test_nopasswd_takes_no_password_and_one_that_is_not_asked_for_is_not_given(
    server: Server, machine: Sshd
) -> None:
    machine.allow("USER ALL=(ALL) NOPASSWD: ALL")
    for name in ("free", machine.name):
        given: dict[str, Any] = {"sandbox_name": name, "as_root": True}
        assert await server.output("cat; id -u", **given) == "0\n"


# Sessions of root


@pytest.mark.parametrize("env_keep", ["", "Defaults env_keep += HOME\n"], ids=["its own HOME", "the user's HOME"])
async def test_roots_session_is_its_own_and_keeps_its_state(
    server: Server, machine: Sshd, roots_home: Path, env_keep: str
) -> None:
    machine.allow(f"{env_keep}{ALLOWED}")
    given: dict[str, Any] = {"session": "main", "as_root": True}
    await server.run("who=user; greet() { echo users; }", session="main")
    first = await server.run("echo ${who-none}; who=root; export secret=4711; cd /etc; greet() { id -u; }", **given)
    assert (first["stdout"], first["session"]) == ("none\n", "new")
    done = await server.run("echo $who; pwd; greet; exit 3", **given)
    assert (done["exit_code"], done["stdout"], done["session"]) == (3, "root\n/etc\n0\n", "kept")
    ended = await server.run("who=nobody; sleep 60", timeout_s=1, **given)
    assert (ended["timed_out"], ended["session"]) == (True, AS_BEFORE)
    assert await server.output("echo $who", **given) == "root\n"
    # The user's own shell of that name knows nothing of it, and no file that the user can read has it.
    assert await server.output("echo $who; greet", session="main") == "user\nusers\n"
    assert not files_with("4711", machine.home)
    assert files_with("4711", roots_home)
    assert (await server.run("cat /root/.local/state/remote-sandbox/shells/*/state"))["exit_code"] == 1
    tasks = (await server.call("list_background_tasks"))["tasks"]
    assert [task.get("as_root", False) for task in tasks if task["tmux_session"] == "shell:main"] == [False, True]
    await server.call("stop_background_task", tmux_session="shell:main")
    assert not files_with("4711", roots_home)
    assert (await server.run("echo ${who-none}", **given))["stdout"] == "none\n"
    await server.call("stop_background_task", tmux_session="shell:main")


async def test_a_user_cannot_plant_a_state_that_root_reads(server: Server, machine: Sshd) -> None:
    """Whatever lies where root's session could be is root's own, or is not read."""
    machine.allow(f"Defaults env_keep += HOME\n{ALLOWED}")
    given: dict[str, Any] = {"session": "planted", "as_root": True}
    await server.run("true", session="planted")
    evil = "printf 'touch /tmp/owned-%s\\n' $EUID >>state"
    await server.output(f"cd ~/.local/state/remote-sandbox/shells/*.planted && {evil}")
    await server.output("mkdir -p /tmp/remote-sandbox-0/shells || true")
    done = await server.run("id -u", **given)
    assert (done["stdout"], done["session"]) == ("0\n", "new")
    assert (await server.run("ls /tmp/owned-0"))["exit_code"] == 2
    await server.call("stop_background_task", tmux_session="shell:planted")


async def test_a_session_of_root_that_sudo_refuses_runs_nothing(server: Server, machine: Sshd) -> None:
    machine.allow("root ALL=(ALL) ALL")
    told = await server.fail("exec_bash", command="touch ~/never", session="main", as_root=True)
    assert "is not in the sudoers file there" in told["error"]
    told = await server.fail("exec_bash", command="touch ~/never", session="main", as_root=True, sandbox_name="closed")
    assert "nothing was" in told["error"]
    assert not (machine.home / "never").exists()


def test_what_is_not_roots_own_program_is_not_taken_for_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sudo").touch(mode=0o755)
    monkeypatch.setattr(sudo, "SUDO_PLACES", (str(tmp_path / "sudo"), str(tmp_path / "none")))
    with pytest.raises(sudo.SudoRefused, match="sudo is not installed there"):
        sudo.find_sudo()


async def test_a_machine_without_python_says_that_it_cannot(fleet: Fleet, tmp_path: Path) -> None:
    plain = fleet.machine(python=False)
    async with serve(tmp_path, entry(plain, sudo="nopasswd")) as server:
        problem = await server.fail("exec_bash", command="id", as_root=True)
        assert "it has no python3, which as_root needs there; nothing was run" in problem["error"]


# A virtual environment whose settings lead to another standard library, in which one module says who runs it.
ENVIRONMENT = """\
set -e
mkdir -p "$1/bin" "$1/base/bin"
library=$(/usr/bin/python3 -c 'import os; print(os.path.dirname(os.__file__))')
own="$1/base/lib/${library##*/}"
mkdir -p "$own"
ln -s "$library"/* "$own"
rm "$own/encodings"
cp -r "$library/encodings" "$own/encodings"
echo "import posix; posix.write(posix.open('$1/users', 1 | 64 | 1024, 0o666), b'%d ' % posix.getuid())" \
    >>"$own/encodings/__init__.py"
ln -s /usr/bin/python3 "$1/bin/python3"
echo "home = $1/base/bin" >"$1/pyvenv.cfg"
"""


async def test_root_runs_no_python_that_the_user_can_change(machine: Sshd, tmp_path: Path) -> None:
    """The link of an environment leads to root's Python, and what is beside the link decides what that imports."""
    folder = machine.folder / "environment"
    run_as_root("sh", "-c", ENVIRONMENT, "sh", str(folder))
    run_as_root("chown", "-R", "-h", str(machine.uid), str(folder))
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    (tmp_path / "password").chmod(0o600)
    given = table(machine, machine.name, f"file:{tmp_path}/password") + f'python = "{folder}/bin/python3"\n'
    async with serve(tmp_path, config=given) as server:
        assert await server.output("id -u", as_root=True) == "0\n"
        assert set((folder / "users").read_text().split()) == {str(machine.uid)}


def test_where_only_the_user_has_a_python_nothing_is_run_as_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.touch(mode=0o777)
    python.chmod(0o777)
    monkeypatch.setattr(sudo.sys, "executable", str(python))
    monkeypatch.setattr(sudo.os.path, "realpath", lambda path: str(python))
    with pytest.raises(sudo.SudoRefused, match="it has no Python that only root can change") as refused:
        sudo.root_python()
    assert refused.value.reason == "sudo_config"
