"""Numbers of jobs, read from what trainers really print, and from what a hostile one may."""

from __future__ import annotations

import math
import time

import pytest

from remote_sandbox_mcp.core.jobs.curves import LONGEST_LINE, MOST_NAMES, MOST_POINTS, Curves
from remote_sandbox_mcp.core.jobs.log import last_error

HF = (
    " 10%|█         | 100/1000 [00:12<01:48,  8.31it/s]\r{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 4.5e-05, "
    "'epoch': 0.32}\n 20%|██        | 200/1000 [00:24<01:36,  8.31it/s]\r{'loss': '1.9', 'grad_norm': '1.1', "
    "'learning_rate': '4e-05', 'epoch': '0.64'}\n"
)
KERAS = "".join(
    f"Epoch {epoch}/3\n\x1b[1m469/469\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m2s\x1b[0m "
    f"3ms/step - accuracy: {accuracy} - loss: {loss}\n"
    for epoch, accuracy, loss in ((1, 0.87, 0.4567), (2, 0.97, 0.1))
)
LIGHTNING = "".join(
    f"Epoch 3:  45%|████▌     | {batch}/100 [00:03<00:04, 12.50it/s, v_num=0, train_loss={loss}]\r"
    for batch, loss in ((45, 0.234), (46, 0.233))
)
TORCHVISION = "".join(
    f"Epoch: [0]  [ {batch}/391]  eta: 0:05:13  lr: 0.1  loss: {loss} (7.0)  time: 0.8  data: 0.1  max mem: 1600\n"
    for batch, loss in ((10, 6.9), (20, 6.8))
)
NANOGPT = (
    "step 0: train loss 10.9886, val loss 10.9898\niter 0: loss 10.9883, time 123.45ms, mfu -100.00%\n"
    "iter 10: loss 9.9, time 120.1ms, mfu 12.30%\n"
)
STAMPED = "".join(
    f"2026-11-18 12:0{minute}:01,123 INFO epoch 3 of 90, step {step}: loss {loss} | acc 0.5\n"
    for minute, step, loss in ((0, 4000, 1.234), (1, 4100, 1.1))
)
# What is read, the curve of it, and the points (step, value).
TABLE = [
    (HF, "loss", [(100, 2.31), (200, 1.9)]),
    (HF, "learning_rate", [(100, 4.5e-05), (200, 4e-05)]),
    (KERAS, "loss", [(469, 0.4567), (938, 0.1)]),
    (KERAS, "accuracy", [(469, 0.87), (938, 0.97)]),
    (LIGHTNING, "train_loss", [(345, 0.234), (346, 0.233)]),
    (TORCHVISION, "loss", [(10, 6.9), (20, 6.8)]),
    (NANOGPT, "loss", [(0, 10.9883), (10, 9.9)]),
    (NANOGPT, "train loss", [(0, 10.9886)]),
    (STAMPED, "loss", [(4000, 1.234), (4100, 1.1)]),
    ("step 120/4000 loss=2.31\nstep 130/4000 loss=2.2\n", "loss", [(120, 2.31), (130, 2.2)]),
    ("Epoch 1/10, Loss: 0.7\nEpoch 2/10, Loss: 0.6\n", "loss", [(1, 0.7), (2, 0.6)]),
    ("loss=3\nloss=2\nloss: 1.5e0\n", "loss", [(1, 3.0), (2, 2.0), (3, 1.5)]),
    ('{"epoch": 1, "step": 10, "train_loss": 0.5}\n', "train_loss", [(10, 0.5)]),
    # A job that goes on from its checkpoint draws the curve anew from there.
    ("step 1 loss=5\nstep 2 loss=4\nstep 3 loss=3\nstep 2 loss=3.5\n", "loss", [(1, 5.0), (2, 3.5)]),
]


def read(text: str) -> Curves:
    curves = Curves()
    curves.feed(text)
    return curves


@pytest.mark.parametrize(("text", "name", "points"), TABLE)
def test_curves_of_what_trainers_print(text: str, name: str, points: list[tuple[float, float]]) -> None:
    assert [point[:2] for point in read(text).curves[name].points] == points


@pytest.mark.parametrize(
    "text",
    [
        "listening on port 8080\npid=1234 version 3.10.2\nInstalled 12 packages in 3s\n",
        "gcc -O2 -c lossy.c\n[ 12%] Building lossless.o\nreturn 1;\nerror: 12 files\n",
        "epoch 3\nstep 5\n",
    ],
)
def test_other_numbers_make_no_curve(text: str) -> None:
    assert not read(text).curves


BAR = "{}%|##  | {}/{} [00:03<00:04, 12.50it/s, loss={}]\n"


def test_bars_without_epochs_are_counted_on_and_an_evaluation_in_between_is_not() -> None:
    mapped = "Map: 100%|##| 25000/25000 [00:05<00:00, 5000 examples/s]\n"
    epochs = [(50, 50, 100, 3.0), (100, 100, 100, 2.0), (50, 50, 100, 1.5)]
    curves = read(mapped + "".join(BAR.format(*bar) for bar in epochs))
    assert [point[:2] for point in curves.curves["loss"].points] == [(50, 3.0), (100, 2.0), (150, 1.5)]
    assert curves.metrics(10.0).left_s is None
    between = read(BAR.format(1, 10, 1000, 3.0) + BAR.format(100, 79, 79, 0) + "{'eval_loss': 2.5}\n")
    assert [point[:2] for point in between.curves["eval_loss"].points] == [(10, 2.5)]
    assert between.metrics(10.0).left_s == 4


