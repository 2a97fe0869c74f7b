"""A tree of files on a lane's machine: what is in it, and safe ways to its entries."""

import errno
import os
import re
import stat
import struct
import time
import zlib

from ....core.ignore import Ignore
from .place import boot_id, to_bytes, to_path, to_text

MYPY = False
if MYPY:
    from typing import Any, Callable, Iterator

# Length of its path and of what is in it, and how many of these are files or links.
FOLDER = struct.Struct(">HII")
MOST_TREE_PROBLEMS = 200
MOST_LEFTOVERS = 10000
OPEN_FOLDERS = 64
BLOCK, LARGEST_TOLD = 1 << 18, 8 << 20
MOST_GITIGNORED = 8 << 20
# All that this program writes under another name first begins like this; it is never part of a tree.
OURS = b".remote-sandbox-"
ONGOING = re.compile(rb"\.remote-sandbox-sync-([0-9a-f]+)-(\d+)-(\d+)-\d+\Z")
PARTIAL = b".remote-sandbox-part-"
FOREIGN_S = 3600
SKIPPED = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class BadName(Exception):
    """A name that no tree can have: it would lead out of it."""


class Refusal(Exception):
    """A request that cannot be done, with a word for the program."""

    def __init__(self, reason: str, message: str) -> None:
        Exception.__init__(self, message)
        self.reason = reason


class Problems:
    """What went wrong with single entries: the first ones in words, all of them counted."""

    def __init__(self) -> None:
        self.told: "list[list[str]]" = []
        self.count = self.unread = 0

    def note(self, path: bytes, reason: "object") -> None:
        self.count += 1
        self.unread += isinstance(reason, OSError)
        if len(self.told) < MOST_TREE_PROBLEMS:
            words = getattr(reason, "strerror", None) or str(reason)
            self.told.append([to_text(path), words])

    def fields(self) -> "dict[str, Any]":
        return {"problems": self.told, "problem_count": self.count, "unread": self.unread}


