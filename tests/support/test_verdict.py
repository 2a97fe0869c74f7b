"""What chaos says of notifications: none is lost, and none comes more often than it was sent."""

from __future__ import annotations

import pytest
from chaos.verdict import Evidence, complaints


@pytest.mark.parametrize(
    ("attempts", "arrived", "is_right"),
    [(1, 1, True), (2, 1, True), (2, 2, True), (1, 0, False), (2, 0, False), (1, 2, False)],
)
def test_a_notification_arrives_at_least_once_and_once_for_each_attempt(
    attempts: int, arrived: int, is_right: bool
) -> None:
    effect = {"event_id": 1, "state": "done", "problem": "", "attempts": attempts}
    seen = Evidence(
        testimony=["start 7", "done"],
        watch={"status": "completed"},
        events=[{"id": 1, "type": "completed", "payload": '{"exit_code": 0}'}],
        effects=[effect | {"channel": "file", "attempts": 1}, effect | {"channel": "webhook"}],
        received={1: arrived},
        files=frozenset({"1-completed.json"}),
        struck=frozenset(),
        job_was_killed=False,
        start_was_cut=False,
        code=0,
    )
    assert (complaints(seen) == []) is is_right
