"""A house of disposable sandboxes for tests: a clock that a test turns, providers in memory, a real file of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, DisposableRules, Offer, Provider
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.disposables import DisposableRows, Kept, Owner
from remote_sandbox_mcp.local.store.mark import mark_in
from remote_sandbox_mcp.services.disposable.lease import Life
from remote_sandbox_mcp.services.disposable.registry import inspect
from remote_sandbox_mcp.services.disposable.verbs import Disposables
from remote_sandbox_mcp.services.fleet import Fleet, Member
from tests.support.fakes.disposables import FakeProvider
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.pace import Deadline


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def a_machine(name: str = "gpu1") -> Member:
    fake = FakeSandbox(name=name)

    async def opener() -> FakeSandbox:
        return fake

    return Member(name, lambda: fake.description, opener)


ANSWERS = {"true": Answer(), "endless": Answer("so far", then=after(3600.0))}


@dataclass
class House:
    """One server's view, on a folder that others may share."""

    folder: Path
    rules: DisposableRules = field(default_factory=DisposableRules)
    clock: Callable[[], float] = field(default_factory=Clock)
    providers: dict[str, Provider] = field(default_factory=dict)
    configuration: str = ""

    def __post_init__(self) -> None:
        self.fleet = Fleet([a_machine()])
        self.rows = DisposableRows(Database(self.folder / "state.db"))
        if not self.providers:
            self.providers = {"embedded": FakeProvider("embedded", ANSWERS, clock=self.clock)}
        offers = {
            kind: Offer(provider.traits, lambda provider=provider: provider)  # type: ignore[misc]
            for kind, provider in self.providers.items()
        }
        self.disposables = Disposables(
            self.fleet,
            self.rules,
            offers,
            lambda: self.rows,
            mark=lambda: mark_in(self.folder),
            clock=self.clock,
            configuration=self.configuration,
        )
        self.changes = 0
        self.disposables.on_change(self._count)

    def _count(self) -> None:
        self.changes += 1

    @property
    def provider(self) -> FakeProvider:
        (found,) = self.providers.values()
        assert isinstance(found, FakeProvider)
        return found

    def life(self, disposable_id: str) -> Life:
        return self.disposables.service.registry.lives[disposable_id]

    async def tick(self) -> None:
        """One round of looking after all of them."""
        await self.disposables.service.tending.tick()

    async def get(self, name: str) -> Disposable:
        """One as its provider knows it now."""
        service = self.disposables.service
        return await inspect(service.registry, await service._living(name))

    def row(self, disposable_id: str) -> Kept:
        kept = self.rows.get(disposable_id)
        assert kept
        return kept

    def belongs_to(self, owner: Owner) -> None:
        """From now on this is another process."""
        self.disposables.service.registry.me = owner

    def pass_time(self, seconds: float) -> None:
        assert isinstance(self.clock, Clock)
        self.clock.now += seconds

    async def close(self) -> None:
        await self.disposables.close()
        await self.fleet.close()
        self.rows.database.close()


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for it."""
    deadline = Deadline(seconds)
    while not condition():
        assert not deadline.has_passed(), "it did not come to pass in time"
        await asyncio.sleep(0.005)


async def begun(work: Awaitable[object]) -> asyncio.Future[object]:
    """Work that has begun and waits for something."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task
