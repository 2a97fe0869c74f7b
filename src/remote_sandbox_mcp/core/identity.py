"""Which call of a client the work at hand belongs to, so that one that is made again begins nothing twice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """A client's call. `again`: a process of ours before this one may have begun it, `waited_s` ago."""

    name: str
    again: bool = False
    waited_s: float = 0.0

    def name_of(self, kind: str) -> str:
        """The name of what this call begins: always the same."""
        return f"{kind}-{hashlib.sha256(f'{self.name} {kind}'.encode()).hexdigest()[:16]}"


class Calls:
    """Names the lines of one conversation by their place in it; the ids that clients give may come twice.

    A conversation that goes on with another process of ours begins there with the lines that are sent again. `again`
    says of each of them what it was called before; nothing for one that cannot have begun anything.
    """

    def __init__(self, session: str, prefix: str = "", again: Sequence[Any] = ()) -> None:
        """`prefix` tells this process from those that have served the session before."""
        self._session = session
        self._prefix = prefix
        self._again = again
        self._lines = 0

    def next(self) -> Call:
        number, self._lines = self._lines, self._lines + 1
        before = self._again[number] if number < len(self._again) else None
        if before:
            return Call(f"{self._session} {before['name']}", True, float(before["waited_s"]))
        return Call(f"{self._session} {self._prefix}{number}")


_call: ContextVar[Call | None] = ContextVar("call", default=None)


def begin_call(call: Call | None) -> None:
    """From now on, in this task and in those that it starts, work belongs to that call."""
    _call.set(call)


def current_call() -> Call | None:
    """The call that the work at hand belongs to; nothing where calls cannot be told apart."""
    return _call.get()


def is_again() -> bool:
    """Whether the call at hand may have begun something already."""
    call = _call.get()
    return call is not None and call.again


def name_for_call(kind: str) -> str:
    """The name of what the call at hand begins: always the same. Nothing, where calls cannot be told apart."""
    call = _call.get()
    return call.name_of(kind) if call else ""
