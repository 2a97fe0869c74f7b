"""Whoever follows the list hears of every change, whichever process or platform made it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.app import disposable_mark
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, SandboxOrder
from remote_sandbox_mcp.services.disposable import verbs
from tests.support.disposable_house import ANSWERS, Clock, House, until
from tests.support.fakes.disposables import FakeProvider

from .conftest import Build

QUICK = 0.02


@dataclass
class Scene:
    """Two servers of one user on one platform. What the first is told is noted."""

    here: House
    elsewhere: House
    platform: FakeProvider
    clock: Clock
    made: str = ""
    told: list[Collection[str]] = field(default_factory=list)

    async def tell(self, names: Collection[str]) -> None:
        self.told.append(names)


@pytest.fixture
async def scene(build: Build, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Scene:
    for name in ("POLL_EVERY_S", "ASK_S"):
        monkeypatch.setattr(verbs, name, QUICK)
    platform = FakeProvider("opensandbox", ANSWERS, clock=clock)
    rules = DisposableRules(auto_cleanup=True, cleanup_after_minutes=30)
    here, elsewhere = (build(rules, opensandbox=platform) for _ in range(2))
    found = Scene(here, elsewhere, platform, clock)
    here.disposables.follow(found.tell)
    return found


async def paused_outside(scene: Scene) -> None:
    scene.platform.made[scene.made] = replace(scene.platform.made[scene.made], status="paused")


async def cleaned_up_elsewhere(scene: Scene) -> None:
    scene.elsewhere.pass_time(31 * 60)
    await scene.elsewhere.tick()


async def expired(scene: Scene) -> None:
    scene.clock.now += 10_000_000
    scene.platform.made.pop(scene.made)


async def killed_outside(scene: Scene) -> None:
    scene.platform.kill(scene.made)


Cause = Callable[[Scene], Awaitable[object]]
CAUSES: dict[str, Cause] = {
    "deleted here": lambda scene: scene.here.disposables.service.delete(scene.made),
    "deleted elsewhere": lambda scene: scene.elsewhere.disposables.service.delete(scene.made),
    "paused here": lambda scene: scene.here.disposables.service.pause(scene.made),
    "paused elsewhere": lambda scene: scene.elsewhere.disposables.service.pause(scene.made),
    "paused from outside": paused_outside,
    "cleaned up elsewhere": cleaned_up_elsewhere,
    "expired": expired,
    "killed from outside": killed_outside,
}


@pytest.mark.parametrize("at", ["here", "elsewhere"])
async def test_a_new_one_is_told_once_wherever_it_is_made(scene: Scene, at: str) -> None:
    house: House = getattr(scene, at)
    made = await house.disposables.create(SandboxOrder(name="web"))
    await until(lambda: scene.told)
    assert scene.told == [{made.id, "web"}]


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
async def test_every_change_is_told_and_known_whoever_made_it(scene: Scene, cause: Cause) -> None:
    maker = scene.elsewhere if cause is cleaned_up_elsewhere else scene.here
    scene.made = (await maker.disposables.create(SandboxOrder(name="web"))).id
    await until(lambda: scene.told)
    scene.told.clear()
    await cause(scene)
    await until(lambda: scene.told)
    assert scene.told[0] == {scene.made, "web"}
    listed = {it.id: it.status for it in await scene.here.disposables.list()}
    assert listed in ({}, {scene.made: "paused"})
    # While another server is ending it, it is no longer listed, and is still a member.
    await until(lambda: (scene.made in scene.here.fleet.names) == bool(listed))


async def test_resuming_is_told(scene: Scene) -> None:
    scene.made = (await scene.here.disposables.create(SandboxOrder())).id
    await until(lambda: scene.told)
    await scene.here.disposables.service.pause(scene.made)
    await until(lambda: len(scene.told) == 2)
    await scene.elsewhere.disposables.service.resume(scene.made)
    await until(lambda: len(scene.told) == 3)
    assert scene.told == [{scene.made}] * 3


async def test_those_of_another_configuration_are_not_told(build: Build, scene: Scene) -> None:
    other = build(configuration="other", opensandbox=scene.platform)
    mine = build(configuration="mine", opensandbox=scene.platform)
    told: list[Collection[str]] = []

    async def tell(names: Collection[str]) -> None:
        told.append(names)

    mine.disposables.follow(tell)
    await other.disposables.create(SandboxOrder(name="theirs"))
    made = await mine.disposables.create(SandboxOrder(name="ours"))
    await until(lambda: told)
    assert told == [{made.id, "ours"}]


async def test_use_is_no_change(scene: Scene) -> None:
    made = await scene.here.disposables.create(SandboxOrder())
    await until(lambda: scene.told)
    scene.told.clear()
    scene.elsewhere.rows.touch(made.id, scene.clock.now + 5)
    await scene.elsewhere.disposables.service.renew(made.id, 500)
    await scene.elsewhere.disposables.service.pause(made.id)
    await until(lambda: scene.told)
    assert len(scene.told) == 1


def test_a_state_folder_that_was_removed_does_not_come_back_by_the_look_for_sandboxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(paths.HOME, str(tmp_path / "removed"))
    assert not disposable_mark().exists()
    assert not (tmp_path / "removed").exists()
