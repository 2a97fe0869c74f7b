"""A workspace as values: which local folder belongs to which folder of a sandbox, and what moved between them."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..commands.shell import quote
from ..errors import SandboxError
from ..sync import starters
from ..sync.ignore import NAMES_OF_SECRETS
from ..sync.transfer import WORKSPACE_EXCLUDES, Place
from ..texts.text import counted, size

# What comes back after a command although .gitignore may exclude it.
DEFAULT_PULL = ("/results/**", "*.png", "/coverage.xml", "/htmlcov/**", "junit.xml")
# Where machines have the marks of workspaces: another machine of the same name does not have one.
MARKS = "~/.local/state/remote-sandbox-mcp/workspaces"
# What is not sent unless the workspace's rules include it. It does not begin with "!", which would send what a
# .gitignore leaves out.
SECRET_LIKE = (NAMES_OF_SECRETS.decode(),)
# Where background jobs write their logs by default: check_background_task shows them.
JOB_LOGS = f"{starters.JOB_LOGS.decode()}/"
# Larger files come back only where a pull pattern names them.
SMALL_FILE = 256 << 10
# How many new files come back with one command beyond the pull patterns.
MOST_NEW = 500
# A first send above either of these is asked about.
MOST_UNASKED_BYTES, MOST_UNASKED_FILES = 200 << 20, 20_000
# What is larger than this comes back in the background.
LARGE_PULL = 4 << 20
# What comes by a pull pattern without a further question: of one file, and in one pass.
LARGEST_RESULT, MOST_RESULTS = 1 << 30, 2 << 30
# How much of a disk stays free of it: a tenth, or less on a large one.
LEAST_FREE = 5 << 30
# How many paths that stay there are remembered as told.
MOST_STAYING = 1000
MOST_NAMED = 5


@dataclass(frozen=True)
class Rules:
    """Rules that a workspace's owner has set. Patterns are .gitignore lines."""

    excludes: tuple[str, ...] = ()
    # Secret-like names that are sent in spite of it.
    includes: tuple[str, ...] = ()
    pull: tuple[str, ...] = DEFAULT_PULL
    # Shell lines that run before every command.
    init: tuple[str, ...] = ()
    # Agents must not run commands on this computer.
    only_remote: bool = False

    def lines(self, closed: Sequence[str] = ()) -> tuple[str, ...]:
        """List the project's excludes, behind the default ones; `closed` are the paths that the gate closes in it."""
        return (JOB_LOGS, *SECRET_LIKE, *(f"!{line}" for line in self.includes), *self.excludes, *closed)

    def scan_lines(self, closed: Sequence[str] = (), secrets: Sequence[str] = SECRET_LIKE) -> tuple[str, ...]:
        """List the excludes for a scan, which must find what the pull patterns name although .gitignore excludes it."""
        included = (*(f"!{line}" for line in self.includes), *_found_lines(self.pull))
        return (JOB_LOGS, *secrets, *included, *self.excludes, *closed)


def _found_lines(patterns: Sequence[str]) -> tuple[str, ...]:
    """Lines by which a scan finds what these patterns name, and goes into the folders on the way to it."""
    lines = []
    for pattern in patterns:
        names = pattern.strip("/").split("/")
        way = names[: names.index("**")] if "**" in names else names[:-1]
        if len(names) > 1:
            lines += [f"!/{'/'.join(way[: depth + 1])}/" for depth in range(len(way))]
        lines.append(f"!{pattern}")
    return tuple(dict.fromkeys(lines))


def left_out_lines(rules: Rules, closed: Sequence[str] = ()) -> tuple[str, ...]:
    """All lines, with the default excludes."""
    return (*WORKSPACE_EXCLUDES, *rules.lines(closed))


