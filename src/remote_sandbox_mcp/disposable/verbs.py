"""The verbs on disposable sandboxes: made, named, counted, renewed while in use, cleaned up, known again."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core import check
from ..core.disposable import Disposable, Provider, Rules, SandboxOrder
from ..fleet import Fleet, Member
from ..waiting import Chores

if TYPE_CHECKING:
    from pathlib import Path

    from ..store.disposables import DisposableRows
    from .changes import Tell
    from .service import Service

__all__ = ["Disposables"]


class Disposables:
    """One user's disposable sandboxes. Each is a member of the fleet by its id and its name while it lives.

    Names are ids or names. Every method raises SandboxError with one sentence; UnknownSandbox says what became of one
    that is over. What is needed is loaded, and providers are made, with the first sandbox.
    """

    def __init__(
        self,
        fleet: Fleet,
        rules: Rules,
        providers: Mapping[str, Callable[[], Provider]],
        rows: Callable[[], DisposableRows],
        *,
        mark: Callable[[], Path] | None = None,
        clock: Callable[[], float] = time.time,
        configuration: str = "",
    ) -> None:
        """`mark` (store.mark) is a file that is there while any lives; it spares the rows where none does.

        `configuration` (config.identity) limits what is seen to what was made under it; an empty one sees all.
        """
        self._fleet = fleet
        self._rules = rules
        self._providers = providers
        self._make_rows = rows
        self._mark = mark
        self._clock = clock
        self._configuration = configuration
        self._listeners: list[Callable[[], None]] = []
        self._followers = Chores("following the disposable sandboxes")
        fleet.find = self._look_up

    @functools.cached_property
    def _rows(self) -> DisposableRows:
        return self._make_rows()

    @functools.cached_property
    def _service(self) -> Service:
        from .registry import Known
        from .service import Service

        known = Known(self._fleet, self._providers, self._rows, self._clock, self._configuration)
        known.listeners = self._listeners
        return Service(known, self._rules)

    def reconfigure(
        self, rules: Rules, providers: Mapping[str, Callable[[], Provider]], stale: Collection[str] = ()
    ) -> None:
        """From now on these hold, also for those that there are; providers of the kinds in `stale` are made anew."""
        self._rules, self._providers = rules, providers
        if "_service" in self.__dict__:
            self._service.reconfigure(rules, providers, stale)

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call it when the list is another, whoever has changed it; what is returned ends that."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def follow(self, tell: Tell) -> None:
        """From now until `close`, tell which are new, over, or stand otherwise, whichever process has changed them."""
        from .changes import Changes

        changes = Changes(self._service_if_any, tell)
        self.on_change(changes.stir)
        self._followers.start(changes.follow())

    def needs(self) -> Sequence[str]:
        """The sandboxes whose processes end with this one."""
        return self._service.needs() if "_service" in self.__dict__ else ()

    @property
    def has_any(self) -> bool:
        """Whether one that lives is looked after here."""
        return "_service" in self.__dict__ and bool(self._service.known.lives)

    # From the server's start to its end

    async def adopt(self) -> None:
        """At a start: those that live on become members again; what crashed servers left is swept, meanwhile."""
        if self._rules.pool or not self._is_empty():
            await self._service.adopt()

    async def tend(self) -> None:
        """Look after all of them until cancelled. Begins by itself with the first, and ends at `close`."""
        await self._service.tending.tend()

    async def tick(self) -> None:
        """One round of that."""
        await self._service.tending.tick()

    async def sweep(self) -> None:
        """End those whose time is over and whose server has ended; all others are left as they are."""
        if not self._is_empty():
            await self._service.tending.sweep_expired()

    async def close(self) -> None:
        """Let go of all, within seconds: each lives on until it is deleted or its time is over."""
        await self._followers.close()
        if "_service" in self.__dict__:
            await self._service.close()
        elif "_rows" in self.__dict__:
            self._rows.database.close()

    # Verbs

    async def create(self, order: SandboxOrder) -> Disposable:
        """A new one, ready for use. Raises BadArgument, ConfigError, and what its provider says."""
        return await self._service.create(order)

    async def restore(self, snapshot: str, order: SandboxOrder) -> Disposable:
        """A new one with the files of a snapshot."""
        check.text_argument("snapshot", snapshot)
        return await self._service.create(replace(order, image=snapshot))

    async def find(self, name: str) -> Disposable | None:
        """As it is written down, if it lives; nothing for a machine. Asks nobody else."""
        find = functools.partial(self._rows.find, name, self._configuration)
        kept = await asyncio.to_thread(find) if self._rows.exists() else None
        return kept.disposable if kept and not kept.ended else None

    async def is_over(self, disposable_id: str) -> bool:
        """Whether it has ended, under whichever configuration it was made."""
        kept = await asyncio.to_thread(self._rows.get, disposable_id) if self._rows.exists() else None
        return kept is None or bool(kept.ended)

    async def get(self, name: str) -> Disposable:
        """As its provider knows it now."""
        return await self._service.get(name)

    async def list(self) -> Sequence[Disposable]:
        """All that live, oldest first, as their providers know them; `notes` tell of one that does not answer."""
        return () if self._is_empty() else await self._service.list()

    async def troubles(self, listed: Sequence[Disposable]) -> Sequence[str]:
        """Why no sandbox can be had of a configured platform now; those of `listed` have told it in their `notes`."""
        from .policy import EMBEDDED

        return await self._service.troubles(listed) if set(self._providers) - {EMBEDDED} else ()

    async def delete(self, name: str) -> Disposable:
        """End it with all that runs in it; of one that is over already `notes` say what became of it."""
        return await self._service.delete(name)

    async def renew(self, name: str, timeout_s: float) -> Disposable:
        """Let it live for so long from now on, and as long again whenever it is used."""
        return await self._service.renew(name, timeout_s)

    async def pause(self, name: str) -> Disposable:
        """Let nothing in it go on until it is resumed."""
        return await self._service.pause(name)

    async def resume(self, name: str) -> Disposable:
        """Let all of it go on."""
        return await self._service.resume(name)

    async def snapshot(self, name: str, label: str = "") -> str:
        """Keep its files; the name under which `restore` takes them."""
        return await self._service.snapshot(name, label)

    async def endpoint(self, name: str, port: int) -> str:
        """A URL under which a person on this machine reaches that port of it."""
        return await self._service.endpoint(name, port)

    def _service_if_any(self) -> Service | None:
        """Nothing where no sandbox lives, or has lived since the start: that spares loading it."""
        return self._service if "_service" in self.__dict__ or not self._is_empty() else None

    def _is_empty(self) -> bool:
        return not self._mark().exists() if self._mark else self._rows.is_empty()

    def _look_up(self, name: str) -> Member | None:
        """For a name that nobody in the fleet has."""
        return self._service.known.look_up(name) if self._rows.exists() else None
