"""Builds the bubblewrap command line of a sandbox: its folders, its limits, and the program inside."""

from __future__ import annotations

import functools
import marshal
import os
import re
import resource
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TypeVar

from ...core.errors import ConfigError
from ...core.sandboxes.machine import LocalPlace
from ...core.sandboxes.network import Reach
from ...far import program
from ...far.program import read_program
from ...local.processes import descriptors
from ..link import pipe
from ..link.doorway import Doorway
from . import bwrap, images
from .bwrap import Footing
from .images import OpenedImage
from .network import way

T = TypeVar("T")

USER = "sandbox"
HOME = f"/home/{USER}"
ENVIRONMENT = {"PATH": bwrap.SYSTEM_PATH, "HOME": HOME, "USER": USER, "LANG": "C.UTF-8", "TERM": "dumb"}


@dataclass(frozen=True)
class Bounds:
    """Limits of a sandbox's processes, besides the isolation; `rlimits` by the numbers of the module resource."""

    rlimits: Mapping[int, int] = field(default_factory=dict)
    # Files of control groups through which a process joins.
    joins: tuple[str, ...] = ()
    shm_mb: int = 0
    # The memory for all processes together where no control group holds it, else 0.
    watched_mb: int = 0

    def soft_and_hard(self) -> dict[int, tuple[int, int]]:
        # This process may have raised its own limit of descriptors.
        usual = {resource.RLIMIT_NOFILE: (descriptors.usual_limit(), resource.RLIM_INFINITY)}
        return usual | {number: (most, most) for number, most in self.rlimits.items()}


# A shell that joins the groups itself costs a millisecond. Moving a process that another one started takes longer: the
# kernel waits for all processors.
JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 1; shift; done; shift; exec "$@"'


# Source that defines `read`; a buffer of one byte does not read ahead.
READ = "read=io.BufferedReader(io.FileIO(0,closefd=False),1).read;"


@dataclass(frozen=True)
class BwrapStart:
    """One bubblewrap to be started, and the program inside."""

    place: LocalPlace
    folders: Folders
    footing: Footing
    pieces: tuple[str, ...]
    bounds: Bounds
    door: Doorway | None

    async def greeted(self, greet: Callable[[pipe.PipeLine, str], Awaitable[T]]) -> T:
        token, doors = secrets.token_hex(16), (self.door.far,) if self.door else ()
        with bwrap.filter_file() as file, self.image() as image:
            arguments = [*self.before_walls(), *self.walls(file, image), *self.program(token, doors, image)]
            environment = {**ENVIRONMENT, **way.variables(self.place.network)}
            line = await pipe.start(arguments, environment, (file, *doors))
            if self.door:
                self.door.leave_inside()
            try:
                line.write(first_process() + compared(image) if image else b"")
                line.write(first_process() + compiled(self.pieces) + program.packed(self.pieces))
                return await greet(line, token)
            except BaseException:
                line.close()
                raise

    def before_walls(self) -> list[str]:
        """Words before bwrap. The control group comes first, so that the network's carrier counts in it."""
        return [*joining(self.bounds), *way.prefix(self.place.network, self.footing)]

    @contextmanager
    def image(self) -> Iterator[OpenedImage | None]:
        """Held open until the first process has compared what was bound with it."""
        if not self.place.image:
            yield None
            return
        with images.opened(self.place.image, self.folders.state, SYNTHETIC) as image:
            yield image

    def walls(self, seccomp_file: int, image: OpenedImage | None) -> list[str]:
        folders, room = self.folders, images.ROOM if image else ""
        runs = f"{room}/tmp/remote-sandbox-{self.footing.user}"
        return [
            *bwrap.namespaces(self.footing, seccomp_file, network=bool(self.place.network)),
            *(images.RIGHTS_TO_ENTER if image else ()),
            *("--hostname", hostname(self.place.name)),
            *(self.room(image) if image else self.system()),
            *bwrap.kernel_folders(self.bounds.shm_mb, room),
            *("--dir", f"{room}/home", "--bind", str(folders.home), f"{room}{HOME}"),
            *("--bind", str(folders.tmp), f"{room}/tmp"),
            *self.work_folders(image.free if image else images.WORK_FOLDERS, room),
            *(("--bind", str(folders.runs), runs) if folders.runs else ()),
            *("--remount-ro", "/", "--"),
        ]

    def work_folders(self, names: tuple[str, ...], room: str) -> list[str]:
        return [word for name in names for word in ("--bind", str(self.folders.work(name)), f"{room}/{name}")]

    def system(self) -> list[str]:
        """Options for the host's own system, as far as programs need it."""
        return [
            *bwrap.system_folders(),
            *self.folders.settings(),
            *bwrap.settings(network=self.place.network.reach is Reach.HOST),
            *self.resolver(),
            *bwrap.find_python()[1],
            *("--dir", "/var", "--symlink", "../tmp", "/var/tmp"),
        ]

    def room(self, image: OpenedImage) -> list[str]:
        """Options for the image's system, with the host's Python beside it, which enters it."""
        return [
            *bwrap.system_folders(),
            *bwrap.find_python()[1],
            *image.walls(self.folders.tmp),
            *self.folders.settings(images.ROOM),
            *self.resolver(images.ROOM),
            *(images.lent(self.folders.lend_python()) if image.is_python_lent else ()),
        ]

    def resolver(self, room: str = "") -> tuple[str, ...]:
        """Options for name resolution; none where a proxy resolves names."""
        if self.place.network.reach is Reach.OUTSIDE:
            return ("--ro-bind", str(self.folders.root / "etc" / "resolv.conf"), f"{room}/etc/resolv.conf")
        shared = self.place.network.reach is Reach.HOST
        return ("--ro-bind-try", "/etc/resolv.conf", f"{room}/etc/resolv.conf") if shared else ()

    def program(self, token: str, doors: tuple[int, ...], image: OpenedImage | None) -> list[str]:
        python = bwrap.find_python()[0]
        if image is None:
            return [python, "-IS", "-c", self.loader(python, doors), token]
        # Nothing of the image runs before the host's Python has dropped all privileges and compared what was bound.
        inside = [image.python, "-IS", "-c", self.loader(image.python, doors, is_second=True), token]
        enter = f"check_entries(eval(read({len(compared(image))})));{self.first(images.ROOM)}"
        leave = f"os.environ['PATH']={bwrap.SYSTEM_PATH!r};os.execv({image.python!r},{inside!r})"
        return [python, "-IS", "-c", f"import io,os,sys;{READ}exec(read({len(first_process())}));{enter}{leave}"]

    def loader(self, python: str, doors: tuple[int, ...], *, is_second: bool = False) -> str:
        """Python source that reads the first process and the outpost from its input; a command line is public."""
        # Commands must not inherit the doors: what comes through them is trusted as the outpost's.
        shut = "".join(f"os.set_inheritable({door},False);" for door in doors)
        # A lent Python reports a path of itself that cannot be started.
        prologue = f"import io,os,sys;sys.executable={python!r};{shut}{READ}"
        sizes = len(first_process()), len(compiled(self.pieces)), len(program.packed(self.pieces))
        first = f"exec(read({sizes[0]}));{'' if is_second else self.first()}close_to_commands();"
        return f"{prologue}{first}run_outpost(read({sizes[1]}),read({sizes[2]}),{MAGIC_NUMBER!r},globals())"

    def first(self, room: str = "") -> str:
        return f"fork_outpost({self.footing.step_down},{self.bounds.soft_and_hard()!r},{room!r});"


