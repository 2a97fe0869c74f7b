"""The watchdog's loop: one per state folder, its lock, its heartbeat in the database, its log."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Protocol

from ...core.errors import ConfigError, SandboxError
from ...core.texts.shown import values_in_use
from ...core.texts.text import harmless
from ...local.processes.locks import Lock, holder
from ...local.store.database import STATE_FILE, Database
from ...local.store.watches import Watches

LOG_FILE = "watchdog.log"
LARGEST, KEPT = 1 << 20, 2
OURS = "remote_sandbox_mcp"
LOCK_FILE = "watchdog.lock"
# How long open connections may take to close, and interrupted work to end.
CLOSING_S, ENDING_S = 1.2, 1.6
# The version of a database that cannot be read; constant, so that it does not count as a change.
UNREADABLE = None


class OwnLog(RotatingFileHandler):
    """A log handler that never raises: a full disk must not end the process."""

    def __init__(self, file: Path, largest: int = LARGEST) -> None:
        super().__init__(file, maxBytes=largest, backupCount=KEPT, encoding="utf-8")
        self.setFormatter(Harmless("%(asctime)s %(levelname)s %(message)s"))

    def _open(self) -> TextIOWrapper:
        return open(open_log(Path(self.baseFilename)), "a", encoding="utf-8")

    def doRollover(self) -> None:
        """Redirect stdout and stderr to the new file as well: otherwise they would go on growing the rotated one."""
        printed = [fd for fd in (1, 2) if self.stream and _same(fd, self.stream.fileno())]
        super().doRollover()
        for fd in printed:
            if self.stream:
                os.dup2(self.stream.fileno(), fd)

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignored: there is nowhere else to report it."""


class Harmless(logging.Formatter):
    """Log formatter that makes text from machines and files safe to look at, and hides secrets."""

    def format(self, record: logging.LogRecord) -> str:
        from ...core.texts.redact import MOST_READ, shorten_safely

        text = harmless(super().format(record).encode("utf-8", "surrogatepass"))
        return shorten_safely(text, values_in_use(), MOST_READ)


def open_log(file: Path) -> int:
    """A descriptor that appends to the log. Raises OSError."""
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _same(fd: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.fstat(other))
    except OSError:
        return False


class Pulse:
    """Heartbeat on its own connection, so that its writes do not count as changes by others."""

    def __init__(self, state: Path) -> None:
        self.file = state / STATE_FILE
        self._database = Database(self.file)
        self._watches = Watches(self._database)
        self._opened: object = None

    def beat(self) -> None:
        """Record that this process is alive. Raises ConfigError."""
        self._watches.beat(os.getpid(), time.time())

    def version(self) -> object:
        """A value that changes when another connection has written, or the file was replaced. Raises ConfigError."""
        if file_fingerprint(self.file) != self._opened:
            # The file was moved away: others now write to a new one.
            self._database.close()
        version = self._database.version()
        self._opened = file_fingerprint(self.file)
        return self._opened, version

    def close(self) -> None:
        self._database.close()


def file_fingerprint(file: Path) -> object:
    """Identity of the file, if it exists."""
    return _facts(file, "st_dev", "st_ino")


def change_fingerprint(*files: Path) -> object:
    """A value that changes when one of the files is written, replaced, created or removed."""
    return tuple(_facts(file, "st_ino", "st_mtime_ns", "st_size") for file in files)


def _facts(file: Path, *names: str) -> object:
    try:
        found = file.stat()
    except OSError:
        return None
    return tuple(getattr(found, name) for name in names)


log = logging.getLogger(__name__)


class Supervision(Protocol):
    """Looks after everything that is due."""

    async def tick(self) -> float:
        """Do one round; returns the epoch second at which something is due next, infinity for never."""


class Vital(Protocol):
    """Database, as far as the loop itself needs it."""

    def beat(self) -> None:
        """Record that the watchdog is alive."""

    def version(self) -> object:
        """A value that changes whenever another process may have changed anything."""


@dataclass(frozen=True)
class Intervals:
    """Intervals of the loop, in seconds."""

    changes_s: float = 2.0
    # Also the longest pause between two rounds, because clocks may be set while it waits.
    settings_s: float = 30.0
    shortest_rest_s: float = 0.2
    # After a round it rests so many times as long as the round computed, but no longer than this for that reason.
    rest_times: float = 100.0
    longest_rest_s: float = 2.0
    longest_pause_s: float = 60.0
    # With nothing to watch, the lock is released after this long; then the hub's idle time begins.
    idle_s: float = 3.0


OpenSupervision = Callable[[], AbstractAsyncContextManager[Supervision]]


class AlreadyWatched(SandboxError):
    """State folder that another process watches."""


class Ended(Exception):
    """The loop ends by itself, with the reason."""


def take_lock(state: Path) -> Lock:
    """The lock of the one watchdog, signed. Raises AlreadyWatched or ConfigError."""
    try:
        lock = Lock.take(state / LOCK_FILE)
    except BlockingIOError:
        found = holder(state / LOCK_FILE)
        who = f"process {found.pid}" if found and found.pid else "another process"
        raise AlreadyWatched(f"the watchdog of {state} runs already, as {who}") from None
    lock.sign()
    return lock


