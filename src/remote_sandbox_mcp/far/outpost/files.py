"""File requests: read, write, list, search, each in a worker process of its own with a time limit."""

import contextlib
import errno
import fcntl
import fnmatch
import heapq
import os
import re
import signal
import stat

from .output import Listener
from .place import Refused, closing_fd, state_of, to_bytes, to_path, to_text
from .wire import END, FAIL, OUT, frame, json_frame

MYPY = False
if MYPY:
    from typing import Any

    from ...core import orders

CHUNK = 1 << 16
# Of a matching line, only the beginning is sent.
LONGEST_LINE = 500
LARGEST_SEARCHED = 32 << 20
MOST_PROBLEMS = 20
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}
WORKER_S = 60
READ_ONLY = "%s is read-only (mode %04o), so it is not replaced; pass force=true to replace it all the same"


def open_regular(path: bytes) -> "tuple[int, os.stat_result]":
    """Open a regular file for reading; O_NONBLOCK, because opening a named pipe would wait for its writer."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    found = os.fstat(fd)
    if stat.S_ISDIR(found.st_mode):
        raise Refused("is_dir", "%s is a folder; list_remote_files shows what is in it" % to_text(path))
    if not stat.S_ISREG(found.st_mode):
        raise Refused("not_a_file", "%s is a pipe, socket or device, not a file" % to_text(path))
    return fd, found


def read(order: "orders.ReadOrder", raw: bytes, request: int, listener: Listener) -> None:
    fd, found = open_regular(to_path(str(order["path"])))
    with open(fd, "rb") as file:
        if order.get("lines"):
            start, data, more = read_lines(file, int(order["line"]), int(order["lines"]), int(order["limit"]))
        else:
            start = int(order["offset"])
            start = max(0, found.st_size + start) if start < 0 else start
            file.seek(start)
            data = file.read(int(order["limit"]))
            more = bool(file.read(1))
    for at in range(0, len(data), CHUNK):
        listener.send(frame(OUT, request, data[at : at + CHUNK]))
    # A growing file, or one in /proc, may have more bytes than its size said. An offset beyond the end proves nothing.
    size = max(found.st_size, start + len(data)) if data else found.st_size
    end: "orders.ReadAnswer" = {"size": size, "version": state_of(found), "offset": start, "more": more}
    listener.send(json_frame(END, request, end))


def read_lines(file: "Any", first: int, count: int, limit: int) -> "tuple[int, bytes, bool]":
    for _ in range(first - 1):
        if not file.readline():
            break
    start, data = file.tell(), b""
    for _ in range(count):
        # One byte more than is wanted shows whether the limit cut the line.
        line = file.readline(limit - len(data) + 1)
        data += line
        if not line or len(data) > limit:
            break
    return start, data[:limit], len(data) > limit or bool(file.read(1))


def write(order: "orders.WriteOrder", raw: bytes, request: int, listener: Listener) -> None:
    path = to_path(str(order["path"]))
    old = check_target(path, order.get("expected"), order.get("force"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = os.path.join(os.path.dirname(path), b".remote-sandbox-" + os.urandom(8).hex().encode())
    fd = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o666 if old is None else 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(raw)
            if old is not None:
                keep_owner_and_mode(file.fileno(), old)
            file.flush()
            os.fsync(file.fileno())
        with open_locked(os.path.dirname(path)):
            # Again, because the file may have changed while the new one was written.
            check_target(path, order.get("expected"), order.get("force"))
            os.rename(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
    found = os.lstat(path)
    end: "orders.WriteAnswer" = {"size": found.st_size, "version": state_of(found), "created": old is None}
    listener.send(json_frame(END, request, end))


@contextlib.contextmanager
def open_locked(folder: bytes) -> "Any":
    """Lock a folder, so that only one writer at a time is between its check and its rename, if there are locks."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        # A folder may be writable without being readable.
        yield
        return
    with closing_fd(fd):
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def check_target(path: bytes, expected: "object", force: "object") -> "os.stat_result | None":
    """The file at `path`, None if there is none. Raises Refused if it must not be replaced.

    `expected` is the version that the caller has read, "" for no file, None for any. `force`: even a read-only one.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        if expected:
            raise Refused("stale", "%s is no longer there; it was removed since it was read" % to_text(path))
        return None
    if stat.S_ISLNK(found.st_mode):
        target = to_text(os.path.realpath(path))
        raise Refused("is_link", "%s is a symbolic link to %s; write to that path instead" % (to_text(path), target))
    if not stat.S_ISREG(found.st_mode):
        raise Refused("not_a_file", "%s is not a regular file, so it is not replaced" % to_text(path))
    if expected == "":
        raise Refused("exists", "%s exists already" % to_text(path))
    if expected is not None and expected != state_of(found):
        raise Refused("stale", "%s has changed since it was read; read it again, then repeat" % to_text(path))
    if not found.st_mode & stat.S_IWUSR and not force:
        raise Refused("read_only", READ_ONLY % (to_text(path), stat.S_IMODE(found.st_mode)))
    return found


def keep_owner_and_mode(fd: int, old: os.stat_result) -> None:
    # Only root can give files away.
    with contextlib.suppress(OSError):
        os.fchown(fd, old.st_uid, old.st_gid)
    # After the owner, because chown clears the set-user and set-group bits.
    os.fchmod(fd, stat.S_IMODE(old.st_mode))


def entry_of(path: bytes) -> "list[object]":
    found = os.lstat(path)
    kind = KINDS.get(stat.S_IFMT(found.st_mode), "other")
    return [to_text(path), kind, found.st_size, found.st_mtime]


def list_entries(order: "orders.ListOrder", raw: bytes, request: int, listener: Listener) -> None:
    root, limit = to_path(str(order["path"])), int(order["limit"])
    entries: "list[list[object]]" = []
    problems: "list[list[str]]" = []
    truncated = False
    if not stat.S_ISDIR(os.stat(root).st_mode):
        entries, folders = [entry_of(root)], []
    else:
        # Raises for a folder that cannot be read; below the root that is only a problem in the answer.
        os.listdir(root)
        folders = [root]
    while folders and not truncated:
        folder = folders.pop()
        below = []
        for path in names_in(folder, limit - len(entries) + 1, problems):
            if len(entries) >= limit:
                truncated = True
                break
            try:
                entries.append(entry_of(path))
            except OSError as problem:
                note(problems, path, problem)
                continue
            if order.get("recursive") and entries[-1][1] == "dir":
                below.append(path)
        folders.extend(reversed(below))
    end: "orders.ListAnswer" = {"entries": entries, "truncated": truncated, "problems": problems}
    listener.send(json_frame(END, request, end))


def names_in(folder: bytes, most: int, problems: "list[list[str]]") -> "list[bytes]":
    """The first names of a folder in order; in a folder of millions, only these are looked at further."""
    try:
        names = os.listdir(folder)
    except OSError as problem:
        note(problems, folder, problem)
        return []
    first = heapq.nsmallest(most, names) if len(names) > most * 4 else sorted(names)
    above = os.path.join(folder, b"")
    return [above + name for name in first]


def note(problems: "list[list[str]]", path: bytes, problem: OSError) -> None:
    if len(problems) < MOST_PROBLEMS:
        problems.append([to_text(path), problem.strerror or "unreadable"])


def search(order: "orders.SearchOrder", raw: bytes, request: int, listener: Listener) -> None:
    root, limit = to_path(str(order["path"])), int(order["limit"])
    wanted = compile_pattern(str(order["pattern"]), bool(order.get("ignore_case")))
    problems: "list[list[str]]" = []
    matches: "list[list[object]]" = []
    os.lstat(root)
    for path in walk(root, str(order["glob"]), problems):
        if wanted is None:
            matches.append([to_text(path), 0, ""])
        else:
            search_file(path, wanted, matches, limit, problems)
        if len(matches) > limit:
            break
    end: "orders.SearchAnswer" = {"matches": matches[:limit], "truncated": len(matches) > limit, "problems": problems}
    listener.send(json_frame(END, request, end))


def compile_pattern(pattern: str, ignore_case: bool) -> "re.Pattern[bytes] | None":
    if not pattern:
        return None
    try:
        return re.compile(to_bytes(pattern), re.IGNORECASE if ignore_case else 0)
    except re.error as problem:
        raise Refused("pattern", "the pattern is not a regular expression: %s" % problem)


def walk(root: bytes, glob: str, problems: "list[list[str]]") -> "Any":
    """Regular files below `root` whose name matches `glob`, or whose path does if it has a slash; follows no links."""
    if not os.path.isdir(root):
        yield root
        return
    fits = glob_test(glob)
    for folder, folders, names in os.walk(root, onerror=lambda problem: note(problems, problem.filename, problem)):
        folders[:] = sorted(name for name in folders if name != b".git")
        for name in sorted(names):
            path = os.path.join(folder, name)
            if fits(name, os.path.relpath(path, root)) and not os.path.islink(path) and os.path.isfile(path):
                yield path


def glob_test(glob: str) -> "Any":
    if not glob:
        return lambda name, path: True
    pattern = to_bytes(glob)
    if b"/" not in pattern:
        return lambda name, path: fnmatch.fnmatchcase(name, pattern)
    segments = glob_segments(pattern.lstrip(b"/"))
    return lambda name, path: glob_fits(path.split(b"/"), segments)


def glob_segments(pattern: bytes) -> "list[bytes]":
    """The parts of a glob: each matches one name of a path, `**` any number of names. A bracket means itself."""
    segments = []  # type: list[bytes]
    for segment in pattern.replace(b"[", b"[[]").split(b"/"):
        if segment.startswith(b"**"):
            segments.append(b"**")
            segment = segment[1:] if segment != b"**" else b""
        segments += [segment] if segment else []
    return segments + [b"*"] if segments[-1:] == [b"**"] else segments


def glob_fits(steps: "list[bytes]", segments: "list[bytes]") -> bool:
    """Whether the names of a path match the parts of a glob."""
    # Without a regular expression: with many stars, one could take exponential time on a hostile path. When a name does
    # not match, only the last `**` takes one name more: an earlier one could gain nothing by it.
    step = segment = tried = 0
    last = -1
    while step < len(steps):
        if segment < len(segments) and segments[segment] == b"**":
            last, tried, segment = segment, step, segment + 1
        elif segment < len(segments) and fnmatch.fnmatchcase(steps[step], segments[segment]):
            step, segment = step + 1, segment + 1
        elif last >= 0:
            tried += 1
            step, segment = tried, last + 1
        else:
            return False
    return segment == len(segments)


def search_file(
    path: bytes, wanted: "re.Pattern[bytes]", matches: "list[list[object]]", limit: int, problems: "list[list[str]]"
) -> None:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST_SEARCHED:
                raise OSError(errno.EFBIG, "larger than 32 MiB, not searched")
            # A NUL marks a binary file, as it does for grep.
            if b"\0" in file.read(8192):
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                if wanted.search(line.rstrip(b"\r\n")):
                    text = line.rstrip(b"\r\n")[:LONGEST_LINE].decode("utf-8", "replace")
                    matches.append([to_text(path), number, text])
                    if len(matches) > limit:
                        return
    except OSError as problem:
        note(problems, path, problem)


WORKERS: "dict[str, Any]" = {"read": read, "write": write, "list": list_entries, "search": search}


def give_up(*_: object) -> None:
    """Turn SIGTERM into an exception, so that a worker removes its temporary files before it ends."""
    raise SystemExit


def answer(work: "Any", order: "dict[str, Any]", raw: bytes, request: int, listener: Listener) -> None:
    """Do the work of a request and answer it, also if it fails. After WORKER_S the alarm kills this process."""
    signal.signal(signal.SIGTERM, give_up)
    signal.alarm(WORKER_S)
    try:
        work(order, raw, request, listener)
    except Refused as refusal:
        problem: "orders.Failure" = {"reason": refusal.reason, "message": str(refusal)}
        listener.send(json_frame(FAIL, request, problem))
    except (OSError, ValueError) as trouble:
        reason = errno.errorcode.get(getattr(trouble, "errno", 0) or 0, "EINVAL")
        reason = "fork" if reason == "EAGAIN" else reason
        message = getattr(trouble, "strerror", "") or str(trouble)
        about = order.get("path", order["verb"])
        listener.send(json_frame(FAIL, request, {"reason": reason, "message": "%s: %s" % (about, message)}))
