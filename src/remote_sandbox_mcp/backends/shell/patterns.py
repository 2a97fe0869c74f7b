"""Searches text for a caller's pattern in a process of its own, because some patterns take for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from ...core.errors import BadArgument
from ...far.outpost.place import to_bytes
from ...far.program import read_program
from ...local.waiting import within

SEARCH_S = 20.0


async def search(verb: str, pattern: str, block: bytes) -> bytes:
    """Run search_lines.py and return its answer. Raises BadArgument for a pattern that takes too long."""
    wanted = to_bytes(pattern)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-IS",
        "-c",
        read_program("shell/search_lines.py"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
    )
    given = b"%s %d\n" % (verb.encode(), len(wanted)) + wanted + block
    try:
        printed, _ = await within(process.communicate(given), SEARCH_S)
    except asyncio.TimeoutError:
        words = f"takes longer than {SEARCH_S:.0f} s for what is there; make it simpler"
        raise BadArgument(f"the pattern {pattern[:200]!r} {words}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise BadArgument(f"the pattern {pattern[:200]!r} cannot be searched for; make it simpler")
    return printed
