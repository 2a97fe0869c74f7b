"""Looks at jobs with their checkpoints, which may be on a disk that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ...core.jobs.job import Checkpoint, JobQuery, JobSeen
from ...local.waiting import within

# How long all checkpoints of a machine may take; after that its jobs are looked at without them.
CHECKPOINTS_S = 20.0
TOO_SLOW = Checkpoint(problem="it took too long, as may another of the same machine")


async def look_at(
    ask: Callable[[Sequence[JobQuery]], Awaitable[list[JobSeen]]], queries: Sequence[JobQuery]
) -> list[JobSeen]:
    """The jobs with their checkpoints; where these take too long, without them."""
    plain = [replace(query, checkpoint_path="", checkpoint_command="") for query in queries]
    if queries == plain:
        return await ask(queries)
    try:
        return await within(ask(queries), CHECKPOINTS_S)
    except asyncio.TimeoutError:
        # Whether the jobs live can be determined without it.
        found = await ask(plain)
    pairs = zip(queries, plain, found, strict=True)
    return [seen if query == bare else replace(seen, checkpoint=TOO_SLOW) for query, bare, seen in pairs]
