"""Disposable sandboxes as values: the order, the sandbox, its provider, and logins to image registries."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import BadArgument, ConnectError, Unsupported
from .network import PACKAGE_INDEXES
from .sandbox import Sandbox
from .secret import Secret
from .slurm import Options

DISPOSABLE_ID = re.compile(r"sb-[a-z0-9]{8,40}\Z")
# The status of one that its provider has in a queue.
PENDING = "pending"
NO_IMAGE = "no image was named, and no default_image is configured; name one as image, or set OPENSANDBOX_DEFAULT_IMAGE"
HUB = "docker.io"
# Other names of Docker Hub.
_ALSO_HUB = ("index.docker.io", "registry-1.docker.io")


def new_disposable_id() -> str:
    """A new, random id for a sandbox."""
    import uuid

    return f"sb-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class Limits:
    """Limits of a sandbox; 0 is the provider's default. `told` says how each is enforced, or why it is not."""

    cpu: float = 0.0
    memory_mb: int = 0
    processes: int = 0
    disk_mb: int = 0
    gpus: int = 0
    # What each of the cards must have, where they are leased.
    gpu_memory_mb: int = 0
    # Which cards, by their numbers or ids on the machine, where that matters; then `gpus` is how many these are.
    cards: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    @classmethod
    def recorded(cls, values: Mapping[str, Any]) -> Limits:
        """Read limits from JSON, perhaps of a version that had fewer or others."""
        fields: dict[str, Any] = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        return cls(**fields | {name: tuple(fields.get(name, ())) for name in ("cards", "told")})


@dataclass(frozen=True)
class Volume:
    """A folder of the platform's machine, or a named volume, seen inside at `target`."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, kw_only=True)
class SandboxOrder:
    """A sandbox as a caller wants it, before any provider has checked it."""

    # Its name for people; empty: its id.
    name: str = ""
    # Empty: the configured default of the provider; embedded: a folder with a root file system, empty for the host's.
    image: str = ""
    # How long it lives without being renewed; 0: until it is deleted.
    timeout_s: float = 600.0
    # Not shown: variables are where people keep tokens.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: Limits = Limits()
    # True: full network. False: none, or the creation fails. None: none if the provider can enforce that.
    network: bool | None = None
    # If not empty: only these hosts can be reached, or the creation fails.
    hosts: tuple[str, ...] = ()
    volumes: tuple[Volume, ...] = ()
    entrypoint: tuple[str, ...] = ()
    # "embedded", "opensandbox", the name of a machine with an engine or a cluster, or empty for the configured one.
    provider: str = ""
    # Of a cluster's allocation: see core.slurm.read_options.
    slurm: Options = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    # A person chose its network, so the operator's list of hosts for agents does not apply.
    free: bool = False


@dataclass(frozen=True, kw_only=True)
class Disposable:
    """A sandbox that was made. Times are seconds since the epoch, 0 for never; `key` is the provider's id for it."""

    id: str
    provider: str
    key: str = ""
    name: str = ""
    image: str = ""
    # running, paused, creating, pending (in a queue), failed, expired, ended (by itself; something of it is still
    # there), gone
    status: str = "running"
    # Why it is pending, or how it ended, where its provider knows: the end of a sentence.
    reason: str = ""
    created: float = 0.0
    # When its queue has started it, for one that was pending: its time counts from then on.
    started: float = 0.0
    # When its queue ends it at the latest.
    ends_by: float = 0.0
    expires: float = 0.0
    limits: Limits = Limits()
    # Whether a process inside can reach anything outside.
    network: bool = False
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.name or self.id

    @property
    def kind(self) -> str:
        """Kind of its provider, without the machine's name."""
        return self.provider.partition(":")[0]

    @property
    def machine(self) -> str:
        """The machine whose engine or cluster runs it; empty for those of other providers."""
        return self.provider.partition(":")[2]


def is_pending(it: Disposable) -> ConnectError:
    """Build the error for every use of a sandbox that is still in a queue."""
    why = it.reason or "its queue has not started it yet"
    return ConnectError(f"{it.title} is pending: {why}; try again later, or delete_sandbox takes it out of the queue")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """An OpenSandbox server as the operator configured it; `server_url` is empty where there is none."""

    server_url: str = ""
    api_key: Secret | None = None
    # Reach sandboxes through the server itself, where their own ports cannot be reached from here.
    use_server_proxy: bool = False
    request_timeout_s: float = 30.0
    ready_timeout_s: float = 60.0
    # By the host of the registry.
    registries: Mapping[str, RegistryLogin] = field(default_factory=dict)
    # Named volumes and folders of the platform's machine that callers may mount, besides volumes made for sandboxes.
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DisposableRules:
    """The operator's rules for disposable sandboxes."""

    # Empty: opensandbox where a platform is configured, else embedded.
    provider: str = ""
    default_image: str = ""
    default_timeout_s: float = 600.0
    max_concurrent: int = 5
    auto_cleanup: bool = True
    # Minutes without use; a sandbox in which something runs is in use.
    cleanup_after_minutes: float = 30.0
    # How many sandboxes are kept ready, by image.
    pool: Mapping[str, int] = field(default_factory=dict)
    # Why a call that names no provider is refused: a platform seems to be configured, but its settings cannot be read.
    refusal: str = ""
    # Whether an embedded sandbox with network=true uses this computer's own network.
    shares_host_network: bool = False
    # Addresses of the user's own networks that an embedded sandbox with a network may reach.
    private_ranges: tuple[str, ...] = ()
    # Hosts that an agent may choose for a sandbox's network; EVERY_HOST stands for all.
    network_hosts: tuple[str, ...] = PACKAGE_INDEXES
    # What embedded sandboxes are walled in by; empty for what works here.
    walls: str = ""


