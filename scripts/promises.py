"""Writes docs/promises.md, what the originals promise and the tests that show it: python -m scripts.promises."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.seeds.promise import Promise, promises

FILE = Path(__file__).parents[1] / "docs/promises.md"
BEGINNING = """# Promises

What the documents of remote-sandbox-mcp 0.2, 0.7.2 and 0.7.6 and the guide of an OpenSandbox MCP server promise, one by
one, and the test that shows what holds here. `scripts/promises.py` writes this page from `tests/seeds/promises.toml`.
For users, [Moving over](moving-over.md) says the same in short.

There are {count} promises. {held} hold as they are said; to {added}, something was added that takes nothing away;
{different} differ, because that is safer, truer or impossible here. The tests in `tests/seeds` run over stdio and over
HTTP, on real SSH machines, embedded sandboxes and a real OpenSandbox server; `tests/seeds/test_places.py` asks of
disposable sandboxes what is promised of machines. `tests/seeds/test_shapes.py` compares all results and parameters with
those that were recorded of the published 0.7.6.
"""


def page() -> str:
    found = promises()
    added = sum(it.here.startswith("more") for it in found)
    held = sum(not it.here for it in found)
    parts = [BEGINNING.format(count=len(found), held=held, added=added, different=len(found) - held - added)]
    for (title, section, documents, test), rows in itertools.groupby(found, key=group):
        parts.append(f"## {title}\n\nDocuments: {documents}, section {section}. Test: `{test}`.\n\n{table([*rows])}")
    return "\n".join(parts)


def group(it: Promise) -> tuple[str, str, str, str]:
    return it.group, it.section, ", ".join(it.documents), it.test


def table(rows: list[Promise]) -> str:
    lines = [f"| `{it.id}` | {it.text} | {it.here or 'the same'} |\n" for it in rows]
    return "| promise | what it says | here |\n|---|---|---|\n" + "".join(lines)


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
