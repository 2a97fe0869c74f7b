"""Writes docs/benchmarks.md and its plots from what a run has measured: python -m bench.document FILE.json."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .report import amount

DOCS = Path(__file__).resolve().parents[1] / "docs"
Measured = Mapping[str, Any]
# What is shown of each subject, for people who have not read the bench.
TITLES = {
    "exec": "A command on a machine next door",
    "distance": "A command on a machine far away",
    "burst": "Calls at once",
    "survey": "Asking a fleet how busy it is",
    "output": "Long output",
    "start": "Start",
    "cli": "The command line",
    "hub": "Many clients",
    "local": "The local sandbox",
    "embedded": "Disposable sandboxes",
    "opensandbox": "An OpenSandbox platform",
    "jobs": "Jobs",
    "slurm": "Slurm",
    "workspace": "Workspaces",
    "sync-small": "Copying small files",
    "sync-many": "Copying many files",
    "sync-bulk": "Copying much",
    "sync-delta": "Copying a change in a large file",
    "sync-text": "Copying text",
    "sync-memory": "Memory while copying",
}


@dataclass(frozen=True)
class Colours:
    """Of one plot: background, text, grid, and the two that are compared."""

    ground: str
    text: str
    grid: str
    ours: str
    other: str


SCHEMES = {
    "light": Colours("#ffffff", "#24292f", "#d8dee4", "#3949ab", "#9a6700"),
    "dark": Colours("#0d1117", "#e6edf3", "#30363d", "#8c9eff", "#e3b341"),
}


@dataclass(frozen=True)
class Bar:
    """One pair of the plot."""

    name: str
    ours: float
    other: float
    unit: str
    against: str


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
        "published peer": run["peer"] or "not installed",
        "rows": f"{len(rows)}; in {len(behind)} of them we are behind",
    }
    parts = [
        "# Benchmarks\n\n`make bench` writes this page. What is compared in a row was measured in one run, in turns,\n"
        "on one machine: whatever slows it down slows everybody down. So read the ratios (ours divided by the other;\n"
        "below 1 we are faster), not the times.\n\n| | |\n|---|---|\n",
        *(f"| {name} | {fact} |\n" for name, fact in facts.items()),
        *(_notice(run)),
        *(_picture(name) for name in plots(rows)),
    ]
    for subject in dict.fromkeys(row["subject"] for row in rows):
        parts.append(
            f"\n## {TITLES.get(subject, subject)}\n\n| what | ours | other | | ratio |\n|---|---:|---:|---|---:|\n"
        )
        parts += [_line(row) for row in rows if row["subject"] == subject]
    return "".join(parts)


def _notice(run: Measured) -> list[str]:
    said = [*run["failures"], *run["remarks"]]
    busy = [name for name, share in run["busy_before"].items() if share > 0.1]
    if busy:
        said.append(f"Other work used this machine right before {', '.join(busy)}.")
    return ["\n" + "".join(f"- {line}\n" for line in said)] if said else []


def _line(row: Measured) -> str:
    other = "" if row["baseline"] is None else amount(row["baseline"], row["unit"])
    ratio = f"{row['ratio']:.2f}" if row["ratio"] else ""
    return f"| {row['name']} | {amount(row['ours'], row['unit'])} | {other} | {row['against']} | {ratio} |\n"


def _picture(name: str) -> str:
    return f"\n![{name}: ours and the other, as bars](benchmarks-{name}-light.svg)\n"


def plots(rows: Sequence[Measured]) -> dict[str, list[Bar]]:
    """What is drawn: latency over distance, and copies over distance."""
    latency = [_bar(row) for row in rows if row["subject"] in ("exec", "distance") and "ssh" in row["against"]]
    copies = [
        _bar(row)
        for row in rows
        if re.match(r"sync-(small|delta)", row["subject"]) and row["unit"] == "s" and row["baseline"]
    ]
    return {name: bars for name, bars in (("latency", latency), ("copies", copies)) if bars}


def _bar(row: Measured) -> Bar:
    return Bar(row["name"], row["ours"], row["baseline"], row["unit"], row["against"])


def drawn(bars: Sequence[Bar], colours: Colours) -> str:
    """An SVG without any script or font of its own."""
    left, right, height = 330, 110, 46
    longest = max(max(bar.ours, bar.other) for bar in bars)
    width = 900
    scale = (width - left - right) / longest
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {len(bars) * height + 20}" '
        f'font-family="sans-serif" font-size="13" fill="{colours.text}">',
        f'<rect width="100%" height="100%" fill="{colours.ground}"/>',
    ]
    for number, bar in enumerate(bars):
        top = 10 + number * height
        lines.append(f'<text x="{left - 10}" y="{top + 22}" text-anchor="end">{_escaped(bar.name)}</text>')
        for place, (value, colour, name) in enumerate(
            ((bar.ours, colours.ours, "ours"), (bar.other, colours.other, bar.against))
        ):
            y = top + place * 18
            lines.append(
                f'<rect x="{left}" y="{y}" width="{max(1.0, value * scale):.1f}" height="15" fill="{colour}"/>'
            )
            words = f"{name} {amount(value, bar.unit)}"
            lines.append(
                _label(left + value * scale, y + 12, words, colours, is_far=value * scale > width - left - right - 90)
            )
        lines.append(f'<path d="M{left} {top + height - 5}H{width}" stroke="{colours.grid}"/>')
    return "\n".join([*lines, "</svg>", ""])


def _label(end: float, y: float, words: str, colours: Colours, *, is_far: bool) -> str:
    """Beside its bar; in it where there is no room beside it."""
    at = f'x="{end - 6:.1f}" text-anchor="end" fill="{colours.ground}"' if is_far else f'x="{end + 6:.1f}"'
    return f'<text {at} y="{y}" font-size="11">{_escaped(words)}</text>'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("`", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    run: Measured = json.loads(parser.parse_args().file.read_text(encoding="utf-8"))
    words = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    (DOCS / "benchmarks.md").write_text(page(run, today, commit), encoding="utf-8")
    for name, bars in plots(run["rows"]).items():
        for scheme, colours in SCHEMES.items():
            (DOCS / f"benchmarks-{name}-{scheme}.svg").write_text(drawn(bars, colours), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
