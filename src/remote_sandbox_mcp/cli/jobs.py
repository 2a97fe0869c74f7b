"""`jobs`: work in the background on any machine: start it, list, logs, wait, stop."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING, Any

from .verb import add_json, complain, say, with_app

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App
    from ..core.job import JobSeen
    from ..jobs.values import Sight, Which

# Exit codes of `wait`: of a job whose end nobody knows, and where its patience was over.
UNKNOWN_END, TIMED_OUT = 1, 124
LISTED, LOGGED = 50, 50
# One look at the log of a job that is followed, and the longest that one question waits.
LOOK_S, ASK_S = 0.5, 30.0
STYLES = {"running": "cyan", "pending": "yellow", "ended": "green", "gone": "red", "unknown": "red"}
OTHER_COLUMNS = 60
ABSENT = argparse.SUPPRESS


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "jobs",
        help="work in the background, on any machine",
        description="Jobs that agents or you have started; they outlive connections and this computer's sleep. Without "
        "an action, they are listed. NAME is that of a job's session, as the list shows it.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listed = actions.add_parser("list", help="all of them, newest first")
    for each in (parser, listed):
        each.add_argument("--state", choices=tuple(STYLES), default=ABSENT, metavar="STATE", help=", ".join(STYLES))
        each.add_argument("--limit", type=int, default=ABSENT, metavar="N", help=f"rows (default: {LISTED})")
    start = actions.add_parser(
        "start",
        help="begin one; prints its name",
        usage="remote-sandbox-mcp jobs start [--sandbox NAME] [--name NAME] [--cwd DIR] [--checkpoint PATH] "
        "[--resume COMMAND [--auto-resume]] [--] COMMAND...",
    )
    start.add_argument("--name", default="", metavar="NAME", help="of its session (default: bg-...)")
    start.add_argument("--cwd", default="", metavar="DIR", help="folder to start in (default: home)")
    start.add_argument("--checkpoint", default="", metavar="PATH", help="a file that shows its progress")
    start.add_argument("--resume", default="", metavar="COMMAND", help="goes on from the checkpoint")
    start.add_argument("--auto-resume", action="store_true", help="run that after a reboot or a lost session")
    start.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="shell source, or words")
    show = actions.add_parser("show", help="how one stands, and what it uses")
    logs = actions.add_parser("logs", help="what one has printed")
    logs.add_argument("-n", "--lines", type=int, default=LOGGED, metavar="N", help=f"the last N (default: {LOGGED})")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until it ends, or Ctrl-C")
    wait = actions.add_parser("wait", help="until one ends; ends with its exit code, or with 124 after a timeout")
    wait.add_argument("--timeout", type=float, metavar="S", help="seconds (default: as long as it takes)")
    stop = actions.add_parser("stop", help="end one, with all that it started")
    for each in (show, logs, wait, stop):
        each.add_argument("name", metavar="NAME")
    for each in (parser, listed, start, show, logs, wait, stop):
        each.add_argument("--sandbox", metavar="NAME", default=ABSENT, help="on this machine only")
    # Given before the action or after it: an action's own default would overwrite what was given before.
    parser.set_defaults(sandbox="", state="", limit=LISTED)
    add_json(parser, listed, start, show, wait, stop)


async def run(options: argparse.Namespace) -> int:
    actions = {"list": _list, "start": _start, "show": _show, "logs": _logs, "wait": _wait, "stop": _stop}
    return await with_app(options, lambda app: actions[options.action or "list"](app, options))


def _which(options: argparse.Namespace) -> Which:
    from ..jobs.values import Which

    return Which(session=options.name, sandbox=options.sandbox)


# The list


async def _list(app: App, options: argparse.Namespace) -> int:
    from .render import Page, print_json, styled

    sights = await app.jobs.list(sandbox=options.sandbox, state=options.state, limit=options.limit)
    if options.json:
        from ..mcp_server.tools.job_results import sight_fields

        print_json({"tasks": [sight_fields(sight) for sight in sights]})
        return 0
    page = Page()
    if not sights:
        page.print("No jobs; remote-sandbox-mcp jobs start -- COMMAND begins one.")
        return 0
    titles = tuple(styled((title, "dim")) for title in ("name", "on", "state", "for", "command"))
    page.rows([titles, *(_row(sight, page.console.width - OTHER_COLUMNS) for sight in sights)], indent=0)
    page.problems(dict.fromkeys(sight.trouble for sight in sights if sight.trouble))
    return 0


def _row(sight: Sight, room: int) -> tuple[Text | str, ...]:
    from .render import ago, one_line, styled

    seen, record = sight.seen, sight.record
    name = seen.session if seen else record.session if record else ""
    command = one_line(seen.command if seen and seen.command else record.command if record else "")
    ran = ago(seen.seconds) if seen and seen.seconds else ago(time.time() - sight.began) if sight.began else ""
    state = _state(sight)
    shown = command if len(command) <= max(20, room) else f"{command[: max(20, room) - 1]}…"
    return one_line(name), sight.sandbox, styled((state, _style(sight))), ran, shown


def _state(sight: Sight) -> str:
    code = sight.seen.exit_code if sight.seen else None
    return f"exit {code}" if sight.state == "ended" and code is not None else sight.state


def _style(sight: Sight) -> str:
    failed = sight.state == "ended" and sight.seen is not None and sight.seen.exit_code != 0
    return "red" if failed else STYLES.get(sight.state, "")


# One job


async def _start(app: App, options: argparse.Namespace) -> int:
    from ..core.errors import BadArgument
    from ..core.watch import WatchOrder
    from ..jobs.values import Wanted
    from ..mcp_server.watchdog import start_watchdog
    from .exec import source

    if not options.command:
        raise BadArgument("what is to be run? remote-sandbox-mcp jobs start -- COMMAND")
    watch = WatchOrder(
        checkpoint_path=options.checkpoint, resume_command=options.resume, auto_resume=options.auto_resume
    )
    wanted = Wanted(
        command=source(options.command),
        session=options.name,
        cwd=options.cwd,
        sandbox=options.sandbox,
        watch=watch,
    )
    begun = await app.jobs.start(wanted, lambda: start_watchdog(app))
    if options.json:
        from ..mcp_server.tools.job_results import begun_fields
        from .render import print_json

        print_json(begun_fields(begun))
        return 0
    say(begun.started.session)
    how = "was submitted to the queue of" if begun.started.is_queued else "runs on"
    complain(f"it {how} {begun.sandbox}; to follow it: remote-sandbox-mcp jobs logs -f {begun.started.session}")
    complain(*begun.notes)
    return 0


async def _show(app: App, options: argparse.Namespace) -> int:
    from ..mcp_server.tools.job_results import seen_fields, seen_text
    from .render import print_json

    seen = await app.jobs.check(_which(options), lines=LOGGED)
    if options.json:
        print_json(seen_fields(seen))
    else:
        say(seen_text(seen, seen_fields(seen)))
    return 0


async def _logs(app: App, options: argparse.Namespace) -> int:
    from ..core.job import JobState

    which = _which(options)
    seen = await app.jobs.check(which, lines=options.lines)
    _print_log(seen)
    while options.follow and not seen.is_over:
        await asyncio.sleep(LOOK_S)
        seen = await app.jobs.check(which, cursor=seen.cursor)
        _print_log(seen)
    if options.follow or seen.state is JobState.MISSING:
        complain(_end(seen))
    return UNKNOWN_END if seen.state is JobState.MISSING else 0


def _print_log(seen: JobSeen) -> None:
    from ..core.text import harmless
    from .render import write

    if seen.log:
        write(harmless(seen.log))


async def _wait(app: App, options: argparse.Namespace) -> int:
    from ..core.job import JobWait

    deadline = None if options.timeout is None else time.monotonic() + options.timeout
    while True:
        left = ASK_S if deadline is None else min(ASK_S, max(0.0, deadline - time.monotonic()))
        waited = await app.jobs.wait(_which(options), JobWait(seconds=left), lines=LOGGED)
        if waited.seen.is_over:
            return _told_end(waited.seen, options.json)
        if deadline is not None and time.monotonic() >= deadline:
            complain(f"{options.name} still runs after {options.timeout:g} s; it goes on")
            return TIMED_OUT


def _told_end(seen: JobSeen, as_json: bool) -> int:
    if as_json:
        from ..mcp_server.tools.job_results import seen_fields
        from .render import print_json

        print_json(seen_fields(seen))
    else:
        complain(_end(seen))
    return UNKNOWN_END if seen.exit_code is None else seen.exit_code


def _end(seen: JobSeen) -> str:
    if seen.exit_code is None:
        return f"{seen.session} is {seen.state.value}: {seen.reason or 'nobody knows how it ended'}"
    stopped = "was stopped" if seen.ending == "stopped" else "ended"
    return f"{seen.session} {stopped} with exit code {seen.exit_code}"


async def _stop(app: App, options: argparse.Namespace) -> int:
    seen = await app.jobs.stop(_which(options))
    if options.json:
        return _told_json(seen)
    say(_end(seen) if seen.is_over else f"{seen.session} was told to stop, and still runs")
    return 0 if seen.is_over else UNKNOWN_END


def _told_json(seen: JobSeen) -> int:
    from ..mcp_server.tools.job_results import seen_fields
    from .render import print_json

    print_json(seen_fields(seen))
    return 0 if seen.is_over else UNKNOWN_END
