"""The far side's program as it is sent, and the command line that gives it an order."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from ..core.interpreter import packed
from ..core.shell import join

# The package that is put on the machine; boot.py comes with each call.
PIECES = ("__init__", "wire", "client", "supervisor", "calls", "interpreter", "child", "gpu")


@functools.cache
def files() -> dict[str, str]:
    return {f"{piece}.py": _text(f"far/{piece}.py") for piece in PIECES}


@functools.cache
def digest() -> str:
    """Names this version of the program on the machine."""
    return hashlib.sha256(json.dumps(files(), sort_keys=True).encode()).hexdigest()[:16]


def command_line(python: str, order: Mapping[str, Any]) -> str:
    """One command that gives an order to the program, by this Python, or the usual one."""
    words = ["sh", "-c", _text("call.sh"), "call.sh", python, _text("far/boot.py")]
    return "exec " + join([*words, *packed({**order, "program": digest()})])


@functools.cache
def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
