"""Creating a disposable sandbox: counted and recorded first, removed if it fails; and a pool of those kept ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ...core.errors import BadArgument, ConfigError, ConnectError, SandboxError, UnknownSandbox
from ...core.sandboxes.disposable import PENDING, Disposable, DisposableRules, SandboxOrder, Traits, new_disposable_id
from ...local.store.disposables import CREATING, ENDING, FULL, GONE, NAME_TAKEN, RUNNING, Kept
from ...local.waiting import Chores
from .policy import DELETED, FROM_OUTSIDE, checked, ending_text, is_plain, is_visible, provider_for, suits
from .registry import Registry

NAMED_WHEN_FULL = 3
# Ready ones are renewed while their process lives, and expire soon after a crash.
READY_S = 1800.0
# Pause after a sandbox could not be made.
REST_S = 60.0

log = logging.getLogger(__name__)
Make = Callable[[Kept, SandboxOrder], Awaitable[Kept]]


class Making:
    """Creates sandboxes, or takes one from the pool."""

    def __init__(self, registry: Registry, rules: DisposableRules, sweep: Callable[[], Awaitable[object]]) -> None:
        self._registry = registry
        self.rules = rules
        self._sweep = sweep
        # What fails is told to its caller.
        self._under_way = Chores("making a sandbox", expected=(Exception,))
        self.pool = Pool(registry, rules, self.make)

    async def create(self, order: SandboxOrder) -> Disposable:
        order = checked(order, self.rules, self._registry.offered, self._taken_names())
        task = self._under_way.start(self._obtain(order, self._plan(order)))
        try:
            # If the call is cancelled in the middle, we could not tell whether it was made; so finish, and then delete
            # it.
            made = await asyncio.shield(task)
        except asyncio.CancelledError:
            self._registry.spawn(self._undo(task))
            raise
        self.pool.is_wanted = True
        self.pool.refill()
        self._registry.admit(made)
        self._registry.changed()
        return made.disposable

    @property
    def is_under_way(self) -> bool:
        return bool(self._under_way)

    async def finish(self, seconds: float) -> None:
        """Wait for sandboxes that are being made: a platform finishes what it was asked for, and only then it can be
        deleted.

        What takes longer is given up; its row stays, so that the next process looks for it.
        """
        await self._under_way.settle(seconds)

    async def _obtain(self, order: SandboxOrder, plan: Kept) -> Kept:
        taken = await self.pool.take(order, plan)
        if taken is not None:
            return taken
        await self._reserve(plan)
        return await self.make(plan, order)

    def _taken_names(self) -> set[str]:
        """Names of configured sandboxes; names of disposable ones are in the rows, whichever process made them."""
        ours = {name for life in self._registry.lives.values() for name in (life.kept.id, life.disposable.name)}
        return set(self._registry.fleet.names) - ours

    def _plan(self, order: SandboxOrder) -> Kept:
        plan = Disposable(
            id=new_disposable_id(), provider=order.provider, name=order.name, image=order.image, status=CREATING,
            created=self._registry.now(), limits=order.limits, network=bool(order.network),
        )  # fmt: skip
        return self._registry.planned(plan, order.timeout_s)

    async def _reserve(self, plan: Kept) -> None:
        """Raises BadArgument where the name is taken, SandboxError where there is no room even after sweeping."""
        rows, most = self._registry.rows, self.rules.max_concurrent
        if refusal := await asyncio.to_thread(rows.reserve, plan, most):
            # An expired one may still have the name, or count against the limit.
            await self._sweep()
            refusal = await asyncio.to_thread(rows.reserve, plan, most)
        if refusal == NAME_TAKEN:
            raise BadArgument(
                f"a sandbox is named {plan.disposable.name!r} already; choose another name, or delete that one first"
            )
        if refusal == FULL:
            living = await asyncio.to_thread(rows.living)
            raise SandboxError(no_room(living, most, self._registry.now(), self._registry.configuration))

    async def make(self, plan: Kept, order: SandboxOrder) -> Kept:
        """Make what was recorded; nothing is left of it if that fails."""
        begun = self._registry.now()
        try:
            made = await self._registry.provider_of(plan).create(plan.id, order)
        except BaseException as problem:
            await self._strike_out(plan, problem)
            raise
        return await self._write_down(plan, order, made, begun)

    async def _write_down(self, plan: Kept, order: SandboxOrder, made: Disposable, begun: float) -> Kept:
        # The platform's clock may differ from ours: take only the duration from it.
        lives_s = made.expires - made.created if made.expires and made.created else order.timeout_s
        # One that is pending lives from its start on.
        is_pending = made.status == PENDING
        expires = begun + lives_s if lives_s and not is_pending else 0.0
        it = replace(made, id=plan.id, key=made.key or plan.id, provider=order.provider, name=order.name)
        it = replace(it, status=PENDING if is_pending else RUNNING, created=begun, expires=expires)
        kept = replace(plan, disposable=it)
        if not await asyncio.to_thread(self._registry.rows.made, kept.disposable):
            await self._end(kept)
            raise UnknownSandbox(ending_text(it.title, DELETED, self._registry.now()))
        return kept

    async def _strike_out(self, plan: Kept, problem: BaseException) -> None:
        # A platform that did not answer may have made it all the same: it is looked for later.
        if isinstance(problem, SandboxError) and not isinstance(problem, ConnectError):
            await asyncio.to_thread(self._registry.rows.remove, plan.id)
        else:
            await asyncio.to_thread(self._registry.rows.note_status, plan.id, ENDING)

    async def _undo(self, task: asyncio.Future[Kept]) -> None:
        await asyncio.wait((task,))
        if task.cancelled() or task.exception() is not None:
            return
        await self._end(task.result())

    async def _end(self, made: Kept) -> None:
        """Delete one whose caller has left. If this fails, it is swept like any other whose deletion was begun."""
        await asyncio.to_thread(self._registry.rows.note_ending, made.id, made.disposable.key)
        await self._registry.provider_of(made).delete(made.disposable)
        await asyncio.to_thread(self._registry.rows.end, made.id, GONE, DELETED, self._registry.now())


def no_room(living: Sequence[Kept], most: int, now: float, configuration: str = "") -> str:
    """Advise in a sentence when the limit is reached."""
    held = [kept for kept in living if not kept.pool and kept.disposable.status != ENDING]
    ours = [kept.disposable for kept in held if is_visible(kept, configuration)]
    oldest = ", ".join(f"{it.title} (made {(now - it.created) / 60:.0f} min ago)" for it in ours[:NAMED_WHEN_FULL])
    advice = f"end one with delete_sandbox (the oldest: {oldest})" if ours else "wait until one expires"
    others = len(held) - len(ours)
    hidden = f" ({others} of them under other configurations of this user)" if others else ""
    exist = f"{len(held)} {'exists' if len(held) == 1 else 'exist'}{hidden}"
    return (
        f"no further sandbox is made: {exist} and max_concurrent_sandboxes is {most}; {advice}, or raise the limit in "
        "the configuration"
    )


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
        kept = self._registry.planned(plan, READY_S, label(image))
        await asyncio.to_thread(self._registry.rows.add_ready, kept)
        await self._make(kept, order)


def label(image: str) -> str:
    """The pool's name for an image; empty images stand for this computer's own system."""
    return f"image:{image}"
