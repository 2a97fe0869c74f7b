"""Reads the source of the program and of its tests."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def parsed(file: Path) -> ast.Module:
    """Give the syntax tree of a file, which is read once: nobody changes the tree.

    CPython 3.11 fails with a SystemError if garbage of earlier tests that runs code of its own is collected meanwhile.
    """
    text = file.read_text(encoding="utf-8")
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()
