"""What the fleet is made of: machines, the local sandbox, and who makes disposable ones; each loaded when needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .config import paths
from .config.schema import Settings
from .core.disposable import Provider
from .core.machine import LocalPlace, Machine
from .core.sandbox import Description, Sandbox
from .fleet import Member

if TYPE_CHECKING:
    from .backends.ssh.connection import Gate
    from .store.disposables import DisposableRows


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
