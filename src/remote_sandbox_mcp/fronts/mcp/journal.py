"""Journal of calls: the beginning of those that must not be repeated, and the history of all."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from mcp.types import CallToolResult, InputRequiredResult, TextContent, ToolAnnotations

from ... import __version__
from ...config import paths
from ...core.client import Call
from ...core.errors import ConfigError, SandboxError
from ...local.store.database import STATE_FILE, Database
from ...local.store.sessions import CallRecord, CallRows
from ...services.history import MOST_TEXT, History, MadeCall
from ...services.session import current
from .clients import CallContext, introduction, own_front
from .results import Answer, failed, fields_of
from .toolbox import PLAIN, Declaration

log = logging.getLogger(__name__)

UNKNOWN = (
    "the process of remote-sandbox-mcp that worked on this {tool} was killed, so whether it was done is not known; "
    "look first, and repeat it only if it was not"
)


def is_kept(tool: Declaration, hints: ToolAnnotations | None, arguments: Mapping[str, Any]) -> bool:
    """Whether a call is recorded."""
    if tool.names_its_work or hints is None or hints.read_only_hint:
        return False
    return not hints.idempotent_hint or tool.answers_once or bool(arguments.get("create_only"))


class Journal:
    """Makes each call at most once. If it cannot be recorded, as on a full disk, the call is made all the same.

    Where nothing of commands is kept, answers are not: `keeps` says so.
    """

    def __init__(self, keeps: Callable[[], bool] = lambda: True) -> None:
        self._keeps = keeps

    @functools.cached_property
    def _rows(self) -> CallRows:
        return CallRows(Database(paths.state_folder() / STATE_FILE))

    async def once(self, call: Call, tool: str, make: Callable[[], Awaitable[Answer]]) -> Answer:
        """The recorded answer, or that of making the call now."""
        if call.again:
            try:
                record = await asyncio.to_thread(self._rows.get, call.name)
            except ConfigError:
                # Nobody can say whether it was made: to make it again might be to make it twice.
                record = CallRecord(call.name, tool)
            if record is not None:
                if record.answer:
                    return CallToolResult.model_validate_json(record.answer)
                return failed(UNKNOWN.format(tool=record.tool), {"code": SandboxError.code, "outcome": "unknown"})
        await self._attempt(lambda: self._rows.begin(call.name, tool))
        answer = await make()
        if isinstance(answer, InputRequiredResult):
            # Nothing was done yet: the client asks its user, and makes the call again.
            await self._attempt(lambda: self._rows.remove(call.name))
            return answer
        if self._keeps():
            fields = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
            await self._attempt(lambda: self._rows.answer(call.name, fields))
        return answer

    async def _attempt(self, work: Callable[[], None]) -> None:
        # The store has logged the reason, once.
        with contextlib.suppress(ConfigError):
            await asyncio.to_thread(work)


def begun(
    history: History, context: CallContext, tool: str, arguments: Mapping[str, Any], takes: Collection[str]
) -> MadeCall | None:
    """A call of a client, or of a front end of ours, that begins; other calls of our own have no context: None."""
    own = own_front.get()
    if context is None and not own:
        return None
    info, session = introduction(context), current()
    call = MadeCall(
        tool=tool,
        arguments=arguments,
        takes=takes,
        session=history.label(session),
        folder=session.folder,
        client=own or (info.name if info else ""),
        version=__version__ if own else info.version if info else "",
    )
    history.begin(call)
    return call


def ended(
    history: History, call: MadeCall, answer: Answer | None, outcome: str, declaration: Declaration = PLAIN
) -> None:
    """Keep a call, with what came of it."""
    fields = fields_of(answer) if isinstance(answer, CallToolResult) else {}
    exit_code = fields.get("exit_code")
    history.note(
        replace(
            call,
            outcome=outcome,
            seconds=round(time.time() - call.begun, 3),
            sandbox=str(fields.get("sandbox") or (fields.get("sandbox_id") if declaration.makes_sandbox else "") or ""),
            exit_code=exit_code if isinstance(exit_code, int) else None,
            text=_text(answer),
        )
    )


def _text(answer: object) -> str:
    content = answer.content if isinstance(answer, CallToolResult) else ()
    return next((block.text[:MOST_TEXT] for block in content if isinstance(block, TextContent)), "")
