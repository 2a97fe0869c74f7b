"""The threat table names a test for each row, and each of them is in the suite."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.support.syntax import parsed

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/threats.md").read_text()
COLUMNS = 5


def rows() -> list[list[str]]:
    lines = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| Attacker")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def threats() -> list[list[str]]:
    """All but the rows that are headings."""
    return [row for row in rows() if not row[0].startswith("**")]


@cache
def names_in(file: str) -> set[str]:
    tree = parsed(ROOT / file)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name.startswith("test_")}


def test_every_row_is_complete() -> None:
    assert len(threats()) > 40
    assert all(len(row) == COLUMNS and all(row) for row in threats())


@pytest.mark.parametrize("row", threats(), ids=lambda row: row[-1].rpartition("::")[2].strip("`"))
def test_every_row_names_a_test_that_is_there(row: list[str]) -> None:
    file, _, name = row[-1].strip("`").partition("::")
    assert name in names_in(file)


def test_the_policy_points_to_the_page() -> None:
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text()