def joining(bounds: Bounds) -> list[str]:
    return ["/bin/sh", "-c", JOIN, "sh", *bounds.joins, "--"] if bounds.joins else []


@functools.cache
def compiled(pieces: tuple[str, ...]) -> bytes:
    """Precompiled for a Python of the same version: compiling would take as long as the rest of its start."""
    return marshal.dumps(program.compiled_code(pieces))


def compared(image: OpenedImage) -> bytes:
    """Encode the identities that must have been bound, for the first process; too long for a command line."""
    return repr(image.identities).encode()


@functools.cache
def first_process() -> bytes:
    return read_program("outpost/first.py").encode()


def hostname(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")[:63] or USER


@dataclass(frozen=True)
class Folders:
    """Folders of a local sandbox, protected from other users by the outermost one."""

    root: Path
    # The state folder that contains them, in which no image may be.
    state: Path
    # For the outpost's own records if the sandbox's disk has a fixed size: they must be written even when that is full.
    runs: Path | None = None

    @classmethod
    def of(cls, place: LocalPlace, state_folder: Path) -> Folders:
        if not re.fullmatch(r"\w[\w.@ -]*", place.name):
            raise ConfigError(f"the local sandbox's name {place.name!r} cannot be the name of a folder; use letters")
        return cls(state_folder.absolute() / "local" / place.name, state_folder)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def work(self, name: str) -> Path:
        """The sandbox's own /app or /workspace, writable like its home."""
        return self.root / name

    def prepare(self, footing: Footing, hostname: str) -> None:
        self.root.parent.mkdir(parents=True, exist_ok=True)
        # A command owns its home and can open it to everybody, but not the folder around it.
        writable = (self.home, self.tmp, *map(self.work, images.WORK_FOLDERS))
        for folder in (self.root, self.root / "etc", *writable):
            folder.mkdir(mode=0o700, exist_ok=True)
        self.root.chmod(0o700)
        if footing.step_down and footing.landlock:
            # Nothing is bound elsewhere, so its user must pass through.
            os.chown(self.root, 0, footing.user)
            self.root.chmod(0o710)
        if footing.step_down:
            for folder in writable:
                os.chown(folder, footing.user, footing.user)
        for name, text in {**synthetic(footing.user, hostname), "resolv.conf": way.RESOLVER}.items():
            file = self.root / "etc" / name
            # Another process may be using it at this moment.
            if not file.exists() or file.read_text() != text:
                file.write_text(text)
                file.chmod(0o644)

    def lend_python(self) -> Path:
        """The script that stands in for Python in an image without one."""
        script = self.root / "python3"
        text = images.lent_script()
        if not script.exists() or script.read_text() != text:
            script.write_text(text)
            script.chmod(0o755)
        return script

    def settings(self, room: str = "") -> list[str]:
        etc = self.root / "etc"
        bound = (word for name in SYNTHETIC for word in ("--ro-bind", str(etc / name), f"{room}/etc/{name}"))
        return ["--dir", f"{room}/etc", *bound]


SYNTHETIC = ("passwd", "group", "hostname", "hosts", "nsswitch.conf")


def synthetic(user: int, hostname: str) -> dict[str, str]:
    """Files of /etc that reveal nothing about the host."""
    return {
        "passwd": f"root:x:0:0:root:/:/bin/false\n{USER}:x:{user}:{user}:{USER}:{HOME}:/bin/bash\n",
        "group": f"root:x:0:\n{USER}:x:{user}:\n",
        "hostname": f"{hostname}\n",
        "hosts": f"127.0.0.1 localhost {hostname}\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
