"""Decorators for tools, resources and prompts of the operator's own: see `extensions` in config.toml."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from .api import Box, Sandboxes

__all__ = ["Box", "Sandboxes", "prompt", "resource", "tool"]

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
# The attribute of a function that is offered.
MARK = "__remote_sandbox__"


@dataclass(frozen=True)
class Offered:
    """Mark of a function that is offered; `uri` is that of a resource."""

    kind: Literal["tool", "resource", "prompt"]
    uri: str = ""


def tool(function: F) -> F:
    """Offer an async function as a tool: its name, docstring and annotations are the tool's. First it gets `boxes`."""
    setattr(function, MARK, Offered("tool"))
    return function


def resource(uri: str) -> Callable[[F], F]:
    """Offer an async function as a resource; each {name} in its address is an argument, after `boxes`."""

    def mark(function: F) -> F:
        setattr(function, MARK, Offered("resource", uri))
        return function

    return mark


def prompt(function: F) -> F:
    """Offer an async function as a prompt; it returns the text. First it gets `boxes`."""
    setattr(function, MARK, Offered("prompt"))
    return function
