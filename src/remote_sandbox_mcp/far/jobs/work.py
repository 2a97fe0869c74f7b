"""The requests that act on a background job: wait for it, stop it, type into it; and the table of all job requests."""

import os
import re
import signal
import time

from ..outpost.files import WORKERS, Refused, open_regular
from ..outpost.output import Listener
from ..outpost.place import to_bytes
from ..outpost.wire import END, json_frame
from .look import (
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
from .record import JOB_STOP_MARK, birth_of, is_same_process, is_told_to_stop, write_end, write_json
from .start import start_job
from .tools import has_tmux_session, tmux_call

MYPY = False
if MYPY:
    from typing import Any

    from ...core.orders import JobQuestion, JobsAnswer, JobSendOrder, JobStopOrder, JobWaitAnswer, JobWaitOrder

# One request waits no longer than this; the near side asks again until the caller's own time is over.
LONGEST_WAIT_S = 20.0
POLL_S = 0.05
FOREIGN_POLL_S = 0.5
ARRAY_POLL_S = 2.0
SCAN_BLOCK = 1 << 20
# Of a line without an end, at most so many of its last bytes are searched again.
LONGEST_PARTIAL = 1 << 16
# Names of keys as tmux knows them; anything else would be typed as text.
KEY = re.compile(
    r"(?:[CMS]-){0,3}(?:[!-~]|F(?:[1-9]|1[0-9]|20)|Up|Down|Left|Right|Enter|Escape|Space|Tab|BTab|BSpace|DC|Delete|IC|Insert"
    r"|Home|End|NPage|PageDown|PgDn|PPage|PageUp|PgUp)\Z"
)
TEXT_BYTES = 4000


# Waiting


def wait_for_job(order: "JobWaitOrder", raw: bytes, request: int, listener: Listener) -> None:
    """Wait until the job ends, prints a line that matches, or is silent for too long; at most LONGEST_WAIT_S."""
    look, pattern = order["job"], compile_wanted(str(order.get("pattern", "")))
    deadline = time.monotonic() + min(float(order["seconds"]), LONGEST_WAIT_S)
    folder = wanted_job(look)
    scan = Scan(pattern, order.get("from"))
    while True:
        lookout = Lookout(float(order.get("queue_rate", 0.0)))
        known = job_state(folder, lookout, str(look.get("element") or "")) if folder else find_state(look, lookout)
        line = scan.search(known)
        why = why_over(known, line, float(order.get("silence", 0.0)))
        if why or time.monotonic() >= deadline or listener.fd < 0:
            break
        # Without a keeper, every look reads all processes of the machine.
        pause = POLL_S if folder and not known.get("reason") and known.get("via") != "slurm" else FOREIGN_POLL_S
        # Every look at an array is one at all of its elements.
        pause = ARRAY_POLL_S if (known.get("queue") or {}).get("array") else pause
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
    if known["state"] not in ("running", "pending"):
        return "ended"
    return "silence" if known["state"] == "running" and silence > 0 and silent_for(known) >= silence else ""


def silent_for(known: "dict[str, Any]") -> float:
    started = float(known["begun"].get("started", 0.0))
    try:
        grown = os.stat(to_bytes(known["order"].get("log", ""))).st_mtime
    except OSError:
        grown = 0.0
    return time.time() - max(grown, started) if grown or started else 0.0


class Scan:
    """Searches a log for a pattern: each complete line once, the last incomplete line again whenever the log grows."""

    def __init__(self, pattern: "Any", position: "int | None") -> None:
        self.pattern = pattern
        # A log may hold the output of earlier jobs: without a position the search begins where this job's output does.
        self.given = position
        self.position = position or 0
        self.searched = -1

    def search(self, known: "dict[str, Any]") -> "str | None":
        """The first line that matches; `position` is then behind it."""
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
            # Shorter than what was read: the log was replaced or cut, so it is searched from its beginning.
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
    """Tell a job to end, and wait for that at most LONGEST_WAIT_S; a repeated request continues to wait."""
    look, grace = order["job"], float(order["grace"])
    deadline = time.monotonic() + min(grace + 8.0, LONGEST_WAIT_S)
    lookout = Lookout(float(order.get("queue_rate", 0.0)))
    known = find_state(look, lookout)
    if known.get("via") == "slurm" and known["state"] in ("running", "pending"):
        known = stop_submitted(known, lookout, grace, deadline)
    elif known["state"] == "running" and not known.get("foreign"):
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


def stop_submitted(known: "dict[str, Any]", lookout: Lookout, grace: float, deadline: float) -> "dict[str, Any]":
    """The cluster that knows a submitted job can also stop it."""
    cluster = lookout.cluster
    stopped = cluster.stop_foreign(known, deadline) if known.get("foreign") else cluster.stop(known, grace, deadline)
    return dict(stopped)


def tell_keeper(known: "dict[str, Any]", grace: float) -> None:
    """Set the stop mark, then signal the keeper, after checking that its pid was not reused."""
    folder, begun = known["folder"], known["begun"]
    if not begun or is_told_to_stop(folder):
        return
    try:
        write_json(folder, b"stop", {"grace": grace})
    except OSError:
        # On a full disk the mark below still works, and the keeper uses its default grace.
        pass
    os.chmod(os.path.join(folder, b"lock"), 0o600 | JOB_STOP_MARK)
    keeper, birth = int(begun["keeper"]), int(begun["keeper_birth"])
    if is_same_process(keeper, birth) or not birth:
        os.kill(keeper, signal.SIGTERM)


def end_orphans(known: "dict[str, Any]", grace: float) -> None:
    """End the processes of a job whose keeper was killed, and write its end.

    The processes are looked up by their environment before each signal: a pid may have been reused.
    """
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
    """Wait until the tmux session of an ended job is gone, so that its name can be used again."""
    deadline = time.monotonic() + 2.0
    session = to_bytes(known["order"].get("session", ""))
    while known["begun"].get("via") == "tmux" and known["state"] == "ended" and time.monotonic() < deadline:
        if not has_tmux_session(session):
            return
        time.sleep(0.02)


def end_session(look: "JobQuestion", known: "dict[str, Any]", deadline: float, grace: float) -> "dict[str, Any]":
    """Kill a tmux session that is not a job of ours; processes that survive the hangup are killed after the grace."""
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
    # Its log may contain its exit code; without one, it is still certain that it ended.
    told = {"exit": seen.get("exit"), "signal": "", "ending": "stopped", "reason": None, "ended": time.time()}
    return dict(known, state="ended", survivors=[], **told)


def still_alive(births: "dict[int, int]") -> "list[int]":
    return [pid for pid, birth in births.items() if is_same_process(pid, birth)]


# Typing


def type_into_job(order: "JobSendOrder", raw: bytes, request: int, listener: Listener) -> None:
    lookout = Lookout()
    known = find_state(order["job"], lookout)
    text, keys = str(order.get("text", "")), [str(key) for key in order.get("keys", [])]
    if known["state"] != "running":
        raise Refused("state", "the job does not run, so nothing can be typed into it")
    is_submitted = known.get("via") == "slurm" and not known.get("foreign")
    if not is_submitted and (known.get("via") == "slurm" or not is_in_tmux(known)):
        raise Refused("unsupported", "the job runs without tmux, so nothing can be typed into it")
    bad = [key for key in keys if not KEY.match(key)]
    if bad:
        raise Refused("key", "%r is not a key's name as tmux has it, like Enter, C-c, Up, F1, M-x" % bad[0][:40])
    if "\0" in text:
        raise Refused("key", "a text with a NUL cannot be typed")
    if is_submitted:
        lookout.cluster.type_into(known, text, keys)
    else:
        type_into_pane(known, text, keys)
    listener.send(json_frame(END, request, {}))


def is_in_tmux(known: "dict[str, Any]") -> bool:
    return bool(known.get("foreign") or known["begun"].get("via") == "tmux")


def type_into_pane(known: "dict[str, Any]", text: str, keys: "list[str]") -> None:
    target = known["begun"].get("pane") or "=%s:" % known["order"]["session"]
    for part in text_parts(text):
        send_keys(to_bytes(target), ["-l", "--", part])
    if keys:
        send_keys(to_bytes(target), ["--"] + [literal(to_bytes(key)) for key in keys])


def text_parts(text: str) -> "list[bytes]":
    """Split a text for send-keys: tmux limits the length of a message."""
    size = TEXT_BYTES // 4
    return [literal(to_bytes(text[at : at + size])) for at in range(0, len(text), size)]


def literal(word: bytes) -> bytes:
    """Escape a last semicolon, which tmux would take for the end of its command."""
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
