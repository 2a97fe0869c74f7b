"""`exec`: runs one command in a sandbox, streams its output, and ends with its exit code."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import stat
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, TextIO

from ..core.check import LONGEST_TIMEOUT_S
from ..core.commands.command import Completed, Ending, Excerpt, Missing, Running
from ..core.commands.shell import join
from ..core.texts.text import KEPT_BYTES, harmless, without_broken_end
from ..services.commands import Row
from ..views.results import exec_fields, exec_head, lean, sentence
from . import streams
from .render import console, one_line, print_json
from .syncing import until_stopped
from .verb import add_json, complain, with_app
from .workspaces import at_hand

if TYPE_CHECKING:
    from ..app import App
    from ..core.progress import Beat, StreamName
    from ..core.task import Report

TIMED_OUT, NO_CONNECTION, MISTAKE = 124, 255, 2
# A shell's exit code for a program whose reader closed the pipe.
CLOSED_PIPE = 128 + signal.SIGPIPE
# The maximum per stream; agents get less.
MOST_CHARS, AGENT_CHARS = 1_000_000, 20_000
SPINNER_AFTER_S = 0.5
# An incomplete line is held back this long, because an escape sequence may be split.
LINE_S = 0.3
LONGEST_LINE = 1 << 14
STOPPED = "the command was told to stop"


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "exec",
        usage="remote-sandbox-mcp exec [--sandbox NAME | --on NAME,NAME | --all] [--cwd DIR] [--timeout S] "
        "[-n] [--json] [--config FILE] [--] COMMAND...",
        description="Runs a command in a sandbox, waits for it and prints its output; where the machine has python3, "
        "as the command writes it (of each stream the first 2 MB, and the last at its end). One argument is shell "
        "source; several are the words of one command. Ends with the command's exit code, 124 after a timeout, 255 "
        "without a connection. Ctrl-C stops the command over there. A pipe or a redirected file becomes the command's "
        "standard input, unless you add -n; keys typed at a terminal do not (use shell for that). With --on or --all "
        "it runs on several sandboxes at once, without input; the output of each is printed after its name when that "
        "command has ended, and the exit code is 0 if all of them are 0, else 1. In a linked folder (see link) the "
        "command runs in the workspace: changes here are sent first, its results come back afterwards, and standard "
        "error says which files moved.",
    )
    where = parser.add_mutually_exclusive_group()
    usual = "where (default: the folder's workspace, else the default sandbox)"
    where.add_argument("--sandbox", metavar="NAME", default="", help=usual)
    where.add_argument("--on", metavar="NAME,NAME", help="run on these at once")
    where.add_argument("--all", action="store_true", help="run on all configured sandboxes at once")
    parser.add_argument("--cwd", metavar="DIR", default="", help="folder to start in (default: home, or the workspace)")
    parser.add_argument("--timeout", metavar="S", type=float, help="stop the command after S seconds (default: never)")
    parser.add_argument("-n", "--no-input", action="store_true", help="do not read standard input, as ssh -n does")
    add_json(parser, help="for programs: what exec_bash returns")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="shell source, or words")


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    if options.all or options.on is not None:
        work = _run_on_several(app, "all" if options.all else options.on.split(","), options)
        return await until_stopped(work, STOPPED)
    return await _run(app, options)


def source(words: Sequence[str]) -> str:
    """One argument is shell source as it is; several are words, which the shell must not read again."""
    command = words[1:] if words[:1] == ["--"] else words
    return command[0] if len(command) == 1 else join(command)


async def _run(app: App, options: argparse.Namespace) -> int:
    show = Show() if options.json else LiveShow()

    async def work() -> Report:
        if inside:
            await inside.send()
        report = await app.commands.run(
            inside.source(script, options.cwd) if inside else script,
            cwd=inside.start_folder(options.cwd) if inside else options.cwd,
            timeout_s=LONGEST_TIMEOUT_S if options.timeout is None else options.timeout,
            limit=AGENT_CHARS if options.json else MOST_CHARS,
            name=inside.sandbox if inside else options.sandbox,
            progress=show,
            input=_input(options),
        )
        if inside:
            await inside.bring()
        return report

    script, inside = source(options.command), at_hand(app, options.sandbox)
    task = asyncio.ensure_future(work())
    async with streams.stopped_by_signals(task) as caught, show.beside(task):
        try:
            report = await task
        except asyncio.CancelledError:
            if not caught and not show.unwritten:
                raise
            if not caught:
                return _unwritten(show.unwritten)
            complain(STOPPED)
            return 128 + caught[0]
    return await show.print_report(report, inside.moved.line() if inside else "")


def _input(options: argparse.Namespace) -> bytes | AsyncIterable[bytes]:
    """Standard input for the command: what is piped or redirected, but not a terminal or /dev/null."""
    given = streams.stdin()
    if options.no_input or given is None or given.isatty():
        return b""
    is_device = stat.S_ISCHR(os.fstat(given.fileno()).st_mode)
    return b"" if is_device else streams.given_bytes()


async def _run_on_several(app: App, names: list[str] | Literal["all"], options: argparse.Namespace) -> int:
    rows = await app.commands.run_on_each(
        await app.commands.several(names),
        source(options.command),
        cwd=options.cwd,
        timeout_s=LONGEST_TIMEOUT_S if options.timeout is None else options.timeout,
        limit=AGENT_CHARS if options.json else MOST_CHARS,
        ended=(lambda row: None) if options.json else _print_row,
    )
    if options.json:
        from ..views.exec_results import row_fields

        print_json({"results": [row_fields(row) for row in rows]})
    return 0 if all(row.is_good for row in rows) else 1


def _print_row(row: Row) -> None:
    from .render import write

    # Several outputs in one stream are for people: no machine may write over what another one printed.
    head = exec_head(row.report) if row.report else sentence(row.problem or "")
    parts = pieces(row.report.seen.stdout) + pieces(row.report.seen.stderr) if row.report else []
    printed = harmless(b"".join(parts))
    write(f"{row.name}: {head}\n{printed}" + ("\n" if printed and not printed.endswith("\n") else ""))


def _unwritten(problem: OSError | None) -> int:
    """Exit code after a failed write: a reader that closed the pipe has seen enough, which is no error."""
    if problem is None or isinstance(problem, BrokenPipeError):
        return CLOSED_PIPE
    complain(f"its output cannot be written here ({problem.strerror}), so it does not run any more")
    return MISTAKE


class Show:
    """Output for programs: the result as JSON at the end. On a terminal, a spinner shows that it still runs."""

    def __init__(self) -> None:
        # Why output cannot be written any more.
        self.unwritten: OSError | None = None
        self._update: Callable[[str], None] | None = None
        self._spinner = contextlib.ExitStack()
        self._has_output = False

    def __call__(self, beat: Beat, /) -> None:
        if self._update and beat.line:
            self._update(beat.line[:60])

    @contextlib.asynccontextmanager
    async def beside(self, task: asyncio.Task[Any]) -> AsyncIterator[None]:
        """A spinner while the task runs, once that takes longer than a moment."""
        if streams.stderr().isatty():
            await asyncio.wait((task,), timeout=SPINNER_AFTER_S)
        if not (task.done() or self._has_output) and streams.stderr().isatty():
            self._spin()
        with self._spinner:
            yield

    def _spin(self) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        shown = console(streams.stderr(), streams.width())
        progress = self._spinner.enter_context(
            Progress(*columns, console=shown, transient=True, redirect_stdout=False, redirect_stderr=False)
        )
        line = progress.add_task("running; Ctrl-C stops it", total=None)
        self._update = lambda text: progress.update(line, description=text)

    async def print_report(self, report: Report, moved: str) -> int:
        """Tell the result, and what moved in its workspace; returns the exit code."""
        print_json(exec_fields(report) | lean(workspace=one_line(moved)))
        return exit_code(report.seen)


class LiveShow(Show):
    """Output for people, as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self._outflow: Outflow | None = None

    @contextlib.asynccontextmanager
    async def beside(self, task: asyncio.Task[Any]) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def give_up(problem: OSError) -> None:
            self.unwritten = problem
            # Called in the writer's thread; the loop may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

        self._outflow = Outflow(give_up)
        try:
            async with super().beside(task):
                yield
        finally:
            # After a success `tell` does this, when it has added the rest of the output.
            if task.cancelled() or (task.done() and task.exception()):
                await asyncio.to_thread(self._outflow.finish)

    def heard(self, stream: StreamName, data: bytes) -> None:
        # Spinner and output would mix on the terminal.
        self._has_output = True
        self._spinner.close()
        self._update = None
        if self._outflow:
            self._outflow.add(stream, data)

    async def print_report(self, report: Report, moved: str) -> int:
        if self._outflow:
            self._outflow.complete(report.seen)
            await asyncio.to_thread(self._outflow.finish)
        complain(*remarks(report.seen), *([f"workspace: {one_line(moved)}"] if moved else []))
        # The pipe may have closed before all output was written.
        return _unwritten(self.unwritten) if self.unwritten else exit_code(report.seen)


