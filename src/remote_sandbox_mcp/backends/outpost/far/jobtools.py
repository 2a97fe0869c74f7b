"""Other programs that jobs are started and looked at with: tmux, shells; each with a limit."""

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import time

from .family import descendants, strike

MYPY = False
if MYPY:
    from typing import Any

MOST_SAID = 65536
WITH_SYNTAX_CHECK = {"sh": [], "dash": [], "ash": [], "ksh": [], "mksh": [], "zsh": [], "bash": ["-O", "extglob"]}


class Said:
    """What a program printed, the end of it, and how it ended; None for one that took too long."""

    def __init__(self, code: "int | None", text: bytes) -> None:
        self.code = code
        self.text = text


def call(argv: "list[Any]", seconds: float, folder: "bytes | str" = b"/", **options: "Any") -> Said:
    """Run a program to its end, or end its tree when its time is over. Raises OSError where it cannot be started."""
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
            said = (said + data)[-MOST_SAID:]
    except subprocess.TimeoutExpired:
        return Said(None, said)
    finally:
        if process.returncode is None:
            # What has left its parent is ours, where we are a subreaper.
            strike(descendants(os.getpid(), process.pid), signal.SIGKILL)
            process.kill()
            process.wait()
        process.stdout.close()


def tmux_call(*words: "Any", before: "tuple[str, ...]" = ()) -> Said:
    """tmux as this user has it; whatever becomes its server must not seem to belong to a job."""
    environment = {name: value for name, value in os.environb.items() if name not in (b"RSMCP_JOB_ID", b"TMUX")}
    return call(list(before) + ["tmux", "-u"] + list(words), 10.0, env=environment)


def has_tmux_session(session: bytes) -> bool:
    """Exactly that name: tmux would take the beginning of one, too."""
    try:
        return tmux_call("has-session", "-t", b"=" + session).code == 0
    except OSError:
        return False


def tmux_session_ends(session: bytes, seconds: float) -> bool:
    """Whether there is no such session, or none any more in time: tmux puts one away after its command has ended."""
    deadline = time.monotonic() + seconds
    while has_tmux_session(session):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def tmux_panes(session: bytes) -> "tuple[list[int], float]":
    """The processes of a session's panes, and when the session was made; nothing where there is no such session."""
    try:
        # With the colon it is the name of a session; without one tmux may take that of another session for it.
        said = tmux_call("list-panes", "-s", "-t", b"=" + session + b":", "-F", "#{pane_pid} #{session_created}")
    except OSError:
        return [], 0.0
    rows = [line.split() for line in said.text.splitlines()] if said.code == 0 else []
    whole = [row for row in rows if len(row) == 2 and row[0].isdigit() and row[1].isdigit()]
    return [int(pid) for pid, _ in whole], float(whole[0][1]) if whole else 0.0


def tmux_server() -> int:
    """The pid of the user's tmux server, 0 for none."""
    said = tmux_call("display-message", "-p", "#{pid}")
    return int(said.text) if said.code == 0 and said.text.strip().isdigit() else 0


def python_words() -> "list[str]":
    """This very Python; one outside of the system's folders may not find its own library by itself."""
    executable = sys.executable or "python3"
    if executable.startswith(("/usr/", "/bin/")):
        return [executable, "-IS"]
    return ["env", "LD_LIBRARY_PATH=%s/lib" % sys.base_prefix, executable, "-IS"]


def find_shell(configured: "list[str]") -> "list[str]":
    """As exec has it: the configured one, or bash, or sh where there is no bash. Raises OSError."""
    shells = [configured] if configured else [["bash", "-c"], ["sh", "-c"]]
    for shell in shells:
        found = shutil.which(shell[0])
        if found:
            return [found] + shell[1:]
    raise OSError(errno.ENOENT, "unable to start %s: %s" % (" ".join(shells[-1]), os.strerror(errno.ENOENT)))


def syntax_problem(shell: "list[str]", path: bytes) -> str:
    """What the shell that will run a script says against its syntax; "" for nothing."""
    options = WITH_SYNTAX_CHECK.get(os.path.basename(shell[0]))
    if options is None:
        return ""
    said = call([shell[0]] + options + ["-n", path], 20.0)
    if not said.code:
        return ""
    text = said.text.replace(path, b"command").decode("utf-8", "replace").strip()
    return text[:1000] or "the shell refuses it"
