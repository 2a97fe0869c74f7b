"""What the history of calls is told of each call, from the SDK's values."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, Implementation, InputRequiredResult, TextContent

from .. import __version__
from ..history import MOST_TEXT, History, MadeCall
from ..session import current
from .clients import own_front
from .results import about_error


def note(
    history: History,
    context: Context[None, Any] | None,
    tool: str,
    arguments: Mapping[str, Any],
    answer: CallToolResult | InputRequiredResult | None,
    outcome: str,
    seconds: float,
) -> None:
    """Keep a call of a client, or of a front end of ours; other calls of our own have no context, and are not kept."""
    own = own_front.get()
    if context is None and not own:
        return
    info = _client_info(context)
    fields, session = _fields(answer), current()
    exit_code = fields.get("exit_code")
    history.note(
        MadeCall(
            tool=tool,
            arguments=arguments,
            outcome=outcome,
            begun=time.time() - seconds,
            seconds=round(seconds, 3),
            session=history.label(session),
            folder=session.folder,
            client=own or (info.name if info else ""),
            version=__version__ if own else info.version if info else "",
            sandbox=str(fields.get("sandbox") or (fields.get("sandbox_id") if tool == "create_sandbox" else "") or ""),
            exit_code=exit_code if isinstance(exit_code, int) else None,
            text=_text(answer),
        )
    )


def _client_info(context: Context[None, Any] | None) -> Implementation | None:
    params = context.session.client_params if context else None
    return params.client_info if params else None


def _fields(answer: object) -> Mapping[str, Any]:
    """The fields for programs, of a good result or of an error."""
    if not isinstance(answer, CallToolResult):
        return {}
    return about_error(answer) if answer.is_error else answer.structured_content or {}


def _text(answer: object) -> str:
    content = answer.content if isinstance(answer, CallToolResult) else ()
    return next((block.text[:MOST_TEXT] for block in content if isinstance(block, TextContent)), "")