class NeedsHeaders(Unsupported):
    """A port's address that no browser can open, because requests need headers; only the headers' names are shown."""

    def __init__(self, message: str, url: str, headers: tuple[str, ...]) -> None:
        super().__init__(message)
        self.url = url
        self.headers = headers


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Differences between providers, as data: decisions read this, and not the provider's kind."""

    # It is a platform at an address, with a key: it may not answer, and it is meant where no provider is named.
    is_platform: bool = False
    # What runs in its sandboxes ends with the process that opened them.
    ends_with_server: bool = False
    # Its images are folders of this machine; those of others are names in a registry.
    has_folders_as_images: bool = False
    # What was made without a network for sure has none, though the order did not ask for that.
    keeps_network_off: bool = False
    # A caller may choose GPUs by card, and not only how many.
    has_cards: bool = False
    # A queue gives out its sandboxes: they may be pending, take options of Slurm, have no image of their own, and GPUs
    # are chosen by type.
    is_queue: bool = False
    # The machine whose engine or cluster it is; empty for all others.
    machine: str = ""


@dataclass(frozen=True)
class Offer:
    """A provider that can be had: what it is like, how it is made, and of which settings; others make it anew."""

    traits: Traits
    make: Callable[[], Provider]
    settings: object = None


@dataclass(frozen=True)
class ProviderChoice:
    """A provider as a person may choose it. `image` is the one that is used where none is named."""

    kind: str
    image: str
    traits: Traits
    is_default: bool = False


class Provider(Protocol):
    """Makes disposable sandboxes. Knows only those that carry its own mark, and never touches others.

    Methods raise SandboxError with one sentence for the caller: no such image, no room, quota, not ready, paused,
    Unsupported for what it cannot do, Unreachable where the platform does not answer. `rules` are the operator's, and
    are set anew when these change.
    """

    rules: DisposableRules

    @property
    def traits(self) -> Traits: ...

    @property
    def where(self) -> str:
        """The platform and its address, as sentences name them."""

    async def create(self, disposable_id: str, order: SandboxOrder) -> Disposable:
        """Create one that is ready to run commands, or pending. If that fails, nothing is left of it."""

    async def open(self, disposable: Disposable) -> Sandbox:
        """The sandbox itself. Its `description.name` is the disposable's title. Raises ConnectError."""

    async def inspect(self, disposable: Disposable) -> Disposable:
        """The current state; status "gone" where it no longer exists."""

    async def list(self) -> Sequence[Disposable]:
        """All of ours that the provider has, whichever process made them."""

    async def delete(self, disposable: Disposable) -> None:
        """Delete it and all that is left of it; no error if it is already gone."""

    async def renew(self, disposable: Disposable, timeout_s: float) -> Disposable:
        """Set its expiry to `timeout_s` seconds from now."""

    async def pause(self, disposable: Disposable) -> Disposable: ...

    async def resume(self, disposable: Disposable) -> Disposable: ...

    async def snapshot(self, disposable: Disposable, name: str = "") -> str:
        """Keep its files as an image; the name under which `create` takes it."""

    async def endpoint(self, disposable: Disposable, port: int) -> str:
        """A URL under which a person on this machine reaches that port of the sandbox. Raises NeedsHeaders."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class RegistryLogin:
    """User and password for one image registry."""

    user: str
    password: Secret


def login_for(image: str, logins: Mapping[str, RegistryLogin]) -> RegistryLogin | None:
    """The login for the registry of an image, from those given by host."""
    return logins.get(host_of(image))


def host_of(image: str) -> str:
    """Host (and port) of an image's registry; Docker Hub's where the name has none."""
    first, slash, _ = image.partition("/")
    # `team/app` is a name on Docker Hub: a host has a dot, a port or a capital letter, or is localhost.
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost" or first != first.lower())
    return canonical_host(first) if is_host else HUB


def canonical_host(host: str) -> str:
    """One name for a registry that is known by several."""
    lower = host.lower()
    return HUB if lower in _ALSO_HUB else lower


# As callers write them


def megabytes(text: str) -> int:
    """512m, 2g, 1.5GiB, or a plain number of megabytes."""
    units = dict.fromkeys(("", "m", "mb", "mib", "mi"), 1.0) | dict.fromkeys(("g", "gb", "gib", "gi"), 1024.0)
    number = text.strip().lower()
    unit = number.lstrip("0123456789.")
    try:
        return int(float(number[: len(number) - len(unit)]) * units[unit.strip()]) if number else 0
    except (KeyError, ValueError, OverflowError):
        raise BadArgument(f"memory is {text[:40]!r}; write it as 512m or 2g") from None


def gpus(wanted: int | str) -> dict[str, Any]:
    """A number says how many; a text names cards."""
    if isinstance(wanted, int):
        return {"gpus": wanted}
    cards = tuple(dict.fromkeys(card.strip() for card in wanted.split(",") if card.strip()))
    return {"gpus": len(cards), "cards": cards}


def volume(text: str) -> Volume:
    """source:/target, or source:/target:rw."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise BadArgument(f"a volume is written as source:/target or source:/target:rw, not {text[:80]!r}")
    return Volume(source, target, read_only=mode != "rw")
