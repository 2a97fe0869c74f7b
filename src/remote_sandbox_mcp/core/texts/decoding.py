"""A file's bytes as text: UTF-8, UTF-16 with its mark, GBK by a guess, or UTF-8 with a few bytes replaced."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from .text import without_broken_end

# Of a file with bytes that are not UTF-8, so much has to be text.
LEAST_TEXT = 0.95
# Of the pairs of a GBK text, so many are frequent characters or punctuation.
LEAST_FREQUENT = 0.8
FEWEST_PAIRS = 2

_CONTROL = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_PAIR = re.compile(rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]")
# The punctuation, the fullwidth forms and the frequent characters of GB 2312.
_FREQUENT = re.compile(rb"[\xa1\xa3\xb0-\xd7][\xa1-\xfe]")


@dataclass(frozen=True)
class Decoded:
    """A text, and how it was read; an empty `encoding` is UTF-8 without a wrong byte."""

    text: str
    encoding: str = ""


def decode_text(data: bytes) -> Decoded | None:
    """The text, or None for binary content."""
    try:
        text = data.decode("utf-8")
        return Decoded(text) if "\0" not in text else None
    except UnicodeDecodeError:
        pass
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _if_text(data.decode("utf-16", "replace"), "utf-16", len(data) // 2)
    if b"\0" in data:
        return None
    if is_gbk(data):
        return Decoded(data.decode("gbk"), "gbk")
    return _if_text(data.decode("utf-8", "replace"), "utf-8", len(data))


def is_gbk(data: bytes) -> bool:
    """Whether bytes look like Chinese in GBK, from the beginning to the end of a character, and not like UTF-8."""
    text = data.decode("utf-8", "replace")
    if text.count(_REPLACED) * 2 <= len(text) - len(text.encode("ascii", "ignore")):
        return False
    try:
        data.decode("gbk")
    except UnicodeDecodeError:
        return False
    pairs = _PAIR.findall(data)
    return len(pairs) >= FEWEST_PAIRS and sum(map(bool, map(_FREQUENT.match, pairs))) >= LEAST_FREQUENT * len(pairs)


def whole_characters(data: bytes) -> bytes:
    """Without an incomplete character at the end, unless nothing else is left."""
    is_half = not is_gbk(data) and is_gbk(data[:-1])
    return (data[:-1] if is_half else without_broken_end(data)) or data


def _if_text(text: str, encoding: str, length: int) -> Decoded | None:
    replaced = text.count(_REPLACED)
    wrong = replaced + len(_CONTROL.findall(text))
    if wrong > (1 - LEAST_TEXT) * length:
        return None
    count = f", {replaced} {'byte' if replaced == 1 else 'bytes'} replaced" if replaced else ""
    return Decoded(text, f"{encoding}{count}")
