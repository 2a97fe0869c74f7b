"""Runs a program of the operator's: no shell, no input, a clean environment, a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from ..core.text import last_line
from ..core.watch import Unsent
from ..waiting import within

# Only these variables are passed on: our own environment may hold passwords.
_PASSED = frozenset(
    ("PATH", "HOME", "LANG", "USER", "TMPDIR", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY")
)
_LAST_BYTES = 2048


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program needs to find the user's desktop session, and no more."""
    return {name: value for name, value in environ.items() if name in _PASSED or name.startswith("XDG_")}


async def run(what: str, words: Sequence[str], environ: Mapping[str, str], limit_s: float) -> None:
    """Run it to its end. Raises Unsent, never `passing`: it may have done something already and must not run twice.

    Background processes that it leaves go on, unless the limit is reached: then its whole group is killed.
    """
    # A file instead of a pipe: background processes would hold a pipe open, and get SIGPIPE when we close it.
    with tempfile.TemporaryFile() as errors:
        process = await _start(what, words, environ, errors)
        try:
            status = await within(process.wait(), limit_s)
        except asyncio.TimeoutError:
            raise Unsent(f"{what} did not end within {limit_s:g} s and was killed{_said(errors)}") from None
        finally:
            await _end(process)
        if status:
            raise Unsent(f"{what} ended with status {status}{_said(errors)}")


async def _start(
    what: str, words: Sequence[str], environ: Mapping[str, str], errors: IO[bytes]
) -> asyncio.subprocess.Process:
    nothing = asyncio.subprocess.DEVNULL
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *words,
            stdin=nothing,
            stdout=nothing,
            stderr=errors,
            env=dict(environ),
            cwd=_home(),
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # If cancelled itself, asyncio kills the program alone, and not what that has started by then.
        with contextlib.suppress(OSError, ValueError):
            await _end(await starting)
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise Unsent(f"{what} could not be started: {reason}; name the program by its whole path") from None


def _home() -> str:
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else "/"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill its group. Not for a process that has ended: the group's number may belong to others by now."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _said(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _LAST_BYTES))
    line = last_line(errors.read())
    return f"; it said: {line}" if line else ""
