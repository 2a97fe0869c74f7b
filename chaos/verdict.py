"""What must hold at the end of every schedule."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Evidence:
    """What the job bore witness to, and what the watchdog wrote down."""

    testimony: list[str]
    watch: dict[str, Any] | None
    events: list[dict[str, Any]]
    # Somebody ended the job itself: then it has ended, and stays so.
    job_was_killed: bool
    # The server died before it could say whether it had started anything.
    start_was_cut: bool

    @property
    def starts(self) -> int:
        return sum(line.startswith("start") for line in self.testimony)

    @property
    def is_done(self) -> bool:
        return "done" in self.testimony


def complaints(seen: Evidence) -> list[str]:
    """Every rule that was broken, in words."""
    types = Counter(event["type"] for event in seen.events)
    found = []
    if "twice" in seen.testimony:
        found.append("it ran twice at once")
    if seen.is_done and any(line.startswith("start") for line in seen.testimony[seen.testimony.index("done") :]):
        found.append("it was started again after it had ended")
    if seen.testimony.count("done") > 1:
        found.append("it ended twice")
    return [*found, *_about_the_watch(seen, types)]


def _about_the_watch(seen: Evidence, types: Counter[str]) -> list[str]:
    if seen.watch is None:
        return [] if seen.start_was_cut and not seen.starts else ["its watch was lost"]
    if not seen.starts:
        return [] if seen.start_was_cut else ["it was never started"]
    status = seen.watch["status"]
    rules = {
        f"its watch is {status}, not completed": status != "completed",
        f"it has {types['completed']} completed events": types["completed"] != 1,
        # A job that was ended as soon as it had begun bears no witness.
        f"it started {seen.starts} times with {types['resume_started']} resumes": seen.starts
        > 1 + types["resume_started"],
        f"{types['interrupted']} interruptions for {types['resume_started']} resumes": types["interrupted"]
        < types["resume_started"],
        "it completed without having ended": not seen.is_done and not seen.job_was_killed,
    }
    return [text for text, is_broken in rules.items() if is_broken]
