"""Jobs, watches and events as tool results."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ..core.commands.session_handle import SessionSeen
from ..core.jobs.curves import JobMetrics, progress_of
from ..core.jobs.job import SLURM, Checkpoint, JobSeen, JobState, JobUsage, Screen
from ..core.jobs.queue import fate_text, odd_state, pending_text, queue_text
from ..core.jobs.watch import Event, Watch
from ..core.task import Outcome, Report, TaskSeen, event_end, job_outcome, outcome_of
from ..core.texts.shown import values_in_use
from ..core.texts.text import harmless, span, without_broken_end, without_broken_start
from ..services.jobs.curves import ReadLog
from ..services.jobs.records import watch_outcome
from ..services.jobs.service import Begun, JobSnapshot
from ..services.jobs.values import COMMAND
from .app_results import dated
from .results import exec_head, lean, plain_text, sentence, size_of, task_fields
from .texts import fields_text, one_line

# Characters of a command in a list; bytes of a log that are shown in any case.
LONGEST_COMMAND = 300
LEAST_LOG = 500
# Numbers of a job in one result.
MOST_METRICS = 8
IN_FIRST_LINE = (
    *("outcome", "running", "running_s", "pending", "queue", "exit_code", "signal", "stopped"),
    *("resume_ts", "resume_attempt", "max_resume_attempts", "truncated", "log_offset"),
)

IN_RUN_HEAD = ("running", "exit_code", "signal", "timed_out", "stopped")


def fit_log(seen: JobSeen, room: int, *, goes_on: bool = False) -> tuple[JobSeen, dict[str, Any]]:
    """The job with as much of its log as fits, and fields about the rest.

    `goes_on`: the log was asked for from a cursor, so its beginning is kept, and the next cursor is where it ends.
    Else its end is kept.
    """
    log = seen.log
    while (size := size_of(harmless(log))) > room and len(log) > LEAST_LOG:
        keep = max(LEAST_LOG, len(log) * room // size * 9 // 10)
        log = without_broken_end(log[:keep]) if goes_on and not seen.recalled else without_broken_start(log[-keep:])
    if not (left_out := len(seen.log) - len(log)):
        return seen, {}
    if seen.recalled:
        # A recorded tail has no position in the file.
        return replace(seen, log=log), {"truncated": True}
    if goes_on:
        return replace(seen, log=log, cursor=seen.cursor - left_out), {"truncated": True}
    return replace(seen, log=log), {"truncated": True, "log_offset": seen.cursor - len(log)}


def begun_fields(begun: Begun) -> dict[str, Any]:
    started, pending = begun.started, begun.pending
    fields: dict[str, Any] = {
        "status": "pending" if pending else "submitted" if started.is_queued else "started",
        "tmux_session": started.session,
        **lean(log_file=plain_text(started.log_file)),
        "sandbox": begun.sandbox,
    }
    fields |= lean(watch_id=begun.watch_id or None, launch_recovered=started.recovered, gpus=list(started.cards))
    fields |= queue_fields(pending) if pending else lean(detached=started.via not in ("tmux", SLURM))
    return fields | lean(notes=[sentence(note) for note in begun.notes])


def begun_text(begun: Begun) -> str:
    """The first line of the result: what came of a start."""
    if begun.pending:
        return f"{begun.started.session}, for {begun.sandbox}, is {state_text(begun.pending)}; it starts by itself"
    how = "submitted {} to the queue of" if begun.started.is_queued else "started {} on"
    where = f"{how.format(begun.started.session)} {begun.sandbox}"
    return f"{where}; its log is {plain_text(begun.started.log_file)}"


def seen_fields(seen: JobSeen) -> dict[str, Any]:
    """check_background_task's result for a job."""
    fields: dict[str, Any] = {"tmux_session": seen.session, "running": seen.is_running}
    fields |= outcome_fields(job_outcome(seen)) | lean(pending=seen.state is JobState.PENDING) | queue_fields(seen)
    if seen.exit_code is not None:
        fields["exit_code"] = seen.exit_code
    fields |= lean(signal=seen.signal, stopped=seen.ending == "stopped", error=_trouble(seen))
    fields |= lean(log_file=plain_text(seen.log_file), log_tail=harmless(seen.log).rstrip("\n"))
    if seen.log_file and not seen.recalled:
        fields |= {"log_cursor": seen.cursor, "log_bytes": seen.log_size}
    if seen.is_running and not seen.recalled:
        fields |= {"silent_s": round(seen.silent_s, 1), "running_s": round(seen.seconds, 1)}
    fields |= lean(checkpoint=seen.checkpoint and checkpoint_fields(seen.checkpoint, seen.checkpoint.form))
    fields |= metrics_fields(seen.metrics) if seen.metrics else {}
    if seen.recalled:
        fields |= {"connection_error": sentence(seen.recalled)} | dated(last_seen=seen.recalled_at)
    return fields | lean(usage=seen.usage and usage_fields(seen.usage), still_alive=list(seen.survivors))


