"""Programs of docs/python-api.md and examples/python_api: their types are right, and they print what the page says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.doc_pages import ROOT, blocks
from tests.support.hub_desk import Desk, desk_in
from tests.support.server import entry, environment
from tests.support.sshd import Sshd

_BLOCKS = blocks(ROOT / "docs" / "python-api.md")
PROGRAMS = [(it.text, then.text) for it, then in pairwise(_BLOCKS) if it.language == "python"]
# The same programs as files, each with a first line and a docstring before it.
EXAMPLES = {file.read_text().partition('"""\n\n')[2]: file for file in (ROOT / "examples/python_api").iterdir()}
DEADLINE_S = 180


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        yield desk


def test_there_are_ten_programs_and_each_says_what_it_prints() -> None:
    assert len(PROGRAMS) >= 10
    assert sorted(EXAMPLES) == sorted(source for source, _ in PROGRAMS)
    assert [it.language for it in _BLOCKS] == ["python", "text"] * len(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_prints_what_the_page_says(desk: Desk, sshd: Sshd, program: tuple[str, str]) -> None:
    source, expected = program
    env = environment(desk.home, (entry(sshd, name="gpu1"),), {"REMOTE_SANDBOX_LOCAL": "0"})
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(EXAMPLES[source])],
        env=env,
        cwd=desk.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)


def test_users_can_check_their_types(tmp_path: Path) -> None:
    for source, file in EXAMPLES.items():
        (tmp_path / file.name).write_text(source)
    (tmp_path / "wrong.py").write_text(
        "from remote_sandbox_mcp.blocking import Sandboxes\n"
        'with Sandboxes() as boxes:\n    boxes.open("a").run(1).exit_code.upper()\n'
    )
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    mistakes = [line.partition(":")[0] for line in done.stdout.splitlines() if ": error:" in line]
    assert [Path(file).name for file in mistakes] == ["wrong.py", "wrong.py"], done.stdout + done.stderr
