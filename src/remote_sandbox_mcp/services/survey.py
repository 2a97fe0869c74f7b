"""State of sandboxes: whether they answer, and what they have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.errors import ConnectError, SandboxError, Unsupported
from ..core.resources.usage import Usage, idle_score
from ..core.sandboxes.sandbox import Description
from .fleet import Fleet, Member, unforeseen
from .probe.measure import measure

if TYPE_CHECKING:
    pass

# The smallest difference between two scores.
LEAST_STEP = 0.001
UNASKED = "it was not asked, because only a pattern of `hosts` offers it; name it in a call, and it is opened"


@dataclass(frozen=True)
class View:
    """A sandbox as it stands: what it is, whether it answers, what it has. `name` is that in the fleet.

    `cause` is why it does not answer; `trouble` is the whole sentence, which also says what was tried.
    """

    name: str
    description: Description
    active: bool
    alive: bool
    trouble: str = ""
    usage: Usage | None = None
    usage_trouble: str = ""
    cause: str = ""
    # What create_sandbox(on=...) makes there, in words; empty for nothing.
    makes: str = ""

    # The score is at most this: the local sandbox stays below the best machine.
    most_score: float = 1.0

    @property
    def score(self) -> float:
        return min(idle_score(self.usage), self.most_score) if self.usage else 0.0


def made_by(member: Member) -> str:
    """Kinds of sandboxes that create_sandbox(on=...) makes on a machine."""
    kinds = [f"containers ({member.engine.tool})"] if member.engine else []
    return " and ".join([*kinds, *(["allocations (Slurm)"] if member.slurm else [])])


def machines_first(views: Iterable[View]) -> list[View]:
    """The views, the local sandbox last. While a machine answers, it is never the most idle."""
    views = list(views)
    local = [view for view in views if view.description.capabilities.is_this_computer]
    others = [view for view in views if not view.description.capabilities.is_this_computer]
    scores = [view.score for view in others if view.usage]
    most = max(0.0, round(max(scores) - LEAST_STEP, 3)) if scores else 1.0
    return [*others, *(replace(view, most_score=most) for view in local)]


class Survey:
    """Asks sandboxes how they stand, all at once."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def of_all(self, *, resources: bool = False, active: str | None = None) -> list[View]:
        """The state of every sandbox, asked at once. `active` is by default the configured one."""
        members = await self._fleet.offered()
        views = [self._seen(member, resources=resources, active=active) for member in members]
        seen = await asyncio.gather(*views, return_exceptions=True)
        rows = [self._row(member, view, active) for member, view in zip(members, seen, strict=True)]
        return machines_first(replace(row, makes=made_by(member)) for member, row in zip(members, rows, strict=True))

    def _row(self, member: Member, view: View | BaseException, active: str | None) -> View:
        """Turn an unexpected exception into a problem of that one sandbox, so that all others are still listed."""
        if isinstance(view, View):
            return view
        problem = unforeseen(view, f"looking at {member.name}")
        return View(member.name, member.describe(), self._is_active(member, active), False, problem, cause=problem)

    def _is_active(self, member: Member, active: str | None) -> bool:
        return member.name == (self._fleet.default if active is None else active)

    async def _seen(self, member: Member, *, resources: bool, active: str | None) -> View:
        """Ask one sandbox, but a host that is offered with many others is not logged in to for a mere list."""
        is_active = self._is_active(member, active)
        if is_active or member.may_open_unasked:
            return await self.of(member, resources=resources, active=active)
        return View(member.name, member.describe(), is_active, False, UNASKED, cause=UNASKED)

    async def of(self, member: Member, *, resources: bool = False, active: str | None = None) -> View:
        is_active = self._is_active(member, active)
        try:
            sandbox = await member.open()
        except SandboxError as problem:
            # Also where the configuration is the reason, such as a secret that cannot be read.
            return self._silent(member, is_active, problem, resources)
        try:
            if not resources:
                await sandbox.open()
                return View(member.name, sandbox.description, is_active, True)
            # A successful measurement also shows that it answers: one round trip instead of two.
            usage = await measure(sandbox, cluster=member.slurm)
            return View(member.name, sandbox.description, is_active, True, usage=usage)
        except (ConnectError, Unsupported) as problem:
            return self._silent(member, is_active, problem, resources)
        except SandboxError as problem:
            return View(member.name, member.describe(), is_active, True, usage_trouble=str(problem))

    def _silent(self, member: Member, is_active: bool, problem: SandboxError, resources: bool) -> View:
        """A sandbox that does not answer; nor can it be measured."""
        trouble = str(problem)
        unmeasured = trouble if resources else ""
        return View(
            member.name, member.describe(), is_active, False, trouble, usage_trouble=unmeasured, cause=problem.cause
        )
