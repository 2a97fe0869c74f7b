"""Every program of examples/, run as it stands, on the sandbox of this computer and on a machine behind sshd."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import pytest

from tests.support.hub_desk import Desk, desk_in
from tests.support.means import require_local
from tests.support.server import COMMAND, Entry, entry, environment
from tests.support.sshd import Sshd, wait_until

FOLDER = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(file.name for file in FOLDER.iterdir() if file.suffix in (".py", ".sh"))
README = (FOLDER / "README.md").read_text(encoding="utf-8")
KEY = "a-key-for-the-examples-of-this-test"
LONGEST, DEADLINE_S = 60, 120


@dataclass
class User:
    """A person with a home, the command on PATH, and machines in the environment."""

    desk: Desk
    entries: list[Entry] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """With a command on PATH that has these variables also where a client does not pass them on, as the SDK's."""
        env = environment(self.desk.home, tuple(self.entries), self.more)
        program = self.desk.home / "bin" / Path(COMMAND).name
        program.parent.mkdir(exist_ok=True)
        exports = [f"export {name}={quote(value)}" for name, value in env.items()]
        program.write_text("\n".join(["#!/bin/sh", *exports, f'exec {quote(COMMAND)} "$@"', ""]))
        program.chmod(0o755)
        return {**env, "PATH": f"{program.parent}:{env['PATH']}", "TMPDIR": str(self.desk.home)}

    def command(self, *words: str) -> str:
        done = subprocess.run([COMMAND, *words], env=self.env, capture_output=True, text=True, check=False)
        return done.stdout

    def run(self, name: str, *words: str) -> str:
        """What an example prints, which must succeed; it is started in a folder of the user's."""
        program = sys.executable if name.endswith(".py") else "/bin/sh"
        done = subprocess.run(
            [program, str(FOLDER / name), *words],
            env=self.env,
            cwd=self.desk.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    with desk_in(tmp_path) as desk:
        yield User(desk)


@pytest.fixture
def here(user: User) -> User:
    """With the sandbox of this computer."""
    require_local()
    return user


@pytest.fixture
def there(user: User, sshd: Sshd) -> User:
    """With a machine, named gpu1."""
    user.entries.append(entry(sshd, name="gpu1"))
    return user


def test_run_a_command(here: User) -> None:
    assert here.run("run_a_command.py") == "stdout: hello from the sandbox\nexit code: 2\n"


def test_run_a_command_on_a_machine(there: User) -> None:
    assert there.run("run_a_command.py", "gpu1") == "stdout: hello from the sandbox\nexit code: 2\n"


def test_over_http(here: User) -> None:
    here.more["REMOTE_SANDBOX_API_KEY"] = KEY
    log = here.desk.home / "said"
    with log.open("wb") as said:
        server = subprocess.Popen([COMMAND, "--mode", "http", "--port", "0"], env=here.env, stdout=said, stderr=said)
    try:
        wait_until(lambda: "serving MCP at" in log.read_text(), what="the server", seconds=60)
        (port,) = re.findall(r"serving MCP at http://\S+?:(\d+) ", log.read_text())
        address = f"http://127.0.0.1:{port}/mcp"
        assert here.run("over_http.py", address) == "exec_bash is there: True\nstdout: over HTTP\n"
    finally:
        server.terminate()
        server.wait(30)


def test_python_session(here: User) -> None:
    assert here.run("python_session.py") == "value: 144\nerror: KeyError: 'twelve'\nstill there: 1000\n"


def test_wait_for_line(here: User) -> None:
    assert here.run("wait_for_line.py") == "reason: pattern\nline: ready at port 8000\noutcome: stopped\n"


def test_tests_in_a_sandbox(here: User) -> None:
    assert here.run("tests_in_a_sandbox.py") == "passed: 1 failed: 1\nfailure: test_calculator.Sums.test_sum\n"


def test_resume_job(there: User) -> None:
    name, *lines = there.run("resume_job.sh", "gpu1").splitlines()
    assert name.startswith("example-resume-")
    first = ["begins at 0", "step 1", "step 2", "step 3"]
    assert lines == ["stopped at step 3", *first, "begins at 3", "step 4", "step 5", "step 6", "done"]


def test_event_hook(there: User) -> None:
    hook, events = there.desk.home / "event_hook.py", there.desk.home / "events.txt"
    shutil.copy(FOLDER / "event_hook.py", hook)
    config = there.desk.home / "hooks.toml"
    config.write_text(f"[hooks.example]\ncommand = ['{sys.executable}', '{hook}', '{events}']\n")
    config.chmod(0o600)
    with there.desk.client(*there.entries, config_file=config) as client:
        client.initialize()
        given = {"command": "exit 3", "session_name": "train-7", "event_command": "example", "interval_s": 1}
        answer = client.call("exec_bash_background", sandbox_name="gpu1", **given)
        assert "watch_id" in str(answer), answer
        wait_until(events.exists, what="an event", seconds=30)
        wait_until(lambda: events.read_text(), what="a line", seconds=10)
    assert events.read_text() == "completed: train-7 on gpu1 has failed\n"


def test_failed_jobs(there: User) -> None:
    for name, command in (("good", "echo fine"), ("bad", "echo no such data; exit 3")):
        there.command("jobs", "start", "--sandbox", "gpu1", "--name", name, "--", command)
        there.command("jobs", "wait", name)
    said = there.run("failed_jobs.py")
    # The machine may have jobs of other tests.
    assert "bad on gpu1: exit code 3\n    no such data\n    EXIT_CODE=3\n" in said
    assert "good on gpu1" not in said


def test_sync_dry_run(there: User) -> None:
    said = "would send 2 files\nsent 2 files\nsent 1 file after a change\none\ntwo\nthree\n"
    assert there.run("sync_dry_run.sh", "gpu1") == said


def test_workspace(there: User) -> None:
    said = "the sum is 3\nthe product is 12\ncame back: the product is 12\n"
    assert there.run("workspace.sh", "gpu1") == said


def test_on_several(there: User, sshd: Sshd) -> None:
    there.entries.append(entry(sshd, name="gpu2"))
    *rows, last = there.run("on_several.sh", "gpu1,gpu2").splitlines()
    # Whichever ends first is shown first.
    assert sorted(re.sub(r"after \S+ s", "after a while", row) for row in rows) == [
        "gpu1: exit 0 after a while",
        "gpu2: exit 0 after a while",
        "ready",
        "ready",
    ]
    assert last == "some do not have it"


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_is_short_has_a_test_and_says_what_it_shows_and_how_to_run_it(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    assert f"test_{name.partition('.')[0]}" in globals()
    assert f"| [{name}]({name}) |" in README
    head = text.partition("\nimport " if name.endswith(".py") else "\nset -eu")[0]
    assert name in head, "how to run it"
    assert text.startswith("#!")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name.endswith(".py")])
def test_only_public_faces_are_used(name: str) -> None:
    assert "import remote_sandbox_mcp" not in (FOLDER / name).read_text(encoding="utf-8")
    assert "from remote_sandbox_mcp" not in (FOLDER / name).read_text(encoding="utf-8")


def test_the_list_names_programs_that_exist() -> None:
    assert sorted(set(re.findall(r"^\| \[(\S+)\]", README, re.M))) == PROGRAMS
    assert len(PROGRAMS) >= 10
