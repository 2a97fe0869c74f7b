"""`jobs`: work in the background on any machine: start it, list, logs, wait, stop, resume, attach."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.errors import BadArgument, NotStarted, Unsupported
from ..core.jobs.alerts import with_run_for
from ..core.jobs.curves import progress_of
from ..core.jobs.job import Checkpoint, JobSeen, JobUsage, JobWait
from ..core.jobs.log import exit_line_size, without_exit_line
from ..core.jobs.placement import place_of, read_request
from ..core.jobs.queue import pending_text, queue_text
from ..core.jobs.watch import Watch, WatchOrder
from ..core.task import LIVE, Report, TaskSeen, TaskState, name_of, outcome_of
from ..core.texts.text import harmless, size, span, without_broken_end, without_broken_start
from ..services.jobs.values import Begun, JobSnapshot, Wanted, Which
from ..services.jobs.watches import NO_RESUME_COMMAND
from ..views.job_results import begun_fields, seen_fields, session_fields, snapshot_fields, state_text, task_result
from . import attach, terminal
from .exec import source
from .render import COMMAND, Page, ago, cut, is_read, one_line, print_json, styled, write
from .verb import add_json, complain, say, with_app
from .workspaces import at_hand

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App
    from ..core.commands.session_handle import SessionSeen
    from ..core.jobs.curves import JobMetrics
    from ..services.workspaces.service import WorkspaceCall

# Exit codes of `wait`: of a job whose end is not known, and of a wait that reached its time limit.
UNKNOWN_END, TIMED_OUT = 1, 124
LISTED, LOGGED = 50, 50
# One look at the log of a job that is followed, and the longest that one question waits.
CHECK_S, ASK_S = 0.5, 30.0
# The most that one look brings of a log.
MOST_BYTES = 1 << 20
STYLES = {
    **{"running": "cyan", "pending": "yellow", "idle": "cyan", "succeeded": "green", "stopped": "yellow"},
    **{"failed": "red", "interrupted": "red", "unknown": "red"},
}
# Words of the list for programs, which are taken beside those of the outcome.
STATES = (*STYLES, "ended", "gone")
# Where the command of a listed job gets less than this, names beside it are cut to these lengths.
LEAST_COMMAND, LONGEST_NAME, LONGEST_PLACE = 28, 16, 10
# Of a card: lines of the log, and the width of the bar of progress.
CARD_LINES, BAR = 10, 20
# What the event of a resume says of who asked for it.
ASKED_BY = "the command line"
ABSENT = argparse.SUPPRESS


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "jobs",
        description="Background jobs that you or agents have started. They go on when the connection is cut or this "
        "computer sleeps. Without an action, lists them, and also commands that outlasted their call (run-...) and "
        "sessions (shell:...). NAME is a name from that list.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listed = actions.add_parser("list", help="list all jobs, newest first")
    for each in (parser, listed):
        each.add_argument("--state", choices=STATES, default=ABSENT, metavar="STATE", help=", ".join(STATES))
        each.add_argument("--limit", type=int, default=ABSENT, metavar="N", help=f"rows (default: {LISTED})")
    start = actions.add_parser(
        "start",
        help="start a job and print its name",
        description="Starts a job and prints its name. In a linked folder (see link) it runs in the workspace: changes "
        "here are sent first, and `jobs wait` in that folder brings its results back.",
        usage="remote-sandbox-mcp jobs start [--sandbox NAME] [--name NAME] [--cwd DIR] [--checkpoint PATH] "
        "[--resume COMMAND [--auto-resume]] [--gpus N [--gpu-memory SIZE] [--no-wait]] [--on NAMES] [--after NAME] "
        "[--priority N] [--run-for TIME] [--] COMMAND...",
    )
    start.add_argument("--gpus", type=int, default=0, metavar="N", help="free GPUs that it gets for itself")
    start.add_argument("--gpu-memory", default="", metavar="SIZE", help="memory that each of them must have, as 40g")
    start.add_argument("--on", default="", metavar="NAMES", help="any, or gpu1,gpu2: the best of these machines")
    start.add_argument(
        "--no-wait", action="store_true", help="fail where no GPUs are free, instead of waiting for them"
    )
    start.add_argument(
        "--after", action="append", default=[], metavar="NAME", help="a job that must succeed first; may be repeated"
    )
    start.add_argument("--priority", type=int, default=0, metavar="N", help="jobs that wait start in this order")
    start.add_argument("--name", default="", metavar="NAME", help="name of the job and its session (default: bg-...)")
    start.add_argument("--cwd", default="", metavar="DIR", help="folder to start in (default: home, or the workspace)")
    start.add_argument("--checkpoint", default="", metavar="PATH", help="a file that shows its progress")
    start.add_argument("--resume", default="", metavar="COMMAND", help="the command that continues from the checkpoint")
    start.add_argument("--auto-resume", action="store_true", help="run it by itself after a reboot or a lost session")
    for name, what in (
        ("silent", "report that it has printed nothing for so long, such as 30m"),
        ("gpu-idle", "report that it has held GPUs without using them for so long (default: 30m)"),
        ("run-for", "how long it is to run, such as 8h: others see it, and its end is reported a little before"),
    ):
        start.add_argument(f"--{name}", metavar="SPAN", help=what)
    start.add_argument("--stop", action="store_true", help="with --run-for: stop it then")
    start.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="shell source, or words")
    show = actions.add_parser("show", help="show a job's state, progress and use of the machine")
    logs = actions.add_parser("logs", help="show a job's log")
    logs.add_argument(
        "-n", "--lines", type=int, default=LOGGED, metavar="N", help=f"how many lines (default: {LOGGED})"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="follow the log until the job ends, or Ctrl-C")
    wait = actions.add_parser(
        "wait", help="wait until a job ends; ends with its exit code, or with 124 after a timeout"
    )
    wait.add_argument("--timeout", type=float, metavar="S", help="seconds (default: as long as it takes)")
    stop = actions.add_parser("stop", help="stop a job and everything that it started")
    resume = actions.add_parser("resume", help="run the resume command of a job that was interrupted or has ended")
    resume.add_argument("--command", default="", metavar="COMMAND", help="the resume command, for a job without one")
    attach = actions.add_parser(
        "attach",
        help="open a job's tmux session in this terminal; detach with tmux's own key (Ctrl-B D)",
        description="Shows a running job in this terminal, as `tmux attach` on its machine would, whatever way leads "
        "to the machine. Detach with Ctrl-B D; the job goes on. As with ssh, output reaches this terminal unchanged.",
    )
    ahead = actions.add_parser("raise", help="let a job that waits for GPUs start before others")
    ahead.add_argument("--priority", type=int, metavar="N", help="its priority (default: above all others)")
    for each in (show, logs, wait, stop, resume, attach, ahead):
        each.add_argument("name", metavar="NAME")
    for each in (parser, listed, start, show, logs, wait, stop, resume, attach, ahead):
        each.add_argument("--sandbox", metavar="NAME", default=ABSENT, help="on this machine only")
    # Given before the action or after it: an action's own default would overwrite what was given before.
    parser.set_defaults(sandbox="", state="", limit=LISTED)
    add_json(parser, listed, start, show, wait, stop, resume, attach, ahead)
    add_json(logs, help="for programs: one JSON object, with -f one on each line")


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    actions = {
        **{"list": _list, "start": _start, "show": _show, "logs": _logs, "wait": _wait_and_bring, "stop": _stop},
        **{"resume": _resume, "attach": _attach, "raise": _raise},
    }
    return await actions[options.action or "list"](app, options)


async def _wait_and_bring(app: App, options: argparse.Namespace) -> int:
    """Wait; in a linked folder, bring back what an ended job has made."""
    code = await _wait(app, options)
    inside = at_hand(app, options.sandbox) if code != TIMED_OUT else None
    if inside:
        await inside.bring()
        complain(*_moved(inside))
    return code


def _which(options: argparse.Namespace) -> Which:
    return Which(session=options.name, sandbox=options.sandbox)


# The list


async def _list(app: App, options: argparse.Namespace) -> int:
    snapshots, sessions = await app.tasks.list(sandbox=options.sandbox, state=options.state, limit=options.limit)
    if options.json:
        print_json({"tasks": [*map(snapshot_fields, snapshots), *map(session_fields, sessions)]})
        return 0
    page = Page()
    if not snapshots and not sessions:
        page.print("No jobs; remote-sandbox-mcp jobs start -- COMMAND begins one.")
        return 0
    rows = _fitted([*map(_row, snapshots), *map(_session_row, sessions)], page.console.width)
    page.table(("name", "on", "state", "for", "command"), rows)
    for snapshot in snapshots:
        if snapshot.outcome.resume:
            page.print(f"{one_line(snapshot.session)}: {snapshot.outcome.resume_text(time.time())}")
        elif snapshot.seen and snapshot.seen.is_unplaced and not snapshot.seen.is_over:
            page.print(f"{one_line(snapshot.session)}: {state_text(snapshot.seen)}")
    troubles = (*(snapshot.trouble for snapshot in snapshots), *(session.trouble for session in sessions))
    page.problems(dict.fromkeys(filter(None, troubles)))
    return 0


def _row(snapshot: JobSnapshot) -> tuple[Text | str, ...]:
    seen, record = snapshot.seen, snapshot.record
    command = one_line(seen.command if seen and seen.command else record.command if record else "")
    ran = ago(seen.seconds) if seen and seen.seconds else ago(time.time() - snapshot.began) if snapshot.began else ""
    state = styled((snapshot.outcome.short, STYLES[snapshot.outcome.state.value]))
    return one_line(snapshot.session), snapshot.sandbox, state, ran, command


def _fitted(rows: list[tuple[Text | str, ...]], width: int) -> list[tuple[Text | str, ...]]:
    """Rows on one line each: names give way first, and the last column is cut between words."""
    from rich.cells import cell_len

    def room() -> int:
        others = [max((cell_len(str(row[at])) for row in rows), default=0) for at in range(4)]
        return width - sum(max(size, 5) for size in others) - 2 * len(others)

    for at, longest in ((0, LONGEST_NAME), (1, LONGEST_PLACE)):
        if room() < LEAST_COMMAND:
            rows = [(*row[:at], cut(str(row[at]), longest), *row[at + 1 :]) for row in rows]
    left = max(LONGEST_NAME, room())
    return [(*row[:4], cut(str(row[4]), left)) for row in rows]


def _session_row(seen: SessionSeen) -> tuple[Text | str, ...]:
    used = f"used {ago(time.time() - seen.used)} ago" if seen.used else ""
    state = styled((seen.status, STYLES.get(seen.status, "")))
    return str(seen.handle), seen.sandbox, state, used, one_line(seen.folder)


# One task


async def _start(app: App, options: argparse.Namespace) -> int:
    if not options.command:
        raise BadArgument("what is to be run? remote-sandbox-mcp jobs start -- COMMAND")
    if options.on and options.sandbox:
        raise BadArgument("--on and --sandbox were both given; pass one of them")
    command, resume, cwd = source(options.command), options.resume, options.cwd
    sandbox, places = place_of(options.on or options.sandbox)
    if not places and (inside := at_hand(app, sandbox)):
        await inside.send()
        complain(*_moved(inside))
        command, resume = inside.source(command, cwd), inside.source(resume, cwd)
        cwd, sandbox = inside.start_folder(cwd), inside.sandbox
    spans = {name: getattr(options, name) for name in ("silent", "gpu_idle")}
    given = {name: span for name, span in spans.items() if span is not None} | ({"stop": True} if options.stop else {})
    alerts, run_for_s = with_run_for(given, options.run_for)
    watch = WatchOrder(
        checkpoint_path=options.checkpoint, resume_command=resume, auto_resume=options.auto_resume, alerts=alerts
    )
    wanted = Wanted(
        command=command,
        session=options.name,
        cwd=cwd,
        sandbox=sandbox,
        watch=watch,
        places=places,
        cards=read_request(options.gpus, options.gpu_memory),
        run_for_s=run_for_s,
        after=tuple(options.after),
        priority=options.priority,
        waits=not options.no_wait,
    )
    return _print_begun(await app.jobs.start(wanted, app.ensure_watchdog), options.json)


async def _raise(app: App, options: argparse.Namespace) -> int:
    name, priority = await app.jobs.put_ahead(_which(options), options.priority)
    if options.json:
        print_json({"tmux_session": name, "priority": priority})
        return 0
    say(f"{name} has priority {priority} now")
    return 0


def _moved(inside: WorkspaceCall) -> list[str]:
    """Return a line for standard error about the files that moved in the workspace."""
    line = inside.moved.line()
    return [f"workspace: {one_line(line)}"] if line else []


async def _resume(app: App, options: argparse.Namespace) -> int:
    try:
        begun = await app.jobs.resume(
            _which(options), asked_by=ASKED_BY, command=options.command, ensure=app.ensure_watchdog
        )
    except NotStarted as problem:
        if problem.reason != NO_RESUME_COMMAND:
            raise
        give = f"remote-sandbox-mcp jobs resume {options.name} --command COMMAND"
        raise NotStarted(f"{options.name} has no resume command; give one: {give}", problem.reason) from None
    return _print_begun(begun, options.json)


def _print_begun(begun: Begun, as_json: bool) -> int:
    if as_json:
        print_json(begun_fields(begun))
        return 0
    say(begun.started.session)
    how = "was submitted to the queue of" if begun.started.is_queued else "runs on"
    how = f"it {how} {begun.sandbox}" if not begun.pending else f"it is {state_text(begun.pending)}"
    complain(f"{how}; to follow it: remote-sandbox-mcp jobs logs -f {begun.started.session}")
    complain(*begun.notes)
    return 0


async def _show(app: App, options: argparse.Namespace) -> int:
    which = _which(options)
    seen = await app.tasks.check(which, lines=LOGGED)
    if options.json:
        return _print_json(seen, _exit_code(seen))
    watch = await _watch(app, which, seen)
    show_card(seen, options.sandbox or await app.tasks.whereabouts(which), watch)
    return _exit_code(seen)


async def _watch(app: App, which: Which, seen: TaskSeen) -> Watch | None:
    if not isinstance(seen, JobSeen) or seen.recalled or seen.is_unplaced:
        return None
    _, _, record = await app.jobs.find(which)
    return await app.jobs.watch_of(record)


def _exit_code(seen: TaskSeen) -> int:
    """The exit code for a task as it is: that its machine knows nothing of it is a failure."""
    return UNKNOWN_END if outcome_of(seen).state is TaskState.UNKNOWN else 0


async def _logs(app: App, options: argparse.Namespace) -> int:
    which, printer = _which(options), LogPrinter(options.json)
    # One more than wanted: the last may be the keeper's, which is for programs.
    more = 0 if options.json or not options.lines else 1
    seen = await app.tasks.read(which, lines=options.lines + more, most_bytes=MOST_BYTES)
    if options.json and not options.follow:
        return _print_json(seen, _exit_code(seen))
    seen = _last_lines(_whole_lines(seen), options.lines) if more else _whole_lines(seen)
    printer.print(seen, is_last=not options.follow or not seen.goes_on)
    while options.follow and is_read() and (seen.has_more or seen.goes_on):
        # A log that grows faster than it is read, or is over, is read without a pause.
        await asyncio.sleep(0 if seen.has_more else CHECK_S)
        seen = await app.tasks.read(which, cursor=seen.cursor, most_bytes=MOST_BYTES)
        printer.print(seen, is_last=not seen.goes_on and not seen.has_more)
    if options.json:
        # Print the state at the end of what was followed.
        write(f"{json.dumps(seen_fields(replace(seen, log=b'')))}\n")
    elif seen.is_over and (options.follow or _exit_code(seen)):
        complain(_end(seen))
    return _exit_code(seen)


def _whole_lines(seen: JobSeen) -> JobSeen:
    """The last lines of a log. Where one look does not bring all, say so, and leave out the first, which is cut."""
    if not MOST_BYTES <= len(seen.log) < seen.log_size:
        return seen
    complain(f"these are only the last {size(len(seen.log))} of the log; the page of `dashboard` has all of it")
    return replace(seen, log=seen.log.partition(b"\n")[2] or without_broken_start(seen.log))


def _last_lines(seen: JobSeen, lines: int) -> JobSeen:
    """Keep as many lines as wanted, besides one that the keeper may have added."""
    kept = lines + bool(exit_line_size(seen.log) and seen.exit_code is not None)
    return replace(seen, log=b"".join(seen.log.splitlines(keepends=True)[-kept:]))


class LogPrinter:
    """Prints a log piece by piece; as JSON, one object for each piece. A character that a piece cuts is held back."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._held = b""
        self._cursor = 0

    def print(self, seen: JobSeen, *, is_last: bool) -> None:
        # A log that was begun anew goes on with nothing that was held back.
        goes_on = seen.cursor - len(seen.log) == self._cursor
        data = self._held + seen.log if goes_on else seen.log
        shown = data if is_last else without_broken_end(data)
        if is_last and not self._as_json:
            shown = without_exit_line(data, seen.exit_code)
        if not is_last and not self._as_json and (line := exit_line_size(shown)):
            # Perhaps the last line, which is for programs.
            shown = shown[:-line]
        self._held, self._cursor = data[len(shown) :], seen.cursor
        if shown:
            text = harmless(shown)
            write(self._line(seen, text) if self._as_json else text)

    def _line(self, seen: JobSeen, text: str) -> str:
        """Format the new part of the log for a program that follows it."""
        fields = {"tmux_session": seen.session, "log": text, "log_cursor": seen.cursor - len(self._held)}
        return f"{json.dumps(fields)}\n"


