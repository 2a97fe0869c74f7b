"""Writes docs/benchmarks.md and its plots from what a run has measured: python -m bench.document FILE.json ..."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
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
    "sync-ignore": "A tree with many .gitignore files",
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


def page(runs: Sequence[Measured]) -> str:
    """The page: what was measured, where and when; every row, also those in which we are behind.

    A subject that several runs have measured is shown of the last one.
    """
    last = {row["subject"]: number for number, run in enumerate(runs) for row in run["rows"]}
    shown = [row for number, run in enumerate(runs) for row in run["rows"] if last[row["subject"]] == number]
    facts = [_facts(run, [row for row in run["rows"] if last[row["subject"]] == at]) for at, run in enumerate(runs)]
    parts = [INTRODUCTION, f"|{' |' * (len(runs) + 1)}\n|{'---|' * (len(runs) + 1)}\n"]
    parts += [f"| {' | '.join((name, *(each[name] for each in facts)))} |\n" for name in facts[0]]
    drawings = plots(shown)
    for subject in (name for name in TITLES if name in last):
        rows = [row for row in shown if row["subject"] == subject]
        parts.append(f"\n## {TITLES[subject]}\n")
        if subject in drawings:
            parts.append(_picture(subject, drawings[subject]))
        if len(runs) > 1:
            parts.append(f"\nMeasured on {runs[last[subject]]['date']}, at commit `{runs[last[subject]]['commit']}`.\n")
        parts.append("\n| what | ours | other | | ratio |\n|---|---:|---:|---|---:|\n")
        parts += [_line(row) for row in rows]
    return "".join(parts)


def _facts(run: Measured, rows: Sequence[Measured]) -> dict[str, str]:
    behind = [row for row in rows if row["ratio"] and row["ratio"] > 1]
    host = run["host"]
    return {
        "date": run["date"],
        "commit": f"`{run['commit']}`",
        "machine": f"{host['cores']} cores, Linux {host['kernel']}, Python {host['python']}",
        "load average": f"{run['load_before']} before, {run['load_after']} after",
        "others": run["peer"] or "not installed",
        "rows": f"{len(rows)}; in {len(behind)} of them we are behind",
        "to be known": " ".join(_notices(run)) or "nothing disturbed it",
    }


def _notices(run: Measured) -> list[str]:
    said = [*run["failures"], *run["remarks"]]
    if run.get("is_quick"):
        said.append("This was a first look, with few rounds and less data.")
    busy = [name for name, share in run["busy_before"].items() if share > 0.1]
    if busy:
        said.append(f"Other work used this machine right before {', '.join(busy)}.")
    return said


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
    parser.add_argument("file", type=Path, nargs="+", help="of several runs, the later one counts for a subject")
    runs: list[Measured] = [json.loads(file.read_text(encoding="utf-8")) for file in parser.parse_args().file]
    (DOCS / "benchmarks.md").write_text(page(runs), encoding="utf-8")
    for old in DOCS.glob("benchmarks-*.svg"):
        old.unlink()
    for name, plot in plots([row for run in runs for row in run["rows"]]).items():
        for mode, scheme in SCHEMES.items():
            (DOCS / f"benchmarks-{name}-{mode}.svg").write_text(drawn(plot, scheme), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
