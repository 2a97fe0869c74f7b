"""A text that never shows itself: not in a repr, a log, a traceback or a comparison by accident."""

from __future__ import annotations

from collections.abc import Callable


class Secret:
    """Wraps a secret; only `reveal` gives it back, so that every use can be found by name.

    `source` tells where a secret is kept ("env:NAME"), and is empty for one that was written down as it is.
    """

    __slots__ = ("_resolve", "_text", "source")

    def __init__(self, text: str) -> None:
        self._text: str | None = text
        self._resolve: Callable[[], str] | None = None
        self.source = ""

    @classmethod
    def later(cls, resolve: Callable[[], str], source: str) -> Secret:
        """A secret that is kept elsewhere: `resolve` is called when it is first needed, not before."""
        secret = cls("")
        secret._text, secret._resolve, secret.source = None, resolve, source
        return secret

    def reveal(self) -> str:
        """The text itself. The first call for one kept elsewhere may block, and raises what fetching it raises."""
        if self._text is None and self._resolve is not None:
            self._text = self._resolve()
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
        # Two secrets kept elsewhere are the same if their place is the same: comparing must not fetch them.
        return self._text if self._resolve is None else self._resolve
