"""Starts a background job: checks the request, starts it once per id, in tmux or detached, to survive a logout."""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import tempfile
import time
import zlib

from ..outpost.family import NO_PROCESS, insist
from ..outpost.output import Listener
from ..outpost.place import (
    Refused,
    base_folder,
    candidates,
    closing_fd,
    is_locked,
    machine_marks,
    mark_pruned,
    place_id,
    reason_of,
    start_folder,
    to_bytes,
    to_text,
    user_name,
)
from ..outpost.wire import END, json_frame
from .place import (
    JOB_NAME,
    SESSION_NAME,
    cluster_root,
    find_job,
    forget_job,
    is_of_another,
    make_job_folder,
    newest_of,
    note_session,
    prune_jobs,
)
from .record import END_BYTES, JOB_COOKIE, has_begun, read_begun, read_json, withdraw, write_whole
from .state import ProcessTables, job_state
from .tools import call, find_shell, python_words, syntax_problem, tmux_call, tmux_server, tmux_session_ends

KILL_USER_PROCESSES = re.compile(r"^[ \t]*KillUserProcesses[ \t]*=[ \t]*(\S+)", re.M)
EXCLUDED_USERS = re.compile(r"^[ \t]*KillExcludeUsers[ \t]*=(.*)", re.M)
# How long a keeper may take to begin, and to show itself after a start that was cut off.
BEGIN_S = 15.0
# The same where it leases cards first: without a driver that stays loaded, nvidia-smi takes seconds for each of them.
LEASE_S = 40.0
ON_ITS_WAY_S = 2.0
# How long tmux may take to remove the session of a job that has ended.
SESSION_ENDS_S = 3.0
NO_MANAGER = "the user's own systemd does not answer, so the job will not outlive the login"
NOT_LASTING = "the home folder cannot be written, so what is known of this job is lost when the machine restarts"


def ends_at_logout(settings: str, user: str) -> bool:
    """Whether logind's settings (the text of all its files in order) kill this user's processes at logout."""
    wanted = KILL_USER_PROCESSES.findall(settings)
    excluded = EXCLUDED_USERS.findall(settings)
    if not wanted or wanted[-1].lower() not in ("yes", "true", "1", "on"):
        return False
    # logind's default for KillExcludeUsers is root.
    return user not in (excluded[-1].split() if excluded else ["root"])


def logind_files(root: str = "/") -> "list[str]":
    """The files of logind's settings in the order in which later ones win."""
    folders = [os.path.join(root, name, "systemd") for name in ("usr/lib", "usr/local/lib", "run", "etc")]
    dropped: "dict[str, str]" = {}
    for folder in [os.path.join(folder, "logind.conf.d") for folder in folders]:
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name.endswith(".conf"):
                dropped[name] = os.path.join(folder, name)
    main = [path for path in (os.path.join(folder, "logind.conf") for folder in folders) if os.path.exists(path)]
    return main[-1:] + [dropped[name] for name in sorted(dropped)]


def logind_settings(root: str = "/") -> str:
    """logind's settings: the text of its files, then what the running logind itself says of KillUserProcesses."""
    texts = []
    for path in logind_files(root):
        with contextlib.suppress(OSError):
            with open(path, errors="replace") as file:
                texts.append(file.read())
    if root != "/":
        return "\n".join(texts)
    name, path = "org.freedesktop.login1", "/org/freedesktop/login1"
    try:
        said = call(["busctl", "get-property", name, path, name + ".Manager", "KillUserProcesses"], 3.0)
    except OSError:
        return "\n".join(texts)
    word = said.text.split()[-1:] if said.code == 0 else []
    return "\n".join(texts + ["KillUserProcesses=" + word[0].decode()] if word else texts)


