"""Files where there is no Python: a shell reads, writes and lists them."""

from __future__ import annotations

import base64
import posixpath
import secrets

from ...core.errors import FileProblem
from ...core.sandboxes.files import Entry, FileSlice, Listing, Problem, Span, Written
from ...core.sandboxes.foreign import to_number, to_whole, understood
from ...far.outpost.files import MOST_PROBLEMS
from ...far.outpost.place import to_bytes, to_text
from .program import FILES, Shell, ShellAnswer
from .transport import FULL, NoRoom

# The most bytes that go into one variable, and that one answer should have.
LARGEST_PUT, LARGEST_GET = 60_000, 1 << 20
# The most bytes of a path with its mode, size and time.
LONGEST_ENTRY = 8 << 10
# A file that is replaced while it is read in parts is read again, this many times.
TRIES = 3
KINDS = {0x8: "file", 0x4: "dir", 0xA: "link"}
REASONS = {
    "No such file or directory": "ENOENT",
    "Not a directory": "ENOTDIR",
    "Permission denied": "EACCES",
    "Operation not permitted": "EPERM",
    "File exists": "EEXIST",
    "Is a directory": "is_dir",
    "No space left on device": "ENOSPC",
    "Disk quota exceeded": "EDQUOT",
    "Read-only file system": "EROFS",
    "File name too long": "ENAMETOOLONG",
    "Too many levels of symbolic links": "ELOOP",
}
REFUSALS = {
    "dir": ("not_a_file", "is a folder"),
    "link": ("is_link", "is a symbolic link; write to the path that it leads to"),
    "other": ("not_a_file", "is not a regular file, so it is not replaced"),
    "exists": ("exists", "exists already"),
    "read_only": ("read_only", "is read-only, so it is not replaced; pass force=true to replace it all the same"),
    "stale": ("stale", "has changed since it was read, or is no longer there; read it again, then repeat"),
}


