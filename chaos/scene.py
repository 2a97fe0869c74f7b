"""One schedule's stage: a machine behind a line, a state folder, servers and daemons, and the job's own folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.line import ThreadedLine
from tests.support.server import COMMAND, Wire, entry
from tests.support.sshd import Sshd, _processes

JOB = Path(__file__).with_name("job.py")
SESSION = "soak"


@dataclass
class Scene:
    """Everything that a fault can reach."""

    machine: Sshd
    line: ThreadedLine
    home: Path
    work: Path
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def config(self) -> Path:
        return self.home / "config.toml"

    def prepare(self) -> None:
        self.state.chmod(0o700)
        known = entry(self.machine, port=self.line.port)
        lines = [f"{key} = {json.dumps(value)}" for key, value in known.items() if key != "name"]
        text = "\n".join(["[local]", "enabled = false", "[notify]", "desktop = false", "[machines.gpu]", *lines])
        self.config.write_text(text + "\n")
        self.config.chmod(0o600)
        self.work.mkdir()
        os.chown(self.work, self.machine.uid, self.machine.uid)
        shutil.copy(JOB, self.work / "job.py")

    def environment(self) -> dict[str, str]:
        given = {"HOME": str(self.home), "REMOTE_SANDBOX_MCP_HOME": str(self.state), "PATH": os.environ["PATH"]}
        return given | {"REMOTE_SANDBOX_HUB_IDLE_S": "2", "REMOTE_SANDBOX_INLINE_SYNC_MAX_BYTES": "1000000"}

    def serve(self) -> Wire:
        """A server of its own for one call."""
        process = subprocess.Popen(
            [COMMAND, "--config", str(self.config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.home / "stderr").open("ab"),
            env=self.environment(),
        )
        self.servers.append(process)
        wire = Wire(process, self.home)
        wire.initialize()
        return wire

    def guard(self) -> None:
        """Start a daemon."""
        with (self.home / "daemon.log").open("ab") as log:
            self.daemons.append(
                subprocess.Popen(
                    [COMMAND, "--config", str(self.config), "watchdog", "run"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environment(),
                )
            )

    def see_to_a_guard(self) -> None:
        if not any(daemon.poll() is None for daemon in self.daemons):
            self.guard()

    def kill(self, processes: list[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.kill()
            process.wait()
        processes.clear()

    def processes(self, word: str) -> list[int]:
        """The machine's user's processes whose command line holds a word."""
        return [pid for pid, command in self.machine.processes().items() if word in command]

    def strike(self, word: str, number: signal.Signals = signal.SIGKILL) -> None:
        for pid in self.processes(word):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def reboot(self) -> None:
        """Every process is gone at once, and the machine has another boot id than the jobs remember."""
        self.machine.kill_sessions()
        deadline = time.monotonic() + 10
        while mine := [process.pid for process in _processes() if process.uid == self.machine.uid]:
            for pid in mine:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert time.monotonic() < deadline
        for record in (self.machine.home / ".local/state/remote-sandbox/jobs").glob("*/*/begun"):
            self._forget_boot(record)

    def _forget_boot(self, record: Path) -> None:
        found = json.loads(record.read_text())
        if found.get("boot") and (record.parent / "end").exists() is False:
            found["boot"] = "00000000-0000-0000-0000-000000000000"
            times = record.stat()
            record.write_text(json.dumps(found) + "\n")
            os.utime(record, (times.st_atime, times.st_mtime))

    def rows(self, query: str) -> list[dict[str, Any]]:
        """What the state database says."""
        with sqlite3.connect(f"file:{self.state}/state.db?mode=ro", uri=True, timeout=10) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query)]

    def testimony(self) -> list[str]:
        file = self.work / "witness"
        return file.read_text().splitlines() if file.exists() else []

    def close(self) -> None:
        self.kill(self.daemons)
        self.kill(self.servers)
        self.line.refuse(False)
        self.line.thaw()
        self.machine.reset()
