"""What is to become of a disposable sandbox: decisions from its row, the clock and who is alive."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import Enum

from ..core.disposable import Rules
from ..store.disposables import CREATING, ENDED, ENDING, EXPIRED, PAUSED, Kept, Owner

# Its provider ends one that has expired; we see to it only if that has not happened soon after.
GRACE_S = 2.0
LONGEST_PAUSE_S = 15.0
SHORTEST_PAUSE_S = 0.25
NEARLY_S = 60.0

DELETED = "was deleted"
EXPIRED_BY_TIME = "has expired, unused for its whole time,"
CLEANED_UP = "was cleaned up for want of use"
WITH_SERVER = "ended with the server that was making it"
BY_ITSELF = "ended by itself when its main process ended"
FROM_OUTSIDE = "was ended by its platform or from outside"


class Fate(Enum):
    """MINE; SHARED with another living server; THEIRS alone; of a server that has ended: INHERIT, SWEEP."""

    MINE = "mine"
    SHARED = "shared"
    THEIRS = "theirs"
    INHERIT = "inherit"
    SWEEP = "sweep"


def fate(kept: Kept, me: Owner, living: frozenset[Owner], now: float, configuration: str = "") -> Fate:
    """`living` are the owners that still run, `configuration` that of the process that asks."""
    it, mine = kept.disposable, kept.owner == me
    can_be_used = not kept.pool and it.status not in (CREATING, ENDING) and is_visible(kept, configuration)
    if not mine and kept.owner in living:
        return Fate.SHARED if can_be_used else Fate.THEIRS
    if it.status == ENDING or is_expired(kept, now):
        return Fate.SWEEP
    if mine:
        return Fate.MINE
    if kept.pool or it.status == CREATING:
        # Nobody has asked for it yet, or nobody was told that it was made.
        return Fate.SWEEP
    # One of another configuration waits for a server that has that one, or for its time to be over.
    return Fate.INHERIT if can_be_used else Fate.THEIRS


def is_visible(kept: Kept, configuration: str) -> bool:
    """Whether a server with that configuration may see it, and so use and delete it. An empty one stands for all."""
    return not configuration or kept.configuration in ("", configuration)


def is_expired(kept: Kept, now: float) -> bool:
    return 0 < kept.disposable.expires < now - GRACE_S and kept.disposable.status != CREATING


def is_unused(kept: Kept, rules: Rules, now: float) -> bool:
    """Whether nobody has used it for so long that it is cleaned up; one that was paused waits for its owner."""
    idle = now - kept.idle_since > 60 * rules.cleanup_after_minutes
    return rules.auto_cleanup and idle and not kept.pool and kept.disposable.status not in (PAUSED, CREATING)


def is_nearly_over(kept: Kept, now: float) -> bool:
    """Whether it is time to ask whether anything runs in it that nobody waits for."""
    return 0 < kept.disposable.expires < now + min(kept.timeout_s / 2, NEARLY_S)


def is_about_to_expire(kept: Kept, now: float) -> bool:
    """Whether it has less than half of its time left."""
    return 0 < kept.disposable.expires < now + kept.timeout_s / 2


def pause_for(rules: Rules, kept: Iterable[Kept]) -> float:
    """How long to wait between two rounds: a part of the shortest time that there is."""
    times = [each.timeout_s / 4 for each in kept if each.timeout_s]
    times += [15 * rules.cleanup_after_minutes] if rules.auto_cleanup else []
    return max(SHORTEST_PAUSE_S, min([LONGEST_PAUSE_S, *times]))


def farewell(title: str, why: str, ended: float) -> str:
    """What became of it, when, and what to do."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended))
    return f"the sandbox {title} {why} at {when}; make a new one with create_sandbox"


def why_ended(kept: Kept, status: str, now: float) -> str:
    """Reason shown for a sandbox that we did not delete ourselves."""
    if status == ENDED:
        return BY_ITSELF
    over = 0 < kept.disposable.expires < now + GRACE_S
    return EXPIRED_BY_TIME if status == EXPIRED or over else FROM_OUTSIDE
