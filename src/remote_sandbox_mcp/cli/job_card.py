"""One task as a card for people: how it stands, what it is, how far it is, and the end of its log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.jobs.curves import progress_of
from ..core.jobs.job import Checkpoint, JobSeen, JobUsage
from ..core.jobs.log import without_exit_line
from ..core.jobs.queue import pending_text, queue_text
from ..core.task import LIVE, Report, TaskSeen, TaskState, name_of, outcome_of
from ..core.texts.text import harmless, span
from .render import COMMAND, Page, one_line, size, styled

if TYPE_CHECKING:
    from rich.text import Text

    from ..core.jobs.curves import JobMetrics
    from ..core.jobs.watch import Watch

LINES = 10
BAR = 20


def show(seen: TaskSeen, sandbox: str, watch: Watch | None) -> None:
    """Print the card."""
    page, name = Page(), name_of(seen)
    where = f"on {sandbox}" if sandbox else ""
    page.print(styled((one_line(name), "bold"), (f"  {where}", "dim")))
    page.rows(((styled((title, "dim")), text) for title, text in _rows(page, seen, watch) if str(text)), indent=2)
    if lines := _log(seen):
        page.print("", *(styled((f"  {line}", "")) for line in lines[-LINES:]))
    if isinstance(seen, JobSeen):
        rest = "logs -f" if outcome_of(seen).state in LIVE else "logs"
        page.print("", styled((f"  all of its log: {COMMAND} jobs {rest} {one_line(name)}", "dim")))


def _rows(page: Page, seen: TaskSeen, watch: Watch | None) -> Iterator[tuple[str, Text | str]]:
    from .jobs import STYLES

    now, outcome = time.time(), outcome_of(seen)
    seconds = seen.seconds if isinstance(seen, JobSeen) else 0.0
    after = span(seconds) if seconds else ""
    live = f"{outcome.state.value} for {after}" if after else outcome.state.value
    text = live if outcome.state in LIVE else outcome.text(now, after)
    yield "state", styled((text, STYLES[outcome.state.value]))
    if not isinstance(seen, JobSeen):
        yield "started", "by a call of exec_bash" if isinstance(seen, Report) else "by a call that keeps its state"
        return
    if seen.recalled:
        yield "", styled((f"as it was last seen: {one_line(seen.recalled)}", "yellow"))
    yield "command", one_line(seen.command)
    yield "folder", one_line(seen.cwd)
    waits = pending_text(seen.queue, now).removeprefix("pending: ") if seen.is_unplaced and not seen.is_over else ""
    yield "waits", one_line(waits)
    yield "queue", one_line(queue_text(seen, now))
    yield from _progress(page, seen.checkpoint, watch)
    yield from _metrics(seen.metrics) if seen.metrics else ()
    yield "uses", _usage(seen.usage) if seen.usage and outcome.state is TaskState.RUNNING else ""
    yield "watched", _watched(watch, now) if watch and not outcome.is_over else ""


def _progress(page: Page, found: Checkpoint | None, watch: Watch | None) -> Iterator[tuple[str, Text | str]]:
    text = harmless(found.text) if found and not found.problem else watch.last_checkpoint if watch else ""
    if not text:
        return
    if progress := progress_of(None, text):
        yield "progress", page.bar(progress.share, BAR) + styled((f" {progress.words}", ""))
    else:
        yield "checkpoint", one_line(text[-200:])


def _metrics(metrics: JobMetrics) -> Iterator[tuple[str, str]]:
    numbers = [
        f"{one_line(name)} {each.last:g} (min {each.min:g}) {each.trend}" for name, each in metrics.values.items()
    ]
    yield "numbers", "; ".join(number.strip() for number in numbers[:4])
    yield "left", "" if metrics.left_s is None else f"about {span(metrics.left_s)}"


def _usage(usage: JobUsage) -> str:
    cards = [f"GPU {index}: {used / 1024:.0f} GB" for index, used in sorted(usage.gpus.items())]
    count = f"{usage.processes} process{'' if usage.processes == 1 else 'es'}"
    return ", ".join([count, size(usage.memory_mb * 1e6), *cards])


def _watched(watch: Watch, now: float) -> str:
    policy = watch.policy
    resumes = f"resumes by itself, {watch.resume_attempts} of {policy.max_resume_attempts} attempts used"
    checked = f"last check {span(now - watch.checked)} ago" if watch.checked else ""
    return ", ".join(filter(None, (resumes if policy.auto_resume else "", checked)))


def _log(seen: TaskSeen) -> list[str]:
    if isinstance(seen, JobSeen):
        return harmless(without_exit_line(seen.log, seen.exit_code)).rstrip("\n").split("\n") if seen.log else []
    if isinstance(seen, Report):
        text = "\n".join(filter(None, (seen.stdout.text, seen.stderr.text)))
        return text.rstrip("\n").split("\n") if text else []
    return []
