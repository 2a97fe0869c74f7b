"""Writes docs/commands.md, all verbs and options of the command line, from its parser: python scripts/commands.py."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from remote_sandbox_mcp.cli.main import parser

FILE = Path(__file__).parents[1] / "docs/commands.md"
BEGINNING = """# All verbs and options

The `--help` texts of all verbs. `scripts/commands.py` writes this page from the program;
[From the terminal](terminal.md) explains how to use the verbs. Every verb takes `--config FILE` (a config.toml or
config.json instead of the usual one), and every verb with output takes `--json` (for programs);
they are not repeated below.
"""
EVERYWHERE = {"--help", "--config", "--json"}


def page() -> str:
    top = parser()
    parts = [BEGINNING, "## Without a verb\n\nIt serves MCP.\n\n" + table(top)]
    for words, help_line, one in verbs(top, ()):
        said = one.description or f"{help_line[:1].upper()}{help_line[1:]}."
        parts.append(f"## {' '.join(words)}\n\n{plain(said)}\n" + (f"\n{rows}" if (rows := table(one)) else ""))
    return "\n".join(parts)


def verbs(
    top: argparse.ArgumentParser, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, argparse.ArgumentParser]]:
    """Each verb and each action of it, with its line of help."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {it.dest: it.help or "" for it in action._choices_actions}
            for name, one in action.choices.items():
                if name in helps:
                    yield (*above, name), helps[name], one
                    yield from verbs(one, (*above, name))


def table(one: argparse.ArgumentParser) -> str:
    rows = [row for action in one._actions if (row := shown(action))]
    return (
        "| option | meaning |\n|---|---|\n" + "".join(f"| {left} | {right} |\n" for left, right in rows) if rows else ""
    )


def shown(action: argparse.Action) -> tuple[str, str] | None:
    if EVERYWHERE & {*action.option_strings} or action.help == argparse.SUPPRESS or action.nargs == argparse.PARSER:
        return None
    value = (
        ""
        if action.nargs == 0
        else str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())
    )
    names = ", ".join(f"`{name} {value}`".replace(" `", "`") for name in action.option_strings) or f"`{value}`"
    return cell(names), cell(plain(str(action.help or "").replace("%%", "%")))


def plain(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "&lt;")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
