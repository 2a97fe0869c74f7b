"""The pages that users read, and the parts of them that tests look at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A block of code, and the language that it is in."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def heading_levels(page: Path) -> list[int]:
    return [len(marks) for marks in re.findall(r"^(#+) ", prose(page), re.M)]


def tables(page: Path) -> list[list[int]]:
    """How many columns each row has, for each table."""
    found = re.findall(r"(?:^\|.*\|\n)+", prose(page), re.M)
    return [[len(re.findall(r"(?<!\\)\|", row)) - 1 for row in table.splitlines()] for table in found]


def short(page: Path) -> str:
    return str(page.relative_to(ROOT))
