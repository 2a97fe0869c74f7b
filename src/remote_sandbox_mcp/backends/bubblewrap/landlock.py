"""A sandbox without namespaces: whether this kernel can confine one, and its first process (far/outpost/guard)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TypeVar

from ...core.sandboxes.machine import LocalPlace
from ...core.sandboxes.network import Reach
from ...core.sandboxes.port import PortClosed, Stream
from ...far import program
from ...far.outpost import guard
from ..link import pipe
from ..link.client import OutpostClient
from ..stream import over_socket
from . import bwrap
from .bwrap import STEP_DOWN_TO, Footing
from .processes import GUARD
from .walls import READ, USER, Bounds, Folders, compiled, first_process, joining

T = TypeVar("T")

# The pieces of the supervisor's program.
GUARDING = program.WALLS[:-1]
BUBBLEWRAP, LANDLOCK = "bubblewrap", "landlock"
NO_NAMESPACES = "namespaces are forbidden"
# Where the sandboxes of root are if the user that they run as cannot pass through the state folder.
REACHABLE = Path("/var/lib/remote-sandbox-mcp")
# Files of the host that reveal nothing secret, and that bubblewrap replaces.
ETC = ("group", "hostname", "hosts", "nsswitch.conf", "passwd")
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "tty", "urandom"))
FIRST_WITH_MOVES = 2
# Only for a user who owns nothing there.
TERMINALS = ("/dev/ptmx", "/dev/pts", "/dev/shm")


async def find_footing(walls: str = "") -> Footing | str:
    """Find a way to wall a sandbox in, or return why there is none, as a sentence; `walls` pins one of the two."""
    found = await bwrap.find_footing() if walls != LANDLOCK else ""
    if not isinstance(found, str) or walls == BUBBLEWRAP:
        return found
    other = await asyncio.to_thread(_find)
    return f"{found}; {other}" if found and isinstance(other, str) else other


async def why_not(walls: str = "") -> str:
    """Empty where a sandbox can be walled in; else one sentence for the person who can change that."""
    footing = await find_footing(walls)
    return footing if isinstance(footing, str) else ""


def _find() -> Footing | str:
    version = guard.landlock_version() if sys.platform.startswith("linux") else 0
    if not version:
        return "without namespaces it needs Landlock, which this system does not have (Linux 5.13 or newer has it)"
    if why := bwrap.doubt_about_python():
        return (
            f"without namespaces it needs a Python that only root can change, and {why}: install this system's python3"
        )
    steps_down = os.geteuid() == 0 and _may_step_down()
    return Footing("", (), STEP_DOWN_TO if steps_down else 0, version)


def _may_step_down() -> bool:
    """Whether this process has the rights to become another user and to give it files: uid 0 alone is not enough."""
    with open("/proc/self/status") as file:
        rights = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    # chown, setgid, setuid.
    return rights & 0b11000001 == 0b11000001


def not_held(footing: Footing) -> str:
    """Describe in one line what these walls do not hold; empty for namespaces, which hold all of it."""
    if not footing.landlock:
        return ""
    parts = ["names, sizes and times of other files and command lines of other processes can be seen"]
    parts.append("its ports are ports of this computer's loopback, which other users of it can reach")
    parts.append("/tmp is not its own: programs must use $TMPDIR")
    if footing.landlock < FIRST_WITH_MOVES:
        parts.append("this kernel lets no file be renamed into another folder: programs copy it")
    alone = "no pseudo-terminals and no shared memory by name (/dev/shm)"
    shared = "its terminals and /dev/shm can be used by other sandboxes of this server, which have the same user"
    parts.append(shared if footing.step_down else alone)
    if os.geteuid() == 0 and not footing.step_down:
        parts.append("it runs as uid 0 without capabilities, whose processes no limit counts")
    return f"walls: Landlock {footing.landlock} instead of namespaces: {'; '.join(parts)}"


def make_root(root: Path, footing: Footing) -> None:
    """Make a sandbox's folder; elsewhere, with a link, where the user that it runs as could not reach it."""
    is_reachable = all(folder.stat().st_mode & 0o001 for folder in root.parents if folder.exists())
    if not footing.landlock or not footing.step_down or is_reachable or root.exists():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    REACHABLE.mkdir(mode=0o711, exist_ok=True)
    if REACHABLE.is_symlink() or REACHABLE.stat().st_uid != 0:
        raise PermissionError(0, f"{REACHABLE} does not belong to root")
    REACHABLE.chmod(0o711)
    there = REACHABLE / hashlib.sha256(os.fsencode(root)).hexdigest()[:24]
    there.mkdir(mode=0o700, exist_ok=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    root.symlink_to(there)


@dataclass(frozen=True)
class GuardStart:
    """One supervisor to be started, and the confined program in it."""

    place: LocalPlace
    folders: Folders
    footing: Footing
    pieces: tuple[str, ...]
    bounds: Bounds

    async def greeted(self, greet: Callable[[pipe.PipeLine, str], Awaitable[T]]) -> T:
        token, home = secrets.token_hex(16), self.home
        python = str(python_outside())
        sent = (compiled(GUARDING), program.source(GUARDING).encode(), first_process(), compiled(self.pieces))
        arguments = [*joining(self.bounds), python, "-IS", "-c", self.loader(python, sent), token, GUARD, home]
        line = await pipe.start(arguments, self.environment(), ends_by_itself=True)
        try:
            line.write(b"".join(sent) + program.packed(self.pieces))
            return await greet(line, token)
        except BaseException:
            line.close()
            raise

    @property
    def home(self) -> str:
        return os.path.realpath(self.folders.home)

    @property
    def tmp(self) -> str:
        return os.path.realpath(self.folders.tmp)

    def environment(self) -> dict[str, str]:
        own = {"HOME": self.home, "TMPDIR": self.tmp, "TMUX_TMPDIR": self.tmp, "USER": USER}
        search = {"LD_LIBRARY_PATH": f"{bwrap.python_home()}/lib"} if not bwrap.has_system_python() else {}
        path = bwrap.SYSTEM_PATH + ("" if bwrap.has_system_python() else f":{bwrap.python_home()}/bin")
        return {**own, **search, "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb"}

    def loader(self, python: str, sent: tuple[bytes, ...]) -> str:
        """Python source that reads the guard and the outpost from its input; a command line is public."""
        made, text, first, outpost = map(len, sent)
        start = f"import io,os,sys,marshal,_frozen_importlib_external as f;sys.executable={python!r};{READ}"
        load = f"m,t=read({made}),read({text});exec(marshal.loads(m) if f.MAGIC_NUMBER=={MAGIC_NUMBER!r} else t);"
        fork = f"fork_guarded({self.footing.step_down},{self.bounds.soft_and_hard()!r},{self.plan()!r});"
        sizes = f"read({outpost}),read({len(program.packed(self.pieces))})"
        # Commands of other connections are confined apart, so a lane need not be closed to them.
        opened = "LIBC.prctl(DUMPABLE,1,0,0,0);" if self.pieces == program.LANE else ""
        run = f"exec(read({first}));close_to_commands();{opened}run_outpost({sizes},{MAGIC_NUMBER!r},globals())"
        return start + load + fork + run

    def plan(self) -> dict[str, object]:
        shares = self.place.network.reach is Reach.HOST
        names = (*bwrap.ETC, *ETC, *(("resolv.conf",) if shares else ()))
        settings = [os.path.realpath(path) for name in names for path in sorted(Path("/etc").glob(name))]
        own = () if bwrap.has_system_python() else (f"{bwrap.python_home()}/bin", f"{bwrap.python_home()}/lib")
        return {
            "version": self.footing.landlock,
            "writable": [self.home, self.tmp],
            "readable": ["/usr", *(f"/{name}" for name in bwrap.ROOT_FOLDERS), "/proc", *settings, *own],
            # What others have there belongs to other users.
            "devices": [*DEVICES, *(TERMINALS if self.footing.step_down else ())],
            "network": shares,
            "outlives": False,
        }


def python_outside() -> Path:
    return bwrap.SYSTEM_PYTHON if bwrap.has_system_python() else bwrap.python_home() / "bin" / bwrap.PYTHON_NAME


class LoopbackDoor:
    """Connections to ports of the sandbox, which are ports of this computer: only to what its own processes serve."""

    def __init__(self, line: pipe.PipeLine) -> None:
        self._line = line

    async def connect(self, client: OutpostClient, port: int, name: str) -> Stream:
        """Raises PortClosed."""
        closed = f"{name}: nothing accepts connections at port {port}"
        if not await asyncio.to_thread(guard.is_listening_here, port, self._line.pid):
            raise PortClosed(closed)
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            connected = socket.socket(family)
            connected.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(connected, (host, port))
                return await over_socket(connected, f"port {port} of {name}")
            except BaseException as problem:
                connected.close()
                if not isinstance(problem, OSError):
                    raise
        raise PortClosed(closed)

    def close(self) -> None:
        """Do nothing: the connections end with the processes."""
