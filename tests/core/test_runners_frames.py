"""What the scripts print, whatever is in the folder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.suites.suite import parse_collected, parse_inspection

LOOK = b"""Welcome to this machine!
@@ look 1
@@ folder /home/me/project
@@ place /tmp/rsmcp-tests-run-1
@@ name ./pyproject.toml
@@ name tests/test a.py
@@ tool python python3
@@ tool node v20.20.2
@@ tool odd
@@ text pyproject.toml
 [tool.pytest]
 @@ tool pytest /bin/evil
@@ end
"""


def test_a_folder_is_read() -> None:
    found, place = parse_inspection(LOOK)
    assert (found.folder, place) == ("/home/me/project", "/tmp/rsmcp-tests-run-1")
    assert found.names == {"pyproject.toml", "tests/test a.py"}
    assert found.tools == {"python": "python3", "node": "v20.20.2", "odd": ""}
    assert found.texts == {"pyproject.toml": "[tool.pytest]\n@@ tool pytest /bin/evil"}


@pytest.mark.parametrize("cut", range(0, len(LOOK) - 1, 7))
def test_an_incomplete_answer_is_refused(cut: int) -> None:
    with pytest.raises(ValueError):
        parse_inspection(LOOK[:cut])


def test_files_are_read_as_they_are() -> None:
    output = b"@@ collect 1\n@@ plan\n {}\n \n@@ report\n <a>\n \n  b\n"
    output += b"@@ file ./x/junit.xml\n <c>\n@@ cut ./x/junit.xml\n@@ end\n"
    collected = parse_collected(output)
    assert (collected.plan, collected.report) == ("{}", b"<a>\n\n b")
    assert collected.files == {"x/junit.xml": b"<c>"}
    assert (collected.cut, collected.whole) == (("x/junit.xml",), True)


@given(st.binary())
def test_any_answer_is_read_or_refused(output: bytes) -> None:
    for parse in (parse_inspection, parse_collected):
        try:
            parse(b"@@ look 1\n@@ collect 1\n" + output)
        except ValueError:
            continue
