"""Looks at jobs with their checkpoints, which may be on a disk that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ...core.jobs.job import Checkpoint, JobLook, JobSeen
from ...local.waiting import within

# How long all checkpoints of a machine may take; after that its jobs are looked at without them.
CHECKPOINTS_S = 20.0
TOO_SLOW = Checkpoint(problem="it took too long, as may another of the same machine")


async def look_at(
    ask: Callable[[Sequence[JobLook]], Awaitable[list[JobSeen]]], looks: Sequence[JobLook]
) -> list[JobSeen]:
    """The jobs with their checkpoints; where these take too long, without them."""
    plain = [replace(look, checkpoint_path="", checkpoint_command="") for look in looks]
    if looks == plain:
        return await ask(looks)
    try:
        return await within(ask(looks), CHECKPOINTS_S)
    except asyncio.TimeoutError:
        # Whether the jobs live can be determined without it.
        found = await ask(plain)
    pairs = zip(looks, plain, found, strict=True)
    return [seen if look == bare else replace(seen, checkpoint=TOO_SLOW) for look, bare, seen in pairs]
