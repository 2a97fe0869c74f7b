"""`hook`: what a client asks before it runs a shell command of its agent; answers fast and never breaks the client."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

# Every local command of a client waits for this, so nothing is imported that most of them do not need.
if TYPE_CHECKING:
    import argparse

    from ..core.workspaces.workspace import Workspace

LARGEST = 16 << 20
LOG_FILE, LARGEST_LOG = "hook.log", 64 << 10
# Tools of clients that run a command on this computer; Codex calls its own by the first name, too.
SHELLS = ("Bash", "PowerShell", "Monitor")
# Claude Code's folder, whatever folder its shell has changed to.
PROJECT = "CLAUDE_PROJECT_DIR"


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "hook",
        description="Reads the event of a client's hook from standard input and answers it. In a workspace with "
        "only_remote, it refuses local shell commands except those of git. Always ends with 0.",
    )
    from .verb import add_json

    # What it reads and answers is JSON in any case.
    add_json(parser)
    parser.add_argument("event", choices=("pre-tool-use",), metavar="pre-tool-use", help="before a tool is used")


async def run(_: argparse.Namespace) -> int:
    return pre_tool_use()


def pre_tool_use() -> int:
    """Answer one event. Whatever goes wrong here, the client goes on, and a line in hook.log says what it was."""
    try:
        if why := objection(_event(sys.stdin.buffer), os.environ):
            decision = {"permissionDecision": "deny", "permissionDecisionReason": why}
            sys.stdout.write(json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}))
            sys.stdout.flush()
    except Exception as problem:  # noqa: BLE001 a fault of ours must not keep an agent from its work
        _note(problem)
    return 0


def objection(event: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Explain why the command must not run on this computer; empty where it may."""
    if event.get("tool_name") not in SHELLS:
        return ""
    # A command may be for another folder; what counts is also where the client itself works, which starts us there.
    named = (event.get("cwd"), environ.get(PROJECT), _current_folder())
    workspace = _only_remote({os.path.realpath(folder) for folder in named if folder}, environ)
    if workspace is None:
        return ""
    from ..core.commands.local_command import is_gits, refusal

    command = event.get("tool_input", {}).get("command")
    return "" if isinstance(command, str) and is_gits(command) else refusal(workspace)


def _only_remote(folders: set[str], environ: Mapping[str, str]) -> Workspace | None:
    """The workspace of one of these folders whose commands run over there alone."""
    from ..config import paths

    state = paths.state_path(environ)
    # Without it there is no workspace, and no reason to make a database.
    if not (state / "workspaces").is_dir():
        return None
    from ..local.store.database import STATE_FILE, Database
    from ..local.store.workspaces import WorkspaceRows

    rows = WorkspaceRows(Database(state / STATE_FILE)).all()
    for found in (row.workspace for row in rows if any(map(row.workspace.holds, folders))):
        from ..config.workspace_file import current_rules

        if current_rules(found, environ).only_remote:
            return found
    return None


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _event(stream: IO[bytes]) -> Mapping[str, Any]:
    found = json.loads(stream.read(LARGEST))
    if not isinstance(found, dict):
        raise ValueError("the event is not a JSON object")
    return found


def _note(problem: Exception) -> None:
    try:
        import time

        from ..config import paths

        file = paths.state_folder() / LOG_FILE
        is_full = file.exists() and file.stat().st_size > LARGEST_LOG
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if is_full else os.O_APPEND)
        with open(os.open(file, flags, 0o600), "a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {type(problem).__name__}: {problem}\n"[:1000])
    except Exception:  # noqa: BLE001 -- a full disk must not either
        return