@dataclass(frozen=True)
class Workspace:
    """A local folder (without links in its path) and the folder of a sandbox (absolute) that belongs to it."""

    id: str
    folder: str
    sandbox: str
    remote: str
    rules: Rules = Rules()
    # A person linked it on the command line: the gate for agents does not apply to its folder.
    free: bool = False

    def __str__(self) -> str:
        return f"{self.folder} = {self.sandbox}:{self.remote}"

    @property
    def here(self) -> Place:
        """Local side of the workspace. The folder was allowed when it was linked."""
        return Place("", self.folder, self.free, root=self.folder)

    def remote_folder(self, client_folder: str) -> str:
        """The folder over there that corresponds to the client's current one."""
        return self.remote_path(client_folder) if self.holds(client_folder) else self.remote

    def holds(self, path: str) -> bool:
        """Whether an absolute local path lies in it."""
        return f"{path.rstrip('/')}/".startswith(f"{self.folder.rstrip('/')}/")

    def remote_path(self, path: str) -> str:
        """A path as a caller means it: a relative one starts in the remote folder, one of the project maps to it."""
        if path.startswith("~"):
            return path
        if self.holds(path) and not f"{path}/".startswith(f"{self.remote}/"):
            path = path[len(self.folder.rstrip("/")) + 1 :]
        slash = "/" if path.endswith("/") and path != "/" else ""
        return posixpath.normpath(posixpath.join(self.remote, path)) + slash

    def start_folder(self, named: str, client_folder: str) -> str:
        """The folder over there in which a command starts: the one that its caller names, else the client's own."""
        return self.remote_path(named) if named else self.remote_folder(client_folder)

    def may_hold(self, remote_path: str) -> bool:
        """Whether a remote path may lie in it; of one that begins with ~ that cannot be told."""
        return remote_path.startswith("~") or f"{remote_path.rstrip('/')}/".startswith(f"{self.remote.rstrip('/')}/")

    def source(self, script: str, start: str) -> str:
        """A script that starts in the folder `start`, after the init lines, which run in the workspace's folder."""
        before = self.preamble(start) if script.strip() else ""
        return f"{before}\n{script}" if before else script

    def preamble(self, start: str) -> str:
        """The init lines, which run in the workspace's folder, for a script that starts in `start`; empty for none."""
        lines = list(self.rules.init)
        if lines and start.rstrip("/") != self.remote.rstrip("/"):
            lines.insert(0, f"rs_start=$PWD; cd -- {quote(self.remote)} || exit")
            lines.append('cd -- "$rs_start" || exit; unset rs_start')
        return "\n".join(lines)

    def session_source(self, script: str, start: str) -> str:
        """A script for a shell that keeps its state: its first one here begins in `start`, after the init lines."""
        begin = self.source(f"cd -- {quote(start)} || exit", self.remote)
        mark = quote(self.id)
        first = f'if [ "${{rs_workspace-}}" != {mark} ]; then rs_workspace={mark}; cd -- {quote(self.remote)} || exit'
        return f"{first}\n{begin}\nfi\n{script}"


def mark_of(workspace: Workspace) -> str:
    """The file on its machine by which that machine is known."""
    return f"{MARKS}/{workspace.id}"


def mark_text(workspace: Workspace, word: str) -> bytes:
    """Content of the mark's file: the folder there, and a random word, another one with each connection."""
    return f"{workspace.remote}\n{word}\n".encode("utf-8", "surrogateescape")


def word_in(mark: bytes) -> str:
    """The word in such a file; empty in one of an earlier version, which has none."""
    return mark.partition(b"\n")[2].strip().decode("ascii", "replace")


