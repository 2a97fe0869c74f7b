"""Writes docs/commands.md and the man page, all verbs and options, from the parser: python scripts/commands.py."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from remote_sandbox_mcp.cli.main import parser

FOLDER = Path(__file__).parents[1]
FILE, MAN_FILE = FOLDER / "docs/commands.md", FOLDER / "packaging/remote-sandbox-mcp.1"
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


def man_page() -> str:
    """The same for man(1)."""
    top = parser()
    parts = [
        ".TH REMOTE-SANDBOX-MCP 1\n.SH NAME\nremote-sandbox-mcp \\- sandboxes for coding agents\n.SH SYNOPSIS\n"
        ".B remote-sandbox-mcp\n[\\fIOPTIONS\\fR] [\\fIVERB\\fR ...]\n.SH DESCRIPTION\n"
        "Without a verb it serves MCP on standard input and output. Every verb takes \\-\\-config FILE, and every verb "
        "with output takes \\-\\-json.\n" + man_rows(top),
        ".SH VERBS",
    ]
    for words, help_line, one in verbs(top, ()):
        said = one.description or f"{help_line[:1].upper()}{help_line[1:]}."
        parts.append(f".SS {' '.join(words)}\n{roff(said)}\n{man_rows(one)}".rstrip("\n"))
    return "\n".join(parts) + "\n"


def man_rows(one: argparse.ArgumentParser) -> str:
    rows = (names_and_help(action) for action in one._actions)
    return "".join(f".TP\n{roff(', '.join(row[0]))}\n{roff(row[1])}\n" for row in rows if row)


def roff(text: str) -> str:
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


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
    if (found := names_and_help(action)) is None:
        return None
    return cell(", ".join(f"`{name}`" for name in found[0])), cell(plain(found[1]))


def names_and_help(action: argparse.Action) -> tuple[list[str], str] | None:
    if EVERYWHERE & {*action.option_strings} or action.help == argparse.SUPPRESS or action.nargs == argparse.PARSER:
        return None
    value = (
        ""
        if action.nargs == 0
        else str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())
    )
    names = [f"{name} {value}".strip() for name in action.option_strings] or [value]
    return names, str(action.help or "").replace("%%", "%")


def plain(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "&lt;")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    MAN_FILE.write_text(man_page(), encoding="utf-8")
