"""Syncs and transfers as tool results."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from ..core.sandboxes.files import Problem
from ..core.sync.transfer import Headway, Order, Outcome
from ..core.workspaces.workspace import Linked, Moved, Preview, Unlinked, Workspace, WorkspaceState, kept_there
from .app_results import dated
from .results import lean, plain_text, sentence
from .texts import one_line

if TYPE_CHECKING:
    from ..local.store.transfers import Transfer
    from ..services.sync.engine import Synchronization
    from ..services.transfers.background import Cancelled

MOST_SHOWN = 100
HOW_TO_SEND = (
    "secrets_not_sent have names of secrets; to send one that is needed there, name its very path as local_path, or "
    "ask your user"
)


def outcome_fields(outcome: Outcome, order: Order) -> dict[str, Any]:
    """Return the fields of a sync's outcome; their names depend on its direction."""
    up = bool(order.target.sandbox)
    fields: dict[str, Any] = {
        "synced_type": outcome.synced_type,
        "uploaded_dirs" if up else "created_dirs": outcome.made_dirs,
        "uploaded_files" if up else "downloaded_files": outcome.sent_files,
        "skipped_files": outcome.skipped_files,
    }
    if up or order.delete_extras:
        fields |= {"deleted_files": outcome.deleted_files, "deleted_dirs": outcome.deleted_dirs}
    fields |= {"bytes": outcome.bytes, "wire_bytes": outcome.wire_bytes, "duration_s": round(outcome.seconds, 3)}
    fields |= lean(excluded_by_default=list(outcome.excluded), direct=outcome.direct)
    fields |= secret_fields(outcome, is_sent=order.source.free)
    return fields | problem_fields(outcome.problems, outcome.problem_count)


def copied_fields(path: str, outcome: Outcome) -> dict[str, Any]:
    """Return the fields of a copied file or folder, with those that were left out."""
    fields = {"path": plain_text(path), "size": outcome.bytes, "files": outcome.sent_files + outcome.skipped_files}
    fields |= lean(excluded_by_default=list(outcome.excluded)) | secret_fields(outcome)
    return fields | problem_fields(outcome.problems, outcome.problem_count)


def secret_fields(outcome: Outcome, is_sent: bool = False) -> dict[str, Any]:
    """Names of secrets that stayed here, and how to send one; what a person sends is only named."""
    names, count = list(map(plain_text, outcome.secrets)), outcome.secret_count
    more = lean(secret_count=count if count > len(names) else None)
    if is_sent:
        return lean(secrets_sent=names) | more
    return lean(secrets_not_sent=names, note=HOW_TO_SEND if names else "") | more


def problem_fields(problems: tuple[Problem, ...], count: int) -> dict[str, Any]:
    shown = [{"path": plain_text(it.path), "reason": sentence(it.reason)} for it in problems[:MOST_SHOWN]]
    return lean(problems=shown, problem_count=count if count > len(shown) else None)


def preview_fields(job: Synchronization) -> dict[str, Any]:
    plan, tree = job.plan, job.source_tree
    assert tree is not None
    deleted = [*plan.clear, *plan.delete_files, *plan.delete_folders]
    send = [{"path": _text(item.path), "bytes": item.size, "why": item.why} for item in islice(plan.send, MOST_SHOWN)]
    fields: dict[str, Any] = {
        "mode": "dry_run",
        "would_send_files": len(plan.send),
        "would_send_bytes": plan.bytes,
        "would_create_dirs": plan.new_folders,
        "would_delete": len(deleted),
        "skipped_files": plan.skipped,
        "send": send,
    }
    fields |= lean(delete=[_text(path) for path in deleted[:MOST_SHOWN]], excluded_by_default=list(tree.hits))
    fields |= lean(truncated=max(len(plan.send), len(deleted)) > MOST_SHOWN)
    fields |= secret_fields(job.outcome(), is_sent=job.order.source.free)
    return fields | problem_fields(tuple(job.tally.problems), job.tally.problem_count)


def started_fields(transfer: Transfer) -> dict[str, Any]:
    fields = {"mode": "background", "task_id": transfer.number, "status": transfer.status}
    return fields | {"log_file": transfer.log_file} | _news(transfer)


