"""Sentences of the program for a terminal: the tools that they name become verbs of the command line."""

from __future__ import annotations

import re
import shlex

PROGRAM = "remote-sandbox-mcp"
# The verb that does what a tool does. Tools without one are for agents alone, and so are the sentences that name them.
VERBS = {
    "list_sandboxes": "sandboxes",
    "list_background_tasks": "jobs list",
    "check_background_task": "jobs show",
    "wait_background_task": "jobs wait",
    "stop_background_task": "jobs stop",
    "resume_background_task": "jobs resume",
    "exec_bash_background": "jobs start",
    "exec_bash": "exec",
    "check_file_transfer_task": "transfers show",
    "sync_local_to_remote": "push",
    "sync_remote_to_local": "pull",
    "upload_files": "push",
    "download_files": "pull",
    "write_remote_file": "push",
    "read_remote_file": "exec cat",
    "list_remote_files": "exec ls",
    "link_workspace": "link",
    "create_sandbox": "create",
    "delete_sandbox": "delete",
    "forward_port": "forward",
}
# A tool, and perhaps its one argument.
NAMED = re.compile(rf"(?<![\w`])({'|'.join(VERBS)})\b(?:\((\w+)=(?:'([^']*)'|(\d+))\))?")
# Arguments that a verb takes by an option; it takes all others by their place.
OPTIONS = {"on": "--on "}


def as_verbs(sentence: str) -> str:
    """Sentence in which tools are named by their verbs of the command line."""
    return NAMED.sub(_verb, sentence)


def _verb(found: re.Match[str]) -> str:
    tool, argument, text, number = found.groups()
    given = f" {OPTIONS.get(argument, '')}{shlex.quote(text or number)}" if argument else ""
    return f"{PROGRAM} {VERBS[tool]}{given}"
