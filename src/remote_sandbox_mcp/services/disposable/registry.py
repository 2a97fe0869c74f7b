"""Registry of live disposable sandboxes: their rows, providers and places in the fleet, and how they stand."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ...core.errors import ConfigError, SandboxError, UnknownSandbox
from ...core.sandboxes.disposable import PENDING, Disposable, DisposableRules, Offer, Provider, Traits
from ...core.sandboxes.sandbox import Sandbox
from ...local.processes import process
from ...local.store.disposables import CREATING, ENDING, OVER, PAUSED, RUNNING, DisposableRows, Kept, Owner
from ...local.waiting import Chores, within
from ..fleet import Fleet, Member
from .lease import CHECK_S, Life, Tended
from .policy import SandboxFate, ending_text, fate, is_visible

log = logging.getLogger(__name__)
# A provider that takes longer is reported as not answering; the others are listed meanwhile.
LIST_S = 3.0


class Registry:
    """Registry of the sandboxes that this process may use. Providers are made when first needed."""

    def __init__(
        self,
        fleet: Fleet,
        offers: Mapping[str, Offer],
        rows: DisposableRows,
        clock: Callable[[], float] = time.time,
        configuration: str = "",
    ) -> None:
        self.fleet = fleet
        self.rows = rows
        self.now = clock
        self.configuration = configuration
        self.lives: dict[str, Life] = {}
        self.listeners: list[Callable[[], None]] = []
        # Called for each new member.
        self.admitted: Callable[[], None] = lambda: None
        # Ids of ended sandboxes: rows read before the end must not bring them back.
        self._over: set[str] = set()
        self._offers = offers
        self._providers: dict[str, Provider] = {}
        self._replaced: list[Provider] = []
        self._chores = Chores("work on a disposable sandbox")

    # What it stands on

    @functools.cached_property
    def me(self) -> Owner:
        return Owner(os.getpid(), process.started(os.getpid()))

    @property
    def offered(self) -> Mapping[str, Traits]:
        """The kinds of providers that can be had, and what each is like."""
        return {kind: offer.traits for kind, offer in self._offers.items()}

    def provider(self, kind: str) -> Provider:
        """Raises ConfigError where it is no longer configured."""
        if kind not in self._offers:
            raise ConfigError(
                f"the provider {kind!r} is not configured here; configure it again to reach its sandboxes"
            )
        if kind not in self._providers:
            self._providers[kind] = self._offers[kind].make()
        return self._providers[kind]

    def reconfigure(self, rules: DisposableRules, offers: Mapping[str, Offer]) -> None:
        """Use these providers. A replaced one is closed at the end, because its sandboxes may be in use."""
        before, self._offers = self._offers, offers
        stale = [
            kind for kind in self._providers if kind not in offers or offers[kind].settings != before[kind].settings
        ]
        self._replaced += [self._providers.pop(kind) for kind in stale]
        for provider in self._providers.values():
            provider.rules = rules

    def provider_of(self, kept: Kept) -> Provider:
        return self.provider(kept.disposable.provider)

    def changed(self) -> None:
        for listener in tuple(self.listeners):
            listener()

    def planned(self, plan: Disposable, timeout_s: float, pool: str = "") -> Kept:
        """A sandbox of this process that is about to be made."""
        return Kept(
            disposable=plan, timeout_s=timeout_s, pool=pool, owner=self.me, idle_since=plan.created,
            configuration=self.configuration,
        )  # fmt: skip

    # Background work

    def spawn(self, work: Awaitable[object]) -> None:
        """Run in the background; failures are logged."""
        self._chores.start(work)

    async def settle(self, seconds: float) -> None:
        """Wait for background work; cancel what has not ended by then."""
        await self._chores.settle(seconds)

    async def close(self) -> None:
        """Close the providers and the database."""
        made, self._providers = (*self._providers.values(), *self._replaced), {}
        await asyncio.gather(*(provider.close() for provider in made), return_exceptions=True)
        await asyncio.to_thread(self.rows.database.close)

    # Places in the fleet

    def life_of(self, kept: Kept) -> Life:
        """The Life of a sandbox: the existing one, or a new one that is not in the fleet yet."""
        return self.lives.get(kept.id) or Life(kept, self)

    def admit(self, kept: Kept) -> Life:
        """Add it to the fleet, by id and name, so that every tool finds it; opens nothing."""
        life = self.life_of(kept)
        if kept.id not in self.lives and kept.id not in self._over:
            self.lives[kept.id] = life
            self.fleet.add(Member(kept.id, life.describe, functools.partial(_open, life)), kept.disposable.name)
            self.admitted()
        return life

    def drop(self, disposable_id: str) -> None:
        """Remove an ended sandbox from the fleet."""
        self._over.add(disposable_id)
        life = self.lives.pop(disposable_id, None)
        if life is None:
            return
        member = self.fleet.remove(disposable_id)
        if member is not None:
            self.spawn(asyncio.gather(member.close(), life.close(), return_exceptions=True))
        self.changed()

    def find_member(self, name: str) -> Member | None:
        """For a name that is not in the fleet: a sandbox of another process, or an error with what became of it."""
        if (kept := self.rows.find(name, self.configuration)) is None:
            return None
        if kept.ended:
            raise UnknownSandbox(ending_text(kept.disposable.title, kept.why, kept.ended))
        self.admit_all([kept])
        if kept.id not in self.lives:
            raise UnknownSandbox(
                f"the sandbox {kept.disposable.title} cannot be used now: another server (process {kept.owner.pid}) is "
                f"{'making' if kept.disposable.status == CREATING else 'ending'} it; try again in a moment"
            )
        return self.fleet.member(kept.id)

    def admit_all(self, all_kept: Iterable[Kept]) -> dict[str, SandboxFate]:
        """Add those that can be used here to the fleet; returns the fate of each."""
        fates = self.fates(all_kept := tuple(all_kept))
        for kept in all_kept:
            usable = fates[kept.id] in (SandboxFate.MINE, SandboxFate.SHARED, SandboxFate.INHERIT) and is_visible(
                kept, self.configuration
            )
            if usable and not kept.pool and kept.disposable.status != CREATING:
                self.admit(kept)
        return fates

    def fates(self, all_kept: Iterable[Kept]) -> dict[str, SandboxFate]:
        all_kept = tuple(all_kept)
        owners = {kept.owner for kept in all_kept}
        living = frozenset(it for it in owners if it == self.me or process.is_alive(it.pid, it.birth))
        return {kept.id: fate(kept, self.me, living, self.now(), self.configuration) for kept in all_kept}

    async def find(self, name: str) -> Kept:
        """A live or ended sandbox by id or name; those of other configurations are invisible.

        Raises UnknownSandbox.
        """
        kept = await asyncio.to_thread(self.rows.find, name, self.configuration) if self.rows.exists() else None
        if kept is None:
            why = "is a machine and no disposable one" if name in self.fleet.names else "was never made, or long ago"
            raise UnknownSandbox(f"the sandbox {name[:80]!r} {why}; list_sandboxes shows those that there are")
        return kept


async def _open(life: Life) -> Sandbox:
    async with life.explaining():
        return Tended(await life.open_raw(), life)


Seen = Mapping[str, Disposable] | str


async def survey(registry: Registry, living: Sequence[Kept]) -> list[Disposable]:
    """All sandboxes in use, with their providers' current answers; a provider that does not answer delays no other."""
    held = [kept for kept in living if not kept.pool and kept.disposable.status != ENDING]
    kinds = sorted({kept.disposable.provider for kept in held})
    answers = dict(zip(kinds, await asyncio.gather(*(_ask(registry, kind) for kind in kinds)), strict=True))
    views = await asyncio.gather(*(_view(registry, kept, answers[kept.disposable.provider]) for kept in held))
    return [view for view in views if view.status not in OVER]


