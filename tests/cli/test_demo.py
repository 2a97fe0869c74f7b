"""What `make run` starts: the page at a terminal, and the tour where nobody looks."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND
from tests.support.programs import without_bubblewrap
from tests.support.terminal import terminal

DEMO = [sys.executable, str(Path(__file__).parents[2] / "scripts/demo.py")]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")


def test_at_a_terminal_it_says_how_to_tell_an_agent_and_serves_the_page_until_ctrl_c() -> None:
    with terminal(DEMO) as here:
        here.wait("Ctrl-C ends it")
        shown = here.shown()
        (address,) = re.findall(r"^(http://127\.0\.0\.1:\d+/ui/)#key=\S+$", shown, re.M)
        for client in ("claude", "codex"):
            assert f"  {client} mcp add remote-sandbox -- {COMMAND}" in shown
        assert "Say to your agent" in shown
        with urllib.request.urlopen(address) as answer:
            assert b"<!doctype html>" in answer.read().lower()
        here.press("C-c")
        here.end()


def test_without_a_terminal_and_a_browser_it_is_the_tour_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without bubblewrap the tour is short.
    words = without_bubblewrap(*DEMO)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=55, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("A tour of remote-sandbox-mcp\n")
    assert "the rest is as it should be" in done.stdout


@pytest.mark.parametrize(("target", "module"), [("run", "demo"), ("tour", "tour")])
def test_make_starts_them(target: str, module: str) -> None:
    said = subprocess.run(
        ["make", "-n", "--no-print-directory", target], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert said.rstrip().endswith(f"scripts/{module}.py")


def test_where_no_sandbox_can_run_it_does_not_announce_one(tmp_path: Path) -> None:
    with terminal(["/usr/bin/env", f"PATH={tmp_path}", *without_bubblewrap(*DEMO)]) as here:
        here.wait("Ctrl-C ends it")
        shown = here.shown()
        assert "No sandbox can run on this computer" in shown
        assert "needs bubblewrap" in " ".join(shown.split())
        for announced in ("a sandbox on this computer, a page", "Make a sandbox", " create "):
            assert announced not in shown
        here.press("C-c")
        here.end()
