"""This machine's own files, for transfers: a lane in a process beside us that can do nothing but move files."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import stat
import sys

from ..core.errors import BadArgument, Unsupported
from ..core.gate import Admitted, Id, Way
from ..core.transfer import Place
from ..waiting import within
from .outpost import pipe, program
from .outpost.client import NoOutpost
from .outpost.far.tree import Refusal, Root
from .outpost.lane import OutpostLane

OPEN_S = 15.0
NAME = "this machine"
# So often a path may change between two looks at it.
MOST_LOOKS = 10


async def open_lane() -> OutpostLane:
    """Raises Unsupported."""
    token = secrets.token_hex(16)
    arguments = [sys.executable, "-IS", "-c", program.loader(program.LANE), token]
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "TMPDIR") if name in os.environ}
    try:
        line = await pipe.start(arguments, kept)
    except OSError as problem:
        raise Unsupported(f"unable to start {sys.executable}: {problem.strerror}") from None
    lane = OutpostLane(line, NAME)
    try:
        line.write(program.packed(program.LANE))
        await within(lane.greet(token), OPEN_S)
    except BaseException as problem:
        line.close()
        if isinstance(problem, (OSError, NoOutpost, asyncio.TimeoutError)):
            raise Unsupported(f"unable to start a process for files on this machine: {problem}") from None
        raise
    return lane


def locate(path: str) -> Way:
    """Where a path leads, and what lies along it. Raises BadArgument where that does not come to rest."""
    for _ in range(MOST_LOOKS):
        real = _spelled(os.path.realpath(path))
        ids = _ids_along(real)
        if ids is not None:
            return Way(real, ids)
    raise BadArgument(f"{path} changes while it is looked at; try again when nothing else writes there")


def _ids_along(real: str) -> tuple[Id, ...] | None:
    """None where a link has come in the way. What opens the path later compares each of these with what it opened."""
    ids, path = [], ""
    for name in real.rstrip("/").split("/"):
        path = f"{path}{name}/" if not name else f"{path.rstrip('/')}/{name}"
        try:
            found = os.lstat(path)
        except OSError:
            break
        if stat.S_ISLNK(found.st_mode):
            return None
        ids.append((found.st_dev, found.st_ino))
    return tuple(ids)


def _spelled(path: str) -> str:
    """As the file system spells it: on macOS, names have one true case, and some folders have a second name."""
    command = getattr(fcntl, "F_GETPATH", None)
    if command is None:
        return path
    above, below = path, ""
    while above != "/":
        try:
            fd = os.open(above, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            above, below = os.path.dirname(above), os.path.join(os.path.basename(above), below).rstrip("/")
            continue
        try:
            true = os.fsdecode(fcntl.fcntl(fd, command, bytes(1024)).rstrip(b"\0"))
        finally:
            os.close(fd)
        return os.path.join(true, below).rstrip("/")
    return path


def settle(place: Place, writing: bool) -> Admitted:
    """A place of this machine that its owner chose: not judged, but what is opened will be what is there now."""
    return Admitted(locate(place.path))


def read_file(way: Way, most: int) -> bytes:
    """The beginning of a file, where it is the one that was located. Raises OSError, Refusal."""
    folder, name = os.path.split(os.fsencode(way.path))
    root = Root(folder, [list(each) for each in way.ids])
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root.top)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(0, "it is not a file")
            if (found.st_dev, found.st_ino) != way.id:
                raise Refusal("moved", "it was changed meanwhile")
            return file.read(most)
    finally:
        root.close()