async def inspect(registry: Registry, kept: Kept) -> Disposable:
    """The current state of one sandbox."""
    if kept.disposable.status in (CREATING, ENDING):
        return kept.disposable
    try:
        seen = await within(registry.provider_of(kept).inspect(kept.disposable), CHECK_S)
    except (SandboxError, asyncio.TimeoutError) as problem:
        return _doubtful(kept, str(problem) or f"no answer within {CHECK_S:g} s")
    return await _note(registry, kept, seen)


async def trouble(registry: Registry, kind: str) -> str:
    """Explain why a provider cannot make sandboxes now; empty where it answers."""
    seen = await _ask(registry, kind)
    return seen if isinstance(seen, str) else ""


async def _ask(registry: Registry, kind: str) -> Seen:
    try:
        provider = registry.provider(kind)
        return {it.id: it for it in await within(provider.list(), LIST_S)}
    except SandboxError as problem:
        return str(problem)
    except asyncio.TimeoutError:
        return f"{provider.where} has not answered within {LIST_S:g} s"


async def _view(registry: Registry, kept: Kept, seen: Seen) -> Disposable:
    if kept.disposable.status == CREATING:
        return kept.disposable
    if isinstance(seen, str):
        return _doubtful(kept, seen)
    if kept.id in seen:
        return await _note(registry, kept, seen[kept.id])
    # Missing from the list is no proof that it is gone.
    return await inspect(registry, kept)


def _doubtful(kept: Kept, why: str) -> Disposable:
    it = kept.disposable
    where = f"{it.kind} on {it.machine}" if it.machine else it.provider
    return replace(it, notes=(*it.notes, f"{where} did not answer ({why}); this is what was known before"))


async def _note(registry: Registry, kept: Kept, seen: Disposable) -> Disposable:
    """Record a provider's answer."""
    it, life = replace(kept.disposable, status=seen.status, reason=seen.reason), registry.life_of(kept)
    if seen.status in OVER:
        await life.note_end(kept, seen)
    elif seen.status == RUNNING and kept.disposable.status == PENDING:
        return (await life.note_started(kept, seen)).disposable
    elif seen.status in (RUNNING, PAUSED) and seen.status != kept.disposable.status:
        await asyncio.to_thread(registry.rows.note_status, kept.id, seen.status)
        life.follow(replace(kept, disposable=it))
    return it
