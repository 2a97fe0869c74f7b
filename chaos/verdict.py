"""What must hold at the end of every schedule against a job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .faults import LOSES_NOTICES


@dataclass(frozen=True)
class Evidence:
    """What the job bore witness to, what the watchdog wrote down, and what arrived of it."""

    testimony: list[str]
    watch: dict[str, Any] | None
    events: list[dict[str, Any]]
    # Announcements of the events: the rows, how often a webhook got each event, and the names of the events' files.
    effects: list[dict[str, Any]]
    received: Mapping[int, int]
    files: frozenset[str]
    struck: frozenset[str]
    # Somebody ended the job itself: then it has ended, and stays so.
    job_was_killed: bool
    # The server died before it could say whether it had started anything.
    start_was_cut: bool
    # The exit code with which the job ends.
    code: int

    @property
    def starts(self) -> int:
        return sum(line.startswith("start") for line in self.testimony)

    @property
    def is_done(self) -> bool:
        return "done" in self.testimony

    @property
    def undone(self) -> bool:
        """Whether something is still to be announced."""
        return any(effect["state"] in ("pending", "taken") for effect in self.effects)


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
    return [*found, *_about_the_watch(seen, types), *_about_notices(seen)]


def _about_the_watch(seen: Evidence, types: Counter[str]) -> list[str]:
    if seen.watch is None:
        return [] if seen.start_was_cut and not seen.starts else ["its watch was lost"]
    if not seen.starts:
        return [] if seen.start_was_cut else ["it was never started"]
    status = seen.watch["status"]
    codes = [json.loads(event["payload"]).get("exit_code") for event in seen.events if event["type"] == "completed"]
    rules = {
        f"its watch is {status}, not completed": status != "completed",
        f"it has {types['completed']} completed events": types["completed"] != 1,
        # A job that was ended as soon as it had begun bears no witness.
        f"it started {seen.starts} times with {types['resume_started']} resumes": seen.starts
        > 1 + types["resume_started"],
        f"{types['interrupted']} interruptions for {types['resume_started']} resumes": types["interrupted"]
        < types["resume_started"],
        "it completed without having ended": not seen.is_done and not seen.job_was_killed,
        f"it ended with {seen.code}, and is reported with {codes}": seen.is_done and codes != [seen.code],
    }
    return [text for text, is_broken in rules.items() if is_broken]


def _about_notices(seen: Evidence) -> list[str]:
    """Each event is announced on both channels: where that is recorded as done, once, or once for each attempt."""
    found = []
    types = {event["id"]: event["type"] for event in seen.events}
    for effect in seen.effects:
        number, channel, state = effect["event_id"], effect["channel"], effect["state"]
        is_file = f"{number}-{types.get(number)}.json" in seen.files
        times = seen.received.get(number, 0) if channel == "webhook" else int(is_file)
        what = f"event {number} ({types.get(number)}) on {channel}"
        # A receiver that answers too late, as on a busy machine, is sent the same event again.
        if state == "done" and not 1 <= times <= effect["attempts"]:
            found.append(f"{what} is recorded as sent in {effect['attempts']} attempts and arrived {times} times")
        elif state == "failed" and (times > 1 or not seen.struck & LOSES_NOTICES):
            found.append(f"{what} was not sent although nothing hindered it: {effect['problem']}")
        elif state not in ("done", "failed"):
            found.append(f"{what} is {state} in the end")
    expected = {(number, channel) for number in types for channel in ("file", "webhook")}
    missing = expected - {(effect["event_id"], effect["channel"]) for effect in seen.effects}
    return found + [f"{len(missing)} announcements were never wanted: {sorted(missing)[:3]}"] * bool(missing)
