"""Loading a server's modules quickly: garbage collection and methods of dataclasses come later."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_stdlib: Any = dataclasses
# What makes methods of dataclasses by compiling their source: up to Python 3.12 one by one, since then all of a class.
_one_by_one: Any = getattr(_stdlib, "_create_fn", None)
_all_of_a_class: Any = getattr(_stdlib, "_FuncBuilder", None)


def begin() -> None:
    """Call it before other modules are imported.

    Garbage collection finds nothing meanwhile, and would take a fifth of the time. Hundreds of dataclasses are
    defined, ours and the SDK's, each with six methods of which most are never called: these are compiled when they are.
    """
    # What comes into a folder of PATH from now on is not used.
    from . import programs  # noqa: F401

    gc.disable()
    defer_methods()


def end() -> None:
    """All has been imported that a first call needs."""
    make_methods_at_once()
    gc.freeze()
    gc.enable()


def defer_methods() -> None:
    """Compile methods of dataclasses with their first call; but not __init__, whose parameters others look at.

    Without this a start takes an eighth more processor time until the tools are listed, with a new hub or without one.
    """
    if _one_by_one:
        _stdlib._create_fn = create_later
    elif _all_of_a_class:
        _stdlib._FuncBuilder = later_builder()


def make_methods_at_once() -> None:
    if _one_by_one:
        _stdlib._create_fn = _one_by_one
    elif _all_of_a_class:
        _stdlib._FuncBuilder = _all_of_a_class


def create_later(name: str, *source: Any, **more: Any) -> Any:
    create = functools.partial(_one_by_one, name, *source, **more)
    return create() if name == "__init__" else compiled_when_called(name, create)


def later_builder() -> Any:
    class LaterBuilder(_all_of_a_class):  # type: ignore[misc]
        def add_fn(self, name: str, *parts: Any, **more: Any) -> None:
            super().add_fn(name, *parts, **more)
            if name != "__init__":
                self.locals[f"later{name}"] = compiled_when_called(
                    name, functools.partial(self.make, self.src[-1], name)
                )
                self.src[-1] = f" {name} = later{name}"

        def make(self, source: str, name: str) -> Any:
            made: dict[str, Any] = {}
            exec(f"def make({','.join(self.locals)}):\n{source}\n return {name}", self.globals, made)
            return made["make"](**self.locals)

    return LaterBuilder


def compiled_when_called(name: str, create: Callable[[], Any]) -> Any:
    """A method that is made by its first call, and takes its place in the class."""
    made: Any = None

    def method(self: object, *given: object) -> object:
        nonlocal made
        made = made or create()
        for owner in type(self).__mro__:
            if owner.__dict__.get(name) is method:
                made.__qualname__ = method.__qualname__
                setattr(owner, name, made)
        return made(self, *given)

    method.__name__ = name
    return method
