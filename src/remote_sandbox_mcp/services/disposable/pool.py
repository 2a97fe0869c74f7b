"""Sandboxes that are kept ready, so that a new one is available at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ...core.errors import ConfigError, SandboxError
from ...core.sandboxes.disposable import Disposable, DisposableRules, SandboxOrder, Traits, new_disposable_id
from ...local.store.disposables import CREATING, GONE, Kept
from .policy import FROM_OUTSIDE, is_plain, provider_for, suits
from .registry import Registry

# Ready ones are renewed while their process lives, and expire soon after a crash.
READY_S = 1800.0
# Pause after a sandbox could not be made.
REST_S = 60.0

log = logging.getLogger(__name__)
Make = Callable[[Kept, SandboxOrder], Awaitable[Kept]]


class Pool:
    """Keeps a number of ready sandboxes per image, as the rules say; they do not count against the limit."""

    def __init__(self, registry: Registry, rules: DisposableRules, make: Make) -> None:
        self._registry = registry
        self.rules = rules
        self._make = make
        # Reads and deletes do not fill the pool.
        self.is_wanted = False
        self._filling: set[str] = set()
        self._not_before: dict[str, float] = {}

    async def take(self, order: SandboxOrder, wanted: Kept) -> Kept | None:
        """A ready sandbox turned into `wanted`; None where there is none."""
        # Its provider may not be configured any more: then making one says so.
        traits = self._registry.offered.get(order.provider, Traits())
        if not is_plain(order, traits) or order.image not in self.rules.pool:
            return None
        rows, as_wanted = self._registry.rows, replace(wanted, pool=label(order.image))
        while taken := await asyncio.to_thread(rows.take, as_wanted, self.rules.max_concurrent):
            try:
                return await self._given_its_time(taken)
            except SandboxError as problem:
                log.info("a sandbox that was kept ready is of no use: %s", problem)
                await asyncio.to_thread(rows.end, taken.id, GONE, FROM_OUTSIDE, self._registry.now())
                self._registry.spawn(self._registry.provider_of(taken).delete(taken.disposable))
        return None

    async def _given_its_time(self, taken: Kept) -> Kept:
        """Set its expiry; a renewal also shows that it still exists."""
        expires = (await self._registry.provider_of(taken).renew(taken.disposable, taken.timeout_s)).expires
        await asyncio.to_thread(self._registry.rows.note_expires, taken.id, expires)
        return replace(taken, disposable=replace(taken.disposable, expires=expires))

    async def renew(self, ready: Kept) -> None:
        """Renew one that is still unused."""
        expires = (await self._registry.provider_of(ready).renew(ready.disposable, ready.timeout_s)).expires
        await asyncio.to_thread(self._registry.rows.extend, ready.id, expires)

    def refill(self) -> None:
        """Fill the pool in the background."""
        for image in self._due() if self.is_wanted else ():
            self._filling.add(image)
            self._registry.spawn(self._fill(image))

    def _due(self) -> list[str]:
        try:
            traits = self._registry.offered[provider_for("", self.rules, self._registry.offered)]
        except ConfigError:
            # No provider can be chosen; a caller who orders a sandbox is told why.
            return []
        now = self._registry.now()
        images = [image for image in self.rules.pool if suits(image, traits) and image not in self._filling]
        return [image for image in images if self._not_before.get(image, 0.0) <= now]

    async def _fill(self, image: str) -> None:
        try:
            living = await asyncio.to_thread(self._registry.rows.living)
            ready = [kept for kept in living if kept.pool == label(image) and kept.owner == self._registry.me]
            lacking = self.rules.pool[image] - len(ready)
            made = await asyncio.gather(*(self._add(image) for _ in range(lacking)), return_exceptions=True)
            if problems := [problem for problem in made if isinstance(problem, BaseException)]:
                self._not_before[image] = self._registry.now() + REST_S
                log.warning("no sandbox of %s could be made ready: %s", image, problems[0])
        finally:
            self._filling.discard(image)

    async def _add(self, image: str) -> None:
        kind = provider_for("", self.rules, self._registry.offered)
        order = SandboxOrder(image=image, timeout_s=READY_S, provider=kind)
        now = self._registry.now()
        plan = Disposable(id=new_disposable_id(), provider=kind, image=image, status=CREATING, created=now)
        kept = Kept(
            disposable=plan,
            timeout_s=READY_S,
            pool=label(image),
            owner=self._registry.me,
            idle_since=now,
            configuration=self._registry.configuration,
        )
        await asyncio.to_thread(self._registry.rows.add_ready, kept)
        await self._make(kept, order)


def label(image: str) -> str:
    """The pool's name for an image; empty images stand for this computer's own system."""
    return f"image:{image}"
