"""The folders of background jobs: where they are, how one is made, found by id or session, and removed when old."""

import contextlib
import os
import re
import shutil
import stat
from typing import Any, Callable

from ..outpost.place import (
    base_folder,
    candidates,
    is_elsewhere,
    is_private,
    machine_name,
    node_name,
    place_name,
    set_mode,
    to_bytes,
    to_text,
)
from .record import find_cookies, is_job_folder, keeper_lives, read_begun, read_json, write_whole

JOB_NAME = re.compile(r"job-[a-z0-9][a-z0-9-]{7,55}\Z")
SESSION_NAME = re.compile(r"[\w,][\w@%+=,-]{0,59}\Z")
# Records of ended jobs are kept this long, and of the newest so many.
KEEP_JOBS_S = 30 * 86400
KEEP_JOBS = 300


# On a cluster's login node: gives the cluster's name. What was submitted there belongs to all of its login nodes.
CLUSTER_NAMES: "list[Callable[[], str]]" = []


def is_of_another(order: "dict[str, Any]") -> bool:
    """Whether a job belongs to another machine, or another cluster, that has the same home folder."""
    if "slurm" in order:
        return not CLUSTER_NAMES or CLUSTER_NAMES[0]() not in ("", order["slurm"]["cluster"])
    return is_elsewhere(order)


def job_shelves() -> "list[tuple[bytes, bool]]":
    """Folders that hold one folder per machine, best first, and whether their content survives a reboot."""
    at_home = os.path.join(os.path.expanduser(b"~"), b".local/state/remote-sandbox/jobs")
    if os.environ.get("REMOTE_SANDBOX_WALLS"):
        temporary, cached, _ = candidates()
        return [(os.path.join(cached, b"jobs"), True), (os.path.join(temporary, b"jobs"), False)]
    if place_name():
        # Its jobs end with it, and so do their folders: no later request could find them.
        return [(os.path.join(base, b"jobs"), True) for base in candidates()]
    return [(at_home, True)] + [(os.path.join(base, b"jobs"), False) for base in candidates()]


def own_roots() -> "list[tuple[bytes, bool]]":
    """Folders in which this machine makes jobs. A home is often shared by several machines: each has its own folder."""
    own = ("%s-%s" % (node_name(), machine_name())).encode()
    return [(os.path.join(folder, own), lasting) for folder, lasting in job_shelves()]


def job_roots(of_all: bool = False) -> "list[bytes]":
    """Folders in which jobs are looked for, our own first: those that may have jobs of this machine; `of_all`: all."""
    # Earlier releases named the folder by the short host name alone, and the full name of a machine may change: so
    # every folder that begins with the short name may have jobs of this machine.
    roots = [root for root, _ in own_roots()]
    node = node_name().encode()
    if CLUSTER_NAMES:
        roots.append(cluster_root())
    for folder, _ in job_shelves():
        for name in sorted(os.listdir(folder)) if is_private(folder) else []:
            root = os.path.join(folder, name)
            if (of_all or name == node or name.startswith(node + b"-")) and root not in roots:
                roots.append(root)
    return roots


