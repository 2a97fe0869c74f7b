"""Advanced tools: watches over jobs, their events, and the watchdog that keeps them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from mcp.types import CallToolResult
from pydantic import Field

from ....config import paths
from ....core.errors import ConnectError, LostContact, UnknownSandbox
from ....core.jobs.job import Checkpoint
from ....core.jobs.watch import Watch
from ....core.texts.text import harmless
from ....services.jobs.records import watch_outcome
from ....services.jobs.service import Which
from ....services.session import current
from ....views import originals
from ....views.app_results import dated
from ....views.job_results import checkpoint_fields, event_fields, fit_log, seen_fields, state_text, watch_fields
from ....views.results import lean, sentence
from ....views.texts import fields_text, rows_text
from ..clients import room
from ..results import reply, told
from ..server import SandboxName, SandboxServer
from ..shapes import EventsShape, ProgressShape, WatchdogShape, WatchesShape, WatchShape
from ..toolbox import ASK, RUN, SET, UNLISTED, Declaration
from . import jobs

NOT_ASKED = "it could not be asked; this is what was seen last"
WatchId = Annotated[int, Field(description="As exec_bash_background returned it", ge=1)]
Status = Annotated[Literal["", "active", "completed", "cancelled", "exhausted"], Field(description="Default: all")]


def offer(server: SandboxServer) -> None:
    """Listed only where the operator asks for them."""
    if not server.app.settings.expose_advanced_tools:
        return
    server.offer(watch_background_task, "Watch a job that runs", RUN, Declaration(earlier=originals.watched))
    started = named(jobs.exec_bash_background, "exec_bash_background_watch")
    started.__doc__ = "Another name for exec_bash_background."
    server.offer(started, "Start a watched job", RUN, jobs.STARTS_JOB)
    for tool, title, earlier in (
        (list_background_watches, "List watches", originals.watches),
        (get_background_watch, "Show a watch", originals.watch),
        (list_background_watch_events, "List events of watches", None),
        (get_background_watch_progress, "Show a watched job's progress", originals.progress),
        (read_background_watch_log, "Read a watched job's log", originals.log),
        (read_background_watch_checkpoint, "Read a watched job's checkpoint", originals.checkpoint),
        (get_watchdog_status, "Show the watchdog's state", None),
    ):
        server.offer(tool, title, ASK, Declaration(earlier=earlier))
    server.offer(cancel_background_watch, "Stop watching a job", SET, Declaration(earlier=originals.watch))
    # Old names of the same tool, for clients that know them.
    for name in ("install_watchdog", "install_macos_watchdog"):
        server.offer(named(install_watchdog, name), "Install the watchdog", SET)
    for name in ("uninstall_watchdog", "uninstall_macos_watchdog"):
        server.offer(named(uninstall_watchdog, name), "Remove the watchdog", SET)


def named(tool: Any, name: str) -> Any:
    """Give a tool another name."""

    @functools.wraps(tool)
    async def again(server: SandboxServer, **given: Any) -> CallToolResult:
        return cast(CallToolResult, await tool(server, **given))

    again.__name__ = name
    return again


async def watch_background_task(
    server: SandboxServer,
    tmux_session: Annotated[str, Field(description="As list_background_tasks or tmux ls shows it")],
    log_file: Annotated[str, Field(description="Only for a session that is not ours")] = "",
    sandbox_name: SandboxName = "",
    run_id: jobs.RunId = "",
    name: Annotated[str, Field(description="Of the watch; default: the session's")] = "",
    cwd: Annotated[str, Field(description="Where resume_command starts; default: home")] = "",
    launch_command: Annotated[str, Field(description="What the job was started with, for readers")] = "",
    resume_command: jobs.ResumeCommand = "",
    resume_plan_json: jobs.ResumePlan = "",
    checkpoint_path: jobs.CheckpointPath = "",
    checkpoint_format: jobs.CheckpointFormat = "text",
    checkpoint_command: jobs.CheckpointCommand = "",
    interval_s: jobs.Interval = 300,
    max_log_lines: Annotated[int, Field(description="Kept of the log at each look, default 80")] = 80,
    webhook_url: jobs.Webhook = "",
    event_command: jobs.EventCommand = "",
    auto_resume: jobs.AutoResume = False,
    max_resume_attempts: jobs.Attempts = 1,
    ensure_watchdog: jobs.EnsureWatchdog = True,
    notify_local: jobs.NotifyLocal = True,
    alert_after_failures: jobs.AlertAfter = 2,
    resume_delay_s: jobs.ResumeDelay = 300,
    metadata_json: jobs.Metadata = "",
    codex_wakeup: Annotated[bool, UNLISTED] = False,
    codex_command: Annotated[str, UNLISTED] = "",
    alerts: jobs.Alerts = jobs.NO_ALERTS,
) -> Annotated[CallToolResult, WatchShape]:
    """Have a job watched that runs already, also one that was started by hand in tmux."""
    order = jobs.watch_order(locals(), log_lines=max_log_lines)
    which = Which(session=tmux_session, log_file=log_file, sandbox=sandbox_name)
    ensure = jobs.ensure(server) if ensure_watchdog else None
    watching = server.app.jobs.watching
    watch, notes = await watching.begin(which, order, cwd=cwd, command=launch_command, ensure=ensure)
    told = lean(notes=[sentence(note) for note in notes])
    return watch_reply(server, watch, f"watch {watch.id} over {watch.session} on {watch.sandbox}", told)


async def list_background_watches(
    server: SandboxServer,
    status: Status = "",
    limit: Annotated[int, Field(description="Default 100", ge=1, le=1000)] = 100,
) -> Annotated[CallToolResult, WatchesShape]:
    """All watches, newest first."""
    watches = await server.app.jobs.watching.list(status, limit)
    rows = [watch_fields(watch, server.app.identity) for watch in watches]
    return reply({"watches": rows}, rows_text(rows, "no watches"))


async def get_background_watch(server: SandboxServer, watch_id: WatchId) -> Annotated[CallToolResult, WatchShape]:
    """One watch, as the watchdog left it."""
    watch = await server.app.jobs.watching.get(watch_id)
    return watch_reply(server, watch, f"{watch_outcome(watch).state.value}: {watch.last_summary}")


async def cancel_background_watch(server: SandboxServer, watch_id: WatchId) -> Annotated[CallToolResult, WatchShape]:
    """Stop watching a job; the job itself goes on."""
    watch = await server.app.jobs.watching.cancel(watch_id)
    return watch_reply(server, watch, f"watch {watch.id} is {watch.status.value}")


async def list_background_watch_events(
    server: SandboxServer,
    watch_id: Annotated[int, Field(description="Default: of all watches", ge=0)] = 0,
    limit: Annotated[int, Field(description="Default 50", ge=1, le=1000)] = 50,
    after_id: Annotated[
        int, Field(description="cursor of the last answer: only what is new; default: the newest", ge=-1)
    ] = jobs.NO_CURSOR,
) -> Annotated[CallToolResult, EventsShape]:
    """List events of watched jobs, in order."""
    events = await server.app.jobs.watching.events(watch_id, jobs.cursor(after_id), limit)
    fields: dict[str, Any] = {"events": [event_fields(event) for event in events]}
    fields["cursor"] = events[-1].id if events else max(0, after_id)
    return reply(fields, f"{rows_text(fields['events'], 'no events')}\ncursor: {fields['cursor']}")


async def get_background_watch_progress(
    server: SandboxServer,
    watch_id: WatchId,
    refresh_live: Annotated[bool, Field(description="Ask the machine, too")] = True,
    log_lines: Annotated[int, Field(description="Default 80", ge=1, le=1000)] = 80,
    checkpoint_max_bytes: Annotated[int, Field(description="Of its end", ge=1, le=65536)] = 65536,
) -> Annotated[CallToolResult, ProgressShape]:
    """A watched job's progress: what the watchdog saw last, and log and checkpoint as they are now."""
    watch = await server.app.jobs.watching.get(watch_id)
    if not refresh_live:
        return watch_reply(server, watch, watch.last_summary)
    try:
        seen, rest = fit_log(await server.app.jobs.watching.inspect(watch, lines=log_lines), room() // 2)
    except (ConnectError, LostContact, UnknownSandbox) as problem:
        # The watchdog's last observation, whether or not the machine can be asked now.
        kept = lean(log_tail=watch.last_log_tail)
        return watch_reply(server, watch, NOT_ASKED, kept | {"connection_error": sentence(problem)})
    live = {key: value for key, value in seen_fields(seen).items() if key not in ("log_tail", "checkpoint")}
    fields = {"live": live} | rest | lean(log_tail=harmless(seen.log).rstrip("\n"))
    checkpoint = end_of_checkpoint(seen.checkpoint, watch, checkpoint_max_bytes)
    return watch_reply(server, watch, state_text(seen), fields | checkpoint)


async def read_background_watch_log(
    server: SandboxServer,
    watch_id: WatchId,
    last_n_lines: Annotated[int, Field(description="Default 200", ge=1, le=5000)] = 200,
) -> Annotated[CallToolResult, ProgressShape]:
    """The end of a watched job's log."""
    watch = await server.app.jobs.watching.get(watch_id)
    try:
        seen, rest = fit_log(await server.app.jobs.watching.inspect(watch, lines=last_n_lines), room())
    except UnknownSandbox as problem:
        kept = lean(log_tail="\n".join(watch.last_log_tail.splitlines()[-last_n_lines:]))
        return watch_reply(server, watch, NOT_ASKED, kept | {"connection_error": sentence(problem)})
    fields = {"running": seen.is_running} | rest | lean(log_tail=harmless(seen.log).rstrip("\n"))
    return watch_reply(server, watch, f"the log of watch {watch.id}", fields)


async def read_background_watch_checkpoint(
    server: SandboxServer,
    watch_id: WatchId,
    max_bytes: Annotated[int, Field(description="Of its end", ge=1, le=65536)] = 65536,
) -> Annotated[CallToolResult, ProgressShape]:
    """A watched job's checkpoint as it is now."""
    watch = await server.app.jobs.watching.get(watch_id)
    try:
        seen = await server.app.jobs.watching.inspect(watch, lines=1)
    except UnknownSandbox as problem:
        kept = lean(checkpoint=lean(text=watch.last_checkpoint[-max_bytes:]) or None)
        return watch_reply(server, watch, NOT_ASKED, kept | {"connection_error": sentence(problem)})
    what = "its checkpoint" if seen.checkpoint else "it has no checkpoint"
    return watch_reply(server, watch, what, end_of_checkpoint(seen.checkpoint, watch, max_bytes))


def end_of_checkpoint(checkpoint: Checkpoint | None, watch: Watch, most: int) -> dict[str, Any]:
    if checkpoint is None:
        return {}
    found = checkpoint_fields(checkpoint, watch.policy.checkpoint_format)
    text = str(found.get("text", ""))
    return {"checkpoint": found | lean(text=text[-most:], truncated=len(text) > most)}


async def get_watchdog_status(server: SandboxServer) -> Annotated[CallToolResult, WatchdogShape]:
    """Whether the watchdog is installed and runs, and when it last looked."""
    from ....services.watchdog import service

    return status_reply(await service.status(paths.state_folder()))


async def install_watchdog(
    server: SandboxServer,
    start_now: Annotated[bool, Field(description="Not only at the next login")] = True,
    persist_current_sandboxes: Annotated[bool, Field(description="Hand over those of the environment")] = True,
) -> Annotated[CallToolResult, WatchdogShape]:
    """Have the watchdog start with the user's login (launchd, systemd), and hand it these sandboxes."""
    from ....config.inherited import hand_over
    from ....services.watchdog import service

    state = paths.state_folder()
    names = server.app.fleet.names if persist_current_sandboxes else ()
    note = await asyncio.to_thread(hand_over, names, current().environ, state)
    done = await service.install(state, server.app.jobs.config_file, start_now=start_now)
    return status_reply(done, note)


async def uninstall_watchdog(server: SandboxServer) -> Annotated[CallToolResult, WatchdogShape]:
    """Remove the watchdog's service, end it, and forget sandboxes handed over; watches and events stay."""
    from ....config.inherited import withdraw
    from ....services.watchdog import service

    status = await service.remove(paths.state_folder())
    await asyncio.to_thread(withdraw, paths.state_folder())
    return status_reply(status)


def watch_reply(server: SandboxServer, watch: Watch, first: str, more: Mapping[str, Any] = {}) -> CallToolResult:
    """A watch and more; its text has those of its fields that say something."""
    fields = watch_fields(watch, server.app.identity)
    said = {name: value for name, value in fields.items() if value not in (None, "", {})}
    return reply({"watch": fields, **more}, fields_text(first, {**said, **more}))


def status_reply(status: Any, *notes: str) -> CallToolResult:
    fields: dict[str, Any] = {"kind": status.kind, "installed": status.installed, "running": status.running}
    fields |= lean(pid=status.pid or None, lingering=status.lingering) | dated(last_heartbeat=status.last_beat or 0.0)
    fields |= {"db_path": str(status.database), "active_watches": status.active}
    shown_notes = [sentence(note) for note in (*status.notes, *filter(None, notes))]
    running = "runs" if status.running else "does not run"
    fields |= lean(notes=shown_notes)
    return told(f"the watchdog {running} ({status.kind})", fields, "kind", "running")
