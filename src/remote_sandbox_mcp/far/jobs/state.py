"""Answers how background jobs are: their state from folder, lock and processes; logs, checkpoints, resources used."""

import os
import re
import shutil
import time

from ..outpost.family import become_subreaper, read_parents
from ..outpost.files import open_regular
from ..outpost.output import Listener
from ..outpost.place import ELSEWHERE, Refused, birth_of, boot_id, to_bytes, to_path, to_text
from ..outpost.wire import END, OUT, frame, json_frame
from .place import all_jobs, find_job, is_of_another, newest_of, session_elsewhere
from .record import find_cookies, keeper_lives, read_begun, read_json
from .tools import MOST_SAID, call, find_shell, has_tmux_session, tmux_panes

MYPY = False
if MYPY:
    from typing import Any

    from ...core.orders import JobCheckpoint, JobListOrder, JobQueryOrder, JobQuestion, JobSaid, JobsAnswer

# The longest time between making a job's folder and its keeper taking the lock.
BEING_STARTED_S = 20.0
# How long a look waits for the keeper to write the last line of the log.
PUT_AWAY_S = 0.5
LAST_LINE = re.compile(rb"(?:^|\n)EXIT_CODE=(-?[0-9]{1,10})\r?\n?\Z")
FROM_OUTSIDE = "it was told to end from outside, as at a shutdown"
CHECKPOINT_S = 10.0
GPU_S = 5.0
# Where the tool is, too, where nobody has logged in.
TOOL_FOLDERS = ":/usr/local/bin:/usr/local/nvidia/bin:/usr/lib/wsl/lib"
BLOCK = 1 << 16
MOST_LOG = 8 << 20


# What a cluster's login node does about submitted jobs: a class of jobcluster, which other machines are never sent.
CLUSTER: "list[Any]" = []
OTHER_CLUSTER = "it was submitted to the Slurm cluster %s, so ask there"


class ProcessTables:
    """Tables of the machine's processes, read at most once per request, for all of its jobs."""

    def __init__(self, queue_rate: float = 0.0) -> None:
        self.boot = boot_id()
        self.cluster: "Any" = CLUSTER[0](queue_rate) if CLUSTER else None
        self.cookies: "dict[str, list[int]] | None" = None
        self.children: "dict[int, list[int]] | None" = None

    def members(self, job_id: str) -> "list[int]":
        """Processes that have a job's id in their environment."""
        if self.cookies is None:
            self.cookies = find_cookies()
        return self.cookies.get(job_id, [])

    def below(self, keeper: int) -> "list[int]":
        """All descendants of a process, such as a job's keeper."""
        if keeper <= 0:
            # 0 stands for an unknown keeper, and every process descends from pid 0.
            return []
        found = self.children_of(keeper)
        for pid in found:
            found.extend(self.children_of(pid))
        return found

    def children_of(self, pid: int) -> "list[int]":
        """Living children, as the kernel lists them; elsewhere the table of all processes is read, which takes long."""
        if os.path.exists("/proc/self/task/%d/children" % os.getpid()):
            return [child for child in listed_children(pid) if birth_of(child)]
        if self.children is None:
            self.children = {}
            for child, parent in (read_parents() or {}).items():
                self.children.setdefault(parent, []).append(child)
        return list(self.children.get(pid, []))


def listed_children(pid: int) -> "list[int]":
    """The children of all threads of a process, as the kernel lists them."""
    found = []  # type: list[int]
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, thread), "rb") as file:
                found.extend(map(int, file.read().split()))
    except OSError:
        # It ended meanwhile.
        pass
    return found


