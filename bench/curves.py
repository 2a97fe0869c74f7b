"""Curves as pictures: SVG for light and dark pages, without any script or font of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Points = Mapping[float, float]
WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 20, 60
LEGEND_LINE, LEGEND_COLUMNS = 20, 3
DASHES = ("none", "8 4", "2 4")


@dataclass(frozen=True)
class Scheme:
    """Colours of one picture: its ground, text and grid, and those of its curves, ours first."""

    ground: str
    text: str
    grid: str
    curves: tuple[str, ...]


# Told apart also by those who see few colours.
SCHEMES = {
    "light": Scheme(
        "#ffffff", "#24292f", "#d8dee4", ("#3949ab", "#b35900", "#1a7f5a", "#a3206c", "#6e7781", "#8a6d00")
    ),
    "dark": Scheme("#0d1117", "#e6edf3", "#30363d", ("#8c9eff", "#ffa657", "#56d4a4", "#ff8cc8", "#9da7b1", "#e3c341")),
}


@dataclass(frozen=True)
class Curve:
    """One line: colour and dash by their numbers; that of ours has dash 0, which is none, and is thick."""

    name: str
    points: Points
    colour: int
    dash: int


@dataclass(frozen=True)
class Plot:
    """What is drawn of a subject; both axes have steps of equal ratio, or of the values that were measured."""

    title: str
    axis: str
    unit: str
    curves: Sequence[Curve]


def drawn(plot: Plot, scheme: Scheme) -> str:
    places = _places(plot)
    low, high = _bounds([value for curve in plot.curves for value in curve.points.values()])

    def y(value: float) -> float:
        share = (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    height = HEIGHT + LEGEND_LINE * -(-len(plot.curves) // LEGEND_COLUMNS) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="13" fill="{scheme.text}">',
        f"<title>{_escaped(plot.title)}</title>",
        f'<rect width="100%" height="100%" fill="{scheme.ground}"/>',
    ]
    for value in _ticks(low, high):
        lines.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="{scheme.grid}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g} {plot.unit}</text>')
    for at, x in places.items():
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{at:,g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - BOTTOM + 42}" text-anchor="middle">{_escaped(plot.axis)}</text>')
    # Ours last, above all others.
    for number, curve in reversed([*enumerate(plot.curves)]):
        look = _look(curve, scheme)
        path = " ".join(f"{places[at]:.1f},{y(value):.1f}" for at, value in sorted(curve.points.items()))
        lines.append(f'<polyline points="{path}" fill="none" {look}/>')
        row, column = divmod(number, LEGEND_COLUMNS)
        x, top = LEFT + column * 280, HEIGHT + row * LEGEND_LINE
        lines.append(f'<path d="M{x} {top - 4}h28" fill="none" {look}/>')
        lines.append(f'<text x="{x + 36}" y="{top}">{_escaped(curve.name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _places(plot: Plot) -> dict[float, float]:
    """Where each measured value is on the axis: as far from the next one as any other."""
    values = sorted({at for curve in plot.curves for at in curve.points})
    step = (WIDTH - LEFT - RIGHT - 40) / max(1, len(values) - 1)
    return {at: LEFT + 20 + number * step for number, at in enumerate(values)}


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Ticks around all values."""
    low, high = min(values), max(values)
    return max(it for it in _all_ticks() if it <= low), min(it for it in _all_ticks() if it > high)


def _ticks(low: float, high: float) -> list[float]:
    return [it for it in _all_ticks() if low <= it <= high]


def _all_ticks() -> list[float]:
    return [factor * 10.0**power for power in range(-6, 9) for factor in (1, 2, 5)]


def _look(curve: Curve, scheme: Scheme) -> str:
    colour, dash = scheme.curves[curve.colour % len(scheme.curves)], DASHES[curve.dash % len(DASHES)]
    return f'stroke="{colour}" stroke-width="{1.8 if curve.dash else 3.5}" stroke-dasharray="{dash}"'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("`", "")