def outcome_fields(outcome: Outcome) -> dict[str, Any]:
    """Return the fields of a task's outcome, in the word that every front uses; whether it is resumed by itself."""
    fields: dict[str, Any] = {"outcome": outcome.state.value}
    if outcome.resume:
        fields |= dated(resume=outcome.resume.at) | {"resume_attempt": outcome.resume.attempt}
        fields |= {"max_resume_attempts": outcome.resume.attempts}
    return fields


def screen_fields(seen: JobSeen, screen: Screen, room: int) -> dict[str, Any]:
    """A job's window in tmux; empty lines at its end are left out."""
    lines = harmless(screen.text).rstrip("\n").split("\n")
    text = "\n".join(line.rstrip() for line in lines)[: max(LEAST_LOG, room)]
    fields: dict[str, Any] = {"tmux_session": seen.session, "running": True, "screen": text}
    fields |= {"screen_size": f"{screen.columns}x{screen.rows}"}
    return fields | {"cursor": {"line": screen.line, "column": screen.column}}


def _trouble(seen: JobSeen) -> str:
    if seen.state is JobState.MISSING:
        return sentence(f"the job is not known there: {seen.reason}")
    if seen.state is JobState.GONE:
        return sentence(job_outcome(replace(seen, resume=None)).text(0.0))
    return sentence(fate_text(seen) or seen.reason)


def queue_fields(seen: JobSeen) -> dict[str, Any]:
    """A job as its cluster's queue has it, and what the cluster did to it; nothing for all other jobs.

    `start_ts` is when it is expected to start while it is pending, `limit_ts` when its time is over.
    """
    queue = seen.queue
    if queue is None:
        return lean(fate=seen.fate and seen.fate.value)
    fields = lean(job=plain_text(queue.number), state=plain_text(odd_state(seen)))
    if seen.state is JobState.PENDING:
        fields |= lean(reason=plain_text(queue.reason), dependency=plain_text(queue.dependency))
    fields |= lean(partition=plain_text(queue.partition), nodes=plain_text(queue.nodes))
    counts = asdict(queue.array) if queue.array else {}
    array = {name: number for name, number in counts.items() if number}
    fields |= lean(restarts=queue.restarts or None, array=array if queue.array else None)
    if not seen.is_over:
        fields |= dated(start=queue.start, limit=queue.end)
        fields |= lean(age_s=round(queue.age_s) or None, trouble=sentence(queue.trouble))
    return lean(queue=fields or None, fate=seen.fate and seen.fate.value)


def usage_fields(usage: JobUsage) -> dict[str, Any]:
    fields: dict[str, Any] = {"processes": usage.processes, "memory_mb": round(usage.memory_mb, 1)}
    gpus = [{"index": index, "mem_mb": round(used, 1)} for index, used in sorted(usage.gpus.items())]
    return fields | {"cpu_s": round(usage.cpu_s, 1)} | lean(gpu=gpus)


def metrics_fields(metrics: JobMetrics) -> dict[str, Any]:
    """A job's numbers in short, the loss first, and the time until its end; JSON has no "not a number"."""
    numbers = {
        plain_text(name): lean(last=_rounded(each.last), min=_rounded(each.min), trend=each.trend)
        for name, each in metrics.values.items()
    }
    eta = {} if metrics.left_s is None else {"eta": span(metrics.left_s), "eta_s": round(metrics.left_s)}
    return lean(metrics=dict([*numbers.items()][:MOST_METRICS]) or None) | eta


