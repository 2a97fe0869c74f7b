"""What the history of calls is told of each call, from the SDK's values."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, InputRequiredResult, TextContent

from ..history import MOST_TEXT, History, MadeCall
from ..session import current
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
    """Keep a call of a client; calls of our own, which have no context, are not kept."""
    if context is None:
        return
    params, fields, session = context.session.client_params, _fields(answer), current()
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
            client=params.client_info.name if params else "",
            version=params.client_info.version if params else "",
            sandbox=str(fields.get("sandbox") or (fields.get("sandbox_id") if tool == "create_sandbox" else "") or ""),
            exit_code=exit_code if isinstance(exit_code, int) else None,
            text=_text(answer),
        )
    )


def _fields(answer: object) -> Mapping[str, Any]:
    """The fields for programs, of a good result or of an error."""
    if not isinstance(answer, CallToolResult):
        return {}
    return about_error(answer) if answer.is_error else answer.structured_content or {}


def _text(answer: object) -> str:
    content = answer.content if isinstance(answer, CallToolResult) else ()
    return next((block.text[:MOST_TEXT] for block in content if isinstance(block, TextContent)), "")
