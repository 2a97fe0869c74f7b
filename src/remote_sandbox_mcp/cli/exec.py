"""`exec`: runs one command in a sandbox, as ssh would, and ends with its exit code."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

if TYPE_CHECKING:
    from ..app import App, Report
    from ..core.command import Completed, Excerpt, Missing, Running
    from ..core.errors import SandboxError
    from ..core.progress import Beat

TIMED_OUT, NO_CONNECTION, MISTAKE = 124, 255, 2
# As much of each stream as one call can take; agents are given less.
MOST_CHARS, AGENT_CHARS = 1_000_000, 20_000
SPINNER_AFTER_S = 0.5
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "exec",
        help="run a command in a sandbox",
        usage="remote-sandbox-mcp exec [--sandbox NAME] [--cwd DIR] [--timeout S] [--json] [--] COMMAND...",
        description="Runs a command to its end and prints what it printed. One argument is shell source, several are "
        "the words of one command. Ends with the command's exit code, 124 after a timeout, 255 without a connection. "
        "Ctrl-C stops the command there. Its standard input is empty.",
    )
    parser.add_argument("--sandbox", metavar="NAME", default="", help="where (default: the default sandbox)")
    parser.add_argument("--cwd", metavar="DIR", default="", help="folder to start in (default: home)")
    parser.add_argument("--timeout", metavar="S", type=float, help="seconds after which it is ended (default: never)")
    parser.add_argument("--json", action="store_true", help="for programs: what exec_bash returns")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="shell source, or words")


async def run(options: argparse.Namespace) -> int:
    from ..app import compose
    from ..config.load import load
    from ..core.errors import ConnectError, LostContact, SandboxError, UnknownSandbox

    configuration = load(options.config)
    app = compose(configuration)
    try:
        return await _run(app, options)
    except SandboxError as problem:
        if isinstance(problem, UnknownSandbox):
            _complain(*configuration.problems)
        is_lost = isinstance(problem, ConnectError | LostContact)
        return _fail(problem, options.json, NO_CONNECTION if is_lost else MISTAKE)
    finally:
        await app.close()


def source(words: Sequence[str]) -> str:
    """One argument is shell source as it is; several are words, which the shell must not read again.

    >>> source(["ls | wc"]), source(["--", "echo", "a b"])
    ('ls | wc', "'echo' 'a b'")
    """
    from ..core.shell import join

    command = words[1:] if words[:1] == ["--"] else words
    return command[0] if len(command) == 1 else join(command)


async def _run(app: App, options: argparse.Namespace) -> int:
    from ..core.check import LONGEST_TIMEOUT_S

    spinner = Spinner()
    work = app.run(
        source(options.command),
        cwd=options.cwd,
        timeout_s=LONGEST_TIMEOUT_S if options.timeout is None else options.timeout,
        limit=AGENT_CHARS if options.json else MOST_CHARS,
        name=options.sandbox,
        progress=spinner.beat,
    )
    task = asyncio.ensure_future(work)
    async with stopped_by_signals(task) as caught, spinner.beside(task):
        try:
            report = await task
        except asyncio.CancelledError:
            if not caught:
                raise
            _complain("the command was told to stop")
            return 128 + caught[0]
    return _tell(report, options)


@contextlib.asynccontextmanager
async def stopped_by_signals(task: asyncio.Task[Any]) -> AsyncIterator[list[int]]:
    """Cancel the task, which stops the command at the far end; the signals that came are in the list."""
    loop, caught = asyncio.get_running_loop(), list[int]()

    def stop(number: int) -> None:
        caught.append(number)
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield caught
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


class Spinner:
    """Tells a person at a terminal that the command still runs, once that takes longer than a moment."""

    def __init__(self) -> None:
        self._update: Callable[[str], None] | None = None

    def beat(self, beat: Beat, /) -> None:
        if self._update:
            self._update(beat.line)

    @contextlib.asynccontextmanager
    async def beside(self, task: asyncio.Task[Any]) -> AsyncIterator[None]:
        if sys.stderr.isatty():
            await asyncio.wait((task,), timeout=SPINNER_AFTER_S)
        if task.done() or not sys.stderr.isatty():
            yield
            return
        with self._spinning():
            yield

    @contextlib.contextmanager
    def _spinning(self) -> Any:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            line = progress.add_task("running; Ctrl-C stops it", total=None)
            self._update = lambda text: progress.update(line, description=text[:60]) if text else None
            yield


def _tell(report: Report, options: argparse.Namespace) -> int:
    seen = report.seen
    if options.json:
        from ..mcp_server.results import exec_fields
        from .render import print_json

        print_json(exec_fields(report))
    else:
        pour(seen.stdout, sys.stdout)
        pour(seen.stderr, sys.stderr)
        _complain(*remarks(seen))
    return exit_code(seen)


def exit_code(seen: Completed | Running | Missing) -> int:
    from ..core.command import Completed, Ending

    if not isinstance(seen, Completed):
        return NO_CONNECTION
    return TIMED_OUT if seen.ending is Ending.TIMED_OUT else seen.exit_code


def remarks(seen: Completed | Running | Missing) -> list[str]:
    """What the exit code alone does not tell."""
    from ..core.command import Completed, Ending

    if not isinstance(seen, Completed):
        return []
    told = [f"the command was ended after {seen.seconds:.1f} s"] if seen.ending is Ending.TIMED_OUT else []
    if seen.survivors:
        told.append(f"could not be ended: {', '.join(f'pid {pid}' for pid in seen.survivors)}")
    return told


def pour(excerpt: Excerpt, stream: TextIO) -> None:
    """Bytes as they came into a pipe; on a terminal nothing that could take hold of it."""
    from ..core.output import harmless

    is_terminal = stream.isatty()
    out: BinaryIO = stream.buffer
    try:
        for part in pieces(excerpt):
            out.write(harmless(part).encode(stream.encoding or "utf-8", "replace") if is_terminal else part)
        out.flush()
    except BrokenPipeError:
        # Whoever reads has had enough; Python would flush once more when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def pieces(excerpt: Excerpt) -> list[bytes]:
    """All of it, or the beginning and the end with a note in between."""
    if not excerpt.omitted:
        return [excerpt.head + excerpt.tail]
    from ..core.output import KEPT_BYTES

    much = "all of it is" if excerpt.total <= KEPT_BYTES else f"the first {KEPT_BYTES} bytes are"
    where = f"; {much} in {excerpt.file} there" if excerpt.file else ""
    note = f"\n[... {excerpt.omitted} of {excerpt.total} bytes left out{where} ...]\n"
    return [excerpt.head, note.encode(), excerpt.tail]


def _fail(problem: SandboxError, as_json: bool, code: int) -> int:
    if as_json:
        from ..mcp_server.results import error_fields
        from .render import print_json

        print_json(error_fields(problem))
    else:
        _complain(str(problem))
    return code


def _complain(*sentences: str) -> None:
    from ..core.output import harmless

    for sentence in sentences:
        print(f"remote-sandbox-mcp: {harmless(sentence.encode('utf-8', 'replace'))}", file=sys.stderr)
