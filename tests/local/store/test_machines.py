from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.resources.history import Minute, Owner
from remote_sandbox_mcp.core.resources.usage import Point
from remote_sandbox_mcp.local.store import machines
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.machines import DAY_S, MachineRows

ANN = Owner("ann", "train")


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[MachineRows]:
    rows = MachineRows(Database(tmp_path / "state.db"))
    yield rows
    rows.database.close()


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Half an hour beside the hours of UTC."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def minute(at: float, cpu: float = 0.5, cards: float = 2.0, machine: str = "gpu1", owner: Owner = ANN) -> Minute:
    point: Point = (at, cpu, None, (1.0, 0.0))
    return Minute(machine, point, {owner: cards})


def test_the_first_of_several_processes_keeps_a_minute(tmp_path: Path, rows: MachineRows) -> None:
    now = float(int(time.time()) // 60 * 60)
    other = MachineRows(Database(tmp_path / "state.db"))
    rows.write([minute(now - 60), minute(now)])
    other.write([minute(now + 5, 0.9), minute(now, machine="gpu2")])
    other.database.close()
    assert rows.points(now - 120) == {
        "gpu1": ((now - 60, 0.5, None, (1.0, 0.0)), (now, 0.5, None, (1.0, 0.0))),
        "gpu2": ((now, 0.5, None, (1.0, 0.0)),),
    }
    assert list(rows.points(now - 120, "gpu2")) == ["gpu2"]
    used = {row.machine: row.hours for row in rows.hours(now - DAY_S)}
    assert used == pytest.approx({"gpu1": 4 / 60, "gpu2": 2 / 60})


def test_minutes_are_thinned_after_a_day_and_dropped_after_ninety(rows: MachineRows) -> None:
    now = float(int(time.time()) // 900 * 900)
    old = now - 2 * DAY_S
    rows.write([minute(old + 60 * n, n / 30) for n in range(30)])
    rows.write([minute(now - 91 * DAY_S), minute(now - 91 * DAY_S, machine="gone"), minute(now - 60)])
    for _ in range(2):
        rows.tidy(now)
        points = rows.points(0)
        assert [*points] == ["gpu1"]
        assert [point[:2] for point in points["gpu1"]] == [
            (old, pytest.approx(7 / 30, abs=0.005)),
            (old + 900, pytest.approx(22 / 30, abs=0.005)),
            (now - 60, 0.5),
        ]
    # What comes later is thinned, too.
    rows.write([minute(now + 60 * n) for n in range(30)])
    rows.tidy(now + 2 * DAY_S)
    assert [point[0] for point in rows.points(now - 60)["gpu1"]] == [now, now + 900]


def test_gpu_hours_are_added_up_by_days_after_a_week(rows: MachineRows) -> None:
    now = time.time()
    begun = now - 20 * DAY_S
    rows.write([minute(begun + 600 * n, cards=8.0) for n in range(400)])
    rows.write([minute(now - 3600, owner=Owner("bob"))])
    before = rows.hours(0)
    assert {row.day for row in before} >= {time.strftime("%Y-%m-%d", time.localtime(begun + 600 * n)) for n in (0, 399)}
    for _ in range(2):
        rows.tidy(now)
        assert [(row.day, row.user) for row in rows.hours(0)] == [(row.day, row.user) for row in before]
        assert [row.hours for row in rows.hours(0)] == pytest.approx([row.hours for row in before])
    with rows.database.reading() as connection:
        kept = connection.execute("SELECT COUNT(*) FROM gpu_use").fetchone()[0]
    assert kept == len(before)
    rows.tidy(now + 100 * DAY_S)
    assert rows.hours(0) == []


def test_a_machine_that_makes_names_up_fills_no_disk(rows: MachineRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "MOST_OWNERS", 3)
    now = float(int(time.time()) // 3600 * 3600)
    rows.write([minute(now + 60 * n, owner=Owner(f"user{n}")) for n in range(10)])
    assert len(rows.hours(0)) == 3


# Of 100 machines, over 90 days; and of one core.
MOST_BYTES, MOST_SHARE = 50e6, 0.005


def busy_minute(machine: int, at: int) -> Minute:
    """Eight GPUs, whose users change every two hours."""
    chance = random.Random(machine * 997 + at // 7200)
    cards = {Owner(f"user{chance.randrange(6)}"): 4.0, Owner("ann", f"train-{chance.randrange(9)}"): 4.0}
    gpus = tuple(chance.random() for _ in range(8))
    return Minute(f"gpu{machine:03}.example.org", (float(at), chance.random(), chance.random(), gpus), cards)


def test_ninety_days_of_machines_stay_small(rows: MachineRows) -> None:
    now = int(time.time()) // 3600 * 3600
    rows.tidy(now)
    first, machines = rows.database.file.stat().st_size, range(2)
    # Days that were thinned, and then the last two, minute by minute.
    for days, step in ((range(-90, -2), 900), (range(-2, 0), 60)):
        for day in days:
            times = range(now + day * 86400, now + (day + 1) * 86400, step)
            rows.write([busy_minute(machine, at) for at in times for machine in machines])
            rows.tidy(now + (day + 1) * 86400)
    rows.database.close()
    size = rows.database.file.stat().st_size
    assert first + 100 / len(machines) * (size - first) <= MOST_BYTES


def test_the_history_of_a_hundred_machines_takes_little_of_a_core(rows: MachineRows) -> None:
    now = int(time.time()) // 3600 * 3600
    hour = [[busy_minute(machine, at) for machine in range(100)] for at in range(now, now + 3600, 60)]
    begun = time.process_time()
    for minutes in hour:
        rows.write(minutes)
    rows.tidy(now + 3600)
    assert time.process_time() - begun <= MOST_SHARE * 3600
