"""The verbs on disposable sandboxes, loaded with the first one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ...core import check
from ...core.errors import SandboxError, UnknownSandbox, Unreachable
from ...core.sandboxes.disposable import PENDING, Disposable, DisposableRules, Offer, SandboxOrder
from ...local.store.disposables import CREATING, ENDING, GONE, OVER, Kept
from ...local.waiting import within
from .create import Making
from .policy import DELETED, SandboxFate, ending_text, is_visible
from .reaper import DELETE_S, Tending
from .registry import Registry, inspect, survey, trouble

# Limits for closing: in general, and in addition while one is being made. Clients give a server about four seconds.
CLOSE_S, MAKING_S = 1.0, 2.5
# How often it is looked whether one that is pending has started; its provider decides how often its queue is asked.
PENDING_S = 0.2
# How long a machine may take to say which images it has.
IMAGES_S = 10.0

T = TypeVar("T")


class DisposableService:
    """Service behind Disposables."""

    def __init__(self, registry: Registry, rules: DisposableRules) -> None:
        self.registry = registry
        self.tending = Tending(registry, rules)
        self.making = Making(registry, rules, self.tending.tick)
        self.tending.pool = self.making.pool
        registry.admitted = self.tending.wake

    async def needs(self) -> Sequence[str]:
        """List the sandboxes for which the process must stay."""
        registry, now = self.registry, self.registry.now()
        own = [it for it in registry.lives.values() if it.kept.owner == registry.me and it.traits.ends_with_server]
        # One whose time is over is swept soon, and one that was deleted elsewhere is only noticed later.
        kept = {it.id for it in await asyncio.to_thread(registry.rows.living)} if own else set()
        living = [it.disposable for it in own if it.kept.id in kept and not 0 < it.disposable.expires < now]
        return [f"the sandbox {it.title} lives, and what runs in it would end" for it in living if it.status != GONE]

    def reconfigure(self, rules: DisposableRules, offers: Mapping[str, Offer]) -> None:
        """Use these rules and providers; a provider whose settings differ is made again when it is next needed."""
        self.tending.rules = self.making.rules = self.making.pool.rules = rules
        self.registry.reconfigure(rules, offers)
        self.tending.wake()

    # From the server's start to its end

    async def adopt(self) -> None:
        living = await asyncio.to_thread(self.registry.rows.living)
        self.registry.admit_all(living)
        self.making.pool.is_wanted = True
        self.tending.wake()

    async def close(self) -> None:
        await self.tending.stop()
        try:
            await within(self._let_go(), CLOSE_S + (MAKING_S if self.making.is_under_way else 0.0))
        except asyncio.TimeoutError:
            pass
        finally:
            await self.registry.settle(0)

    async def _let_go(self) -> None:
        await self.tending.leave()
        await self.making.finish(MAKING_S)
        await self.registry.settle(0.8 * CLOSE_S)
        await asyncio.gather(*(life.close() for life in self.registry.lives.values()), return_exceptions=True)
        await self.registry.close()

    # Verbs

    async def create(self, order: SandboxOrder) -> Disposable:
        made = await self.making.create(order)
        self.tending.wake()
        return made

    async def await_start(self, name: str, seconds: float, announce: Callable[[str], None]) -> Disposable:
        """Wait while it is pending, so long at most; `announce` is told why it still is. Raises UnknownSandbox."""
        until, kept = time.monotonic() + seconds, await self.registry.find(name)
        seen = await inspect(self.registry, kept)
        while seen.status == PENDING and time.monotonic() < until:
            announce(seen.reason)
            await asyncio.sleep(PENDING_S)
            kept = await self._living(name)
            seen = await inspect(self.registry, kept)
        if seen.status in OVER:
            await self._living(name)
        return seen

    async def list(self) -> Sequence[Disposable]:
        living = await asyncio.to_thread(self.registry.rows.living)
        self.registry.admit_all(living)
        return await survey(self.registry, [it for it in living if is_visible(it, self.registry.configuration)])

    async def troubles(self, listed: Sequence[Disposable]) -> Sequence[str]:
        heard = {it.provider for it in listed}
        platforms = [kind for kind, traits in self.registry.offered.items() if traits.is_platform]
        asked = [kind for kind in platforms if kind not in heard]
        return [why for why in await asyncio.gather(*(trouble(self.registry, kind) for kind in asked)) if why]

    async def images(self, kinds: Sequence[str]) -> Mapping[str, Sequence[str]]:
        async def of(kind: str) -> tuple[str, Sequence[str]]:
            machine, ask = self.registry.offered[kind].machine, getattr(self.registry.provider(kind), "images", None)
            try:
                return machine, await within(ask(), IMAGES_S) if ask else ()
            except (SandboxError, asyncio.TimeoutError):
                # That it does not answer is told in its row.
                return machine, ()

        return dict(await asyncio.gather(*map(of, kinds)))

    async def delete(self, name: str) -> Disposable:
        """Delete it with all that runs in it; for one that is over already, `notes` say what became of it."""
        kept = await self.registry.find(name)
        if kept.ended:
            return replace(
                kept.disposable, status=GONE, notes=(ending_text(kept.disposable.title, kept.why, kept.ended),)
            )
        if kept.disposable.status != CREATING:
            await self._delete(kept)
        elif self.registry.fates([kept])[kept.id] is SandboxFate.SWEEP:
            await self.tending.sweep(kept, GONE, DELETED)
        else:
            # The process that is still making it sees this, and deletes it.
            await asyncio.to_thread(self.registry.rows.claim, kept, kept.owner, ENDING, DELETED)
        return replace(kept.disposable, status=GONE)

    async def renew(self, name: str, timeout_s: float) -> Disposable:
        """Set its lifetime from now on; each use renews it for as long."""
        check.in_range("timeout", timeout_s, 1, check.LONGEST_TIMEOUT_S)
        kept = await self._living(name)
        # A run in it is never cut off, whatever was asked for.
        seconds = max(timeout_s, self.registry.life_of(kept).needs_s)
        # The provider's value: a platform has its own minimum.
        renewed = await self._ask(kept, self.registry.provider_of(kept).renew(kept.disposable, seconds))
        expires, notes = renewed.expires, renewed.notes
        await asyncio.to_thread(self.registry.rows.renewed, kept.id, expires, timeout_s)
        return replace(self._noted(replace(kept, timeout_s=timeout_s), expires=expires), notes=notes)

    async def pause(self, name: str) -> Disposable:
        """Suspend everything in it until it is resumed."""
        kept = await self._living(name)
        return await self._turn(kept, await self._ask(kept, self.registry.provider_of(kept).pause(kept.disposable)))

    async def resume(self, name: str) -> Disposable:
        """Let all of it go on."""
        kept = await self._living(name)
        return await self._turn(kept, await self._ask(kept, self.registry.provider_of(kept).resume(kept.disposable)))

    async def snapshot(self, name: str, label: str = "") -> str:
        """Keep its files; returns the name for `restore`."""
        check.text_argument("name", label, required=False)
        kept = await self._living(name)
        return await self._ask(kept, self.registry.provider_of(kept).snapshot(kept.disposable, label))

    async def endpoint(self, name: str, port: int) -> str:
        """A URL under which a person on this computer reaches that port."""
        check.in_range("port", port, 1, 65535)
        kept = await self._living(name)
        return await self._ask(kept, self.registry.provider_of(kept).endpoint(kept.disposable, port))

    # Their parts

    async def _living(self, name: str) -> Kept:
        kept = await self.registry.find(name)
        if kept.ended:
            raise UnknownSandbox(ending_text(kept.disposable.title, kept.why, kept.ended))
        return kept

    async def _ask(self, kept: Kept, work: Awaitable[T]) -> T:
        """A provider's answer; if the sandbox is gone, that is recorded."""
        life = self.registry.life_of(kept)
        async with life.explaining():
            answer = await work
        life.touch()
        return answer

    async def _delete(self, kept: Kept) -> None:
        if life := self.registry.lives.get(kept.id):
            life.ending = DELETED
        try:
            await within(self.registry.provider_of(kept).delete(kept.disposable), DELETE_S)
        except asyncio.TimeoutError:
            raise Unreachable(
                f"{kept.disposable.title} could not be deleted within {DELETE_S:g} s; try again later"
            ) from None
        await asyncio.to_thread(self.registry.rows.end, kept.id, GONE, DELETED, self.registry.now())
        self.registry.drop(kept.id)

    async def _turn(self, kept: Kept, seen: Disposable) -> Disposable:
        await asyncio.to_thread(self.registry.rows.note_status, kept.id, seen.status)
        self.registry.changed()
        return self._noted(kept, status=seen.status)

    def _noted(self, kept: Kept, *, status: str = "", expires: float = 0.0) -> Disposable:
        """The sandbox with values that were just written, also in this process's registry."""
        it = kept.disposable
        changed = replace(it, status=status or it.status, expires=expires or it.expires)
        if life := self.registry.lives.get(kept.id):
            life.follow(replace(kept, disposable=changed))
        return changed
