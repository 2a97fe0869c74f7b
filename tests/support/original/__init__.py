"""The original program: a state folder that 0.7.6 has made, and 0.7.6 itself, from the package index."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PACKAGE = "remote-sandbox-mcp==0.7.6"
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


class NoPackage(Exception):
    """The package cannot be had, and why."""


def install(folder: Path) -> Path:
    """The folder of the programs of an environment with the package, made once for all that ask. Raises NoPackage."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _install(folder)
            (folder / "done").touch()
    return folder / "bin"


def _install(folder: Path) -> None:
    options = ("--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15", "--no-compile")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", *options, PACKAGE]
    for words in ([sys.executable, "-m", "venv", "--without-pip", str(folder)], pip):
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALLING_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise NoPackage(f"{PACKAGE} could not be installed: {problem}") from None
        if done.returncode:
            raise NoPackage(f"{PACKAGE} could not be installed: {done.stderr.strip()[-300:]}")


def install_once(factory: pytest.TempPathFactory) -> Path:
    """The same for a test, which is skipped without the package; workers of one run share it."""
    shared = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    try:
        return install(shared / "original")
    except NoPackage as problem:
        pytest.skip(str(problem))


class Original:
    """0.7.6, whose programs are in this folder."""

    def __init__(self, programs: Path) -> None:
        self.python = programs / "python"

    def call(self, tool: str, environ: Mapping[str, str], **arguments: Any) -> Any:
        """Call a tool in a process of its own, as a client's server would."""
        given = json.dumps([tool, arguments])
        words, env = [str(self.python), "-c", CALL], {**os.environ, **environ}
        done = subprocess.run(words, input=given, env=env, capture_output=True, text=True, timeout=120, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    @contextmanager
    def daemon(self, state: Path, *, by_hand: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        """Its watchdog, started as launchd starts it, or as a person does."""
        files = ["--config", str(state / "config.json"), "--db", str(state / "watchdog.sqlite3")]
        words = [str(self.python), "-m", "remote_sandbox_mcp.server", "daemon", *files, "--loop-sleep", "1"]
        if by_hand:
            words = [str(self.python.with_name("remote-sandbox-mcp")), "daemon", "--loop-sleep", "1"]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
