"""Terminals in the browser: a shell in a sandbox, or the window of a job, for as long as their tab is open.

What is shown comes as a stream of events, what is typed in requests: the service has no WebSockets, and these pass the
same checks as all that the page asks for.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from ...app import App
from ...core.errors import SandboxError
from ...local.waiting import within
from ...services.history import MadeCall
from ...services.jobs.attach import Attached, Window, open_shell
from ...services.jobs.values import Which
from ...views.results import sentence
from .calls import CLIENT
from .http import PageRefusal
from .streams import HEARTBEAT, HEARTBEAT_S, event

# At once; and how long a program that reads nothing holds up who types.
MOST_TERMINALS, TYPE_S = 16, 10.0
# The size of a terminal, and of one event.
MOST_ROWS, MOST_COLUMNS, PIECE_BYTES = 500, 1000, 64 << 10


class Terminals:
    """Terminals that are open, by the cookie of their browser and an id that only their tab knows."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._open: dict[tuple[str, str], Attached] = {}

    async def events(self, wanted: Mapping[str, Any], cookie: str) -> AsyncGenerator[bytes, None]:
        """Open one; `opened`, then `output` in base64, and `end`."""
        sandbox, job = (str(wanted.get(name, ""))[:500] for name in ("sandbox", "job"))
        begun, trouble = time.time(), ""
        try:
            if len(self._open) >= MOST_TERMINALS:
                raise PageRefusal(429, f"{MOST_TERMINALS} terminals are open; close one")
            attached = await self._attach(sandbox, job, window_of(wanted))
            # What is typed may be a password, and is not kept.
            given = {"sandbox_name": sandbox, "tmux_session": job}
            seconds = time.time() - begun
            self._app.history.note(
                MadeCall(tool="terminal", arguments=given, outcome="done", begun=begun, seconds=seconds, client=CLIENT)
            )
            async with aclosing(self._shown((cookie, secrets.token_hex(16)), attached)) as parts:
                async for part in parts:
                    yield part
        except PageRefusal as refused:
            trouble = str(refused)
        except SandboxError as problem:
            trouble = sentence(problem)
        yield event("end", {"trouble": trouble})

    async def _attach(self, sandbox: str, job: str, window: Window) -> Attached:
        if job:
            return await self._app.jobs.attach(Which(session=job, sandbox=sandbox), window)
        return await open_shell(await self._app.fleet.get(sandbox), window)

    async def _shown(self, id: tuple[str, str], attached: Attached) -> AsyncGenerator[bytes, None]:
        """A browser that does not read holds the program up, and one that goes away ends it."""
        self._open[id] = attached
        reading = asyncio.ensure_future(attached.read())
        try:
            yield event("opened", {"id": id[1]})
            while True:
                await asyncio.wait((reading,), timeout=HEARTBEAT_S)
                if not reading.done():
                    yield HEARTBEAT
                elif data := reading.result():
                    for at in range(0, len(data), PIECE_BYTES):
                        yield event("output", base64.b64encode(data[at : at + PIECE_BYTES]).decode())
                    reading = asyncio.ensure_future(attached.read())
                else:
                    return
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            del self._open[id]
            await attached.close()

    async def type(self, wanted: Mapping[str, Any], cookie: str) -> dict[str, Any]:
        """Raises PageRefusal, SandboxError."""
        try:
            data = base64.b64decode(str(wanted.get("data", "")), validate=True)
        except ValueError:
            raise PageRefusal(400, "data is not encoded as it must be") from None
        try:
            await within(self._of(wanted, cookie).type(data), TYPE_S)
        except asyncio.TimeoutError:
            raise PageRefusal(504, "the program in the terminal does not read what is typed") from None
        return {}

    async def resize(self, wanted: Mapping[str, Any], cookie: str) -> dict[str, Any]:
        self._of(wanted, cookie).resize(window_of(wanted))
        return {}

    def _of(self, wanted: Mapping[str, Any], cookie: str) -> Attached:
        found = self._open.get((cookie, str(wanted.get("id", ""))))
        if found is None:
            raise PageRefusal(404, "there is no such terminal (any more)")
        return found


def window_of(wanted: Mapping[str, Any]) -> Window:
    """Raises PageRefusal."""
    rows, columns = wanted.get("rows"), wanted.get("columns")
    if type(rows) is not int or type(columns) is not int:
        raise PageRefusal(400, "rows and columns must be whole numbers")
    return Window(min(max(rows, 1), MOST_ROWS), min(max(columns, 2), MOST_COLUMNS))
