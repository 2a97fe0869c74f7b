"""Helpers of the verbs: the app, errors as sentences with exit codes, common options, hints for typos."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..config.load import load
from ..core.errors import BadArgument, ConnectError, LostContact, SandboxError, UnknownSandbox
from ..core.texts.text import harmless
from . import streams
from .render import one_line, print_json, write
from .words import as_verbs

if TYPE_CHECKING:
    from ..app import App

    AppWork = Callable[[App, argparse.Namespace], Coroutine[Any, Any, int]]

NO_CONNECTION, MISTAKE = 255, 2


def with_app(work: AppWork) -> Callable[[argparse.Namespace], Coroutine[Any, Any, int]]:
    """The `run` of a verb that works with an app; it returns the exit code of the work, or that of its failure."""

    async def run(options: argparse.Namespace) -> int:
        async with opened_app(options.config) as app:
            try:
                return await work(app, options)
            except SandboxError as problem:
                # A sandbox may be unknown because of a mistake in the configuration.
                if isinstance(problem, UnknownSandbox):
                    complain(*app.problems)
                return fail(problem, options.json, code_of(problem))

    return run


@asynccontextmanager
async def opened_app(config: Path | None) -> AsyncIterator[App]:
    """The app of the hub that carries out the verb, or else one for this verb alone."""
    if shared := streams.caller().app:
        yield shared
        return
    from ..app import compose

    app = compose(load(config))
    try:
        yield app
    finally:
        await app.close()


def fail(problem: SandboxError, as_json: bool, code: int) -> int:
    if as_json:
        from ..views.results import error_fields

        fields = error_fields(problem)
        print_json(fields | {"error": as_verbs(fields["error"])})
    else:
        complain(str(problem))
    return code


def say(*lines: str) -> None:
    """Print to standard output, made harmless, even if its encoding lacks characters."""
    if isinstance(out := streams.stdout(), TextIOWrapper):
        out.reconfigure(errors="replace")
    write("".join(f"{harmless(line.encode('utf-8', 'surrogateescape'))}\n" for line in lines))


def complain(*sentences: str) -> None:
    # A sentence may quote a machine, which must not send control sequences to the user's terminal.
    for sentence in sentences:
        text = harmless(as_verbs(sentence).encode("utf-8", "surrogateescape"))
        _write_error(f"remote-sandbox-mcp: {text}\n")


def complain_plainly(*lines: str) -> None:
    """For a person, beside the question on standard error."""
    _write_error("".join(f"{one_line(line)}\n" for line in lines))


def _write_error(text: str) -> None:
    # Python has no stream object where the descriptor was closed before the start; and its reader may be gone.
    with suppress(AttributeError, BrokenPipeError):
        streams.stderr().write(text)
        streams.stderr().flush()


async def for_each(
    names: Iterable[str], work: Callable[[str], Awaitable[dict[str, str]]], key: str, done: str, as_json: bool
) -> int:
    """Do something to each; where one fails, the others still are done. Prints what came of it, and returns the code.

    The work returns fields of what it did; `key` names the one that was given, `done` says what was done.
    """
    ended, problems, code = [], [], 0
    for name in names:
        try:
            ended.append(await work(name) | {"status": done})
        except SandboxError as problem:
            problems.append({key: name, "error": as_verbs(str(problem)), "code": problem.code})
            code = code or code_of(problem)
    if as_json:
        print_json({done: ended} | ({"problems": problems} if problems else {}))
        return code
    say(*(f"{it[key]}{f' on {place}' if (place := it.get('sandbox')) else ''} is {done}" for it in ended))
    complain(*(it["error"] for it in problems))
    return code


def code_of(problem: SandboxError) -> int:
    """The exit code of a failure: a machine that cannot be reached, or something that was asked wrongly."""
    return NO_CONNECTION if isinstance(problem, ConnectError | LostContact) else MISTAKE


class Parser(argparse.ArgumentParser):
    """Accepts --config before and after each verb; parsers of subcommands do, too."""

    # Whether mistakes are told to a program. Parsers of verbs are made by argparse, so it holds for all.
    as_json = False

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        # A subparser must not overwrite a value that was given before the verb with its default.
        help_text = "a config.toml (or config.json) instead of the usual"
        self.add_argument("--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help=help_text)

    def error(self, message: str) -> NoReturn:
        if not self.as_json:
            super().error(message)
        sys.exit(fail(BadArgument(message), True, MISTAKE))

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            target = streams.stderr() if file is None or file is sys.stderr else streams.stdout()
            target.write(message)
            target.flush()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, no_choice(str(value), action.choices))


def no_choice(word: str, choices: Iterable[str]) -> str:
    """Sentence for a word that is none of the choices, with the one that was probably meant."""
    names = [*choices]
    near = difflib.get_close_matches(word, names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no {word[:80]!r}; {hint}There are: {', '.join(names)}"


def add_json(*parsers: argparse.ArgumentParser, help: str = "for programs") -> None:
    """Add the option --json, valid before and after the verb: see Parser."""
    for parser in parsers:
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=help)
