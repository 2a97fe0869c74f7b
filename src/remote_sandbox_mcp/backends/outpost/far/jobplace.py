"""Folders of background jobs under the home folder: found, made, and removed when old."""

import os
import re
import shutil
import stat

from .jobrecord import find_cookies, is_job_folder, keeper_lives, read_begun, read_json, write_whole
from .place import (
    base_folder,
    candidates,
    is_elsewhere,
    is_private,
    machine_name,
    node_name,
    place_name,
    to_bytes,
    to_text,
)

JOB_NAME = re.compile(r"job-[a-z0-9][a-z0-9-]{7,55}\Z")
SESSION_NAME = re.compile(r"[\w,][\w@%+=,-]{0,59}\Z")
KEEP_JOBS_S = 30 * 86400
KEEP_JOBS = 300


def job_shelves() -> "list[tuple[bytes, bool]]":
    """Folders with a folder for each machine, and whether what is there survives a reboot."""
    at_home = os.path.join(os.path.expanduser(b"~"), b".local/state/remote-sandbox/jobs")
    if place_name():
        # Its jobs end with it, and so do their folders: nobody could ask for them later.
        return [(os.path.join(base, b"jobs"), True) for base in candidates()]
    return [(at_home, True)] + [(os.path.join(base, b"jobs"), False) for base in candidates()]


def own_roots() -> "list[tuple[bytes, bool]]":
    """Where jobs are made. Homes are often shared by several machines: each has its own folder."""
    own = ("%s-%s" % (node_name(), machine_name())).encode()
    return [(os.path.join(shelf, own), lasting) for shelf, lasting in job_shelves()]


def job_roots(of_all: bool = False) -> "list[bytes]":
    """Where jobs are looked for, our own folders first: those that may have jobs of this machine, or all.

    Machines of the same short name had one folder before; and a machine may get another full name.
    """
    roots = [root for root, _ in own_roots()]
    node = node_name().encode()
    for shelf, _ in job_shelves():
        for name in sorted(os.listdir(shelf)) if is_private(shelf) else []:
            root = os.path.join(shelf, name)
            if (of_all or name == node or name.startswith(node + b"-")) and root not in roots:
                roots.append(root)
    return roots


def make_root(root: bytes) -> None:
    """The folder of all jobs, and the two above it, for us alone; raises OSError."""
    above = [os.path.dirname(os.path.dirname(root)), os.path.dirname(root), root]
    os.makedirs(os.path.dirname(above[0]), exist_ok=True)
    for folder in above:
        if not os.path.lexists(folder):
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                pass
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(1, "%s is not a folder of ours" % to_text(folder))
        if found.st_mode & 0o077:
            os.chmod(folder, 0o700)


def make_job_folder(files: "dict[bytes, bytes]") -> "tuple[bytes, bool]":
    """A folder without its name yet, with these files, in the first place that has room; raises OSError."""
    trouble = OSError(2, "no folder for jobs")
    for root, lasting in own_roots():
        folder = os.path.join(root, b".new-" + os.urandom(8).hex().encode())
        try:
            if not lasting:
                base_folder()
            make_root(root)
            os.mkdir(folder, 0o700)
            for name, data in files.items():
                write_whole(os.path.join(folder, name), data)
            return folder, lasting
        except OSError as problem:
            trouble = problem
            shutil.rmtree(folder, ignore_errors=True)
    raise trouble


def find_job(job_id: str) -> "bytes | None":
    """A job by its id, also one of another machine that has the same home."""
    if not JOB_NAME.match(job_id):
        return None
    for root in job_roots(of_all=True):
        folder = os.path.join(root, job_id.encode())
        if is_private(root) and is_job_folder(folder):
            return folder
    return None


