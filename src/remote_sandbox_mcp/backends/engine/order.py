"""A SandboxOrder as an engine's command line, and what the engine says of its containers: pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from ...core.disposable import DISPOSABLE_ID, Disposable, Limits, SandboxOrder
from ...core.errors import BadArgument, Unsupported
from ...core.foreign import Fields, read_json, to_list
from ...core.machine import Engine
from ...core.permission import OWN_VOLUMES

PREFIX = "remote-sandbox-mcp"
MARK, ID, NAME, NETWORK, IMAGE = (f"{PREFIX}.{word}" for word in ("mark", "id", "name", "network", "image"))
# In memory: a container's disk may be full when it is renewed.
DEADLINE = f"/dev/shm/.{PREFIX}-deadline"
USUAL = Limits(cpu=1.0, memory_mb=2048, processes=512)
LEAST_MEMORY_MB = 16
# What root in a container needs to install packages, and no more: none of these reaches the machine.
CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
)
# As an engine names images; nothing of it can be an option or a path of the machine.
IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}\Z")
VOLUME_NAME = re.compile(re.escape(OWN_VOLUMES) + r"[A-Za-z0-9][A-Za-z0-9_.-]{0,100}\Z")
# The engine reads a mount as values with commas between.
MOUNT_TARGET = re.compile(r"/[^,\"'\\\x00-\x1f\x7f]{1,200}\Z")
CARD = re.compile(r"(?:[0-9]{1,3}|(?:GPU|MIG)-[0-9A-Za-z-]{1,80})\Z")
KEY = re.compile(r"[0-9a-f]{64}\Z")
STATUS = {
    "created": "creating",
    "configured": "creating",
    "initialized": "creating",
    "running": "running",
    "restarting": "running",
    "paused": "paused",
}
# Its main process is over; whatever is still there of it is to be removed.
OTHERWISE = "ended"


@functools.cache
def keeper() -> str:
    """The main program of a container, without comments: everybody sees it who lists the processes there."""
    lines = files(__package__).joinpath("keeper.sh").read_text(encoding="utf-8").splitlines()
    return "\n".join(line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))


def container_name(disposable_id: str) -> str:
    """Names are unique in an engine: while ours is there, no other container can pass for it."""
    return f"{PREFIX}-{disposable_id}"


def checked(order: SandboxOrder, where: str) -> SandboxOrder:
    """The order with the limits that will hold. Raises BadArgument, Unsupported."""
    if not order.image:
        raise BadArgument(
            f"unable to create a sandbox on {where}: no image was named, and no default_image is configured"
        )
    if not IMAGE_NAME.match(order.image):
        raise BadArgument(f"image: {order.image[:80]!r} is no name of an image on {where}; write one as python:3.12")
    if order.hosts:
        raise Unsupported(
            f"network: the engine on {where} cannot narrow a network to some hosts; use true for all, or leave it out"
        )
    for volume in order.volumes:
        _check_volume(volume.source, volume.target)
    for name, value in order.env.items():
        if "\n" in value or "\r" in value:
            raise BadArgument(f"env: the value of {name} has several lines, which an engine does not take; use a file")
    return replace(order, limits=_limits(order.limits))


def _check_volume(source: str, target: str) -> None:
    if not VOLUME_NAME.match(source):
        raise BadArgument(
            f"volumes: {source[:80]!r} cannot be mounted: a machine's folders and other programs' volumes are not for "
            f"sandboxes; use a volume whose name begins with {OWN_VOLUMES}"
        )
    if not MOUNT_TARGET.match(target) or ".." in target.split("/"):
        raise BadArgument(f"volumes: {target[:80]!r} cannot be mounted on; write a plain path inside the sandbox")


def _limits(asked: Limits) -> Limits:
    for card in asked.cards:
        if not CARD.match(card):
            raise BadArgument(f"gpu: {card[:80]!r} is no card; write their numbers there, as 0 or 0,2")
    if 0 < asked.memory_mb < LEAST_MEMORY_MB:
        raise BadArgument(f"memory: a container needs {LEAST_MEMORY_MB} MB at least")
    limits = replace(
        asked,
        cpu=asked.cpu or USUAL.cpu,
        memory_mb=asked.memory_mb or USUAL.memory_mb,
        processes=asked.processes or USUAL.processes,
        gpus=len(asked.cards) or asked.gpus,
    )
    held = f"cpu {limits.cpu:g}, memory {limits.memory_mb} MB without swap, {limits.processes} processes"
    told = [f"{held}: held by the engine"]
    if limits.disk_mb:
        told.append("disk: not limited; the engine takes no number for one container")
    return replace(limits, told=tuple(told))


def run_words(
    engine: Engine, disposable_id: str, order: SandboxOrder, mark: str, *, has_init: bool = True
) -> list[str]:
    """The words that make and start a container; its variables are read from standard input."""
    limits, life = order.limits, round(order.timeout_s)
    words = [*engine.command, "run", "--detach", "--rm", *(["--init"] if has_init else []), "--pull=never"]
    words += [f"--name={container_name(disposable_id)}", "--entrypoint=/bin/sh"]
    words += ["--env-file=/dev/stdin"] if order.env else []
    words += [f"--label={name}={value}" for name, value in _labels(disposable_id, order, mark).items()]
    words += ["--security-opt=no-new-privileges", "--cap-drop=ALL"]
    words += [f"--cap-add={name}" for name in CAPABILITIES]
    words += [f"--network={_network(engine, order)}"]
    words += [f"--cpus={limits.cpu:g}", f"--memory={limits.memory_mb}m", f"--memory-swap={limits.memory_mb}m"]
    # Counted as memory; programs that share arrays between processes need more than the usual 64 MB.
    words += [f"--pids-limit={limits.processes}", f"--shm-size={max(1, limits.memory_mb // 2)}m"]
    words += [word for volume in order.volumes for word in _mount(volume.source, volume.target, volume.read_only)]
    words += gpu_words(engine, limits)
    until = f"+{max(1, life)}" if order.timeout_s else "0"
    return [*words, order.image, "-c", 'eval "$0"', keeper(), until, DEADLINE]


def _labels(disposable_id: str, order: SandboxOrder, mark: str) -> dict[str, str]:
    # All of them, always: an image may bring labels of its own.
    network = "yes" if order.network else "no"
    return {MARK: mark, ID: disposable_id, NAME: order.name, IMAGE: order.image, NETWORK: network}


def _network(engine: Engine, order: SandboxOrder) -> str:
    """Never the machine's own; podman chooses by whether it runs as root."""
    if not order.network:
        return "none"
    return "private" if engine.tool == "podman" else "bridge"


