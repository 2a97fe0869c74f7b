"""What the documents of the originals promise, as promises.toml has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remote_sandbox_mcp.config.problems import parse_toml

FILE = Path(__file__).with_name("promises.toml")
REASONS = ("safer", "truer", "impossible here", "more")


@dataclass(frozen=True)
class Promise:
    """One promise: where it is made, what it says, what differs here ("" for nothing), and the test that shows it."""

    id: str
    text: str
    here: str
    group: str
    section: str
    documents: tuple[str, ...]
    test: str


def promises() -> list[Promise]:
    """All of them, in the order of the documents."""
    return [
        Promise(
            id=row[0],
            text=row[1],
            here=row[2] if len(row) > 2 else "",
            group=group["title"],
            section=group["section"],
            documents=tuple(group["documents"].split()),
            test=group["test"],
        )
        for group in parse_toml(FILE.read_text(encoding="utf-8"))["group"]
        for row in group["rows"]
    ]


def shown_by(test: str) -> list[str]:
    """The ids of the promises that a test of this folder shows, as its cases."""
    return [it.id for it in promises() if it.test == f"tests/seeds/{test}"]
