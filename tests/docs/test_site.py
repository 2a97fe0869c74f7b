"""The documentation as a site: each page has its place, nothing comes from other hosts."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
from chaos import faults, leases, sessions
from chaos.mutations import MUTATIONS, mutated

from remote_sandbox_mcp.config.schema import MACHINE_KEYS
from tests.support.doc_pages import ROOT

SCRIPTS = ROOT / "scripts"


def script(name: str) -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(SCRIPTS))


def test_every_page_has_one_place_in_the_site() -> None:
    documentation = script("documentation")
    placed = [name for names in documentation.NAVIGATION.values() for name in names]
    made = {"tool-parameters", "keys", "errors", "python-reference"}
    there = {documentation.target(page.relative_to(ROOT)) for page in documentation.pages("")} | made
    assert sorted(placed) == sorted(there)


def test_all_of_start_and_use_is_there_in_chinese() -> None:
    documentation = script("documentation")
    there = {documentation.target(page.relative_to(ROOT)) for page in documentation.pages(".zh-CN")}
    assert {*documentation.NAVIGATION["Start"], *documentation.NAVIGATION["Use"]} <= there


def test_reference_pages_are_of_the_program() -> None:
    pages = script("reference").pages()
    assert "## exec_bash\n" in pages["tool-parameters"]
    assert {*MACHINE_KEYS} <= {*re.findall(r"^\| `(\w+)`", pages["keys"], re.M)}
    assert "| HostKeyProblem | `" in pages["errors"]
    assert "no sandbox is named" in pages["errors"]
    assert "### `Sandboxes.open`" in pages["python-reference"]


def test_the_page_about_reliability_has_every_fault_and_mutation() -> None:
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    names = {fault.__name__ for fault in (*faults.FAULTS, *sessions.FAULTS, *leases.FAULTS)} | {*MUTATIONS}
    assert {name for name in names if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_still_finds_the_text_that_it_breaks(name: str, tmp_path: Path) -> None:
    mutated(name, tmp_path)


class Loaded(HTMLParser):
    """Addresses that a browser asks for when it shows a page; links that a person may follow are none."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        is_loaded = tag != "link" or "canonical" not in (given.get("rel") or "")
        for name in ("src", "srcset", *(("href",) if tag == "link" and is_loaded else ())):
            if re.match(r"(https?:)?//", given.get(name) or ""):
                self.found.add(str(given[name]))


@pytest.fixture(scope="module")
def site() -> Path:
    """The site as `make docs` makes it; where nobody has set up its tools, its test is left out."""
    if not (ROOT / ".publish/bin/mkdocs").exists():
        pytest.skip("the site is not made here: run make docs once")
    subprocess.run([sys.executable, SCRIPTS / "documentation.py"], check=True, capture_output=True)
    return ROOT / "build/site"


@pytest.mark.timeout(120)
@pytest.mark.xdist_group("site")
def test_the_site_is_whole_and_loads_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        assert loaded.found == set(), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style
    for language in (site, site / "zh"):
        assert (language / "search/search_index.js").exists()
    assert "[Workspaces](workspaces.html): " in (site / "llms.txt").read_text(encoding="utf-8")
    assert "exec_bash_background" in (site / "llms-full.txt").read_text(encoding="utf-8")
