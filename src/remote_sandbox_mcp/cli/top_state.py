"""State of `top`: machines and jobs as they are now, their order, the chosen job, and the effects of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core.resources.usage import MOST_POINTS, Point

Row = Mapping[str, Any]

IDLE, NAME, GPU = "idle", "name", "gpu"
SORTS = {"i": IDLE, "n": NAME, "g": GPU}
# What runs or may run comes first.
STATES = {"running": 0, "pending": 1, "unknown": 2, "gone": 3, "ended": 4}
COMMAND = "command"


class Wish(NamedTuple):
    """Action that a key asks for, and that is done elsewhere: quit, log, stop or resume, with the job's id."""

    what: str
    job: str = ""


@dataclass
class TopState:
    """Contents of the fleet's screen."""

    machines: dict[str, Row] = field(default_factory=dict)
    trends: dict[str, list[Point]] = field(default_factory=dict)
    jobs: dict[str, Row] = field(default_factory=dict)
    # GPU-hours by user.
    usage: dict[str, Row] = field(default_factory=dict)
    # Whether they are known at all.
    is_loaded: bool = False
    sort: str = IDLE
    filter: str = ""
    chosen: str = ""
    # How many machines are scrolled away.
    passed: int = 0
    is_filtering: bool = False
    is_helping: bool = False
    # What is to be confirmed, and what happened last.
    question: Wish | None = None
    note: str = ""

    # What comes

    def take(self, topic: str, put: Mapping[str, Row], gone: Sequence[str], whole: bool) -> None:
        """Rows that are new or different."""
        if topic == "trends":
            self._take_trends(put, gone)
            return
        rows = {"machines": self.machines, "jobs": self.jobs, "usage": self.usage}[topic]
        self.is_loaded = self.is_loaded or topic == "machines"
        if whole:
            rows.clear()
        rows.update(put)
        for id in gone:
            rows.pop(id, None)

    def _take_trends(self, put: Mapping[str, Row], gone: Sequence[str]) -> None:
        for name, row in put.items():
            before = [] if "points" in row else self.trends.get(name, [])
            self.trends[name] = [*before, *row.get("points", row.get("add", ()))][-MOST_POINTS:]
        for name in gone:
            self.trends.pop(name, None)

    # What is shown

    def shown_machines(self) -> list[Row]:
        orders: dict[str, Callable[[Row], Any]] = {
            IDLE: lambda row: (-row.get("idle_score", -1.0), row["name"]),
            NAME: lambda row: row["name"],
            GPU: lambda row: (-free_gpus(row), row["name"]),
        }
        return sorted(filter(self._fits_machine, self.machines.values()), key=orders[self.sort])

    def shown_jobs(self) -> list[Row]:
        fitting = [row for row in self.jobs.values() if self._fits_job(row)]
        return sorted(fitting, key=lambda row: (STATES.get(row["state"], len(STATES)), -row.get("began", 0.0)))

    def _fits_machine(self, row: Row) -> bool:
        return self.filter.lower() in row["name"].lower() or any(
            self._fits_job(job) for job in self.jobs.values() if job["sandbox"] == row["name"]
        )

    def _fits_job(self, row: Row) -> bool:
        text = " ".join(str(row.get(name, "")) for name in ("sandbox", "tmux_session", "state", "command"))
        return self.filter.lower() in text.lower()

    def chosen_job(self) -> Row | None:
        """The job that keys mean: the chosen one while it is shown, else the first."""
        rows = self.shown_jobs()
        return next((row for row in rows if job_id(row) == self.chosen), rows[0] if rows else None)

    # Keys

    def press(self, key: str) -> Wish | None:
        """Do what a key asks for; what is done elsewhere is returned."""
        self.note = ""
        if key == "ctrl-c":
            return Wish("quit")
        if self.question:
            wish, self.question = self.question, None
            return wish if key in ("y", "Y") else None
        if self.is_filtering:
            self._type(key)
        elif self.is_helping:
            self.is_helping = False
        else:
            return self._command(key)
        return None

    def _type(self, key: str) -> None:
        if key == "esc":
            self.filter = ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1:
            self.filter += key
        self.is_filtering = key not in ("esc", "enter")

    def _command(self, key: str) -> Wish | None:
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -(10**6), "end": 10**6}
        if key in moves:
            self._move(moves[key])
        elif key in SORTS:
            self.sort, self.passed = SORTS[key], 0
        elif key in ("page up", "page down"):
            self.passed = max(0, min(len(self.machines) - 1, self.passed + (5 if key == "page down" else -5)))
        elif key == "/":
            self.is_filtering = True
        elif key == "?":
            self.is_helping = True
        elif key == "esc":
            self.filter = ""
        return Wish("quit") if key == "q" else self._about_job(key)

    def _move(self, by: int) -> None:
        if ids := [job_id(row) for row in self.shown_jobs()]:
            now = ids.index(self.chosen) if self.chosen in ids else 0
            self.chosen = ids[max(0, min(len(ids) - 1, now + by))]

    def _about_job(self, key: str) -> Wish | None:
        row = self.chosen_job()
        if row is None:
            return None
        if key == "enter":
            return Wish("log", job_id(row))
        if key == "s":
            self._ask("stop", row, why_not_stopped(row))
        elif key == "r":
            self._ask("resume", row, why_not_resumed(row))
        return None

    def _ask(self, what: str, row: Row, why_not: str) -> None:
        self.note = why_not
        self.question = None if why_not else Wish(what, job_id(row))


def job_id(row: Row) -> str:
    return f"{row['sandbox']}/{row['tmux_session']}"


def who(row: Row) -> str:
    return f"{row['tmux_session']} on {row['sandbox']}"


def free_gpus(row: Row) -> float:
    """Return how much of its GPUs is free, all together; machines without any come last."""
    gpus = row.get("resources", {}).get("gpu", ())
    return sum(1.0 - gpu_share(gpu) for gpu in gpus) if gpus else -1.0


def gpu_share(gpu: Row) -> float:
    """Return how full a GPU is: by its memory or its compute, whichever is fuller."""
    return max(gpu.get("mem_used_pct") or 0.0, gpu.get("util_pct") or 0.0) / 100


def is_free(gpu: Row) -> bool:
    return gpu.get("state") == "free"


def why_not_stopped(row: Row) -> str:
    return "" if row["state"] in ("running", "pending", "unknown") else f"{who(row)} does not run"


def why_not_resumed(row: Row) -> str:
    if row.get("kind") == COMMAND:
        return f"{who(row)} is a command of exec_bash, which cannot be resumed"
    if row["state"] in ("running", "pending"):
        return f"{who(row)} is {row['state']}; it can be resumed when it is over"
    if not row.get("can_resume"):
        return f"no resume command; give one: jobs resume {row['tmux_session']} --command COMMAND"
    return ""
