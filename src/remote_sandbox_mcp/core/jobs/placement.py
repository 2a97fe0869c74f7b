"""Choice of the machine for a job that asks for GPUs, by what is free now, and why the others do not fit."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import BadArgument
from ..resources.usage import Gpu, Usage, idle_score
from ..sandboxes.disposable import megabytes
from .cards import CardRequest

# In place of a name: whichever machine is the best.
ANY = "any"
# The driver and a desktop hold a little memory themselves: less than this, and less than this share of a small card.
# The machine decides by the same numbers when it leases a card (far/jobs/cards.py, far/shell/cards.sh).
DRIVER_MB, DRIVER_SHARE = 512.0, 0.1
# A card of 24 GB has a little less than that.
SLACK_MB = 1024.0
# At most so many machines are named in one reason.
MOST_NAMED = 8
MOST_CARDS = 64


@dataclass(frozen=True)
class Place:
    """A machine as it stands: what was measured there, or why nothing could be."""

    name: str
    usage: Usage | None = None
    trouble: str = ""
    # What was found out for a request: a thousand jobs ask the same few questions.
    known: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)


Found = TypeVar("Found")


def _once(answer: Callable[[Place, CardRequest], Found]) -> Callable[[Place, CardRequest], Found]:
    @functools.wraps(answer)
    def found(place: Place, request: CardRequest) -> Found:
        if (key := (answer, request)) not in place.known:
            place.known[key] = answer(place, request)
        return place.known[key]  # type: ignore[no-any-return]

    return found


def read_request(gpus: int, gpu_memory: str) -> CardRequest | None:
    """The cards that a caller asks for; None for none. Raises BadArgument."""
    if not 0 <= gpus <= MOST_CARDS:
        raise BadArgument(f"gpus is {gpus}, but must be between 0 and {MOST_CARDS}")
    memory_mb = megabytes(gpu_memory)
    if memory_mb and not gpus:
        raise BadArgument("gpu_memory says how much each of the GPUs must have; say how many with gpus")
    return CardRequest(gpus, memory_mb) if gpus else None


def place_of(names: str) -> tuple[str, tuple[str, ...]]:
    """The one machine that is named, or those (between commas, or ANY) of which the best is taken."""
    found = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if ANY in found:
        return "", (ANY,)
    return ("", found) if len(found) > 1 else ("".join(found), ())


# Cards


def why_busy(gpu: Gpu, memory_mb: int = 0) -> str:
    """Explain why a card is not free, in a word: used, leased, closed or small; empty for one that is.

    It is free when nobody has leased it, no process holds memory on it beyond what the driver has for itself, and it
    has the memory that is asked for.
    """
    if gpu.lease is not None:
        return "leased"
    total, used = gpu.mem_total_mb, gpu.mem_used_mb
    own = min(DRIVER_MB, DRIVER_SHARE * total) if total else DRIVER_MB
    if gpu.processes or (used or 0.0) > own:
        return "used"
    if gpu.compute_mode == "Prohibited":
        return "closed"
    return "" if is_large(gpu, memory_mb) else "small"


def is_large(gpu: Gpu, memory_mb: int) -> bool:
    """Whether the card has that much memory, apart from the driver's own."""
    return not memory_mb or (gpu.mem_total_mb or 0.0) + SLACK_MB >= memory_mb


def free_cards(usage: Usage, memory_mb: int = 0) -> list[Gpu]:
    return [gpu for gpu in usage.gpus if not why_busy(gpu, memory_mb)]


@_once
def count_free(place: Place, request: CardRequest) -> int:
    """Count the cards that a job could have now; of a cluster, those of the partition that has most."""
    usage = place.usage or Usage()
    if usage.cluster:
        open_ones = (partition for partition in usage.cluster.partitions if partition.state == "up")
        return max((sum(gpus.idle for gpus in partition.gpus) for partition in open_ones), default=0)
    return len(free_cards(usage, request.memory_mb))


