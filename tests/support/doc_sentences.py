"""The texts in the source that users can meet: every string, with `...` where a value is put in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.support.syntax import parsed

SOURCE = Path(__file__).parents[2] / "src/remote_sandbox_mcp"


def texts() -> list[str]:
    return [text for file in SOURCE.rglob("*.py") for text in strings(parsed(file))]


def strings(tree: ast.AST) -> Iterator[str]:
    """All but docstrings, which no user sees."""
    unseen = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) not in unseen and (text := text_of(node)) is not None:
            yield text
        elif isinstance(node, ast.Tuple | ast.Call):
            # What was found and what to do: errors put these together, see SandboxError.of_parts.
            parts = [text for part in children(node) if (text := text_of(part)) is not None]
            yield from (f"{found}{turn}{remedy}" for found, remedy in pairwise(parts) for turn in ("; ", ". "))


def children(node: ast.Tuple | ast.Call) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else node.args


def text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
    return None


def is_said(quote: str, text: str) -> bool:
    """Whether all of a quote's parts stand in a text, in their order; `...` leaves something out."""
    start = 0
    for part in filter(None, quote.split("...")):
        found = text.find(part, start)
        if found < 0:
            return False
        start = found + len(part)
    return True
