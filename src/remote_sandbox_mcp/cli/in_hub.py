"""Verbs as the hub carries them out, for processes that have given it their terminals."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .streams import HubCaller, called_by

if TYPE_CHECKING:
    from ..app import App

__all__ = ["ENDING", "HubCaller", "run"]

log = logging.getLogger(__name__)

# Signals that end a verb which has no answer of its own to them.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Enter = Callable[[Path | None], Awaitable[tuple["App", Callable[[], None]]]]


async def run(caller: HubCaller, argv: Sequence[str], enter: Enter) -> int:
    """Carry out one verb; returns its exit code. `enter` gives the app of a configuration."""
    with called_by(caller):
        try:
            return await _run([str(word) for word in argv], caller, enter)
        except SystemExit as end:
            # The argument parser has said why.
            return int(end.code or 0)
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except Exception:
            # A defect ends this verb alone, and shows its stack as one in a process of its own does.
            log.exception("a verb failed")
            caller.stderr.write(traceback.format_exc())
            return 1


async def _run(argv: Sequence[str], caller: HubCaller, enter: Enter) -> int:
    from ..core.errors import SandboxError
    from .completion import CALL_BACK, answer
    from .main import SHARED, parser, verb_of
    from .verb import MISTAKE, fail

    if argv[:1] == [CALL_BACK]:
        return await asyncio.to_thread(answer, argv[1:])
    verb = verb_of(argv)
    options = parser((verb,), as_json="--json" in argv).parse_args(argv)
    leave: Callable[[], None] | None = None
    try:
        caller.app, leave = await enter(options.config)
        module = importlib.import_module(f".{SHARED.get(verb, verb)}", __package__)
        return int(await module.run(options))
    except SandboxError as problem:
        return fail(problem, options.json, MISTAKE)
    finally:
        if leave:
            leave()
