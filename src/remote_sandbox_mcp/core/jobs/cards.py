"""GPUs that a job asks for, and the lease by which it holds them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_CARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}\Z")


@dataclass(frozen=True)
class CardRequest:
    """GPUs that a job needs for itself: how many, and the free memory that each must have."""

    count: int
    memory_mb: int = 0


@dataclass(frozen=True)
class CardLease:
    """The hold of one user of ours on a card, as every user of the machine can read it.

    `job` is the name of the session that holds it; `until` is when the caller said that the job ends, else 0.
    """

    user: str
    job: str = ""
    since: float = 0.0
    until: float = 0.0


def card_names(said: Iterable[str]) -> tuple[str, ...]:
    """The names of cards that a machine told: UUIDs, or what stands for one. Raises ValueError."""
    names = tuple(said)
    if not all(map(_CARD.match, names)):
        raise ValueError("it is no name of a card")
    return names
