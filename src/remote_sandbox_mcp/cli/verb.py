"""What verbs on sandboxes share: the app while it is needed, and failures as a sentence with an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..app import App
    from ..core.errors import SandboxError

NO_CONNECTION, MISTAKE = 255, 2


async def with_app(options: argparse.Namespace, work: Callable[[App], Awaitable[int]]) -> int:
    """The exit code of the work, or of its failure."""
    from ..app import compose
    from ..config.load import load
    from ..core.errors import ConnectError, LostContact, SandboxError, UnknownSandbox

    configuration = load(options.config)
    app = compose(configuration)
    try:
        return await work(app)
    except SandboxError as problem:
        if isinstance(problem, UnknownSandbox):
            complain(*configuration.problems)
        is_lost = isinstance(problem, ConnectError | LostContact)
        return fail(problem, options.json, NO_CONNECTION if is_lost else MISTAKE)
    finally:
        await app.close()


def fail(problem: SandboxError, as_json: bool, code: int) -> int:
    if as_json:
        from ..mcp_server.results import error_fields
        from .render import print_json

        print_json(error_fields(problem))
    else:
        complain(str(problem))
    return code


def say(*lines: str) -> None:
    """To standard output, whatever its encoding lacks."""
    from .render import write

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    write("".join(f"{line}\n" for line in lines))


def complain(*sentences: str) -> None:
    from ..core.output import harmless

    for sentence in sentences:
        text = harmless(sentence.encode("utf-8", "surrogateescape"))
        print(f"remote-sandbox-mcp: {text}", file=sys.stderr)
