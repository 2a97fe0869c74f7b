"""A command in a shell that keeps its state between calls: the text that bash runs, and what it reports."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .command import Command, Completed, Ending
from .shell import quote

# Exit status of a command that was not begun; its reason is then the only line on stderr.
REFUSED = 75
_REFUSAL = re.compile(
    r"remote-sandbox-session (?P<run>[a-z0-9-]{1,64}) (?P<why>[a-z]{1,20})(?: (?P<detail>[^\n]{0,5000}))?\n\Z"
)
# A shell that is not bash passes the command to bash in one argument, which Linux limits to 128 KiB.
LONGEST_ARGUMENT = 120_000
_TRAPS = re.compile(r"\btrap\b")
# A function cannot set these traps for its caller as the builtin does.
_TRAPS_OF_FUNCTIONS = re.compile(r"\b(?:RETURN|DEBUG|ERR)\b")
_PIECE = re.compile(r"^## (\w+)\n", re.MULTILINE)
# Evaluated by bash, in one line: the lines of the command are numbered from the line on which this stands.
_BOOT = """
printf -v __rsm_p %b "$__rsm_p"; eval "$__rsm_p"; eval "$__rsm_x"; { eval "${__rsm_z-(exit \\$?)}"; } >/dev/null 2>&1
""".strip()


@dataclass(frozen=True)
class ShellSession:
    """A session on one sandbox. `key` tells apart installations, and sandboxes that share a home folder."""

    name: str
    key: str


def key_of(installation: str, sandbox: str) -> str:
    return hashlib.sha256(f"{installation}\0{sandbox}".encode("utf-8", "surrogateescape")).hexdigest()[:16]


def pieces_of(source: str) -> Mapping[str, str]:
    """The pieces of session.sh by name, without the lines that are comments."""
    parts = _PIECE.split(source)[1:]
    return {name: _without_comments(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _without_comments(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))


def wrap(pieces: Mapping[str, str], session: ShellSession, command: Command, wait_s: float) -> str:
    """The script that runs a command in a session, waiting so long for another command of it.

    It restores the state, evaluates the caller's script, and keeps the state when the shell ends.
    """
    script = command.script
    guard = _TRAPS.search(script) and not _TRAPS_OF_FUNCTIONS.search(script)
    values = {
        "wait": str(int(wait_s)),
        "limit": str(int(command.timeout_s)),
        "stays": "1" if command.cwd else "0",
        "guard": "1" if guard else "0",
        "dump": pieces["dump"],
        "s": script,
    }
    return _in_bash(_set(session, command.run_id, values) + pieces["place"] + pieces["enter"], command.run_id)


def state_script(pieces: Mapping[str, str], session: ShellSession, run_id: str, sweeps: bool = False) -> str:
    """The script that prints what became of the state of a command; `read_report` reads it.

    `sweeps`: it also removes sessions that were not used for a week.
    """
    return _in_bash(
        _set(session, run_id, {"sweeps": "1" if sweeps else "0"}) + pieces["place"] + pieces["look"], run_id
    )


def close(pieces: Mapping[str, str], session: ShellSession, run_id: str) -> str:
    """The script that drops a session and prints "closed", or "missing" where there is none."""
    values = {"wait": "0", "limit": "60"}
    return _in_bash(_set(session, run_id, values) + pieces["place"] + pieces["close"], run_id)


def _set(session: ShellSession, run_id: str, values: Mapping[str, str]) -> str:
    given = {"key": session.key, "name": session.name, "run": run_id, **values}
    return "".join(f"__rsm_{name}={quote(value)}\n" for name, value in given.items())


def _in_bash(program: str, run_id: str) -> str:
    """One line that any shell like sh understands, and that has bash evaluate the program."""
    escaped = quote(program.replace("\\", "\\\\").replace("\n", "\\n"))
    refuse = f"echo 'remote-sandbox-session {run_id} %s' >&2; exit {REFUSED}"
    return (
        f"__rsm_p={escaped}; "
        f'[ -n "${{BASH_VERSION-}}" ] || {{ command -v bash >/dev/null 2>&1 || {{ {refuse % "bash"}; }}; '
        f"[ ${{#__rsm_p}} -lt {LONGEST_ARGUMENT} ] || {{ {refuse % 'long'}; }}; "
        f'exec bash -c {quote("__rsm_p=$1; shift; " + _BOOT)} bash "$__rsm_p"; }}; '
        f"{_BOOT}"
    )


def refusal_of(done: Completed, session: str, sandbox: str) -> str:
    """Explain why a command was not begun, as a sentence; empty for one that was."""
    said = _REFUSAL.match(done.stderr.head.decode("utf-8", "replace")) if done.exit_code == REFUSED else None
    if said is None or said["run"] != done.run_id:
        return ""
    handle = said["detail"] or ""
    reasons = {
        "bash": f"{sandbox} has no bash, which sessions need; leave out session",
        "long": f"a command of {LONGEST_ARGUMENT} bytes or more needs bash as the shell of {sandbox}; "
        'set shell = "bash -c" in its table of config.toml, or put the script into a file',
        "place": f"{sandbox} has no folder that is private and can be written, in which a session could be kept",
        "full": f"{handle} on {sandbox} cannot be written; leave out session, and see whether the disk is full",
        "foreign": f"{handle} on {sandbox} belongs to another user, so it was not read; remove it",
        "busy": f"the session {session} on {sandbox} is in use by the command {handle}; wait for it with "
        f"wait_background_task(tmux_session={handle!r}), or use another session",
    }
    return f"nothing was run: {reasons.get(said['why'], said['why'])}"


@dataclass(frozen=True)
class StateReport:
    """Report on a session's state. `is_kept`: as the command left it; else it is as before the command."""

    is_kept: bool = False
    # There was a state when the command began.
    was_there: bool = False
    # The session's folder could not be entered.
    is_folder_gone: bool = False
    folder: str = ""


def read_report(text: str, run_id: str) -> StateReport | None:
    """Parse the machine's line about a command; None where there is none: it was ended before it could begin."""
    words = text.rstrip("\n").split(" ", 4)
    if len(words) != 5 or words[0] != run_id:
        return None
    return StateReport(words[1] == "kept", words[2] == "found", words[3] == "1", words[4])


# The state as a result's field tells it.
KEPT, NEW = "kept", "new"
AS_BEFORE = "as before the command, which was ended"
LEFT_NOTHING = "as before the command: its shell ended without leaving its state (exec, or a full disk)"
LOST = "lost: its state is gone from the machine (variables, functions, folder), so the command began in a new shell"
IN_USE = "in use by this command until it ends"


def state_text(report: StateReport | None, done: Completed, was_used: bool) -> str:
    """Describe the session's state after a command. `was_used`: this installation has used it before."""
    if report is None:
        return AS_BEFORE
    if was_used and not report.was_there:
        return LOST
    if not report.is_kept:
        return AS_BEFORE if done.signal or done.ending is not Ending.EXITED else LEFT_NOTHING
    if report.is_folder_gone:
        return f"{KEPT}, but its folder was gone, so the command began in the home folder"
    return KEPT if report.was_there else NEW