async def _wait(app: App, options: argparse.Namespace) -> int:
    deadline = None if options.timeout is None else time.monotonic() + options.timeout
    while True:
        left = ASK_S if deadline is None else min(ASK_S, max(0.0, deadline - time.monotonic()))
        waited = await app.tasks.wait(_which(options), JobWait(seconds=left), lines=LOGGED)
        if waited.why == "ended":
            return _print_end(waited.seen, options.json)
        if deadline is not None and time.monotonic() >= deadline:
            if options.json:
                return _print_json(waited.seen, TIMED_OUT)
            is_over = outcome_of(waited.seen).is_over
            still = f"{options.name} still runs after {options.timeout:g} s; it goes on"
            complain(_end(waited.seen) if is_over else still)
            return TIMED_OUT


def _print_end(seen: TaskSeen, as_json: bool) -> int:
    """Tell how a task ended; the exit code is the task's own, and 0 for a session in which nothing runs."""
    outcome = outcome_of(seen)
    code = outcome.exit_code if outcome.exit_code is not None else UNKNOWN_END if outcome.is_over else 0
    if as_json:
        return _print_json(seen, code)
    complain(_end(seen))
    return code


def _end(seen: TaskSeen) -> str:
    return outcome_of(seen).sentence(name_of(seen), time.time())


