"""Turns a SandboxOrder into a request to the platform, and encodes and reads a sandbox's labels: pure."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...core.errors import Unsupported
from ...core.sandboxes.disposable import DISPOSABLE_ID, DisposableRules, Limits, SandboxOrder
from ...core.sandboxes.network import read_rule

# Labels follow the rules of Kubernetes, even where the platform does not run on it.
PREFIX = "remote-sandbox-mcp"
MARK, ID, NAME, NETWORK = (f"{PREFIX}/{word}" for word in ("mark", "id", "name", "network"))
LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")
LONGEST_NAME = 45
SNAPSHOT = "snapshot:"
SHORTEST_LIFE_S = 60.0
USUAL = {"cpu": "1", "memory": "2Gi"}
# Older agents in a sandbox wait this long after every command before they report its end.
QUICK = {"EXECD_API_GRACE_SHUTDOWN": "10ms"}
STATUS = {
    "Pending": "creating",
    "Running": "running",
    "Pausing": "paused",
    "Paused": "paused",
    "Stopping": "gone",
    # Its main process has exited with 0; the container still exists.
    "Terminated": "ended",
    "Failed": "failed",
}


@dataclass(frozen=True)
class PlatformRequest:
    """A request to the platform; `notes` are sentences about parts of the order that it cannot take."""

    image: str
    snapshot: str
    life_s: float
    env: Mapping[str, str]
    resource: Mapping[str, str]
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...]
    # None for no network policy; else the hosts that may be reached.
    allowed_hosts: tuple[str, ...] | None
    # Whether the sandbox must not be created without its policy.
    must_hold: bool
    limits: Limits
    notes: tuple[str, ...]

    @property
    def has_network(self) -> bool:
        return NETWORK in self.labels

    def with_network(self, note: str) -> PlatformRequest:
        """The request for a sandbox whose network could not be kept off; the note tells the caller."""
        return replace(self, labels={**self.labels, NETWORK: "yes"}, notes=(*self.notes, note))

    def without_policy(self) -> PlatformRequest:
        """The request for a platform that cannot enforce a network policy."""
        note = "the network could not be kept off: this platform has no egress control ([egress] in its settings)"
        return replace(self.with_network(note), allowed_hosts=None)


def request_of(disposable_id: str, order: SandboxOrder, rules: DisposableRules, mark: str) -> PlatformRequest:
    """Raises Unsupported for hosts with a port: an egress rule has none."""
    for host in order.hosts:
        if (rule := read_rule(host)) and rule.port:
            raise Unsupported(f"network: a platform's rules know no ports; write {host.rpartition(':')[0]} alone")
    image = order.image or rules.default_image
    resource, limit_notes = _resources(order.limits)
    life_s, notes = _life(order.timeout_s)
    of_a_snapshot = image.startswith(SNAPSHOT)
    open_network = order.network and not order.hosts
    narrowed = (f"its network reaches only {', '.join(order.hosts)}",) if order.hosts else ()
    return PlatformRequest(
        image="" if of_a_snapshot else image,
        snapshot=image[len(SNAPSHOT) :] if of_a_snapshot else "",
        life_s=life_s,
        env={**QUICK, **order.env},
        resource=resource,
        labels=_labels(disposable_id, order, mark),
        entrypoint=order.entrypoint,
        allowed_hosts=None if open_network else order.hosts,
        must_hold=order.network is False or bool(order.hosts),
        limits=replace(order.limits, told=limit_notes),
        notes=notes + narrowed,
    )


def _life(timeout_s: float) -> tuple[float, tuple[str, ...]]:
    if 0 < timeout_s < SHORTEST_LIFE_S:
        note = (
            f"it lives {SHORTEST_LIFE_S:.0f} s: the platform allows no less than that, and {timeout_s:g} s were asked"
        )
        return SHORTEST_LIFE_S, (note,)
    return timeout_s, ()


def _resources(limits: Limits) -> tuple[dict[str, str], tuple[str, ...]]:
    resource = dict(USUAL)
    if limits.cpu:
        resource["cpu"] = f"{round(limits.cpu * 1000)}m"
    if limits.memory_mb:
        resource["memory"] = f"{limits.memory_mb}Mi"
    if limits.gpus:
        resource["gpu"] = str(limits.gpus)
    notes = [f"{name} {value}: held by the platform" for name, value in resource.items()]
    if limits.processes:
        notes.append("processes: as the platform's own settings limit them; it takes no number for one sandbox")
    if limits.disk_mb:
        notes.append("disk: not limited; the platform takes no number for one sandbox")
    return resource, tuple(notes)


def _labels(disposable_id: str, order: SandboxOrder, mark: str) -> dict[str, str]:
    ours = {MARK: mark_label(mark), ID: disposable_id}
    ours.update({NAME: name_label(order.name)} if order.name else {})
    ours.update({NETWORK: "yes"} if order.network or order.hosts else {})
    return {**order.metadata, **ours}


def mark_label(mark: str) -> str:
    """The mark as a valid label: itself, or a digest of it."""
    return mark if LABEL.match(mark) else hashlib.sha256(mark.encode()).hexdigest()[:40]


def name_label(name: str) -> str:
    """A name as a valid label, which `label_name` decodes; a very long name is cut."""
    if LABEL.match(name) and not name.startswith("x."):
        return name
    cut = name.encode()[:LONGEST_NAME].decode("utf-8", "ignore").encode()
    return f"x.{base64.urlsafe_b64encode(cut).decode().rstrip('=')}"[:62] + "x"


def label_name(label: str) -> str:
    if not label.startswith("x."):
        return label
    coded = label[2:-1]
    try:
        return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
    except ValueError:
        return ""


def is_ours(labels: Mapping[str, str], mark: str) -> bool:
    return labels.get(MARK) == mark_label(mark) and bool(DISPOSABLE_ID.match(labels.get(ID, "")))