def scope_for(job_id: str, user: str, root: str = "/") -> "tuple[list[str], list[str]]":
    """The command to put before a job so that it outlives the login, and notes for the caller."""
    if not os.path.isdir(os.path.join(root, "run/systemd/system")) or not ends_at_logout(logind_settings(root), user):
        return [], []
    if os.path.exists(os.path.join(root, "var/lib/systemd/linger", user)):
        return ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--unit=rsmcp-" + job_id], []
    note = (
        "this machine ends a user's processes at logout (KillUserProcesses=yes), so the job will not outlive the "
        "login; `loginctl enable-linger` mends that for the jobs started afterwards"
    )
    return [], [note]


def scope_works(scope: "list[str]") -> bool:
    """Whether the user's systemd answers: the command before the job is tried with `true`."""
    try:
        return call(scope[:-1] + ["true"], 5.0).code == 0
    except OSError:
        return False


def belongs_to_login(cgroup: str) -> bool:
    """Whether /proc/PID/cgroup puts a process into the scope of a login, with which logind ends it."""
    return any(re.search(r"/session-[^/]+\.scope", line) for line in cgroup.splitlines())


def ends_with_login(pid: int) -> bool:
    try:
        with open("/proc/%d/cgroup" % pid) as file:
            return belongs_to_login(file.read())
    except OSError:
        return False


MYPY = False
if MYPY:
    from typing import Any, Iterator

    from ...core.orders import JobStartAnswer, JobStartOrder


def comes_to_life(folder: bytes) -> bool:
    """Whether a keeper has the job, or takes it soon: the process that started one may have been killed meanwhile."""
    deadline = time.monotonic() + ON_ITS_WAY_S
    while not has_begun(folder) and not is_locked(folder, b"lock", False):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def describe_begun(folder: bytes, order: "dict[str, Any]", recovered: bool, notes: "list[str]") -> "JobStartAnswer":
    begun = read_json(folder, b"begun")
    via = "slurm" if "slurm" in order else begun.get("via", "detached")
    return {
        "session": order["session"],
        "log": order["log"],
        "cwd": order["cwd"],
        "via": via,
        "recovered": recovered,
        "notes": notes,
        "cards": begun.get("cards", []),
    }


def bring_to_life(folder: bytes, order: "dict[str, Any]", notes: "list[str]") -> "JobStartAnswer":
    """Start the keeper, in tmux if that is installed, and wait until the command runs. Raises Refused."""
    scope, remarks = scope_for(str(order["id"]), user_name())
    if scope and not scope_works(scope):
        scope, remarks = [], [NO_MANAGER]
    words = [to_bytes(word) for word in python_words()] + [os.path.join(folder, b"keeper.py"), folder]
    try:
        problem = start_in_tmux(words, order, scope) if shutil.which("tmux") else ""
    except Refused:
        # The name may be in use by this very job, whose keeper has begun: then the start goes on.
        if withdraw(folder):
            raise
        problem = None
    if problem is not None and not has_begun(folder):
        remarks = remarks + (["it runs without tmux: %s" % problem] if problem else [])
        start_detached([to_bytes(word) for word in scope] + words + [b"detached"])
    try:
        await_begun(folder)
    except Refused:
        # The caller may start another job under this name as soon as it gets the refusal.
        if problem is None:
            tmux_session_ends(to_bytes(order["session"]), SESSION_ENDS_S)
        raise
    return describe_begun(folder, order, False, notes + remarks)


def start_in_tmux(words: "list[bytes]", order: "dict[str, Any]", scope: "list[str]") -> "str | None":
    """Start the keeper in a new tmux session; returns None, or why that failed. Raises Refused for a name in use."""
    server = tmux_server() if scope else 0
    if server and ends_with_login(server):
        return "the tmux server that runs was started by a login, and ends with it"
    session = to_bytes(order["session"])
    # -c: the folder for further panes, which a person who attaches may open.
    new = ["new-session", "-d", "-s", session, "-x", "200", "-y", "50", "-c", to_bytes(order["cwd"])]
    # With remain-on-exit in the user's tmux.conf, an ended session would keep its name in use.
    keep_none = [";", "set-window-option", "-t", b"=" + session + b":", "remain-on-exit", "off"]
    said = tmux_call(*new, *words, b"tmux", *keep_none, before=() if server else tuple(scope))
    text = said.text.decode("utf-8", "replace").strip()
    if "duplicate session" in text:
        raise Refused("in_use", "a tmux session named %s is there already" % to_text(session))
    # The session of a command that ends at once is gone before the option could be set.
    if said.code == 0 or "can't find" in text or "no such" in text or "no current" in text:
        return None
    return text[-200:] or "tmux could not be started"