async def _attach(app: App, options: argparse.Namespace) -> int:
    follow = f"remote-sandbox-mcp jobs logs -f {options.name}"
    if not terminal.is_at_hand():
        raise BadArgument(f"attach needs a terminal; to read what {options.name} prints: {follow}")
    try:
        attached = await app.jobs.attach(_which(options), attach.window())
    except Unsupported as problem:
        raise problem.with_more(f"to read what it prints: {follow}") from None
    code = await attach.sit(attached)
    if options.json:
        # tmux ends in the same way when its session does.
        is_detached = code == 0 and (await app.jobs.check(_which(options), lines=0)).is_running
        print_json({"tmux_session": options.name, "detached": is_detached})
    return code


async def _stop(app: App, options: argparse.Namespace) -> int:
    seen = await app.tasks.stop(_which(options))
    is_over = outcome_of(seen).is_over
    code = _exit_code(seen) if is_over else UNKNOWN_END
    if options.json:
        return _print_json(seen, code)
    say(_end(seen) if is_over else f"{options.name} was told to stop, and still runs")
    return code


def _print_json(seen: TaskSeen, code: int) -> int:
    print_json(task_result(seen, MOST_BYTES, lines=LOGGED)[0])
    return code


# One task as a card: how it stands, what it is, how far it is, and the end of its log


