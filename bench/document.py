"""Writes docs/benchmarks.md and its plots from what a run has measured: python -m bench.document FILE.json."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .curves import SCHEMES, Curve, Plot, drawn
from .report import amount

DOCS = Path(__file__).resolve().parents[1] / "docs"
Measured = Mapping[str, Any]
# What is shown of each subject, for people who have not read the bench; those that are drawn come first.
TITLES = {
    "latency": "A command, over distance",
    "results": "From the start to the first result",
    "copies": "Copies, over the number of files and the distance",
    "crowd": "Calls at once",
    "fleet": "A command on many machines",
    "memory": "Memory of sessions",
    "container": "A command in a container",
    "opensandbox": "An OpenSandbox platform",
    "exec": "A command on a machine next door",
    "distance": "A command on a machine far away",
    "burst": "Many calls at once",
    "fair": "One client beside a busy one",
    "growth": "What does not grow with use",
    "survey": "Asking a fleet how busy it is",
    "output": "Long output",
    "start": "Start",
    "cli": "The command line",
    "hub": "Many clients",
    "local": "The local sandbox",
    "embedded": "Disposable sandboxes",
    "jobs": "Jobs",
    "slurm": "Slurm",
    "workspace": "Workspaces",
    "sync-first": "The first copy of a session",
    "sync-small": "Copying small files",
    "sync-many": "Copying many files",
    "sync-bulk": "Copying much",
    "sync-delta": "Copying a change in a large file",
    "sync-text": "Copying text",
    "sync-memory": "Memory while copying",
}
INTRODUCTION = """# Benchmarks

`make bench` writes this page. What is compared in a row was measured in one run, in turns, on one machine: whatever
slows it down slows everybody down. So read the ratios (ours divided by the other; below 1, ours is better), not the
times. Distance is simulated: a program holds each byte back for half of the round trip. In the pictures, equal heights
are equal ratios.

"""


def page(run: Measured, when: str, commit: str) -> str:
    """The page: what was measured, where and when; every row, also those in which we are behind."""
    rows: Sequence[Measured] = run["rows"]
    behind = [row for row in rows if row["ratio"] and row["ratio"] > 1]
    host = run["host"]
    facts = {
        "date": when,
        "commit": f"`{commit}`",
        "machine": f"{host['cores']} cores, Linux {host['kernel']}, Python {host['python']}",
        "load average": f"{run['load_before']} before, {run['load_after']} after",
        "others": run["peer"] or "not installed",
        "rows": f"{len(rows)}; in {len(behind)} of them we are behind",
    }
    parts = [
        INTRODUCTION,
        "| | |\n|---|---|\n",
        *(f"| {name} | {fact} |\n" for name, fact in facts.items()),
        *(_notice(run)),
    ]
    known = [*TITLES]
    drawings = plots(rows)
    for subject in sorted({row["subject"] for row in rows}, key=lambda it: known.index(it) if it in known else 99):
        parts.append(f"\n## {TITLES.get(subject, subject)}\n")
        if subject in drawings:
            parts.append(_picture(subject, drawings[subject]))
        parts.append("\n| what | ours | other | | ratio |\n|---|---:|---:|---|---:|\n")
        parts += [_line(row) for row in rows if row["subject"] == subject]
    return "".join(parts)


def _notice(run: Measured) -> list[str]:
    said = [*run["failures"], *run["remarks"]]
    if run.get("is_quick"):
        said.append("This was a first look, with few rounds and less data.")
    busy = [name for name, share in run["busy_before"].items() if share > 0.1]
    if busy:
        said.append(f"Other work used this machine right before {', '.join(busy)}.")
    return ["\n" + "".join(f"- {line}\n" for line in said)] if said else []


def _line(row: Measured) -> str:
    other = "" if row["baseline"] is None else amount(row["baseline"], row["unit"])
    ratio = f"{row['ratio']:.2f}" if row["ratio"] else ""
    return f"| {row['name']} | {amount(row['ours'], row['unit'])} | {other} | {row['against']} | {ratio} |\n"


def _picture(name: str, plot: Plot) -> str:
    file = f"benchmarks-{name}"
    return (
        f'\n<picture><source media="(prefers-color-scheme: dark)" srcset="{file}-dark.svg">'
        f'<img src="{file}-light.svg" alt="{plot.title}: {plot.unit} over {plot.axis}"></picture>\n'
    )


def plots(rows: Sequence[Measured]) -> dict[str, Plot]:
    """What is drawn, by subject: the rows that have a place on an axis."""
    placed = [row for row in rows if "at" in row["detail"]]
    return {name: _plot(name, [row for row in placed if row["subject"] == name]) for name in _subjects(placed)}


def _subjects(rows: Sequence[Measured]) -> list[str]:
    return list(dict.fromkeys(row["subject"] for row in rows))


def _plot(subject: str, rows: Sequence[Measured]) -> Plot:
    ours: dict[tuple[str, str], dict[float, float]] = {}
    others: dict[tuple[str, str], dict[float, float]] = {}
    for row in rows:
        at, group = row["detail"]["at"], row["detail"]["group"]
        ours.setdefault((row["detail"]["who"], group), {})[at] = row["ours"]
        others.setdefault((row["against"], group), {})[at] = row["baseline"]
    groups = list(dict.fromkeys(group for _, group in ours))
    rivals = list(dict.fromkeys(who for who, _ in others))
    # Colours tell distances apart where there are several, and programs otherwise.
    curves = [
        Curve(
            ", ".join(filter(None, key)),
            points,
            groups.index(key[1]) if len(groups) > 1 else number,
            0 if key in ours else 1 + (rivals.index(key[0]) if len(groups) > 1 else 0),
        )
        for number, (key, points) in enumerate({**ours, **others}.items())
    ]
    return Plot(TITLES[subject], rows[0]["detail"]["axis"], rows[0]["unit"], curves)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    run: Measured = json.loads(parser.parse_args().file.read_text(encoding="utf-8"))
    words = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    (DOCS / "benchmarks.md").write_text(page(run, today, commit), encoding="utf-8")
    for name, plot in plots(run["rows"]).items():
        for mode, scheme in SCHEMES.items():
            (DOCS / f"benchmarks-{name}-{mode}.svg").write_text(drawn(plot, scheme), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
