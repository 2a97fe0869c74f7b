"""A Python expression and its translation for grep find the same lines."""

from __future__ import annotations

import re
import subprocess

import pytest

from remote_sandbox_mcp.backends.ssh.plain_search import NotExtended, to_extended

LINES = [
    "import os",
    "x = 12",
    "x=1",
    "a-b",
    "a]b",
    "a^b",
    "a.b",
    "aab",
    "b",
    "",
    "tab\there",
    "end\r",
    "(x)",
    "$5",
    "{a}",
]
PATTERNS = [
    r"\d+$",
    r"^\w+\s\w",
    r"\S=\D?\d",
    r"^(?:import|x)\b",
    r"a[\]^-]b",
    r"a[^\].]b",
    r"a[\-.]b",
    r"[^\s\w]",
    r"^a+?b$",
    r"a{2}b",
    r"^$",
    r"end$",
    r"end\Z",
    r"\t",
    r"\(x\)",
    r"\$\d",
    r"\{a\}",
    r"[$]",
    r"[]x]",
    r"[^]x]",
    r"[\^]",
    r"[a^-]",
    r"a\-b",
    r"a.?b|os",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("grep", [["grep"], ["busybox", "grep"]], ids=["GNU", "busybox"])
def test_grep_finds_what_python_finds(grep: list[str], pattern: str) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    found = subprocess.run(
        [*grep, "-nE", "-e", to_extended(pattern)], input=text.encode(), capture_output=True, check=False
    )
    numbers = [int(line.split(b":")[0]) for line in found.stdout.splitlines() if line]
    assert numbers == [n for n, line in enumerate(LINES, 1) if re.search(pattern, line.rstrip("\r"))]


@pytest.mark.parametrize("pattern", [r"(?=x)", r"(?i)x", r"(?P<n>x)", r"\x41", r"(x)\1", r"[\D]"])
def test_what_grep_cannot_say_is_refused(pattern: str) -> None:
    with pytest.raises(NotExtended):
        to_extended(pattern)


def test_what_is_no_expression_is_no_expression() -> None:
    with pytest.raises(re.error):
        to_extended("(")
