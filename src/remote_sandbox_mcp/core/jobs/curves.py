"""Curves of a job: its numbers over its steps, from its log and its checkpoint; its progress, and its ETA."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .log import without_sequences

# A longer line is read up to here; more names than these, and more points of one, are not kept.
LONGEST_LINE, MOST_NAMES, MOST_POINTS = 1000, 24, 600
# How many points at the end make a trend, at most, and by how much their mean must differ from that of those before.
TREND_POINTS, FLAT = 20, 0.005
# A word of a name that says that its number is worth a curve: ports, pids and sizes are not.
_WORTH = frozenset(
    re.findall(
        "[a-z0-9]+",
        "loss losses acc accuracy acc1 acc5 top1 top5 lr learning ppl perplexity f1 auc auroc bleu rouge chrf mae mse "
        "rmse r2 reward score iou miou dice psnr ssim kl elbo entropy precision recall fid nll bpb bpc norm wer cer "
        "mfu throughput tps samples tokens metric",
    )
)
_NUMBER = r"[-+]?(?:\d{1,15}(?:\.\d{0,17})?(?:[eE][-+]?\d{1,3})?|\.\d{1,17}|nan\b|inf\b)"
# Each repetition is bounded, and each begins where a word begins: the time is linear in the length of the line.
_PAIR = re.compile(
    rf"(?<![\w.@/-])(?:(train|training|val|valid|validation|eval|test) )?([A-Za-z][\w.@/-]{{0,39}})"
    rf"[\"']?(?:\s{{0,3}}[:=]\s{{0,3}}|\s{{1,3}})[\"']?({_NUMBER})(?![\w.])",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"(?<![\w.])(global[_ ]step|steps?|iterations?|iters?|updates?|batch|epochs?)[\"']?"
    r"\s{0,2}[:=#]?\s{0,2}[\"'\[(]?\s{0,6}(\d{1,15}(?:\.\d{1,6})?)[\])]?(?:\s{0,2}(?:/|of)\s{0,4}(\d{1,15}))?(?![\w.])",
    re.IGNORECASE,
)
# tqdm: 10%|#   | 100/1000 [00:12<01:48, 8.3it/s]; torchvision: [ 10/391] eta: 0:05:13; keras: 469/469 ━━━━ 2s 3ms/step
_BAR = re.compile(r"\d%\|[^|]{0,300}\| {0,4}(\d{1,15})/(\d{1,15}) \[[\d:.]{1,12}<([\d:]{1,12})?")
_BRACKET = re.compile(r"\[ {0,8}(\d{1,15})/(\d{1,15})\](?:\s{1,3}eta: ([\d:]{1,12}))?")
_KERAS = re.compile(r"\s{0,4}(\d{1,15})/(\d{1,15}) (?:[━╸ ]{1,40}|\[[=>.]{1,40}\]) ")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)")
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Metric:
    """One number of a job in short; `trend` is falling, rising, flat, nan or, with too few points, empty."""

    last: float
    min: float
    trend: str


@dataclass(frozen=True)
class JobMetrics:
    """Curves of a job in short, and seconds until its end; None where that cannot be told."""

    values: Mapping[str, Metric] = field(default_factory=dict)
    left_s: float | None = None


class Curve:
    """Points (step, value, time) of one number; of many, every second one is kept, again and again."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float, float | None]] = []
        self.last = self.min = math.nan
        self._every = 1
        self._count = 0

    def add(self, step: float, value: float, time: float | None) -> None:
        self.last = value
        if not math.isfinite(value):
            return
        self.min = value if math.isnan(self.min) else min(self.min, value)
        # A job that goes on from an earlier checkpoint draws its curve anew from there.
        while self.points and self.points[-1][0] > step:
            self.points.pop()
        if self.points and self.points[-1][0] == step:
            self.points[-1] = (step, value, time)
            return
        self._count += 1
        if self._count % self._every == 0:
            self.points.append((step, value, time))
        if len(self.points) > MOST_POINTS:
            self.points, self._every = self.points[::2], 2 * self._every

    @property
    def metric(self) -> Metric:
        return Metric(self.last, self.min, self._trend())

    def _trend(self) -> str:
        if not math.isfinite(self.last):
            return "nan"
        values = [value for _, value, _ in self.points]
        size = min(TREND_POINTS, len(values) // 2)
        if size < 2:
            return ""
        before, now = sum(values[-2 * size : -size]) / size, sum(values[-size:]) / size
        if abs(now - before) <= FLAT * max(abs(before), abs(now)):
            return "flat"
        return "falling" if now < before else "rising"


class Curves:
    """All curves of a job, fed with its log piece by piece."""

    def __init__(self) -> None:
        self.curves: dict[str, Curve] = {}
        self.time: float | None = None
        self.left_s: float | None = None
        # Where it is: an epoch and its batches are counted as steps of the whole.
        self._epoch: tuple[float, float] | None = None
        self._step = 0.0
        self._total: float | None = None
        # Bars by their ends: what earlier ones came to, and where this one is; and the end of the last bar.
        self._bars: dict[float, tuple[float, float]] = {}
        self._end = 0.0
        # The first two steps that it said.
        self._firsts: list[float] = []

    @property
    def share(self) -> float | None:
        """The finished share of all steps, if the log says how many there are."""
        return min(1.0, self._step / self._total) if self._total else None

    def feed(self, text: str) -> None:
        """Read whole lines; a progress bar that overwrites itself is many of them."""
        for line in text.replace("\r", "\n").split("\n"):
            # Without a digit there is no number.
            if any(letter.isdigit() for letter in line[:LONGEST_LINE]):
                self._line(without_sequences(line[:LONGEST_LINE]).replace("\b", ""))

    def feed_checkpoint(self, value: object, depth: int = 1) -> None:
        """Add the numbers of a checkpoint, at its step; one of the Hugging Face Trainer has all of them so far."""
        if isinstance(value, Mapping):
            history = value.get("log_history") if depth else None
            for each in history if isinstance(history, list) else ():
                self.feed_checkpoint(each, 0)
            names = ("step", "global_step", "iteration", "epoch")
            step: Any = next((value[name] for name in names if name in value), None)
            if _is_finite(step):
                found = (name for name, number in value.items() if _is_finite(number) and _is_worth(str(name)))
                self._add([(str(name).lower()[:60], float(value[name])) for name in found], float(step))

    def _line(self, line: str) -> None:
        if found := _MOMENT.search(line):
            self.time = _moment(found)
        is_ours = self._read_step(line)
        pairs = [
            (_name(prefix, name), float(number)) for prefix, name, number in _PAIR.findall(line) if _is_worth(name)
        ]
        if pairs and not is_ours and not self._step:
            # Nothing counts: the lines are.
            self._add(pairs, max((len(curve.points) for curve in self.curves.values()), default=0) + 1.0)
        elif pairs:
            self._add(pairs, self._step)

    def _read_step(self, line: str) -> bool:
        """Whether the line says where the job is."""
        inner = _BAR.search(line) or _KERAS.match(line) or _BRACKET.search(line)
        outer = {name.lower().rstrip("s")[:5]: (float(at), float(of or 0)) for name, at, of in _STEP.findall(line)}
        epoch = outer.pop("epoch", None)
        if epoch is not None and (epoch[1] or epoch[0] == int(epoch[0])):
            self._epoch = epoch
        given = next(iter(outer.values()), None)
        if inner is not None:
            self._set_inner(float(inner[1]), float(inner[2]), inner[3] if inner.re.groups == 3 else None)
        elif given is not None:
            self._step, self._total = given[0], given[1] or self._total
        elif epoch is not None and self._total in (None, epoch[1] or None) and (epoch[1] or not self._step % 1):
            self._step, self._total = epoch[0], epoch[1] or None
        else:
            return False
        if len(self._firsts) < 2 and self._step not in self._firsts:
            self._firsts.append(self._step)
        return True

    def _set_inner(self, at: float, of: float, left: str | None) -> None:
        """Batch `at` of `of`: of the job or, where epochs are counted, of this epoch."""
        if self._epoch is None:
            self._set_bar(at, of, left)
            return
        number, epochs = self._epoch
        # "Epoch 1/10" is the first one, and so is "Epoch 0".
        before = max(0.0, math.ceil(number) - 1 if epochs else math.floor(number))
        self._step, self._total, self.left_s = before * of + at, epochs * of or None, None

    def _set_bar(self, at: float, of: float, left: str | None) -> None:
        """Many bars with one end are epochs that nobody counts; one that begins before another ended evaluates."""
        base, before = self._bars.get(of, (0.0, 0.0))
        is_open = self._bars.get(self._end, (0.0, 0.0))[1] < self._end
        if (is_open and of != self._end) or len(self._bars) > MOST_NAMES:
            return
        base += of if at < before else 0.0
        self._bars[of], self._end = (base, at), of
        self._step, self._total = base + at, None if base else of
        self.left_s = _seconds(left) if left and not base else None

    def _add(self, pairs: Sequence[tuple[str, float]], step: float) -> None:
        for name, number in pairs:
            if name in self.curves or len(self.curves) < MOST_NAMES:
                self.curves.setdefault(name, Curve()).add(step, number, self.time)

    @property
    def _begun(self) -> float:
        """The step with which it began: a resumed job's first one is far more than the distance of the first two."""
        first, second = self._firsts if len(self._firsts) == 2 else (0.0, 0.0)
        return 2 * first - second if first > 1.5 * (second - first) > 0 else 0.0

    def metrics(self, running_s: float, silent_s: float = 0.0, *, is_whole: bool = True) -> JobMetrics:
        """Sum up the curves, the loss first; the time left is what the job says, or follows from its steps so far.

        `is_whole`: the beginning of the log was read, too.
        """
        left = None if self.left_s is None else max(0.0, self.left_s - silent_s)
        if left is None and self.share is not None and self._total:
            left = left_of(self.share, running_s, self._begun / self._total if is_whole else 0.0)
        return JobMetrics({name: self.curves[name].metric for name in by_worth(self.curves)}, left)


def by_worth(names: Iterable[str]) -> list[str]:
    """Names of curves, the loss first."""
    return sorted(names, key=lambda name: (not name.endswith("loss"), len(name)))


def left_of(share: float, running_s: float, begun_at: float = 0.0) -> float | None:
    """Seconds until the end of what has reached `share` in this time, and began with another share."""
    done = share - begun_at if share > begun_at else share
    return (1 - share) * running_s / done if done > 0 and running_s > 0 else None


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _is_worth(name: str) -> bool:
    return not _WORTH.isdisjoint(_WORD.findall(name.lower()))


def _name(prefix: str, name: str) -> str:
    return f"{prefix} {name}".strip().lower()


def _seconds(text: str) -> float:
    """Seconds of a text such as 01:48 or 1:00:01."""
    total = 0.0
    for part in text.split(":"):
        total = 60 * total + float(part or 0)
    return total


def _moment(found: re.Match[str]) -> float | None:
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2]}").timestamp()
    except (ValueError, OverflowError):
        return None


