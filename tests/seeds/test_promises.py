"""Every promise of the originals has a test that exists, and every check of this folder belongs to a promise."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from scripts.promises import FILE, page

from . import test_clients_of_the_guide, test_guide, test_machines, test_start
from .promise import REASONS, promises, shown_by

ROOT = Path(__file__).parents[2]
BOLD = re.compile(r"\*\*(.+?)\*\*")


def test_no_promise_is_written_twice() -> None:
    assert [name for name, count in Counter(it.id for it in promises()).items() if count > 1] == []


def test_a_difference_has_one_of_the_reasons() -> None:
    assert {it.here.partition(":")[0] for it in promises() if it.here} == set(REASONS)


@pytest.mark.parametrize("test", sorted({it.test for it in promises()}))
def test_the_test_of_a_promise_exists(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {it.name for it in tree.body if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("module", [test_clients_of_the_guide, test_guide, test_machines, test_start])
def test_checks_and_promises_are_the_same(module: object) -> None:
    name = str(getattr(module, "__name__")).rpartition(".")[2]  # noqa: B009
    assert {*shown_by(f"{name}.py::test_promise")} == {*getattr(module, "CHECKS")}  # noqa: B009


def differences(page: Path) -> list[str]:
    """What happens here, of each row of a page about moving over."""
    rows = [row.split(" | ") for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    return [cells[1] for cells in rows if len(cells) == len(["promise", "here", "to do"])][1:]


def test_every_row_of_the_page_for_users_holds_or_has_a_reason() -> None:
    english, chinese = (differences(ROOT / "docs" / f"moving-over{kind}.md") for kind in ("", ".zh-CN"))
    rows = [row for row in english if row != "what happens here"]
    assert [row for row in rows if not row.startswith(("the same", *(f"**{it}**: " for it in REASONS[:3])))] == []
    words = dict(zip(REASONS, ("更安全", "更真实", "这里无法做到"), strict=False))
    reasons = [[words[it.lower()] for it in BOLD.findall(row)] for row in english]
    assert [BOLD.findall(row) for row in chinese] == reasons


def test_the_page_of_promises_is_what_they_say() -> None:
    assert FILE.read_text(encoding="utf-8") == page(), "run: .venv/bin/python -m scripts.promises"
