"""`config`: what is configured and where it came from, with every secret hidden; accepting a project's file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .verb import add_json

if TYPE_CHECKING:
    from .render import Page

NAME = "config.json"


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "config",
        help="what is configured, and where",
        description="Shows what is configured and where it came from, and accepts what a project sets; without an "
        "action, shows.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    show = actions.add_parser("show", help="everything that is configured; secrets are hidden")
    add_json(parser, show)
    actions.add_parser("path", help="the configuration file's path, whether or not it is there")
    allow = actions.add_parser("allow", help="accept the config.json of a project, as it is now")
    deny = actions.add_parser("deny", help="do not accept it any more")
    for action in (allow, deny):
        action.add_argument("file", nargs="?", default=NAME, metavar="PATH", help=f"default: {NAME} in this folder")


async def run(options: argparse.Namespace) -> int:
    if options.action in ("allow", "deny"):
        return _decide(options.file, is_allowed=options.action == "allow")
    return _show(options)


def _show(options: argparse.Namespace) -> int:
    from ..config import paths
    from ..config.load import load
    from ..config.machines import completed
    from ..config.show import show
    from .render import Page, print_json, write

    path: Path = options.config or paths.config_file()
    if options.action == "path":
        write(f"{path}\n")
        return 0
    shown = show(completed(load(options.config)))
    if options.json:
        print_json(shown)
    else:
        _print(Page(), shown, path)
    return 0


def _decide(path: str, *, is_allowed: bool) -> int:
    """Accept a project's file, or undo that. Raises ConfigError."""
    from ..config import paths, project_file
    from .verb import complain, say

    path = os.path.join(path, NAME) if os.path.isdir(path) else path
    if not is_allowed:
        known = project_file.withdraw(path, paths.state_folder())
        say(f"{path} is not accepted any more." if known else f"{path} was not accepted.")
        return 0
    project = project_file.find_project(path)
    if project is None:
        raise project_file.refusal(path)
    passed_over: list[str] = []
    settings = project.settings(passed_over.append)
    project_file.accept(project, paths.state_folder())
    say(f"Accepted as it is now: {project.path}", *(f"  {key} = {_text(value)}" for key, value in settings.items()))
    if not settings:
        say("  (it sets nothing)")
    complain(*passed_over)
    return 0


def _print(page: Page, shown: Mapping[str, Any], path: Path) -> None:
    from .render import shown_file, styled

    file = shown_file(path, is_read=shown["file"] != "none")
    page.rows([("config file", file), ("default", shown["default"] or "none")], 0)
    for machine in [*shown["machines"], *shown["sandboxes"]]:
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
