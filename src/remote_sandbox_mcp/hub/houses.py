"""What the hub holds for its sessions: an app for each configuration, and machines that several of these share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..app import App, compose
from ..config.load import load
from ..config.schema import Configuration
from ..core.machine import LocalPlace, Machine
from ..fleet import Member

if TYPE_CHECKING:
    from ..mcp_server.server import SandboxServer

log = logging.getLogger(__name__)


class Recorded(Mapping[str, str]):
    """A client's variables, and which of them its configuration has asked for."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return self._environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)

    @property
    def seen(self) -> dict[str, str | None]:
        return {name: self._environ.get(name) for name in self.asked}


@dataclass(eq=False)
class House:
    """One configuration, in use by any number of sessions."""

    configuration: Configuration
    environ: Recorded
    app: App
    members: tuple[Member, ...]
    sessions: int = 0
    reviving: asyncio.Task[None] | None = None
    _server: list[SandboxServer] = field(default_factory=list)

    def is_for(self, configuration: Configuration, environ: Recorded) -> bool:
        return self.configuration == configuration and self.environ.seen == environ.seen

    @property
    def server(self) -> SandboxServer:
        if not self._server:
            from ..mcp_server.clients import Conversations
            from ..mcp_server.server import build

            self._server.append(build(self.app, Conversations()))
        return self._server[0]


@dataclass(eq=False)
class Shared:
    """A machine that is open, or may be, for all who have configured the very same one."""

    what: Machine | LocalPlace
    seen: Mapping[str, str | None]
    member: Member
    users: int = 0


class Houses:
    """All of them. What nobody uses any more stays open until the hub ends, or its configuration goes."""

    def __init__(self) -> None:
        self._houses: list[House] = []
        # Has this process do the watchdog's work.
        self.begin_watching: Callable[[Path | None], Awaitable[None]] | None = None
        self._shared: list[Shared] = []

    async def enter(self, config: Path | None, environ: Mapping[str, str], folder: str) -> House:
        """The house of a session's configuration, which is read anew for each."""
        recorded = Recorded(environ)
        configuration = await asyncio.to_thread(load, config, recorded, folder)
        found = next((it for it in self._houses if it.is_for(configuration, recorded)), None)
        if found is None:
            found = self._build(configuration, recorded)
            self._houses.append(found)
        found.sessions += 1
        return found

    def leave_house(self, house: House) -> None:
        house.sessions -= 1

    def _build(self, configuration: Configuration, environ: Recorded) -> House:
        from ..mcp_server.watchdog import revive

        members = tuple(self._member(machine, environ) for machine in configuration.machines)
        local = (self._member(configuration.local, environ),) if configuration.local else ()
        app = compose(configuration, members=(*members, *local))
        app.begin_watching = self.begin_watching
        house = House(configuration, environ, app, (*members, *local))
        house.reviving = asyncio.ensure_future(revive(app))
        return house

    def _member(self, what: Machine | LocalPlace, environ: Recorded) -> Member:
        from ..members import local_member, machine_member

        for shared in self._shared:
            if shared.what == what and shared.seen == environ.seen:
                return shared.member
        member = machine_member(what) if isinstance(what, Machine) else local_member(what)
        self._shared.append(Shared(what, environ.seen, member))
        return member

    # Of all

    def facts(self) -> dict[str, Any]:
        members = {id(member): member for house in self._houses for member in house.members}
        return {
            "sessions": sum(house.sessions for house in self._houses),
            "configurations": len(self._houses),
            "connected": sorted(member.name for member in members.values() if member.sandbox is not None),
        }

    async def needs(self) -> list[str]:
        """What needs this process though no client does, as sentences; a machine may be in several houses."""
        return list(dict.fromkeys([need for house in self._houses for need in await house.app.needs()]))

    async def is_busy(self) -> bool:
        return bool(await self.needs())

    async def leave(self, limit_s: float) -> None:
        """Close what can be closed in that time."""
        closing = [asyncio.ensure_future(house.app.close()) for house in self._houses]
        with contextlib.suppress(Exception):
            if closing:
                await asyncio.wait(closing, timeout=limit_s)
