"""Starting a background job: every check first, one start at a time, once for its id, nothing left of a refusal."""

import contextlib
import errno
import fcntl
import json
import os
import signal
import stat
import time
import zlib

from .family import NO_PROCESS
from .files import Refused
from .joblife import SESSION_ENDS_S, await_begun, bring_to_life, comes_to_life, describe_begun
from .jobplace import JOB_NAME, SESSION_NAME, find_job, make_job_folder, newest_of, note_session
from .jobprune import forget_job, prune_jobs
from .jobrecord import END_BYTES, JOB_COOKIE, read_json, write_whole
from .jobstate import job_state
from .jobtools import find_shell, syntax_problem, tmux_session_ends
from .output import Listener
from .place import base_folder, is_elsewhere, machine_marks, place_id, start_folder, to_bytes, to_text
from .wire import END, json_frame

MYPY = False
if MYPY:
    from typing import Any, Iterator

NOT_LASTING = "the home folder cannot be written, so what is known of this job is lost when the machine restarts"


def start_job(order: "dict[str, Any]", raw: bytes, request: int, listener: Listener) -> None:
    """Answer when the command runs. Whoever asked may be gone by then, and asks again under the same id."""
    # Not ignored: that would be inherited by all that is started here.
    signal.signal(signal.SIGTERM, lambda *_: None)
    job_id, session = str(order["id"]), str(order["session"])
    if not JOB_NAME.match(job_id):
        raise Refused("id", "%r is not the name of a job" % job_id)
    if not SESSION_NAME.match(session):
        raise Refused("session", "%r cannot be the name of a session" % session)
    check_text(order)
    with one_at_a_time():
        folder = find_job(job_id)
        if folder is not None and is_elsewhere(read_json(folder, b"order")):
            raise Refused("elsewhere", "the first attempt was made on another machine that has the same home folder")
        if folder is not None:
            answer = resume_start(folder, raw)
        elif order.get("only_in", place_id()) != place_id():
            raise Refused("elsewhere", "the first attempt was made on another machine, or before a restart")
        else:
            answer = first_start(order, raw)
    listener.send(json_frame(END, request, answer))
    listener.finish()
    prune_jobs(time.time())


def check_text(order: "dict[str, Any]") -> None:
    """What no program can be given; it would be cut, or taken for something else."""
    if any("\0" in str(order.get(name, "")) for name in ("script", "cwd", "log_file")):
        raise Refused("text", "a command, folder or log with a NUL cannot be used")
    for name, value in order.get("env", {}).items():
        if not name or "=" in name or "\0" in name + str(value):
            raise Refused("env", "%r cannot be the name of a variable, or its value has a NUL" % name[:100])


