"""Disposable sandboxes as others see them: what needs none is answered here, and the service loaded with the first."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core import check
from ...core.errors import BadArgument, ConfigError, SandboxError
from ...core.jobs.cards import CardRequest
from ...core.jobs.placement import ANY, place_of
from ...core.lazy import lazy
from ...core.sandboxes.disposable import Disposable, DisposableRules, Limits, Offer, ProviderChoice, SandboxOrder
from ...local.waiting import Chores, within
from ..fleet import Fleet, Member

if TYPE_CHECKING:
    from pathlib import Path

    from ...local.store.disposables import DisposableRows
    from .service import DisposableService

# Chooses the one of these machines that has such cards free.
Best = Callable[[Sequence[str], "CardRequest | None"], Awaitable[str]]
# How often the file's counter of changes is looked at.
POLL_EVERY_S = 1.0
# How often providers are asked: only they know of a container that was killed or paused by somebody else.
ASK_S = 2.0
# Told of the ids and names of those that are new, over, or stand otherwise.
Announce = Callable[[Collection[str]], Awaitable[None]]
Standings = Mapping[str, tuple[str, str]]


class Disposables:
    """One user's disposable sandboxes. While it lives, each is a member of the fleet by id and name.

    The verbs on one of them are those of `service`. Names are ids or names. Every method raises SandboxError with one
    sentence; UnknownSandbox says what became of one that is over. Modules are imported, and providers made, with the
    first sandbox.
    """

    def __init__(
        self,
        fleet: Fleet,
        rules: DisposableRules,
        offers: Mapping[str, Offer],
        rows: Callable[[], DisposableRows],
        *,
        mark: Callable[[], Path] | None = None,
        clock: Callable[[], float] = time.time,
        configuration: str = "",
        best: Best | None = None,
    ) -> None:
        """`mark` (store.mark) is a file that exists while any lives; without it, no database is opened.

        `configuration` limits what is visible to sandboxes made under it; an empty one sees all.
        """
        self._fleet = fleet
        self._rules = rules
        self._offers = offers
        self._make_rows = rows
        self._mark = mark
        self._clock = clock
        self._configuration = configuration
        self._best = best
        self._listeners: list[Callable[[], None]] = []
        self._followers = Chores("following the disposable sandboxes")
        fleet.find = self.find_member

    @lazy
    def _rows(self) -> DisposableRows:
        return self._make_rows()

    @lazy
    def service(self) -> DisposableService:
        from .registry import Registry
        from .service import DisposableService

        registry = Registry(self._fleet, self._offers, self._rows, self._clock, self._configuration)
        registry.listeners = self._listeners
        return DisposableService(registry, self._rules)

    def reconfigure(self, rules: DisposableRules, offers: Mapping[str, Offer]) -> None:
        """Use these from now on, also for existing sandboxes; providers whose settings differ are made again."""
        self._rules, self._offers = rules, offers
        if Disposables.service.made(self):
            self.service.reconfigure(rules, offers)

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call it when the list changes, by whichever process; returns a function that ends that."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def follow(self, announce: Announce) -> None:
        """From now until `close`, tell which are new, over, or stand otherwise, whichever process has changed them."""
        changes = Changes(self._service_if_any, announce)
        self.on_change(changes.stir)
        self._followers.start(changes.follow())

    async def needs(self) -> Sequence[str]:
        """Sandboxes whose processes end with this process, as sentences."""
        return await self.service.needs() if Disposables.service.made(self) else ()

    @property
    def has_any(self) -> bool:
        """Whether this process looks after a live one."""
        service = Disposables.service.made(self)
        return service is not None and bool(service.registry.lives)

    # From the server's start to its end

    async def adopt(self) -> None:
        """At a start: make live ones members again; what crashed processes left is swept in the background."""
        if self._rules.pool or not self._is_empty():
            await self.service.adopt()

    async def sweep(self) -> None:
        """Delete those that are expired and whose process has ended; leave all others."""
        if not self._is_empty():
            await self.service.tending.sweep_expired()

    async def close(self) -> None:
        """Close all connections within seconds; each sandbox lives on until it is deleted or expires."""
        await self._followers.close()
        if Disposables.service.made(self):
            await self.service.close()
        elif Disposables._rows.made(self):
            self._rows.database.close()

    # Verbs

    async def create(self, order: SandboxOrder) -> Disposable:
        """A new one, ready for use or pending. Raises BadArgument, ConfigError, and what its provider says."""
        _, places = place_of(order.provider)
        if places:
            order = replace(order, provider=await self._best_machine(places, order.limits))
        return await self.service.create(order)

    async def _best_machine(self, names: Sequence[str], limits: Limits) -> str:
        """The one of these machines, or of all that make sandboxes, that fits best. Raises BadArgument or NoCards."""
        made_on = dict.fromkeys(offer.traits.machine for offer in self._offers.values() if offer.traits.machine)
        machines = [name for name in made_on if name in names or ANY in names]
        if limits.cards:
            raise BadArgument("on any takes a number of GPUs; cards and types are named on a machine of your choice")
        if self._best is None or not machines:
            raise BadArgument("on any stands for machines with docker, podman or slurm, and there is none")
        if ANY not in names and (others := [name for name in names if name not in made_on]):
            raise BadArgument(f"on: no sandboxes are made on {', '.join(others)[:80]}, only on {', '.join(made_on)}")
        return await self._best(machines, CardRequest(limits.gpus, limits.gpu_memory_mb) if limits.gpus else None)

    def give_up(self, name: str) -> None:
        """Delete one whose caller has left, in the background."""
        self.service.registry.spawn(self.service.delete(name))

    async def restore(self, snapshot: str, order: SandboxOrder) -> Disposable:
        """A new one with the files of a snapshot."""
        check.text_argument("snapshot", snapshot)
        return await self.service.create(replace(order, image=snapshot))

    def choices(self) -> Sequence[ProviderChoice]:
        """List the providers that can make a sandbox here; the one that is used where none is named is marked."""
        from .policy import default_image, provider_for

        offered = {kind: offer.traits for kind, offer in self._offers.items()}
        try:
            usual = provider_for("", self._rules, offered)
        except ConfigError:
            usual = ""
        return [ProviderChoice(kind, default_image(it, self._rules), it, kind == usual) for kind, it in offered.items()]

    async def find(self, name: str) -> Disposable | None:
        """The recorded sandbox, if it lives; None for a machine. Asks no provider."""
        find = functools.partial(self._rows.find, name, self._configuration)
        kept = await asyncio.to_thread(find) if self._rows.exists() else None
        return kept.disposable if kept and not kept.ended else None

    async def is_over(self, disposable_id: str) -> bool:
        """Whether it has ended, under whichever configuration it was made."""
        kept = await asyncio.to_thread(self._rows.get, disposable_id) if self._rows.exists() else None
        return kept is None or bool(kept.ended)

    async def list(self) -> Sequence[Disposable]:
        """All live ones, oldest first, with their providers' answers; `notes` name a provider that does not answer."""
        return () if self._is_empty() else await self.service.list()

    async def troubles(self, listed: Sequence[Disposable]) -> Sequence[str]:
        """Explain why a configured platform cannot make sandboxes now; those in `listed` say so in their `notes`."""
        has_platform = any(offer.traits.is_platform for offer in self._offers.values())
        return await self.service.troubles(listed) if has_platform else ()

    async def images(self) -> Mapping[str, Sequence[str]]:
        """The images that machines with an engine have already, by the machine's name; none of one that cannot say."""
        kinds = [kind for kind, offer in self._offers.items() if offer.traits.has_cards and offer.traits.machine]
        return await self.service.images(kinds) if kinds else {}

    def _service_if_any(self) -> DisposableService | None:
        """Return the service unless no sandbox lives, or has lived since the start: that spares loading it."""
        return self.service if Disposables.service.made(self) or not self._is_empty() else None

    def _is_empty(self) -> bool:
        return not self._mark().exists() if self._mark else self._rows.is_empty()

    def find_member(self, name: str) -> Member | None:
        """Called by the fleet for an unknown name."""
        return self.service.registry.find_member(name) if self._rows.exists() else None


