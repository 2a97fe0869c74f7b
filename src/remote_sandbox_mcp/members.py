"""What the fleet is made of: machines, the local sandbox, and who makes disposable ones; each loaded when needed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .config import paths
from .config.schema import Configuration, Settings
from .core.disposable import Provider
from .core.machine import LocalPlace, Machine
from .core.sandbox import Description, Sandbox
from .fleet import Member

if TYPE_CHECKING:
    from .backends.ssh.connection import Gate
    from .store.disposables import DisposableRows


class Stock:
    """The configured sandboxes of all who use this process: who has configured the very same one gets the same member.

    Machines are the same if all that they are made of is the same, secrets and what decides about them included.
    """

    def __init__(self) -> None:
        self._shelf: list[_Shared] = []

    def take(self, configuration: Configuration) -> tuple[Member, ...]:
        """Those of a configuration, in its order; to be given back."""
        return tuple(self._take(what) for what in (*configuration.machines, configuration.local) if what is not None)

    def _take(self, what: Machine | LocalPlace) -> Member:
        found = next((shared for shared in self._shelf if shared.what == what), None)
        if found is None:
            member = machine_member(what) if isinstance(what, Machine) else local_member(what)
            found = _Shared(what, member)
            self._shelf.append(found)
        found.users += 1
        return found.member

    async def give_back(self, members: Iterable[Member]) -> None:
        """Those that nobody has any more are closed."""
        given = set(map(id, members))
        for shared in self._shelf:
            shared.users -= id(shared.member) in given
        unused = [shared for shared in self._shelf if shared.users <= 0]
        self._shelf = [shared for shared in self._shelf if shared.users > 0]
        await asyncio.gather(*(shared.member.close() for shared in unused), return_exceptions=True)

    @property
    def members(self) -> list[Member]:
        return [shared.member for shared in self._shelf]


@dataclass(eq=False)
class _Shared:
    """A sandbox that is open, or may be, and how many have it."""

    what: Machine | LocalPlace
    member: Member
    users: int = 0


def machine_member(machine: Machine) -> Member:
    @functools.cache
    def gate() -> Gate:
        from .backends.ssh.connection import Gate

        return Gate(machine, paths.known_hosts_file())

    async def opener() -> Sandbox:
        from .backends.ssh.machine import open_through

        return await open_through(gate())

    description = Description(machine.name, "ssh", machine.host, machine.port, machine.login.user)
    return Member(machine.name, lambda: description, opener)


def local_member(place: LocalPlace) -> Member:
    def describe() -> Description:
        from .backends import local

        return local.describe(place)

    async def opener() -> Sandbox:
        from .backends import local

        return await local.open_local(place, paths.state_folder())

    async def why_not() -> str:
        from .backends import local

        return await local.why_not()

    return Member(place.name, describe, opener, why_not)


def disposable_rows() -> DisposableRows:
    from .store.database import STATE_FILE, Database
    from .store.disposables import DisposableRows

    return DisposableRows(Database(paths.state_folder() / STATE_FILE))


def disposable_mark() -> Path:
    from .store.mark import mark_in

    return mark_in(paths.state_folder())


def providers_of(settings: Settings) -> Mapping[str, Callable[[], Provider]]:
    """Who can make disposable sandboxes here."""

    def embedded() -> Provider:
        from .backends.embedded.provider import EmbeddedProvider

        return EmbeddedProvider(paths.state_folder(), rules=settings.rules)

    def opensandbox() -> Provider:
        from .backends.opensandbox.provider import OpenSandboxProvider

        return OpenSandboxProvider(settings.platform, settings.rules, paths.installation())

    return {"embedded": embedded} | ({"opensandbox": opensandbox} if settings.platform.server_url else {})
