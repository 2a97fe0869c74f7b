"""The same with real sandboxes behind bubblewrap: real commands, real time, real crashes."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.errors import UnknownSandbox
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobState
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, SandboxOrder
from remote_sandbox_mcp.core.sandboxes.files import Span
from tests.support.disposable_house import House, until
from tests.support.means import require_local

from .test_processes import servers


@dataclass
class Maker:
    folder: Path
    houses: list[House]

    def __call__(self, rules: DisposableRules | None = None) -> House:
        provider = EmbeddedProvider(self.folder)
        self.houses.append(House(self.folder, rules or DisposableRules(), time.time, {"embedded": provider}))
        return self.houses[-1]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Maker]:
    require_local()
    maker = Maker(tmp_path, [])
    yield maker
    for house in maker.houses:
        await house.close()


def folders(folder: Path) -> set[str]:
    """What is left of sandboxes."""
    return {name for name in os.listdir(folder / "disposable") if not name.startswith(".lock")}


async def output(house: House, name: str, script: str, timeout_s: float = 60.0) -> str:
    seen = await (await house.fleet.get(name)).run(Command(script, timeout_s=timeout_s))
    assert isinstance(seen, Completed)
    return seen.stdout.head.decode()


async def test_one_is_made_used_and_thrown_away(make: Maker, tmp_path: Path) -> None:
    house = make()
    made = await house.disposables.create(SandboxOrder(name="web", env={"TOKEN": "x"}))
    assert await output(house, "web", 'echo "$TOKEN" > a; cat a') == "x\n"
    assert (await (await house.fleet.get(made.id)).read("a", Span())).data == b"x\n"
    assert folders(tmp_path) == {made.id}
    await house.disposables.service.delete("web")
    with pytest.raises(UnknownSandbox, match="web was deleted at"):
        await house.fleet.get("web")
    assert folders(tmp_path) == set()


async def test_ten_at_once_leave_nothing_when_they_are_deleted(make: Maker, tmp_path: Path) -> None:
    house = make(DisposableRules(max_concurrent=10))
    made = [await house.disposables.create(SandboxOrder()) for _ in range(10)]
    assert await output(house, made[9].id, "echo here") == "here\n"
    for it in made:
        await house.disposables.service.delete(it.id)
    assert (folders(tmp_path), house.rows.living()) == (set(), ())


async def test_a_command_outlasts_the_time_of_its_sandbox(make: Maker) -> None:
    house = make()
    made = await house.disposables.create(SandboxOrder(timeout_s=1.5))
    assert await output(house, made.id, "sleep 2.5; echo done", timeout_s=20) == "done\n"


async def test_one_that_nobody_uses_expires(make: Maker, tmp_path: Path) -> None:
    house = make()
    made = await house.disposables.create(SandboxOrder(name="web", timeout_s=1))
    await until(lambda: made.id not in house.fleet.names)
    with pytest.raises(UnknownSandbox, match="the sandbox web has expired"):
        house.fleet.member("web")
    await until(lambda: folders(tmp_path) == set())


async def test_a_job_keeps_its_sandbox_until_it_ends(make: Maker, tmp_path: Path) -> None:
    house = make(DisposableRules(cleanup_after_minutes=0.01))
    made = await house.disposables.create(SandboxOrder(timeout_s=0))
    sandbox = await house.fleet.get(made.id)
    job = await sandbox.jobs.start(JobOrder(session="work", script="while [ ! -e end ]; do sleep 0.05; done"))
    rounds = time.monotonic() + 2.0
    while time.monotonic() < rounds:
        await house.tick()
    assert made.id in house.fleet.names
    await sandbox.write("end", b"")
    await sandbox.jobs.inspect([JobQuery(job_id=job.job_id)])
    await until(lambda: made.id not in house.fleet.names)
    assert house.row(made.id).why == "cleaned_up"


async def test_one_whose_processes_are_killed_is_there_again_at_the_next_call(make: Maker) -> None:
    house = make()
    made = await house.disposables.create(SandboxOrder())
    await output(house, made.id, "echo kept > a")
    await house.life(made.id).close()
    assert await output(house, made.id, "cat a") == "kept\n"


async def test_after_a_crash_files_are_there_and_a_job_is_told_as_interrupted(make: Maker, tmp_path: Path) -> None:
    with servers(tmp_path, 1, "--kind", "embedded", "--real") as (doomed,):
        made = str(doomed.ask("create_named", "web"))
        assert doomed.ask("write", "web", "a", "mine") == 4
        job_id = str(doomed.ask("start", "web", "sleep 600"))
        doomed.kill()
    house = make()
    await house.disposables.adopt()
    assert set(house.fleet.names) == {"gpu1", made, "web"}
    assert await output(house, "web", "cat a") == "mine"
    (seen,) = await (await house.fleet.get("web")).jobs.inspect([JobQuery(job_id=job_id)])
    assert (seen.state, seen.exit_code) == (JobState.GONE, None)
    assert folders(tmp_path) == {made}


async def test_two_servers_use_the_same_sandbox_at_once(make: Maker) -> None:
    first, second = make(), make()
    await first.disposables.create(SandboxOrder(name="web"))
    await output(first, "web", "echo ours > a")
    assert await output(second, "web", "cat a") == "ours\n"
    await first.close()
    assert await output(second, "web", "cat a") == "ours\n"
    first.rows.database.close()


async def test_ready_ones_are_handed_out_under_their_new_names(make: Maker, tmp_path: Path) -> None:
    house = make(DisposableRules(pool={"": 2}))
    await house.disposables.adopt()

    def ready() -> list[str]:
        return [row.id for row in house.rows.living() if row.pool and row.disposable.status == "running"]

    await until(lambda: len(ready()) == 2)
    before = ready()
    made = await house.disposables.create(SandboxOrder(name="web"))
    assert (await house.fleet.get("web")).description.name == "web"
    assert await output(house, made.id, "echo here") == "here\n"
    assert made.id in before
    assert [it.id for it in await house.disposables.list()] == [made.id]
    await until(lambda: len(ready()) == 2)
    await house.close()
    assert folders(tmp_path) == {made.id}
    house.rows.database.close()