class Changes:
    """Compares how all of them stand with how they stood before. Where there are none, that is one look for a file."""

    def __init__(self, service: Callable[[], DisposableService | None], announce: Announce) -> None:
        """`service` gives nothing as long as there was no sandbox: what looks after them is loaded with the first."""
        self._service = service
        self._announce = announce
        self._standings: Standings = {}
        self._version = -1
        self._news = asyncio.Event()

    def stir(self) -> None:
        """Announce a change in this process."""
        self._news.set()

    async def follow(self) -> None:
        """Until it is cancelled."""
        asking, ask_at = Chores("the look at disposable sandboxes"), 0.0
        try:
            with suppress(SandboxError):
                self._standings = await self._inspect()
            while True:
                with suppress(asyncio.TimeoutError):
                    await within(self._news.wait(), POLL_EVERY_S)
                # The file may be unreadable for a moment; the next look finds what has changed meanwhile.
                with suppress(SandboxError):
                    await self._compare()
                # Beside the loop: a provider that is slow to answer holds up no news of others.
                if self._standings and not len(asking) and time.monotonic() >= ask_at:
                    asking.start(self._ask())
                    ask_at = time.monotonic() + ASK_S
        finally:
            await asking.close()

    async def _compare(self) -> None:
        before, now = self._standings, await self._inspect()
        if changed := dict(before.items() ^ now.items()):
            self._standings = now
            names = {name for found in (before, now) for id, (name, _) in found.items() if id in changed and name}
            await self._announce(changed.keys() | names)

    async def _inspect(self) -> Standings:
        service = self._service()
        if service is None:
            self._news.clear()
            return {}
        version = await asyncio.to_thread(service.registry.rows.database.version)
        if version == self._version and not self._news.is_set():
            return self._standings
        self._version = version
        self._news.clear()
        return await service.tending.poll()

    async def _ask(self) -> None:
        """Ask the providers about the sandboxes, and record their answers."""
        if service := self._service():
            await service.list()
            self.stir()