def start_detached(words: "list[bytes]") -> None:
    """Start a program in a session of its own; forked twice, so that it is no child of ours."""
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
    """Wait until the command runs. Raises Refused if it does not, and never will."""
    deadline = time.monotonic() + (LEASE_S if read_json(folder, b"order").get("cards") else BEGIN_S)
    while not os.path.lexists(os.path.join(folder, b"begun")):
        failed = read_json(folder, b"failed")
        if failed.get("reason") == "cards":
            raise Refused("cards", failed["message"])
        if failed:
            raise Refused("shell", "unable to start the shell: %s" % failed["message"])
        is_troubled = os.path.lexists(os.path.join(folder, b"trouble"))
        if time.monotonic() > deadline or is_troubled:
            # A claim's record is complete before the command can run: a keeper that failed before has started nothing.
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


def start_job(order: "JobStartOrder", raw: bytes, request: int, listener: Listener) -> None:
    """Start a job and answer when its command runs. A caller that was cut off asks again under the same id."""
    # A handler instead of SIG_IGN, which all processes started here would inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    job_id, session = str(order["id"]), str(order["session"])
    if not JOB_NAME.match(job_id):
        raise Refused("id", "%r is not the name of a job" % job_id)
    if not SESSION_NAME.match(session):
        raise Refused("session", "%r cannot be the name of a session" % session)
    check_text(order)
    made: "list[bytes]" = []
    with one_at_a_time():
        folder = find_job(job_id)
        if folder is not None and read_json(folder, b"failed").get("reason") == "cards":
            # Its keeper found no free card, and nobody was left to hear of it: this is a first attempt again.
            forget_job(folder)
            folder = None
        if folder is not None and is_of_another(read_json(folder, b"order")):
            raise Refused("elsewhere", "the first attempt was made on another machine that has the same home folder")
        if folder is not None:
            answer = resume_start(folder, raw)
        elif order.get("only_in", place_id()) != place_id():
            raise Refused("elsewhere", "the first attempt was made on another machine, or before a restart")
        else:
            answer = first_start(order, raw, made)
    if answer["via"] == "slurm":
        # Outside of the lock: a queue may take its time, and many jobs may be submitted at once.
        submit_job(job_id, made)
    listener.send(json_frame(END, request, answer))
    listener.finish()
    if mark_pruned(os.path.join(base_folder(), b"jobs.pruned")):
        with one_at_a_time():
            prune_jobs(time.time())


def submit_job(job_id: str, made: "list[bytes]") -> None:
    """Hand a prepared job to the cluster's queue. What is refused leaves nothing behind. Raises Refused."""
    folder = find_job(job_id)
    if folder is None:
        raise Refused("slurm", "another attempt to submit it was refused just now")
    try:
        ProcessTables().cluster.submit(folder, read_json(folder, b"order"))
    except Refused as refusal:
        if refusal.reason != "unsure":
            take_back(made)
            with one_at_a_time():
                forget_job(folder)
        raise


def check_text(order: "JobStartOrder") -> None:
    """Refuse text that cannot be passed to a program: it would be cut at the NUL, or misread."""
    if any("\0" in str(order.get(name, "")) for name in ("script", "cwd", "log_file")):
        raise Refused("text", "a command, folder or log with a NUL cannot be used")
    for name, value in order.get("env", {}).items():
        if not name or "=" in name or "\0" in name + str(value):
            raise Refused("env", "%r cannot be the name of a variable, or its value has a NUL" % name[:100])


