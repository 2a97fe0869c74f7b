"""Runs programs of the operator's: no shell, a clean environment, a time limit; and hooks, with an event."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ...core.jobs.watch import Event, Unsent, Watch
from ...core.permission import Hook
from ...core.task import event_end
from ...core.texts.text import last_line
from ..processes import descriptors
from ..processes.programs import by_path
from ..processes.variables import DESKTOP, home_folder, made
from ..waiting import within
from . import messages

_LAST_BYTES = 2048


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program needs to find the user's desktop session, and no more."""
    return made(environ, DESKTOP)


async def run_program(
    what: str, words: Sequence[str], environ: Mapping[str, str], limit_s: float, *, given: str = "", folder: str = ""
) -> None:
    """Run it to its end, in the home folder or `folder`. `given` is all that it reads from standard input.

    Raises Unsent, never `passing`: it may have done something already and must not run twice.

    Background processes that it leaves go on, unless the limit is reached: then its whole group is killed.
    """
    # A file instead of a pipe: background processes would hold a pipe open, and get SIGPIPE when we close it.
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as said:
        said.write(given.encode("utf-8", "replace"))
        said.seek(0)
        process = await _start(what, words, environ, (said, errors), folder or home_folder())
        try:
            status = await within(process.wait(), limit_s)
        except asyncio.TimeoutError:
            raise Unsent(f"{what} did not end within {limit_s:g} s and was killed{_said(errors)}") from None
        finally:
            await _end(process)
        if status:
            raise Unsent(f"{what} ended with status {status}{_said(errors)}")


async def _start(
    what: str, words: Sequence[str], environ: Mapping[str, str], streams: tuple[IO[bytes], IO[bytes]], folder: str
) -> asyncio.subprocess.Process:
    said, errors = streams
    try:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *by_path(words, environ),
                stdin=said,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                env=dict(environ),
                cwd=folder,
                start_new_session=True,
            )
        )
        process = await asyncio.shield(starting)
        descriptors.give_usual_limit(process.pid)
        return process
    except asyncio.CancelledError:
        # If cancelled itself, asyncio kills the program alone, and not what that has started by then.
        with contextlib.suppress(OSError, ValueError):
            await _end(await starting)
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise Unsent(f"{what} could not be started: {reason}; name the program by its whole path") from None


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


# Linux starts no program with a variable of 128 KiB or more; the event file has everything.
LONGEST_JSON = 64 << 10


async def run_hook(name: str, hook: Hook, file: Path, watch: Watch, event: Event, environ: Mapping[str, str]) -> None:
    """Run a hook to its end. Raises Unsent."""
    variables = clean_environment(environ) | event_variables(file, watch, event)
    prompt = messages.suggested_prompt(watch, event) if hook.kind else ""
    folder = await asyncio.to_thread(folder_of, hook, watch)
    await run_program(f"the hook {name}", hook.command, variables, hook.timeout_s, given=prompt, folder=folder)


def folder_of(hook: Hook, watch: Watch) -> str:
    """The project in which an agent starts: only one in which its user had it work already, as it obeys its files."""
    is_known = bool(hook.kind) and watch.client.startswith(hook.kind)
    return watch.folder if is_known and os.path.isdir(watch.folder) else ""


def event_variables(file: Path, watch: Watch, event: Event) -> dict[str, str]:
    fields = messages.as_json(watch, event)
    return {
        "RSMCP_EVENT_FILE": str(file),
        "RSMCP_EVENT_JSON": bounded(fields),
        "RSMCP_EVENT_TYPE": event.type.value,
        **{f"RSMCP_{name.upper()}": str(value).lower() for name, value in event_end(event).items()},
        "RSMCP_WATCH_ID": str(fields["watch_id"]),
        "RSMCP_SANDBOX_NAME": _variable(watch.sandbox),
        "RSMCP_TMUX_SESSION": _variable(watch.session),
        "RSMCP_LOG_FILE": _variable(watch.log_file),
        "RSMCP_SUGGESTED_PROMPT": _variable(fields["suggested_prompt"]),
    }


def bounded(fields: Mapping[str, Any]) -> str:
    """The event as JSON of bounded length: without its payload, and at last with short texts only."""
    text = messages.encode(fields)
    if len(text) > LONGEST_JSON:
        fields = {**fields, "payload": {}, "payload_omitted": True}
        text = messages.encode(fields)
    if len(text) > LONGEST_JSON:
        short = {key: value[:1000] if isinstance(value, str) else value for key, value in fields.items()}
        text = messages.encode(short)
    return text


def _variable(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode()
