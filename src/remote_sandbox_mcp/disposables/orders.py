"""What a caller may order: each part is refused here, in one sentence, before anything is made."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from ..core import check
from ..core.disposable import DISPOSABLE_ID, Limits, Rules, SandboxOrder
from ..core.errors import BadArgument, ConfigError
from ..core.network import MOST_HOSTS, is_target

EMBEDDED, OPENSANDBOX = "embedded", "opensandbox"
LONGEST_NAME = 60
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# The most that can be meant: more is a slip of the pen.
_MOST = {"cpu": 1024, "memory_mb": 16 << 20, "processes": 1 << 22, "disk_mb": 1 << 30, "gpus": 64}


def checked(order: SandboxOrder, rules: Rules, kinds: Collection[str], names: Collection[str]) -> SandboxOrder:
    """The order with its image and provider filled in. Raises BadArgument, or ConfigError for the operator's part."""
    _check_name(order.name, names)
    _check_timeout(order.timeout_s)
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
    provider = provider_for(order.provider, rules, kinds)
    return replace(order, image=order.image or default_image(provider, rules), provider=provider)


def default_image(provider: str, rules: Rules) -> str:
    """What is meant where no image is named; the name of a container's image says nothing to the embedded one."""
    return rules.default_image if suits(rules.default_image, provider) else ""


def suits(image: str, provider: str) -> bool:
    """Whether a provider can take it for an image: that of an embedded sandbox is a folder, or this machine's own."""
    return provider != EMBEDDED or not image or image.startswith(("/", "~", "."))


def provider_for(wanted: str, rules: Rules, kinds: Collection[str]) -> str:
    """Who makes it: as ordered, as configured, or the platform where there is one."""
    if wanted and wanted not in kinds:
        raise BadArgument(f"there is no provider {wanted[:40]!r} here; there are: {', '.join(kinds)}")
    if rules.refusal and not wanted:
        raise ConfigError(f"no sandbox is made, for its platform is not known: {rules.refusal}")
    if rules.provider and rules.provider not in kinds and not wanted:
        raise ConfigError(
            f"the provider {rules.provider!r} is configured for disposable sandboxes, but cannot be used here; there "
            f"are: {', '.join(kinds)}. Configure the platform's address, or choose another provider"
        )
    return wanted or rules.provider or (OPENSANDBOX if OPENSANDBOX in kinds else EMBEDDED)


def is_plain(order: SandboxOrder) -> bool:
    """Whether one that was made before it was wanted will do."""
    special = (order.env, order.hosts, order.volumes, order.entrypoint, order.metadata, order.network)
    # Of one that a platform keeps ready nobody has made sure that its network is off.
    is_off_enough = order.network is None or order.provider == EMBEDDED
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


def _check_timeout(timeout_s: float) -> None:
    if timeout_s != 0:
        check.within("timeout", timeout_s, 1, check.LONGEST_TIMEOUT_S)


def _check_limits(limits: Limits) -> None:
    for name, most in _MOST.items():
        check.within(name, getattr(limits, name), 0, most)


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
