"""The page on the architecture and the contributors' table name files and rooms of the tree as they are."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.doc_pages import ROOT
from tests.support.syntax import parsed

SOURCE = ROOT / "src/remote_sandbox_mcp"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGES = sorted(file.parent for file in SOURCE.rglob("__init__.py") if file.parent != SOURCE)
# A package is a room, and so is a module beside the packages; the entry point that Python itself names is none.
MODULES = sorted(file for file in SOURCE.glob("*.py") if not file.name.startswith("__"))


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of the same or a higher level."""
    level = heading.split()[0]
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", page, re.M | re.S)
    assert found, heading
    return found.group(1)


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its heading."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def first_column(text: str) -> list[str]:
    return [row[0].strip("`") for row in rows(text)]


def walks() -> dict[str, list[str]]:
    headings = re.findall(r"^### .*$", section(PAGE, "## Five walks"), re.M)
    return {heading[4:]: first_column(section(PAGE, heading)) for heading in headings}


def test_the_table_of_rooms_names_every_room_once() -> None:
    rooms = [str(package.relative_to(SOURCE)) for package in PACKAGES] + [module.stem for module in MODULES]
    assert sorted(first_column(section(PAGE, "## Rooms"))) == sorted(rooms)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_says_what_is_in_it_and_what_is_not(package: Path) -> None:
    text = ast.get_docstring(parsed(package / "__init__.py")) or ""
    first, _, rest = text.partition("\n\n")
    assert "\n" not in first
    assert first.endswith(".")
    assert re.search(r"\b(not|no|nothing)\b", rest, re.I), "it does not say what is elsewhere"


def test_there_are_five_walks() -> None:
    assert len(walks()) == 5


@pytest.mark.parametrize("walk", walks())
def test_a_walk_names_files_that_exist_each_once(walk: str) -> None:
    files = walks()[walk]
    assert [file for file in files if not (SOURCE / file).is_file()] == []
    assert len(set(files)) == len(files)


def test_the_layers_are_those_that_are_checked() -> None:
    contract = re.search(r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    assert contract
    checked = re.findall(r'"(.+?)"', contract.group(1))
    shown = re.search(r"^    cli --> .*?core$", PAGE, re.M | re.S)
    assert shown
    layers = re.split(r"\s*-->\s*", shown.group().strip())
    # The entry points and the stand-ins for tests come before the first layer.
    assert layers == checked[checked.index("cli") :]


def test_files_in_the_text_exist() -> None:
    files = set(re.findall(r"`([\w/]+/[\w/]+\.(?:py|sh))`", PAGE))
    places = (ROOT, SOURCE, SOURCE / "backends", SOURCE / "backends/outpost")
    assert [file for file in sorted(files) if not any((place / file).is_file() for place in places)] == []


CHANGES = section(CONTRIBUTING, "## To change something, touch these files")


@pytest.mark.parametrize("row", rows(CHANGES), ids=lambda row: row[0])
def test_a_common_change_names_files_that_exist_and_names_that_are_in_them(row: list[str]) -> None:
    named = re.findall(r"`([^`]+)`", row[1])
    assert len(named) >= 2
    place = None
    for word in named:
        if found := [folder / word for folder in (ROOT, SOURCE) if (folder / word).exists()]:
            place = found[0]
        else:
            # A function or constant that is named belongs to the file before it.
            assert place is not None, word
            assert re.search(rf"^\s*(?:(?:async )?def {word}\(|{word} = )", place.read_text(encoding="utf-8"), re.M), (
                word
            )


def test_eleven_common_changes_are_explained() -> None:
    assert len(rows(CHANGES)) == 11


def test_headings_follow_each_other_without_a_gap() -> None:
    levels = [len(marks) for marks in re.findall(r"^(#+) ", PAGE, re.M)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
