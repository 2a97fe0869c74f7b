"""What can be done about a background job: wait for it, stop it, type into it."""

import os
import re
import signal
import time

from .files import WORKERS, Refused, open_regular
from .joblook import (
    Lookout,
    describe_job,
    find_state,
    foreign_state,
    job_state,
    list_jobs,
    look_at_jobs,
    wanted_job,
    with_descendants,
)
from .jobrecord import JOB_STOP_MARK, birth_of, is_same_process, is_told_to_stop, write_end, write_json
from .jobstart import start_job
from .jobtools import has_tmux_session, tmux_call
from .output import Listener
from .place import to_bytes
from .wire import END, json_frame

MYPY = False
if MYPY:
    from typing import Any

    from ....core.orders import JobQuestion, JobsAnswer, JobSendOrder, JobStopOrder, JobWaitAnswer, JobWaitOrder

LONGEST_WAIT_S = 20.0
POLL_S = 0.05
FOREIGN_POLL_S = 0.5
SCAN_BLOCK = 1 << 20
# What is searched of a line that does not end.
LONGEST_PARTIAL = 1 << 16
KEY = re.compile(
    r"(?:[CMS]-){0,3}(?:[!-~]|F(?:[1-9]|1[0-9]|20)|Up|Down|Left|Right|Enter|Escape|Space|Tab|BTab|BSpace|DC|Delete|IC|Insert"
    r"|Home|End|NPage|PageDown|PgDn|PPage|PageUp|PgUp)\Z"
)
TEXT_BYTES = 4000


# Waiting


def wait_for_job(order: "JobWaitOrder", raw: bytes, request: int, listener: Listener) -> None:
    """Until the job ends, prints what is waited for, or is silent for too long; no longer than one line's patience."""
    look, pattern = order["job"], compile_wanted(str(order.get("pattern", "")))
    deadline = time.monotonic() + min(float(order["seconds"]), LONGEST_WAIT_S)
    folder = wanted_job(look)
    scan = Scan(pattern, order.get("from"))
    while True:
        known = job_state(folder) if folder else find_state(look, Lookout())
        line = scan.search(known)
        why = why_over(known, line, float(order.get("silence", 0.0)))
        if why or time.monotonic() >= deadline or listener.fd < 0:
            break
        # Without a keeper, every look is one at all processes.
        pause = POLL_S if folder and not known.get("reason") else FOREIGN_POLL_S
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
    answer = describe_job(look, known, Lookout(), request, listener)
    result: "JobWaitAnswer" = {"jobs": [answer], "why": why, "line": line or "", "from": scan.position}
    listener.send(json_frame(END, request, result))


def compile_wanted(pattern: str) -> "Any":
    try:
        return re.compile(to_bytes(pattern)) if pattern else None
    except (re.error, OverflowError, RecursionError) as problem:
        raise Refused("pattern", "the pattern %r is not a regular expression: %s" % (pattern[:200], problem))


def why_over(known: "dict[str, Any]", line: "str | None", silence: float) -> str:
    if line is not None:
        return "pattern"
    if known["state"] != "running":
        return "ended"
    return "silence" if silence > 0 and silent_for(known) >= silence else ""


def silent_for(known: "dict[str, Any]") -> float:
    started = float(known["begun"].get("started", 0.0))
    try:
        grown = os.stat(to_bytes(known["order"].get("log", ""))).st_mtime
    except OSError:
        grown = 0.0
    return time.time() - max(grown, started) if grown or started else 0.0


class Scan:
    """Looks for a pattern line by line, once over each whole line, and again over one that may still grow."""

    def __init__(self, pattern: "Any", position: "int | None") -> None:
        self.pattern = pattern
        # Logs are appended to: without a position the search begins with what this job has printed.
        self.given = position
        self.position = position or 0
        self.searched = -1

    def search(self, known: "dict[str, Any]") -> "str | None":
        """The first line that fits; the position is then behind it."""
        if self.pattern is None:
            return None
        if self.given is None:
            self.given = self.position = int(known["order"].get("log_start", 0))
        try:
            fd, found = open_regular(to_bytes(known["order"].get("log", "")))
        except (OSError, Refused):
            return None
        with open(fd, "rb") as file:
            if found.st_size == self.searched:
                return None
            self.searched = found.st_size
            if found.st_size < self.position:
                self.position = 0
            return self.search_file(file)

    def search_file(self, file: "Any") -> "str | None":
        while True:
            file.seek(self.position)
            block = file.read(SCAN_BLOCK)
            whole, newline, partial = block.rpartition(b"\n")
            for line in whole.split(b"\n") if newline else []:
                self.position += len(line) + 1
                if self.pattern.search(line):
                    return shown(line)
            if partial and self.pattern.search(partial):
                self.position += len(partial)
                return shown(partial)
            if len(partial) > LONGEST_PARTIAL:
                self.position += len(partial) - LONGEST_PARTIAL
            if len(block) < SCAN_BLOCK:
                return None


def shown(line: bytes) -> str:
    return line[:1000].decode("utf-8", "replace").rstrip("\r")


# Stopping


def stop_job(order: "JobStopOrder", raw: bytes, request: int, listener: Listener) -> None:
    """Tell it to end, and wait for that as long as one request may; whoever asks again waits on."""
    look, grace = order["job"], float(order["grace"])
    deadline = time.monotonic() + min(grace + 8.0, LONGEST_WAIT_S)
    known = find_state(look, Lookout())
    if known["state"] == "running" and not known.get("foreign"):
        if known.get("reason"):
            end_orphans(known, grace)
        else:
            while known["state"] == "running" and time.monotonic() < deadline:
                tell_keeper(known, grace)
                time.sleep(0.02)
                known = job_state(known["folder"])
        await_session_end(known)
        known = job_state(known["folder"])
    elif known["state"] == "running":
        known = end_session(look, known, deadline, grace)
    answer = describe_job(look, known, Lookout(), request, listener)
    result: "JobsAnswer" = {"jobs": [answer]}
    listener.send(json_frame(END, request, result))


