"""A picture of a job's curves for clients that show images: a PNG, drawn by hand."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import chain

from .curves import Curve, by_worth

WIDTH, HEIGHT, EDGE = 480, 200, 6
# Of paper, of lines that help the eye, and of each curve; and what the curves' colours are called.
PALETTE = bytes.fromhex("ffffff e4e2dc 2f5bd0 b7791f 2f9e6e")
NAMES = ("blue", "brown", "green")


def picture_of(curves: Mapping[str, Curve]) -> tuple[bytes, str]:
    """The first curve, with others that are losses as well if it is one; and what is drawn. Without any, no bytes."""
    first, *others = by_worth(name for name, curve in curves.items() if curve.points) or [""]
    if not first:
        return b"", "no numbers to draw in its log or checkpoint"
    names = [first, *(name for name in others if name.endswith("loss") and first.endswith("loss"))][: len(NAMES)]
    lines = [[point[:2] for point in curves[name].points] for name in names]
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*chain(*lines), strict=True))
    said = ", ".join(f"{name} ({colour})" for name, colour in zip(names, NAMES, strict=False))
    return (
        _png([[_place(point, (left, right), (low, high)) for point in line] for line in lines]),
        f"{said} over steps {left:g} to {right:g}, from {low:.6g} to {high:.6g}",
    )


def _place(point: tuple[float, float], xs: tuple[float, float], ys: tuple[float, float]) -> tuple[int, int]:
    """The pixel of a point.

    >>> _place((0, 5.0), (0, 10), (5.0, 9.0)), _place((10, 9.0), (0, 10), (5.0, 9.0)), _place((3, 1.0), (3, 3), (1, 1))
    ((0, 194), (478, 6), (0, 194))
    """
    (x, y), (left, right), (low, high) = point, xs, ys
    # Halves, since the distance of two numbers may be none.
    across, up = (x - left) / (right - left or 1), (y / 2 - low / 2) / (high / 2 - low / 2 or 1)
    return round(across * (WIDTH - 2)), round(HEIGHT - EDGE - up * (HEIGHT - 2 * EDGE))


def _png(curves: Sequence[Sequence[tuple[int, int]]]) -> bytes:
    rows = [bytearray([y in (EDGE, HEIGHT // 2, HEIGHT - EDGE)]) * WIDTH for y in range(HEIGHT)]
    for colour, places in enumerate(curves, 2):
        for (x, y), (to_x, to_y) in zip(places, [*places[1:], places[-1]], strict=True):
            steps = max(abs(to_x - x), abs(to_y - y), 1)
            for at in range(steps + 1):
                column, row = x + (to_x - x) * at // steps, y + (to_y - y) * at // steps
                rows[row][column : column + 2] = rows[row + 1][column : column + 2] = bytes([colour, colour])
    pixels, head = b"".join(b"\0" + row for row in rows), struct.pack(">2I5B", WIDTH, HEIGHT, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", PALETTE), (b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
