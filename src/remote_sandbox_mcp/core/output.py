"""Remote output made safe to read: decoded, harmless, and cut in the middle where it is too long."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from .command import Excerpt
from .invisible import reveal

# CSI, OSC/DCS/APC/PM/SOS strings (ended by BEL or ST, or cut off), and two-character escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|\Z)|[ -/]*[0-~]|\Z)")
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# As much of a stream as is kept in a file on the far side, there said by far/output.py and keeper.sh.
KEPT_BYTES = 64 << 20
LEAST_SHOWN = 200


@dataclass(frozen=True)
class Clipped:
    """Text for a reader, and how many bytes of the stream it leaves out."""

    text: str
    omitted: int = 0


def harmless(data: bytes) -> str:
    """Decode bytes of unknown origin; no escape, control character, unseen one or broken UTF-8 survives."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    text = _ESCAPES.sub("", text).replace("\r", "\n")
    # Letter by letter, which takes long where they are not ASCII.
    return reveal(text.translate(_CONTROLS) if text.isascii() or _CONTROL.search(text) else text)


def last_line(data: bytes, limit: int = 200) -> str:
    """The last line that says something."""
    lines = harmless(data[-4096:]).split("\n")
    return next((line.strip()[:limit] for line in reversed(lines) if line.strip()), "")


def clip(excerpt: Excerpt, limit: int) -> Clipped:
    """Fit a stream into `limit` characters: all of it, or its head and tail with a note between."""
    first, last = excerpt.head, excerpt.tail
    if not excerpt.omitted:
        first = last = excerpt.head + excerpt.tail
        text = harmless(first)
        if len(text) <= limit:
            return Clipped(text)
    head, from_head = _beginning(first, limit // 2)
    tail, from_tail = _end(last, limit // 2)
    omitted = max(1, excerpt.total - from_head - from_tail)
    where = _where(excerpt, from_head)
    return Clipped(f"{head}\n[... {omitted} of {excerpt.total} bytes left out{where} ...]\n{tail}", omitted)


def clip_both(first: Excerpt, second: Excerpt, limit: int, room: int | None = None) -> tuple[Clipped, Clipped]:
    """Fit each of two streams into `limit` characters, and both together, as JSON texts, into `room`."""
    while True:
        shown = clip(first, limit), clip(second, limit)
        # What is harmless takes two signs for one at most.
        if room is None or limit <= LEAST_SHOWN or sum(2 * len(part.text) + 2 for part in shown) <= room:
            return shown
        size = sum(len(json.dumps(part.text, ensure_ascii=False)) for part in shown)
        if size <= room:
            return shown
        # What has many quotes or line ends is longer as JSON: then once is not enough.
        limit = max(LEAST_SHOWN, min(limit, max(len(part.text) for part in shown)) * room // size * 9 // 10)


def _where(excerpt: Excerpt, offset: int) -> str:
    if not excerpt.file:
        return ""
    much = "all of it" if excerpt.total <= KEPT_BYTES else f"the first {KEPT_BYTES} bytes"
    return f"; {much}: read_remote_file {excerpt.file} from offset {offset}"


# How many bytes a text stands for is known where nothing in it had to be made harmless. Where something had, bytes are
# counted instead of characters: what is said to be left out is exactly what is. Two bytes may be shown as six signs.
MOST_SIGNS_PER_BYTE = 3


def _beginning(data: bytes, limit: int) -> tuple[str, int]:
    """At most `limit` characters, and how many bytes they stand for."""
    text = harmless(without_broken_end(data))[:limit]
    shown = text.encode()
    if data.startswith(shown):
        return text, len(shown)
    cut = without_broken_end(data[:limit])
    if len(harmless(cut)) > limit:
        cut = without_broken_end(data[: limit // MOST_SIGNS_PER_BYTE])
    return harmless(cut), len(cut)


def _end(data: bytes, limit: int) -> tuple[str, int]:
    text = harmless(without_broken_start(data))
    text = text[max(0, len(text) - limit) :]
    shown = text.encode()
    if data.endswith(shown):
        return text, len(shown)
    cut = without_broken_start(data[max(0, len(data) - limit) :])
    if len(harmless(cut)) > limit:
        cut = without_broken_start(data[max(0, len(data) - limit // MOST_SIGNS_PER_BYTE) :])
    return harmless(cut), len(cut)


def without_broken_end(data: bytes) -> bytes:
    """Without the first bytes of a character whose others are missing."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead >= 0xC0:
            width = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return data[:-back] if back < width else data
        if lead < 0x80:
            break
    return data


def without_broken_start(data: bytes) -> bytes:
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]
