"""A tree of files on one side of a sync: scans it, and opens its entries without following links out of it."""

import contextlib
import errno
import itertools
import operator
import os
import re
import stat
import struct
import time
import zlib
from typing import Any, Callable, Iterator

from ...core.sync.ignore import Ignore
from ..outpost.place import Refused, birth_of, boot_id, closing_fd, to_bytes, to_path, to_text
from .snapshot import FolderSnapshot

MYPY = False
if MYPY:
    from ...core.orders import FollowOrder, InspectPathAnswer, InspectPathOrder, ProblemsAnswer, ScanAnswer, ScanOrder

# Header of a folder in a scan: length of its path, length of its entries, how many of these are files or links.
FOLDER = struct.Struct(">HII")
MOST_TREE_PROBLEMS = 200
MOST_SECRETS_NAMED = 20
BY_NAME = operator.attrgetter("name")
MOST_LEFTOVERS = 10000
OPEN_FOLDERS = 64
# Stands for the device and inode of a folder that may be any.
UNKNOWN_ID = [0, 0]
# O_PATH opens a folder on the way that may be entered but not read; systems without it need a readable one.
STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC
BLOCK, LARGEST_PIECE_SENT = 1 << 18, 8 << 20
MOST_GITIGNORED = 8 << 20
# Files that are not in place yet have names that begin like this; they never count as part of a tree.
OURS = b".remote-sandbox-"
ONGOING = re.compile(rb"\.remote-sandbox-sync-([0-9a-f]+)-(\d+)-(\d+)-\d+\Z")
PARTIAL = b".remote-sandbox-part-"
# A file of another machine's sync is abandoned after this time; a partial file may be resumed for this long.
FOREIGN_S = 3600
RESUMED_S = 7 * 86400
# Bits of a mode that say what it is of, and how they are set for a file.
FORMAT, REGULAR = stat.S_IFMT(0xFFFF), stat.S_IFREG
# How many entries of the folder around a single file are looked at.
MOST_BESIDE = 100000
SKIPPED = {stat.S_IFIFO: "a fifo", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class BadName(Exception):
    """A name that cannot be that of an entry, such as `..`: it would lead out of the tree."""


class Refusal(Refused):
    """Refusal of a lane's request."""


# Exceptions that a malformed request causes, and all that a request may end with.
BROKEN = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError, struct.error)
FAILURES = (Refusal, BadName, OSError) + BROKEN


def explained(problem: Exception, otherwise: str) -> "tuple[str, str]":
    """The reason that programs check, and the sentence, of a failure; `otherwise` is that of a malformed request."""
    if isinstance(problem, (Refusal, BadName)):
        return getattr(problem, "reason", "name"), str(problem)
    if isinstance(problem, OSError):
        return errno.errorcode.get(problem.errno or 0, "EIO"), problem.strerror or str(problem)
    return "broken", otherwise


class Problems:
    """Problems with single entries: the first ones in words, all of them counted."""

    def __init__(self) -> None:
        self.listed: "list[list[str]]" = []
        self.count = self.unread = 0

    def note(self, path: bytes, reason: "object") -> None:
        self.count += 1
        self.unread += isinstance(reason, OSError)
        if len(self.listed) < MOST_TREE_PROBLEMS:
            words = getattr(reason, "strerror", None) or str(reason)
            self.listed.append([to_text(path), words])

    def fields(self) -> "ProblemsAnswer":
        return {"problems": self.listed, "problem_count": self.count, "unread": self.unread}


def paths_in(raw: bytes) -> "list[bytes]":
    return raw.split(b"\0") if raw else []


