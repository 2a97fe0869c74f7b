"""The pages on the architecture and the contributors' table name files and rooms of the tree as they are."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from remote_sandbox_mcp.services.hub_contact import hello
from tests.support.doc_pages import ROOT
from tests.support.syntax import parsed

SOURCE = ROOT / "src/remote_sandbox_mcp"
ARCHITECTURE, PROTOCOL, WALKS, CONTRIBUTING = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("docs/architecture.md", "docs/protocol.md", "docs/walks.md", "CONTRIBUTING.md")
)
PACKAGES = sorted(file.parent for file in SOURCE.rglob("__init__.py") if file.parent != SOURCE)
# A package is a room, and so is a module beside the packages; the entry point that Python itself names is none.
MODULES = sorted(file for file in SOURCE.glob("*.py") if not file.name.startswith("__"))
# A sheet of paper, and three short walks.
LONGEST_PAGE = 120


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


def walks_in(page: str, level: str) -> dict[str, list[str]]:
    headings = re.findall(rf"^{level} .*$", page, re.M)
    return {heading.lstrip("# "): first_column(section(page, heading)) for heading in headings}


SHORT = walks_in(section(ARCHITECTURE, "## Three walks"), "###")
LONG = walks_in(WALKS, "##")


def rooms() -> list[str]:
    """Every room in the table, with the folders in it."""
    table = [(row[0].strip("`"), re.findall(r"`(.+?)`", row[2])) for row in rows(section(ARCHITECTURE, "## Rooms"))]
    return [name for room, folders in table for name in (room, *(f"{room}/{folder}" for folder in folders))]


def test_the_page_on_the_architecture_is_one_page() -> None:
    assert len(ARCHITECTURE.splitlines()) <= LONGEST_PAGE


def test_the_table_of_rooms_names_every_room_once() -> None:
    there = [str(package.relative_to(SOURCE)) for package in PACKAGES] + [module.stem for module in MODULES]
    assert sorted(rooms()) == sorted(there)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_says_what_is_in_it_and_what_is_elsewhere(package: Path) -> None:
    text = ast.get_docstring(parsed(package / "__init__.py")) or ""
    first, _, rest = text.partition("\n\n")
    assert "\n" not in first
    assert first.endswith(".")
    assert re.search(r"\b(not|no|nothing|elsewhere)\b", rest, re.I), "it does not say what is elsewhere"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_names_places_that_exist(package: Path) -> None:
    text = ast.get_docstring(parsed(package / "__init__.py")) or ""
    named = re.findall(r"\b(?:core|far|local|config|backends|services|views|fronts|hub|cli)/[\w/]+(?:\.\w+)?", text)
    assert [place for place in named if not (SOURCE / place).exists()] == []


def test_there_are_three_short_walks_and_nine_long_ones() -> None:
    assert (len(SHORT), len(LONG)) == (3, 9)


@pytest.mark.parametrize("files", [*SHORT.values(), *LONG.values()], ids=[*SHORT, *LONG])
def test_a_walk_names_files_that_exist_each_once(files: list[str]) -> None:
    assert files
    assert [file for file in files if not (SOURCE / file).is_file()] == []
    assert len(set(files)) == len(files)


def test_the_chain_is_the_one_that_is_checked() -> None:
    contract = re.search(r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    assert contract
    checked = re.findall(r'"(.+?)"', contract.group(1))
    shown = re.search(r"^    cli --> .*?core$", ARCHITECTURE, re.M | re.S)
    assert shown
    # The entry points and the stand-ins for tests come before the first room of the chain.
    assert re.split(r"\s*-->\s*", shown.group().strip()) == checked[checked.index("cli") :]


def test_the_picture_names_the_rooms_of_the_chain() -> None:
    picture = (ROOT / "docs/architecture.svg").read_text(encoding="utf-8")
    layers = re.findall(r'<text class="room"[^>]*>([a-z]+)', picture)
    assert layers == ["hub", "fronts", "views", "app", "services", "config", "backends", "local", "far", "core"]


@pytest.mark.parametrize("page", [ARCHITECTURE, PROTOCOL, WALKS], ids=["architecture", "protocol", "walks"])
def test_files_in_the_text_exist(page: str) -> None:
    files = set(re.findall(r"`([\w/]+/[\w/]+\.(?:py|sh))`", page))
    assert [file for file in sorted(files) if not any((place / file).is_file() for place in (ROOT, SOURCE))] == []


HUB = section(PROTOCOL, "## The hub's conversation")


def test_the_page_on_the_protocol_has_every_hello_and_every_question() -> None:
    questions = re.findall(r'question == "(.+?)"', (SOURCE / "hub/serve.py").read_text(encoding="utf-8"))
    hellos = {hello.SERVE, hello.HTTP, hello.LOGIN, hello.VERB, hello.PROGRAM, hello.ASK}
    named = first_column(HUB)
    assert {*named} - {"question", "---"} == {*hellos, *questions}


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


@pytest.mark.parametrize("page", [ARCHITECTURE, PROTOCOL, WALKS], ids=["architecture", "protocol", "walks"])
def test_headings_follow_each_other_without_a_gap(page: str) -> None:
    levels = [len(marks) for marks in re.findall(r"^(#+) ", page, re.M)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
