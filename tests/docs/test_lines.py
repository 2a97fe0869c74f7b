"""Lines that the pages tell people to type: each is run as it is written, or has a reason why it is not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import entry
from tests.support.doc_pages import PAGES, blocks, short
from tests.support.means import require_local, require_namespaces, require_program
from tests.support.sshd import Sshd, wait_until

LINE_S = 60
# What begins a line that is not run here, and why.
NOT_RUN = {
    r"(uv|pipx|python3 -m venv) ": "installs: tests/install/test_way_in.py runs it",
    r"(claude|codex|code) ": "a client of others: make clients, and tests/install/test_way_in.py for what they start",
    r"make ": "builds and tests this project",
    r"ssh ": "OpenSSH's own command, to a machine of an example",
    r"REMOTE_SANDBOX_LIST=": "a variable, not a command",
    r"source ": "for one of three shells: run below",
    r"remote-sandbox-mcp (--mode http|dashboard)": "serves until it is ended: run below",
    r"remote-sandbox-mcp forward ": "forwards until it is ended: tests/cli/test_disposables.py",
    r"remote-sandbox-mcp (events|calls) -f": "follows until it is ended: tests/cli/test_events.py and test_calls.py",
    r"remote-sandbox-mcp jobs attach ": "needs a terminal: tests/cli/test_attach.py",
    r"remote-sandbox-mcp sessions close ": "closes what a client has opened: tests/cli/test_sessions.py",
    r"remote-sandbox-mcp (create --image|(exec --sandbox|delete) sb-)": "needs an image: tests/cli/test_disposables.py",
    r"remote-sandbox-mcp config (allow|deny)": "asks a person: run below",
    r"remote-sandbox-mcp workspaces restore ": "needs a trash: tests/cli/test_workspaces.py",
    r"remote-sandbox-mcp allow /data/": "a folder of an example: tests/cli/test_allow.py",
    r"(useradd|/opt/remote-sandbox/|openssl) ?": "sets up a server, as root: tests/install/test_unit.py",
    r"(docker|mkdir -p config|printf 'abi|sudo) ?": "needs an engine, or root: tests/install/test_image.py",
}
# Exit codes other than 0 that are right here: those of commands and jobs, which find no GPU and no Python by that name.
SHELLS = {
    "bash": ("bash", "--norc", "-c"),
    "zsh": ("zsh", "-f", "-c", "autoload -Uz compinit; compinit -u -D; eval $0"),
    "fish": ("fish", "-N", "-c"),
}
RIGHT = {r".* exec ": {0, 127}, r".* jobs wait": {0, 3, 127}, r".* jobs stop": {0, 1}}


def lines(page: Path) -> Iterator[str]:
    """The commands of a page, each on one line, without what a session shows after them."""
    for block in blocks(page):
        text = block.text.replace("\\\n", " ")
        if block.language == "sh" and not text.startswith("#!"):
            yield from (line for line in text.splitlines() if line and not line.startswith("#"))
        elif block.language == "console":
            yield from (line[2:] for line in text.splitlines() if line.startswith("$ "))
        assert block.language != "bash", "write sh, or console for a session"


def reason(line: str) -> str:
    return next((why for begin, why in NOT_RUN.items() if re.match(begin, line)), "")


# A Chinese page has the blocks of the English one, which another test compares.
# Recipes of the cookbook are run as a whole: tests/examples/test_cookbook.py.
TOLD = {page: [*lines(page)] for page in PAGES if not page.name.endswith((".zh-CN.md", "cookbook.md"))}
RUN = {page: [line for line in found if not reason(line)] for page, found in TOLD.items()}


def test_each_reason_is_needed() -> None:
    everything = [line for found in TOLD.values() for line in found]
    assert [begin for begin in NOT_RUN if not any(re.match(begin, line) for line in everything)] == []


@pytest.fixture
def world(sshd: Sshd, clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with what the examples name: two machines, a project, results and notes."""
    home = clean_environment
    for folder in ("project", "results", "runs"):
        (home / folder).mkdir()
    (home / "project/train.py").write_text("print('trained')\n")
    (home / "notes.md").write_text("mine\n")
    machines = [entry(sshd, name=name) for name in ("gpu1", "gpu2")]
    monkeypatch.setenv("REMOTE_SANDBOX_LIST", json.dumps(machines))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    run("remote-sandbox-mcp exec --sandbox gpu2 -- 'mkdir -p runs/42; echo 1 >runs/42/loss; echo 1 >train.py'", home)
    return home


def run(line: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=os.environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=LINE_S,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("page", [page for page, found in RUN.items() if found], ids=short)
def test_the_lines_of_a_page_do_what_they_say(page: Path, world: Path) -> None:
    if any(" create " in line for line in RUN[page]):
        require_local()
    for line in RUN[page]:
        done = run(line, world / "project")
        right = next((codes for form, codes in RIGHT.items() if re.match(form, line)), {0})
        assert done.returncode in right, (line, done.returncode, done.stdout.decode(), done.stderr.decode())


def told(form: str) -> list[str]:
    """Lines that are not run above, each once, without what is said about them."""
    found = [line.partition("  ")[0] for lines in TOLD.values() for line in lines if re.match(form, line)]
    return [*dict.fromkeys(found)]


@pytest.mark.parametrize("line", told("source "))
def test_completions_are_loaded_by_their_shell(line: str, world: Path) -> None:
    shell = next(name for name in SHELLS if f"completion {name}" in line)
    require_program(shell)
    done = subprocess.run([*SHELLS[shell], line], cwd=world, capture_output=True, timeout=LINE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_project_is_accepted_and_refused(world: Path) -> None:
    require_program("script")
    (world / "project/.remote-sandbox.toml").write_text('sandbox = "gpu1"\n')
    for line, after in zip(
        told("remote-sandbox-mcp config (allow|deny)"),
        ("Accepted as it is now", "is not accepted any more"),
        strict=True,
    ):
        asking = ["script", "-qec", line, "/dev/null"]
        done = subprocess.run(
            asking, cwd=world / "project", input=b"y\n", capture_output=True, timeout=LINE_S, check=False
        )
        assert done.returncode == 0, (line, done.stdout)
        assert after in done.stdout.decode(), line


@pytest.mark.parametrize("line", told(r"remote-sandbox-mcp (--mode http|dashboard)"))
def test_what_serves_does_so_until_it_is_ended(line: str, world: Path) -> None:
    """With ports of its own: these lines name some that this computer may use."""
    require_namespaces()
    words = ["unshare", "--net", "bash", "-c", f"ip link set lo up && exec {line}"]
    log = world / "said"
    with log.open("wb") as said:
        process = subprocess.Popen(words, cwd=world, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        wait_until(lambda: re.search(r"http://\S+:\d+", log.read_text()), what=line, seconds=LINE_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(LINE_S) in (0, 130), log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()
