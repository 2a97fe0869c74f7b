"""Values as rows: what the tools return of them, and what a person also wants to see."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.jobs.curves import left_of
from ...core.jobs.job import Checkpoint, JobState
from ...core.jobs.watch import Event, Watch
from ...core.resources.usage import as_resources
from ...core.sandboxes.disposable import Disposable
from ...core.sandboxes.port import Forward
from ...core.sync.transfer import Headway
from ...core.texts.redact import shorten_safely
from ...core.texts.shown import shown
from ...core.workspaces.workspace import JOB_LOGS, WorkspaceState
from ...services.history import call_fields
from ...services.jobs.values import JobSnapshot
from ...services.survey import View
from ..job_results import checkpoint_fields, event_fields, snapshot_fields
from ..results import lean, plain_text, sandbox_fields, sentence, size_of
from ..sync_results import headway_fields, transfer_fields

if TYPE_CHECKING:
    from ...local.store.history import CallRow
    from ...local.store.transfers import Transfer

# Clocks of two machines may differ, and an answer takes a moment: by less than this a beginning has not moved.
SAME_S = 3.0
# By this share of the time that is left, an expected end has not moved.
HARDLY = 0.05
LONGEST_COMMAND = 2000
# Of a checkpoint, which its machine may fill with 64 KB.
LONGEST_CHECKPOINT = 2000
# Values from a machine may be nested as deep as it likes.
DEEPEST = 20
# States in which a job may be resumed by hand.
RESUMABLE = ("gone", "ended")

Secrets = tuple[str, ...]


def finite(value: Any, deepest: int = DEEPEST) -> Any:
    """Without numbers that JSON does not have, and not too deep: another machine may say that its load is infinite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, Mapping | list | tuple):
        return value
    if deepest <= 0:
        return None
    if isinstance(value, Mapping):
        return {name: finite(each, deepest - 1) for name, each in value.items()}
    return [finite(each, deepest - 1) for each in value]


@functools.lru_cache(8192)
def hidden(text: str, secrets: Secrets) -> str:
    """A command as it may be shown: without secrets, safe, and not endless."""
    return plain_text(shorten_safely(text, secrets, LONGEST_COMMAND))


# Machines


def machine_row(view: View, state: str, sampled: float) -> dict[str, Any]:
    """`state` is one of up, asking, down, unasked."""
    fields = sandbox_fields(view) | {"name": view.name, "state": state}
    fields.pop("connection_alive")
    fields.pop("connection_error", None)
    fields |= lean(trouble=sentence(view.cause or view.trouble or view.usage_trouble))
    if view.usage is not None:
        fields |= {"resources": as_resources(view.usage, view.score), "idle_score": view.score}
    elif "resources" in fields:
        del fields["resources"]
    return finite(fields | lean(sampled=sampled or None))  # type: ignore[no-any-return]


# Jobs


def job_id(snapshot: JobSnapshot) -> str:
    return f"{snapshot.sandbox}/{snapshot.session}"


def job_row(
    snapshot: JobSnapshot,
    watch: Watch | None,
    now: float,
    before: Mapping[str, Any] | None,
    secrets: Secrets,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any]:
    """One job. `before` is its row until now, from which its beginning is taken where that has hardly moved.

    Without a `checkpoint` it is the one that the watchdog saw last.
    """
    fields = snapshot_fields(snapshot)
    seen, record = snapshot.seen, snapshot.record
    state = _state(snapshot)
    command = (seen.command if seen else "") or (record.command if record else "")
    # The page and `top` say themselves when a job is resumed: a text that counts down would change all the time.
    for name in ("status", "started_ts", "seconds", "connection_error", "command", "resume", "fate", "error"):
        fields.pop(name, None)
    fields |= {"state": state} | lean(command=hidden(command, secrets), trouble=sentence(snapshot.trouble))
    fields |= lean(cwd=plain_text(seen.cwd) if seen else "")
    # One reason for every place where its end is shown; the log of people's jobs is read on the page, not in its file.
    outcome = snapshot.outcome
    fields |= lean(reason=plain_text(outcome.reason) if outcome.is_over and not snapshot.trouble else "")
    if JOB_LOGS in fields.get("log_file", ""):
        fields.pop("log_file")
    fields |= _times(snapshot, state, now, before)
    if watch is not None:
        fields["watch"] = watch_fields(watch, secrets)
        fields |= lean(checkpoint=_checkpoint(watch, checkpoint))
    can_resume = bool(watch and watch.policy.resume_command) and state in RESUMABLE
    return finite(fields | {"can_resume": can_resume})  # type: ignore[no-any-return]


