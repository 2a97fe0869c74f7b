"""A text that never shows itself: not in a repr, a log, a traceback or by a comparison."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable

# Every one that is in use, by its address: two equal ones must not take each other's place.
_in_use: weakref.WeakValueDictionary[int, Secret] = weakref.WeakValueDictionary()
# Counts the texts that came to hand.
_texts = itertools.count()
_newest = 0


class Secret:
    """Wraps a secret; only `reveal` returns it, so every use can be found by that name.

    `source` says where it is kept ("env:NAME"); empty for one that was given as plain text.
    """

    __slots__ = ("__weakref__", "_resolve", "_text", "source")

    def __init__(self, text: str) -> None:
        self._text: str | None = text
        self._resolve: Callable[[], str] | None = None
        self.source = ""
        _in_use[id(self)] = self
        note_text()

    @classmethod
    def later(cls, resolve: Callable[[], str], source: str) -> Secret:
        """A secret kept elsewhere: `resolve` is called when it is first needed."""
        secret = cls("")
        secret._text, secret._resolve, secret.source = None, resolve, source
        return secret

    def reveal(self) -> str:
        """The text. The first call for one kept elsewhere may block, and raises what `resolve` raises."""
        if self._text is None and self._resolve is not None:
            self._text = self._resolve()
            note_text()
        return self._text or ""

    def forget(self) -> None:
        """Ask again at the next `reveal`: a login was refused, and the secret may have been changed since."""
        if self._resolve is not None:
            self._text = None

    def __bool__(self) -> bool:
        return self._resolve is not None or bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._identity == self._identity

    def __hash__(self) -> int:
        return hash(("Secret", self._identity))

    def __repr__(self) -> str:
        return "Secret(hidden)"

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not copied or stored; reveal it where it is used")

    @property
    def _identity(self) -> object:
        # Secrets kept elsewhere are equal if their source is the same: a comparison must not fetch them.
        return self._text if self._resolve is None else self._resolve


def note_text() -> None:
    """Count a text that came to hand."""
    global _newest
    _newest = next(_texts)


def state_of_texts() -> tuple[int, int]:
    """Return a value that changes whenever `texts_in_use` may return something else; costs nothing."""
    return _newest, len(_in_use)


def texts_in_use() -> frozenset[str]:
    """The secrets in use whose text is at hand, only to find and hide them; nothing is fetched."""
    secrets = (reference() for reference in _in_use.valuerefs())
    return frozenset(secret._text for secret in secrets if secret is not None and secret._text)
