"""A text that never shows itself: not in a repr, a log, a traceback or a comparison by accident."""

from __future__ import annotations


class Secret:
    """Wraps a secret; only `reveal` gives it back, so that every use can be found by name."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(("Secret", self._text))

    def __repr__(self) -> str:
        return "Secret(hidden)"

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not copied or stored; reveal it where it is used")
