from __future__ import annotations

import importlib.util
import re

from remote_sandbox_mcp.cli.main import VERBS
from tests.support.doc_pages import ROOT

PAGE = ROOT / "docs/commands.md"


def made() -> str:
    spec = importlib.util.spec_from_file_location("commands_page", ROOT / "scripts/commands.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page: str = module.page()
    return page


def test_the_page_of_all_options_is_what_the_parser_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == made(), "run: .venv/bin/python scripts/commands.py"


def test_the_page_has_every_verb() -> None:
    headings = re.findall(r"^## (\S+)", PAGE.read_text(encoding="utf-8"), re.M)
    assert {*headings} - {"Without"} == {*VERBS}
