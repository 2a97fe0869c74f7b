"""This machine's own files, for transfers: a lane in a process beside us that can do nothing but move files."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys

from ..core.errors import Unsupported
from .deadline import within
from .outpost import pipe, program
from .outpost.client import NoOutpost
from .outpost.lane import OutpostLane

OPEN_S = 15.0
NAME = "this machine"


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
