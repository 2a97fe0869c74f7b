"""Remote text made safe to show: decoded, without control and invisible characters, cut in the middle."""

from __future__ import annotations

import bisect
import re
import unicodedata
from dataclasses import dataclass

from ..commands.command import Excerpt

# CSI, OSC/DCS/APC/PM/SOS strings (ended by BEL or ST, or cut off), and two-character escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|\Z)|[ -/]*[0-~]|\Z)")
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# How much of a stream is kept in a file on the far side; the same number is in far/output.py and keeper.sh.
KEPT_BYTES = 64 << 20
LEAST_SHOWN = 200
# If nothing had to be made harmless, a text's bytes can be counted from it. Otherwise bytes are counted before, so that
# the number left out is exact. Two bytes may be shown as six characters.
MOST_SIGNS_PER_BYTE = 3
# Soft hyphen, joiners, fillers, zero-width and bidirectional controls, separators of lines, variation selectors, tags.
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Much faster than the full expression above, and most texts contain none of these.
_SUSPECT = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}]")
_PLAIN_ASCII = bytes((0x09, 0x0A, *range(0x20, 0x7F)))
_JOINERS = "\u200c\u200d"
UNITS = ("bytes", "KB", "MB", "GB", "TB")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Number and noun, in the plural where it is not one."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def size(count: float) -> str:
    """Bytes for people, with three digits."""
    step = 0
    while count >= 1000 and step < len(UNITS) - 1:
        count, step = count / 1000, step + 1
    return f"{count:.3g} {UNITS[step]}" if count < 1000 else f"{count:.0f} {UNITS[step]}"


def span(seconds: float) -> str:
    """Span of time in words: 45 s, 12 min, 3 h 5 min, 2 d 4 h."""
    minutes, hours = int(max(0.0, seconds)) // 60, int(max(0.0, seconds)) // 3600
    if not minutes:
        return f"{max(0.0, seconds):.0f} s"
    large, small = (f"{hours // 24} d", f"{hours % 24} h") if hours >= 24 else (f"{hours} h", f"{minutes % 60} min")
    if not hours:
        return small
    return large if small.startswith("0 ") else f"{large} {small}"


@dataclass(frozen=True)
class Clipped:
    """Text for a reader, and how many bytes of the stream it leaves out."""

    text: str
    omitted: int = 0


def harmless(data: bytes) -> str:
    """Decode foreign bytes; no escape sequence, control character, invisible character or broken UTF-8 survives."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    if _is_plain(text):
        return text
    text = _ESCAPES.sub("", text).replace("\r", "\n")
    # str.translate is slow for text that is not ASCII, so it is used only where needed.
    return reveal(text.translate(_CONTROLS) if text.isascii() or _CONTROL.search(text) else text)


def last_line(data: bytes, limit: int = 200) -> str:
    """The last nonempty line."""
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
    import json

    while True:
        shown = clip(first, limit), clip(second, limit)
        # Escaping for JSON at most doubles harmless text.
        if room is None or limit <= LEAST_SHOWN or sum(2 * len(part.text) + 2 for part in shown) <= room:
            return shown
        size = sum(len(json.dumps(part.text, ensure_ascii=False)) for part in shown)
        if size <= room:
            return shown
        # Quotes and line breaks make it longer as JSON, so one cut may not be enough.
        limit = max(LEAST_SHOWN, min(limit, max(len(part.text) for part in shown)) * room // size * 9 // 10)


def clip_ends(first: Excerpt, second: Excerpt, limit: int, room: int) -> tuple[Clipped, Clipped]:
    """The last lines of two streams: of each `limit` characters, and of both, as JSON texts, at most `room`."""
    import json

    while True:
        shown = _last_lines(first, limit), _last_lines(second, limit)
        size = sum(len(json.dumps(part.text, ensure_ascii=False)) for part in shown if part.text)
        if size <= room or not limit:
            return shown
        # The longer one is cut first.
        limit = min(limit, max(len(part.text) for part in shown)) * room // size * 9 // 10


def _last_lines(excerpt: Excerpt, limit: int) -> Clipped:
    """Take as many whole lines from the end as fit; of a last line that is too long, its end."""
    text, shown = _end(excerpt.tail if excerpt.omitted else excerpt.head + excerpt.tail, limit) if limit else ("", 0)
    omitted = max(0, excerpt.total - shown)
    first, newline, rest = text.partition("\n")
    if omitted and newline and rest.strip():
        return Clipped(rest, omitted + len(first.encode()) + 1)
    return Clipped(text, omitted)


def _where(excerpt: Excerpt, offset: int) -> str:
    if not excerpt.file:
        return ""
    much = "all of it" if excerpt.total <= KEPT_BYTES else f"the first {KEPT_BYTES} bytes"
    return f"; {much}: read_remote_file {excerpt.file} from offset {offset}"


def _beginning(data: bytes, limit: int) -> tuple[str, int]:
    """At most `limit` characters, and the number of bytes that they stand for."""
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
    """Without an incomplete character at the end."""
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


# Flags of England, Scotland and Wales, which are written with tag characters.
_FLAGS = "|".join(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in name) + "\U000e007f"
    for name in ("gbeng", "gbsct", "gbwls")
)
_UNSEEN = re.compile(f"{_FLAGS}|[{_INVISIBLE}]")
# In a file every character matters: a lone carriage return hides what is before it on a terminal.
_UNSEEN_OR_CONTROL = re.compile(f"{_FLAGS}|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{_INVISIBLE}]")


def reveal(text: str) -> str:
    """The text with invisible characters as \u202e; joined emoji and scripts that need joiners are unchanged."""
    return text if text.isascii() or not _SUSPECT.search(text) else _UNSEEN.sub(_shown, text)


@dataclass(frozen=True)
class Revealed:
    """A file's text as shown, and the position of each escape in the shown text and in the file."""

    text: str
    escapes: tuple[tuple[int, int], ...] = ()

    def place(self, at: int) -> int | None:
        """The position in the file for a position in the shown text; None inside of an escape."""
        number = bisect.bisect_right(self.escapes, (at, 1 << 62)) - 1
        if number < 0:
            return at
        shown, real = self.escapes[number]
        width = 10 if self.text[shown + 1] == "U" else 6
        return real if at == shown else real + 1 + at - shown - width if at >= shown + width else None


