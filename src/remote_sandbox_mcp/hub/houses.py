"""Apps of the hub for its sessions: one per configuration (a House), and machines that several share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..app import App, Stock, compose
from ..config.source import ConfigSource
from ..core.client import ClientVariables, Variables
from ..core.errors import SandboxError
from ..local.processes.process import started
from ..local.waiting import Chores
from ..services.fleet import Member
from ..services.session import Session

if TYPE_CHECKING:
    from ..fronts.mcp.logs import SessionLog
    from ..fronts.mcp.server import SandboxServer
    from ..fronts.mcp.upkeep import Upkeep
    from ..services.machine_history import MachineHistory
    from ..views.live.service import Live

log = logging.getLogger(__name__)

CHECK_EVERY_S = 2.0
# How often threads switch while the SDK is loaded.
TURN_S = 0.0005
# A process that hands its transfers to us ends within this time; how often we check that.
LEAVING_S, POLL_EVERY_S = 10.0, 0.2


class Recorded(Mapping[str, str]):
    """A client's variables, and which of them its configuration has read: all, if a program gets them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._folder = folder_of(environ)
        self._is_folder_asked = False
        self._asked: set[str] = set()
        self._is_all_asked = False

    def __getitem__(self, name: str) -> str:
        self._asked.add(name)
        return self._environ[name]

    def __iter__(self) -> Iterator[str]:
        self._is_all_asked = True
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)

    @property
    def folder(self) -> str:
        """Return where relative paths start."""
        self._is_folder_asked = True
        return self._folder

    def agrees(self, environ: Mapping[str, str]) -> bool:
        """Whether the configuration that read these variables would be the same with those."""
        if self._is_all_asked and Variables(self._environ) != Variables(environ):
            return False
        if self._is_folder_asked and self._folder != folder_of(environ):
            return False
        return all(self._environ.get(name) == environ.get(name) for name in self._asked)


def client_of(said: Mapping[str, Any], *, is_of_many: bool = False) -> tuple[Path | None, Session]:
    """Configuration file and session of a process, from its hello."""
    config = Path(str(said["config"])) if said.get("config") else None
    folder = str(said.get("folder") or "/")
    given = {str(name): str(value) for name, value in dict(said.get("environ") or {}).items()}
    environ = ClientVariables(given, folder)
    return config, Session(name=str(said.get("session") or ""), folder=folder, environ=environ, is_of_many=is_of_many)


def folder_of(environ: Mapping[str, str]) -> str:
    return str(getattr(environ, "folder", ""))


@dataclass(eq=False)
class House:
    """One configuration in use, with any number of sessions."""

    where: tuple[str, str]
    # Variables of the session for which it was made.
    first: Mapping[str, str]
    environ: Recorded
    source: ConfigSource
    app: App
    log: SessionLog
    stock: Stock
    members: Sequence[Member]
    sessions: set[Session] = field(default_factory=set)
    left_at: float = 0.0
    reviving: asyncio.Task[None] | None = None
    _making: asyncio.Task[tuple[SandboxServer, Upkeep]] | None = None
    _live: Live | None = None

    def live(self, about: Callable[[], Mapping[str, Any]]) -> Live:
        """Return the live view of this configuration, for all pages that show it; made once."""
        from ..views.live.service import Live

        self._live = self._live or Live(self.app, about)
        return self._live

    @property
    def is_made(self) -> bool:
        return self._making is not None and self._making.done()

    async def made(self) -> tuple[SandboxServer, Upkeep]:
        """The server for its sessions, made once; the SDK may have to be loaded for it."""
        self._making = self._making or asyncio.ensure_future(self._make())
        return await asyncio.shield(self._making)

    async def _make(self) -> tuple[SandboxServer, Upkeep]:
        from ..fronts.mcp.prefetch import load

        # Short turns, so that logins and other clients do not wait for the import.
        turn = sys.getswitchinterval()
        sys.setswitchinterval(TURN_S)
        await asyncio.to_thread(load, ".stdio")
        sys.setswitchinterval(turn)
        from ..fronts.mcp.clients import Conversations
        from ..fronts.mcp.server import build, prepare
        from ..fronts.mcp.upkeep import Upkeep

        await prepare(self.app)
        server = build(self.app, Conversations())
        # Keeps it up to date with its files.
        upkeep = Upkeep(server, self.source, self.stock, self.members)
        upkeep.changed = self.changed
        return server, upkeep

    def is_for(self, where: tuple[str, str], recorded: Recorded, environ: Mapping[str, str]) -> bool:
        return self.where == where and self.environ.agrees(environ) and recorded.agrees(self.first)

    def changed(self) -> None:
        """The configuration has changed and may now read variables in which its sessions differ."""
        self.log.follow(self.app.settings.logging)
        for session in self.sessions:
            if not self.environ.agrees(session.environ):
                session.moved.set()

    async def is_busy(self) -> bool:
        """Whether there is work to look after even without a session."""
        has_disposables = self.app.has_disposables and self.app.disposables.has_any
        return has_disposables or await self.app.is_busy()

    async def close(self) -> None:
        if self.reviving:
            self.reviving.cancel()
        if self._live:
            await self._live.close()
        await self.app.close()
        if self._making:
            _, upkeep = await self.made()
            await upkeep.close()
        self.log.close()


