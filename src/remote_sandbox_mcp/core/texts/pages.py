"""Cursors for listings in pages: where the last page ended, as a text that the caller hands back unchanged."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import BadArgument

_FORM = re.compile(r"([0-9]{1,6})-([0-9a-f]{12})\Z")


@dataclass(frozen=True)
class PagePosition:
    """Position of a page: how many items came before, and a mark of the last of them."""

    skip: int = 0
    mark: str = ""

    def begin(self, keys: Sequence[str]) -> int:
        """Return where the page begins among the items as they are now. Raises BadArgument if the last one is gone."""
        if not self.mark or (len(keys) >= self.skip and mark_of(keys[self.skip - 1]) == self.mark):
            return self.skip
        # Items were added or removed before that position since the last page.
        found = next((number for number, key in enumerate(keys, 1) if mark_of(key) == self.mark), None)
        if found is None:
            raise BadArgument("cursor does not fit what is there now; leave it out to begin anew")
        return found


def read_cursor(text: str) -> PagePosition:
    """Raises BadArgument."""
    if not text:
        return PagePosition()
    found = _FORM.match(text)
    if not found or not int(found[1]):
        raise BadArgument(f"cursor is {text[:40]!r}; give next_cursor of the last answer as it is")
    return PagePosition(int(found[1]), found[2])


def cursor_after(skip: int, key: str) -> str:
    """For the page after the first `skip` items, the last of which has this key."""
    return f"{skip}-{mark_of(key)}"


def mark_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:12]