# Its progress, from its checkpoint

# A name for what is done, and names for all of it.
_DONE_OF = (
    ("step", "total", "total_steps", "max_steps", "steps", "num_steps"),
    ("global_step", "total", "total_steps", "max_steps", "steps"),
    ("iteration", "total", "iterations", "max_iterations", "total_iterations"),
    ("iter", "total", "iters", "max_iters"),
    ("epoch", "epochs", "total_epochs", "max_epochs", "num_epochs"),
    ("batch", "batches", "total_batches"),
    ("done", "total"),
    ("current", "total"),
    ("completed", "total"),
)
_SHARES = ("percent", "pct", "percentage", "progress", "progress_pct")
# Only the end of a long text is read, and only so many digits: a search through any number of them takes seconds.
_LONGEST_TEXT = 2000
_FRACTION = re.compile(r"(\d[\d,_]{0,18})\s{0,20}(?:/|of)\s{0,20}(\d[\d,_]{0,18})")
_PERCENT = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s{0,20}%")


@dataclass(frozen=True)
class JobProgress:
    """The finished share, and the same in words."""

    share: float
    words: str


def progress_of(value: Any, text: str = "") -> JobProgress | None:
    """The progress in a checkpoint's JSON value or, where there is none, in its text."""
    if value is None:
        value = parsed(text)
    if isinstance(value, Mapping):
        return _of_mapping(value)
    if _is_number(value):
        return _of_share("percent", float(value))
    return _of_text(text[-_LONGEST_TEXT:])


