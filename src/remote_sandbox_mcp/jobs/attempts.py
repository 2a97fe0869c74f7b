"""Something that may fail, or never end, tried without harm to anything else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from ..core.errors import ConfigError, SandboxError, UnknownSandbox
from ..core.watch import NoContact, Unsent

# How long a machine may take to answer.
LIMIT_S = 30.0

log = logging.getLogger(__name__)
Result = TypeVar("Result")


async def attempt(work: Awaitable[Result], limit_s: float | None = LIMIT_S) -> Result | Exception:
    """What came of it, or why nothing did."""
    try:
        return await asyncio.wait_for(work, limit_s)
    # Whatever is wrong with one watch, machine, hook or notifier must not keep the watchdog from all the others.
    except Exception as problem:
        if not isinstance(problem, SandboxError | Unsent | asyncio.TimeoutError):
            log.error("unexpected trouble: %r", problem, exc_info=problem)
        return problem


def no_contact(problem: Exception) -> NoContact:
    """A look or a start that failed, as the watch sees it."""
    return NoContact(reason_of(problem), config=isinstance(problem, UnknownSandbox | ConfigError))


def reason_of(problem: Exception) -> str:
    if isinstance(problem, asyncio.TimeoutError):
        return f"there was no answer within {LIMIT_S:g} s"
    if isinstance(problem, SandboxError | Unsent):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"