class Houses:
    """All houses. One without sessions stays for a while, because clients come again, and as long as it is busy."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._houses: list[House] = []
        self._closing: set[asyncio.Future[None]] = set()
        # Makes this process the watchdog.
        self.begin_watching: Callable[[Path | None], Awaitable[None]] | None = None
        self.stock = Stock()
        # What is told of this process to those who look at what goes on.
        self.about: Callable[[], Mapping[str, Any]] = dict
        self._turn = asyncio.Lock()
        self._tidying: asyncio.Task[None] | None = None
        self._following = Chores("taking transfers over")
        self._machine_history: MachineHistory | None = None

    async def enter(self, config: Path | None, session: Session, *, refresh: bool = False) -> House:
        """The house of a session's configuration, made if needed.

        With `refresh`, one that was there before has read its files again, even if it has served no MCP client yet.
        """
        self._tidying = self._tidying or asyncio.ensure_future(self._keep_tidy())
        recorded = Recorded(session.environ)
        source = ConfigSource(config, recorded, session.folder)
        await asyncio.to_thread(source.read)
        where = (str(config or ""), source.project)
        # One at a time: two sessions that come at once must share one house.
        async with self._turn:
            house = next((it for it in self._houses if it.is_for(where, recorded, session.environ)), None)
            is_new = house is None
            if house is None:
                house = self._build(where, session.environ, recorded, source)
                self._houses.append(house)
            house.sessions.add(session)
        session.log = house.log
        is_stale = refresh and not is_new and source.current != house.source.current
        if house.is_made or is_stale:
            # A recent change of the configuration applies to this session and to all others.
            _, upkeep = await house.made()
            await upkeep.check()
        return house

    def leave_house(self, house: House, session: Session) -> None:
        house.sessions.discard(session)
        house.left_at = time.monotonic()

    def _build(
        self, where: tuple[str, str], first: Mapping[str, str], environ: Recorded, source: ConfigSource
    ) -> House:
        from ..fronts.mcp.logs import SessionLog

        members = self.stock.take(source.current)
        app = compose(source.current, members=members, are_lent=True)
        app.begin_watching = self.begin_watching
        app.sends_in_background = True
        house = House(where, first, environ, source, app, SessionLog(), self.stock, members)
        house.log.follow(app.settings.logging)
        house.reviving = asyncio.ensure_future(app.revive())
        return house

    async def take_over(self, said: Mapping[str, Any], asker: int = 0) -> None:
        """Continue the transfers of a configuration; those that `asker` still runs, as soon as it has ended."""
        config, session = client_of(said)
        house = await self.enter(config, session)
        try:
            await house.app.transfers.take_up()
        finally:
            self._following.start(self._follow(house, session, asker))

    async def _follow(self, house: House, session: Session, asker: int) -> None:
        for _ in range(round(LEAVING_S / POLL_EVERY_S) if asker else 0):
            if not await asyncio.to_thread(started, asker):
                break
            await asyncio.sleep(POLL_EVERY_S)
        with contextlib.suppress(SandboxError):
            await house.app.transfers.take_up()
        self.leave_house(house, session)

    # All houses

    async def watch_machines(self) -> None:
        """Keep how busy the machines are that are connected, whether or not anybody looks."""
        from ..services.machine_history import MachineHistory

        self._machine_history = MachineHistory()
        await self._machine_history.watch(lambda: self.stock.members)

    def present(self, identity: str) -> App | None:
        """The app of a configuration that has a session now."""
        found = (it.app for it in self._houses if it.sessions and it.app.identity == identity)
        return next(found, None)

    async def take_up(self) -> None:
        """Continue transfers of processes that died. Raises SandboxError."""
        for house in tuple(self._houses):
            await house.app.transfers.take_up()

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(min(CHECK_EVERY_S, self._idle_s / 4))
            try:
                await self.tidy()
            except Exception:
                # One failure must not end this loop, which closes unused machines as long as the hub lives.
                log.exception("closing what nobody uses failed")

    async def tidy(self) -> None:
        """Close houses that have been empty for a while, and machines that are in no other house."""
        for house in tuple(self._houses):
            is_left = not house.sessions and time.monotonic() - house.left_at > self._idle_s
            # No await between the last check and closing, so that no session can enter.
            if is_left and not await house.is_busy() and not house.sessions:
                self._houses.remove(house)
                self._closing.add(asyncio.ensure_future(house.close()))
        # Kept, so that a hub that ends meanwhile waits for them.
        try:
            await asyncio.gather(*self._closing)
        finally:
            self._closing.clear()

    def facts(self) -> dict[str, Any]:
        return {
            "sessions": sum(len(house.sessions) for house in self._houses),
            "configurations": len(self._houses),
            "connected": sorted(member.name for member in self.stock.members if member.sandbox is not None),
        }

    async def needs(self) -> list[str]:
        """Explain why this process is needed even without clients, as sentences; a machine may be in several houses."""
        return list(dict.fromkeys([need for house in self._houses for need in await house.app.needs()]))

    async def leave(self, limit_s: float) -> None:
        """Close what can be closed in that time."""
        closing = [*self._closing, *(asyncio.ensure_future(house.close()) for house in self._houses)]
        if self._machine_history:
            closing.append(asyncio.ensure_future(self._machine_history.close()))
        with contextlib.suppress(Exception):
            if closing:
                await asyncio.wait(closing, timeout=limit_s)
