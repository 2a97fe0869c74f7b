"""The command `dashboard` as a person starts it, for tests in a real browser."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.server import Entry, arguments, environment
from tests.support.sshd import wait_until

CONFIG = '[disposable]\nprovider = "embedded"\n'
FOUND = re.compile(r"(http://127\.0\.0\.1:(\d+)/ui/)#key=(\S+)")


class Dashboard:
    """One that runs; `said` is all that it has printed."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def said(self) -> str:
        return (self.home / "said").read_text()

    @property
    def _place(self) -> re.Match[str]:
        found = FOUND.search(self.said)
        assert found, self.said
        return found

    @property
    def address(self) -> str:
        """With the key."""
        return self._place[0]

    @property
    def page(self) -> str:
        return self._place[1]

    @property
    def port(self) -> int:
        return int(self._place[2])

    @property
    def key(self) -> str:
        return self._place[3]


@contextmanager
def dashboard(home: Path, *entries: Entry, env: dict[str, str] | None = None) -> Iterator[Dashboard]:
    command = [*arguments(home, local=False, config=CONFIG), "dashboard", "--no-open", "--port", "0"]
    given = environment(home, entries, {"REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS": "1"} | (env or {}))
    with (home / "said").open("wb") as said:
        process = subprocess.Popen(command, env=given, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    running = Dashboard(home)
    try:
        wait_until(lambda: FOUND.search(running.said) or process.poll() is not None, what="the page", seconds=40)
        yield running
    finally:
        process.terminate()
        process.wait(20)
    assert "Traceback" not in running.said, running.said
