"""The hub's process: who may connect, when it ends, and what it answers about itself."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import remote_sandbox_mcp

from .. import __version__
from ..core.client import introduced
from ..core.errors import SandboxError
from ..local.processes import descriptors, loading
from ..local.waiting import within
from ..services.hub_contact.hello import ASK, HTTP, LOGIN, PROGRAM, SERVE, VERB, read
from ..services.hub_contact.place import HubPlace, NoHub, check_peer
from .passing import Caller

if TYPE_CHECKING:
    from ..local.processes.locks import Lock
    from .http_service import HttpServices

log = logging.getLogger(__name__)

# How long it stays without clients, watches, transfers and forwards.
IDLE_S, LEAST_IDLE_S, CHECK_EVERY_S = 600.0, 0.5, 2.0
IDLE_VARIABLE = "REMOTE_SANDBOX_HUB_IDLE_S"
HELLO_S = 10.0
LONGEST_LINE = 256 << 20
# Time for rows and files that are being written when it is told to end.
ENDING_S = 1.5
# How often it checks for watches whose process has ended, and whether the hub's place is free.
TAKE_UP_EVERY_S, TAKE_PLACE_EVERY_S = 20.0, 3.0
# When it begins to load modules that it may need later, and the pause between two modules.
LOAD_AFTER_S, LOAD_PAUSE_S = 3.0, 0.005
# Loggers at level INFO; all others at WARNING.
LOGGED = ("hub", "services.watchdog", "services.jobs")


def serve(lock: int, listener: int) -> int:
    """Serve all clients of this user until there is nothing left to do; the process ends here."""
    sock = socket.socket(fileno=listener)
    os.set_inheritable(lock, False)
    os.set_inheritable(listener, False)
    asyncio.run(Hub(HubPlace(os.environ)).run(lock, sock))
    return 0


async def stay(lock: Lock, config: Path | None) -> None:
    """Be the watchdog, whose lock is given, until told to end; and the hub, once no other process is.

    It does not end when idle, because a service manager started it.
    """
    hub = Hub(HubPlace(os.environ), lives_on=True)
    hub.watching.go_round(lock, config, until_idle=False)
    await hub.run()


@dataclass
class ConnectedClient:
    """A connected client, as `hub status` shows it."""

    folder: str
    front: int
    client: str = ""
    since: float = field(default_factory=time.time)

    def introduce(self, client: str) -> None:
        self.client = client or self.client

    def fields(self) -> dict[str, Any]:
        return {"client": self.client, "folder": self.folder, "since": self.since, "process": self.front}


class Hub:
    """Listens, and gives each front a conversation. With `lives_on` it does not end when idle."""

    def __init__(self, place: HubPlace, *, lives_on: bool = False) -> None:
        from .watching import HubWatchdog

        self._place = place
        self._lives_on = lives_on
        self._began = time.time()
        self._stopped = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._visits: list[ConnectedClient] = []
        self._served = 0
        self._idle_since = time.monotonic()
        self._idle_s = idle_limit()
        # Set once it listens.
        self._lock = -1
        self._address: tuple[int, int] | None = None
        self._log = Path(place.log)
        # Imported late, so that the first front does not wait for it.
        from .houses import Houses

        self._houses = Houses(self._idle_s)
        self._houses.about = self._about
        self.watching = HubWatchdog(Path(place.state), self._houses)
        self._houses.begin_watching = self.watching.begin
        self._http: HttpServices | None = None

    async def run(self, lock: int = -1, listener: socket.socket | None = None) -> None:
        """Serve until told to end, or idle. Without a listener, wait for the hub's place; the process ends here."""
        descriptors.raise_limit()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopped.set)
        self._begin_log()
        log.info("hub %s began as process %d", __version__, os.getpid())
        if listener:
            await self._open(lock, listener)
        chores = [self._check_needs(), self._tidy_up(), load_everything(), self._houses.watch_machines()]
        chores += [] if listener else [self._wait_for_place()]
        tasks = [asyncio.ensure_future(chore) for chore in chores]
        await self._stopped.wait()
        for task in tasks:
            task.cancel()
        if self._server:
            self._withdraw()
            self._server.close()
        if self._http:
            # Before machines are closed: commands of HTTP calls are stopped, because no other hub can continue them.
            await self._http.leave(ENDING_S)
        await asyncio.gather(self.watching.let_go(), self._houses.leave(ENDING_S))
        log.info("hub ended as process %d", os.getpid())
        sys.stderr.flush()
        # Commands in progress are not stopped: their fronts ask the next hub for the results.
        os._exit(0)

    def _begin_log(self) -> None:
        """Log to the hub's file, unless a service runs us: then the watchdog's log is used. Raises OSError."""
        if not self._lives_on:
            begin_log(self._log)
            return
        from ..services.watchdog.daemon import LOG_FILE

        self._log = Path(self._place.state) / LOG_FILE
        try:
            begin_log(self._log)
        except OSError as error:
            log.warning("unable to open %s: %s; nothing is logged there", self._log, error.strerror)

    async def _open(self, lock: int, listener: socket.socket) -> None:
        """Begin to serve. The lock says that this process is the hub, and is held until it ends."""
        from ..local.processes.process import sign

        self._lock, self._address = lock, _identity_of(self._place.socket)
        with contextlib.suppress(OSError):
            # The signature only informs people, so it may fail on a full disk.
            sign(lock)
        # Python 3.13 would remove the socket's file by its address, which may be valid only in the process that bound
        # it.
        kept: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        self._server = await asyncio.start_unix_server(self._accepted, sock=listener, limit=LONGEST_LINE, **kept)

    async def _wait_for_place(self) -> None:
        """Take the hub's place as soon as no other process has it."""
        try:
            while not self._server:
                self._place.make()
                if (lock := self._place.take_lock()) >= 0:
                    await self._open(lock, self._place.listen())
                    log.info("clients are served at %s", self._place.socket)
                else:
                    await asyncio.sleep(TAKE_PLACE_EVERY_S)
        except NoHub as problem:
            log.warning("no client is served by this process: %s", problem)

    # Lines

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._greet(reader, writer)
        except (ConnectionError, asyncio.TimeoutError, ValueError) as problem:
            log.info("a line ended: %s", problem)
        except Exception:
            log.exception("a conversation failed")
        finally:
            self._connections.discard(task)
            self._idle_since = time.monotonic()
            with contextlib.suppress(OSError):
                writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line: socket.socket = writer.get_extra_info("socket")
        try:
            front = check_peer(line)
        except NoHub as problem:
            log.warning("a caller was refused: %s", problem)
            return
        said = read(await within(reader.readline(), HELLO_S) or b"{}")
        hello, caller = said.get("hello"), Caller(said, front, reader, writer, self._stopped)
        if hello == ASK:
            await caller.say(await self._answer(said, front))
        elif hello == SERVE:
            await self._converse(caller)
        elif hello == LOGIN:
            from .conversation import log_in

            await log_in(self._houses, caller)
        elif hello == VERB:
            from .verbs import serve_verb

            await serve_verb(self._houses, caller)
        elif hello == PROGRAM:
            from .programs import serve_program

            await serve_program(self._houses, caller)
        elif hello == HTTP:
            from .http_service import HttpServices

            self._http = self._http or HttpServices(self._houses)
            await self._http.serve(caller)

    async def _converse(self, front: Caller) -> None:
        from .conversation import converse

        self._served += 1
        visit = ConnectedClient(str(front.said.get("folder") or "/"), front.pid)
        self._visits.append(visit)
        introduced.set(visit.introduce)
        try:
            await converse(self._houses, front)
        finally:
            self._visits.remove(visit)

    async def _answer(self, said: dict[str, Any], asker: int) -> dict[str, Any]:
        """Answer a question about the hub itself, from a person or a front."""
        question, answer = said.get("question"), {"pid": os.getpid()}
        if question == "alive":
            return answer
        if question == "stop":
            self._stopped.set()
            return answer | {"stopping": True}
        if question == "let go":
            return answer | {"released": await self._let_go()}
        if question == "watch":
            return answer | {"trouble": await self._watch(str(said.get("config") or ""))}
        if question == "take up":
            return answer | {"trouble": await self._take_up(said, asker)}
        return answer | await self._facts()

    async def _let_go(self) -> bool:
        """Release the watchdog's lock; a process that exists only for it ends."""
        if self._lives_on:
            self._stopped.set()
            return True
        return await self.watching.let_go()

    async def _watch(self, config: str) -> str:
        """Have the watches looked after, by this process or another; returns why that is not possible, or nothing."""
        from ..services.watchdog.ensure import ensure_running

        file = Path(config) if config else None
        return await ensure_running(Path(self._place.state), file, begin=self.watching.begin)

    async def _take_up(self, said: dict[str, Any], asker: int = 0) -> str:
        """Continue the transfers of that configuration; returns why that is not possible, or nothing."""
        try:
            await self._houses.take_over(said, asker)
        except (SandboxError, OSError) as problem:
            return str(problem)
        return ""

    async def _facts(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "began": self._began,
            "served": self._served,
            "idle_s": self._idle_s,
            "lives_on": self._lives_on,
            "log": str(self._log),
            "memory": resident(),
            "watching": self.watching.is_on,
            "watch_config": str(self.watching.config or ""),
            "clients": [visit.fields() for visit in self._visits],
            "http": self._http.facts() if self._http else [],
            "needs": await self._needs(),
            **self._houses.facts(),
        }

    def _about(self) -> dict[str, Any]:
        """Describe this process for a page."""
        names = ("client", "folder", "since")
        clients = [{name: visit.fields()[name] for name in names} for visit in self._visits]
        return {"began": self._began, "clients": clients}

    # The end

    async def _needs(self) -> list[str]:
        """Explain why this process is needed even without clients, as sentences."""
        http = self._http.needs() if self._http else []
        return [*http, *await self.watching.needs(), *await self._houses.needs()]

    async def _check_needs(self) -> None:
        while True:
            await asyncio.sleep(min(CHECK_EVERY_S, self._idle_s / 4))
            if self._server and not self._is_in_place():
                log.info("the socket was taken away")
                self._stopped.set()
            if self._lives_on or self._connections or await self._is_needed():
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > self._idle_s:
                log.info("nothing to do")
                self._stopped.set()

    async def _is_needed(self) -> bool:
        try:
            return bool(await self._needs())
        # If a need cannot be determined, assume it exists; and keep looking.
        except Exception:
            log.exception("unable to learn whether this process is needed")
            return True

    async def _tidy_up(self) -> None:
        """Take over watches and transfers of processes that have ended."""
        if self._lives_on:
            # After a restart of this computer no client may come to continue what was begun before.
            own = {"config": str(self.watching.config or ""), "environ": dict(os.environ)}
            if trouble := await self._take_up(own):
                log.warning("%s", trouble)
        while True:
            await asyncio.sleep(TAKE_UP_EVERY_S)
            try:
                await self.watching.take_up()
                await self._houses.take_up()
            except (SandboxError, OSError) as problem:
                log.warning("%s", problem)

    def _is_in_place(self) -> bool:
        """Whether the lock and the socket on disk are still this hub's, not a successor's."""
        locked = os.fstat(self._lock)
        is_locked = _identity_of(self._place.lock) == (locked.st_dev, locked.st_ino)
        return is_locked and _identity_of(self._place.socket) == self._address

    def _withdraw(self) -> None:
        """Remove the socket: new fronts start another hub, and those just connected see the line end and do so, too."""
        if self._is_in_place():
            with contextlib.suppress(OSError):
                os.unlink(self._place.socket)