def show_card(seen: TaskSeen, sandbox: str, watch: Watch | None) -> None:
    """Print the card."""
    page, name = Page(), name_of(seen)
    where = f"on {sandbox}" if sandbox else ""
    page.print(styled((one_line(name), "bold"), (f"  {where}", "dim")))
    page.rows(((styled((title, "dim")), text) for title, text in _card_rows(page, seen, watch) if str(text)), indent=2)
    if lines := _log_lines(seen):
        page.print("", *(styled((f"  {line}", "")) for line in lines[-CARD_LINES:]))
    if isinstance(seen, JobSeen):
        rest = "logs -f" if outcome_of(seen).state in LIVE else "logs"
        page.print("", styled((f"  all of its log: {COMMAND} jobs {rest} {one_line(name)}", "dim")))


def _card_rows(page: Page, seen: TaskSeen, watch: Watch | None) -> Iterator[tuple[str, Text | str]]:
    now, outcome = time.time(), outcome_of(seen)
    seconds = seen.seconds if isinstance(seen, JobSeen) else 0.0
    after = span(seconds) if seconds else ""
    live = f"{outcome.state.value} for {after}" if after else outcome.state.value
    text = live if outcome.state in LIVE else outcome.text(now, after)
    yield "state", styled((text, STYLES[outcome.state.value]))
    if not isinstance(seen, JobSeen):
        yield "started", "by a call of exec_bash" if isinstance(seen, Report) else "by a call that keeps its state"
        return
    if seen.recalled:
        yield "", styled((f"as it was last seen: {one_line(seen.recalled)}", "yellow"))
    yield "command", one_line(seen.command)
    yield "folder", one_line(seen.cwd)
    waits = pending_text(seen.queue, now).removeprefix("pending: ") if seen.is_unplaced and not seen.is_over else ""
    yield "waits", one_line(waits)
    yield "queue", one_line(queue_text(seen, now))
    yield from _progress(page, seen.checkpoint, watch)
    yield from _metrics(seen.metrics) if seen.metrics else ()
    yield "uses", _usage(seen.usage) if seen.usage and outcome.state is TaskState.RUNNING else ""
    yield "watched", _watched(watch, now) if watch and not outcome.is_over else ""


