"""Rows, verdicts and the table: plain text in a file or a pipe, rich on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

HEADINGS = ("what", "ours", "baseline", "", "ratio", "target", "")


@dataclass(frozen=True)
class Target:
    """What must hold: a bound for the ratio, or for the time or size itself."""

    limit: float
    of_ratio: bool = False

    def text(self, unit: str) -> str:
        return f"ratio ≤ {self.limit:g}" if self.of_ratio else f"≤ {self.limit:g} {unit}"


@dataclass(frozen=True)
class Row:
    """One line of the table. A target that cannot be judged here is `out_of_reach`, and the note says why."""

    subject: str
    name: str
    ours: float
    unit: str = "ms"
    baseline: float | None = None
    against: str = ""
    target: Target | None = None
    out_of_reach: bool = False
    note: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return self.ours / self.baseline if self.baseline else None

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None where there is none to judge."""
        if self.target is None or self.out_of_reach:
            return None
        value = self.ratio if self.target.of_ratio else self.ours
        return value is not None and value <= self.target.limit

    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            amount(self.ours, self.unit),
            "" if self.baseline is None else amount(self.baseline, self.unit),
            self.against,
            "" if self.ratio is None else f"{self.ratio:.2f}",
            self.target.text(self.unit) if self.target else "",
            {True: "✓", False: "✗", None: "·"}[self.holds],
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "holds": self.holds}


def amount(value: float, unit: str) -> str:
    """Three digits: there are no more in it."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def plain_table(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    numbers = (1, 2, 4)
    padded = (
        cell.rjust(width) if column in numbers else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def show_rich(rows: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if column in (1, 2, 4) else "left", no_wrap=column > 0)
    colours = {True: "green", False: "red", None: "dim"}
    for row in rows:
        *cells, verdict = row.cells()
        table.add_row(*cells, f"[{colours[row.holds]}]{verdict}[/]")
    Console().print(table)


def notes(rows: Sequence[Row]) -> list[str]:
    return [f"{row.name}: {row.note}" for row in rows if row.note]