def _identity_of(path: str) -> tuple[int, int] | None:
    """Device and inode, which distinguish a file from one that replaced it."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def idle_limit() -> float:
    """Return how long an idle hub stays; an invalid value in the variable is ignored."""
    try:
        return max(LEAST_IDLE_S, float(os.environ.get(IDLE_VARIABLE) or IDLE_S))
    except ValueError:
        return IDLE_S


def begin_log(file: Path) -> None:
    """Log to a private file of bounded size. Raises OSError."""
    from ..fronts.mcp.logs import OwnLogs
    from ..services.watchdog.daemon import OURS, OwnLog

    logging.root.addHandler(OwnLogs(OwnLog(file)))
    logging.root.setLevel(logging.WARNING)
    logging.getLogger(OURS).setLevel(logging.WARNING)
    for part in LOGGED:
        logging.getLogger(f"{OURS}.{part}").setLevel(logging.INFO)


def resident() -> int:
    """Memory of this process in bytes; where the system does not report it, its maximum so far."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def load_everything() -> None:
    """Import all modules that calls may need, so that no call waits, and an update of our files does no harm.

    One after another, on the event loop, and in turn with a thread that loads the SDK for a client: two threads that
    import modules at once can fail, because each holds what the other waits for. The first client is served first.
    """
    import pkgutil

    await asyncio.sleep(LOAD_AFTER_S)
    from ..fronts.mcp.prefetch import turn

    # httpx does without its own command line, for which it would load rich and pygments.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    skipped = ("__main__", ".far", ".frameworks")
    try:
        for found in pkgutil.walk_packages(remote_sandbox_mcp.__path__, "remote_sandbox_mcp."):
            if not any(part in found.name for part in skipped):
                while not turn.acquire(blocking=False):  # noqa: ASYNC110 a thread holds it, and logins do not wait
                    await asyncio.sleep(LOAD_PAUSE_S)
                try:
                    importlib.import_module(found.name)
                finally:
                    turn.release()
                await asyncio.sleep(LOAD_PAUSE_S)
    finally:
        loading.end()
