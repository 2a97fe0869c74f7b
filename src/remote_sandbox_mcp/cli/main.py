"""The remote-sandbox-mcp command: without a verb it serves MCP; each verb has a file of its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# What only verbs need is imported where they do: a server that is started has none.
if TYPE_CHECKING:
    import argparse

VERBS = ("doctor", "sandboxes", "exec", "push", "pull", "transfers", "watchdog", "hosts", "config")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; operator mistakes print a sentence (exit 2), defects print a stack (exit 1)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments and not sys.stdin.isatty():
        return _serve(None)
    options = parser().parse_args(arguments)
    if options.verb is None:
        return _welcome(options.config) if sys.stdin.isatty() else _serve(options.config)
    return _run_verb(options)


def parser() -> argparse.ArgumentParser:
    """All verbs and their options."""
    import argparse

    from .. import __version__

    top = argparse.ArgumentParser(
        prog="remote-sandbox-mcp",
        description="SSH machines and local sandboxes for coding agents: an MCP server on standard input and output.",
    )
    top.add_argument("--version", action="version", version=__version__)
    top.add_argument("--config", type=Path, metavar="FILE", help="a config.toml instead of the usual one")
    top.add_argument("--mode", choices=("stdio",), default="stdio", help="how to serve (default: stdio)")
    verbs = top.add_subparsers(dest="verb", metavar="VERB")
    for verb in VERBS:
        module = importlib.import_module(f".{verb}", __package__)
        module.add_arguments(verbs)
    return top


def _run_verb(options: argparse.Namespace) -> int:
    import asyncio

    from ..core.errors import SandboxError

    module = importlib.import_module(f".{options.verb}", __package__)
    try:
        return int(asyncio.run(module.run(options)))
    except SandboxError as problem:
        print(f"remote-sandbox-mcp: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _serve(config: Path | None) -> int:
    from . import serve

    return serve.run(config)


def _welcome(config: Path | None) -> int:
    import asyncio

    from .welcome import show

    return asyncio.run(show(config))