def child(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def checked_name(name: bytes) -> bytes:
    """Check a name that came from the other side, which may be hostile. Raises BadName."""
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise BadName("%r is not the name of a file" % name)
    return name


class Root:
    """The opened top folder of a tree; its folders are opened step by step from there, following no links."""

    def __init__(self, path: bytes, ids: "list[list[int]] | None" = None, make: bool = False) -> None:
        """With the `ids` of the folders that were found along the path, the way to it follows no link, either."""
        self.path = path
        self.folders: "dict[bytes, int]" = {}
        if ids is None:
            self.top = os.open(path or b"/", os.O_RDONLY | os.O_DIRECTORY)
        else:
            self.top = open_exactly(path, ids, os.O_RDONLY, make)

    def folder(self, path: bytes, make: bool = False) -> int:
        """A descriptor of a folder of the tree, valid until the next call. Raises OSError, BadName."""
        if not path:
            return self.top
        entries = self.folders.get(path)
        if entries is not None:
            return entries
        above = path
        while above and above not in self.folders:
            above = above.rpartition(b"/")[0]
        fd = self.folders[above] if above else self.top
        for name in path[len(above) + 1 if above else 0 :].split(b"/"):
            fd = self.enter(fd, checked_name(name), make)
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
        """Close all folders but the top, because they may be moved or removed now."""
        for fd in self.folders.values():
            os.close(fd)
        self.folders.clear()

    def close(self) -> None:
        self.forget()
        os.close(self.top)


def open_exactly(path: bytes, ids: "list[list[int]]", how: int, make: bool = False) -> int:
    """Open a folder by its whole path, if each folder on the way is the one found before. Raises OSError, Refusal.

    `ids` are device and inode of /, of the next folder and so on; a folder that did not exist has none and may be made.
    """
    names = [name for name in path.split(b"/") if name]
    fd = os.open(b"/", STEP | os.O_DIRECTORY if names else how | os.O_DIRECTORY)
    try:
        check_id(path, os.fstat(fd), ids, 0)
        for depth, name in enumerate(names, 1):
            inner = enter_exactly(path, fd, name, how if depth == len(names) else STEP, make)
            os.close(fd)
            fd = inner
            check_id(path, os.fstat(fd), ids, depth)
    except BaseException:
        os.close(fd)
        raise
    return fd


def enter_exactly(path: bytes, parent: int, name: bytes, how: int, make: bool) -> int:
    flags = how | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as problem:
        # Systems report a link under O_NOFOLLOW by different errors.
        if problem.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK):
            check_no_link(path, os.stat(name, dir_fd=parent, follow_symlinks=False))
        raise
    # Another lane may be quicker.
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    return enter_exactly(path, parent, name, how, False)


def stat_exactly(path: bytes, ids: "list[list[int]]") -> os.stat_result:
    """The stat of a path, if the way to it is the one found before and no link. Raises OSError, Refusal."""
    folder, name = os.path.split(path)
    with closing_fd(open_exactly(folder, ids, STEP)) as above:
        found = os.stat(name or b".", dir_fd=above, follow_symlinks=False)
    check_no_link(path, found)
    check_id(path, found, ids, len([name for name in path.split(b"/") if name]))
    return found


def stat_at(path: bytes, exact: "list[list[int]] | None") -> os.stat_result:
    """The stat of a path as a request names it: through links, or by the ids of the way to it."""
    return os.stat(path) if exact is None else stat_exactly(path, exact)