def curves_fields(seen: JobSeen, log: ReadLog) -> dict[str, Any]:
    """All curves of a job, as lists of points [step, value, time]."""
    short = metrics_fields(log.metrics(seen))
    curves = {plain_text(name): curve.points for name, curve in log.curves.curves.items() if curve.points}
    return {"curves": curves, "is_over": seen.is_over} | short


def _rounded(value: float) -> float | str | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def checkpoint_fields(checkpoint: Checkpoint, form: str = "text") -> dict[str, Any]:
    """A checkpoint's text, or its value if it is JSON; and how far the job is, where that can be read from it."""
    text = harmless(checkpoint.text)
    fields: dict[str, Any] = lean(mtime=checkpoint.mtime or None, error=sentence(checkpoint.problem))
    value = None
    if form == "json" and not checkpoint.problem:
        try:
            value = json.loads(checkpoint.text)
            fields |= {"value": value}
        except (ValueError, RecursionError):
            fields |= {"text": text, "error": "it is not valid JSON"}
    else:
        fields |= lean(text=text)
    progress = None if checkpoint.problem else progress_of(value, text)
    return fields | lean(progress=progress and {"share": progress.share, "words": progress.words})


def task_result(
    seen: TaskSeen, room: int, *, lines: int = 50, goes_on: bool = False, error: str = "", **more: Any
) -> tuple[dict[str, Any], str]:
    """The result of a tool about a task of any kind: its fields, and its text. `more` are fields to add."""
    extra = lean(error=error, **more)
    if isinstance(seen, JobSeen):
        seen, rest = fit_log(seen, room, goes_on=goes_on)
        fields = seen_fields(seen) | rest | extra
        return fields, seen_text(seen, fields)
    outcome = outcome_of(seen)
    if isinstance(seen, Report):
        fields = task_fields(seen, lines) | outcome_fields(outcome) | extra
        head = f"{outcome.state.value}: {exec_head(seen)}"
        return fields, fields_text(head, fields, without=("outcome", *IN_RUN_HEAD))
    running = outcome.state.value == "running"
    fields = session_fields(seen) | {"running": running} | lean(stopped=outcome.state.value == "stopped") | extra
    closed = f": closed {seen.handle} on {seen.sandbox}; its state is gone" if "stopped" in fields else ""
    head = f"{outcome.text(0.0)}{closed}"
    return fields, fields_text(head, fields, without=("status", "outcome", "running", "stopped"))


def seen_text(seen: JobSeen, fields: Mapping[str, Any]) -> str:
    """Describe the job in a line, with its other facts and the log."""
    first = state_text(seen)
    if seen.recalled:
        first += " (as it was seen last)"
    if "log_offset" in fields:
        first += f"; the log begins earlier: read_remote_file shows what is before offset {fields['log_offset']}"
    elif fields.get("truncated") and "log_cursor" in fields:
        first += "; the log goes on: the same call with this log_cursor shows the rest"
    rest = {name: value for name, value in fields.items() if name not in IN_FIRST_LINE and value != _trouble(seen)}
    return fields_text(first, rest)


def state_text(seen: JobSeen) -> str:
    """Describe how it stands, and where it is in a cluster's queue."""
    now = time.time()
    if seen.state is JobState.PENDING:
        first = pending_text(seen.queue, now)
    elif seen.is_running:
        first = f"running for {seen.seconds:.0f} s"
    else:
        first = _trouble(seen) if seen.state is JobState.MISSING else job_outcome(seen).text(now)
    return one_line(sentence("; ".join(filter(None, (first, queue_text(seen, now))))))


def snapshot_fields(snapshot: JobSnapshot) -> dict[str, Any]:
    """One job of a list."""
    seen, record = snapshot.seen, snapshot.record
    kind = snapshot.kind if snapshot.kind == COMMAND else ""
    fields: dict[str, Any] = {"sandbox": snapshot.sandbox} | lean(kind=kind)
    if seen is not None:
        fields |= {"tmux_session": seen.session, "status": snapshot.state} | outcome_fields(snapshot.outcome)
        fields |= queue_fields(seen)
        fields |= lean(exit_code=seen.exit_code, signal=seen.signal, log_file=plain_text(seen.log_file))
        fields |= dated(started=seen.started) | {"seconds": round(seen.seconds, 1)}
        fields |= lean(command=_short(seen.command), foreign=seen.foreign)
    elif record is not None:
        fields |= {"tmux_session": record.session, "status": snapshot.state} | outcome_fields(snapshot.outcome)
        fields |= lean(exit_code=record.exit_code, log_file=plain_text(record.log_file), command=_short(record.command))
        fields |= dated(started=record.created)
    watch_id = record.watch_id if record else 0
    fields |= lean(resume=snapshot.outcome.resume_text(time.time()))
    return fields | lean(watch_id=watch_id or None, connection_error=sentence(snapshot.trouble))


