"""Which call of a client the work at hand belongs to, so that one that is made again begins nothing twice."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A client's call. `again`: a process of ours before this one had received it, and has not answered."""

    name: str
    again: bool = False


_call: ContextVar[Call | None] = ContextVar("call", default=None)


def begin_call(call: Call | None) -> None:
    """From now on, in this task and in those that it starts, work belongs to that call."""
    _call.set(call)


def is_again() -> bool:
    """Whether the call at hand may have begun something already."""
    call = _call.get()
    return call is not None and call.again


def name_for_call(kind: str) -> str:
    """The name of what the call at hand begins: always the same. Nothing, where calls cannot be told apart."""
    call = _call.get()
    return f"{kind}-{hashlib.sha256(f'{call.name} {kind}'.encode()).hexdigest()[:16]}" if call else ""
