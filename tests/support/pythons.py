"""The far side of run_python for sandboxes that run nothing: what is ordered, and an answer to it."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from typing import Any

from remote_sandbox_mcp.core.commands.command import Command
from tests.support.fakes.sandbox import Answer


def order_in(command: Command) -> dict[str, Any]:
    """The order in a command line of run_python."""
    # exec sh -c SCRIPT NAME PYTHON BOOT, then the order in pieces.
    pieces = shlex.split(command.script)[7:]
    order: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode("".join(pieces))))
    return order


def record_line(word: str, record: dict[str, Any]) -> bytes:
    """A record as the far side prints it."""
    body = base64.b64encode(zlib.compress(json.dumps(record).encode()))
    return b" ".join((word.encode(), body, word.encode())) + b"\n"


def python_answer(command: Command) -> Answer:
    """A session that is begun, and in which all code has the value 1."""
    order = order_in(command)
    told: dict[str, dict[str, Any]] = {"begin": {"state": "begun"}, "list": {"state": "sessions", "sessions": []}}
    record = told.get(order["verb"], {"state": "done", "value": "1", "images": [], "seconds": 0.1})
    return Answer(record_line(order["word"], record))
