"""Turns a SandboxOrder into an engine's command line, and reads what the engine prints about containers: pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...core.errors import BadArgument, Unsupported
from ...core.permission import OWN_VOLUMES
from ...core.sandboxes.disposable import DISPOSABLE_ID, NO_IMAGE, Disposable, Limits, SandboxOrder
from ...core.sandboxes.foreign import Fields, read_json, to_list
from ...core.sandboxes.machine import Engine
from ...far.program import read_program

PREFIX = "remote-sandbox-mcp"
MARK, ID, NAME, NETWORK, IMAGE = (f"{PREFIX}.{word}" for word in ("mark", "id", "name", "network", "image"))
# The file with a container's end, in memory: its disk may be full when it is renewed.
DEADLINE = f"/dev/shm/.{PREFIX}-deadline"
USUAL = Limits(cpu=1.0, memory_mb=2048, processes=512)
LEAST_MEMORY_MB = 16
# The capabilities that root in a container needs to install packages; none of them gives power over the machine.
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT"),
)
# Names of images. The first character keeps a name from being an option or a path of the machine.
IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}\Z")
VOLUME_NAME = re.compile(re.escape(OWN_VOLUMES) + r"[A-Za-z0-9][A-Za-z0-9_.-]{0,100}\Z")
# Without commas and quotes: the engine reads a mount as values separated by commas.
MOUNT_TARGET = re.compile(r"/[^,\"'\\\x00-\x1f\x7f]{1,200}\Z")
CARD = re.compile(r"(?:[0-9]{1,3}|(?:GPU|MIG)-[0-9A-Za-z-]{1,80})\Z")
KEY = re.compile(r"[0-9a-f]{64}\Z")
STATUS = {
    **{"created": "creating", "configured": "creating", "initialized": "creating"},
    **{"running": "running", "restarting": "running", "paused": "paused"},
}
# Any other status means that the main process has ended; what is left of the container is removed.
OTHERWISE = "ended"


@functools.cache
def keeper() -> str:
    """The main program of a container, without its comments: it is shown in the machine's list of processes."""
    lines = read_program("engine/keeper.sh").splitlines()
    return "\n".join(line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))


def container_name(disposable_id: str) -> str:
    """The container's name. Names are unique in an engine, so no other container can pretend to be this one."""
    return f"{PREFIX}-{disposable_id}"


def checked(order: SandboxOrder, where: str) -> SandboxOrder:
    """The order with the limits that will hold. Raises BadArgument, Unsupported."""
    if not order.image:
        raise BadArgument(f"unable to create a sandbox on {where}: {NO_IMAGE}")
    if not IMAGE_NAME.match(order.image):
        raise BadArgument(f"image: {order.image[:80]!r} is no name of an image on {where}; write one as python:3.12")
    if order.hosts:
        raise Unsupported(
            f"network: the engine on {where} cannot narrow a network to some hosts; use true for all, or leave it out"
        )
    for volume in order.volumes:
        if not VOLUME_NAME.match(volume.source):
            raise BadArgument(
                f"volumes: {volume.source[:80]!r} cannot be mounted: a machine's folders and other programs' volumes "
                f"are not for sandboxes; use a volume whose name begins with {OWN_VOLUMES}"
            )
        if not MOUNT_TARGET.match(target := volume.target) or ".." in target.split("/"):
            raise BadArgument(f"volumes: {target[:80]!r} cannot be mounted on; write a plain path inside the sandbox")
    for name, value in order.env.items():
        if "\n" in value or "\r" in value:
            raise BadArgument(f"env: the value of {name} has several lines, which an engine does not take; use a file")
    return replace(order, limits=_limits(order.limits))


def check_walls(order: SandboxOrder, engine: Engine, where: str) -> None:
    """Refuse what leads past the walls of a machine on which only some folders may be written. Raises Unsupported.

    What a container writes lies in its own layer. In a folder of the machine its root could leave a program that runs
    as root there, or change a link while the engine mounts what it leads to.
    """
    if order.network:
        raise Unsupported(f"network: on {where} only some folders may be written, and services of it write elsewhere")
    if order.limits.gpus and not order.limits.cards:
        raise Unsupported(f"gpu: on {where} only some folders may be written, so no job holds cards; name them, as 0,2")
    if any(not volume.read_only or engine.tool != "docker" for volume in order.volumes):
        raise Unsupported(f"volumes: on {where} only some folders may be written; mount them read_only, by docker")


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
    notes = [f"{held}: held by the engine"]
    if limits.disk_mb:
        notes.append("disk: not limited; the engine takes no number for one container")
    return replace(limits, told=tuple(notes))


