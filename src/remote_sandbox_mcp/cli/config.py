"""`config`: what is configured and where it came from, with every secret hidden; accepting a project's file."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import accepted, paths, project_file, services, workspace_file
from ..config.accepted import acceptance, whole
from ..config.load import load
from ..config.machines import completed
from ..config.problems import plain
from ..config.project_file import ProjectFile
from ..config.show import show
from ..config.workspace_file import NAME, Brought, accepted_file
from ..core.errors import BadArgument, ConfigError
from ..core.texts.text import visible
from .render import Page, one_line, print_json, shown_file, styled
from .verb import add_json, complain, complain_plainly, say

# Bytes of a project's file that are shown: all of a .remote-sandbox.toml.
MOST_SHOWN = 64 << 10
# Characters of one setting: an invisible one is shown as ten.
MOST_REPORTED = 10 * MOST_SHOWN


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "config",
        description="Shows the configuration and where it comes from, and accepts the file of a project. Without an "
        "action, shows the configuration.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    show = actions.add_parser("show", help="everything that is configured; secrets are hidden")
    where = actions.add_parser("path", help="print the configuration file's path, whether or not the file exists")
    allow = actions.add_parser(
        "allow", help="show the config.json or .remote-sandbox.toml of a project, ask, and accept it as shown"
    )
    deny = actions.add_parser("deny", help="stop accepting the file of a project")
    for action in (allow, deny):
        action.add_argument(
            "file", nargs="?", default=".", metavar="PATH", help="a file or a folder; default: this one"
        )
    allow.add_argument("--yes", action="store_true", help="do not ask; review the file first")
    add_json(parser, show, where, allow, deny)


async def run(options: argparse.Namespace) -> int:
    if options.action == "allow":
        return await _allow(options)
    if options.action == "deny":
        return _deny(options.file, options.json)
    return _show(options)


def _show(options: argparse.Namespace) -> int:
    path: Path = options.config or paths.config_file()
    if options.action == "path":
        print_json({"path": str(path)}) if options.json else say(str(path))
        return 0
    shown = show(completed(load(options.config))) | {"workspace_file": _workspace_file()}
    if options.json:
        print_json(shown)
    else:
        _print(Page(), shown, path)
    return 0


async def _allow(options: argparse.Namespace) -> int:
    """Accept what a project brings. Raises ConfigError, BadArgument."""
    accepted = [await _accept(file, options) for file in _files(options.file)]
    if options.json:
        print_json({"accepted": accepted})
    return 0


def _deny(path: str, as_json: bool) -> int:
    """Do not accept it any more. Raises ConfigError."""
    withdrawn = {file: accepted.withdraw(file, paths.state_folder()) for file in _files(path)}
    if as_json:
        print_json({"denied": [{"path": file, "was_accepted": bool(was)} for file, was in withdrawn.items()]})
    else:
        ends = {True: "is not accepted any more", False: "was not accepted"}
        say(*(f"{one_line(file)} {ends[bool(was)]}." for file, was in withdrawn.items()))
    return 0


def _files(path: str) -> list[str]:
    """The files that are meant: of a folder, those that are for us or were accepted."""
    if not os.path.isdir(path):
        return [path]
    own, brought = (os.path.normpath(os.path.join(path, name)) for name in (services.NAME, workspace_file.NAME))
    is_meant = {own: project_file.find_project(own) is not None, brought: os.path.lexists(brought)}
    return [file for file in is_meant if is_meant[file] or acceptance(whole(file))] or [own]


async def _accept(path: str, options: argparse.Namespace) -> dict[str, Any]:
    """Show one file, ask, and accept exactly what was shown; returns what it sets."""
    found = _found(path)
    passed_over: list[str] = []
    settings = found.settings(passed_over.append)
    # What a file says must not look like something else on a terminal.
    shown = {key: plain(_text(value), MOST_REPORTED) for key, value in settings.items()}
    if not options.json:
        _show_brought(found, shown, passed_over)
    if not options.yes:
        await _agree(options)
    if _found(path) != found:
        raise ConfigError(
            f"{one_line(found.path)} has changed since it was shown, so it is not accepted; run this again"
        )
    accepted.accept(found.path, found.acceptance, paths.state_folder())
    if not options.json:
        say(f"Accepted as it is now: {one_line(found.path)}")
    return {"path": found.path, "settings": shown, "problems": passed_over}


def _show_brought(found: ProjectFile | Brought, shown: Mapping[str, str], passed_over: Sequence[str]) -> None:
    """For the person who is asked; each line of the file has a mark, so that none can be taken for one of ours."""
    raw = found.content if isinstance(found.content, bytes) else found.content.encode()
    lines = visible(raw[:MOST_SHOWN].decode("utf-8", "replace")).splitlines()
    rest = [f"  ({len(raw) - MOST_SHOWN} more bytes are not shown)"] if len(raw) > MOST_SHOWN else []
    counts = [f"  {key} = {value}" for key, value in shown.items()] or ["  nothing"]
    complain_plainly(f"{found.path}:", *(f"  | {line}" for line in lines), *rest, "What counts of it:", *counts)
    complain(*passed_over)


async def _agree(options: argparse.Namespace) -> None:
    """Raises BadArgument without a yes."""
    from .syncing import asked

    if options.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadArgument(
            "it is not accepted, because there is no terminal to ask at; look at the file, then add --yes"
        )
    if not await asked("Accept it as it is now? [y/N] "):
        raise BadArgument("it is not accepted")


def _found(path: str) -> ProjectFile | Brought:
    """Raises ConfigError where there is nothing to accept."""
    if os.path.basename(path) == workspace_file.NAME:
        if brought := workspace_file.find(path):
            return brought
        raise workspace_file.refusal(path)
    if project := project_file.find_project(path):
        return project
    raise project_file.refusal(path)


def _workspace_file() -> dict[str, Any] | None:
    """Show the accepted settings of the project in the current folder."""
    folder = os.path.realpath(".")
    found = accepted_file(folder)
    if found is None:
        return None
    said = {key: value for key, value in dataclasses.asdict(found).items() if value not in ("", (), None)}
    return {"path": os.path.join(folder, NAME), **said}


def _print(page: Page, shown: Mapping[str, Any], path: Path) -> None:
    file = shown_file(path, is_read=shown["file"] != "none")
    page.rows([("config file", file), ("default", shown["default"] or "none")], 0)
    parts = [(it, it["name"], f"from {it['source']}") for it in (*shown["machines"], *shown["sandboxes"])]
    if local := shown["local"]:
        parts.append((local, local["name"], "the embedded sandbox on this machine"))
    if found := shown["workspace_file"]:
        parts.append((found, ".remote-sandbox.toml", f"accepted, from {found['path']}"))
    for values, name, origin in parts:
        page.heading(name, origin)
        told = {key: value for key, value in values.items() if key not in ("name", "source", "path")}
        page.rows((key, _text(value)) for key, value in told.items())
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
    if isinstance(value, list | tuple):
        return "; ".join(_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
