"""Runs the programs that jobs need, each with a time limit: tmux, and shells that check syntax."""

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

from ..outpost.family import descendants, strike

MOST_SAID = 65536
# Shells whose -n checks a script without running it, with the options that this needs.
WITH_SYNTAX_CHECK = {"sh": [], "dash": [], "ash": [], "ksh": [], "mksh": [], "zsh": [], "bash": ["-O", "extglob"]}


class Said:
    """The last part of what a program printed, and its exit code; None if it took too long."""

    def __init__(self, code: "int | None", text: bytes) -> None:
        self.code = code
        self.text = text


def call(
    argv: "list[Any]", seconds: float, folder: "bytes | str" = b"/", most: int = MOST_SAID, **options: "Any"
) -> Said:
    """Run a program; when its time is over, kill it and its descendants. Raises OSError if it cannot be started."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        start_new_session=True,
        **options,
    )
    assert process.stdout is not None
    deadline, said = time.monotonic() + seconds, b""
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                return Said(None, said)
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                process.wait(max(0.1, deadline - time.monotonic()))
                return Said(process.returncode, said)
            said = (said + data)[-most:]
    except subprocess.TimeoutExpired:
        return Said(None, said)
    finally:
        if process.returncode is None:
            # Descendants whose parent has ended became our children if we are a subreaper.
            strike(descendants(os.getpid(), process.pid), signal.SIGKILL)
            process.kill()
            process.wait()
        process.stdout.close()


def tmux_call(*words: "Any", before: "tuple[str, ...]" = ()) -> Said:
    """Run tmux. It may become the user's tmux server, which must not carry a job's id in its environment."""
    environment = {name: value for name, value in os.environb.items() if name not in (b"RSMCP_JOB_ID", b"TMUX")}
    return call(list(before) + ["tmux", "-u"] + list(words), 10.0, env=environment)


def has_tmux_session(session: bytes) -> bool:
    """Whether there is a session of exactly this name. Without `=` tmux would also match the beginning of a name."""
    try:
        return tmux_call("has-session", "-t", b"=" + session).code == 0
    except OSError:
        return False


def tmux_session_ends(session: bytes, seconds: float) -> bool:
    """Whether the session is gone within this time. tmux removes one a moment after its command has ended."""
    deadline = time.monotonic() + seconds
    while has_tmux_session(session):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def tmux_panes(session: bytes) -> "tuple[list[int], float]":
    """Pids of a session's panes, and when the session was created; nothing if there is no such session."""
    try:
        # The colon makes it the name of a session; without one, tmux may answer for another session.
        said = tmux_call("list-panes", "-s", "-t", b"=" + session + b":", "-F", "#{pane_pid} #{session_created}")
    except OSError:
        return [], 0.0
    rows = [line.split() for line in said.text.splitlines()] if said.code == 0 else []
    whole = [row for row in rows if len(row) == 2 and row[0].isdigit() and row[1].isdigit()]
    return [int(pid) for pid, _ in whole], float(whole[0][1]) if whole else 0.0


def tmux_server() -> int:
    """The pid of the user's tmux server; 0 if none runs."""
    said = tmux_call("display-message", "-p", "#{pid}")
    return int(said.text) if said.code == 0 and said.text.strip().isdigit() else 0


def python_words() -> "list[str]":
    """The command for the Python that runs this. One outside the system's folders may need the path of its library."""
    executable = sys.executable or "python3"
    if executable.startswith(("/usr/", "/bin/")):
        return [executable, "-IS"]
    return ["env", "LD_LIBRARY_PATH=%s/lib" % sys.base_prefix, executable, "-IS"]


def find_shell(configured: "list[str]") -> "list[str]":
    """The shell that exec_bash would use: the configured one, else bash, else sh. Raises OSError."""
    shells = [configured] if configured else [["bash", "-c"], ["sh", "-c"]]
    for shell in shells:
        found = shutil.which(shell[0])
        if found:
            return [found] + shell[1:]
    raise OSError(errno.ENOENT, "unable to start %s: %s" % (" ".join(shells[-1]), os.strerror(errno.ENOENT)))


def syntax_problem(shell: "list[str]", path: bytes) -> str:
    """The syntax error that the shell finds in a script before running it; "" for none."""
    options = WITH_SYNTAX_CHECK.get(os.path.basename(shell[0]))
    if options is None:
        return ""
    said = call([shell[0]] + options + ["-n", path], 20.0)
    if not said.code:
        return ""
    text = said.text.replace(path, b"command").decode("utf-8", "replace").strip()
    return text[:1000] or "the shell refuses it"
