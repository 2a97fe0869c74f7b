"""Job folders that are not needed any more: old ones, too many, and what was never begun."""

import os
import shutil

from .jobplace import all_jobs, job_roots, note_session, read_session, session_file
from .jobrecord import find_cookies, keeper_lives, read_begun, read_json
from .place import is_private, to_text

KEEP_JOBS_S = 30 * 86400
KEEP_JOBS = 300


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