class Rounds:
    """The loop. All waits are short, and measured by the monotonic clock, which is immune to clock changes."""

    def __init__(
        self, lock: Lock, open_supervision: OpenSupervision, fingerprint: Callable[[], object], vital: Vital,
        pace: Intervals, until_idle: bool,
    ) -> None:  # fmt: skip
        self.why_ended = ""
        self._lock = lock
        self._open = open_supervision
        self._fingerprint = fingerprint
        self._vital = vital
        self._pace = pace
        self._until_idle = until_idle
        self._failures = 0
        self._trouble = ""
        self._idle_since = math.inf

    async def run(self) -> None:
        """Run until cancelled or Ended."""
        while True:
            try:
                await self._under_one_configuration()
            except Ended as reason:
                self.why_ended = str(reason)
                return
            # No exception may end the loop: it is logged, and the round is tried again.
            except Exception:
                pause = pause_after(self._failures, self._pace.longest_pause_s)
                self._failures += 1
                log.exception("a round failed; the next begins in %g s", pause)
                await asyncio.sleep(pause)

    def let_go(self) -> None:
        """Release the lock, in a process that goes on without it."""
        self._lock.release()

    async def _under_one_configuration(self) -> None:
        """Run rounds until the configuration changes, with its sandboxes open."""
        # Creates the database if needed, which must not count as a change of configuration.
        await self._version()
        fingerprint, context = self._fingerprint(), self._open()
        supervision = await context.__aenter__()
        try:
            while self._fingerprint() == fingerprint:
                await self._round(supervision)
        finally:
            await self._leave(context)
        log.info("the configuration has changed; it is read anew")

    async def _leave(self, context: AbstractAsyncContextManager[Supervision]) -> None:
        """Close what is open; a dead connection must not delay us."""
        leaving = asyncio.ensure_future(context.__aexit__(None, None, None))
        done, _ = await asyncio.wait([leaving], timeout=CLOSING_S)
        if not done:
            leaving.cancel()
        elif problem := leaving.exception():
            log.warning("unable to close what was open: %s", problem)

    async def _round(self, supervision: Supervision) -> None:
        if not is_in_place(self._lock):
            # Another process could have started with a new lock file of the same name.
            raise Ended("its lock was taken away")
        # Read before the work, so that changes by others during it are noticed afterwards.
        version = await self._version()
        begun = time.process_time()
        due = await supervision.tick()
        worked_s = time.process_time() - begun
        self._failures = 0
        self._idle_since = min(self._idle_since, time.monotonic()) if due == math.inf else math.inf
        await self._try(self._vital.beat)
        await self._rest(due, version, worked_s)

    async def _rest(self, due: float, version: object, worked_s: float) -> None:
        """Wait until something is due or has changed, or the settings should be checked.

        What is due within the rest that a round's work asks for is done together: each round costs something by itself.
        """
        pace = self._pace
        due = max(due, time.time() + min(pace.longest_rest_s, pace.rest_times * worked_s))
        wanted = max(pace.shortest_rest_s, due - time.time())
        until = time.monotonic() + min(pace.settings_s, wanted)
        await asyncio.sleep(pace.shortest_rest_s)
        while (left := until - time.monotonic()) > 0 and time.time() < due:
            await asyncio.sleep(min(left, pace.changes_s))
            if await self._version() != version:
                return
            await self._end_if_idle(version)

    async def _end_if_idle(self, version: object) -> None:
        """Raises Ended where there is nothing left to do."""
        if not self._until_idle or time.monotonic() - self._idle_since < self._pace.idle_s:
            return
        # A process that added a watch while the lock was held relies on us: so release it first, and then look once
        # more.
        self._lock.release()
        if await self._version() == version:
            raise Ended("nothing to look after")
        try:
            self._lock = Lock.take(self._lock.file)
        except (BlockingIOError, ConfigError):
            raise Ended("another looks after it") from None
        self._lock.sign()
        self._idle_since = math.inf

    async def _version(self) -> object:
        return await self._try(self._vital.version)

    async def _try(self, ask: Callable[[], object]) -> object:
        """Ask the database in a thread: a locked database would block the loop, and with it signals."""
        try:
            answer = await asyncio.to_thread(ask)
        except (SandboxError, OSError) as problem:
            # Logged once: repeated every other second, it would fill the log.
            if self._trouble != str(problem):
                self._trouble = str(problem)
                log.warning("the database does not answer: %s", problem)
            return UNREADABLE
        self._trouble = ""
        return answer


def is_in_place(lock: Lock) -> bool:
    """Whether our lock file is still the one that others see."""
    try:
        return os.path.samestat(os.fstat(lock.fd), os.stat(lock.file))
    except FileNotFoundError:
        return False


def pause_after(failures: int, longest_s: float) -> float:
    """1, 2, 4, ... seconds, up to the longest."""
    return float(min(2.0 ** min(failures, 10), longest_s))