@contextlib.contextmanager
def one_at_a_time() -> "Iterator[None]":
    """In a folder of this machine: a shared home has locks only at times."""
    fd = os.open(os.path.join(base_folder(), b"jobs.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def resume_start(folder: bytes, raw: bytes) -> "dict[str, Any]":
    """A repeated start: what has begun is told, what has not is begun now."""
    order = read_json(folder, b"order")
    if not comes_to_life(folder):
        note_session(folder, str(order["session"]))
        write_whole(os.path.join(folder, b"keeper.py"), zlib.decompress(raw))
        try:
            return bring_to_life(folder, order, [])
        except Refused:
            forget_job(folder)
            raise
    await_begun(folder)
    return dict(describe_begun(folder, order), recovered=True)


def first_start(order: "dict[str, Any]", raw: bytes) -> "dict[str, Any]":
    session = str(order["session"])
    check_predecessor(str(order.get("instead_of", "")))
    check_session(session)
    cwd = enter(str(order["cwd"]))
    made: "list[bytes]" = []
    folder = b""
    try:
        shell = find_shell(list(order["shell"]))
        log = log_path(str(order["log_file"]), cwd, session)
        record = describe_order(order, shell, cwd, log)
        folder, lasting = make_job_folder(job_files(record, order, raw))
        problem_said = syntax_problem(shell, os.path.join(folder, b"command"))
        if problem_said:
            raise Refused("syntax", "the command has a syntax error: %s" % problem_said)
        open_log(log, made)
        final = os.path.join(os.path.dirname(folder), to_bytes(str(order["id"])))
        os.rename(folder, final)
        folder = final
        # Before the start: what fails after it must not seem to have failed.
        note_session(folder, session)
        return bring_to_life(folder, record, [] if lasting else [NOT_LASTING])
    except (OSError, Refused) as problem:
        take_back(made)
        if folder:
            forget_job(folder)
        if isinstance(problem, Refused):
            raise
        if problem.errno == errno.EAGAIN:
            raise Refused("fork", NO_PROCESS % problem.strerror)
        raise Refused("folder", "unable to make the job: %s" % problem.strerror)


def enter(wanted: str) -> bytes:
    cwd = start_folder(wanted)
    try:
        os.chdir(cwd)
    except OSError as problem:
        raise Refused("cwd", "unable to enter %s: %s" % (wanted or "~", problem.strerror))
    os.chdir("/")
    return cwd


def check_predecessor(job_id: str) -> None:
    """A job is started in place of another only if that one is gone without having ended."""
    if not job_id:
        return
    folder = find_job(job_id)
    known = job_state(folder) if folder else {"state": "missing"}
    state = known["state"]
    if state != "gone":
        words = {"running": "it still runs", "ended": "it has ended", "missing": "nothing is known of it here"}
        why = known.get("reason") if state == "missing" else ""
        raise Refused(state, "nothing is started in place of %s: %s" % (job_id, why or words[state]))


def check_session(session: str) -> None:
    folder = newest_of(session)
    state = job_state(folder)["state"] if folder else "missing"
    if state == "running":
        raise Refused("in_use", "a job named %s runs already; stop it, or choose another session_name" % session)
    if not tmux_session_ends(to_bytes(session), SESSION_ENDS_S if state in ("ended", "gone") else 0.0):
        raise Refused("in_use", "a tmux session named %s is there already; choose another session_name" % session)


def log_path(wanted: str, cwd: bytes, session: str) -> bytes:
    name = os.path.expanduser(to_bytes(wanted)) if wanted else b".codex_logs/" + to_bytes(session) + b".log"
    return os.path.normpath(os.path.join(cwd, name))


def open_log(path: bytes, made: "list[bytes]") -> None:
    """See that the log can be written, noting what had to be made for it."""
    try:
        folder = os.path.dirname(path)
        missing = []
        while not os.path.lexists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for part in reversed(missing):
            os.mkdir(part)
            made.append(part)
        is_new = not os.path.lexists(path)
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
        if is_new:
            made.append(path)
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            raise OSError(22, "it is not a regular file")
        if stat.S_ISREG(mode):
            see_room(fd, is_new)
        os.close(fd)
    except OSError as problem:
        raise Refused("log", "unable to write the log %s: %s" % (to_text(path), problem.strerror))


def see_room(fd: int, is_new: bool) -> None:
    """A log can be made, or be there, where nothing more can be written. Raises OSError."""
    if is_new:
        # Nobody but the file system itself knows of quotas.
        os.write(fd, b"\n")
        os.ftruncate(fd, 0)
        return
    found = os.fstatvfs(fd)
    if found.f_blocks and not (found.f_bavail if os.getuid() else found.f_bfree):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def take_back(made: "list[bytes]") -> None:
    for path in reversed(made):
        try:
            os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
        except OSError:
            pass


def describe_order(order: "dict[str, Any]", shell: "list[str]", cwd: bytes, log: bytes) -> "dict[str, Any]":
    umask = os.umask(0)
    os.umask(umask)
    record = {
        "id": order["id"],
        "session": order["session"],
        "cwd": to_text(cwd),
        "log": to_text(log),
        "log_start": os.path.getsize(log) if os.path.isfile(log) else 0,
        "command": str(order.get("shown", order["script"]))[:2000],
        "shell": shell,
        "umask": umask,
        "ordered": time.time(),
        "instead_of": order.get("instead_of", ""),
    }
    return dict(record, **machine_marks())


def job_files(record: "dict[str, Any]", order: "dict[str, Any]", raw: bytes) -> "dict[bytes, bytes]":
    return {
        b"lock": b"",
        b"end.reserved": b" " * END_BYTES,
        b"command": to_bytes(str(order["script"])),
        b"environ": b"\0".join(environment_of(order, record)),
        b"keeper.py": zlib.decompress(raw),
        b"order": json.dumps(record).encode(),
    }


def environment_of(order: "dict[str, Any]", record: "dict[str, Any]") -> "list[bytes]":
    """What exec gives a command, and the name of the job."""
    environment = dict(os.environb)
    if environment.get(b"SHLVL", b"0") == b"0":
        environment[b"SHLVL"] = b"1"
    for name in (b"TMUX", b"TMUX_PANE"):
        environment.pop(name, None)
    for name, value in order.get("env", {}).items():
        environment[to_bytes(name)] = to_bytes(value)
    environment[b"PWD"] = to_bytes(record["cwd"])
    environment[JOB_COOKIE] = to_bytes(record["id"])
    return [name + b"=" + value for name, value in environment.items()]
