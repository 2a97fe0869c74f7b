"""Decisions on disposable sandboxes: which orders are allowed, and when one is renewed, adopted or ended."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum

from ...core import check
from ...core.errors import BadArgument, ConfigError
from ...core.permission import allow_network
from ...core.sandboxes.disposable import DISPOSABLE_ID, PENDING, DisposableRules, Limits, SandboxOrder, Traits
from ...core.sandboxes.network import MOST_HOSTS, is_target
from ...local.store.disposables import CREATING, ENDED, ENDING, EXPIRED, PAUSED, Kept, Owner

# Its provider ends one that has expired; we see to it only if that has not happened soon after.
GRACE_S = 2.0
LONGEST_PAUSE_S = 15.0
SHORTEST_PAUSE_S = 0.25
NEARLY_S = 60.0

# Why one has ended, as its row says.
DELETED, EXPIRED_BY_TIME, CLEANED_UP = "deleted", "expired", "cleaned_up"
WITH_SERVER, BY_ITSELF, FROM_OUTSIDE = "with_server", "by_itself", "from_outside"
_ENDINGS = {
    DELETED: "was deleted",
    EXPIRED_BY_TIME: "has expired, unused for its whole time,",
    CLEANED_UP: "was cleaned up for want of use",
    WITH_SERVER: "ended with the server that was making it",
    BY_ITSELF: "ended by itself when its main process ended",
    FROM_OUTSIDE: "was ended by its platform or from outside",
}
LONGEST_NAME = 60
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# The most that can be meant: more is a slip of the pen.
_MOST = {"cpu": 1024, "memory_mb": 16 << 20, "processes": 1 << 22, "disk_mb": 1 << 30, "gpus": 64}
_LEASED = "gpu_memory is for a number of GPUs (gpu=2) on a machine with docker or podman"


class SandboxFate(Enum):
    """MINE; SHARED with another living server; THEIRS alone; of a server that has ended: INHERIT, SWEEP."""

    MINE = "mine"
    SHARED = "shared"
    THEIRS = "theirs"
    INHERIT = "inherit"
    SWEEP = "sweep"


def fate(kept: Kept, me: Owner, living: frozenset[Owner], now: float, configuration: str = "") -> SandboxFate:
    """`living` are the owners that still run, `configuration` that of the process that asks."""
    it, mine = kept.disposable, kept.owner == me
    can_be_used = not kept.pool and it.status not in (CREATING, ENDING) and is_visible(kept, configuration)
    if not mine and kept.owner in living:
        return SandboxFate.SHARED if can_be_used else SandboxFate.THEIRS
    if it.status == ENDING or is_expired(kept, now):
        return SandboxFate.SWEEP
    if mine:
        return SandboxFate.MINE
    if kept.pool or it.status == CREATING:
        # It was not handed out yet, or the client was not told that it was made.
        return SandboxFate.SWEEP
    # One of another configuration waits for a server that has that one, or for its time to be over.
    return SandboxFate.INHERIT if can_be_used else SandboxFate.THEIRS


def is_visible(kept: Kept, configuration: str) -> bool:
    """Whether a server with that configuration may see it, and so use and delete it. An empty one stands for all."""
    return not configuration or kept.configuration in ("", configuration)


def is_expired(kept: Kept, now: float) -> bool:
    return 0 < kept.disposable.expires < now - GRACE_S and kept.disposable.status != CREATING


def is_unused(kept: Kept, rules: DisposableRules, now: float) -> bool:
    """Whether it was unused for so long that it is cleaned up; a paused one is kept for its owner."""
    idle = now - kept.idle_since > 60 * rules.cleanup_after_minutes
    return rules.auto_cleanup and idle and not kept.pool and kept.disposable.status not in (PAUSED, CREATING, PENDING)


def is_nearly_over(kept: Kept, now: float) -> bool:
    """Whether it is time to check for commands that run in it without a waiting caller."""
    return 0 < kept.disposable.expires < now + min(kept.timeout_s / 2, NEARLY_S)


def is_about_to_expire(kept: Kept, now: float) -> bool:
    """Whether it has less than half of its time left."""
    return 0 < kept.disposable.expires < now + kept.timeout_s / 2


def pause_for(rules: DisposableRules, kept: Iterable[Kept]) -> float:
    """Return how long to wait between two rounds: a part of the shortest time that there is."""
    times = [each.timeout_s / 4 for each in kept if each.timeout_s]
    times += [15 * rules.cleanup_after_minutes] if rules.auto_cleanup else []
    return max(SHORTEST_PAUSE_S, min([LONGEST_PAUSE_S, *times]))


def ending_text(title: str, why: str, ended: float) -> str:
    """Describe the end of a sandbox, when, and what to do. Rows of earlier versions have the words in `why`."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended))
    return f"the sandbox {title} {_ENDINGS.get(why, why)} at {when}; make a new one with create_sandbox"


def why_ended(kept: Kept, status: str, now: float) -> str:
    """Reason shown for a sandbox that we did not delete ourselves."""
    if status == ENDED:
        return BY_ITSELF
    over = 0 < kept.disposable.expires < now + GRACE_S
    return EXPIRED_BY_TIME if status == EXPIRED or over else FROM_OUTSIDE


