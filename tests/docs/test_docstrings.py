"""Docstrings begin with a verb or a noun of the domain."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
# Pronouns, and words that leave open what is described.
RIDDLE = re.compile(
    r"(?:All that|Also|Another|Anything|As|Both|By|Each|Everything|He|How|I|If|In|It|Its|Like|None|Nothing|Of|"
    r"One that|Others?|Same|See|She|So|Some|Something|Such|That|The same|Their|Them|These|They|This|Those|We|"
    r"What|Whatever|When|Where|Which|Whichever|Who|Whoever|Whose|Why|You|Your)\b"
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def riddles(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if text and RIDDLE.match(text):
            yield text.splitlines()[0]


def test_docstrings_begin_with_what_they_describe() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in riddles(path.read_text())
    ]
    assert not found, "begin with a verb or a noun:\n" + "\n".join(found)


def test_riddles_are_found() -> None:
    source = '"""What it is."""\nclass A:\n    """The same for one."""\nclass B:\n    """Item of two."""\n'
    assert list(riddles(source)) == ["What it is.", "The same for one."]
