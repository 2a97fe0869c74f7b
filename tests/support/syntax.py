"""Reads the source of the program and of its tests."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


def parsed(file: Path) -> ast.Module:
    """The syntax tree of a file.

    CPython 3.11 fails with a SystemError if garbage of earlier tests that runs code of its own is collected meanwhile.
    """
    text = file.read_text(encoding="utf-8")
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()
