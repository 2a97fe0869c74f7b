"""The requests that act on a background job: wait for it, stop it, type into it; and the table of all job requests."""

import contextlib
import os
import re
import signal
import time

from ..outpost.files import WORKERS, open_regular
from ..outpost.output import Listener
from ..outpost.place import Refused, birth_of, set_mode, to_bytes
from ..outpost.wire import END, json_frame
from .record import JOB_STOP_MARK, is_asked_to_stop, is_same_process, write_end, write_json
from .start import start_job
from .state import (
    ProcessTables,
    answer_job_query,
    describe_job,
    find_state,
    foreign_state,
    job_state,
    list_jobs,
    wanted_job,
    with_descendants,
)
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
    query, pattern = order["job"], compile_wanted(str(order.get("pattern", "")))
    deadline = time.monotonic() + min(float(order["seconds"]), LONGEST_WAIT_S)
    folder = wanted_job(query)
    scan = Scan(pattern, order.get("from"))
    while True:
        tables = ProcessTables(float(order.get("queue_rate", 0.0)))
        facts = job_state(folder, tables, str(query.get("element") or "")) if folder else find_state(query, tables)
        line = scan.search(facts)
        why = why_over(facts, line, float(order.get("silence", 0.0)))
        if why or time.monotonic() >= deadline or listener.fd < 0:
            break
        # Without a keeper, every look reads all processes of the machine.
        pause = POLL_S if folder and not facts.get("reason") and facts.get("via") != "slurm" else FOREIGN_POLL_S
        # Every look at an array is one at all of its elements.
        pause = ARRAY_POLL_S if (facts.get("queue") or {}).get("array") else pause
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
    answer = describe_job(query, facts, ProcessTables(), request, listener)
    result: "JobWaitAnswer" = {"jobs": [answer], "why": why, "line": line or "", "from": scan.position}
    listener.send(json_frame(END, request, result))


def compile_wanted(pattern: str) -> "Any":
    try:
        return re.compile(to_bytes(pattern)) if pattern else None
    except (re.error, OverflowError, RecursionError) as problem:
        raise Refused("pattern", "the pattern %r is not a regular expression: %s" % (pattern[:200], problem))


def why_over(facts: "dict[str, Any]", line: "str | None", silence: float) -> str:
    if line is not None:
        return "pattern"
    if facts["state"] not in ("running", "pending"):
        return "ended"
    return "silence" if facts["state"] == "running" and silence > 0 and silent_for(facts) >= silence else ""


def silent_for(facts: "dict[str, Any]") -> float:
    started = float(facts["begun"].get("started", 0.0))
    try:
        grown = os.stat(to_bytes(facts["order"].get("log", ""))).st_mtime
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

    def search(self, facts: "dict[str, Any]") -> "str | None":
        """The first line that matches; `position` is then behind it."""
        if self.pattern is None:
            return None
        if self.given is None:
            self.given = self.position = int(facts["order"].get("log_start", 0))
        try:
            fd, found = open_regular(to_bytes(facts["order"].get("log", "")))
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
    query, grace = order["job"], float(order["grace"])
    deadline = time.monotonic() + min(grace + 8.0, LONGEST_WAIT_S)
    tables = ProcessTables(float(order.get("queue_rate", 0.0)))
    facts = find_state(query, tables)
    if facts.get("via") == "slurm" and facts["state"] in ("running", "pending"):
        facts = stop_submitted(facts, tables, grace, deadline)
    elif facts["state"] == "running" and not facts.get("foreign"):
        if facts.get("reason"):
            end_orphans(facts, grace)
        else:
            while facts["state"] == "running" and time.monotonic() < deadline:
                signal_keeper(facts, grace)
                time.sleep(0.02)
                facts = job_state(facts["folder"])
        await_session_end(facts)
        facts = job_state(facts["folder"])
    elif facts["state"] == "running":
        facts = end_session(query, facts, deadline, grace)
    answer = describe_job(query, facts, ProcessTables(), request, listener)
    result: "JobsAnswer" = {"jobs": [answer]}
    listener.send(json_frame(END, request, result))


def stop_submitted(facts: "dict[str, Any]", tables: ProcessTables, grace: float, deadline: float) -> "dict[str, Any]":
    """The cluster that knows a submitted job can also stop it."""
    cluster = tables.cluster
    stopped = cluster.stop_foreign(facts, deadline) if facts.get("foreign") else cluster.stop(facts, grace, deadline)
    return dict(stopped)


def signal_keeper(facts: "dict[str, Any]", grace: float) -> None:
    """Set the stop mark, then signal the keeper, after checking that its pid was not reused."""
    folder, begun = facts["folder"], facts["begun"]
    if not begun or is_asked_to_stop(folder):
        return
    # On a full disk the mark below still works, and the keeper uses its default grace.
    with contextlib.suppress(OSError):
        write_json(folder, b"stop", {"grace": grace})
    set_mode(os.path.join(folder, b"lock"), 0o600 | JOB_STOP_MARK)
    keeper, birth = int(begun["keeper"]), int(begun["keeper_birth"])
    if is_same_process(keeper, birth) or not birth:
        os.kill(keeper, signal.SIGTERM)


