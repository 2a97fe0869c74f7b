"""Remote output made safe to read: decoded, harmless, and cut in the middle where it is too long."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .command import Excerpt

# CSI, OSC/DCS/APC/PM/SOS strings (ended by BEL or ST, or cut off), and two-character escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|\Z)|[ -/]*[0-~]|\Z)")
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


@dataclass(frozen=True)
class Clipped:
    """Text for a reader, and how many bytes of the stream it leaves out."""

    text: str
    omitted: int = 0


def harmless(data: bytes) -> str:
    """Decode bytes of unknown origin; no escape, control character or broken UTF-8 survives."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    text = _ESCAPES.sub("", text).replace("\r", "\n")
    return text.translate(_CONTROLS)


def last_line(data: bytes, limit: int = 200) -> str:
    """The last line that says something."""
    lines = harmless(data[-4096:]).split("\n")
    return next((line.strip()[:limit] for line in reversed(lines) if line.strip()), "")


def clip(excerpt: Excerpt, limit: int) -> Clipped:
    """Fit a stream into `limit` characters: all of it, or its head and tail with a note between."""
    if not excerpt.omitted:
        text = harmless(excerpt.head + excerpt.tail)
        if len(text) <= limit:
            return Clipped(text)
        head, tail = text[: limit // 2], text[len(text) - limit // 2 :]
    else:
        # The far side kept whole bytes: a character cut in two at either border is dropped, not shown as damage.
        head = harmless(_without_broken_end(excerpt.head))[: limit // 2]
        tail = harmless(_without_broken_start(excerpt.tail))
        tail = tail[max(0, len(tail) - limit // 2) :]
    shown = len(head.encode()) + len(tail.encode())
    omitted = max(1, excerpt.total - shown)
    return Clipped(
        f"{head}\n[... {omitted} of {excerpt.total} bytes left out{_where(excerpt, head)} ...]\n{tail}", omitted
    )


def _where(excerpt: Excerpt, head: str) -> str:
    return f"; all of it: read_remote_file {excerpt.file} from offset {len(head.encode())}" if excerpt.file else ""


def _without_broken_end(data: bytes) -> bytes:
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead >= 0xC0:
            width = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return data[:-back] if back < width else data
        if lead < 0x80:
            break
    return data


def _without_broken_start(data: bytes) -> bytes:
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]
