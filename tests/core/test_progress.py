"""How far a job is, by its checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from remote_sandbox_mcp.core.jobs.curves import progress_of

PROGRESS = {
    "steps": ({"value": {"step": 50, "total_steps": 200}}, 0.25),
    "epochs": ({"value": {"epoch": 3, "epochs": 4}}, 0.75),
    "percent": ({"value": {"percent": 23.5}}, 0.235),
    "a share": ({"value": {"progress": 0.4}}, 0.4),
    "json as text": ({"text": '{"step": 1, "total": 2, "loss": 1.5}'}, 0.5),
    "words": ({"text": "epoch 3/12, loss 1.2"}, 0.25),
    "a percent sign": ({"text": "done: 42 %"}, 0.42),
    "more than all": ({"value": {"step": 300, "total": 200}}, 1),
    "nothing to tell": ({"text": "loss 1.2"}, None),
    "a list": ({"value": [1, 2]}, None),
    "a truth": ({"value": True}, None),
    "no number": ({"value": {"percent": float("nan")}}, None),
    "numbers as text": ({"value": {"step": "50", "total": "200"}}, 0.25),
    "an object that is no number": ({"value": {"step": 1, "total": {"toString": 1, "valueOf": 1}}}, None),
    "an object in the place of the step": ({"text": '{"step": {"toString": 1, "valueOf": 1}, "total": 2}'}, None),
    "the end of a long text": ({"text": f"1/2{'.' * 3000} 3/4"}, 0.75),
}


@pytest.mark.parametrize(("checkpoint", "share"), PROGRESS.values(), ids=PROGRESS)
def test_progress_is_read_from_a_checkpoint(checkpoint: dict[str, Any], share: float | None) -> None:
    found = progress_of(checkpoint.get("value"), checkpoint.get("text", ""))
    assert (found.share if found else None) == share


def test_a_checkpoint_of_many_digits_has_no_progress() -> None:
    assert progress_of(None, "x" + "1" * 65_000) is None