def tell_keeper(known: "dict[str, Any]", grace: float) -> None:
    """The mark first, then the signal, and that only to the very process that keeps the job."""
    folder, begun = known["folder"], known["begun"]
    if not begun or is_told_to_stop(folder):
        return
    try:
        write_json(folder, b"stop", {"grace": grace})
    except OSError:
        # A full disk: the mark below works there, and the keeper has a grace of its own.
        pass
    os.chmod(os.path.join(folder, b"lock"), 0o600 | JOB_STOP_MARK)
    keeper, birth = int(begun["keeper"]), int(begun["keeper_birth"])
    if is_same_process(keeper, birth) or not birth:
        os.kill(keeper, signal.SIGTERM)


def end_orphans(known: "dict[str, Any]", grace: float) -> None:
    """Do what its keeper would have done. Every process is known by its environment at the moment it is struck."""
    job_id, folder = str(known["order"]["id"]), known["folder"]
    kill_at = time.monotonic() + min(grace, LONGEST_WAIT_S - 6.0)
    strike_all(Lookout().members(job_id), signal.SIGTERM)
    left = Lookout().members(job_id)
    while left and time.monotonic() < kill_at + 5.0:
        if time.monotonic() >= kill_at:
            strike_all(left, signal.SIGKILL)
        time.sleep(0.05)
        left = Lookout().members(job_id)
    if not left:
        end = {"exit": 143, "signal": "SIGTERM", "ending": "stopped", "ended": time.time(), "bytes": 0, "lost": 0}
        write_end(folder, dict(end, survivors=[]))


def strike_all(pids: "list[int]", number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)
        except OSError:
            pass


def await_session_end(known: "dict[str, Any]") -> None:
    """Where the job was in tmux, its session is gone when this returns."""
    deadline = time.monotonic() + 2.0
    session = to_bytes(known["order"].get("session", ""))
    while known["begun"].get("via") == "tmux" and known["state"] == "ended" and time.monotonic() < deadline:
        if not has_tmux_session(session):
            return
        time.sleep(0.02)


def end_session(look: "JobQuestion", known: "dict[str, Any]", deadline: float, grace: float) -> "dict[str, Any]":
    """Somebody else's session: its processes are hung up, and those that stay are killed after the grace."""
    pids = with_descendants(known.get("panes", []), Lookout())
    births = {pid: birth_of(pid) for pid in pids}
    session = to_bytes(str(look["session"]))
    tmux_call("kill-session", "-t", b"=" + session)
    kill_at = min(time.monotonic() + grace, deadline - 3.0)
    left = still_alive(births)
    while left and time.monotonic() < deadline:
        if time.monotonic() >= kill_at:
            strike_all(left, signal.SIGKILL)
        time.sleep(0.05)
        left = still_alive(births)
    seen = foreign_state(look)
    if left or seen["state"] == "running":
        return dict(seen, state="running", survivors=left)
    # Its log may tell its exit code; otherwise nobody knows one, but that it ended is certain.
    told = {"exit": seen.get("exit"), "signal": "", "ending": "stopped", "reason": None, "ended": time.time()}
    return dict(known, state="ended", survivors=[], **told)


def still_alive(births: "dict[int, int]") -> "list[int]":
    return [pid for pid, birth in births.items() if is_same_process(pid, birth)]


# Typing


def type_into_job(order: "JobSendOrder", raw: bytes, request: int, listener: Listener) -> None:
    known = find_state(order["job"], Lookout())
    text, keys = str(order.get("text", "")), [str(key) for key in order.get("keys", [])]
    if known["state"] != "running":
        raise Refused("state", "the job does not run, so nothing can be typed into it")
    if not known.get("foreign") and known["begun"].get("via") != "tmux":
        raise Refused("unsupported", "the job runs without tmux, so nothing can be typed into it")
    bad = [key for key in keys if not KEY.match(key)]
    if bad:
        raise Refused("key", "%r is not a key's name as tmux has it, like Enter, C-c, Up, F1, M-x" % bad[0][:40])
    if "\0" in text:
        raise Refused("key", "a text with a NUL cannot be typed")
    target = known["begun"].get("pane") or "=%s:" % known["order"]["session"]
    for part in text_parts(text):
        send_keys(to_bytes(target), ["-l", "--", part])
    if keys:
        send_keys(to_bytes(target), ["--"] + [literal(to_bytes(key)) for key in keys])
    listener.send(json_frame(END, request, {}))


def text_parts(text: str) -> "list[bytes]":
    """tmux takes messages of limited length, and cuts a word that ends in a semicolon."""
    size = TEXT_BYTES // 4
    return [literal(to_bytes(text[at : at + size])) for at in range(0, len(text), size)]


def literal(word: bytes) -> bytes:
    return word[:-1] + b"\\;" if word.endswith(b";") else word


def send_keys(target: bytes, words: "list[Any]") -> None:
    said = tmux_call("send-keys", "-t", target, *words)
    if said.code != 0:
        raise Refused("tmux", "tmux did not take it: %s" % said.text.decode("utf-8", "replace").strip()[:200])


JOB_VERBS = {
    "job_start": start_job,
    "job_look": look_at_jobs,
    "job_list": list_jobs,
    "job_wait": wait_for_job,
    "job_stop": stop_job,
    "job_send": type_into_job,
}
WORKERS.update(JOB_VERBS)
