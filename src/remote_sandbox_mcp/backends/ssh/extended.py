"""Regular expressions as Python writes them, for a grep that knows POSIX extended ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

_CLASSES = {"d": "0-9", "w": "[:alnum:]_", "s": "[:space:]"}
_LITERALS = {"t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
# A line ends before a carriage return, too.
_LINE_END = "\r?$"
_ANCHORS = {"A": "^", "Z": _LINE_END, "b": "\\b", "B": "\\B"}
_SPECIAL = frozenset(".[]\\()*+?{}|^$")


class NotExtended(ValueError):
    """What an extended expression cannot say."""


def to_extended(pattern: str) -> str:
    """The same expression for `grep -E`. Raises NotExtended, and re.error where it is no expression at all."""
    re.compile(pattern)
    letters, words = iter(pattern), [""]
    for letter in letters:
        # Whether a repetition is greedy makes no difference to whether a line fits.
        if not (letter in "?+" and words[-1] in ("*", "+", "?", "}")):
            words.append(_translate(letter, letters))
    text = "".join(words)
    if unknown := re.search(r"(?<!\\)\(\?(?!:).", text):
        raise NotExtended(f"{unknown[0]} is not known to the grep of this machine")
    return text.replace("(?:", "(")


def _translate(letter: str, letters: Iterator[str]) -> str:
    if letter == "\\":
        return _escaped(next(letters))
    if letter == "[":
        return _bracket(letters)
    return _LINE_END if letter == "$" else letter


def _escaped(letter: str) -> str:
    if letter in _CLASSES:
        return f"[{_CLASSES[letter]}]"
    if letter.lower() in _CLASSES:
        return f"[^{_CLASSES[letter.lower()]}]"
    if letter in _ANCHORS or letter in _LITERALS:
        return _ANCHORS.get(letter) or _LITERALS[letter]
    if letter.isalnum():
        raise NotExtended(f"\\{letter} is not known to the grep of this machine")
    return f"\\{letter}" if letter in _SPECIAL else letter


def _bracket(letters: Iterator[str]) -> str:
    """A set of letters: in an extended one a backslash means itself, and the place of `]`, `^` and `-` matters."""
    negated, members = False, list[str]()
    for letter in letters:
        if letter == "^" and not members and not negated:
            negated = True
        elif letter == "]" and members:
            break
        else:
            members.append(_member(next(letters)) if letter == "\\" else letter)
    return _arrange(members, negated)


def _member(letter: str) -> str:
    if letter in _CLASSES or letter in _LITERALS:
        return _CLASSES.get(letter) or _LITERALS[letter]
    if letter.isalnum():
        raise NotExtended(f"\\{letter} in [...] is not known to the grep of this machine")
    return "\\-" if letter == "-" else letter


def _arrange(members: list[str], negated: bool) -> str:
    """`]` means itself in the first place, `-` in the last one, `^` anywhere but in the first."""
    for at in (0, -1):
        members[at] = "\\-" if members[at] == "-" else members[at]
    ordered = ["]"] * ("]" in members) + [each for each in members if each not in ("]", "^", "\\-")]
    ordered += ["^"] * ("^" in members) + ["-"] * ("\\-" in members)
    if not negated and ordered[0] == "^":
        return "\\^" if len(ordered) == 1 else "[-^]"
    return f"[{'^' if negated else ''}{''.join(ordered)}]"
