"""The records in a background job's folder, its lock, and whether its keeper and its processes live."""

import contextlib
import errno
import fcntl
import json
import os
from typing import Any

from ..outpost.place import birth_of, boot_id, closing_fd, is_locked, is_private

# The variable that every process of a job has in its environment; its value is the job's id.
JOB_COOKIE = b"RSMCP_JOB_ID"
# The file for the end record is written in full at the start: a disk that fills up later must not lose an exit status.
END_BYTES = 4096
# This bit in the mode of a job's lock file tells its keeper to end the job: chmod works on a full disk, and a mode
# belongs to exactly one job.
JOB_STOP_MARK = 0o100


def read_json(folder: bytes, name: bytes) -> "dict[str, Any]":
    """The record of this name, or {} if it does not exist or is incomplete."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            value = json.loads(file.read().decode())
            return value if isinstance(value, dict) else {}
    except (OSError, ValueError):
        return {}


def write_json(folder: bytes, name: bytes, value: "dict[str, Any]") -> None:
    """Replace a record at once: a reader sees the old one or the new one, never half of it."""
    path = os.path.join(folder, b"." + name + b".new")
    write_whole(path, json.dumps(value).encode())
    os.rename(path, os.path.join(folder, name))


def write_whole(path: bytes, data: bytes) -> None:
    with closing_fd(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW, 0o600)) as fd:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]


def write_end(folder: bytes, end: "dict[str, Any]", name: bytes = b"end") -> None:
    """Write the last record of a job into the file that was reserved before its start, then give it its name."""
    reserved = os.path.join(folder, b"end.reserved")
    with closing_fd(os.open(reserved, os.O_WRONLY | os.O_CREAT, 0o600)) as fd:
        os.pwrite(fd, json.dumps(end).encode().ljust(END_BYTES), 0)
        os.fsync(fd)
    os.rename(reserved, os.path.join(folder, name))
    # The name, too, must be on the disk: a job that ended is not to be resumed after a power cut.
    with closing_fd(os.open(folder, os.O_RDONLY)) as above, contextlib.suppress(OSError):
        # Some file systems cannot sync a folder. The record itself is on the disk.
        os.fsync(above)


def read_begun(folder: bytes) -> "dict[str, Any]":
    """The start record; if the keeper was killed before it could rename the claim to `begun`, the claim."""
    return read_json(folder, b"begun") or read_json(folder, b"claim")


def has_begun(folder: bytes) -> bool:
    return any(os.path.lexists(os.path.join(folder, name)) for name in (b"begun", b"claim"))


def withdraw(folder: bytes) -> bool:
    """Create the claim ourselves, so that a late keeper starts nothing; False if a keeper has it already."""
    try:
        os.close(os.open(os.path.join(folder, b"claim"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return True
    except FileExistsError:
        return False


def is_same_process(pid: int, birth: int) -> bool:
    return pid > 0 and birth > 0 and birth_of(pid) == birth


def take_lock(folder: bytes) -> "tuple[int, bool]":
    """The descriptor that holds the job's lock, and whether it is locked; (-1, False) if another keeper holds it."""
    # On file systems without locks the file is opened only; then the keeper is recognized by its pid and birth.
    fd = os.open(os.path.join(folder, b"lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            os.close(fd)
            return -1, False
        return fd, False
    return fd, True


def keeper_lives(folder: bytes, begun: "dict[str, Any]") -> bool:
    """Whether the job's keeper lives."""
    # In a home folder shared over the network, a lock may seem to outlive the machine that held it.
    if begun and begun.get("boot") != boot_id():
        return False
    if begun and not begun.get("locked", True):
        return is_same_process(int(begun.get("keeper", 0)), int(begun.get("keeper_birth", 0)))
    return is_locked(folder, b"lock", False)


def is_asked_to_stop(folder: bytes) -> bool:
    try:
        return bool(os.stat(os.path.join(folder, b"lock")).st_mode & JOB_STOP_MARK)
    except OSError:
        return False


def find_cookies() -> "dict[str, list[int]]":
    """Living processes by the id of their job, read from their environment: this works without a keeper, too."""
    found: "dict[str, list[int]]" = {}
    mark = b"\0" + JOB_COOKIE + b"="
    for name in os.listdir("/proc") if os.path.isdir("/proc/self/task") else []:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                rest = (b"\0" + file.read()).partition(mark)[2]
        except OSError:
            continue
        if rest and birth_of(int(name)):
            job_id = rest.partition(b"\0")[0].decode("utf-8", "replace")
            found.setdefault(job_id, []).append(int(name))
    return found


def is_job_folder(folder: bytes) -> bool:
    return is_private(folder) and os.path.basename(folder).startswith(b"job-")


def element_log(log: str, element: str) -> str:
    """The log of an array's element: LOG-3.log for LOG.log."""
    head, tail = os.path.splitext(log)
    return "%s-%s%s" % (head, element, tail)