def job_state(folder: bytes, tables: "ProcessTables | None" = None, element: str = "") -> "dict[str, Any]":
    """A job's state, its records, and how it ended. An end record counts as soon as it is written."""
    tables = tables or ProcessTables()
    order = read_json(folder, b"order")
    if "slurm" in order and tables.cluster and not is_of_another(order):
        facts: "dict[str, Any]" = tables.cluster.state(folder, order, element)
        return facts
    begun, end = read_begun(folder), read_json(folder, b"end")
    if not end and is_of_another(order):
        # Locks and pids of another machine mean nothing here.
        return dict(elsewhere(order), begun=begun, folder=folder)
    lives = not end and keeper_lives(folder, begun)
    # The keeper may have written the end and left between the two looks.
    if not end and not lives:
        end = read_json(folder, b"end")
    if end:
        await_last_words(folder, begun)
        facts = {"state": "ended", "exit": end["exit"], "signal": end["signal"], "ending": end["ending"]}
        facts.update(survivors=end["survivors"], ended=end["ended"])
    elif lives or is_being_started(folder, order, begun, tables):
        facts = {"state": "running"}
    else:
        facts = without_keeper(folder, order, begun, tables)
    facts.update(order=order, begun=begun, folder=folder)
    return facts


def elsewhere(order: "dict[str, Any]") -> "dict[str, Any]":
    """State of a job of another machine with the same home: it may run there, so it must not be called gone."""
    if "slurm" in order:
        return {"state": "missing", "reason": OTHER_CLUSTER % order["slurm"]["cluster"], "order": order}
    host = order.get("host") or order.get("node") or "which is not known"
    return {"state": "missing", "reason": ELSEWHERE % host, "order": order}


def await_last_words(folder: bytes, begun: "dict[str, Any]") -> None:
    """Wait for the keeper to leave: it writes the last line of the log right after the end record."""
    deadline = time.monotonic() + PUT_AWAY_S
    while keeper_lives(folder, begun) and time.monotonic() < deadline:
        time.sleep(0.005)


def is_being_started(folder: bytes, order: "dict[str, Any]", begun: "dict[str, Any]", tables: ProcessTables) -> bool:
    young = 0 <= time.time() - os.lstat(folder).st_mtime < BEING_STARTED_S
    return young and not begun and order.get("boot") == tables.boot


def without_keeper(
    folder: bytes, order: "dict[str, Any]", begun: "dict[str, Any]", tables: ProcessTables
) -> "dict[str, Any]":
    if begun.get("boot", order.get("boot")) != tables.boot:
        return {"state": "gone", "rebooted": True, "reason": "the machine was restarted"}
    if begun and tables.members(str(order["id"])):
        return {"state": "running", "reason": "its keeper was killed; its processes live"}
    interrupted = read_json(folder, b"interrupted")
    if interrupted:
        by_tmux = interrupted["by"] == "SIGHUP" and begun.get("via") == "tmux"
        return {"state": "gone", "reason": "its tmux session was killed" if by_tmux else FROM_OUTSIDE}
    return {"state": "gone", "reason": "its keeper was killed" if begun else "it was never begun"}


def wanted_job(query: "JobQuestion") -> "bytes | None":
    """The folder of the job that is asked for: by id, or the newest of a session, unless another log is named."""
    if query.get("job_id"):
        return find_job(str(query["job_id"]))
    folder = newest_of(str(query.get("session", "")))
    if folder and query.get("log_file") and "log" in read_json(folder, b"order"):
        order = read_json(folder, b"order")
        mine = to_bytes(order["log"])
        wanted = os.path.expanduser(to_bytes(str(query["log_file"])))
        named = [to_path(str(query["log_file"])), os.path.normpath(os.path.join(to_bytes(order["cwd"]), wanted))]
        if all(os.path.realpath(path) != os.path.realpath(mine) for path in named):
            return None
    return folder