def run_words(
    engine: Engine, disposable_id: str, order: SandboxOrder, mark: str, *, has_init: bool = True
) -> list[str]:
    """The command line that makes and starts a container; its variables are read from standard input."""
    limits, life = order.limits, round(order.timeout_s)
    words = [*engine.command, "run", "--detach", "--rm", *(["--init"] if has_init else []), "--pull=never"]
    words += [f"--name={container_name(disposable_id)}", "--entrypoint=/bin/sh"]
    words += ["--env-file=/dev/stdin"] if order.env else []
    words += [f"--label={name}={value}" for name, value in _labels(disposable_id, order, mark).items()]
    words += ["--security-opt=no-new-privileges", "--cap-drop=ALL"]
    words += [f"--cap-add={name}" for name in CAPABILITIES]
    words += [f"--network={_network(engine, order)}"]
    words += [f"--cpus={limits.cpu:g}", f"--memory={limits.memory_mb}m", f"--memory-swap={limits.memory_mb}m"]
    # /dev/shm counts as memory; programs that share arrays between processes need more than the default 64 MB.
    words += [f"--pids-limit={limits.processes}", f"--shm-size={max(1, limits.memory_mb // 2)}m"]
    for volume in order.volumes:
        # Nor is it filled with what the image has in that place.
        how = ",readonly,volume-nocopy" if engine.tool == "docker" else ",readonly"
        read_only = how if volume.read_only else ""
        words.append(f"--mount=type=volume,source={volume.source},target={volume.target}{read_only}")
    words += gpu_words(engine, limits)
    until = f"+{max(1, life)}" if order.timeout_s else "0"
    return [*words, order.image, "-c", 'eval "$0"', keeper(), until, DEADLINE]


def _labels(disposable_id: str, order: SandboxOrder, mark: str) -> dict[str, str]:
    # Every label is set, because an image may bring labels with these names.
    network = "yes" if order.network else "no"
    return {MARK: mark, ID: disposable_id, NAME: order.name, IMAGE: order.image, NETWORK: network}


def _network(engine: Engine, order: SandboxOrder) -> str:
    """The kind of network, never the machine's own. With "private", podman chooses by whether it runs as root."""
    if not order.network:
        return "none"
    return "private" if engine.tool == "podman" else "bridge"


def gpu_words(engine: Engine, limits: Limits) -> list[str]:
    """The options for GPUs: named cards, or a count, for which docker chooses cards and podman gets the first ones."""
    if engine.tool == "podman":
        cards = limits.cards or tuple(map(str, range(limits.gpus)))
        return [f"--device=nvidia.com/gpu={card}" for card in cards]
    if limits.cards:
        # docker splits the value at commas; quotes keep the cards together.
        return [f'--gpus="device={",".join(limits.cards)}"']
    return [f"--gpus={limits.gpus}"] if limits.gpus else []


def renewal(timeout_s: float) -> str:
    """The shell line that gives a container so much time from now on."""
    if not timeout_s:
        return f"printf '%-12s\\n' 0 1<>{DEADLINE}"
    return f"read -r up _ </proc/uptime; printf '%-12s\\n' $((${{up%%.*}} + {max(1, round(timeout_s))})) 1<>{DEADLINE}"


@dataclass(frozen=True)
class Seen:
    """A container as the engine describes it."""

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
    """One container; None if it cannot be read, which may be so for containers that are not ours."""
    try:
        said = Fields(item)
        key, name, status = said.text("Id"), said.text("Name").lstrip("/"), said.part("State").text("Status")
        labels = said.part("Config").part("Labels").plain()
    except ValueError:
        return None
    held = {label: str(value) for label, value in labels.items()}
    return Seen(key, name, STATUS.get(status.lower(), OTHERWISE), held) if KEY.match(key) else None


def remove_words(engine: Engine, key: str) -> list[str]:
    """The command line that removes a container with its unnamed volumes; podman needs --time=0 to do so at once."""
    return [*engine.command, "rm", "--force", "--volumes", *(["--time=0"] if engine.tool == "podman" else []), key]
