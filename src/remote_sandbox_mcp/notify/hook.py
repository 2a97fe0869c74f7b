"""Runs a hook of the operator's with an event in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.permission import Hook
from ..core.watch import Event, Watch
from . import messages, program

# Linux starts no program with a variable of 128 KiB or more; the event file has everything.
LONGEST_JSON = 64 << 10


async def run(name: str, hook: Hook, file: Path, watch: Watch, event: Event, environ: Mapping[str, str]) -> None:
    """Run a hook to its end. Raises Unsent."""
    variables = program.clean(environ) | event_variables(file, watch, event)
    await program.run(f"the hook {name}", hook.command, variables, hook.timeout_s)


def event_variables(file: Path, watch: Watch, event: Event) -> dict[str, str]:
    fields = messages.as_json(watch, event)
    return {
        "RSMCP_EVENT_FILE": str(file),
        "RSMCP_EVENT_JSON": bounded(fields),
        "RSMCP_EVENT_TYPE": event.type.value,
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