def end_fields(
    row: Mapping[str, Any], error: str, left_s: float | None, now: float, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Say why it failed, in the words of its log; and when it will have ended, which moves seldom."""
    progress = row.get("checkpoint", {}).get("progress")
    if row["state"] != "running":
        return lean(error_line=plain_text(shown(error)))
    if progress and "began" in row:
        left_s = left_of(progress["share"], now - row["began"])
    if left_s is None:
        return {}
    told = before.get("eta_ts", 0.0) if before else 0.0
    ends = now + left_s
    return {"eta_ts": told if abs(told - ends) < max(10 * SAME_S, left_s * HARDLY) else round(ends)}


def broken_job_row(snapshot: JobSnapshot, trouble: str) -> dict[str, Any]:
    """A job whose row could not be made."""
    fields = {"sandbox": snapshot.sandbox, "tmux_session": snapshot.session, "state": _state(snapshot)}
    return fields | {"trouble": sentence(trouble), "can_resume": False}


def _state(snapshot: JobSnapshot) -> str:
    return "gone" if snapshot.state == JobState.MISSING.value else snapshot.state


def _checkpoint(watch: Watch, found: Checkpoint | None) -> dict[str, Any] | None:
    last = watch.last_checkpoint.encode("utf-8", "replace")
    if found is None and last:
        found = Checkpoint(text=last, mtime=0.0)
    if found is None:
        return None
    fields = checkpoint_fields(found, watch.policy.checkpoint_format)
    if "value" in fields and len(found.text) > LONGEST_CHECKPOINT:
        fields["value"] = _outline(fields["value"])
    if len(text := fields.get("text", "")) > LONGEST_CHECKPOINT:
        # The end is what was written last.
        fields["text"] = f"…{text[-LONGEST_CHECKPOINT:]}"
    return fields


def _outline(value: Any) -> dict[str, Any]:
    """The numbers and short texts at the top of a long JSON value: how far a job is, is one of them."""
    kept: dict[str, Any] = {}
    room = LONGEST_CHECKPOINT
    for name, each in value.items() if isinstance(value, Mapping) else ():
        size = size_of({name: each}) if isinstance(each, str | int | float) else room + 1
        if size <= room:
            kept[name], room = each, room - size
    return kept


def _times(snapshot: JobSnapshot, state: str, now: float, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the begin by this computer's clock; and the duration, once it is over: until then that always changes.

    A job that waits in a queue has not begun.
    """
    if state == "pending":
        return {}
    seen, began = snapshot.seen, snapshot.began
    if seen and state == "running" and seen.seconds:
        began = now - seen.seconds
        if before and abs(before.get("began", 0.0) - began) < SAME_S:
            began = before["began"]
    # When one that is gone has ended, no one knows: its seconds are those since it began.
    is_over = state not in ("running", "gone")
    ran = round(seen.seconds, 1) if seen and is_over and seen.seconds else None
    return lean(began=round(began, 3) or None, running_s=ran)


def watch_fields(watch: Watch, secrets: Secrets) -> dict[str, Any]:
    policy = watch.policy
    fields = {"id": watch.id, "status": watch.status.value, "last_state": watch.last_state}
    fields |= {"resume_attempts": watch.resume_attempts, "max_resume_attempts": policy.max_resume_attempts}
    fields |= {"auto_resume": policy.auto_resume, "resume_command": hidden(policy.resume_command, secrets)}
    # Without the name of the job, which is beside it.
    summary = watch.last_summary.removeprefix(f"{watch.session} on {watch.sandbox}").removeprefix(": ").strip()
    return fields | {"last_summary": hidden(summary, secrets), "checked": round(watch.checked)}


# Disposable sandboxes


def disposable_row(made: Disposable, forwards: Sequence[Forward]) -> dict[str, Any]:
    ports = [{"port": it.port, "url": it.url} for it in forwards if it.sandbox in (made.id, made.name)]
    fields: dict[str, Any] = {"id": made.id, "kind": made.kind, "status": made.status, "network": made.network}
    fields |= lean(name=made.name, image=made.image, on=made.machine, reason=sentence(made.reason))
    fields |= lean(created_at=made.created or None, expires_at=made.expires or None)
    return fields | {"ports": ports} | lean(notes=[sentence(note) for note in made.notes])


# Transfers


def transfer_row(transfer: Transfer, stale: bool) -> dict[str, Any]:
    order = transfer.order
    source, target = bool(order.source.sandbox), bool(order.target.sandbox)
    direction = "between" if source and target else "down" if source else "up"
    fields = transfer_fields(transfer, stale)
    fields |= {"direction": direction, "from": plain_text(str(order.source)), "to": plain_text(str(order.target))}
    if transfer.headway is not None:
        fields["progress"] = progress_fields(transfer.headway)
    if transfer.is_over or stale:
        for name in ("rate_bps", "left_s"):
            fields.get("progress", {}).pop(name, None)
    fields |= lean(began=round(transfer.created, 3), ended=round(transfer.ended, 3) or None)
    return finite(fields)  # type: ignore[no-any-return]


def progress_fields(headway: Headway) -> dict[str, Any]:
    fields = headway_fields(headway)
    names = {"files_done": "files", "bytes_done": "bytes", "bytes_per_s": "rate_bps"}
    return {names.get(name, name): value for name, value in fields.items()}


# Workspaces


def workspace_row(state: WorkspaceState, word: str, last_pass: float) -> dict[str, Any]:
    workspace = state.workspace
    fields: dict[str, Any] = {
        "id": workspace.id,
        "folder": plain_text(workspace.folder),
        "sandbox": workspace.sandbox,
        "remote_folder": plain_text(workspace.remote),
        "state": word,
        "conflicts": [{"path": plain_text(path)} for path in state.conflicts],
    }
    fields |= lean(to_send=state.to_send or None, to_come=state.to_come or None, trouble=sentence(state.trouble))
    return fields | lean(last_pass=last_pass or None)


# Events and calls


def event_row(event: Event, watches: Mapping[int, Watch], secrets: Secrets = ()) -> dict[str, Any]:
    fields, watch = event_fields(event), watches.get(event.watch_id)
    fields.pop("payload")
    fields["summary"] = hidden(event.summary, secrets)
    return fields | lean(sandbox=watch.sandbox if watch else "", tmux_session=watch.session if watch else "")


def call_row(call: CallRow) -> dict[str, Any]:
    return finite(call_fields(call) | {"began": call.begun})  # type: ignore[no-any-return]