def foreign_state(query: "JobQuestion") -> "dict[str, Any]":
    """State of a tmux session that is not our job: tmux says whether it runs, its log's last line how it ended."""
    session, log = str(query.get("session", "")), str(query.get("log_file", ""))
    facts: "dict[str, Any]" = {"order": {"session": session, "log": to_text(to_path(log)) if log else ""}}
    facts.update(foreign=True, begun={})
    if session and has_tmux_session(to_bytes(session)):
        panes, made = tmux_panes(to_bytes(session))
        return dict(facts, state="running", panes=panes, begun={"started": made} if made else {})
    last = read_last(to_path(log)) if log else None
    other = session_elsewhere(session)
    if other and not (last and LAST_LINE.search(last)):
        return dict(facts, foreign=False, **elsewhere(read_json(other, b"order")))
    if last is None:
        return dict(facts, state="missing", foreign=False, reason="nothing is known of it on this machine")
    found = LAST_LINE.search(last)
    if found:
        code = int(found.group(1))
        return dict(facts, state="ended", exit=code, signal="", ending="exited", survivors=[], ended=0.0)
    return dict(facts, state="gone", reason="its tmux session is gone, and its log has no exit code")


def read_last(path: bytes) -> "bytes | None":
    try:
        fd, found = open_regular(path)
        with open(fd, "rb") as file:
            file.seek(max(0, found.st_size - 64))
            return file.read(64)
    except (OSError, Refused):
        return None


def find_state(query: "JobQuestion", tables: ProcessTables) -> "dict[str, Any]":
    folder = wanted_job(query)
    if folder is not None:
        return job_state(folder, tables, str(query.get("element") or ""))
    if tables.cluster:
        submitted = tables.cluster.foreign(str(query.get("job_id") or query.get("session", "")))
        if submitted:
            return dict(submitted)
    if query.get("job_id"):
        reason = "nothing is known of it on this machine"
        return {"state": "missing", "reason": reason, "order": {"id": query["job_id"]}, "begun": {}}
    return foreign_state(query)


def answer_job_query(order: "JobQueryOrder", raw: bytes, request: int, listener: Listener) -> None:
    """Answer for all jobs that are asked for, in that order; the bytes of each log are in a frame before the answer."""
    become_subreaper()
    tables = ProcessTables(float(order.get("queue_rate", 0.0)))
    answers = [describe_job(query, find_state(query, tables), tables, request, listener) for query in order["jobs"]]
    add_gpus(answers)
    end: "JobsAnswer" = {"jobs": answers}
    listener.send(json_frame(END, request, end))


def list_jobs(order: "JobListOrder", raw: bytes, request: int, listener: Listener) -> None:
    tables = ProcessTables(float(order.get("queue_rate", 0.0)))
    folders = [folder for _, folder in all_jobs()[: int(order["limit"])]]
    nothing: "Any" = {"lines": 0, "most_bytes": 0}
    found = [job_state(each, tables) for each in folders]
    if tables.cluster:
        found = (found + tables.cluster.list_foreign())[: int(order["limit"])]
    answers = [describe_job(nothing, facts, tables, request, listener) for facts in found]
    end: "JobsAnswer" = {"jobs": answers}
    listener.send(json_frame(END, request, end))


def describe_job(
    query: "JobQuestion", facts: "dict[str, Any]", tables: ProcessTables, request: int, listener: Listener
) -> "JobSaid":
    log, size, cursor, grown = read_log(query, facts)
    text, checkpoint = read_checkpoint(query, facts)
    listener.send(frame(OUT, request, log + text))
    order, begun = facts["order"], facts["begun"]
    started = float(begun.get("started") or order.get("ordered") or 0.0)
    ended = float(facts.get("ended") or time.time())
    # The processes of a submitted job are on another machine.
    is_measurable = facts["state"] == "running" and facts.get("via") != "slurm"
    said: "JobSaid" = {
        "id": order.get("id", ""),
        "session": order.get("session", ""),
        "state": facts["state"],
        "exit": facts.get("exit"),
        "signal": facts.get("signal"),
        "ending": facts.get("ending"),
        "reason": facts.get("reason"),
        "rebooted": facts.get("rebooted"),
        "foreign": facts.get("foreign"),
        "log_file": order.get("log", ""),
        "cwd": order.get("cwd", ""),
        "command": order.get("command", ""),
        "via": begun.get("via") or facts.get("via", ""),
        "started": started,
        "seconds": max(0.0, ended - started) if started else 0.0,
        "log": len(log),
        "log_size": size,
        "cursor": cursor,
        "silent": max(0.0, time.time() - max(grown, started)) if grown or started else 0.0,
        "checkpoint": checkpoint,
        "usage": measure(facts, tables) if query.get("usage") and is_measurable else None,
        "survivors": facts.get("survivors", []),
    }
    if facts.get("queue"):
        said["queue"] = facts["queue"]
        said["fate"] = facts.get("fate", "")
    return said


