"""The cards that clients show beside a result (MCP Apps): one HTML document, made of the page's own files."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from .. import __version__

# The page itself is served above this layer; here its files are only read.
FILES = Path(__file__).parents[1] / "page" / "files"
# Each after those that it imports.
SCRIPTS = ("dom", "format", "words", "chart", "cards", "inside_client")
STYLES = ("page.css", "inside_client.css")
NAME = re.compile(r"\w+")
# What is around the name of an imported file.
QUOTED = '";'
# How a line begins that exports a name.
EXPORTS = tuple(f"export {kind} " for kind in ("async function", "function", "class", "const", "let"))


@functools.cache
def cards_page() -> str:
    """The document. A client shows it in a frame that can load nothing, so everything is in it."""
    script = "".join(as_value(name, (FILES / f"{name}.js").read_text("utf-8")) for name in SCRIPTS)
    style = "\n".join((FILES / name).read_text("utf-8") for name in STYLES)
    return (
        f'<!doctype html>\n<html lang="en" data-version="{__version__}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<title>remote-sandbox-mcp</title>\n'
        f"<style>\n{style}</style>\n</head>\n"
        '<body class="inside-client">\n<main id="cards"></main>\n'
        f'<script type="module">\n{script}</script>\n</body>\n</html>\n'
    )


def as_value(name: str, module: str) -> str:
    """A module's source as part of one script: a value with the names that it exports, and its own ones hidden.

    >>> print(as_value("cards", 'import { h as made } from "./dom.js";\\nexport const card = made("p");'))
    const cards = (() => {
    const { h: made } = dom;
    const card = made("p");
    return { card };
    })();
    <BLANKLINE>
    """
    exported: list[str] = []
    lines = [_as_part(line, exported) for line in module.splitlines()]
    return "\n".join((f"const {name} = (() => {{", *lines, f"return {{ {', '.join(exported)} }};", "})();", ""))


def _as_part(line: str, exported: list[str]) -> str:
    """A line without what only a module may say; names that it exports are added to the list."""
    if line.startswith("import {"):
        names, _, file = line.removeprefix("import ").partition(" from ")
        return f"const {names.replace(' as ', ': ')} = {Path(file.strip(QUOTED)).stem};"
    kind = next((kind for kind in EXPORTS if line.startswith(kind)), "")
    if found := NAME.match(line, len(kind)) if kind else None:
        exported.append(found[0])
        return line.removeprefix("export ")
    return line
