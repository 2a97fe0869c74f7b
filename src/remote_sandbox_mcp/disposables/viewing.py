"""Disposable sandboxes as they stand: what is written down, and what their providers say of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..backends.deadline import within
from ..core.disposable import Disposable
from ..core.errors import SandboxError
from ..store.disposables import CREATING, ENDING, OVER, PAUSED, RUNNING, Kept
from .known import Known
from .life import LOOK_S

# A provider that takes longer is told as not answering; all others are listed meanwhile.
LIST_S = 3.0

Seen = Mapping[str, Disposable] | str


async def survey(known: Known, living: Sequence[Kept]) -> list[Disposable]:
    """All that somebody has, as their providers know them; one provider that does not answer delays nobody."""
    held = [kept for kept in living if not kept.pool and kept.disposable.status != ENDING]
    kinds = sorted({kept.disposable.provider for kept in held})
    answers = dict(zip(kinds, await asyncio.gather(*(_ask(known, kind) for kind in kinds)), strict=True))
    views = await asyncio.gather(*(_view(known, kept, answers[kept.disposable.provider]) for kept in held))
    return [view for view in views if view.status not in OVER]


async def look(known: Known, kept: Kept) -> Disposable:
    """One of them as it is now."""
    if kept.disposable.status in (CREATING, ENDING):
        return kept.disposable
    try:
        seen = await within(known.provider_of(kept).look(kept.disposable), LOOK_S)
    except (SandboxError, asyncio.TimeoutError) as problem:
        return _doubtful(kept, str(problem) or f"no answer within {LOOK_S:g} s")
    return await _note(known, kept, seen.status)


async def trouble(known: Known, kind: str) -> str:
    """Why no sandbox can be had of a provider now; empty where it answers."""
    seen = await _ask(known, kind)
    return seen if isinstance(seen, str) else ""


async def _ask(known: Known, kind: str) -> Seen:
    try:
        provider = known.provider(kind)
        return {it.id: it for it in await within(provider.list(), LIST_S)}
    except SandboxError as problem:
        return str(problem)
    except asyncio.TimeoutError:
        return f"{provider.where} has not answered within {LIST_S:g} s"


async def _view(known: Known, kept: Kept, seen: Seen) -> Disposable:
    if kept.disposable.status == CREATING:
        return kept.disposable
    if isinstance(seen, str):
        return _doubtful(kept, seen)
    if kept.id in seen:
        return await _note(known, kept, seen[kept.id].status)
    # That it is not in the list is no proof that it is gone.
    return await look(known, kept)


def _doubtful(kept: Kept, why: str) -> Disposable:
    it = kept.disposable
    return replace(it, notes=(*it.notes, f"{it.provider} did not answer ({why}); this is what was known before"))


async def _note(known: Known, kept: Kept, status: str) -> Disposable:
    """What a provider says is written down."""
    it = replace(kept.disposable, status=status)
    if status in OVER:
        await known.life_of(kept).note_end(kept, status)
    elif status in (RUNNING, PAUSED) and status != kept.disposable.status:
        await asyncio.to_thread(known.rows.note_status, kept.id, status)
        if life := known.lives.get(kept.id):
            life.follow(replace(kept, disposable=it))
    return it