def check_no_link(path: bytes, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise Refusal("moved", "%s leads elsewhere since it was looked at: a link was put there" % to_text(path))


def check_id(path: bytes, found: os.stat_result, ids: "list[list[int]]", depth: int) -> None:
    if depth < len(ids) and ids[depth] != UNKNOWN_ID and [found.st_dev, found.st_ino] != ids[depth]:
        raise Refusal("moved", "%s is not what it was when it was looked at; try again" % to_text(path))


def make_inner(name: bytes, parent: int) -> None:
    """Make a folder of the tree, open to its owner alone: it gets its mode at the end, after its files."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        # Another lane may be quicker.
        pass
    except PermissionError:
        open_up(parent)
        os.mkdir(name, 0o700, dir_fd=parent)


def open_up(folder: int) -> None:
    """Let the owner write to a folder that is read-only, as it is at the source; it gets its mode at the end."""
    os.chmod(folder, os.fstat(folder).st_mode & 0o7777 | 0o700)


def kind_of(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "dir"
    return "file" if stat.S_ISREG(mode) else "other"


def inspect_path(order: "InspectPathOrder | ScanOrder | FollowOrder") -> "InspectPathAnswer":
    """Return kind and place of a path. A link there is followed, because the user named it."""
    path, exact = to_path(str(order["path"])), order.get("exact")
    home = os.path.realpath(os.path.expanduser(b"~"))
    real = os.path.realpath(path) if exact is None else path
    fields: "InspectPathAnswer" = {
        "kind": "missing",
        "path": to_text(path),
        "real": to_text(real),
        "home": to_text(home),
    }
    try:
        found = stat_at(path, exact)
    except FileNotFoundError:
        if os.path.islink(path):
            fields["kind"] = "other"
        return fields
    fields["kind"] = kind_of(found.st_mode)
    return fields


def scan(order: "ScanOrder", send: "Callable[[bytes], None]") -> "ScanAnswer":
    """Send the tree folder by folder; returns the rest of the answer."""
    survey = Survey(order, inspect_path(order))
    if survey.fields["kind"] == "dir":
        teller = Teller(send, bool(order.get("squeeze")))
        with survey.opened(order.get("exact")):
            # Raises for a top folder that cannot be read; below it that is only a problem in the answer.
            os.listdir(survey.enter(b""))
            for folder, block, files in survey.walk():
                teller.report(folder, block, files)
        teller.flush()
    elif survey.fields["kind"] == "file":
        survey.meta = to_text(meta_of(stat_at(survey.root, order.get("exact"))))
    if order.get("beside") and survey.fields["kind"] in ("file", "missing"):
        survey.list_beside(to_bytes(str(order["beside"])))
    answer = survey.result()
    if answer["kind"] == "dir":
        answer["ids"] = ids_along(to_bytes(answer["real"]))
    return answer


class Teller:
    """Sends the folders of a scan in frames: one may hold many folders, or a part of a huge one."""

    def __init__(self, send: "Callable[[bytes], None]", squeeze: bool) -> None:
        self.send = send
        self.squeeze = squeeze
        self.pending: "list[bytes]" = []
        self.size = self.count = 0

    def report(self, folder: bytes, block: bytes, files: int) -> None:
        self.count += 1
        self.pending += [FOLDER.pack(len(folder), len(block), files), folder, block]
        self.size += len(block)
        if self.size > BLOCK:
            self.flush()

    def flush(self) -> None:
        data = b"".join(self.pending)
        for at in range(0, len(data), LARGEST_PIECE_SENT):
            piece = data[at : at + LARGEST_PIECE_SENT]
            self.send(b"z" + zlib.compress(piece, 1) if self.squeeze else b"=" + piece)
        self.pending, self.size = [], 0


def meta_of(found: os.stat_result) -> bytes:
    return b"f%o %d %d" % (found.st_mode & 0o7777, found.st_size, found.st_mtime_ns)


class Survey:
    """One scan of a tree."""

    def __init__(self, order: "ScanOrder | FollowOrder", fields: "InspectPathAnswer") -> None:
        self.fields = fields
        self.root = to_bytes(self.fields["path"])
        self.ignore = Ignore([to_bytes(str(line)) for line in order.get("rules", ())])
        self.watched = {to_bytes(str(name)) for name in order.get("watched", ())}
        self.gitignore = bool(order.get("gitignore"))
        self.gitignores: "list[list[str]]" = []
        self.ignored_bytes = 0
        self.hits: "set[bytes]" = set()
        self.leftovers: "list[str]" = []
        # What rules about names of secrets left out: the first ones by name, all of them counted.
        self.secrets: "list[str]" = []
        self.secret_count = 0
        self.problems = Problems()
        # Set if the path is a single file.
        self.meta = ""
        self.top: "Root | None" = None
        # The path by which entries of the current folder are opened.
        self.where = self.root
        # What the folder that is read shows, where that is compared later.
        self.snapshot: "FolderSnapshot | None" = None

    @contextlib.contextmanager
    def opened(self, exact: "list[list[int]] | None") -> "Iterator[None]":
        """Open the tree's top, if the ids of the path are known, and walk from there, so that no link is followed."""
        if exact is None:
            yield
            return
        self.top = Root(self.root, exact)
        try:
            yield
        finally:
            os.chdir(b"/")
            self.top.close()
            self.top = None

    def enter(self, folder: bytes) -> bytes:
        """A path to a folder of the tree, valid until the next call. Raises OSError."""
        if self.top is None:
            self.where = os.path.join(self.root, folder)
        else:
            os.fchdir(self.top.folder(folder))
            self.where = b"."
        return self.where

    def walk(self) -> "Iterator[tuple[bytes, bytes, int]]":
        folders = [b""]
        while folders:
            folder = folders.pop()
            listed = self.read(folder)
            if listed is not None:
                yield folder, listed[0], listed[1]
                folders += listed[2]

    def read(self, folder: bytes) -> "tuple[bytes, int, list[bytes]] | None":
        """A folder's block, how many files it has, and its folders; None, and a problem, if it cannot be read."""
        try:
            with os.scandir(self.enter(folder)) as found:
                entries = sorted(found, key=BY_NAME)
        except OSError as problem:
            self.problems.note(folder, problem)
            return None
        if self.gitignore:
            self.apply_gitignore(folder, entries)
        folders: "list[bytes]" = []
        fields = self.describe(folder, entries, folders)
        return b"\0".join(fields), len(fields) // 2 - len(folders), folders

    def apply_gitignore(self, folder: bytes, entries: "list[Any]") -> None:
        text = self.read_gitignore(folder, entries)
        if text is not None:
            self.add_rules(folder, text)

    def read_gitignore(self, folder: bytes, entries: "list[Any]") -> "bytes | None":
        if not any(entry.name == b".gitignore" for entry in entries):
            return None
        try:
            return read_text(os.path.join(self.where, b".gitignore"), os.O_NOFOLLOW if self.top else 0)
        except OSError as problem:
            self.problems.note(child(folder, b".gitignore"), problem)
            return None

    def add_rules(self, folder: bytes, text: bytes) -> None:
        self.ignored_bytes += len(text)
        if self.ignored_bytes > MOST_GITIGNORED:
            self.problems.note(child(folder, b".gitignore"), OSError(errno.EFBIG, "too many rules; not heeded"))
            return
        self.ignore.add(folder, text)
        self.gitignores.append([to_text(folder), to_text(text)])

    def describe(self, folder: bytes, entries: "list[Any]", folders: "list[bytes]") -> "list[bytes]":
        """Name and meta of each entry in turn. Equal folders give equal bytes, so that they can be compared quickly."""
        fields: "list[bytes]" = []
        prefix = folder + b"/" if folder else b""
        leaves_out, snapshot = self.ignore.leaves_out, self.snapshot
        out = self.ignore.files_left_out(folder, [entry.name for entry in entries])
        for entry in entries:
            name = entry.name
            path = prefix + name
            try:
                is_dir = entry.is_dir(follow_symlinks=False)
                if leaves_out(path, True) if is_dir else name in out:
                    self.note_left_out(path, name, is_dir)
                    if snapshot:
                        self.mark_left_out(snapshot, entry, is_dir)
                    continue
                if name.startswith(OURS):
                    self.note_leftover(path)
                    continue
                found = entry.stat(follow_symlinks=False)
                mode = found.st_mode
                if snapshot:
                    snapshot.add(name, found)
                if mode & FORMAT == REGULAR:
                    fields += name, b"f%o %d %d" % (mode & 0o7777, found.st_size, found.st_mtime_ns)
                elif is_dir:
                    folders.append(path)
                    self.note_folder(path, found)
                    fields += name, b"d%o 0 %d" % (mode & 0o7777, found.st_mtime_ns)
                else:
                    fields += self.describe_other(path, found)
            except OSError as problem:
                self.problems.note(path, problem)
        return fields

    def mark_left_out(self, snapshot: "FolderSnapshot", entry: "Any", is_dir: bool) -> None:
        if self.gitignore and entry.name == b".gitignore":
            # Its rules count, even where one of them leaves out the file itself.
            snapshot.add(entry.name, entry.stat(follow_symlinks=False))
        else:
            snapshot.left_out[entry.name] = is_dir

    def note_folder(self, path: bytes, found: os.stat_result) -> None:
        """Called with every folder that is found."""

    def describe_other(self, path: bytes, found: os.stat_result) -> "list[bytes]":
        if not stat.S_ISLNK(found.st_mode):
            self.problems.note(path, "skipped: it is %s" % SKIPPED.get(stat.S_IFMT(found.st_mode), "no file"))
            return []
        name = os.path.basename(path)
        return [name, b"l777 0 0 %s" % os.readlink(os.path.join(self.where, name))]

    def note_leftover(self, path: bytes) -> None:
        if len(self.leftovers) < MOST_LEFTOVERS:
            self.leftovers.append(to_text(path))

    def note_left_out(self, path: bytes, name: bytes, is_dir: bool) -> None:
        # A rule is a name, or an ending such as *.pyc.
        self.hits |= {name, b"*" + os.path.splitext(name)[1]} & self.watched
        if self.ignore.withholds(path, is_dir):
            self.secret_count += 1
            if len(self.secrets) < MOST_SECRETS_NAMED:
                self.secrets.append(to_text(path))

    def list_beside(self, stem: bytes) -> None:
        """Note what earlier transfers left beside a single file: partial copies of it, or others too old to resume."""
        try:
            with os.scandir(os.path.dirname(self.root)) as found:
                ours = [entry for entry in itertools.islice(found, MOST_BESIDE) if entry.name.startswith(OURS)]
        except OSError:
            return
        for entry in ours:
            if may_be_removed(entry.name, entry.stat(follow_symlinks=False).st_mtime, stem):
                self.note_leftover(entry.name)

    def result(self) -> "ScanAnswer":
        return {
            "kind": self.fields["kind"],
            "path": self.fields["path"],
            "real": self.fields["real"],
            "home": self.fields["home"],
            "meta": self.meta,
            "hits": sorted(map(to_text, self.hits)),
            "leftovers": self.leftovers,
            "gitignores": self.gitignores,
            "secrets": self.secrets,
            "secret_count": self.secret_count,
            "problems": self.problems.listed,
            "problem_count": self.problems.count,
            "unread": self.problems.unread,
        }


def ids_along(real: bytes) -> "list[list[int]]":
    """Device and inode of the last folder of a path without links, as open_exactly takes them; none if one is gone."""
    ids: "list[list[int]]" = []
    path = b"/"
    try:
        for name in real.split(b"/"):
            path = os.path.join(path, name)
            found = os.lstat(path)
            if name or not ids:
                ids.append([found.st_dev, found.st_ino])
    except OSError:
        return []
    # Those above are not compared: each process in a sandbox may have a root of its own, and be a lane to this folder.
    return [UNKNOWN_ID] * (len(ids) - 1) + ids[-1:]


def read_text(path: bytes, how: int = 0) -> bytes:
    """The beginning of a regular file; O_NONBLOCK, because opening a named pipe would wait for its writer."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | how), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a file")
        return file.read(1 << 20)


def machine_mark() -> str:
    """Identifies this boot of this machine and the pid namespace: elsewhere, a pid means another process."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return "%08x" % zlib.crc32((boot_id() + space).encode())


def own_stem() -> bytes:
    """The beginning of the names of this process's temporary files."""
    return OURS + ("sync-%s-%d-%d-" % (machine_mark(), os.getpid(), birth_of("self"))).encode()


def is_abandoned(name: bytes, found: os.stat_result) -> bool:
    """Whether the process that wrote a temporary file is gone, so that it will not be put in place."""
    ongoing = ONGOING.match(name)
    if ongoing and ongoing.group(1).decode() == machine_mark():
        pid, start = ongoing.group(2).decode(), ongoing.group(3).decode()
        return not is_process(pid, start)
    # By ctime: its mtime may have been set to that of the file at the source.
    return time.time() - found.st_ctime > FOREIGN_S


def may_be_removed(name: bytes, mtime: float, stem: bytes) -> bool:
    """Whether a sync may remove a leftover: any of its own file, a partial copy of another one after a week only."""
    # Names of partial copies of a file begin with its `stem`.
    return not name.startswith(PARTIAL) or name.startswith(PARTIAL + stem) or time.time() - mtime > RESUMED_S


def is_process(pid: str, start: str) -> bool:
    if start != "0":
        return str(birth_of(pid)) == start
    # Without /proc the pid alone has to do; EPERM means that another user's process has it.
    try:
        os.kill(int(pid), 0)
    except OSError as problem:
        return problem.errno == errno.EPERM
    return True
