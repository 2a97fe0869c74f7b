"""Archives on this computer: packs a folder, and unpacks an archive as if its maker were hostile."""

from __future__ import annotations

import math
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...core.errors import FileProblem
from ...core.sandboxes.files import Problem
from ...core.sync.tree import LEADS_OUT, leads_out
from ...far.lane.target import NEW
from ...far.lane.tree import BadName, Root, checked_name
from ...far.outpost.place import to_bytes

BLOCK, PIECE = 512, 1 << 20
KINDS = {tarfile.FIFOTYPE: "a fifo", tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device"}
# Header entries that describe the next one. No path is this long, and reading more could take for ever.
SAYINGS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, *tarfile.GNU_TYPES[:2])
IMPOSSIBLE = "a header says what none can"
LONGEST_SAYING = 8192


def pack(folder: str, file: str, folders: str, modes: str) -> int:
    """Two archives in the format that every tar reads, with times to the second; how many bytes that makes.

    The second has the folders alone: not every tar knows that what is put into one changes its time. Nor does every
    tar change the mode of a folder that is there already (that of busybox does so for root alone): a third file has
    the modes of the folders that their owner may not use freely, and their names, each with a zero byte after it.
    """
    with _new(file) as contents, _new(folders) as frames, open(modes, "xb") as closed:
        for path, name in _pack_below(contents, frames, folder, "."):
            mode = stat.S_IMODE(os.stat(path).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                closed.write(b"%o\0%s\0" % (mode, os.fsencode(name)))
    return sum(map(os.path.getsize, (file, folders, modes)))


def _new(file: str) -> tarfile.TarFile:
    return tarfile.open(file, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape")


def _pack_below(
    contents: tarfile.TarFile, frames: tarfile.TarFile, folder: str, name: str
) -> Iterator[tuple[str, str]]:
    """Yields each folder and its name in the archive, inner ones first."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        # With a leading ./, because a name may begin with a dash.
        inner = f"{name}/{entry.name}"
        contents.add(entry.path, inner, recursive=False, filter=_writable)
        if entry.is_dir(follow_symlinks=False):
            yield from _pack_below(contents, frames, entry.path, inner)
            frames.add(entry.path, inner, recursive=False, filter=_nobody)
            yield entry.path, inner


def _writable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode |= 0o700 if member.isdir() else 0
    return _nobody(member)


def _nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the owner: the files belong to the user who unpacks them."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = math.floor(member.mtime)
    return member


def unpack(file: str, folder: str, most: int) -> list[Problem]:
    """Unpack into an empty private folder; returns what was left out. Raises FileProblem."""
    root = Root(os.fsencode(folder))
    try:
        if not _is_whole(file):
            raise FileProblem("the archive is cut off", "broken")
        with _old(file) as archive:
            return _Unpacking(root, most).take_all(archive)
    except OSError as problem:
        raise FileProblem(f"the archive cannot be unpacked: {problem.strerror or problem}", "broken") from None
    except (tarfile.TarError, ArithmeticError, BadName, EOFError, LookupError, RecursionError, ValueError) as problem:
        raise FileProblem(f"the archive cannot be unpacked: {problem}", "hostile") from None
    finally:
        root.close()


def _old(file: str) -> tarfile.TarFile:
    # Several archives may follow each other.
    return tarfile.open(file, "r:", tarinfo=_Header, ignore_zeros=True, encoding="utf-8", errors="surrogateescape")


class _Header(tarfile.TarInfo):
    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        """Checks every header before it is used; newer Pythons do not call frombuf."""
        # A negative size would make the reader go back for ever.
        if self.size < 0 or (self.type in SAYINGS and self.size > LONGEST_SAYING):
            raise tarfile.ReadError(IMPOSSIBLE)
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return found


def _is_whole(file: str) -> bool:
    """Whether it ends with empty blocks; a reader would silently accept an archive that was cut off."""
    with open(file, "rb") as archive:
        size = archive.seek(0, os.SEEK_END)
        archive.seek(max(0, size - BLOCK))
        return size % BLOCK == 0 and archive.read() == bytes(BLOCK)


@dataclass
class _Unpacking:
    """Follows no link on the way down, and writes nothing twice."""

    root: Root
    most: int
    total: int = 0
    problems: list[Problem] = field(default_factory=list)
    folders: dict[bytes, tarfile.TarInfo] = field(default_factory=dict)

    def take_all(self, archive: tarfile.TarFile) -> list[Problem]:
        while member := archive.next():
            # tarfile would keep all of them in memory.
            archive.members = []  # type: ignore[attr-defined]
            # An extended header may have given it another, negative size, which would also lead back.
            if member.size < 0:
                raise tarfile.ReadError(IMPOSSIBLE)
            self.take(archive, member)
        # Deepest first: adding to a folder changes its time.
        for path in sorted(self.folders, key=lambda path: -path.count(b"/")):
            self.furnish(self.root.folder(path), self.folders[path], 0o500)
        return self.problems

    def take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        folder, name = split(member.name)
        if member.isdir():
            path = b"/".join(filter(None, (folder, name)))
            self.root.folder(path, make=True)
            self.folders |= {path: member} if path else {}
        elif member.isfile():
            self.measure(member.size)
            self.write(archive, member, self.root.folder(folder, make=True), checked_name(name))
        elif member.issym() and not leads_out(folder, to_bytes(member.linkname)):
            os.symlink(to_bytes(member.linkname), checked_name(name), dir_fd=self.root.folder(folder, make=True))
        elif member.islnk():
            self.name_again(member, folder, checked_name(name))
        else:
            reason = LEADS_OUT if member.issym() else f"skipped: it is {KINDS.get(member.type, 'no file')}"
            self.problems.append(Problem(member.name.removeprefix("./"), reason))

    def measure(self, size: int) -> None:
        self.total += size
        if self.total > self.most:
            raise FileProblem(f"the archive holds more than {self.most >> 20} MiB", "too_large")

    def write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, where: int, name: bytes) -> None:
        content = archive.extractfile(member)
        with open(os.open(name, NEW, 0o600, dir_fd=where), "wb") as file:
            if content is not None:
                shutil.copyfileobj(content, file, PIECE)
            file.flush()
            self.furnish(file.fileno(), member, 0o400)

    def name_again(self, member: tarfile.TarInfo, folder: bytes, name: bytes) -> None:
        """A hard link to an earlier file."""
        first, old = split(member.linkname)
        source = os.dup(self.root.folder(first))
        try:
            found = os.stat(checked_name(old), dir_fd=source, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise BadName(f"{member.linkname!r} is no file")
            self.measure(found.st_size)
            where = self.root.folder(folder, make=True)
            os.link(old, name, src_dir_fd=source, dst_dir_fd=where, follow_symlinks=False)
        finally:
            os.close(source)

    def furnish(self, fd: int, member: tarfile.TarInfo, least: int) -> None:
        """Set its mode: nothing that would run as another user, and readable for its owner."""
        moment = int(member.mtime * 10**9)
        os.chmod(fd, member.mode & 0o777 | least)
        os.utime(fd, ns=(moment, moment))


def split(path: str) -> tuple[bytes, bytes]:
    """Folder and name of an entry. Raises BadName where it would be outside."""
    names = [name for name in to_bytes(path).split(b"/") if name not in (b"", b".")]
    if path.startswith("/") or b".." in names:
        raise BadName(f"{path!r} is not a place in the folder")
    return b"/".join(names[:-1]), b"".join(names[-1:])