@dataclass(frozen=True, kw_only=True)
class LinkOrder:
    """A wish to link a local folder. Without `remote`, the folder of the same name in the home folder there is meant.

    `free`: a person gave it on the command line; `confirmed`: it may be large.
    """

    folder: str
    sandbox: str = ""
    remote: str = ""
    rules: Rules = Rules()
    free: bool = False
    confirmed: bool = False


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Preview of a link: what it would send, and what not. Names are relative to the folder; of many, the first."""

    folder: str
    sandbox: str
    remote: str
    files: int
    bytes: int
    # Secret-like names, links that lead out of the project, and default excludes: none of them is sent.
    secrets: tuple[str, ...] = ()
    secret_count: int = 0
    links: tuple[str, ...] = ()
    link_count: int = 0
    excluded: tuple[str, ...] = ()
    # Files that are in the folder there already.
    files_there: int = 0

    @property
    def is_large(self) -> bool:
        """Whether it is sent only after it was confirmed."""
        return self.bytes > MOST_UNASKED_BYTES or self.files > MOST_UNASKED_FILES

    @property
    def first_line(self) -> str:
        """The files that are sent, in words."""
        return f"{counted(self.files, 'file')} ({size(self.bytes)}) of {self.folder} to {self.sandbox}:{self.remote}"

    def lines(self, how_to_send: str) -> list[str]:
        """Describe the preview: the first line is what is sent, the others what is not, and how that can be changed."""
        lines = [self.first_line]
        if self.files_there:
            there = counted(self.files_there, "file")
            lines.append(f"{there} are there already: what is the same stays, what differs is a conflict to decide")
        if self.secret_count:
            names = _names(self.secrets, self.secret_count)
            lines.append(f"not sent, because the name is that of a secret: {names}; {how_to_send}")
        if self.link_count:
            lines.append(f"not sent, because the link leads out of the project: {_names(self.links, self.link_count)}")
        if self.excluded:
            lines.append(f"not sent, as always: {', '.join(self.excluded)}")
        return lines


@dataclass(frozen=True)
class Linked:
    """A workspace that was just linked, what it was found to hold, and what its first pass moved."""

    workspace: Workspace
    preview: Preview
    moved: Moved


@dataclass(frozen=True)
class Unlinked:
    """A workspace that was just unlinked. `left` is why its mark could not be removed from the machine, if so."""

    workspace: Workspace
    left: str = ""

    def note(self) -> str:
        """Describe in a sentence what is still on the machine; empty for nothing."""
        if not self.left:
            return ""
        mark, where = mark_of(self.workspace), self.workspace.sandbox
        return f"the file by which it was known, {mark}, is still on {where} and does nothing any more ({self.left})"


@dataclass(frozen=True)
class WorkspaceState:
    """State of a workspace: what waits to be carried over, and what is in conflict.

    `trouble` is why that is not known: a side is lost, or the sandbox cannot be reached.
    """

    workspace: Workspace
    to_send: int = 0
    to_come: int = 0
    conflicts: tuple[str, ...] = ()
    # Files that differ there and do not come because of their names; the first ones, and how many.
    kept_there: tuple[str, ...] = ()
    kept_there_count: int = 0
    trouble: str = ""

    @property
    def is_in_step(self) -> bool:
        return not (self.to_send or self.to_come or self.conflicts or self.trouble)


@dataclass(frozen=True)
class Moved:
    """Movements of one pass. Names are relative to the workspace; of many, the first ones."""

    sent: tuple[str, ...] = ()
    sent_count: int = 0
    sent_bytes: int = 0
    deleted_there: int = 0
    came: tuple[str, ...] = ()
    came_count: int = 0
    came_bytes: int = 0
    deleted_here: tuple[str, ...] = ()
    deleted_here_count: int = 0
    conflicts: tuple[str, ...] = ()
    # Files that stay there because their names run or instruct, and that changed there; with deletions of such ones.
    kept_there: tuple[str, ...] = ()
    kept_there_count: int = 0
    # Results that were too large to bring back, and new files that were too many.
    too_large: tuple[str, ...] = ()
    too_large_count: int = 0
    stayed_there: int = 0
    # What could not be moved, and why, as sentences.
    problems: tuple[str, ...] = ()
    # The background transfer that brings large files.
    transfer: str = ""

    @property
    def is_quiet(self) -> bool:
        return self == Moved()

    def and_then(self, later: Moved) -> Moved:
        """Add up the movements of this pass and of a later one."""
        listed = ("sent", "came", "conflicts", "kept_there", "too_large", "problems")
        once: dict[str, Any] = {name: _once(getattr(self, name), getattr(later, name)) for name in listed}
        added = ("sent_bytes", "deleted_there", "came_bytes", "deleted_here", "deleted_here_count", "kept_there_count")
        both = {name: getattr(self, name) + getattr(later, name) for name in (*added, "too_large_count")}
        return replace(
            later,
            **once | both,
            sent_count=self.sent_count + later.sent_count - len(set(self.sent).intersection(later.sent)),
            came_count=self.came_count + later.came_count - len(set(self.came).intersection(later.came)),
            stayed_there=max(self.stayed_there, later.stayed_there),
            transfer=later.transfer or self.transfer,
        )

    def line(self) -> str:
        """All of it in one line; empty where nothing moved and nothing is in conflict."""
        parts = []
        if self.sent_count:
            parts.append(f"sent {_names(self.sent, self.sent_count)} ({size(self.sent_bytes)})")
        if self.deleted_there:
            parts.append(
                f"deleted {counted(self.deleted_there, 'file')} there that {_was(self.deleted_there)} deleted here"
            )
        if self.came_count:
            parts.append(f"came back: {_names(self.came, self.came_count)} ({size(self.came_bytes)})")
        if self.deleted_here_count:
            names = _names(self.deleted_here, self.deleted_here_count)
            parts.append(
                f"moved to the trash, since deleted there: {names} (remote-sandbox-mcp workspaces restore PATH brings "
                "one back)"
            )
        if self.transfer:
            parts.append(f"larger files come in the background: check_file_transfer_task {self.transfer}")
        parts += self._staying()
        if self.stayed_there:
            new = counted(self.stayed_there, "new file")
            parts.append(f"{new} stayed there, because they are many; sync_remote_to_local fetches them")
        return "; ".join((*parts, *self.problems, *_conflict(self.conflicts)))

    def _staying(self) -> list[str]:
        notes = [kept_there(self.kept_there, self.kept_there_count)] if self.kept_there_count else []
        if self.too_large_count:
            names = _names(self.too_large, self.too_large_count)
            notes.append(
                f"stayed there, because of the size or the free space here: {names}; sync_remote_to_local fetches it"
            )
        return notes


def kept_there(names: Sequence[str], count: int) -> str:
    """The sentence for files that do not come because of their names."""
    return (
        f"kept there: {_names(names, count)}, since files of such names make programs or agents do something; "
        "keep_remote or sync_remote_to_local with the very path fetches one"
    )


def room_for_results(free: int, total: int) -> int:
    """Return how many bytes may come by pull patterns in one pass, on a disk with so much room."""
    return max(0, min(MOST_RESULTS, free - min(total // 10, LEAST_FREE)))


class OutOfStep(SandboxError):
    """Failure to send local changes, so nothing was done over there: it would have had old files."""

    code = "workspace"


def not_sent(workspace: Workspace, problem: SandboxError) -> OutOfStep:
    return OutOfStep(
        f"nothing was done on {workspace.sandbox}, because what changed in {workspace.folder} could not be sent there "
        f"first: {problem}"
    )


def not_brought(workspace: Workspace, problem: SandboxError) -> Moved:
    """Told with the result of a command, which is true whatever became of the pass after it."""
    return Moved(problems=(f"what changed on {workspace.sandbox} was not fetched: {problem}",))


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _once(first: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *more)))


def _names(names: Sequence[str], count: int) -> str:
    notes = ", ".join(names[:MOST_NAMED])
    left = count - min(len(names), MOST_NAMED)
    return f"{notes} and {left} more" if left else notes


def _conflict(paths: Sequence[str]) -> tuple[str, ...]:
    if not paths:
        return ()
    return (
        f"in conflict: {_names(paths, len(paths))} changed on both sides since they were last the same, and neither "
        f"was overwritten; compare your local file with read_remote_file, then make one of them right and call "
        f"link_workspace with keep_local or keep_remote and these paths",
    )
