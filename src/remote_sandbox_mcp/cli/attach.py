"""`shell` and `jobs attach`: this terminal shows a shell in a sandbox, or a job's tmux session, until it is left."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from ..core.errors import BadArgument, Unreachable
from ..services.jobs.attach import Attached, Window, open_shell
from . import streams, terminal
from .render import print_json
from .verb import add_json, with_app

if TYPE_CHECKING:
    from ..app import App

# What tmux sends at its end: all rows scroll, the first screen, a cursor, no mouse, focus or paste reports, plain keys
# and colours.
RESET = "\x1b[r\x1b[?1049l\x1b[?25h\x1b[?1000;1002;1003;1004;1006;2004l\x1b[?1l\x1b>\x1b[m"
JOB_CUT = "the connection to the job's terminal was cut; the job goes on"
SHELL_CUT = "the connection to the shell was cut, and it has ended"


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "shell",
        description="Opens your login shell in a sandbox, in this terminal: an SSH machine, a container, an allocation "
        "or the local sandbox. The sandbox needs python3. Ends with the shell's exit code, or with 255 when the "
        "connection is cut, which also ends the shell.",
    )
    parser.add_argument("sandbox", metavar="NAME", nargs="?", default="", help="where (default: the default sandbox)")
    add_json(parser, help="for programs: the exit code, printed when the shell has ended")


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    if not terminal.is_at_hand():
        raise BadArgument("shell needs a terminal; to run a command without one: remote-sandbox-mcp exec -- COMMAND")
    sandbox = await app.fleet.member(options.sandbox).open()
    code = await sit(await open_shell(sandbox, window()), SHELL_CUT)
    if options.json:
        print_json({"sandbox": sandbox.description.name, "exit_code": code})
    return code


def window() -> Window:
    rows, columns = terminal.size()
    return Window(rows, columns, streams.caller().environ.get("TERM") or "xterm")


async def sit(attached: Attached, cut: str = JOB_CUT) -> int:
    """Pass on keys, sizes and what is shown until it is left; returns its exit code.

    Raises Unreachable, saying `cut`.
    """
    seat = Seat(attached, cut)
    try:
        with terminal.taken_over(whole_screen=False):
            code = await seat.sit()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await attached.close()
    return code


class Seat:
    """Terminal of this process while it shows a job."""

    def __init__(self, attached: Attached, cut: str) -> None:
        self._attached = attached
        self._cut = cut
        # Whether what was shown may have changed how the terminal works.
        self._is_changed = False

    async def sit(self) -> int:
        code = None
        try:
            code = await self._until_left()
        finally:
            # After an end in order, tmux has put the terminal back itself; a shell's exit code says nothing about that.
            if (code is None or (code and self._cut == JOB_CUT)) and self._is_changed:
                terminal.show(RESET)
        return code

    async def _until_left(self) -> int:
        keys: asyncio.Queue[bytes] = asyncio.Queue()
        async with (
            terminal.ended_by_signals() as caught,
            terminal.heard(keys.put_nowait, lambda: self._attached.resize(window())),
        ):
            typing = asyncio.ensure_future(_type(self._attached, keys))
            try:
                await self._watch()
                code = await self._attached.close()
            except asyncio.CancelledError:
                if not caught:
                    raise
                return 128 + caught[0]
            finally:
                typing.cancel()
                await asyncio.gather(typing, return_exceptions=True)
        if code is None:
            raise Unreachable(self._cut)
        return code

    async def _watch(self) -> None:
        while data := await self._attached.read():
            self._is_changed = self._is_changed or b"\x1b" in data
            terminal.show(data)
            await terminal.keep_up()


async def _type(attached: Attached, keys: asyncio.Queue[bytes]) -> None:
    while data := await keys.get():
        await attached.type(data)
    # The terminal is gone.
    await attached.close()
