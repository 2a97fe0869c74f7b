"""Rows of `jobs` and the card of `jobs show`, as people read them."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.cli.jobs import LEAST_COMMAND, _fitted, show_card
from remote_sandbox_mcp.core.jobs.job import Checkpoint, JobSeen, JobState

COMMAND = "python3 train.py --epochs 40 --batch-size 256 --learning-rate 3e-4 --data /data/imagenet"
ROW = ("llama-7b-with-a-very-long-name", "cluster-of-the-lab", "failed (exit 137)", "12 min", COMMAND)


@pytest.mark.parametrize("width", [80, 100, 110])
def test_a_row_keeps_its_command_in_whole_words(width: int) -> None:
    (row,) = _fitted([ROW], width)
    command = str(row[4])
    assert sum(map(len, map(str, row))) + 8 <= width
    assert len(command) >= LEAST_COMMAND - 12
    assert COMMAND.startswith(command.removesuffix(" …"))
    assert command.removesuffix(" …").split()[-1] in COMMAND.split()
    assert str(row[2]) == "failed (exit 137)"


def test_rows_with_room_are_whole() -> None:
    assert _fitted([ROW], 2000) == [ROW]


def test_a_card_says_how_a_job_stands_and_nothing_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    seen = JobSeen(
        state=JobState.ENDED, session="train", command=COMMAND, exit_code=3, seconds=65.0,
        log=b"loss 0.2\nEXIT_CODE=3\n", log_file="/home/ann/.codex_logs/train.log",
        checkpoint=Checkpoint(text=b'{"step": 1, "total": 4}'),
    )  # fmt: skip
    show_card(seen, "gpu1", None)
    said = capsys.readouterr().out
    assert "train  on gpu1" in said
    assert "failed with exit code 3 after 1 min" in said
    assert "step 1 / 4" in said
    assert "loss 0.2" in said
    assert "EXIT_CODE" not in said
    assert "codex_logs" not in said