# The log


def read_log(query: "JobQuestion", facts: "dict[str, Any]") -> "tuple[bytes, int, int, float]":
    """The wanted part of the log, its size, where the next look should begin, and when it last grew."""
    path = to_bytes(facts["order"].get("log", ""))
    most = max(0, min(int(query["most_bytes"]), MOST_LOG))
    try:
        fd, found = open_regular(path)
    except (OSError, Refused):
        return b"", 0, 0, 0.0
    with open(fd, "rb") as file:
        size = found.st_size
        cursor = query.get("cursor")
        if cursor is None:
            return last_lines(file, size, int(query["lines"]), most), size, size, found.st_mtime
        # A log that is shorter than what was read was replaced or cut: read it from its beginning.
        start = int(cursor) if 0 <= int(cursor) <= size else 0
        file.seek(start)
        data = file.read(min(most, size - start))
        return data, size, start + len(data), found.st_mtime


def last_lines(file: "Any", size: int, lines: int, most: int) -> bytes:
    """The last lines of a file, read backwards in blocks: a log may have gigabytes."""
    data, start = b"", size
    while start > 0 and len(data) < most and lines > 0:
        step = min(BLOCK, start, most - len(data))
        start -= step
        file.seek(start)
        data = file.read(step) + data
        if data.count(b"\n", 0, len(data) - 1) >= lines:
            break
    if lines <= 0:
        return b""
    parts = data[:-1].split(b"\n") if data.endswith(b"\n") else data.split(b"\n")
    kept = b"\n".join(parts[-lines:])
    return kept + b"\n" if data.endswith(b"\n") else kept


# The checkpoint


def read_checkpoint(query: "JobQuestion", facts: "dict[str, Any]") -> "tuple[bytes, JobCheckpoint | None]":
    if not query.get("checkpoint_path") and not query.get("checkpoint_command"):
        return b"", None
    cwd = str(query.get("cwd") or facts["order"].get("cwd") or "")
    try:
        if query.get("checkpoint_path"):
            text, mtime = read_checkpoint_file(str(query["checkpoint_path"]), cwd)
        else:
            text, mtime = ask_checkpoint(str(query["checkpoint_command"]), cwd)
    except Refused as refusal:
        return b"", {"size": 0, "mtime": 0.0, "problem": str(refusal)}
    except (OSError, ValueError) as problem:
        return b"", {"size": 0, "mtime": 0.0, "problem": getattr(problem, "strerror", "") or str(problem)}
    return text, {"size": len(text), "mtime": mtime, "problem": ""}


def read_checkpoint_file(wanted: str, cwd: str) -> "tuple[bytes, float]":
    path = os.path.normpath(os.path.join(to_path(cwd), os.path.expanduser(to_bytes(wanted))))
    fd, found = open_regular(path)
    with open(fd, "rb") as file:
        file.seek(max(0, found.st_size - MOST_SAID))
        return file.read(MOST_SAID), found.st_mtime


def ask_checkpoint(command: str, cwd: str) -> "tuple[bytes, float]":
    said = call(find_shell([]) + [to_bytes(command)], CHECKPOINT_S, to_path(cwd))
    if said.code is None:
        raise Refused("slow", "the checkpoint command took longer than %d s" % CHECKPOINT_S)
    if said.code:
        last = said.text[-300:].decode("utf-8", "replace").strip()
        raise Refused("failed", "the checkpoint command ended with %d: %s" % (said.code, last))
    return said.text, time.time()


# Resources


