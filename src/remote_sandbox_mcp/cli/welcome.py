"""The page for a person who starts remote-sandbox-mcp by hand: what it is, what is configured, what to do next."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from .. import __version__
from ..config import paths
from ..config.load import load
from ..config.schema import Configuration
from ..core.resources.checkup import address
from ..local.waiting import within
from .render import COMMAND, Page, command_path, styled

MOST_SANDBOXES, MOST_PROBLEMS = 4, 2
EXAMPLE = '[{"host":"gpu1","user":"me"}]'
# How long the check of bubblewrap may delay the page.
LOCAL_S = 3.0


async def show(config: Path | None) -> int:
    configuration = load(config)
    page = Page()
    page.print(
        styled((f"{COMMAND} {__version__}", "bold"), (": your SSH machines, and a sandbox on this one,", "")),
        "for coding agents. It is an MCP server: your agent starts it and talks to it.",
    )
    page.heading("Sandboxes", _origin(configuration, str(config or paths.config_file())))
    page.rows([*_machines(configuration), *await _local(configuration)])
    page.problems(_some(configuration.problems))
    program = command_path()
    _show_agents(page, program)
    page.heading("Next")
    steps = [("doctor", "check each machine, step by step"), ("--help", "list sandboxes, run commands, ...")]
    setup = [] if configuration.machines else [("setup", "find your machines, and tell your clients")]
    for words, description in (*setup, *steps):
        line = styled((f"  {shlex.quote(program)} {words}", ""), (f"  {description}", "dim"))
        page.print(line, soft_wrap=True)
    return 0


def _origin(configuration: Configuration, file: str) -> str:
    if configuration.file:
        return f"from {configuration.file}"
    return "from the environment" if configuration.machines else f"name your machines in {file}"


def _machines(configuration: Configuration) -> Iterator[tuple[str, str, str]]:
    rows = [(it.name, "ssh", address(it.login.user, it.host, it.port)) for it in configuration.machines]
    rows += [(place.name, "command", place.shown) for place in configuration.commands]
    for name, kind, where in rows[:MOST_SANDBOXES]:
        yield _name(configuration, name), kind, where
    if len(rows) > MOST_SANDBOXES:
        yield f"and {len(rows) - MOST_SANDBOXES} more", "", ""


async def _local(configuration: Configuration) -> list[tuple[str, str, str]]:
    from ..backends.bubblewrap import local

    place = configuration.local
    if place is None:
        return []
    try:
        reason = await within(local.why_not(), LOCAL_S)
    except (asyncio.TimeoutError, TimeoutError):
        reason = "bubblewrap does not answer"
    how = f"not offered: {reason}" if reason else "isolated, on this machine"
    return [(_name(configuration, place.name), "local", how)]


def _name(configuration: Configuration, name: str) -> str:
    return f"{name} *" if name == configuration.default else name


def _some(problems: tuple[str, ...]) -> list[str]:
    more = len(problems) - MOST_PROBLEMS
    return [*problems[:MOST_PROBLEMS], *([f"and {more} more: {COMMAND} config show"] if more > 0 else [])]


def agent_lines(program: str) -> tuple[str, str]:
    """Return the commands to type for Claude Code, and for Codex."""
    word = shlex.quote(program)
    return f"claude mcp add remote-sandbox -- {word}", f"codex mcp add remote-sandbox -- {word}"


def _show_agents(page: Page, program: str) -> None:
    word, quoted = shlex.quote(program), json.dumps(program, ensure_ascii=False)
    page.heading("Add it to Claude Code, or to Codex")
    page.print(*(f"  {line}" for line in agent_lines(program)), soft_wrap=True)
    page.print(styled(("or, with machines of its own:", "dim")), "  claude mcp add remote-sandbox \\")
    page.print(f"  -e REMOTE_SANDBOX_LIST='{EXAMPLE}' -- {word}", soft_wrap=True)
    page.heading("Add it to Cursor, Claude Desktop and others", "in their mcp.json")
    page.print(f'  {{"mcpServers": {{"remote-sandbox": {{"command": {quoted}}}}}}}', soft_wrap=True)