class ShellFiles:
    """Reads, writes and lists files. Every method raises SandboxError; paths are absolute or relative to home."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._name = shell.place.name

    async def absolute(self, path: str) -> str:
        below = path[2:] if path.startswith("~/") else "" if path == "~" else path
        return posixpath.normpath(posixpath.join(await self._shell.home(), below))

    async def ask(self, verb: str, path: str, size: int, *, token: str = "", **values: str) -> ShellAnswer:
        """Send a request about an absolute path, for `size` bytes. Raises FileProblem with the message from there."""
        answer = await self._shell.ask(FILES, verb, {**values, "path": path, "token": token}, 2 * size)
        return self._checked(path, answer)

    def _checked(self, path: str, answer: ShellAnswer) -> ShellAnswer:
        if answer.has("complaint"):
            message = answer.data("complaint").decode("utf-8", "replace").rpartition(": ")[2].strip()
            raise self.problem(path, message, REASONS.get(message, "failed"))
        if answer.has("refused"):
            reason, message = REFUSALS.get(answer.text("refused"), ("failed", "is not replaced"))
            raise FileProblem(f"{self._name}: {_shown(path)} {message}", reason)
        return answer

    def problem(self, path: str, why: str, reason: str) -> FileProblem:
        return FileProblem(f"{self._name}: {_shown(path)}: {why}", reason)

    async def read(self, path: str, span: Span) -> FileSlice:
        path = await self.absolute(path)
        for _ in range(TRIES):
            found = await self._get(path, span, min(span.limit, LARGEST_GET))
            if not found.more or span.limit <= LARGEST_GET or span.lines:
                break
            whole = await self._read_on(path, span, found)
            if whole is not None:
                return whole
        if not found.more or span.limit <= LARGEST_GET:
            return found
        return await self._get(path, span, span.limit)

    async def _get(self, path: str, span: Span, limit: int) -> FileSlice:
        lines = {"line": str(span.line or 1), "lines": str(span.lines) if span.lines else ""}
        answer = await self.ask("get", path, limit, offset=str(span.offset), limit=str(limit), **lines)
        mode, size = _numbers(answer.text("found"))
        if not answer.has("data"):
            raise self._unreadable(path, KINDS.get(mode >> 12, "other"))
        start, read = answer.number("start"), answer.data("data")
        data = read[:limit]
        # A growing file, or one in /proc, may have more bytes than its size said.
        size = max(size, start + len(data)) if data else size
        more = len(read) > limit or start + len(data) < size
        return FileSlice(data, size, _version(answer), start, more)

    def _unreadable(self, path: str, kind: str) -> FileProblem:
        if kind == "dir":
            return self.problem(path, "it is a folder; list_remote_files shows what is in it", "is_dir")
        if kind == "file":
            return self.problem(path, "Permission denied", "EACCES")
        return self.problem(path, "it is a pipe, socket or device, not a file", "not_a_file")

    async def _read_on(self, path: str, span: Span, found: FileSlice) -> FileSlice | None:
        """The rest of a large file, in several answers; None if the file was replaced meanwhile."""
        # Not through a platform's own download: its agent takes `$NAME` in a path for a variable, and would read
        # another file.
        wanted = min(span.limit, found.size - found.offset)
        data = bytearray(found.data)
        while len(data) < wanted:
            size = min(LARGEST_GET, wanted - len(data))
            piece = await self._get(path, Span(offset=found.offset + len(data)), size)
            if not piece.data or _inode(piece.version) != _inode(found.version):
                return None
            data += piece.data
        return FileSlice(bytes(data), found.size, found.version, found.offset, found.offset + len(data) < found.size)

    async def write(self, path: str, data: bytes, expected: str | None, force: bool = False) -> Written:
        path = await self.absolute(path)
        token = secrets.token_hex(16)
        values = {"path": path, "token": token, "force": "yes" if force else ""}
        if len(data) <= LARGEST_PUT:
            values["data"] = base64.b64encode(data).decode("ascii")
        if expected is not None:
            values["expected"] = expected.replace("_", " ")
        try:
            if len(data) > LARGEST_PUT:
                values["from"] = await self._shell.upload(f"put-{token}", data)
            answer = self._checked(path, await self._shell.ask_once(FILES, "put", values))
        except NoRoom:
            raise self.problem(path, FULL, "ENOSPC") from None
        return Written(_numbers(answer.text("found"))[1], _version(answer), answer.has("created"))

    async def list(self, path: str, recursive: bool, limit: int) -> Listing:
        path = await self.absolute(path)
        token = secrets.token_hex(16)
        depth = "" if recursive else "1"
        answer = await self.ask("list", path, limit * LONGEST_ENTRY, token=token, depth=depth, count=str(limit + 1))
        with understood(self._name):
            records = answer.data("entries").split(f"{token} ".encode(), limit + 2)[1:]
            below = to_text(answer.data("below"))
            entries = [_entry(below, record) for record in records[: limit + 1]]
            return Listing(tuple(entries[:limit]), len(entries) > limit, complaints(answer, below))


def complaints(answer: ShellAnswer, below: str) -> tuple[Problem, ...]:
    """Parse the messages of find and grep into problems: program, path (perhaps in quotes), error."""
    found: dict[Problem, None] = {}
    for line in answer.complaints:
        program, _, rest = line.partition(": ")
        path, _, reason = rest.rpartition(": ")
        path = path.strip("'")
        if program in ("find", "grep") and path.startswith("."):
            found[Problem(inside(below, path), reason)] = None
    return tuple(found)[:MOST_PROBLEMS]


def inside(below: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(below, path))


def _entry(below: str, record: bytes) -> Entry:
    mode, size, changed, name = record.removesuffix(b"\n").split(b" ", 3)
    kind = KINDS.get(int(mode, 16) >> 12, "other")
    return Entry(inside(below, to_text(name)), kind, to_whole(int(size)), to_number(float(changed)))


def _numbers(found: str) -> tuple[int, int]:
    """Mode and size of a file; zeros if they cannot be read, because another machine may print anything."""
    mode, _, size = found.partition(" ")
    try:
        return to_whole(int(mode, 16)), to_whole(int(size))
    except ValueError:
        return 0, 0


def _version(answer: ShellAnswer) -> str:
    return answer.text("version").replace(" ", "_")


def _inode(version: str) -> str:
    return version.partition("-")[0]


def _shown(path: str) -> str:
    return to_bytes(path).decode("utf-8", "replace")