def _mount(source: str, target: str, read_only: bool) -> list[str]:
    return [f"--mount=type=volume,source={source},target={target}" + (",readonly" if read_only else "")]


def gpu_words(engine: Engine, limits: Limits) -> list[str]:
    """Cards by their numbers or ids; a mere number of them is left to the engine, or takes the first."""
    if engine.tool == "podman":
        cards = limits.cards or tuple(map(str, range(limits.gpus)))
        return [f"--device=nvidia.com/gpu={card}" for card in cards]
    if limits.cards:
        # The engine reads values with commas between; quotes keep the cards together.
        return [f'--gpus="device={",".join(limits.cards)}"']
    return [f"--gpus={limits.gpus}"] if limits.gpus else []


def renewal(timeout_s: float) -> str:
    """What a shell in the container does to live so long from now on."""
    if not timeout_s:
        return f"printf '%-12s\\n' 0 1<>{DEADLINE}"
    return f"read -r up _ </proc/uptime; printf '%-12s\\n' $((${{up%%.*}} + {max(1, round(timeout_s))})) 1<>{DEADLINE}"


@dataclass(frozen=True)
class Seen:
    """A container as the engine tells of it."""

    key: str
    name: str
    status: str
    labels: Mapping[str, str]

    def is_ours(self, mark: str, disposable_id: str = "") -> bool:
        """Whether it carries our mark, an id of ours (that one, if given), and the name that belongs to the id."""
        own = self.labels.get(ID, "")
        is_named = bool(DISPOSABLE_ID.match(own)) and self.name == container_name(own)
        return is_named and self.labels.get(MARK) == mark and disposable_id in ("", own)

    def disposable(self, provider: str) -> Disposable:
        return Disposable(
            id=self.labels[ID],
            provider=provider,
            key=self.key,
            name=self.labels.get(NAME, ""),
            image=self.labels.get(IMAGE, ""),
            status=self.status,
            network=self.labels.get(NETWORK) == "yes",
        )


def read_seen(printed: str) -> list[Seen]:
    """All containers in what `inspect` printed. Raises ValueError."""
    found = (_seen(item) for item in to_list(read_json(printed.encode() or b"[]")))
    return [seen for seen in found if seen is not None]


def _seen(item: object) -> Seen | None:
    """None for what is no container of ours: others may be anything."""
    try:
        said = Fields(item)
        key, name, status = said.text("Id"), said.text("Name").lstrip("/"), said.part("State").text("Status")
        labels = said.part("Config").part("Labels").plain()
    except ValueError:
        return None
    held = {label: str(value) for label, value in labels.items()}
    return Seen(key, name, STATUS.get(status.lower(), OTHERWISE), held) if KEY.match(key) else None


def remove_words(engine: Engine, key: str) -> list[str]:
    """With its unnamed volumes, and at once: podman would wait for the end of what runs in it."""
    return [*engine.command, "rm", "--force", "--volumes", *(["--time=0"] if engine.tool == "podman" else []), key]


def env_lines(env: Mapping[str, str]) -> Sequence[str]:
    """Variables as an engine reads them from a file; values are taken as they are."""
    return [f"{name}={value}" for name, value in env.items()]