@contextlib.contextmanager
def one_at_a_time() -> "Iterator[None]":
    """Let one start run at a time. The lock is in a local folder: shared home folders often have no locks."""
    with closing_fd(os.open(os.path.join(base_folder(), b"jobs.lock"), os.O_RDWR | os.O_CREAT, 0o600)) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def resume_start(folder: bytes, raw: bytes) -> "JobStartAnswer":
    """Answer a repeated start: with the job if it has begun; otherwise begin it now."""
    order = read_json(folder, b"order")
    if "slurm" in order:
        return describe_begun(folder, order, True, [])
    if not comes_to_life(folder):
        note_session(folder, str(order["session"]))
        write_whole(os.path.join(folder, b"keeper.py"), zlib.decompress(raw))
        try:
            return bring_to_life(folder, order, [])
        except Refused:
            forget_job(folder)
            raise
    await_begun(folder)
    return describe_begun(folder, order, True, [])


def first_start(order: "JobStartOrder", raw: bytes, made: "list[bytes]") -> "JobStartAnswer":
    """Check, prepare and begin a job; one for a queue is not begun. `made` gets what had to be made for its log."""
    session, tables = str(order["session"]), ProcessTables()
    check_predecessor(str(order.get("instead_of", "")), bool(order.get("even_ended")), tables)
    check_session(session, tables, "slurm" not in order)
    cwd = enter(str(order["cwd"]))
    folder = b""
    try:
        shell = find_shell(list(order["shell"]))
        log = log_path(str(order["log_file"]), cwd, session)
        record = describe_order(order, shell, cwd, log, tables)
        roots = [(cluster_root(), True)] if "slurm" in record else None
        folder, lasting = make_job_folder(job_files(record, order, raw, tables), roots)
        problem_said = syntax_problem(shell, os.path.join(folder, b"command"))
        if problem_said:
            raise Refused("syntax", "the command has a syntax error: %s" % problem_said)
        open_log(log, made)
        final = os.path.join(os.path.dirname(folder), to_bytes(str(order["id"])))
        # First, so that no job is without a note; and a failure after the start would be reported although it runs.
        note_session(final, session)
        os.rename(folder, final)
        folder = final
        if "slurm" in record:
            return describe_begun(folder, record, False, [])
        return bring_to_life(folder, record, [] if lasting else [NOT_LASTING])
    except (OSError, Refused) as problem:
        take_back(made)
        if folder:
            forget_job(folder)
        if isinstance(problem, Refused):
            raise
        if problem.errno == errno.EAGAIN:
            raise Refused("fork", NO_PROCESS % problem.strerror)
        raise Refused("folder", "unable to make the job: %s" % reason_of(problem))


def enter(wanted: str) -> bytes:
    """The job's working folder, after trying to enter it. Raises Refused."""
    cwd = start_folder(wanted)
    try:
        os.chdir(cwd)
    except OSError as problem:
        raise Refused("cwd", "unable to enter %s: %s" % (wanted or "~", problem.strerror))
    os.chdir("/")
    return cwd


def check_predecessor(job_id: str, even_ended: bool, tables: ProcessTables) -> None:
    """Refuse to start a job in place of another, unless that one is gone or, with `even_ended`, has ended."""
    if not job_id:
        return
    folder = find_job(job_id)
    facts = job_state(folder, tables) if folder else {"state": "missing"}
    state = facts["state"]
    if state != "gone" and not (even_ended and state == "ended"):
        words = {"running": "it still runs", "pending": "it waits in the queue", "ended": "it has ended"}
        why = words.get(state) or facts.get("reason") or "nothing is known of it here"
        raise Refused(state, "nothing is started in place of %s: %s" % (job_id, why))


def check_session(session: str, tables: ProcessTables, in_tmux: bool) -> None:
    folder = newest_of(session)
    state = job_state(folder, tables)["state"] if folder else "missing"
    if state in ("running", "pending"):
        does = "runs" if state == "running" else "is pending"
        raise Refused("in_use", "a job named %s %s already; stop it, or choose another session_name" % (session, does))
    if in_tmux and not tmux_session_ends(to_bytes(session), SESSION_ENDS_S if state in ("ended", "gone") else 0.0):
        raise Refused("in_use", "a tmux session named %s is there already; choose another session_name" % session)