def parsed(text: str) -> Any:
    """The JSON value of a text; None where it is none."""
    import json

    try:
        return json.loads(text) if len(text) <= 1 << 16 else None
    except (ValueError, RecursionError):
        return None


def _of_mapping(value: Mapping[str, Any]) -> JobProgress | None:
    for name, *totals in _DONE_OF:
        done = _number(value.get(name))
        total = next((found for each in totals if (found := _number(value.get(each))) and found > 0), None)
        if total and done is not None:
            return _of_pair(done, total, f"{name} ")
    name = next((each for each in _SHARES if _is_number(value.get(each))), "")
    return _of_share(name, float(value[name])) if name else None


def _of_text(text: str) -> JobProgress | None:
    if pair := _FRACTION.search(text):
        done, total = (float(re.sub("[,_]", "", digits)) for digits in pair.groups())
        if total > 0:
            return _of_pair(done, total)
    found = _PERCENT.search(text)
    return _of_share("percent", float(found[1])) if found else None


def _of_pair(done: float, total: float, name: str = "") -> JobProgress:
    return JobProgress(round(min(1.0, max(0.0, done / total)), 4), f"{name}{_amount(done)} / {_amount(total)}")


def _of_share(name: str, value: float) -> JobProgress:
    """0 to 1 is a share, unless the name says percent."""
    part = value if value <= 1 and not name.startswith("per") and "pct" not in name else value / 100
    part = min(1.0, max(0.0, part))
    return JobProgress(round(part, 4), f"{round(100 * part)}%")


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}".rstrip("0")


def _number(value: Any) -> float | None:
    """A job writes its checkpoint itself: numbers may be texts, and texts anything."""
    if isinstance(value, str) and len(value) <= 30:
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18 and math.isfinite(value)
