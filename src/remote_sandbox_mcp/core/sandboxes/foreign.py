"""Reads answers of other machines field by field: a value of the wrong type or size makes the answer invalid."""

from __future__ import annotations

import contextlib
import json
import re
import struct
from collections.abc import Iterator
from typing import Any

from ..errors import BrokenRules

# What may be raised while an answer that makes no sense is read.
NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error)
MOST = (1 << 63) - 1
# A sentence of another machine's may hold two long paths.
LONGEST_SENTENCE = 10_000
# Guard against small answers that grow in memory: an empty list is three bytes here and seventy as an object. Our own
# answers are never that dense.
FREE_BRACKETS, BYTES_FOR_EACH = 1000, 8
# Halves of surrogate pairs that stand for no byte of a file name; a text with one can be neither shown nor encoded.
_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")


@contextlib.contextmanager
def understood(name: str) -> Iterator[None]:
    """Use around the reading of an answer from `name`. Raises BrokenRules where it makes no sense."""
    try:
        yield
    except NONSENSE as problem:
        raise not_understood(name, problem) from None


def not_understood(name: str, problem: Exception) -> BrokenRules:
    return BrokenRules(f"{name}'s answer cannot be understood ({_short(problem)}); try again later")


def too_much(name: str) -> BrokenRules:
    return BrokenRules(f"{name} sent more than it was asked for; the connection was closed")


def _short(problem: Exception) -> str:
    """A few harmless characters of a text from another machine."""
    return ascii(str(problem))[:100] if str(problem) else type(problem).__name__


def read_json(body: bytes) -> Any:
    """Raises ValueError; also for deep nesting, and for what would be far larger in memory than it is as text."""
    brackets = body.count(b"[") + body.count(b"{")
    if brackets > FREE_BRACKETS + len(body) // BYTES_FOR_EACH:
        raise ValueError("it is made of brackets")
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class Fields:
    """An object of an answer. Every method raises ValueError where the field is missing or of another kind."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise ValueError("it is no object")
        self._value: dict[str, Any] = value

    @classmethod
    def read(cls, body: bytes) -> Fields:
        return cls(read_json(body))

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._value.get(name) is not None

    def any(self, name: str) -> Any:
        if name not in self._value:
            raise ValueError(f"{name} is missing")
        return self._value[name]

    def text(self, name: str) -> str:
        return to_text(self.any(name), name)

    def sentence(self, name: str) -> str:
        """A text for a reader, of bounded length."""
        return self.text(name)[:LONGEST_SENTENCE]

    def whole(self, name: str) -> int:
        return to_whole(self.any(name), name)

    def number(self, name: str) -> float:
        return to_number(self.any(name), name)

    def flag(self, name: str) -> bool:
        return bool(self.any(name))

    def list(self, name: str) -> list[Any]:
        return to_list(self.any(name), name)

    def part(self, name: str) -> Fields:
        return Fields(self.any(name))

    def items(self) -> Iterator[tuple[str, Any]]:
        return iter(self._value.items())

    def plain(self) -> dict[str, str | int | float]:
        """The fields that are texts and numbers."""
        return {name: value for name, value in self._value.items() if isinstance(value, (str, int, float))}


def to_text(value: object, name: str = "a value") -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value if value.isascii() else _HALVES.sub("\ufffd", value)


def to_whole(value: object, name: str = "a value") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -MOST <= value <= MOST:
        raise ValueError(f"{name} is not a whole number")
    return value


def to_number(value: object, name: str = "a value") -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MOST:
        raise ValueError(f"{name} is not a number")
    return float(value)


def to_list(value: object, name: str = "a value") -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list")
    return value
