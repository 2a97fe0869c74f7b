"""Lane for transfers on this computer, a process that only moves files; and safe ways to local paths."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import stat
import sys

from ..core.errors import BadArgument, Unsupported
from ..core.gate import Admitted, Id, ResolvedPath
from ..core.sync.transfer import Place
from ..far import program
from ..far.lane.tree import Refusal, Root
from ..local.waiting import within
from .link import pipe
from .link.client import NoOutpost
from .link.lane import OutpostLane

OPEN_S = 15.0
NAME = "this machine"
# How often a path may change while it is examined.
MOST_QUERIES = 10
LONGEST = 4096


async def open_lane() -> OutpostLane:
    """Raises Unsupported."""
    token = secrets.token_hex(16)
    # It has our own Python.
    sent = await asyncio.to_thread(program.compiled, program.LANE)
    arguments = [sys.executable, "-IS", "-c", program.loader(program.LANE, is_compiled=True), token]
    # Nothing else of our environment: it may hold secrets, and the process needs none.
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "TMPDIR") if name in os.environ}
    try:
        line = await pipe.start(arguments, kept)
    except OSError as problem:
        raise Unsupported(f"unable to start {sys.executable}: {problem.strerror}") from None
    lane = OutpostLane(line, NAME)
    try:
        line.write(sent)
        await within(lane.greet(token), OPEN_S)
    except BaseException as problem:
        line.close()
        if isinstance(problem, (OSError, NoOutpost, asyncio.TimeoutError)):
            raise Unsupported(f"unable to start a process for files on this machine: {problem}") from None
        raise
    return lane


def locate(path: str) -> ResolvedPath:
    """Resolve a path, with the ids of everything along it. Raises BadArgument where it keeps changing."""
    if len(path) > LONGEST:
        raise BadArgument(f"{path[:200]}... is longer than a path can be")
    for _ in range(MOST_QUERIES):
        try:
            real = _spelled(os.path.realpath(path))
        except (OSError, ValueError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise BadArgument(f"{path!a} cannot be followed: {why}; name the file or folder itself") from None
        ids = _ids_along(real)
        if ids is not None:
            return ResolvedPath(real, ids)
    raise BadArgument(f"{path} changes while it is looked at; try again when nothing else writes there")


def _ids_along(real: str) -> tuple[Id, ...] | None:
    """List the ids along a path, to be compared when it is opened later; None where a link has appeared meanwhile."""
    ids, path = [], ""
    for name in real.rstrip("/").split("/"):
        path = f"{path}{name}/" if not name else f"{path.rstrip('/')}/{name}"
        try:
            found = os.lstat(path)
        # The rest of the path does not exist yet; a sync may create it.
        except OSError:
            break
        if stat.S_ISLNK(found.st_mode):
            return None
        ids.append((found.st_dev, found.st_ino))
    return tuple(ids)


def _spelled(path: str) -> str:
    """The path as the file system spells it: on macOS names have one true case, and some folders have a second name."""
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
    """A local place that its owner chose: not judged by the gate, but what is opened must be what is there now."""
    return Admitted(locate(place.path))


def read_file(way: ResolvedPath, most: int) -> bytes:
    """The beginning of a file, if it is the one that was located. Raises OSError, Refusal."""
    folder, name = os.path.split(os.fsencode(way.path))
    root = Root(folder, [list(each) for each in way.ids])
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
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
