"""What verbs share: the app, errors as sentences with exit codes, common options, hints for typos."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Awaitable, Callable, Iterable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ..app import App
    from ..core.errors import SandboxError


NO_CONNECTION, MISTAKE = 255, 2


async def with_app(options: argparse.Namespace, work: Callable[[App], Awaitable[int]]) -> int:
    """Run the work with an app; returns its exit code, or that of its failure."""
    from ..app import compose
    from ..config.load import load
    from ..core.errors import SandboxError, UnknownSandbox

    configuration = load(options.config)
    app = compose(configuration)
    try:
        return await work(app)
    except SandboxError as problem:
        # A sandbox may be unknown because of a mistake in the configuration.
        if isinstance(problem, UnknownSandbox):
            complain(*configuration.problems)
        return fail(problem, options.json, code_of(problem))
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
    """Print to standard output, made harmless, even if its encoding lacks characters."""
    from ..core.text import harmless
    from .render import write

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    write("".join(f"{harmless(line.encode('utf-8', 'surrogateescape'))}\n" for line in lines))


def complain(*sentences: str) -> None:
    from ..core.text import harmless

    # A sentence may quote a machine, which must not send control sequences to the user's terminal.
    for sentence in sentences:
        text = harmless(sentence.encode("utf-8", "surrogateescape"))
        print(f"remote-sandbox-mcp: {text}", file=sys.stderr)


def complain_plainly(*lines: str) -> None:
    """For a person, beside the question on standard error."""
    from .render import one_line

    print(*map(one_line, lines), sep="\n", file=sys.stderr)


def code_of(problem: SandboxError) -> int:
    """The exit code of a failure: a machine that cannot be reached, or something that was asked wrongly."""
    from ..core.errors import ConnectError, LostContact

    return NO_CONNECTION if isinstance(problem, ConnectError | LostContact) else MISTAKE


class Parser(argparse.ArgumentParser):
    """Accepts --config before and after each verb; parsers of subcommands do, too."""

    # Whether mistakes are told to a program. Parsers of verbs are made by argparse, so it holds for all.
    as_json = False

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        # A subparser must not overwrite a value that was given before the verb with its default.
        told = "a config.toml (or config.json) instead of the usual"
        self.add_argument("--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help=told)

    def error(self, message: str) -> NoReturn:
        if not self.as_json:
            super().error(message)
        from ..core.errors import BadArgument

        sys.exit(fail(BadArgument(message), True, MISTAKE))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, no_choice(str(value), action.choices))


def no_choice(word: str, choices: Iterable[str]) -> str:
    """
    >>> no_choice("exce", ["exec", "push"])
    "there is no 'exce'; did you mean exec? There are: exec, push"
    """
    known = [*choices]
    near = difflib.get_close_matches(word, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no {word[:80]!r}; {hint}There are: {', '.join(known)}"


def add_json(*parsers: argparse.ArgumentParser, help: str = "for programs") -> None:
    """Add the option --json, valid before and after the verb: see Parser."""
    for parser in parsers:
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=help)
