"""The original program: a state folder that 0.7.6 has made, and 0.7.6 itself, from the package index."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
VERSION = "0.7.6"
INSTALLING_S = 300
PASSWORD, PASSPHRASE = "correct horse battery", "open sesame"
CALL = """
import json, sys
from remote_sandbox_mcp import server
name, arguments = json.load(sys.stdin)
print(json.dumps(getattr(server, name)(**arguments)))
"""


def lay_out(state: Path) -> Path:
    """Put the state folder that make.py has made in its place; returns its database."""
    state.mkdir(mode=0o755, parents=True)
    (state / "transfers").mkdir()
    (state / "transfers/transfer-1.log").write_text("[transfer] task=1 completed\n")
    text = (HERE / "config.json").read_text()
    (state / "config.json").touch(0o600)
    (state / "config.json").write_text(text)
    database = state / "watchdog.sqlite3"
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript((HERE / "state.sql").read_text().replace("{state}", str(state)))
        connection.execute("PRAGMA journal_mode = WAL")
    return database


def statuses(database: Path) -> dict[int, str]:
    """The status of each watch in the original's database."""
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute("SELECT id, status FROM watches ORDER BY id").fetchall())


class Original:
    """0.7.6 in an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin/python"
        venv.create(folder, with_pip=True)
        words = [str(self.python), "-m", "pip", "install", "--quiet", f"remote-sandbox-mcp=={VERSION}"]
        done = subprocess.run(words, capture_output=True, timeout=INSTALLING_S, check=False)
        if done.returncode:
            pytest.skip(f"the package index has no remote-sandbox-mcp {VERSION} for {sys.platform} now")

    def call(self, tool: str, environ: Mapping[str, str], **arguments: Any) -> Any:
        """Call a tool in a process of its own, as a client's server would."""
        given = json.dumps([tool, arguments])
        words, env = [str(self.python), "-c", CALL], {**os.environ, **environ}
        done = subprocess.run(words, input=given, env=env, capture_output=True, text=True, timeout=120, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    @contextmanager
    def daemon(self, state: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Its watchdog, started as launchd starts it."""
        files = ["--config", str(state / "config.json"), "--db", str(state / "watchdog.sqlite3")]
        words = [str(self.python), "-m", "remote_sandbox_mcp.server", "daemon", *files, "--loop-sleep", "1"]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
