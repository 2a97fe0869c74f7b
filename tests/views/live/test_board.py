"""Rows and what changes in them, as values: differences, lookers that read seldom, trends."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from remote_sandbox_mcp.core.jobs.job import Checkpoint, JobSeen, JobState
from remote_sandbox_mcp.core.jobs.watch import Policy, Watch
from remote_sandbox_mcp.core.resources.usage import Cpu, Gpu, Memory, Point, Usage, point_of, recent, thinned
from remote_sandbox_mcp.core.sandboxes.cluster import ClusterUsage, GpuCount, Partition
from remote_sandbox_mcp.services.jobs.values import JobSnapshot
from remote_sandbox_mcp.views.live.board import Board, Change, Viewer, difference
from remote_sandbox_mcp.views.live.rows import finite, hidden, job_row
from remote_sandbox_mcp.views.live.service import shown_first

LARGEST = Partition("b", idle_cpus=6, cpus=8, gpus=(GpuCount("x", 1, 4),))
A, B, C = {"n": 1}, {"n": 2}, {"n": 3}


@pytest.mark.parametrize(
    ("seen", "now", "put", "gone"),
    [
        pytest.param({}, {"a": A}, {"a": A}, (), id="a new one"),
        pytest.param({"a": A}, {"a": A}, {}, (), id="the same"),
        pytest.param({"a": A}, {"a": B}, {"a": B}, (), id="another"),
        pytest.param({"a": A, "b": B}, {"b": B}, {}, ("a",), id="one is gone"),
        pytest.param({"a": A}, {"b": B, "c": C}, {"b": B, "c": C}, ("a",), id="all at once"),
    ],
)
def test_a_difference_has_new_rows_and_ids_that_are_gone(
    seen: dict[str, Any], now: dict[str, Any], put: dict[str, Any], gone: tuple[str, ...]
) -> None:
    board = Board()
    board.put("jobs", seen)
    board.put("jobs", {id: {**row} for id, row in now.items()})
    assert difference(seen, board.rows("jobs")) == (put, gone)


def test_a_looker_gets_whole_topics_first_and_then_what_changed() -> None:
    board = Board()
    looker = Viewer(board, ("jobs", "calls"), {})
    board.lookers.add(looker)
    board.put("jobs", {"a": A, "b": B})
    assert looker.take() == [Change(topic="jobs", put={"a": A, "b": B}, whole=True)]
    board.put("calls", {})
    board.put("jobs", {"a": A, "b": C})
    assert looker.take() == [
        Change(topic="jobs", put={"b": C}),
        Change(topic="calls", whole=True),
    ]
    board.put("jobs", {"a": dict(A), "b": dict(C)})
    assert looker.take() == []


def test_a_looker_that_reads_seldom_gets_the_last_state_and_nothing_is_kept_for_it() -> None:
    board = Board()
    looker = Viewer(board, ("jobs",), {})
    board.lookers.add(looker)
    board.put("jobs", {})
    looker.take()
    for number in range(10_000):
        board.put("jobs", {str(number % 7): {"n": number}})
    (change,) = looker.take()
    assert change == Change(topic="jobs", put={str(9999 % 7): {"n": 9999}})


async def test_a_wait_that_was_cancelled_loses_nothing() -> None:
    board = Board()
    looker = Viewer(board, ("jobs",), {})
    board.lookers.add(looker)
    waiting = asyncio.ensure_future(looker.changes())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    board.put("jobs", {"a": A})
    assert await looker.changes() == [Change(topic="jobs", put={"a": A}, whole=True)]


@pytest.mark.parametrize(
    ("usage", "point"),
    [
        pytest.param(Usage(), (7.0, None, None, ()), id="nothing known"),
        pytest.param(Usage(cpu=Cpu(3, 0, 0, 2, 8)), (7.0, 0.375, None, ()), id="the load is of all CPUs"),
        pytest.param(Usage(cpu=Cpu(30, 0, 0, 2)), (7.0, 1.0, None, ()), id="overloaded"),
        pytest.param(Usage(memory=Memory(100, 25)), (7.0, None, 0.75, ()), id="memory"),
        pytest.param(Usage(gpus=(Gpu(0, "a", util_pct=50), Gpu(1, "a"))), (7.0, None, None, (0.5, None)), id="GPUs"),
        pytest.param(
            Usage(
                cpu=Cpu(1, 1, 1, 1),
                cluster=ClusterUsage((Partition("a", cpus=1), LARGEST)),
            ),
            (7.0, 0.25, None, (0.75,)),
            id="a cluster is as busy as its largest partition",
        ),
    ],
)  # fmt: skip
def test_a_point_has_shares(usage: Usage, point: Point) -> None:
    assert point_of(usage, 7.0) == point


def test_trends_have_one_hour_and_few_points() -> None:
    points = [(float(at), (at % 8) / 8, None, (0.5,)) for at in range(0, 7200, 4)]
    last_hour = recent(points, 7200.0)
    thin = thinned(last_hour, 240)
    assert last_hour[0][0] > 3600
    assert len(last_hour) > 800
    assert len(thin) <= 240
    assert thin[-1] == points[-1]
    assert [point[0] for point in thin] == sorted(point[0] for point in thin)
    assert all(0 < (point[1] or 0) < 0.875 for point in thin[:-1])
    assert thinned(thin, 240) == thin


def test_a_gpu_that_came_later_has_a_mean_of_its_own() -> None:
    points: list[Point] = [(0.0, 0.0, 0.0, (0.0,)), (1.0, None, 1.0, (1.0, 0.2)), (2.0, 0.5, 0.5, (0.5, 0.5))]
    assert thinned(points, 2) == ((1.0, 0.0, 0.5, (0.5, 0.2)), points[-1])


def test_numbers_that_json_does_not_have_are_unknown() -> None:
    row = {"a": float("inf"), "b": [float("nan"), 1.5], "c": {"d": float("-inf")}}
    assert finite(row) == {"a": None, "b": [None, 1.5], "c": {"d": None}}


def nested(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)


@pytest.mark.parametrize("depth", [21, 500])
def test_what_is_nested_too_deep_is_left_out(depth: int) -> None:
    assert finite(nested(20)) == nested(20)
    assert str(finite(nested(depth))) == "[" * 20 + "None" + "]" * 20


WATCHED = Watch(id=1, job_id="j", sandbox="m", session="s", policy=Policy(checkpoint_format="json"))
RUNNING = JobSnapshot("m", JobSeen(state=JobState.RUNNING, job_id="j", session="s"))


@pytest.mark.parametrize(
    ("text", "checkpoint"),
    [
        pytest.param(b'{"step": 1}', {"value": {"step": 1}}, id="short"),
        pytest.param(b"[" * 500 + b"]" * 500, {"value": finite(nested(500), 18)}, id="deep"),
        pytest.param(b"x" * 9000, {"text": "…" + 2000 * "x", "error": "it is not valid JSON"}, id="a long text"),
        pytest.param(
            json.dumps({"step": 1, "losses": [0.5] * 9000, "notes": "x" * 3000, "total": 7}).encode(),
            {"value": {"step": 1, "total": 7}, "progress": {"share": 0.1429, "words": "step 1 / 7"}},
            id="a long value keeps its numbers",
        ),
        pytest.param(json.dumps([0.5] * 9000).encode(), {"value": {}}, id="a long list"),
    ],
)
def test_a_checkpoint_is_short_in_its_row(text: bytes, checkpoint: dict[str, Any]) -> None:
    row = job_row(RUNNING, WATCHED, 0.0, None, (), Checkpoint(text=text))
    assert row["checkpoint"] == checkpoint


def sight(name: str, state: JobState, began: float) -> JobSnapshot:
    return JobSnapshot("m", JobSeen(state=state, job_id=f"{name}-{began}", session=name, started=began))


def test_jobs_that_are_not_over_come_first_and_then_the_newest() -> None:
    seen = [
        sight("new", JobState.ENDED, 9.0),
        sight("long", JobState.RUNNING, 1.0),
        sight("again", JobState.GONE, 5.0),
        sight("again", JobState.ENDED, 4.0),
        sight("waits", JobState.PENDING, 2.0),
        replace(sight("cut", JobState.RUNNING, 3.0), trouble="it does not answer"),
    ]
    found = shown_first(seen)
    assert [*found] == ["m/cut", "m/waits", "m/long", "m/new", "m/again"]
    assert found["m/again"].state == "gone"


def test_secrets_of_a_command_are_hidden() -> None:
    shown = hidden("curl -H 'Authorization: Bearer abcdefgh12345678' --data our-own-word x\x1b[31m", ("our-own-word",))
    assert "abcdefgh12345678" not in shown
    assert "our-own-word" not in shown
    assert "\x1b" not in shown
