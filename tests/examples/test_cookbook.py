"""Every recipe of docs/cookbook.md, run as it stands, and what the page says that it prints."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.doc_pages import ROOT
from tests.support.means import require_local

from .test_examples import DEADLINE_S, User, there, user

__all__ = ["there", "user"]
PAGE = (ROOT / "docs/cookbook.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^## (\d+\. .+?)$.*?^```(sh|python)\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.M | re.S)


def test_there_are_ten() -> None:
    assert [int(title.split(".")[0]) for title, *_ in RECIPES] == [*range(1, 11)]


@pytest.mark.timeout(300)
def test_every_recipe_prints_what_the_page_says(there: User) -> None:
    require_local()
    for title, language, text, expected in RECIPES:
        words = ["/bin/sh", "-eu", "-c", text] if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            words,
            env=there.env,
            cwd=there.desk.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{title}: {done.stdout}{done.stderr}"
        pattern = re.escape(expected).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, done.stdout, re.S), f"{title}:\n{done.stdout}{done.stderr}"
