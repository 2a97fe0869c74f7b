"""The embedded sandbox: an outpost behind bubblewrap's walls, with a home and a /tmp that stay."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from ..core.errors import ConfigError, ConnectError, Unreachable, Unsupported
from ..core.machine import LocalPlace
from ..core.sandbox import Capabilities, Description
from . import bubblewrap, outpost, seccomp
from .bubblewrap import Footing, why_not
from .deadline import within
from .outpost import pipe, program
from .outpost.client import NoOutpost, OutpostClient
from .outpost.lane import OutpostLane
from .outpost.sandbox import OutpostSandbox

__all__ = ["describe", "open_local", "why_not"]

T = TypeVar("T")

USER = "sandbox"
HOME = f"/home/{USER}"
OPEN_S = 15.0
ENVIRONMENT = {"PATH": bubblewrap.SYSTEM_PATH, "HOME": HOME, "USER": USER, "LANG": "C.UTF-8", "TERM": "dumb"}


def describe(place: LocalPlace) -> Description:
    """What is known of the place before it is opened."""
    return Description(
        place.name, "local", user=USER, capabilities=Capabilities(kills_trees=True, network=place.network)
    )


async def open_local(place: LocalPlace, state_folder: Path) -> OutpostSandbox:
    """Open it behind its walls, or not at all. Raises Unsupported, ConnectError."""
    folders = Folders.of(place, state_folder)
    sandbox = OutpostSandbox(
        describe(place),
        place.environment,
        lambda: open_outpost(place, folders),
        lambda _: open_lane(place, folders),
    )
    try:
        await sandbox.open()
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def open_outpost(place: LocalPlace, folders: Folders) -> OutpostClient:
    """One bubblewrap, one outpost, in time."""

    async def greet(line: pipe.PipeLine, token: str) -> OutpostClient:
        client = OutpostClient(line)
        await client.greet(token)
        return client

    return await _open(place, folders, program.OUTPOST, greet)


async def open_lane(place: LocalPlace, folders: Folders) -> OutpostLane:
    """Another bubblewrap with the same walls, and a lane in it."""

    async def greet(line: pipe.PipeLine, token: str) -> OutpostLane:
        lane = OutpostLane(line, place.name)
        await lane.greet(token)
        return lane

    return await _open(place, folders, program.LANE, greet)


async def _open(
    place: LocalPlace, folders: Folders, pieces: tuple[str, ...], greet: Callable[[pipe.PipeLine, str], Awaitable[T]]
) -> T:
    footing = await bubblewrap.find_footing()
    if isinstance(footing, str):
        raise Unsupported(footing)
    try:
        folders.prepare(footing, hostname(place.name))
        return await within(_start(place, folders, footing, pieces, greet), OPEN_S)
    except (asyncio.TimeoutError, TimeoutError):
        raise Unreachable(f"unable to open {place.name}: no answer from behind its walls in {OPEN_S:.0f} s") from None
    except (OSError, NoOutpost) as problem:
        raise ConnectError(f"unable to open {place.name}: {problem}") from None


async def _start(
    place: LocalPlace,
    folders: Folders,
    footing: Footing,
    pieces: tuple[str, ...],
    greet: Callable[[pipe.PipeLine, str], Awaitable[T]],
) -> T:
    token = secrets.token_hex(16)
    with seccomp.filter_file(footing.abi) as file:
        arguments = command_line(place, folders, footing, file, token, pieces)
        line = await pipe.start(arguments, ENVIRONMENT, (file,))
    try:
        line.write(first_process() + program.packed(pieces))
        return await greet(line, token)
    except BaseException:
        line.close()
        raise


def command_line(
    place: LocalPlace, folders: Folders, footing: Footing, seccomp_file: int, token: str, pieces: tuple[str, ...]
) -> list[str]:
    python, for_python = bubblewrap.find_python()
    return [
        *bubblewrap.namespaces(footing, seccomp_file, network=place.network),
        *("--hostname", hostname(place.name)),
        *bubblewrap.system_folders(),
        *folders.settings(),
        *bubblewrap.settings(network=place.network),
        *for_python,
        *bubblewrap.kernel_folders(footing),
        *("--dir", "/home", "--bind", str(folders.home), HOME),
        *("--bind", str(folders.tmp), "/tmp", "--dir", "/var", "--symlink", "../tmp", "/var/tmp"),
        *("--remount-ro", "/", "--"),
        *(python, "-IS", "-c", loader(footing, pieces), token),
    ]


@functools.cache
def first_process() -> bytes:
    return files(outpost).joinpath("far/first.py").read_bytes()


def loader(footing: Footing, pieces: tuple[str, ...] = program.OUTPOST) -> str:
    """Python that takes the first process and then the outpost from its input: a command line can be seen by all."""
    read = f"io.BufferedReader(io.FileIO(0,closefd=False),1).read({len(first_process())})"
    return f"import io;exec({read});stand_first({footing.step_down});{program.loader(pieces)}"


def hostname(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")[:63] or USER


@dataclass(frozen=True)
class Folders:
    """What stays of a local sandbox, closed to other users by its outermost folder."""

    root: Path

    @classmethod
    def of(cls, place: LocalPlace, state_folder: Path) -> Folders:
        if not re.fullmatch(r"\w[\w.@ -]*", place.name):
            raise ConfigError(f"the local sandbox's name {place.name!r} cannot be the name of a folder; use letters")
        return cls(state_folder.absolute() / "local" / place.name)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def prepare(self, footing: Footing, hostname: str) -> None:
        self.root.parent.mkdir(parents=True, exist_ok=True)
        # A command owns its home and can open that to everybody, but not the folder around it.
        for folder in (self.root, self.root / "etc", self.home, self.tmp):
            folder.mkdir(mode=0o700, exist_ok=True)
        self.root.chmod(0o700)
        if footing.step_down:
            for folder in (self.home, self.tmp):
                os.chown(folder, footing.user, footing.user)
        for name, text in synthetic(footing.user, hostname).items():
            file = self.root / "etc" / name
            # Another server may be using it at this moment.
            if not file.exists() or file.read_text() != text:
                file.write_text(text)
                file.chmod(0o644)

    def settings(self) -> list[str]:
        etc = self.root / "etc"
        bound = (word for name in SYNTHETIC for word in ("--ro-bind", str(etc / name), f"/etc/{name}"))
        return ["--dir", "/etc", *bound]


SYNTHETIC = ("passwd", "group", "hostname", "hosts", "nsswitch.conf")


def synthetic(user: int, hostname: str) -> dict[str, str]:
    """Settings that name nobody and nothing of the host."""
    return {
        "passwd": f"root:x:0:0:root:/:/bin/false\n{USER}:x:{user}:{user}:{USER}:{HOME}:/bin/bash\n",
        "group": f"root:x:0:\n{USER}:x:{user}:\n",
        "hostname": f"{hostname}\n",
        "hosts": f"127.0.0.1 localhost {hostname}\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