def checked(
    order: SandboxOrder, rules: DisposableRules, offered: Mapping[str, Traits], names: Collection[str]
) -> SandboxOrder:
    """The order with its image and provider filled in. Raises BadArgument, or ConfigError for the operator's part."""
    _check_name(order.name, names)
    if order.timeout_s != 0:
        check.in_range("timeout", order.timeout_s, 1, check.LONGEST_TIMEOUT_S)
    _check_limits(order.limits)
    _check_hosts(order.hosts)
    for name in order.env:
        if not _VARIABLE.match(name):
            raise BadArgument(f"env: {name[:60]!r} is no name of a variable; use letters, digits and underscores")
    for argument, text in _texts(order):
        check.text_argument(argument, text, required=False)
    for volume in order.volumes:
        if not volume.source or not volume.target.startswith("/"):
            raise BadArgument("volumes: each needs a source, and a target that is a whole path inside the sandbox")
    provider = provider_for(order.provider, rules, offered, names)
    if order.slurm and not offered[provider].is_queue:
        raise BadArgument("slurm: only a sandbox on a cluster takes options of Slurm; name the cluster with on")
    # An allocation has the nodes' own network, whatever is ordered.
    if not order.free and not offered[provider].is_queue:
        allow_network(order.network, order.hosts, rules.network_hosts)
    limits = _countable(order.limits, offered[provider])
    is_leased = offered[provider].has_cards and not limits.cards
    if limits.gpu_memory_mb and not (limits.gpus and (is_leased or offered[provider].is_queue)):
        raise BadArgument(_LEASED)
    image = order.image or default_image(offered[provider], rules)
    return replace(order, image=image, provider=provider, limits=limits)


def default_image(traits: Traits, rules: DisposableRules) -> str:
    """Return the image where none is named; the name of a container's image says nothing where images are folders."""
    if traits.is_queue:
        return ""
    return rules.default_image if suits(rules.default_image, traits) else ""


def suits(image: str, traits: Traits) -> bool:
    """Whether a provider can take it for an image: where images are folders, none is this machine's own system."""
    return not traits.has_folders_as_images or not image or image.startswith(("/", "~", "."))


def provider_for(
    wanted: str, rules: DisposableRules, offered: Mapping[str, Traits], names: Collection[str] = ()
) -> str:
    """Choose the provider: as ordered, as configured, or the platform if any. `names` are configured sandboxes."""
    wanted = next((kind for kind, traits in offered.items() if wanted and wanted in (kind, traits.machine)), wanted)
    kinds = ", ".join(traits.machine or kind for kind, traits in offered.items())
    if wanted and wanted not in offered:
        why = f"there is no place {wanted[:40]!r}"
        if wanted in names:
            allow = (
                "the owner of an SSH machine allows them by docker = true, podman = true or slurm = true in its table"
            )
            why = f"no sandboxes are made on {wanted[:40]}; {allow}"
        raise BadArgument(f"on: {why}; there are: {kinds}")
    if rules.refusal and not wanted:
        raise ConfigError(f"no sandbox is made, for its platform is not known: {rules.refusal}")
    if rules.provider and rules.provider not in offered and not wanted:
        raise ConfigError(
            f"the provider {rules.provider!r} is configured for disposable sandboxes, but cannot be used here; there "
            f"are: {kinds}. Configure the platform's address, or choose another provider"
        )
    platform = next((kind for kind, traits in offered.items() if traits.is_platform), "")
    return wanted or rules.provider or platform or next(iter(offered))


def is_plain(order: SandboxOrder, traits: Traits) -> bool:
    """Whether one that was made before it was wanted will do."""
    special = (order.env, order.hosts, order.volumes, order.entrypoint, order.metadata, order.network, order.slurm)
    # Otherwise nobody has made sure that the network of one that was kept ready is off.
    is_off_enough = order.network is None or traits.keeps_network_off
    return not any(special) and is_off_enough and order.limits == Limits() and order.timeout_s > 0


def _check_name(name: str, names: Collection[str]) -> None:
    if not name:
        return
    check.text_argument("name", name)
    if len(name) > LONGEST_NAME or "/" in name or ":" in name or not name.isprintable() or name != name.strip():
        raise BadArgument(f'name must have 1 to {LONGEST_NAME} characters without "/", ":" and control characters')
    if DISPOSABLE_ID.match(name):
        raise BadArgument(f"name {name!r} looks like the id of a sandbox; choose another")
    if name in names:
        raise BadArgument(f"a sandbox is named {name!r} already; choose another name, or delete that one first")


def _check_limits(limits: Limits) -> None:
    for name, most in _MOST.items():
        check.in_range(name, getattr(limits, name), 0, most)


def _countable(limits: Limits, traits: Traits) -> Limits:
    """Read one number in quotes as a count where cards cannot be chosen."""
    if not limits.cards or traits.has_cards or traits.is_queue:
        return limits
    if len(limits.cards) > 1 or not limits.cards[0].isdecimal():
        where = "cards can be chosen only on a machine with docker or podman, and types only on a cluster"
        raise BadArgument(f"gpu: {where}; say how many, as gpu=1")
    counted = replace(limits, gpus=int(limits.cards[0][:9]), cards=())
    _check_limits(counted)
    return counted


def _check_hosts(hosts: Collection[str]) -> None:
    if len(hosts) > MOST_HOSTS:
        raise BadArgument(f"network names {len(hosts)} hosts; name at most {MOST_HOSTS}, or use *.name")
    for host in hosts:
        if not is_target(host):
            raise BadArgument(
                f"network: {host[:80]!r} is no host; write a name, *.name, an address, or a range such as 10.0.0.0/8, "
                "with a port if need be (example.org:8443)"
            )


def _texts(order: SandboxOrder) -> Iterator[tuple[str, str]]:
    yield "image", order.image
    yield from (("env", text) for text in order.env.values())
    yield from (("entrypoint", text) for text in order.entrypoint)
    yield from (("volumes", text) for volume in order.volumes for text in (volume.source, volume.target))
    yield from (("metadata", text) for item in order.metadata.items() for text in item)
