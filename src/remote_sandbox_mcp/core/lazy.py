"""Parts of an object that are made with their first use, and can be asked for without being made."""

from __future__ import annotations

import functools
from typing import TypeVar

T = TypeVar("T")


class lazy(functools.cached_property[T]):
    """Decorates a method that makes a part; `Owner.part.made(owner)` is the part if it was made, else None."""

    def made(self, owner: object) -> T | None:
        return owner.__dict__.get(self.attrname or "")