def child(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def checked(name: bytes) -> bytes:
    """A single name, from whoever it came. Raises BadName."""
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise BadName("%r is not the name of a file" % name)
    return name


class Root:
    """The folder at the top of a tree, and the way down from it, on which no link is followed."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.folders: "dict[bytes, int]" = {}
        self.top = os.open(path or b"/", os.O_RDONLY | os.O_DIRECTORY)

    def folder(self, path: bytes, make: bool = False) -> int:
        """A descriptor of a folder of the tree, good until the next call. Raises OSError, BadName."""
        if not path:
            return self.top
        known = self.folders.get(path)
        if known is not None:
            return known
        above = path
        while above and above not in self.folders:
            above = above.rpartition(b"/")[0]
        fd = self.folders[above] if above else self.top
        for name in path[len(above) + 1 if above else 0 :].split(b"/"):
            fd = self.enter(fd, checked(name), make)
            if len(self.folders) >= OPEN_FOLDERS:
                os.close(self.folders.pop(next(iter(self.folders))))
            above = child(above, name)
            self.folders[above] = fd
        return fd

    def enter(self, parent: int, name: bytes, make: bool) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        try:
            return os.open(name, flags, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        make_inner(name, parent)
        return os.open(name, flags, dir_fd=parent)

    def forget(self) -> None:
        """Let go of all folders but the top: they may be moved or removed now."""
        for fd in self.folders.values():
            os.close(fd)
        self.folders.clear()

    def close(self) -> None:
        self.forget()
        os.close(self.top)


def make_inner(name: bytes, parent: int) -> None:
    """Open to its owner alone until it has its own mode: files come first."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        # Another lane was quicker.
        pass
    except PermissionError:
        open_up(parent)
        os.mkdir(name, 0o700, dir_fd=parent)


def open_up(folder: int) -> None:
    """For a folder that its owner may not write to, as at the source; it gets its own mode at the end."""
    os.chmod(folder, os.fstat(folder).st_mode & 0o7777 | 0o700)


def kind_of(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "dir"
    return "file" if stat.S_ISREG(mode) else "other"


def look_at(order: "dict[str, Any]") -> "dict[str, Any]":
    """What is at a path; a link there is followed, because its user named it."""
    path = to_path(str(order["path"]))
    home = os.path.realpath(os.path.expanduser(b"~"))
    fields = {"kind": "missing", "path": to_text(path), "real": to_text(os.path.realpath(path)), "home": to_text(home)}
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            fields["kind"] = "other"
        return fields
    fields["kind"] = kind_of(found.st_mode)
    return fields


def scan(order: "dict[str, Any]", send: "Callable[[bytes], None]") -> "dict[str, Any]":
    """Send the tree folder by folder; return what else there is to say of it."""
    survey = Survey(order, look_at(order))
    if survey.fields["kind"] == "dir":
        os.listdir(survey.root)
        teller = Teller(send, bool(order.get("squeeze")))
        for folder, block, files in survey.walk():
            teller.tell(folder, block, files)
        teller.flush()
    elif survey.fields["kind"] == "file":
        survey.fields["meta"] = to_text(meta_of(os.stat(survey.root)))
    return survey.result()


class Teller:
    """Says folder after folder in frames of any size: one may hold many folders, or a part of one that is huge."""

    def __init__(self, send: "Callable[[bytes], None]", squeeze: bool) -> None:
        self.send = send
        self.squeeze = squeeze
        self.pending: "list[bytes]" = []
        self.size = 0

    def tell(self, folder: bytes, block: bytes, files: int) -> None:
        self.pending += [FOLDER.pack(len(folder), len(block), files), folder, block]
        self.size += len(block)
        if self.size > BLOCK:
            self.flush()

    def flush(self) -> None:
        data = b"".join(self.pending)
        for at in range(0, len(data), LARGEST_TOLD):
            piece = data[at : at + LARGEST_TOLD]
            self.send(b"z" + zlib.compress(piece, 1) if self.squeeze else b"=" + piece)
        self.pending, self.size = [], 0


def meta_of(found: os.stat_result) -> bytes:
    return b"f%o %d %d" % (found.st_mode & 0o7777, found.st_size, found.st_mtime_ns)


class Survey:
    """One look over a tree."""

    def __init__(self, order: "dict[str, Any]", fields: "dict[str, Any]") -> None:
        self.fields = fields
        self.root = to_bytes(self.fields["path"])
        self.ignore = Ignore([to_bytes(str(line)) for line in order.get("rules", ())])
        self.watched = {to_bytes(str(name)) for name in order.get("watched", ())}
        self.gitignore = bool(order.get("gitignore"))
        self.gitignores: "list[list[str]]" = []
        self.ignored_bytes = 0
        self.hits: "set[bytes]" = set()
        self.leftovers: "list[str]" = []
        self.problems = Problems()

    def walk(self) -> "Iterator[tuple[bytes, bytes, int]]":
        folders = [b""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(os.path.join(self.root, folder)) as found:
                    entries = sorted(found, key=by_name)
            except OSError as problem:
                self.problems.note(folder, problem)
                continue
            if self.gitignore:
                self.heed_gitignore(folder, entries)
            before = len(folders)
            fields = self.describe(folder, entries, folders)
            yield folder, b"\0".join(fields), len(fields) // 2 - len(folders) + before

    def heed_gitignore(self, folder: bytes, entries: "list[Any]") -> None:
        if not any(entry.name == b".gitignore" for entry in entries):
            return
        try:
            text = read_text(os.path.join(self.root, folder, b".gitignore"))
        except OSError as problem:
            self.problems.note(child(folder, b".gitignore"), problem)
            return
        self.ignored_bytes += len(text)
        if self.ignored_bytes > MOST_GITIGNORED:
            self.problems.note(child(folder, b".gitignore"), OSError(errno.EFBIG, "too many rules; not heeded"))
            return
        self.ignore.add(folder, text.split(b"\n"))
        self.gitignores.append([to_text(folder), to_text(text)])

    def describe(self, folder: bytes, entries: "list[Any]", folders: "list[bytes]") -> "list[bytes]":
        """Name and meta of each entry, one after the other: what is equal on both sides is equal byte for byte."""
        fields = []
        prefix = folder + b"/" if folder else b""
        leaves_out = self.ignore.leaves_out
        for entry in entries:
            name = entry.name
            try:
                is_dir = entry.is_dir(follow_symlinks=False)
                if leaves_out(prefix + name, is_dir):
                    if name in self.watched:
                        self.hits.add(name)
                elif name.startswith(OURS):
                    self.note_leftover(prefix + name)
                elif is_dir:
                    found = entry.stat(follow_symlinks=False)
                    folders.append(prefix + name)
                    fields += [name, b"d%o 0 %d" % (found.st_mode & 0o7777, found.st_mtime_ns)]
                else:
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        fields += [name, b"f%o %d %d" % (found.st_mode & 0o7777, found.st_size, found.st_mtime_ns)]
                    else:
                        fields += self.describe_other(prefix + name, found)
            except OSError as problem:
                self.problems.note(prefix + name, problem)
        return fields

    def describe_other(self, path: bytes, found: os.stat_result) -> "list[bytes]":
        if not stat.S_ISLNK(found.st_mode):
            self.problems.note(path, "skipped: it is %s" % SKIPPED.get(stat.S_IFMT(found.st_mode), "no file"))
            return []
        target = os.readlink(os.path.join(self.root, path))
        return [os.path.basename(path), b"l777 0 0 %s" % target]

    def note_leftover(self, path: bytes) -> None:
        if len(self.leftovers) < MOST_LEFTOVERS:
            self.leftovers.append(to_text(path))

    def result(self) -> "dict[str, Any]":
        more = {"hits": sorted(map(to_text, self.hits)), "leftovers": self.leftovers, "gitignores": self.gitignores}
        return dict(self.fields, **more, **self.problems.fields())


def read_text(path: bytes) -> bytes:
    """The beginning of a file; one that is none, such as a pipe that nobody writes to, is not waited for."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a file")
        return file.read(1 << 20)


def by_name(entry: "Any") -> bytes:
    name: bytes = entry.name
    return name


def started(pid: "int | str") -> str:
    """When a process started, in the kernel's own count: with its number, that names it for ever."""
    try:
        with open("/proc/%s/stat" % pid, "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return "0"


def machine_mark() -> str:
    """Names this boot of this machine, and the space in which its process numbers count."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return "%08x" % zlib.crc32((boot_id() + space).encode())


def own_stem() -> bytes:
    """How the names begin of what this process has not put in place yet."""
    return OURS + ("sync-%s-%d-%s-" % (machine_mark(), os.getpid(), started("self"))).encode()


def is_abandoned(name: bytes, found: os.stat_result) -> bool:
    """Whether nobody is going to put this file in place any more."""
    ongoing = ONGOING.match(name)
    if ongoing and ongoing.group(1).decode() == machine_mark():
        pid, start = ongoing.group(2).decode(), ongoing.group(3).decode()
        return not is_process(pid, start)
    # Its own time may be that of the file which it is to become.
    return time.time() - found.st_ctime > FOREIGN_S


def is_process(pid: str, start: str) -> bool:
    if start != "0":
        return started(pid) == start
    try:
        os.kill(int(pid), 0)
    except OSError as problem:
        return problem.errno == errno.EPERM
    return True
