"""Looks after disposable sandboxes: renews what is used, deletes what is idle, sweeps what crashed processes left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ...core.errors import ConfigError, SandboxError
from ...core.sandboxes.disposable import PENDING, Disposable, DisposableRules
from ...local.store.disposables import CREATING, ENDING, EXPIRED, GONE, PAUSED, Kept
from ...local.waiting import within
from . import policy
from .create import Pool
from .lease import Life
from .policy import SandboxFate
from .registry import Registry, inspect

DELETE_S = 30.0
# How long after the death of a process a sandbox that it ordered may still appear on the platform.
LATE_S = 120.0
# How long a sandbox is remembered that we cannot delete.
FORGOTTEN_S = 86400.0

log = logging.getLogger(__name__)


class Tending:
    """Runs one round after another until cancelled."""

    def __init__(self, registry: Registry, rules: DisposableRules) -> None:
        self._registry = registry
        self.rules = rules
        self._round = asyncio.Lock()
        self._news = asyncio.Event()
        self._task: asyncio.Future[None] | None = None
        self._reported: frozenset[tuple[str, str, str]] | None = None
        self.pool: Pool | None = None

    def wake(self) -> None:
        """Start the loop if needed, or recompute when to look next."""
        self._news.set()
        if self._task is None or self._task.done():
            # Without an event loop (a lookup by name) there is nothing to start.
            with suppress(RuntimeError):
                self._task = asyncio.get_running_loop().create_task(self.tend())

    async def tend(self) -> None:
        while True:
            self._news.clear()
            living: Sequence[Kept] = ()
            try:
                living = await self.tick()
            # No exception may end the loop: it is logged, and the round is tried again.
            except Exception:
                log.exception("a round over the disposable sandboxes failed")
            with suppress(asyncio.TimeoutError):
                await within(self._news.wait(), policy.pause_for(self.rules, living))

    async def tick(self) -> Sequence[Kept]:
        """Look after each sandbox once; returns those that may exist."""
        async with self._round:
            before = {life.kept.id: life.disposable for life in self._registry.lives.values()}
            living = await self._living()
            self._follow(living, before)
            fates = await asyncio.to_thread(self._registry.fates, living)
            seen = (self._attempt(kept, fates[kept.id]) for kept in living)
            await asyncio.gather(*seen)
            await self._drop_all_but(living)
            self._announce_changes(living)
            if self.pool is not None:
                self.pool.refill()
            return living

    async def _living(self) -> Sequence[Kept]:
        rows = self._registry.rows
        return () if rows.is_empty() else await asyncio.to_thread(rows.living)

    def _follow(self, living: Sequence[Kept], before: Mapping[str, Disposable]) -> None:
        """Take over changes by other processes, except where ours are newer than the rows that were read."""
        for kept in living:
            life = self._registry.lives.get(kept.id)
            if life is not None and life.disposable is before.get(kept.id):
                life.follow(kept)

    async def _attempt(self, kept: Kept, fate: SandboxFate) -> None:
        try:
            await self._see_to(kept, fate)
        except (SandboxError, asyncio.TimeoutError) as problem:
            log.info("%s: %s", kept.disposable.title, problem or "no answer in time")
        # A failure with one sandbox must not keep us from the others.
        except Exception:
            log.exception("%s could not be looked after", kept.disposable.title)

    async def _see_to(self, kept: Kept, fate: SandboxFate) -> None:
        life = self._registry.lives.get(kept.id)
        if life is not None and life.kept.idle_since > kept.idle_since:
            await life.write_touch()
            kept = replace(kept, idle_since=life.kept.idle_since)
        if life is not None and life.is_busy:
            await self._keep_busy(life)
        elif fate is SandboxFate.SWEEP:
            expired = policy.is_expired(kept, self._registry.now())
            why = kept.why or (policy.EXPIRED_BY_TIME if expired else policy.WITH_SERVER)
            await self.sweep(kept, EXPIRED if why == policy.EXPIRED_BY_TIME else GONE, why)
        elif fate is SandboxFate.INHERIT:
            await self._inherit(kept)
        elif fate is SandboxFate.MINE and kept.disposable.status == PENDING:
            # It may have started, or have been cancelled, since the last look.
            await inspect(self._registry, kept)
        elif fate is SandboxFate.MINE and kept.pool:
            await self._keep_ready(kept)
        elif fate is SandboxFate.MINE and kept.disposable.status != CREATING:
            await self._tend_one(self._registry.admit(kept), kept)

    async def _keep_busy(self, life: Life) -> None:
        life.touch()
        await life.write_touch()
        now = self._registry.now()
        if policy.is_about_to_expire(life.kept, now) or 0 < life.disposable.expires < now + life.needs_s:
            await life.extend(max(life.kept.timeout_s, life.needs_s))

    async def _keep_ready(self, kept: Kept) -> None:
        if (
            self.pool is None
            or kept.disposable.status == CREATING
            or not policy.is_about_to_expire(kept, self._registry.now())
        ):
            return
        try:
            await self.pool.renew(kept)
        except SandboxError:
            await inspect(self._registry, kept)
            raise

    async def _inherit(self, kept: Kept) -> None:
        claimed = await asyncio.to_thread(self._registry.rows.claim, kept, self._registry.me, kept.disposable.status)
        if claimed is not None:
            self._registry.admit(claimed).follow(claimed)
            self._registry.changed()
            # It may have ended while no process was looking.
            await inspect(self._registry, claimed)

    async def _tend_one(self, life: Life, kept: Kept) -> None:
        """Not in use by this process; but a background job may run in it."""
        now = self._registry.now()
        if not policy.is_unused(kept, self.rules, now) and not policy.is_nearly_over(kept, now):
            return
        try:
            has_jobs = kept.disposable.status != PAUSED and await life.has_jobs()
        except SandboxError as problem:
            raise await life.explain(problem) from problem
        if has_jobs:
            await self._keep_busy(life)
        elif policy.is_unused(kept, self.rules, now) and not life.is_busy:
            await self.sweep(kept, GONE, policy.CLEANED_UP)

    async def sweep(self, kept: Kept, status: str, why: str) -> None:
        """Delete one that is no longer needed, unless it was used since. Raises SandboxError."""
        claimed = await asyncio.to_thread(self._registry.rows.claim, kept, self._registry.me, ENDING, why)
        if claimed is None:
            return
        if life := self._registry.lives.get(kept.id):
            life.ending = why
        self._registry.drop(kept.id)
        if await self._delete(claimed):
            await asyncio.to_thread(self._registry.rows.end, kept.id, status, why, self._registry.now())

    async def _delete(self, kept: Kept) -> bool:
        """Delete it; returns whether nothing is left of it."""
        now = self._registry.now()
        try:
            provider = self._registry.provider_of(kept)
        except ConfigError:
            # It cannot be reached from here; its platform deletes it when it expires.
            return policy.is_expired(kept, now) or now - kept.disposable.created > FORGOTTEN_S
        if kept.disposable.key:
            await within(provider.delete(kept.disposable), DELETE_S)
            return True
        # The process that made it never learned the platform's id, or even whether it was made.
        found = [it for it in await within(provider.list(), DELETE_S) if it.id == kept.id]
        for it in found:
            await within(provider.delete(it), DELETE_S)
        return bool(found) or now - kept.disposable.created > LATE_S

    async def _drop_all_but(self, living: Sequence[Kept]) -> None:
        """Remove sandboxes that another process has deleted from our fleet."""
        ids = {kept.id for kept in living}
        for life in [life for life in self._registry.lives.values() if life.kept.id not in ids]:
            # It may also be one that was made since.
            row = await asyncio.to_thread(self._registry.rows.get, life.kept.id)
            if row is None or row.ended:
                self._registry.drop(life.kept.id)

    async def poll(self) -> Mapping[str, tuple[str, str]]:
        """Name and status, by id, of those that can be used here. What other processes have changed is known then.

        Not a round: nothing is written, or every glance would be a change for others to glance at.
        """
        before = {life.kept.id: life.disposable for life in self._registry.lives.values()}
        living = await self._living()
        self._follow(living, before)
        await self._drop_all_but(living)
        return {kept.id: (kept.disposable.name, kept.disposable.status) for kept in living if self._is_listed(kept)}

    def _is_listed(self, kept: Kept) -> bool:
        is_whole = kept.disposable.status not in (CREATING, ENDING)
        return is_whole and not kept.pool and policy.is_visible(kept, self._registry.configuration)

    def _announce_changes(self, living: Sequence[Kept]) -> None:
        listed = frozenset((kept.id, kept.disposable.name, kept.disposable.status) for kept in living if not kept.pool)
        if self._reported is not None and listed != self._reported:
            self._registry.changed()
        self._reported = listed

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def leave(self) -> None:
        """At the end: delete ready ones that were never used; record the last use of all others."""
        for kept in await self._living():
            if kept.owner != self._registry.me:
                continue
            if kept.pool or kept.disposable.status == CREATING:
                self._registry.spawn(self.sweep(kept, GONE, policy.WITH_SERVER))
            elif life := self._registry.lives.get(kept.id):
                await life.write_touch()

    async def sweep_expired(self) -> None:
        """Delete those that are expired and whose process has ended, of any configuration."""
        async with self._round:
            living = await self._living()
            fates = await asyncio.to_thread(self._registry.fates, living)
            # Not what this very process uses, and may still renew; but what it has begun to delete.
            others = (it for it in living if it.owner != self._registry.me or it.disposable.status == ENDING)
            over = [kept for kept in others if fates[kept.id] is SandboxFate.SWEEP]
            await asyncio.gather(*(self._attempt(kept, SandboxFate.SWEEP) for kept in over))