def log_path(wanted: str, cwd: bytes, session: str) -> bytes:
    name = os.path.expanduser(to_bytes(wanted)) if wanted else b".codex_logs/" + to_bytes(session) + b".log"
    if os.environ.get("REMOTE_SANDBOX_WALLS") and not wanted and not is_writable(cwd):
        # Only our own folder is sure to be writable within walls.
        cwd = candidates()[1]
    return os.path.normpath(os.path.join(cwd, name))


def is_writable(folder: bytes) -> bool:
    """Whether a file can be made there, which walls forbid although the folder's mode allows it."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def open_log(path: bytes, made: "list[bytes]") -> None:
    """Check that the log can be written; what had to be created for that is added to `made`. Raises Refused."""
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
    """Check that there is room to write: a file can be created or opened on a full disk, too. Raises OSError."""
    if is_new:
        # Quotas are not in statvfs: only writing shows them.
        os.write(fd, b"\n")
        os.ftruncate(fd, 0)
        return
    found = os.fstatvfs(fd)
    if found.f_blocks and not (found.f_bavail if os.getuid() else found.f_bfree):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def take_back(made: "list[bytes]") -> None:
    for path in reversed(made):
        with contextlib.suppress(OSError):
            os.rmdir(path) if os.path.isdir(path) else os.unlink(path)


def describe_order(
    order: "JobStartOrder", shell: "list[str]", cwd: bytes, log: bytes, tables: ProcessTables
) -> "dict[str, Any]":
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
    # What is started in place of another is submitted as that one was, or needs as many cards.
    folder = find_job(str(order.get("instead_of", ""))) if order.get("instead_of") else None
    before: "dict[str, Any]" = read_json(folder, b"order") if folder else {}
    slurm = order.get("slurm") or before.get("slurm")
    if slurm and not tables.cluster:
        raise Refused("slurm", "it is for a queue, and this machine is not configured as a Slurm cluster")
    if slurm:
        record["slurm"] = tables.cluster.submission_of(slurm)
    else:
        # Those of a queue are the queue's to give.
        wanted = order if "cards" in order else before
        record.update((name, wanted[name]) for name in ("cards", "run_for") if wanted.get(name))
    return dict(record, **machine_marks())


def job_files(
    record: "dict[str, Any]", order: "JobStartOrder", raw: bytes, tables: ProcessTables
) -> "dict[bytes, bytes]":
    files = {
        b"lock": b"",
        b"end.reserved": b" " * END_BYTES,
        b"command": to_bytes(str(order["script"])),
        b"environ": b"\0".join(environment_of(order, record, tables)),
        b"keeper.py": zlib.decompress(raw),
        b"order": json.dumps(record).encode(),
    }
    if "slurm" in record:
        files.update(
            tables.cluster.files_of(os.path.join(cluster_root(), to_bytes(record["id"])), record, order["env"])
        )
    return files


def environment_of(order: "JobStartOrder", record: "dict[str, Any]", tables: ProcessTables) -> "list[bytes]":
    """The environment that exec_bash would give the command, and the job's id."""
    environment = dict(os.environb)
    if environment.get(b"SHLVL", b"0") == b"0":
        environment[b"SHLVL"] = b"1"
    for ours in (b"TMUX", b"TMUX_PANE"):
        environment.pop(ours, None)
    if "slurm" in record:
        tables.cluster.leave_login_behind(environment)
    for name, text in order.get("env", {}).items():
        environment[to_bytes(name)] = to_bytes(text)
    environment[b"PWD"] = to_bytes(record["cwd"])
    environment[JOB_COOKIE] = to_bytes(record["id"])
    return [key + b"=" + value for key, value in environment.items()]