@_once
def could_ever(place: Place, request: CardRequest) -> bool:
    """Whether the machine has that many large enough cards at all, free or not."""
    if place.usage is None:
        return False
    return sum(is_large(gpu, request.memory_mb) for gpu in place.usage.gpus) >= request.count


# Machines


def ranked(places: Iterable[Place], request: CardRequest | None) -> list[Place]:
    """The machines that fit now, the best first: most free cards, then most memory on them, then the least load.

    A cluster comes after the machines on which a job starts at once. Without a request, the most idle is the best.
    """
    fitting = [place for place in places if not why_not(place, request)]
    return sorted(fitting, key=lambda place: worth(place, request), reverse=True)


def worth(place: Place, request: CardRequest | None, taken: int = 0) -> tuple[bool, int, float, float]:
    """Rank among machines that fit, the greatest is the best; `taken` of its free cards are given away already."""
    usage = place.usage or Usage()
    memory = sum(gpu.mem_total_mb or 0.0 for gpu in free_cards(usage, request.memory_mb)) if request else 0.0
    cards = count_free(place, request) - taken if request else 0
    return not usage.cluster, cards, memory, idle_score(usage)


def why_not(place: Place, request: CardRequest | None) -> str:
    """Explain why a machine does not fit now, as a sentence that begins with its name; empty if it does."""
    if place.usage is None:
        return f"{place.name}: {place.trouble or 'it was not asked'}"
    if request is None or count_free(place, request) >= request.count:
        return ""
    return f"{place.name}: {_lacks(place, request)}"


@_once
def _lacks(place: Place, request: CardRequest) -> str:
    usage, free = place.usage or Usage(), count_free(place, request)
    if usage.cluster:
        return f"its queue has {free} GPUs free in one partition"
    if not usage.gpus:
        return usage.gpu_error or "it has no GPU"
    if not could_ever(place, request):
        enough = sum(is_large(gpu, request.memory_mb) for gpu in usage.gpus)
        memory = f" with {request.memory_mb / 1024:.3g} GB" if request.memory_mb else ""
        return f"it has {enough} GPU{'' if enough == 1 else 's'}{memory}, not {request.count}"
    return "; ".join(_busy_parts(usage, request.memory_mb)) + (f"; {free} free" if free else "")


def _busy_parts(usage: Usage, memory_mb: int) -> Iterable[str]:
    groups: dict[str, list[Gpu]] = {}
    for gpu in usage.gpus:
        groups.setdefault(why_busy(gpu, memory_mb), []).append(gpu)
    total = f" of {len(usage.gpus)}"
    if used := groups.get("used"):
        yield f"{len(used)}{total} used{_by(used)}"
        total = ""
    leases: dict[str, int] = {}
    for gpu in groups.get("leased", ()):
        leases[_lease_text(gpu)] = leases.get(_lease_text(gpu), 0) + 1
    for text, count in leases.items():
        yield f"{count}{total} leased {text}"
        total = ""
    for word, text in (("closed", "closed to everybody"), ("small", "too small")):
        if group := groups.get(word):
            yield f"{len(group)}{total} {text}"
            total = ""


def _by(gpus: Iterable[Gpu]) -> str:
    users = dict.fromkeys(process.user for gpu in gpus for process in gpu.processes if process.user)
    return f" by {', '.join(users)}" if users else ""


def _lease_text(gpu: Gpu) -> str:
    lease = gpu.lease
    if lease is None:
        return ""
    # The time of day, not how long until then: the same reason stays the same text.
    until = f", by plan until {time.strftime('%m-%d %H:%M', time.localtime(lease.until))}" if lease.until else ""
    return f"by {lease.user} until {lease.job or 'the job'} ends{until}"


def reasons(sentences: Sequence[str]) -> str:
    """The sentences of several machines as one text."""
    more = f". And {len(sentences) - MOST_NAMED} more machines" if len(sentences) > MOST_NAMED else ""
    return ". ".join(sentence.rstrip(". ") for sentence in sentences[:MOST_NAMED]) + more
