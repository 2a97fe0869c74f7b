from __future__ import annotations

from remote_sandbox_mcp.core.jobs.cards import CardLease
from remote_sandbox_mcp.core.resources.history import (
    GpuHours,
    Owner,
    mean_owners,
    mean_point,
    owners,
    packed,
    total,
    unpacked,
)
from remote_sandbox_mcp.core.resources.usage import Gpu, GpuProcess, Usage


def test_a_card_belongs_to_its_lease_else_to_those_who_work_on_it() -> None:
    both = (GpuProcess(1, "ann"), GpuProcess(2, "bob"), GpuProcess(3, "bob"))
    cards = (
        Gpu(0, "H200", util_pct=90.0, lease=CardLease("ann", "train"), processes=both),
        Gpu(1, "H200", util_pct=90.0, processes=both),
        # In a container no process is listed.
        Gpu(2, "H200", util_pct=90.0),
        Gpu(3, "H200", util_pct=0.0, mem_used_mb=10.0, mem_total_mb=1000.0),
    )
    found = owners(Usage(gpus=cards))
    assert found == {Owner("ann", "train"): 1.0, Owner("ann"): 0.5, Owner("bob"): 0.5, Owner("unknown"): 1.0}
    assert mean_owners([found, {}])[Owner("bob")] == 0.25


def test_names_and_numbers_of_a_hostile_machine_are_bounded() -> None:
    many = tuple(Gpu(n, "X", processes=(GpuProcess(1, f"u{n}" * 1000),)) for n in range(10_000))
    found = owners(Usage(gpus=many))
    assert len(found) <= 64
    assert all(len(owner.user) <= 60 for owner in found)


def test_points_become_bytes_and_their_mean() -> None:
    seen = [(0.0, 0.0, None, (1.0,)), (30.0, 1.0, 0.2, (0.5, 0.26))]
    assert mean_point(seen) == (30.0, 0.5, 0.2, (0.75, 0.26))
    assert mean_point(seen[:1]) == seen[0]
    assert len(packed(seen[1])) == 4
    assert unpacked(30.0, packed(seen[1])) == seen[1]


def test_hours_are_added_up_by_any_field() -> None:
    def row(day: str, user: str, hours: float) -> GpuHours:
        return GpuHours(day=day, machine="gpu1", user=user, job="", hours=hours)

    rows = [row("2026-11-02", "ann", 1.0), row("2026-11-01", "bob", 4.0), row("2026-11-01", "ann", 1.0)]
    assert total(rows, "user") == {("bob",): 4.0, ("ann",): 2.0}
    assert [*total(rows, "day", "user")] == [("2026-11-01", "bob"), ("2026-11-01", "ann"), ("2026-11-02", "ann")]
