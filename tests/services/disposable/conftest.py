"""Houses of disposable sandboxes, closed after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, Provider
from tests.support.disposable_house import Clock, House

Build = Callable[..., House]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def build(tmp_path: Path, clock: Clock) -> AsyncIterator[Build]:
    """Makes houses on one folder, as several servers of one user are."""
    houses: list[House] = []

    def make(rules: DisposableRules | None = None, configuration: str = "", **providers: Provider) -> House:
        houses.append(House(tmp_path, rules or DisposableRules(), clock, dict(providers), configuration))
        return houses[-1]

    yield make
    for house in houses:
        await house.close()


@pytest.fixture
def house(build: Build) -> House:
    return build()
