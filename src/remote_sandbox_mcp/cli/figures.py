"""Figures and names for people: sizes, times, paths, counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..tasks.log import size

if TYPE_CHECKING:
    from ..core.transfer import Headway

__all__ = ["ago", "clock", "count", "one_line", "percent", "share", "shorten", "size", "took"]


def clock(seconds: float) -> str:
    """
    >>> clock(1.234), clock(59.7), clock(83), clock(3725), clock(90000)
    ('1 s', '1:00', '1:23', '1:02:05', '25:00:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"


def took(seconds: float) -> str:
    """
    >>> took(0.04), took(1.234), took(83)
    ('0.0 s', '1.2 s', '1:23')
    """
    return f"{seconds:.1f} s" if seconds < 9.95 else clock(seconds)


def ago(seconds: float) -> str:
    """
    >>> ago(3), ago(200), ago(8000), ago(200000)
    ('3 s', '3 min', '2 h', '2 d')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def count(number: int, what: str) -> str:
    """
    >>> count(1, "file"), count(20000, "file")
    ('1 file', '20,000 files')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def share(headway: Headway) -> float:
    """How much is done, by bytes where there are any."""
    done, total = (headway.bytes, headway.bytes_total) if headway.bytes_total else (headway.files, headway.files_total)
    return min(1.0, done / total) if total else 0.0


def percent(headway: Headway) -> str:
    """Rounded down: what is not done is not 100 %."""
    return f"{int(100 * share(headway))} %"


def one_line(text: str | bytes) -> str:
    """A name or a sentence of unknown origin, harmless, and on one line."""
    from ..core.output import harmless

    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return harmless(raw).replace("\n", "␊").replace("\t", "␉")


def shorten(path: str, width: int) -> str:
    """The end of a path, which tells more than its beginning.

    >>> shorten("some/deep/folder/file.bin", 18), shorten("a/b", 18)
    ('...folder/file.bin', 'a/b')
    """
    from rich.cells import cell_len

    if cell_len(path) <= width:
        return path
    kept = ""
    for char in reversed(path):
        if cell_len(kept) + cell_len(char) > width - 3:
            break
        kept = char + kept
    return f"...{kept}" if width > 3 else ""