def members_of(facts: "dict[str, Any]", tables: ProcessTables) -> "list[int]":
    """The job's processes: descendants of its keeper or, without any, those with the job's id in their environment.

    For a tmux session that is not a job of ours: its panes and their descendants.
    """
    if facts.get("foreign"):
        return with_descendants(facts.get("panes", []), tables)
    below = tables.below(int(facts["begun"].get("keeper", 0)))
    return below or tables.members(str(facts["order"].get("id", "")))


def with_descendants(pids: "list[int]", tables: ProcessTables) -> "list[int]":
    found = list(pids)
    for pid in pids:
        found.extend(tables.below(pid))
    return sorted(set(found))


def measure(facts: "dict[str, Any]", tables: ProcessTables) -> "dict[str, Any]":
    pids, memory, ticks = members_of(facts, tables), 0, 0
    for pid in pids:
        try:
            with open("/proc/%d/stat" % pid, "rb") as file:
                words = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        memory += int(words[21])
        # User and system time of the process, and of its children that have ended.
        ticks += sum(int(word) for word in words[11:15])
    page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    return {
        "processes": len(pids),
        "memory_mb": round(memory * page / 1048576.0, 1),
        "cpu_s": round(ticks / float(tick), 2),
        "gpus": {},
        "busy": {},
        "pids": pids,
        "cards": facts["begun"].get("cards", []),
    }


def add_gpus(answers: "list[JobSaid]") -> None:
    """Add each job's memory on GPUs, and how busy they are; nvidia-smi is slow: asked once, and only if a job runs."""
    used = [answer["usage"] for answer in answers if answer["usage"] and answer["usage"]["pids"]]
    tool = shutil.which("nvidia-smi", path=os.environ.get("PATH", "") + TOOL_FOLDERS) if used else None
    cards, apps = ask_gpus(tool) if tool else ("", "")
    by_pid, use = read_gpu_memory(cards, apps), read_gpu_use(cards)
    for usage in used:
        # A card that is leased counts as held, even before the job has memory on it.
        usage["gpus"].update((use[uuid][0], 0.0) for uuid in usage["cards"] if uuid in use)
        for pid in usage["pids"]:
            for index, megabytes in by_pid.get(pid, []):
                usage["gpus"][index] = usage["gpus"].get(index, 0.0) + megabytes
        usage["busy"] = {index: percent for index, percent in use.values() if index in usage["gpus"]}
    for answer in answers:
        if answer["usage"]:
            del answer["usage"]["pids"], answer["usage"]["cards"]


def ask_gpus(tool: str) -> "tuple[str, str]":
    try:
        cards = call([tool, "--query-gpu=index,uuid,utilization.gpu", "--format=csv,noheader,nounits"], GPU_S)
        query = "--query-compute-apps=pid,gpu_uuid,used_memory"
        apps = call([tool, query, "--format=csv,noheader,nounits"], GPU_S)
    except OSError:
        return "", ""
    return to_text(cards.text), to_text(apps.text)


def read_gpu_use(cards: str) -> "dict[str, tuple[str, float]]":
    """Index and percent of use of each card, by its UUID; one that does not tell how busy it is is left out."""
    rows = [row for row in table(cards) if len(row) == 3 and row[0].isdigit() and row[2].isdigit()]
    return {uuid: (index, float(percent)) for index, uuid, percent in rows}


def read_gpu_memory(cards: str, apps: str) -> "dict[int, list[tuple[str, float]]]":
    """GPU memory by pid as (card, MB), from nvidia-smi's two tables; lines that cannot be read are skipped."""
    index_of = {row[1]: row[0] for row in table(cards) if len(row) > 1 and row[0].isdigit()}
    found: "dict[int, list[tuple[str, float]]]" = {}
    for row in table(apps):
        if len(row) == 3 and row[0].isdigit() and row[1] in index_of and row[2].isdigit():
            found.setdefault(int(row[0]), []).append((index_of[row[1]], float(row[2])))
    return found


def table(text: str) -> "list[list[str]]":
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
