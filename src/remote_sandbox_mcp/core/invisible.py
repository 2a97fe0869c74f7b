"""Characters that nobody sees, or that turn the direction of a text: shown as \\u202e, and found again by that."""

from __future__ import annotations

import bisect
import re
import unicodedata
from dataclasses import dataclass

# Soft hyphen, joiners, fillers, zero-width and bidirectional controls, separators of lines, variation selectors, tags.
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# England, Scotland and Wales: the flags that are written with tags.
_FLAGS = "|".join(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in name) + "\U000e007f"
    for name in ("gbeng", "gbsct", "gbwls")
)
_UNSEEN = re.compile(f"{_FLAGS}|[{_INVISIBLE}]")
# In a file every character counts: a carriage return alone hides what is before it.
_UNSEEN_OR_CONTROL = re.compile(f"{_FLAGS}|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{_INVISIBLE}]")
# Searching for one of these is many times as quick as for the whole of what is above, and most texts have none.
_SUSPECT = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}]")
_PLAIN_ASCII = bytes((0x09, 0x0A, *range(0x20, 0x7F)))
_JOINERS = "\u200c\u200d"


def reveal(text: str) -> str:
    """The text with what is invisible in it as \\u202e; joined emoji and scripts that need joiners stay as they are."""
    return text if text.isascii() or not _SUSPECT.search(text) else _UNSEEN.sub(_shown, text)


@dataclass(frozen=True)
class Revealed:
    """A file's text as it is shown, and where each escape stands: in what is shown, and in the file."""

    text: str
    escapes: tuple[tuple[int, int], ...] = ()

    def place(self, at: int) -> int | None:
        """Where a place of the shown text is in the file; None inside of an escape."""
        number = bisect.bisect_right(self.escapes, (at, 1 << 62)) - 1
        if number < 0:
            return at
        shown, real = self.escapes[number]
        width = 10 if self.text[shown + 1] == "U" else 6
        return real if at == shown else real + 1 + at - shown - width if at >= shown + width else None


def reveal_file(text: str) -> Revealed:
    """The same for the content of a file, with control characters; an edit finds what it shows."""
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
    """Any text without control characters and what is invisible; one that has none stays as it is."""
    return text if _is_plain(text) else reveal_file(text).text


def _is_plain(text: str) -> bool:
    """Whether a text surely has none of what is shown as an escape; a quick look."""
    return not (text.encode().translate(None, _PLAIN_ASCII) if text.isascii() else _SUSPECT.search(text))


def replace_shown(text: str, old: str, new: str) -> tuple[str, int]:
    """Replace what is `old` in the text as it is shown; the new text, and how many there were.

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
    """Whether an invisible character is part of how the letters or emoji around it are written."""
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
    """Letters of Arabic, Persian, the scripts of India and others that are written joined."""
    in_range = "\u0600" <= letter <= "\u1cff" or "\ufb50" <= letter <= "\ufdff"
    return in_range and unicodedata.category(letter)[0] in "LM"
