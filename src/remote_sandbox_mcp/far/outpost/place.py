"""The folders of runs on the far side: one per run, closed to other users, with a lock that shows whether it runs."""

import contextlib
import errno
import fcntl
import functools
import json
import os
import pwd
import re
import stat
import time
import zlib
from typing import Any, Iterator, Mapping

# This bit in the mode of a run's record tells its keeper to end the run: chmod works on a full disk, and a mode
# belongs to exactly one run.
STOP_MARK = 0o100
RUN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
KEEP_RUNS_S = 24 * 3600
# How often old runs are looked for, by all outposts of a machine together.
PRUNE_S = 60
KEEP_RUNS_BYTES = 1 << 30
# By how much the clocks of machines may differ, or be set.
CLOCKS_S = 60.0
# Names a part of a machine with folders of its own: several allocations of a cluster may be on one node.
PLACE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
ELSEWHERE = "it was started on another machine that has the same home folder (%s), so ask there"


class Refused(Exception):
    """A request that cannot be done: a reason that programs check, and a sentence for people."""

    def __init__(self, reason: str, message: str) -> None:
        Exception.__init__(self, message)
        self.reason = reason


def state_of(found: os.stat_result) -> str:
    """Identifies one state of a file: any write, replacement or touch changes it."""
    return "%x-%x-%x-%x" % (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def reason_of(problem: OSError) -> str:
    """Explain why a file could not be written, with the cause where the system's words do not name it."""
    if problem.errno == errno.EFBIG:
        return "%s: a limit on the size of files (ulimit -f, perhaps in ~/.bashrc) is too low" % problem.strerror
    return problem.strerror or str(problem)


def user_name() -> str:
    """The user's name, or the number of one that has none: containers often run as such a user."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def to_bytes(text: str) -> bytes:
    """Text as UTF-8 whatever the locale; bytes that are not UTF-8 are carried as surrogates in text."""
    return text.encode("utf-8", "surrogateescape")


def to_path(text: str) -> bytes:
    """A caller's path as bytes: `~` and relative paths start at the home folder."""
    if not text:
        return os.path.expanduser(b"~")
    path = os.path.expanduser(to_bytes(text))
    return os.path.normpath(os.path.join(os.path.expanduser(b"~"), path))


def start_folder(text: str) -> bytes:
    """Return where a command starts: the folder asked for, else the home folder, else / if that is missing."""
    folder = to_path(text)
    return folder if text or os.path.isdir(folder) else b"/"


def to_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def place_name() -> str:
    """The name of this part of the machine; empty for a machine as a whole."""
    name = os.environ.get("REMOTE_SANDBOX_PLACE", "")
    return name if PLACE_NAME.match(name) else ""


def candidates() -> "list[bytes]":
    """Folders for runs, best first. /dev/shm works when disks are full, but a logout may empty it, so it is last."""
    part = ("-" + place_name()).encode() if place_name() else b""
    mine = b"remote-sandbox-%d" % os.getuid() + part
    return [b"/tmp/" + mine, os.path.expanduser(b"~/.cache/remote-sandbox") + part, b"/dev/shm/" + mine]


def is_private(folder: bytes) -> bool:
    """Whether this is a real folder, owned by us and closed to others: another user may have made one of this name."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


@contextlib.contextmanager
def closing_fd(fd: int) -> "Iterator[int]":
    """The descriptor, which is closed at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def set_mode(path: bytes, mode: int) -> None:
    """Set the mode of a file by a descriptor: a confined outpost must not do it by name."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
        os.fchmod(fd, mode)


def base_folder() -> bytes:
    """The first folder for runs that is ours alone. Raises OSError if there is none."""
    trouble = OSError(errno.ENOENT, "no folder for runs")
    for folder in candidates():
        try:
            prepare_base(folder)
            return folder
        except OSError as problem:
            trouble = problem
    raise trouble


def prepare_base(folder: bytes) -> None:
    """Make a folder for runs if it is missing, check that it is ours alone, and put its mark in it. Raises OSError."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    if not os.path.lexists(folder):
        os.mkdir(folder, 0o700)
    if not is_private(folder):
        raise OSError(errno.EACCES, "%s is not ours alone" % to_text(folder))
    place_mark(folder)


@functools.lru_cache(maxsize=None)
def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def node_name() -> str:
    """Return the machine's short host name, as a folder may be called; with the name of its part, where it has one."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", os.uname().nodename.partition(".")[0]) or "here"
    return "%s-%s" % (name, place_name()) if place_name() else name


def machine_name() -> str:
    """Tells machines apart that share a home folder, also where their short host names are equal."""
    # The same after a restart. A checksum, because /etc/machine-id is confidential (man 5 machine-id).
    identity = os.uname().nodename.encode()
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError):
            with open(path, "rb") as file:
                identity += b"\0" + file.read(64).strip()
            break
    return "%08x" % zlib.crc32(identity)


def machine_marks() -> "dict[str, str]":
    """Describe the machine on which a run or job was started, for its record (is_elsewhere compares)."""
    return {"boot": boot_id(), "node": node_name(), "machine": machine_name(), "host": os.uname().nodename}


def booted_at() -> float:
    """Return when this machine was booted, by its present clock; 0 if that is unknown."""
    try:
        with open("/proc/stat", "rb") as file:
            return float(file.read().partition(b"\nbtime ")[2].split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0


def is_elsewhere(record: "dict[str, Any]") -> bool:
    """Whether a run or job was started on another machine that has the same home folder."""
    # A run with another boot id that began after this machine's boot cannot have been ended by that boot, so it belongs
    # to another machine. That holds even for machines that are copies of each other, and for old records without names.
    if record.get("node", node_name()) != node_name():
        return True
    if not record or (record.get("boot") == boot_id() and boot_id()):
        return False
    if record.get("machine", machine_name()) != machine_name():
        return True
    began, booted = float(record.get("ordered") or record.get("started") or 0.0), booted_at()
    return bool(booted and boot_id()) and began > booted + CLOCKS_S


def place_mark(folder: bytes) -> str:
    """A random mark, made once per folder: a container restarted on the same host keeps the boot id, but not this."""
    path = os.path.join(folder, b"mark")
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        with open(path) as file:
            return file.read()
    mark = os.urandom(8).hex()
    try:
        os.write(fd, mark.encode())
    except OSError:
        # The disk is full. An empty mark would equal that of any other full disk.
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    return mark


def place_id() -> str:
    """Identifies where runs are kept: while it is the same, a run that was started can still be found."""
    return boot_id() + ":" + place_mark(base_folder())


def find_run(run_id: str) -> "bytes | None":
    for base in candidates():
        folder = os.path.join(base, run_id.encode())
        if is_private(base) and is_private(folder):
            return folder
    return None


class RunFolder:
    """A run's folder, made and locked ahead of its run: on a busy disk that takes longer than starting a command.

    In it: `run`, locked as long as the keeper lives, with a line for the start and a line for the end; `out` and
    `err`, what was printed; `out.tail` and `err.tail`, the last part of an output that was too large.
    """

    def __init__(self, base: bytes) -> None:
        self.path = os.path.join(base, b".new-" + os.urandom(8).hex().encode())
        os.mkdir(self.path, 0o700)
        try:
            self.record = self.create(b"run")
            fcntl.flock(self.record, fcntl.LOCK_EX)
            # `err` is made when needed: most commands print to `out` only, and every file has to be removed again.
            os.close(self.create(b"out"))
        except OSError:
            remove_tree(self.path)
            raise

    def create(self, name: bytes) -> int:
        return os.open(self.file(name), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND, 0o600)

    def file(self, name: bytes) -> bytes:
        return os.path.join(self.path, name)

    def claim(self, run_id: str, start: "dict[str, Any]") -> bool:
        """Rename the folder to the run's id, which counts as its start; False if that id has a folder already."""
        self.note(start)
        final = os.path.join(os.path.dirname(self.path), run_id.encode())
        try:
            if find_run(run_id) is None:
                os.rename(self.path, final)
                self.path = final
                return True
        except OSError as problem:
            if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        return False

    def asked_to_stop(self) -> bool:
        return bool(os.fstat(self.record).st_mode & STOP_MARK)

    def note(self, line: "Mapping[str, object]") -> None:
        text = json.dumps(line).encode() + b"\n"
        if os.write(self.record, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def release(self) -> None:
        os.close(self.record)

    def remove(self) -> None:
        self.release()
        remove_tree(self.path)


def make_folder(besides: "tuple[bytes, ...]" = ()) -> RunFolder:
    """A folder for the next run in the first place that has room, except `besides`, which are known to be full."""
    trouble = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for base in candidates():
        try:
            if base in besides:
                continue
            if not is_private(base):
                prepare_base(base)
            return RunFolder(base)
        except OSError as problem:
            trouble = problem
    raise trouble


def read_record(folder: bytes) -> "tuple[dict[str, Any], dict[str, Any]]":
    """The recorded start and end of a run; {} for what was not recorded."""
    try:
        with open(os.path.join(folder, b"run"), "rb") as file:
            lines = file.read().split(b"\n")[:-1]
            start, end = ([json.loads(line.decode()) for line in lines] + [{}, {}])[:2]
            return start, end
    except (OSError, ValueError):
        return {}, {}


def is_locked(folder: bytes, name: bytes = b"run", where_unknown: bool = True) -> bool:
    """Whether a keeper lives: the kernel releases its lock when it ends. Not every file system has locks."""
    try:
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as problem:
        return where_unknown or problem.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    finally:
        os.close(fd)


def birth_of(pid: "int | str") -> int:
    """Return when a process began, in ticks since the boot; 0 if that is unknown or the process has ended."""
    # Pids are reused. Pid and birth together identify one process until the next boot.
    try:
        with open("/proc/%s/stat" % pid, "rb") as file:
            # The program's name stands in parentheses and may itself contain spaces and parentheses.
            words = file.read().rpartition(b")")[2].split()
            return 0 if words[0] in (b"Z", b"X") else int(words[19])
    except (OSError, ValueError, IndexError):
        return 0


def forget_run(run_id: str) -> bool:
    folder = find_run(run_id)
    if folder is None or is_locked(folder):
        return False
    remove_tree(folder)
    return True


def remove_tree(folder: bytes) -> None:
    # Imported here, because it takes a while and no command waits for this.
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def take_pruning() -> "list[bytes]":
    """The folders for runs that nobody has pruned for a while, which is up to the caller now."""
    return [base for base in candidates() if is_private(base) and mark_pruned(os.path.join(base, b".pruned"))]


def mark_pruned(mark: bytes) -> bool:
    """Note that a folder is pruned now; False if that was done a moment ago. Without room for a mark it is done."""
    with contextlib.suppress(OSError):
        if 0 <= time.time() - os.lstat(mark).st_mtime < PRUNE_S:
            return False
    with contextlib.suppress(OSError):
        with closing_fd(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as fd:
            os.utime(fd)
    return True


def prune_folder(base: bytes, now: float) -> None:
    """Remove ended runs whose result was never fetched: old ones, and the oldest beyond a total size."""
    total = 0
    for age, size, folder in sorted(measured_runs(base, now)):
        total += size
        unclaimed = os.path.basename(folder).startswith(b".new-") and age > 60
        too_much = unclaimed or age > KEEP_RUNS_S or total > KEEP_RUNS_BYTES
        # In a shared home folder, the lock of another machine may not be visible here.
        if too_much and not is_locked(folder) and not is_elsewhere(read_record(folder)[0]):
            remove_tree(folder)


def measured_runs(base: bytes, now: float) -> "list[tuple[float, int, bytes]]":
    runs = []
    for name in os.listdir(base):
        folder = os.path.join(base, name)
        if name.startswith((b"run-", b".new-")) and is_private(folder):
            files = [os.path.join(folder, part) for part in os.listdir(folder)]
            size = sum(os.lstat(path).st_size for path in files if os.path.lexists(path))
            runs.append((now - os.lstat(folder).st_mtime, size, folder))
    return runs