def reveal_file(text: str) -> Revealed:
    """Reveal the content of a file, with control characters; an edit can find what it shows."""
    if _is_plain(text):
        return Revealed(text)
    parts, escapes, done, length = [], [], 0, 0
    for found in _UNSEEN_OR_CONTROL.finditer(text):
        shown = _shown(found)
        if shown == found[0]:
            continue
        parts += [text[done : found.start()], shown]
        length += found.start() - done
        escapes.append((length, found.start()))
        length, done = length + len(shown), found.end()
    return Revealed("".join((*parts, text[done:])), tuple(escapes))


def visible(text: str) -> str:
    """Any text with control and invisible characters made visible; unchanged if it has none."""
    return text if _is_plain(text) else reveal_file(text).text


def _is_plain(text: str) -> bool:
    """A quick check whether a text surely has nothing to escape."""
    if text.isascii():
        return text.isprintable() or not text.encode().translate(None, _PLAIN_ASCII)
    return not _SUSPECT.search(text)


def replace_shown(text: str, old: str, new: str) -> tuple[str, int]:
    """Replace `old` in the text as it is shown; returns the new text and the number of replacements.

    An escape in `new` is taken for the character where the part that it replaces has that character.
    """
    revealed = reveal_file(text)
    parts, done, count, at = [], 0, 0, revealed.text.find(old)
    while at >= 0:
        start, end = revealed.place(at), revealed.place(at + len(old))
        if start is None or end is None:
            at = revealed.text.find(old, at + 1)
            continue
        parts += [text[done:start], _unescaped(new, text[start:end])]
        done, count = end, count + 1
        at = revealed.text.find(old, at + len(old))
    return "".join((*parts, text[done:])), count


def _unescaped(new: str, replaced: str) -> str:
    for found in {match[0] for match in _UNSEEN_OR_CONTROL.finditer(replaced) if len(match[0]) == 1}:
        new = new.replace(_escape(found), found)
    return new


def _shown(found: re.Match[str]) -> str:
    whole = found[0]
    return whole if len(whole) > 1 or _belongs(found.string, found.start()) else _escape(whole)


def _escape(letter: str) -> str:
    code = ord(letter)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _belongs(text: str, at: int) -> bool:
    """Whether an invisible character is part of the spelling of the letters or emoji around it."""
    letter, before, after = text[at], text[at - 1 : at], text[at + 1 : at + 2]
    if letter in _JOINERS:
        emoji = letter == "\u200d" and (_is_emoji(before) or before == "\ufe0f") and _is_emoji(after)
        return emoji or (_needs_joiners(before) and _needs_joiners(after))
    if letter in "\ufe0e\ufe0f":
        return _is_emoji(before) or (bool(before) and before in "0123456789#*" and after == "\u20e3")
    if "\ufe00" <= letter <= "\ufe0f" or "\U000e0100" <= letter <= "\U000e01ef":
        return "\u3400" <= before <= "\u9fff" or "\U00020000" <= before <= "\U000323af"
    return "\u180b" <= letter <= "\u180f" and letter != "\u180e" and "\u1820" <= before <= "\u18aa"


def _is_emoji(letter: str) -> bool:
    return letter in ("\u00a9", "\u00ae") or "\u203c" <= letter <= "\u3299" or "\U0001f000" <= letter <= "\U0001faff"


def _needs_joiners(letter: str) -> bool:
    """Letters of Arabic, Persian, Indian and other scripts that are written joined."""
    in_range = "\u0600" <= letter <= "\u1cff" or "\ufb50" <= letter <= "\ufdff"
    return in_range and unicodedata.category(letter)[0] in "LM"