def transfer_fields(transfer: Transfer, stale: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"task_id": transfer.number, "status": transfer.status}
    status = "" if stale else transfer.status
    return fields | lean(running=status == "running", pending=status == "queued", stale=stale) | _news(transfer)


def listed_fields(transfer: Transfer, stale: bool) -> dict[str, Any]:
    """One transfer of a list: what it moves and how far it is; without its result, which a call with its id returns."""
    order, fields = transfer.order, transfer_fields(transfer, stale)
    places = {"source": plain_text(str(order.source)), "target": plain_text(str(order.target))}
    times = dated(started=transfer.created, ended=transfer.ended)
    return {key: value for key, value in fields.items() if key != "result"} | places | times


def _news(transfer: Transfer) -> dict[str, Any]:
    headway = transfer.headway if not transfer.is_over else None
    result = outcome_fields(transfer.outcome, transfer.order) if transfer.outcome else None
    return lean(progress=headway and headway_fields(headway), result=result, error=sentence(transfer.error))


def headway_fields(headway: Headway) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "phase": headway.phase,
        "files_done": headway.files,
        "files_total": headway.files_total,
        "bytes_done": headway.bytes,
        "bytes_total": headway.bytes_total,
        "bytes_per_s": round(headway.rate),
    }
    left_s = None if headway.left_s is None else round(headway.left_s, 1)
    return fields | lean(left_s=left_s, path=plain_text(headway.path))


def headway_text(headway: Headway) -> str:
    if not headway.files_total:
        return headway.phase
    left = f", {headway.left_s:.0f} s left" if headway.left_s is not None else ""
    files = f"{headway.files}/{headway.files_total} files"
    return f"{headway.phase} {files}, {headway.bytes / 1e6:.1f}/{headway.bytes_total / 1e6:.1f} MB{left}"


def cancelled_fields(done: Cancelled) -> dict[str, Any]:
    fields = {"task_id": done.transfer.number, "status": done.transfer.status}
    flags = {"terminated": done.terminated, "already_finished": done.already_finished}
    return fields | lean(**flags, error=sentence(done.error))


def _text(path: bytes) -> str:
    return plain_text(path.decode("utf-8", "surrogateescape"))


HOW_TO_SEND_SECRETS = "to send one that is needed there, name its very path with sync_local_to_remote, or ask your user"


def place_fields(status: str, folder: str, sandbox: str, remote: str) -> dict[str, Any]:
    return {"status": status, "local_path": plain_text(folder), "remote_path": plain_text(f"{sandbox}:{remote}")}


def workspace_fields(status: str, workspace: Workspace) -> dict[str, Any]:
    return place_fields(status, workspace.folder, workspace.sandbox, workspace.remote)


def unlinked_fields(gone: Unlinked) -> dict[str, Any]:
    return workspace_fields("unlinked", gone.workspace) | lean(notes=[one_line(gone.note())] if gone.left else None)


def linked_fields(linked: Linked) -> dict[str, Any]:
    return workspace_fields("linked", linked.workspace) | moved_fields(linked.moved) | notes(linked.preview)


def state_fields(state: WorkspaceState) -> dict[str, Any]:
    """State of a workspace."""
    fields = workspace_fields(word_for(state), state.workspace)
    fields |= lean(to_send=state.to_send or None, to_come=state.to_come or None)
    kept = one_line(sentence(kept_there(state.kept_there, state.kept_there_count))) if state.kept_there else ""
    fields |= lean(notes=[kept] if kept else None)
    return fields | lean(conflicts=list(map(plain_text, state.conflicts)), problem=sentence(state.trouble))


def word_for(state: WorkspaceState) -> str:
    if state.trouble:
        return "unknown"
    return "in conflict" if state.conflicts else "in step" if state.is_in_step else "changed"


def moved_fields(moved: Moved) -> dict[str, Any]:
    return lean(moved=one_line(sentence(moved.line())))


def notes(preview: Preview) -> dict[str, Any]:
    """Notes on what is not sent, and on what is there already."""
    return lean(notes=[one_line(sentence(line)) for line in preview.lines(HOW_TO_SEND_SECRETS)[1:]])