def test_lines_with_a_time_have_it() -> None:
    first, second = (point[2] for point in read(STAMPED).curves["loss"].points)
    assert first is not None
    assert second is not None
    assert second - first == 60


@pytest.mark.parametrize(
    ("text", "left_s"),
    [
        # The bar's own word, less the time since.
        (HF, 95),
        # 120 of 4000 is the first thing that a resumed job says: it has done 20 since 110, in 100 s.
        ("step 120/4000 loss=2.31\nstep 130/4000 loss=2.2\n", 3870 * 100 / 20),
        ("Epoch 1/10, Loss: 0.7\nEpoch 2/10, Loss: 0.6\n", 8 * 100 / 2),
        (KERAS, 100 / 2),
        # Of an epoch, of which nobody knows how many there are.
        (LIGHTNING, None),
        (TORCHVISION, None),
    ],
)
def test_time_left(text: str, left_s: float | None) -> None:
    found = read(text).metrics(100.0, 1.0).left_s
    assert found == (None if left_s is None else pytest.approx(left_s))


def test_in_short() -> None:
    curves = read("".join(f"step {step} lr=0.1 loss={100 - step} acc={step} val_loss=nan\n" for step in range(1, 50)))
    found = curves.metrics(1.0).values
    assert [*found][:2] == ["loss", "val_loss"]
    assert (found["loss"].last, found["loss"].min, found["loss"].trend) == (51, 51, "falling")
    assert (found["acc"].trend, found["lr"].trend, found["val_loss"].trend) == ("rising", "flat", "nan")
    assert math.isnan(found["val_loss"].last)


def test_checkpoints_have_numbers_too() -> None:
    curves = Curves()
    history = [{"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.0}, "?", {"step": True}]
    curves.feed_checkpoint({"global_step": 25, "log_history": history, "best_metric": 0.5, "name": "x"})
    assert [point[:2] for point in curves.curves["loss"].points] == [(10, 3.0), (20, 2.0)]
    assert [point[:2] for point in curves.curves["best_metric"].points] == [(25, 0.5)]
    curves.feed_checkpoint([1])
    for odd in (math.inf, math.nan, 10**400, True, "7", None, {}):
        curves.feed_checkpoint({"step": odd, "loss": 1.0})
        curves.feed_checkpoint({"step": 30, "loss": odd})
    assert len(curves.curves["loss"].points) == 2


def test_a_long_log_keeps_its_ends() -> None:
    curves = read("".join(f"step {step} loss={step}\n" for step in range(20_000)))
    points = curves.curves["loss"].points
    assert len(points) <= MOST_POINTS
    assert points[0][0] < 100
    assert points[-1][0] > 19_900
    many = read("".join(f"loss_{name}=1\n" for name in range(1000)))
    assert len(many.curves) == MOST_NAMES


HOSTILE = [
    "a" * 1000, "loss " * 200, "1" * 1000, "%|" * 500, "0%|" * 300, "epoch " * 160, "step 1" + " " * 990, "[ " * 500,
    "train " * 160, "a.b/c-" * 160, "\x1b[" * 500, "\x1b]" * 500, "loss=1 " * 140, "1/1 " + "━ " * 400, "nan " * 250,
    "loss=" + "9" * 990, "loss=1e" + "9" * 900, "step " + "9" * 900, "\b" * 1000, "'" * 1000,
]  # fmt: skip


def test_hostile_lines_take_linear_time() -> None:
    """A line of ten times the length takes about ten times as long, and a longer one no more than its beginning."""
    for line in HOSTILE:
        short, long = _seconds(line[: LONGEST_LINE // 10] + "1\n"), _seconds(line[:LONGEST_LINE] + "1\n")
        assert long < 60 * short + 0.005, line[:10]
        assert _seconds(line * 1000 + "\n") < 4 * long + 0.05, line[:10]


def _seconds(text: str) -> float:
    def once() -> float:
        begun = time.process_time()
        for _ in range(10):
            read(text)
        return time.process_time() - begun

    return min(once() for _ in range(3))


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (b"step 1\nTraceback (most recent call last):\n  File x\nRuntimeError: CUDA out of memory\nEXIT_CODE=1\n",
         "RuntimeError: CUDA out of memory"),
        (b"torch.OutOfMemoryError: no\nwandb: synced 5 files\n", "torch.OutOfMemoryError: no"),
        (b"bash: line 1: trian.py: command not found\nEXIT_CODE=127\n", "bash: line 1: trian.py: command not found"),
        (b"step 1\nerrors: 0\nbye\nEXIT_CODE=3\n", "bye"),
        (b"\x1b[31mmake: *** [all] Error 2\x1b[0m\n", "make: *** [all] Error 2"),
        (b"", ""),
    ],
)  # fmt: skip
def test_why_it_failed(log: bytes, line: str) -> None:
    assert last_error(log) == line
