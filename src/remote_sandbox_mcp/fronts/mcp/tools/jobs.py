"""Tools for background jobs: start, ask, wait, stop, list, and type into them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ImageContent
from pydantic import Field

from ....core.jobs.alerts import with_run_for
from ....core.jobs.job import JobSeen, JobWait
from ....core.jobs.picture import picture_of
from ....core.jobs.placement import place_of, read_request
from ....core.jobs.watch import WatchOrder
from ....core.task import TaskState, outcome_of
from ....core.texts.text import harmless
from ....services.jobs.service import LONGEST_WAIT_S, Wanted, Which
from ....services.jobs.values import Ensure
from ....views.job_results import begun_fields, begun_text, screen_fields, session_fields, snapshot_fields, task_result
from ....views.results import plain_text
from ....views.texts import tasks_text
from ..clients import asked_by, patience, room
from ..reporting import Reporting, beats
from ..results import reply, told
from ..server import GpuMemory, Gpus, Places, SandboxName, SandboxServer
from ..shapes import JobShape, JobsShape, SentShape, StartedShape, WaitedShape
from ..toolbox import ASK, CHANGE, MAKE, RUN, UNLISTED, Declaration, WorkspacePart
from .exec import STARTS

Session = Annotated[str, Field(description="As exec_bash_background or exec_bash returned it")]
SessionOrElement = Annotated[str, Field(description='As it was returned; "NAME[3]": element 3 of an array')]
Slurm = Annotated[
    dict[str, Any] | bool | None, Field(description="On a cluster: options of sbatch; false: on its login node")
]
WatchId = Annotated[int, Field(description="Instead of tmux_session", ge=0)]
# check_background_task returns the session of a watch, which the other tools accept.
UnlistedWatchId = Annotated[int, Field(ge=0), UNLISTED]
Lines = Annotated[int, Field(description="Default 50", ge=1, le=5000)]
Cursor = Annotated[int, Field(description="log_cursor of the last answer: only what is new", ge=-1)]
ResumeCommand = Annotated[str, Field(description="Goes on from the checkpoint")]
CheckpointPath = Annotated[str, Field(description="File that shows its progress")]
CheckpointCommand = Annotated[str, Field(description="Prints its progress")]
CheckpointFormat = Annotated[Literal["text", "json"], Field(description="Default text")]
Interval = Annotated[float, Field(description="Between looks, default 300")]
Webhook = Annotated[str, Field(description="One that the operator allows")]
AutoResume = Annotated[bool, Field(description="Run resume_command after a reboot or lost session")]
Attempts = Annotated[int, Field(description="Default 1")]
EnsureWatchdog = Annotated[bool, Field(description="Start it")]
RunId = Annotated[str, Field(description="Your id of it")]
ResumePlan = Annotated[str, Field(description="The same as JSON")]
AlertAfter = Annotated[int, Field(description="Failures")]
ResumeDelay = Annotated[float, Field(description="Before it")]
NotifyLocal = Annotated[bool, Field(description="On the desktop")]
EventCommand = Annotated[str, Field(description="A hook's name")]
Metadata = Annotated[str, Field(description="Kept with it")]
CodexWakeup = Annotated[bool, Field(description="The hook codex")]
CodexCommand = Annotated[str, Field(description="Another hook")]
Alerts = Annotated[dict[str, Any], Field(description="silent, gpu_idle (as 30m), stop (after run_for)")]
NO_ALERTS: dict[str, Any] = {}
STARTS_JOB = Declaration(starts=True, names_its_work=True, workspace=STARTS, is_on_page=True)
ASKS = Declaration(workspace=WorkspacePart(brings=True, handle="tmux_session"))
NO_CURSOR = -1
STILL_RUNNING = "it was told to stop but is still running; ask again with check_background_task"
STILL_QUEUED = "it was told to stop but is still in the queue; ask again with check_background_task"


def offer(server: SandboxServer) -> None:
    server.offer(exec_bash_background, "Start a background job", RUN, STARTS_JOB)
    check = replace(ASKS, is_card=True, is_on_page=True)
    server.offer(check_background_task, "Ask after a job or a running command", ASK, check)
    server.offer(wait_background_task, "Wait for a job", ASK, replace(ASKS, only_waits=True))
    server.offer(stop_background_task, "End a job or a running command", CHANGE, replace(ASKS, is_on_page=True))
    server.offer(list_background_tasks, "List background jobs", ASK, Declaration(means_selected=False))
    server.offer(send_background_input, "Type into a job", MAKE)
    # The same as check_background_task with screen, under the name that agents look for.
    server.offer(read_screen, "See a job's window", ASK, is_listed=False)
    # For people, through the page in the browser: an agent starts a job anew, or leaves it to the watchdog.
    people = Declaration(is_on_page=True)
    server.offer(resume_background_task, "Resume a job", RUN, people, is_listed=False)
    server.offer(raise_background_task, "Start a job first", RUN, people, is_listed=False)


async def exec_bash_background(
    server: SandboxServer,
    command: Annotated[str, Field(description="Shell source, any length")],
    session_name: Annotated[str, Field(description="Name of its tmux session; default bg-...")] = "",
    log_file: Annotated[str, Field(description="Default .codex_logs/SESSION.log under cwd or home")] = "",
    cwd: Annotated[str, Field(description="Folder to start in; default: home")] = "",
    sandbox_name: Places = "",
    slurm: Slurm = None,
    gpus: Gpus = 0,
    gpu_memory: GpuMemory = "",
    wait_for_gpus: Annotated[bool, Field(description="Else an error if none are free")] = True,
    after: Annotated[Sequence[str], Field(description="Jobs that must succeed first")] = (),
    priority: Annotated[int, Field(description="Higher first")] = 0,
    run_for: Annotated[str, Field(description="As 8h")] = "",
    watch: Annotated[bool, Field(description="Have the watchdog look after it")] = True,
    ensure_watchdog: EnsureWatchdog = True,
    run_id: RunId = "",
    watch_name: Annotated[str, Field(description="Of the watch")] = "",
    resume_command: ResumeCommand = "",
    resume_plan_json: ResumePlan = "",
    checkpoint_path: CheckpointPath = "",
    checkpoint_command: CheckpointCommand = "",
    checkpoint_format: CheckpointFormat = "text",
    interval_s: Interval = 300,
    max_log_lines: Annotated[int, UNLISTED] = 80,
    alert_after_failures: AlertAfter = 2,
    resume_delay_s: ResumeDelay = 300,
    notify_local: NotifyLocal = True,
    webhook_url: Webhook = "",
    event_command: EventCommand = "",
    auto_resume: AutoResume = False,
    max_resume_attempts: Attempts = 1,
    metadata_json: Metadata = "",
    codex_wakeup: CodexWakeup = False,
    codex_command: CodexCommand = "",
    alerts: Alerts = NO_ALERTS,
) -> Annotated[CallToolResult, StartedShape]:
    """Start a long job in tmux and return at once; it survives disconnects and this conversation.

    Then wait_background_task, or check_background_task. A job that ended is never resumed."""
    given, run_for_s = with_run_for(alerts, run_for)
    order = watch_order(locals(), name=watch_name, log_lines=max_log_lines, alerts=given)
    sandbox, places = place_of(sandbox_name)
    wanted = Wanted(
        command=command,
        session=session_name,
        log_file=log_file,
        cwd=cwd,
        sandbox=sandbox,
        slurm=slurm,
        watch=order if watch else None,
        places=places,
        cards=read_request(gpus, gpu_memory),
        run_for_s=run_for_s,
        after=tuple(after),
        priority=priority,
        waits=wait_for_gpus,
    )
    begun = await server.app.jobs.start(wanted, ensure(server) if ensure_watchdog else None)
    without = ("status", "tmux_session", "log_file", "sandbox", "queue")
    return told(begun_text(begun), begun_fields(begun), *without)


def watch_order(given: Mapping[str, Any], **more: Any) -> WatchOrder:
    """The order to watch a job, from those arguments of a tool that have the names of its fields."""
    return WatchOrder(**({it.name: given[it.name] for it in fields(WatchOrder) if it.name in given} | more))


async def check_background_task(
    server: SandboxServer,
    tmux_session: SessionOrElement = "",
    log_file: Annotated[str, Field(description="Only for a session that is not ours")] = "",
    watch_id: WatchId = 0,
    last_n_lines: Lines = 50,
    sandbox_name: SandboxName = "",
    log_cursor: Cursor = NO_CURSOR,
    screen: Annotated[bool, Field(description="Its window in tmux as a person sees it, instead of the log")] = False,
    curves: Annotated[bool, Field(description="Also an image of its loss")] = False,
) -> Annotated[CallToolResult, JobShape]:
    """Does it run or wait in a queue, how did it end, what did it print last, what does it use: a job, or a
    command that outlasted exec_bash."""
    if screen:
        return await screen_reply(server, Which(session=tmux_session, watch_id=watch_id, sandbox=sandbox_name))
    which = Which(session=tmux_session, watch_id=watch_id, log_file=log_file, sandbox=sandbox_name)
    seen = await server.app.tasks.check(which, lines=last_n_lines, cursor=cursor(log_cursor), room=room())
    goes_on = log_cursor != NO_CURSOR
    images, more = await drawn(server, which) if curves and isinstance(seen, JobSeen) else ([], {})
    more |= {"lines": last_n_lines, "goes_on": goes_on, "watch_id": watch_id or None}
    fields, text = task_result(seen, room(), **more)
    return reply(fields, text, images=images)


async def drawn(server: SandboxServer, which: Which) -> tuple[list[ImageContent], dict[str, Any]]:
    """The curves of a job as an image, and a field that says what is in it."""
    _, log = await server.app.jobs.curves(which)
    png, words = await asyncio.to_thread(picture_of, log.curves.curves)
    images = [ImageContent(type="image", data=base64.b64encode(png).decode(), mime_type="image/png")]
    return images if png else [], {"image": plain_text(words)}


async def read_screen(
    server: SandboxServer, tmux_session: Session = "", watch_id: UnlistedWatchId = 0, sandbox_name: SandboxName = ""
) -> Annotated[CallToolResult, JobShape]:
    """Show the tmux screen of a job as it is now, for menus, debuggers and installers."""
    return await screen_reply(server, Which(session=tmux_session, watch_id=watch_id, sandbox=sandbox_name))


async def screen_reply(server: SandboxServer, which: Which) -> CallToolResult:
    seen, screen = await server.app.jobs.screen(which)
    fields = screen_fields(seen, screen, room())
    head = f"{fields['screen_size']}, cursor in line {screen.line}, column {screen.column}"
    return reply(fields, f"{seen.session}: {head}\n{fields['screen']}")


async def wait_background_task(
    server: SandboxServer,
    ctx: Context[None, Any],
    tmux_session: Session = "",
    watch_id: UnlistedWatchId = 0,
    timeout_s: Annotated[float, Field(description="Default 45, at most 280", ge=0)] = 45,
    until_pattern: Annotated[str, Field(description="Regular expression for a line of the log")] = "",
    silence_s: Annotated[float, Field(description="Also return when it has printed nothing for so long")] = 0,
    last_n_lines: Lines = 50,
    log_cursor: Cursor = NO_CURSOR,
    sandbox_name: SandboxName = "",
) -> Annotated[CallToolResult, WaitedShape]:
    """Wait until a job ends, prints a line that fits, or is silent. Use this instead of asking again and again."""
    # Never longer than the client waits; the agent calls again.
    seconds = min(timeout_s, patience(), LONGEST_WAIT_S)
    which = Which(session=tmux_session, watch_id=watch_id, sandbox=sandbox_name)
    wait = JobWait(seconds=seconds, pattern=until_pattern, silence_s=silence_s)
    async with Reporting(ctx) as reporting:
        waited = await server.app.tasks.wait(
            which, wait, lines=last_n_lines, cursor=cursor(log_cursor), room=room(), progress=beats(reporting)
        )
    fields, text = task_result(
        waited.seen, room(), lines=last_n_lines, goes_on=log_cursor != NO_CURSOR, reason=waited.why,
        watch_id=watch_id or None, matched_line=harmless(waited.line.encode("utf-8", "surrogateescape")),
    )  # fmt: skip
    return reply(fields, f"{waited.why}: {text}")


async def stop_background_task(
    server: SandboxServer,
    tmux_session: Session = "",
    watch_id: UnlistedWatchId = 0,
    grace_s: Annotated[float, Field(description="Between TERM and KILL, default 10", ge=0, le=30)] = 10,
    sandbox_name: SandboxName = "",
) -> Annotated[CallToolResult, JobShape]:
    """End its whole process tree (TERM, then KILL), see that it is gone, and have nobody start it again."""
    which = Which(session=tmux_session, watch_id=watch_id, sandbox=sandbox_name)
    seen = await server.app.tasks.stop(which, grace_s=grace_s, room=room())
    outcome = outcome_of(seen)
    trouble = "" if outcome.is_over else STILL_QUEUED if outcome.state is TaskState.PENDING else STILL_RUNNING
    return reply(*task_result(seen, room(), error=trouble))


async def resume_background_task(
    server: SandboxServer,
    ctx: Context[None, Any],
    tmux_session: Session = "",
    watch_id: UnlistedWatchId = 0,
    sandbox_name: SandboxName = "",
    resume_command: ResumeCommand = "",
) -> Annotated[CallToolResult, StartedShape]:
    """Start a job again now by its resume_command, whether it was interrupted or has ended."""
    which = Which(session=tmux_session, watch_id=watch_id, sandbox=sandbox_name)
    begun = await server.app.jobs.resume(which, asked_by=asked_by(ctx), command=resume_command, ensure=ensure(server))
    fields = begun_fields(begun)
    how = f"{fields['status']} {fields['tmux_session']} again"
    return told(f"{how} on {begun.sandbox}", fields, "status", "tmux_session", "sandbox")


async def raise_background_task(
    server: SandboxServer,
    tmux_session: Session,
    sandbox_name: SandboxName = "",
    priority: Annotated[int | None, Field(description="Default: above all others")] = None,
) -> Annotated[CallToolResult, JobShape]:
    """Let a job that waits for a place start before others."""
    which = Which(session=tmux_session, sandbox=sandbox_name)
    name, reached = await server.app.jobs.put_ahead(which, priority)
    fields, text = task_result(await server.app.tasks.check(which), room(), lines=0)
    return reply(fields, f"{name} has priority {reached} now; {text}")


async def list_background_tasks(
    server: SandboxServer,
    sandbox_name: Annotated[str, Field(description="Default: all sandboxes")] = "",
    status: Annotated[
        Literal["", "pending", "running", "ended", "gone", "unknown"], Field(description="Default: all")
    ] = "",
    limit: Annotated[int, Field(description="Default 50", ge=1, le=1000)] = 50,
) -> Annotated[CallToolResult, JobsShape]:
    """Every job, and command that outlasted exec_bash, newest first, also of earlier conversations."""
    snapshots, sessions = await server.app.tasks.list(sandbox=sandbox_name, state=status, limit=limit)
    tasks = [*map(snapshot_fields, snapshots), *map(session_fields, sessions)]
    return reply({"tasks": tasks}, tasks_text(tasks))


async def send_background_input(
    server: SandboxServer,
    tmux_session: Session = "",
    text: Annotated[str, Field(description="Typed as it is")] = "",
    keys: Annotated[Sequence[str], Field(description='After the text, by tmux names: ["C-c"], ["Up","Enter"]')] = (),
    enter: Annotated[bool, Field(description="Press Enter after text, default true")] = True,
    watch_id: UnlistedWatchId = 0,
    sandbox_name: SandboxName = "",
) -> Annotated[CallToolResult, SentShape]:
    """Answer a prompt of a running job, or use a debugger in it. Read what it says with wait_background_task."""
    which = Which(session=tmux_session, watch_id=watch_id, sandbox=sandbox_name)
    # Enter belongs to the text: keys alone are sent as they are.
    pressed = [*(["Enter"] if text and enter else []), *keys]
    session = await server.app.jobs.send(which, text=text, keys=pressed)
    return reply({"status": "sent", "tmux_session": session}, f"sent to {session}")


def cursor(given: int) -> int | None:
    return None if given == NO_CURSOR else given


def ensure(server: SandboxServer) -> Ensure:
    return server.app.ensure_watchdog