def make_root(root: bytes) -> None:
    """Make the folder of this machine's jobs and the two above it, readable by us alone. Raises OSError."""
    above = [os.path.dirname(os.path.dirname(root)), os.path.dirname(root), root]
    os.makedirs(os.path.dirname(above[0]), exist_ok=True)
    for folder in above:
        if not os.path.lexists(folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(1, "%s is not a folder of ours" % to_text(folder))
        if found.st_mode & 0o077:
            set_mode(folder, 0o700)


def cluster_root() -> bytes:
    """The folder of this cluster's submitted jobs, in the home folder that its machines share."""
    return os.path.join(job_shelves()[0][0], b"slurm-" + CLUSTER_NAMES[0]().encode())


def make_job_folder(
    files: "dict[bytes, bytes]", roots: "list[tuple[bytes, bool]] | None" = None
) -> "tuple[bytes, bool]":
    """Make a folder with these files in the first place with room; say if it survives a reboot. Raises OSError."""
    # It has a temporary name: the caller renames it to the job's id when all is ready.
    trouble = OSError(2, "no folder for jobs")
    for root, lasting in roots or own_roots():
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
    """The folder of the job with this id, also if the job belongs to another machine with the same home."""
    if not JOB_NAME.match(job_id):
        return None
    for root in job_roots(of_all=True):
        folder = os.path.join(root, job_id.encode())
        if is_private(root) and is_job_folder(folder):
            return folder
    return None


def all_jobs() -> "list[tuple[float, bytes]]":
    """The folders of all jobs of this machine with the time of their start, newest first."""
    found = []
    for root in job_roots():
        for name in os.listdir(root) if is_private(root) else []:
            folder = os.path.join(root, name)
            if JOB_NAME.match(to_text(name)) and is_job_folder(folder):
                order = read_json(folder, b"order")
                if not is_of_another(order):
                    found.append((float(order.get("ordered", 0.0)), folder))
    return sorted(found, reverse=True)


def session_file(root: bytes, session: str) -> bytes:
    return os.path.join(root, b"by-session", to_bytes(session))


def note_session(folder: bytes, session: str) -> None:
    """Record that this job is the newest of its session, so that it is found without reading all folders."""
    root = os.path.dirname(folder)
    path = session_file(root, session)
    with contextlib.suppress(FileExistsError):
        os.mkdir(os.path.dirname(path), 0o700)
    new = os.path.join(root, b"by-session", b".new-" + os.urandom(4).hex().encode())
    write_whole(new, os.path.basename(folder))
    os.rename(new, path)


def newest_of(session: str) -> "bytes | None":
    """The newest job of this machine that had exactly this session name."""
    if not SESSION_NAME.match(session):
        return None
    roots = job_roots()
    found = [folder for folder in sessions_in(roots, session) if not is_of_another(read_json(folder, b"order"))]
    # A start or a removal that was killed halfway leaves a note of a job that is not there. Login nodes of a cluster
    # have no lock in common, so that one may remove the note of another.
    if not found and (CLUSTER_NAMES or any(os.path.lexists(session_file(root, session)) for root in roots)):
        found = [folder for _, folder in all_jobs() if read_json(folder, b"order").get("session") == session]
    return max(found, key=lambda folder: float(read_json(folder, b"order").get("ordered", 0.0))) if found else None


def sessions_in(roots: "list[bytes]", session: str) -> "list[bytes]":
    """The newest job of a session in each of these folders that has one."""
    return [folder for folder in (read_session(root, session) for root in roots) if folder]


def session_elsewhere(session: str) -> "bytes | None":
    """A job with this session name on another machine with the same home."""
    found = sessions_in(job_roots(of_all=True), session) if SESSION_NAME.match(session) else []
    return next((folder for folder in found if is_of_another(read_json(folder, b"order"))), None)


def read_session(root: bytes, session: str) -> "bytes | None":
    try:
        with open(session_file(root, session), "rb") as file:
            folder = os.path.join(root, file.read(100))
    except OSError:
        return None
    whole = JOB_NAME.match(to_text(os.path.basename(folder))) and is_private(root) and is_job_folder(folder)
    return folder if whole and read_json(folder, b"order").get("session") == session else None


def prune_jobs(now: float) -> None:
    """Remove jobs that do not run and are old or too many, and the temporary folders of starts that failed."""
    jobs = all_jobs()
    old = [folder for at, (ordered, folder) in enumerate(jobs) if at >= KEEP_JOBS or now - ordered > KEEP_JOBS_S]
    alive = find_cookies() if old else {}
    gone = {folder for folder in old if to_text(os.path.basename(folder)) not in alive and not may_live(folder)}
    left = newest_by_session([job for job in jobs if job[1] not in gone]) if gone else {}
    for folder in gone:
        forget_job(folder, left)
    for root in job_roots():
        for name in os.listdir(root) if is_private(root) else []:
            folder = os.path.join(root, name)
            if name.startswith(b".new-") and is_private(folder) and now - os.lstat(folder).st_mtime > 3600:
                shutil.rmtree(folder, ignore_errors=True)


def may_live(folder: bytes) -> bool:
    """Whether a job's keeper lives. Of a submitted job that is not known here: it may wait, or run on a node."""
    if "slurm" in read_json(folder, b"order"):
        return not any(os.path.lexists(os.path.join(folder, name)) for name in (b"end", b"fate"))
    return keeper_lives(folder, read_begun(folder))


def forget_job(folder: bytes, left: "dict[tuple[bytes, str], bytes] | None" = None) -> None:
    """Remove a job's folder; `left`: the newest jobs of sessions, where they are known. Needs the lock of starts.

    It is renamed first, so that no reader finds a job with half of its files.
    """
    session = str(read_json(folder, b"order").get("session", ""))
    root = os.path.dirname(folder)
    gone = os.path.join(root, b".new-" + os.urandom(8).hex().encode())
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
    for path in (gone, folder):
        shutil.rmtree(path, ignore_errors=True)
    if session and not read_session(root, session):
        other = (newest_by_session(all_jobs()) if left is None else left).get((root, session))
        with contextlib.suppress(OSError):
            if other:
                note_session(other, session)
            else:
                os.unlink(session_file(root, session))


def newest_by_session(jobs: "list[tuple[float, bytes]]") -> "dict[tuple[bytes, str], bytes]":
    """The newest job of each session in each root; `jobs` are sorted, newest first."""
    return {
        (os.path.dirname(folder), str(read_json(folder, b"order").get("session", ""))): folder
        for _, folder in reversed(jobs)
    }
