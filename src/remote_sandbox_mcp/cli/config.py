"""`config`: what is configured and where it came from, with every secret hidden."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .render import Page


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "config", help="what is configured, and where", description="Shows what is configured and where it came from."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="everything that is configured; secrets are hidden")
    show.add_argument("--json", action="store_true", help="for programs")
    actions.add_parser("path", help="the configuration file's path, whether or not it is there")


async def run(options: argparse.Namespace) -> int:
    from ..config import paths
    from ..config.load import load
    from ..config.show import show
    from .render import Page, print_json, write

    path: Path = options.config or paths.config_file()
    if options.action == "path":
        write(f"{path}\n")
        return 0
    shown = show(load(options.config))
    if options.json:
        print_json(shown)
    else:
        _print(Page(), shown, path)
    return 0


def _print(page: Page, shown: Mapping[str, Any], path: Path) -> None:
    from .render import styled

    there = "" if shown["file"] != "none" else " (not there)"
    page.rows([("config file", styled((str(path), ""), (there, "dim"))), ("default", shown["default"] or "none")], 0)
    for machine in shown["machines"]:
        page.heading(machine["name"], f"from {machine['source']}")
        page.rows(
            [(key, styled((_text(value), ""))) for key, value in machine.items() if key not in ("name", "source")]
        )
    if shown["local"]:
        page.heading(shown["local"]["name"], "the embedded sandbox on this machine")
        page.rows([(key, styled((_text(value), ""))) for key, value in shown["local"].items() if key != "name"])
    page.heading("settings")
    page.rows(
        (key, _text(setting["value"]), styled((setting["source"], "dim"))) for key, setting in shown["settings"].items()
    )
    if shown["problems"]:
        page.heading("problems")
        page.problems(shown["problems"])


def _text(value: Any) -> str:
    """A value as a person would write it."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "; ".join(_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
