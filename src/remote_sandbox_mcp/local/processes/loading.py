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
    """Compile methods of dataclasses with their first use.

    Without this a start takes a quarter more processor time until the tools are listed, with a new hub or without one.
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
    return CompiledWhenUsed(name, functools.partial(_one_by_one, name, *source, **more))


def later_builder() -> Any:
    class LaterBuilder(_all_of_a_class):  # type: ignore[misc]
        def add_fn(self, name: str, *parts: Any, **more: Any) -> None:
            super().add_fn(name, *parts, **more)
            self.locals[f"later{name}"] = CompiledWhenUsed(name, functools.partial(self.make, self.src[-1], name))
            self.src[-1] = f" {name} = later{name}"

        def make(self, source: str, name: str) -> Any:
            made: dict[str, Any] = {}
            text = f"def make({','.join(self.locals)}):\n{source}\n return {name}"
            # Not with the annotations of this module, which stay texts.
            exec(compile(text, "<string>", "exec", dont_inherit=True), self.globals, made)
            return made["make"](**self.locals)

    return LaterBuilder


class CompiledWhenUsed:
    """A method that is made when it is called or looked at, and takes its place in the class."""

    def __init__(self, name: str, create: Callable[[], Any]) -> None:
        self.__name__ = self.__qualname__ = name
        self._create = functools.lru_cache(None)(create)

    def __get__(self, instance: object, owner: type) -> Any:
        return self._made(owner).__get__(instance, owner)

    def __call__(self, instance: object, *given: object) -> object:
        """For what `dataclasses` itself wraps: up to Python 3.12 that is __repr__."""
        return self._made(type(instance))(instance, *given)

    def _made(self, user: type) -> Any:
        name, made = self.__name__, self._create()
        for owner in user.__mro__:
            if owner.__dict__.get(name) is self:
                made.__qualname__ = f"{owner.__qualname__}.{name}"
                setattr(owner, name, made)
        return made
