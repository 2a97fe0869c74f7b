"""Loading a server's modules quickly: garbage collection and methods of dataclasses come later."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What makes a method of a dataclass by compiling its source; Python 3.13 has it no more.
CREATE = "_create_fn"
_create: Callable[..., Any] | None = getattr(dataclasses, CREATE, None)


def begin() -> None:
    """Call it before other modules are imported.

    Garbage collection finds nothing meanwhile, and would take a fifth of the time. Hundreds of dataclasses are
    defined, ours and the SDK's, each with six methods of which most are never called: these are compiled when they are.
    """
    gc.disable()
    if _create:
        setattr(dataclasses, CREATE, create_later)


def end() -> None:
    """All has been imported that a first call needs."""
    if _create:
        setattr(dataclasses, CREATE, _create)
    gc.freeze()
    gc.enable()


def create_later(name: str, *source: Any, **more: Any) -> Any:
    """A method that is compiled with its first call, but for __init__, whose parameters others look at."""
    assert _create
    create = _create
    if name == "__init__":
        return create(name, *source, **more)
    made: Callable[..., Any] | None = None

    def method(self: object, *given: object) -> object:
        nonlocal made
        if made is None:
            made = create(name, *source, **more)
        for owner in type(self).__mro__:
            if owner.__dict__.get(name) is method:
                # Further calls go there at once.
                made.__qualname__ = method.__qualname__
                setattr(owner, name, made)
        return made(self, *given)

    method.__name__ = name
    return method
