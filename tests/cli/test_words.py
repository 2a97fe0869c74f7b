"""A sentence that a person reads in a terminal names verbs, never the tools of agents."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import remote_sandbox_mcp
from remote_sandbox_mcp.cli.main import VERBS as ALL_VERBS
from remote_sandbox_mcp.cli.words import VERBS, as_verbs
from tests.cli.conftest import Cli

ROOT = Path(remote_sandbox_mcp.__file__).parent
TOOLS = json.loads((Path(__file__).parents[1] / "fronts" / "mcp" / "tools.json").read_text())
NAMED = re.compile(rf"(?<![\w`])({'|'.join(TOOLS)})\b")
# For agents alone: an agent's hook, its selection, its Python.
FOR_AGENTS = {"select_sandbox", "run_python", "run_tests", "edit_remote_file", "search_remote_files"}
BELOW_THE_FRONTS = ("app.py", "core", "services", "backends", "local", "config", "far")


def raised_sentences() -> Iterator[str]:
    """Texts in the source of what is raised."""
    for room in BELOW_THE_FRONTS:
        files = [ROOT / room] if room.endswith(".py") else (ROOT / room).rglob("*.py")
        for file in files:
            for raised in ast.walk(ast.parse(file.read_text())):
                if isinstance(raised, ast.Raise):
                    texts = [
                        it for it in ast.walk(raised) if isinstance(it, ast.Constant) and isinstance(it.value, str)
                    ]
                    yield from (str(text.value) for text in texts)


def test_no_error_names_a_tool_to_a_person() -> None:
    named = {sentence for sentence in raised_sentences() if NAMED.search(sentence)}
    assert len(named) > 5
    assert {tool for text in named for tool in NAMED.findall(as_verbs(text))} <= FOR_AGENTS


def test_every_verb_is_one() -> None:
    assert {verb.split()[0] for verb in VERBS.values()} <= set(ALL_VERBS)


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["for a person", "for a program"])
def test_a_sandbox_that_is_not_there_is_answered_with_a_verb(cli: Cli, more: tuple[str, ...]) -> None:
    done = cli("delete", "nope", *more)
    assert done.code == 2
    assert "remote-sandbox-mcp sandboxes shows those that there are" in done.stdout + done.stderr
    assert not NAMED.search(done.stdout + done.stderr)
