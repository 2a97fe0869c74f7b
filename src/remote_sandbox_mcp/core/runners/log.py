"""What is shown of a runner's output: both ends, in words that are meant for people."""

from __future__ import annotations

import json
from dataclasses import replace

from ..command import Excerpt

LOG_BYTES = 20_000


def shown_log(runner: str, log: Excerpt, text: str) -> Excerpt:
    """The log as people read it; go's events are for programs, what its tests printed is in them."""
    if runner != "go":
        return shortened(log)
    lines = "".join(map(_printed, text.splitlines())).encode()
    return shortened(replace(log, head=lines, tail=b"", total=len(lines)))


def _printed(line: str) -> str:
    try:
        event = json.loads(line) if line.startswith('{"') else None
    except (ValueError, RecursionError):
        event = None
    return str(event.get("Output", "")) if isinstance(event, dict) and "Action" in event else f"{line}\n"


def shortened(log: Excerpt) -> Excerpt:
    """At most LOG_BYTES of each end."""
    if len(log.head) + len(log.tail) <= 2 * LOG_BYTES:
        return log
    printed = log.tail if log.omitted else log.head + log.tail
    return replace(log, head=log.head[:LOG_BYTES], tail=printed[-LOG_BYTES:])