def _progress(page: Page, found: Checkpoint | None, watch: Watch | None) -> Iterator[tuple[str, Text | str]]:
    text = harmless(found.text) if found and not found.problem else watch.last_checkpoint if watch else ""
    if not text:
        return
    if progress := progress_of(None, text):
        yield "progress", page.bar(progress.share, BAR) + styled((f" {progress.words}", ""))
    else:
        yield "checkpoint", one_line(text[-200:])


def _metrics(metrics: JobMetrics) -> Iterator[tuple[str, str]]:
    numbers = [f"{one_line(name)} {it.last:g} (min {it.min:g}) {it.trend}" for name, it in metrics.values.items()]
    yield "numbers", "; ".join(number.strip() for number in numbers[:4])
    yield "left", "" if metrics.left_s is None else f"about {span(metrics.left_s)}"


def _usage(usage: JobUsage) -> str:
    cards = [f"GPU {index}: {used / 1024:.0f} GB" for index, used in sorted(usage.gpus.items())]
    count = f"{usage.processes} process{'' if usage.processes == 1 else 'es'}"
    return ", ".join([count, size(usage.memory_mb * 1e6), *cards])


def _watched(watch: Watch, now: float) -> str:
    policy = watch.policy
    resumes = f"resumes by itself, {watch.resume_attempts} of {policy.max_resume_attempts} attempts used"
    checked = f"last check {span(now - watch.checked)} ago" if watch.checked else ""
    return ", ".join(filter(None, (resumes if policy.auto_resume else "", checked)))


def _log_lines(seen: TaskSeen) -> list[str]:
    if isinstance(seen, JobSeen):
        return harmless(without_exit_line(seen.log, seen.exit_code)).rstrip("\n").split("\n") if seen.log else []
    if isinstance(seen, Report):
        text = "\n".join(filter(None, (seen.stdout.text, seen.stderr.text)))
        return text.rstrip("\n").split("\n") if text else []
    return []
