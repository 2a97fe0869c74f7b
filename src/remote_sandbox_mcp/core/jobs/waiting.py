"""The waiting list, pure: who may start now and where, so that nobody who came first starts later for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..task import Outcome, TaskState
from .cards import CardRequest
from .placement import Place, could_ever, count_free, is_large, reasons, why_busy, why_not, worth


@dataclass(frozen=True, kw_only=True)
class Waiter:
    """A job that waits for a place on one of these machines. `run_for_s` is what its caller said; 0 for nothing."""

    job_id: str
    session: str = ""
    places: tuple[str, ...]
    cards: CardRequest | None = None
    priority: int = 0
    since: float = 0.0
    run_for_s: float = 0.0


@dataclass(frozen=True)
class Turn:
    """A job that may start now on that machine."""

    job_id: str
    place: str


@dataclass(frozen=True)
class Verdict:
    """Jobs that may start now, in order, and why the others may not."""

    turns: tuple[Turn, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


def in_order(waiting: Iterable[Waiter]) -> list[Waiter]:
    """Sort by priority, then first come, first served."""
    return sorted(waiting, key=lambda waiter: (-waiter.priority, waiter.since, waiter.job_id))


@dataclass
class _Machine:
    """A machine in one decision: cards that were given away, and for whom its free ones are kept until when."""

    place: Place
    taken: int = 0
    kept_for: str = ""
    kept_until: float = 0.0

    def has_room(self, waiter: Waiter) -> bool:
        if self.place.usage is None or waiter.cards is None:
            return self.place.usage is not None
        # Which cards it gets is decided over there, so those that were given away may be any of the free ones.
        return count_free(self.place, waiter.cards) - self.taken >= waiter.cards.count

    def is_kept_from(self, waiter: Waiter, now: float) -> bool:
        """Whether one that came first would start later if this one started here."""
        if not self.kept_for or waiter.cards is None:
            return False
        return not waiter.run_for_s or now + waiter.run_for_s > self.kept_until

    def keep_for(self, waiter: Waiter, now: float) -> None:
        """Keep free cards for a job that could run here later; others may have them only until it could start."""
        is_kept = self.kept_for and self.kept_until <= now
        if is_kept or waiter.cards is None or not could_ever(self.place, waiter.cards):
            return
        # The time at which it could start here by what those who hold cards have said; now, if they said nothing.
        usage = self.place.usage
        large = [gpu for gpu in usage.gpus if is_large(gpu, waiter.cards.memory_mb)] if usage else []
        ends = sorted(max(now, gpu.lease.until) if gpu.lease else now for gpu in large if why_busy(gpu))
        lacking = waiter.cards.count - (sum(not why_busy(gpu) for gpu in large) - self.taken)
        earliest = ends[lacking - 1] if 0 < lacking <= len(ends) else now
        if not self.kept_for or earliest < self.kept_until:
            self.kept_for, self.kept_until = waiter.session or waiter.job_id, earliest


def who_may_start(
    waiting: Iterable[Waiter], places: Iterable[Place], now: float, taken: Mapping[str, int] | None = None
) -> Verdict:
    """Decide for all that wait, the first first. One may pass another only where it does not delay it.

    That is so on a machine that the other cannot use at all, or where it has ended, by what callers said, before
    the other could start. So one that finds no place keeps the free cards of each machine that could suit it.
    `taken`: how many cards of a machine were given away since it was measured.
    """
    machines = {place.name: _Machine(place, (taken or {}).get(place.name, 0)) for place in places}
    turns: list[Turn] = []
    why: dict[str, str] = {}
    # One that wants the same as an earlier one without a place has none either: cards only become fewer.
    refused: dict[object, str] = {}
    for waiter in in_order(waiting):
        alike = waiter.places, waiter.cards, waiter.run_for_s
        if alike not in refused:
            usable = [machines[name] for name in waiter.places if name in machines]
            if best := _best(waiter, usable, now):
                best.taken += waiter.cards.count if waiter.cards else 0
                turns.append(Turn(waiter.job_id, best.place.name))
                continue
            refused[alike] = _why(waiter, usable, now)
            for machine in usable:
                machine.keep_for(waiter, now)
        why[waiter.job_id] = refused[alike]
    return Verdict(tuple(turns), why)


def _best(waiter: Waiter, machines: Sequence[_Machine], now: float) -> _Machine | None:
    usable = [machine for machine in machines if machine.has_room(waiter) and not machine.is_kept_from(waiter, now)]
    return max(usable, key=lambda machine: worth(machine.place, waiter.cards, machine.taken), default=None)


def _why(waiter: Waiter, machines: Sequence[_Machine], now: float) -> str:
    sentences = []
    for machine in machines:
        name = machine.place.name
        if sentence := why_not(machine.place, waiter.cards):
            sentences.append(sentence)
        elif machine.has_room(waiter) and machine.is_kept_from(waiter, now):
            sentences.append(f"{name}: its free GPUs are kept for {machine.kept_for}, which is ahead")
        else:
            sentences.append(f"{name}: its free GPUs go to jobs that are ahead")
    return reasons(sentences) or "none of its machines can be used now"


# Jobs that others wait for

WAIT, GO = "wait", "go"


def after_verdict(name: str, outcome: Outcome) -> str:
    """WAIT or GO, or why it never starts: as a job says that has to end well before another one starts."""
    if outcome.state is TaskState.SUCCEEDED:
        return GO
    if not outcome.is_over or outcome.resume or outcome.state is TaskState.UNKNOWN:
        return WAIT
    return f"it was to start after {outcome.sentence(f'{name}, which', 0.0)}"