def all_jobs() -> "list[tuple[float, bytes]]":
    """Every job of this machine with the time of its start, newest first."""
    found = []
    for root in job_roots():
        for name in os.listdir(root) if is_private(root) else []:
            folder = os.path.join(root, name)
            if JOB_NAME.match(to_text(name)) and is_job_folder(folder):
                order = read_json(folder, b"order")
                if not is_elsewhere(order):
                    found.append((float(order.get("ordered", 0.0)), folder))
    return sorted(found, reverse=True)


def session_file(root: bytes, session: str) -> bytes:
    return os.path.join(root, b"by-session", to_bytes(session))


def note_session(folder: bytes, session: str) -> None:
    """The newest job of a name is found without reading all folders."""
    root = os.path.dirname(folder)
    path = session_file(root, session)
    try:
        os.mkdir(os.path.dirname(path), 0o700)
    except FileExistsError:
        pass
    new = os.path.join(root, b"by-session", b".new-" + os.urandom(4).hex().encode())
    write_whole(new, os.path.basename(folder))
    os.rename(new, path)


def newest_of(session: str) -> "bytes | None":
    """The newest job of this machine that had exactly this session."""
    if not SESSION_NAME.match(session):
        return None
    noted = [folder for folder in sessions_in(job_roots(), session) if not is_elsewhere(read_json(folder, b"order"))]
    if not noted:
        noted = [folder for _, folder in all_jobs() if read_json(folder, b"order").get("session") == session]
    return max(noted, key=lambda folder: float(read_json(folder, b"order").get("ordered", 0.0))) if noted else None


def sessions_in(roots: "list[bytes]", session: str) -> "list[bytes]":
    """The newest job of a session in each of the folders that have one."""
    return [folder for folder in (read_session(root, session) for root in roots) if folder]


def session_elsewhere(session: str) -> "bytes | None":
    """A job that had this session on another machine with the same home."""
    found = sessions_in(job_roots(of_all=True), session) if SESSION_NAME.match(session) else []
    return next((folder for folder in found if is_elsewhere(read_json(folder, b"order"))), None)


def read_session(root: bytes, session: str) -> "bytes | None":
    try:
        with open(session_file(root, session), "rb") as file:
            folder = os.path.join(root, file.read(100))
    except OSError:
        return None
    whole = JOB_NAME.match(to_text(os.path.basename(folder))) and is_private(root) and is_job_folder(folder)
    return folder if whole and read_json(folder, b"order").get("session") == session else None


def prune_jobs(now: float) -> None:
    """Remove old jobs that do not run, those beyond a number, and what starts have left behind."""
    jobs = all_jobs()
    old = [folder for at, (ordered, folder) in enumerate(jobs) if at >= KEEP_JOBS or now - ordered > KEEP_JOBS_S]
    alive = find_cookies() if old else {}
    for folder in old:
        if to_text(os.path.basename(folder)) not in alive and not keeper_lives(folder, read_begun(folder)):
            forget_job(folder)
    for root in job_roots():
        for name in os.listdir(root) if is_private(root) else []:
            folder = os.path.join(root, name)
            if name.startswith(b".new-") and is_private(folder) and now - os.lstat(folder).st_mtime > 3600:
                shutil.rmtree(folder, ignore_errors=True)


def forget_job(folder: bytes) -> None:
    """Renamed first, so that nobody sees half of it."""
    session = str(read_json(folder, b"order").get("session", ""))
    root = os.path.dirname(folder)
    named = session and read_session(root, session) == folder
    gone = os.path.join(root, b".new-" + os.urandom(8).hex().encode())
    try:
        os.rename(folder, gone)
        if named:
            name_another(root, session)
    except OSError:
        pass
    for path in (gone, folder):
        shutil.rmtree(path, ignore_errors=True)


def name_another(root: bytes, session: str) -> None:
    """The name goes back to the job that had it before."""
    os.unlink(session_file(root, session))
    for _, folder in all_jobs():
        if os.path.dirname(folder) == root and read_json(folder, b"order").get("session") == session:
            note_session(folder, session)
            return