def session_fields(seen: SessionSeen) -> dict[str, Any]:
    """One session of the list of tasks."""
    fields: dict[str, Any] = {"sandbox": seen.sandbox, "kind": seen.handle.kind, "tmux_session": str(seen.handle)}
    fields |= {"status": seen.status, "outcome": seen.status} | dated(used=seen.used)
    fields |= lean(folder=plain_text(seen.folder))
    return fields | lean(as_root=seen.as_root, **seen.more) | lean(connection_error=sentence(seen.trouble))


def _short(command: str) -> str:
    text = harmless(_hidden(command, values_in_use()).encode("utf-8", "surrogateescape"))
    return text if len(text) <= LONGEST_COMMAND else text[: LONGEST_COMMAND - 1] + "…"


@functools.lru_cache(1024)
def _hidden(command: str, secrets: tuple[str, ...]) -> str:
    """A command without secrets: it may be another client's."""
    from ..core.texts.redact import MOST_READ, shorten_safely

    return shorten_safely(command, secrets, MOST_READ)


def watch_fields(watch: Watch, configuration: str = "") -> dict[str, Any]:
    """A watch with every field that clients rely on; its commands are empty where another configuration began it."""
    policy = watch.policy
    is_own = not configuration or watch.configuration == configuration

    def command(text: str) -> str:
        return plain_text(_hidden(text, values_in_use())) if is_own else ""

    return {
        "id": watch.id,
        "run_id": watch.run_id,
        "name": watch.name,
        "sandbox_name": watch.sandbox,
        "tmux_session": watch.session,
        "log_file": plain_text(watch.log_file),
        "cwd": plain_text(watch.cwd),
        "launch_command": command(watch.command),
        "resume_command": command(policy.resume_command),
        "checkpoint_path": plain_text(policy.checkpoint_path),
        "checkpoint_format": policy.checkpoint_format,
        "checkpoint_command": command(policy.checkpoint_command),
        "interval_s": _whole(policy.interval_s),
        "status": watch.status.value,
        **outcome_fields(watch_outcome(watch)),
        "last_state": watch.last_state,
        "last_summary": plain_text(watch.last_summary),
        "last_error": sentence(watch.last_error),
        "last_exit_code": watch.last_exit_code,
        "last_log_tail": plain_text(watch.last_log_tail),
        "last_checkpoint_text": plain_text(watch.last_checkpoint),
        "auto_resume": policy.auto_resume,
        "resume_attempts": watch.resume_attempts,
        "max_resume_attempts": policy.max_resume_attempts,
        "alert_after_failures": policy.alert_after_failures,
        "resume_delay_s": _whole(policy.resume_delay_s),
        "max_log_lines": policy.log_lines,
        "notify_local": policy.notify_local,
        "alerts": {name: value for name, value in asdict(policy.alerts).items() if value},
        "metadata": dict(watch.metadata),
        "consecutive_ssh_failures": watch.failures,
        "ssh_alert_sent": watch.alerted,
        "interrupted_ts": int(watch.interrupted_at),
        **dated(created=watch.created, updated=watch.updated, last_checked=watch.checked, next_check=watch.due),
        "created_ts": int(watch.created),
        "updated_ts": int(watch.updated),
        "last_checked_ts": int(watch.checked),
        "next_check_ts": int(watch.due),
    }


def _whole(seconds: float) -> float:
    """Seconds without a fraction as an integer, as clients have sent them."""
    return int(seconds) if seconds == int(seconds) else seconds


def event_fields(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "watch_id": event.watch_id,
        "event_type": event.type.value,
        **event_end(event),
        "summary": plain_text(event.summary),
        **dated(created=event.created) | {"created_ts": int(event.created)},
        "payload": {name: value for name, value in event.payload.items() if value not in (None, "", [])},
    }