def end_orphans(facts: "dict[str, Any]", grace: float) -> None:
    """End the processes of a job whose keeper was killed, and write its end."""
    # The processes are looked up by their environment before each signal: a pid may have been reused.
    job_id, folder = str(facts["order"]["id"]), facts["folder"]
    kill_at = time.monotonic() + min(grace, LONGEST_WAIT_S - 6.0)
    strike_all(ProcessTables().members(job_id), signal.SIGTERM)
    left = ProcessTables().members(job_id)
    while left and time.monotonic() < kill_at + 5.0:
        if time.monotonic() >= kill_at:
            strike_all(left, signal.SIGKILL)
        time.sleep(0.05)
        left = ProcessTables().members(job_id)
    if not left:
        end = {"exit": 143, "signal": "SIGTERM", "ending": "stopped", "ended": time.time(), "bytes": 0, "lost": 0}
        write_end(folder, dict(end, survivors=[]))


def strike_all(pids: "list[int]", number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)


def await_session_end(facts: "dict[str, Any]") -> None:
    """Wait until the tmux session of an ended job is gone, so that its name can be used again."""
    deadline = time.monotonic() + 2.0
    session = to_bytes(facts["order"].get("session", ""))
    while facts["begun"].get("via") == "tmux" and facts["state"] == "ended" and time.monotonic() < deadline:
        if not has_tmux_session(session):
            return
        time.sleep(0.02)


def end_session(query: "JobQuestion", facts: "dict[str, Any]", deadline: float, grace: float) -> "dict[str, Any]":
    """Kill a tmux session that is not a job of ours; processes that survive the hangup are killed after the grace."""
    pids = with_descendants(facts.get("panes", []), ProcessTables())
    births = {pid: birth_of(pid) for pid in pids}
    session = to_bytes(str(query["session"]))
    tmux_call("kill-session", "-t", b"=" + session)
    kill_at = min(time.monotonic() + grace, deadline - 3.0)
    left = still_alive(births)
    while left and time.monotonic() < deadline:
        if time.monotonic() >= kill_at:
            strike_all(left, signal.SIGKILL)
        time.sleep(0.05)
        left = still_alive(births)
    seen = foreign_state(query)
    if left or seen["state"] == "running":
        return dict(seen, state="running", survivors=left)
    # Its log may contain its exit code; without one, it is still certain that it ended.
    fields = {"exit": seen.get("exit"), "signal": "", "ending": "stopped", "reason": None, "ended": time.time()}
    return dict(facts, state="ended", survivors=[], **fields)


def still_alive(births: "dict[int, int]") -> "list[int]":
    return [pid for pid, birth in births.items() if is_same_process(pid, birth)]


# Typing


def type_into_job(order: "JobSendOrder", raw: bytes, request: int, listener: Listener) -> None:
    tables = ProcessTables()
    facts = find_state(order["job"], tables)
    text, keys = str(order.get("text", "")), [str(key) for key in order.get("keys", [])]
    if facts["state"] != "running":
        raise Refused("state", "the job does not run, so nothing can be typed into it")
    is_submitted = facts.get("via") == "slurm" and not facts.get("foreign")
    is_in_tmux = facts.get("foreign") or facts["begun"].get("via") == "tmux"
    if not is_submitted and (facts.get("via") == "slurm" or not is_in_tmux):
        raise Refused("unsupported", "the job runs without tmux, so nothing can be typed into it")
    bad = [key for key in keys if not KEY.match(key)]
    if bad:
        raise Refused("key", "%r is not a key's name as tmux has it, like Enter, C-c, Up, F1, M-x" % bad[0][:40])
    if "\0" in text:
        raise Refused("key", "a text with a NUL cannot be typed")
    if is_submitted:
        tables.cluster.type_into(facts, text, keys)
    else:
        target = to_bytes(facts["begun"].get("pane") or "=%s:" % facts["order"]["session"])
        # tmux limits the length of a message.
        size = TEXT_BYTES // 4
        for at in range(0, len(text), size):
            send_keys(target, ["-l", "--", literal(to_bytes(text[at : at + size]))])
        if keys:
            send_keys(target, ["--"] + [literal(to_bytes(key)) for key in keys])
    listener.send(json_frame(END, request, {}))


def literal(word: bytes) -> bytes:
    """Escape a last semicolon, which tmux would take for the end of its command."""
    return word[:-1] + b"\\;" if word.endswith(b";") else word


def send_keys(target: bytes, words: "list[Any]") -> None:
    said = tmux_call("send-keys", "-t", target, *words)
    if said.code != 0:
        raise Refused("tmux", "tmux did not take it: %s" % said.text.decode("utf-8", "replace").strip()[:200])


JOB_VERBS = {
    "job_start": start_job,
    "job_look": answer_job_query,
    "job_list": list_jobs,
    "job_wait": wait_for_job,
    "job_stop": stop_job,
    "job_send": type_into_job,
}
WORKERS.update(JOB_VERBS)
