"""Run the subjects, show the table. Speed is no test: only what fails to run makes the exit code 1."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.sshd import Fleet

from . import peer, report, rivals
from .host import BUSY_SHARE, Host, load_average, wait_for_calm
from .problems import NoPeer
from .report import Row
from .stage import Stage

SUBJECTS = (
    *(
        "exec",
        "distance",
        "burst",
        "fair",
        "growth",
        "survey",
        "output",
        "start",
        "cli",
        "hub",
        "local",
        "embedded",
        "opensandbox",
        "jobs",
    ),
    *("slurm", "workspace"),
    # As curves, beside everybody else: the plots of the page.
    *("latency", "results", "crowd", "fleet", "memory", "container", "copies"),
    *("sync-first", "sync-small", "sync-many", "sync-ignore", "sync-bulk", "sync-delta", "sync-text", "sync-memory"),
)


@dataclass
class Outcome:
    """Everything that a run has to say."""

    host: Host
    load_before: float
    date: str
    commit: str
    load_after: float = 0.0
    peer: str = ""
    is_quick: bool = False
    busy_before: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def warnings(self) -> Iterator[str]:
        if self.host.is_loaded(self.load_before):
            yield f"the load average was {self.load_before} before the start: judge by ratios, and repeat when quiet"
        busy = [f"{name} ({share:.0%})" for name, share in self.busy_before.items() if share > BUSY_SHARE]
        if busy:
            yield f"other work used this machine right before: {', '.join(busy)}"

    def as_json(self) -> str:
        return json.dumps(asdict(self) | {"rows": [row.as_json() for row in self.rows]}, indent=2, ensure_ascii=False)


def main() -> int:
    options = parse()
    # What was started is ended on the way out, which a plain SIGTERM would not pass.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    words = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    outcome = Outcome(Host.here(), load_average(), time.strftime("%Y-%m-%d"), commit, is_quick=options.quick)
    with _stage(options, outcome) as stage:
        for name in options.only:
            measure(name, stage, outcome, options.calm)
    outcome.load_after = load_average()
    show(outcome)
    if options.json:
        options.json.write_text(outcome.as_json() + "\n", encoding="utf-8")
    return 1 if outcome.failures else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=", description=__doc__)
    parser.add_argument("--only", type=_subjects, default=list(SUBJECTS), help=f"of {','.join(SUBJECTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and less data: a first look, not a result")
    calm = "wait up to so many seconds before each subject for other work on this machine to end"
    parser.add_argument("--calm", type=float, default=0.0, metavar="SECONDS", help=calm)
    stand_in = "let rsync take our place in the sync subjects: a trial of the bench, not a result"
    parser.add_argument("--stand-in", action="store_true", help=stand_in)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    return parser.parse_args()


def _subjects(text: str) -> Sequence[str]:
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in wanted if word not in SUBJECTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no subject is named {', '.join(unknown)}; there are {', '.join(SUBJECTS)}")
    return wanted


@contextmanager
def _stage(options: argparse.Namespace, outcome: Outcome) -> Iterator[Stage]:
    installed = None
    try:
        installed = peer.install()
        outcome.peer = installed.versions
    except NoPeer as reason:
        outcome.remarks.append(f"the peer's rows are left out, because it could not be installed: {reason}")
    others: Sequence[rivals.Rival] = ()
    try:
        others = rivals.install()
        outcome.peer = ", ".join(filter(None, (outcome.peer, *(rival.name for rival in others))))
    except NoPeer as reason:
        outcome.remarks.append(f"the rows of programs from npm are left out: {reason}")
    with TemporaryDirectory(prefix="bench-") as folder, Fleet() as fleet:
        yield Stage(Path(folder), fleet, installed, options.quick, options.stand_in, others)


def measure(name: str, stage: Stage, outcome: Outcome, patience_s: float) -> None:
    """One subject; where it fails, the others still have their turn."""
    outcome.busy_before[name] = wait_for_calm(patience_s)
    print(f"measuring: {name}", file=sys.stderr)
    try:
        for row in import_module(f".subjects.{name.replace('-', '_')}", __package__).rows(stage):
            outcome.rows.append(row)
    except Exception as problem:  # noqa: BLE001 - whatever it is, what the other subjects measured must not be lost
        outcome.failures.append(f"{name} failed to run: {type(problem).__name__}: {problem}")


def show(outcome: Outcome) -> None:
    if sys.stdout.isatty():
        report.show_rich(outcome.rows)
    else:
        print(report.plain_table(outcome.rows))
    print()
    print(f"{outcome.host}; load average {outcome.load_before} before, {outcome.load_after} after")
    if outcome.peer:
        print(f"peer: {outcome.peer}")
    for line in (*report.notes(outcome.rows), *outcome.remarks):
        print(f"- {line}")
    for line in (*outcome.warnings(), *outcome.failures):
        print(f"! {line}")


if __name__ == "__main__":
    sys.exit(main())