def exit_code(seen: Completed | Running | Missing) -> int:
    if not isinstance(seen, Completed):
        return NO_CONNECTION
    return TIMED_OUT if seen.ending is Ending.TIMED_OUT else seen.exit_code


def remarks(seen: Completed | Running | Missing) -> list[str]:
    """Describe in sentences what the exit code alone does not show."""
    if not isinstance(seen, Completed):
        return []
    notes = [f"the command was ended after {seen.seconds:.1f} s"] if seen.ending is Ending.TIMED_OUT else []
    if seen.survivors:
        notes.append(f"could not be ended: {', '.join(f'pid {pid}' for pid in seen.survivors)}")
    return notes


class Outflow:
    """Writes in its own thread, so that a slow reader does not block the connection."""

    def __init__(self, on_failure: Callable[[OSError], None]) -> None:
        self._sinks = {
            "stdout": OutputSink(streams.stdout(), on_failure),
            "stderr": OutputSink(streams.stderr(), lambda _: None),
        }
        self._shown = streams.stderr()
        self._queue: SimpleQueue[tuple[OutputSink, bytes] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def add(self, stream: StreamName, data: bytes) -> None:
        sink = self._sinks[stream]
        sink.taken += len(data)
        self._queue.put((sink, data))

    def complete(self, seen: Completed | Running | Missing) -> None:
        """Add what did not arrive before the end."""
        for sink, excerpt in ((self._sinks["stdout"], seen.stdout), (self._sinks["stderr"], seen.stderr)):
            for part in pieces(excerpt, sink.taken):
                self._queue.put((sink, part))

    def finish(self) -> None:
        """Wait until everything is written."""
        self._queue.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=LINE_S)
            except Empty:
                self._flush()
                continue
            if item is None:
                return self._flush()
            if isinstance(self._shown, streams.QueuedOutput):
                # The spinner has to be gone from the terminal first.
                self._shown.settle()
            item[0].write(item[1])

    def _flush(self) -> None:
        for sink in self._sinks.values():
            sink.flush()


