"""The watchdog as a service of this system: which kind; install, remove, status."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.errors import SandboxError
from ...core.jobs.watch import Status
from ...local.processes.locks import LockHolder, holder
from ...local.processes.programs import find_helper
from ...local.store.database import STATE_FILE, Database
from ...local.store.waiting import WaitingRows
from ...local.store.watches import Watches
from . import launchd, systemd
from .daemon import LOCK_FILE, LOG_FILE
from .ensure import InHub
from .manager import Facts, Kind, Program, Service, is_passing, make_program, which

# A process ends within two seconds of being told to.
ENDING_S = 4.0
STARTING_S = 10.0
# Without a heartbeat (two per minute) for this long, it counts as dead.
SILENT_S = 120.0
CACHED = (
    "It runs from the cache of uvx, and no more when that is cleaned; to keep it: uv tool install . in its checkout, "
    "and then: remote-sandbox-mcp watchdog install"
)


@dataclass(frozen=True, kw_only=True)
class WatchdogStatus:
    """State of the watchdog. Times are seconds since the epoch; None is unknown or not applicable."""

    kind: str
    installed: bool
    running: bool
    pid: int | None
    last_beat: float | None
    database: Path
    active: int
    lingering: bool | None
    log_file: Path
    # Whether the watchdog's process also serves clients.
    in_hub: bool | None = None
    notes: tuple[str, ...] = ()


def service_for(program: Program) -> Service:
    """The service of this system."""
    # An installed service is reported even if its manager cannot be reached at the moment.
    has_systemd = bool(find_helper("systemctl")) and (
        systemd.is_running(program.environ) or systemd.Systemd(program).is_installed()
    )
    kinds: dict[Kind, Callable[[Program], Service]] = {
        "launchd": launchd.Launchd,
        "systemd": systemd.Systemd,
        "hub": InHub,
    }
    return kinds[which(sys.platform, has_systemd, bool(find_helper("launchctl")))](program)


async def install(state: Path, config: Path | None = None, *, start_now: bool = True) -> WatchdogStatus:
    """Make the watchdog run from now on, as a service where possible. Raises SandboxError."""
    program = make_program(state, config)
    service = service_for(program)
    start_now = start_now and not await _is_in_place(service)
    if start_now:
        # A watchdog that was started without a service would keep the lock.
        await end_other(state, (await service.facts()).pid if service.is_installed() else 0)
    await service.install(start_now)
    if start_now:
        await until(lambda: bool((found := holder(state / LOCK_FILE)) and found.pid), STARTING_S)
    stands = await _status(service, state)
    return replace(stands, notes=(*stands.notes, CACHED)) if stands.installed and is_passing(program) else stands


async def _is_in_place(service: Service) -> bool:
    """Whether there is nothing to start.

    The service may be this very process, which could not answer if it restarted itself; or there is no service manager,
    and a watchdog runs already.
    """
    pid = (await service.facts()).pid
    return pid == os.getpid() or (service.kind == InHub.kind and pid != 0)


async def remove(state: Path) -> WatchdogStatus:
    """Make it stop, and remove the service. Raises SandboxError."""
    service = service_for(make_program(state, None))
    await service.remove()
    await end_other(state, 0)
    return await _status(service, state)


async def status(state: Path) -> WatchdogStatus:
    """The watchdog's state; never raises: what could not be determined is in the notes."""
    return await _status(service_for(make_program(state, None)), state)


async def end_other(state: Path, spared: int) -> None:
    """Make the process that holds the lock release it, unless it is `spared`: a service ends, a hub goes on without it.

    Raises SandboxError where neither happens.
    """
    from ..hub_contact.asking import let_go_of_watchdog

    found = holder(state / LOCK_FILE)
    if found is None or not found.is_alive() or found.pid == spared:
        return
    # In a thread, because the hub may be this very process.
    if not await asyncio.to_thread(let_go_of_watchdog, found.pid):
        with suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGTERM)
    if not await until(lambda: not (found.is_alive() and holder(state / LOCK_FILE)), ENDING_S):
        raise SandboxError(f"the watchdog that runs as process {found.pid} does not end; run: kill -9 {found.pid}")


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def _status(service: Service, state: Path) -> WatchdogStatus:
    found, facts, installed = holder(state / LOCK_FILE), await service.facts(), service.is_installed()
    beat, active, trouble = await asyncio.to_thread(from_database, state)
    lines = notes(installed, facts, found, beat, active, time.time())
    hub_log = await asyncio.to_thread(_log_of_hub, found.pid) if found and found.pid else ""
    return WatchdogStatus(
        kind=service.kind, installed=installed, running=found is not None, pid=found.pid or None if found else None,
        last_beat=beat, database=state / STATE_FILE, active=active, lingering=facts.lingering,
        log_file=Path(hub_log) if hub_log else _usual_log(state, is_service=installed or found is not None),
        in_hub=True if hub_log else None, notes=(*lines, *filter(None, [trouble])),
    )  # fmt: skip


def notes(
    installed: bool, facts: Facts, found: LockHolder | None, beat: float | None, active: int, now: float
) -> list[str]:
    """Build the notes for the operator, as sentences."""
    lines = []
    if installed and facts.lingering is False:
        lines.append("Lingering is off, so it ends when you log out; to keep it running: loginctl enable-linger")
    if installed and not facts.enabled:
        lines.append("It is installed but not enabled; to put that right: remote-sandbox-mcp watchdog install")
    if found and facts.pid and found.pid not in (0, facts.pid):
        lines.append(f"Process {found.pid} was started without the service; the service takes over when it ends.")
    if found and beat is not None and now - beat > SILENT_S:
        lines.append(f"It has given no sign of life for {now - beat:.0f} s; its log may say why.")
    if not found and active:
        lines.append("Nobody looks after the active watches; to start it: remote-sandbox-mcp watchdog install")
    return lines


def _usual_log(state: Path, *, is_service: bool) -> Path:
    """The log file that it uses, or will use."""
    from ..hub_contact.place import HubPlace

    return state / LOG_FILE if is_service else Path(HubPlace(os.environ).log)


def _log_of_hub(pid: int) -> str:
    """The log file of a process that is a hub; empty where it is none."""
    from ..hub_contact.asking import ask_hub, hub_of
    from ..hub_contact.place import NoHub

    place = hub_of(pid)
    if place is None:
        return ""
    try:
        return str(ask_hub(place, "status").get("log") or place.log)
    except (OSError, NoHub, ValueError):
        return place.log


def from_database(state: Path) -> tuple[float | None, int, str]:
    """The last heartbeat, the number of active watches, and why these are unknown."""
    if not (state / STATE_FILE).exists():
        return None, 0, ""
    database = Database(state / STATE_FILE)
    try:
        watches = Watches(database)
        beat = watches.last_beat()
        # A job that waits for a place is looked after as well.
        active = watches.counts().get(Status.ACTIVE.value, 0) + len(WaitingRows(database).open())
        return beat.at if beat else None, active, ""
    except SandboxError as problem:
        return None, 0, str(problem)
    finally:
        database.close()
