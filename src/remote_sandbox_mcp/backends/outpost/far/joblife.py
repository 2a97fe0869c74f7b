"""A job comes to life: its keeper is started, in tmux or detached, and has the command running; or it never will."""

import errno
import os
import pwd
import shutil
import time

from .family import NO_PROCESS, insist
from .files import Refused
from .joblogin import ends_with_login, scope_for, scope_works
from .jobrecord import JOB_COOKIE, has_begun, is_job_locked, read_begun, read_json
from .jobtools import python_words, tmux_call, tmux_server, tmux_session_ends
from .place import to_bytes, to_text

MYPY = False
if MYPY:
    from typing import Any

BEGIN_S = 15.0
ON_ITS_WAY_S = 2.0
SESSION_ENDS_S = 3.0
NO_MANAGER = "the user's own systemd does not answer, so the job will not outlive the login"


def comes_to_life(folder: bytes) -> bool:
    """Whether a keeper has the job. Whoever asked for one may have been killed while it was on its way."""
    deadline = time.monotonic() + ON_ITS_WAY_S
    while not has_begun(folder) and not is_job_locked(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def describe_begun(folder: bytes, order: "dict[str, Any]") -> "dict[str, Any]":
    begun = read_json(folder, b"begun")
    via = begun.get("via", "detached")
    return {"session": order["session"], "log": order["log"], "cwd": order["cwd"], "via": via, "notes": []}


def bring_to_life(folder: bytes, order: "dict[str, Any]", notes: "list[str]") -> "dict[str, Any]":
    """Start the keeper, in tmux if there is one, and wait until it has the command running."""
    scope, told = scope_for(str(order["id"]), pwd.getpwuid(os.getuid()).pw_name)
    if scope and not scope_works(scope):
        scope, told = [], [NO_MANAGER]
    words = [to_bytes(word) for word in python_words()] + [os.path.join(folder, b"keeper.py"), folder]
    try:
        problem = start_in_tmux(words, order, scope) if shutil.which("tmux") else ""
    except Refused:
        if withdraw(folder):
            raise
        problem = None
    if problem is not None and not has_begun(folder):
        told = told + (["it runs without tmux: %s" % problem] if problem else [])
        start_detached([to_bytes(word) for word in scope] + words + [b"detached"])
    try:
        await_begun(folder)
    except Refused:
        # Whoever is told so may start another of that name at once.
        if problem is None:
            tmux_session_ends(to_bytes(order["session"]), SESSION_ENDS_S)
        raise
    return dict(describe_begun(folder, order), recovered=False, notes=notes + told)


def start_in_tmux(words: "list[bytes]", order: "dict[str, Any]", scope: "list[str]") -> "str | None":
    """None where the keeper has been started there, otherwise why not. Raises Refused for a name in use."""
    server = tmux_server() if scope else 0
    if server and ends_with_login(server):
        return "the tmux server that runs was started by a login, and ends with it"
    session = to_bytes(order["session"])
    # Where a person who attaches opens further panes.
    new = ["new-session", "-d", "-s", session, "-x", "200", "-y", "50", "-c", to_bytes(order["cwd"])]
    # A session whose pane stayed after its end would keep its name in use.
    keep_none = [";", "set-window-option", "-t", b"=" + session + b":", "remain-on-exit", "off"]
    said = tmux_call(*new, *words, b"tmux", *keep_none, before=() if server else tuple(scope))
    text = said.text.decode("utf-8", "replace").strip()
    if "duplicate session" in text:
        raise Refused("in_use", "a tmux session named %s is there already" % to_text(session))
    # A command that is over at once takes its session with it, before anything could be set.
    if said.code == 0 or "can't find" in text or "no such" in text or "no current" in text:
        return None
    return text[-200:] or "tmux could not be started"


def start_detached(words: "list[bytes]") -> None:
    """In a session of its own, and nobody's child."""
    middle = insist(os.fork)
    if middle:
        os.waitpid(middle, 0)
        return
    try:
        os.setsid()
        if not insist(os.fork):
            os.environb.pop(JOB_COOKIE, None)
            os.execvpe(words[0], words, os.environb)
    finally:
        os._exit(0)


def await_begun(folder: bytes) -> None:
    """Until the command runs. Raises Refused, and then it never will."""
    deadline = time.monotonic() + BEGIN_S
    while not os.path.lexists(os.path.join(folder, b"begun")):
        failed = read_json(folder, b"failed")
        if failed:
            raise Refused("shell", "unable to start the shell: %s" % failed["message"])
        is_troubled = os.path.lexists(os.path.join(folder, b"trouble"))
        if time.monotonic() > deadline or is_troubled:
            # A claim's record is whole before the command may run: who failed before that has let nothing go.
            if not withdraw(folder) and (read_begun(folder) or not is_troubled):
                return
            trouble, no_room = trouble_of(folder), os.strerror(errno.EAGAIN)
            if no_room in trouble:
                raise Refused("fork", NO_PROCESS % no_room)
            raise Refused("keeper", "the job's keeper did not come to life%s" % trouble)
        time.sleep(0.002)


def trouble_of(folder: bytes) -> str:
    try:
        with open(os.path.join(folder, b"trouble"), "rb") as file:
            return ": " + file.read(300).decode("utf-8", "replace")
    except OSError:
        return ""


def withdraw(folder: bytes) -> bool:
    """Take the claim ourselves, so that a keeper who comes late begins nothing; False where one has it already."""
    try:
        os.close(os.open(os.path.join(folder, b"claim"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return True
    except FileExistsError:
        return False