class OutputSink:
    """One of our output streams: bytes as they are into a pipe; on a terminal without control sequences."""

    def __init__(self, stream: TextIO | None, on_failure: Callable[[OSError], None]) -> None:
        self.taken = 0
        # Python has no stream object where the descriptor was closed before the start.
        self._is_open = stream is not None
        self._fd = stream.fileno() if stream else -1
        self._encoding = (stream.encoding if stream else "") or "utf-8"
        self._is_terminal = stream is not None and stream.isatty()
        self._on_failure = on_failure
        self._held = b""

    def write(self, data: bytes) -> None:
        if not self._is_terminal:
            return self._send(data)
        # Whole lines, because a control sequence may be split between two pieces.
        whole, end, self._held = (self._held + data).rpartition(b"\n")
        self._show(whole + end)
        if len(self._held) > LONGEST_LINE:
            self.flush()

    def flush(self) -> None:
        """Show an incomplete last line, too, but not half a character."""
        whole = without_broken_end(self._held)
        self._held = self._held[len(whole) :]
        self._show(whole)

    def _show(self, data: bytes) -> None:
        if data:
            self._send(harmless(data).encode(self._encoding, "replace"))

    def _send(self, data: bytes) -> None:
        try:
            if self._is_open:
                streams.write_all(self._fd, data)
        except OSError as problem:
            self._is_open = False
            self._on_failure(problem)


def pieces(excerpt: Excerpt, taken: int = 0) -> list[bytes]:
    """Return the output after the first `taken` bytes; or head and tail with a note in between."""
    if not excerpt.omitted:
        return [(excerpt.head + excerpt.tail)[taken:]]
    much = "all of it is" if excerpt.total <= KEPT_BYTES else f"the first {KEPT_BYTES} bytes are"
    where = f"; {much} in {excerpt.file} there" if excerpt.file else ""
    note = f"\n[... {excerpt.omitted} of {excerpt.total} bytes left out{where} ...]\n"
    return [excerpt.head[taken:], note.encode(), excerpt.tail]
