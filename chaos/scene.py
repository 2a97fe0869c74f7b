"""One schedule's stage: a machine behind a line, a state folder, servers and daemons, and the job's own folder."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.line import ThreadedLine
from tests.support.pace import Deadline
from tests.support.server import COMMAND, Wire, entry
from tests.support.sshd import Sshd, _processes, all_processes

from .receiver import Receiver

JOB = Path(__file__).with_name("job.py")
SESSION = "soak"
# By then a target of a fault is there, or the fault hits nothing.
TARGET_S = 40.0
# So long all has to be over: a job that is starting is for a moment nowhere to be seen.
OVER_S = 3.0
# Many schedules share the cores; a machine that is slow is no fault.
CONNECT_S = 60


class Missed(Exception):
    """A fault found nothing to strike: the schedule has not tested what it was to test."""


@dataclass(frozen=True)
class Strike:
    """A fault that was made, when, and how many processes, connections or rows it hit."""

    fault: str
    begun: float
    ended: float
    hits: int


@dataclass
class Scene:
    """Everything that a fault can reach."""

    machine: Sshd
    line: ThreadedLine
    home: Path
    work: Path
    # The folder of a copy of the program that has a defect; empty for the program itself.
    program: str = ""
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    # The fault that is being made, and since when; it may have hit already.
    under_way: tuple[str, float] | None = None
    receiver: Receiver = field(default_factory=Receiver)
    # Whether a watchdog is a service here: then one that has ended is started again.
    is_guarded: bool = False
    # Whether more strikes are to come.
    is_striking: bool = False
    # Whether all that faults aim at has come to its end, so that no target will come any more.
    is_over: Callable[[], bool] = lambda: False
    # Threads that make calls.
    clients: Sequence[Any] = ()
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def config(self) -> Path:
        return self.home / "config.toml"

    @property
    def temporary(self) -> Path:
        return self.home / "tmp"

    def prepare(self, *, local: bool = False) -> None:
        self.state.chmod(0o700)
        self.temporary.mkdir()
        known = entry(self.machine, port=self.line.port)
        machine = [f"{key} = {json.dumps(value)}" for key, value in known.items() if key != "name"]
        notify = ["[notify]", "desktop = false", f'webhooks = ["{self.receiver.url}"]']
        here = ['default = "gpu"', "[local]", f"enabled = {json.dumps(local)}"]
        lines = [*here, *notify, "[machines.gpu]", f"connect_timeout_s = {CONNECT_S}", *machine]
        self.config.write_text("\n".join(lines) + "\n")
        self.config.chmod(0o600)
        self.work.mkdir()
        os.chown(self.work, self.machine.uid, self.machine.uid)
        shutil.copy(JOB, self.work / "job.py")

    def environment(self) -> dict[str, str]:
        given = {"HOME": str(self.home), "REMOTE_SANDBOX_MCP_HOME": str(self.state), "PATH": os.environ["PATH"]}
        given |= {"REMOTE_SANDBOX_HUB_IDLE_S": "2", "REMOTE_SANDBOX_INLINE_SYNC_MAX_BYTES": "1000000"}
        given |= {"REMOTE_SANDBOX_ALLOWED_ROOTS": str(self.home), "TMPDIR": str(self.temporary)}
        return given | ({"PYTHONPATH": self.program} if self.program else {})

    def words(self, *words: str) -> list[str]:
        return [COMMAND, "--config", str(self.config), *words]

    def start(self, *words: str, folder: Path | None = None, said: str = "stderr", **streams: Any) -> Any:
        """The installed command in a process of its own."""
        with (self.home / said).open("ab") as log:
            return subprocess.Popen(
                self.words(*words),
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **streams},
                env=self.environment(),
                cwd=folder or self.home,
            )

    def serve(self, folder: Path | None = None) -> Wire:
        """A server of its own for one client."""
        process = self.start(folder=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.servers.append(process)
        wire = Wire(process, self.home)
        wire.initialize()
        return wire

    def guard(self) -> subprocess.Popen[bytes]:
        """Start a daemon."""
        self.is_guarded = True
        daemon: subprocess.Popen[bytes] = self.start("watchdog", "run", said="daemon.log")
        self.daemons.append(daemon)
        return daemon

    def see_to_a_guard(self) -> None:
        if not self.living_daemons():
            self.guard()

    def living_daemons(self) -> list[subprocess.Popen[bytes]]:
        return [daemon for daemon in self.daemons if daemon.poll() is None]

    def kill(self, processes: list[subprocess.Popen[bytes]]) -> int:
        """How many of them lived."""
        living = [process for process in processes if process.poll() is None]
        for process in processes:
            process.kill()
            process.wait()
        processes.clear()
        return len(living)

    def record(self, fault: str, begun: float, hits: int) -> None:
        """Note a strike. Raises Missed where it hit nothing."""
        if not hits:
            raise Missed(f"{fault} hit nothing")
        with self._turn:
            self.strikes.append(Strike(fault, begun, time.monotonic(), hits))
            self.under_way = None

    def struck(self, begun: float, ended: float, faults: Collection[str]) -> bool:
        """Whether one of these faults fell into that time."""
        if (now := self.under_way) and now[0] in faults and now[1] <= ended:
            return True
        return any(it.fault in faults and it.begun <= ended and it.ended >= begun for it in self.strikes)

    def count(self, begun: float, ended: float, fault: str) -> int:
        """How often this fault fell into that time."""
        return sum(it.fault == fault and it.begun <= ended and it.ended >= begun for it in self.strikes)

    def target(self, find: Callable[[], Any], what: str) -> Any:
        """The target of a fault, as soon as there is one. Raises Missed.

        The strike before may have ended the watchdog, as the hub that it was: its service starts it again meanwhile.
        """
        deadline = Deadline(TARGET_S)
        over: Deadline | None = None
        while not (found := find()):
            over = (over or Deadline(OVER_S)) if self.is_over() else None
            if deadline.has_passed() or (over and over.has_passed()):
                raise Missed(f"there was no {what} to strike")
            if self.is_guarded:
                self.see_to_a_guard()
            time.sleep(0.02)
        return found

    @property
    def is_busy(self) -> bool:
        """Whether calls are still made."""
        return any(client.is_alive() for client in self.clients)

    def unanswered(self) -> list[str]:
        """Tokens of calls that are under way."""
        made = [made for client in self.clients for made in list(client.made)]
        return [it.token for it in made if it.token and not it.answers and not it.is_cut]

    # Processes

    def own_processes(self) -> dict[int, str]:
        """Every process of this schedule on this computer: pid and command line."""
        mark = f"REMOTE_SANDBOX_MCP_HOME={self.state}\0".encode()
        return {it.pid: it.command for it in all_processes() if mark in environ_of(it.pid)}

    def hubs(self) -> list[int]:
        """Hubs, and a watchdog that has taken the hub's place: it holds the lock of that place."""
        own = self.own_processes()
        named = [pid for pid, command in own.items() if "remote_sandbox_mcp.hub" in command]
        return named + [daemon.pid for daemon in self.living_daemons() if self._is_hub(daemon.pid)]

    def _is_hub(self, pid: int) -> bool:
        held = [Path(name) for name in descriptors(pid)]
        return any(it.parent == self.state / "hub" and it.suffix == ".lock" for it in held)

    def processes(self, word: str) -> list[int]:
        """The machine's user's processes whose command line holds a word."""
        return [pid for pid, command in self.machine.processes().items() if word in command]

    def strike(self, word: str, number: signal.Signals = signal.SIGKILL) -> int:
        return send(self.processes(word), number)

    def reboot(self) -> int:
        """Every process is gone at once, and the machine has another boot id than the jobs remember."""
        hit: set[int] = set()
        self.machine.kill_sessions()
        deadline = time.monotonic() + 10
        while mine := [process.pid for process in _processes() if process.uid == self.machine.uid]:
            hit |= set(mine)
            send(mine, signal.SIGKILL)
            assert time.monotonic() < deadline
        for record in (self.machine.home / ".local/state/remote-sandbox/jobs").glob("*/*/begun"):
            self._forget_boot(record)
        return len(hit)

    def _forget_boot(self, record: Path) -> None:
        found = json.loads(record.read_text())
        if found.get("boot") and (record.parent / "end").exists() is False:
            found["boot"] = "00000000-0000-0000-0000-000000000000"
            times = record.stat()
            record.write_text(json.dumps(found) + "\n")
            os.utime(record, (times.st_atime, times.st_mtime))

    # What is written

    def rows(self, query: str) -> list[dict[str, Any]]:
        """What the state database says."""
        with sqlite3.connect(f"file:{self.state}/state.db?mode=ro", uri=True, timeout=10) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query)]

    def testimony(self) -> list[str]:
        file = self.work / "witness"
        return file.read_text().splitlines() if file.exists() else []

    def times(self, token: str) -> int:
        """How often a command has left its token behind."""
        file = self.work / "count"
        return file.read_text().splitlines().count(token) if file.exists() else 0

    def logs(self) -> dict[str, str]:
        """All that our processes have logged or complained about."""
        files = [self.home / "stderr", self.home / "daemon.log", *self.home.glob("http-*.log")]
        files += [*(self.state / "hub").glob("hub.log*"), *self.state.glob("watchdog.log*")]
        return {file.name: file.read_text(errors="replace") for file in files if file.exists()}

    def close(self) -> None:
        self.kill(self.daemons)
        self.kill(self.servers)
        send(self.own_processes(), signal.SIGKILL)
        self.line.refuse(False)
        self.line.thaw()
        self.machine.reset()
        self.receiver.close()


def send(pids: Collection[int], number: signal.Signals) -> int:
    """Send a signal; how many processes got it."""
    hits = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            hits += 1
    return hits


def end(pids: Collection[int], number: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal that ends processes, and wait until they are gone with their connections; how many got it.

    A call that is made before that may still meet them, and belongs to the strike.
    """
    hits = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            ending = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(ending, number)
                hits += 1
                if not select.select([ending], [], [], TARGET_S)[0]:
                    raise AssertionError(f"process {pid} did not end by {number.name} within {TARGET_S:.0f} s")
            finally:
                os.close(ending)
    return hits


def descriptors(pid: int) -> list[str]:
    """Paths of what a process holds open."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(entry.path))
    return found


def environ_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""
