"""Workspaces as fields, for tools and for `--json` of the command line."""

from __future__ import annotations

from typing import Any

from ..core.workspaces.workspace import Linked, Moved, Preview, Unlinked, Workspace, WorkspaceState, kept_there
from .results import lean, plain_text, sentence
from .texts import one_line

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
