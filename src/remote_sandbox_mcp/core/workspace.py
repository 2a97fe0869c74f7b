"""A workspace as values: which local folder belongs to which folder of a sandbox, and what moved between them."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from .text import counted, size

# What comes back after a command although .gitignore may exclude it.
DEFAULT_PULL = ("/results/**", "*.png", "/coverage.xml", "/htmlcov/**", "junit.xml")
# Names of files that often hold secrets: not sent unless the workspace's rules include them.
SECRET_LIKE = (
    *(".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", ".envrc", ".netrc", ".pgpass", ".npmrc"),
    *(".pypirc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "id_rsa*", "id_dsa*"),
    *("id_ecdsa*", "id_ed25519*", "credentials", "credentials.*", "*credentials*.json", "secrets.*", ".htpasswd"),
    *("*.tfstate", "*.tfstate.*", ".git-credentials", "service-account*.json", "kubeconfig"),
)
# Larger files come back only where a pull pattern names them.
SMALL_FILE = 256 << 10
# How many new files come back with one command beyond the pull patterns.
MOST_NEW = 500
# A first send above either of these is asked about.
MOST_UNASKED_BYTES, MOST_UNASKED_FILES = 200 << 20, 20_000
# What is larger than this comes back in the background.
LARGE_PULL = 4 << 20
MOST_NAMED = 5


@dataclass(frozen=True)
class Rules:
    """What a workspace's owner has said about it. Patterns are .gitignore lines."""

    excludes: tuple[str, ...] = ()
    # Secret-like names that are sent in spite of it.
    includes: tuple[str, ...] = ()
    pull: tuple[str, ...] = DEFAULT_PULL
    # Shell lines that run before every command.
    init: tuple[str, ...] = ()
    # Agents must not run commands on this computer.
    only_remote: bool = False


@dataclass(frozen=True)
class Workspace:
    """A local folder (without links in its path) and the folder of a sandbox (absolute) that belongs to it."""

    id: str
    folder: str
    sandbox: str
    remote: str
    rules: Rules = Rules()

    def __str__(self) -> str:
        return f"{self.folder} = {self.sandbox}:{self.remote}"

    def remote_folder(self, client_folder: str) -> str:
        """The folder over there that corresponds to the client's current one."""
        return self.remote_path(client_folder) if self.holds(client_folder) else self.remote

    def holds(self, path: str) -> bool:
        """Whether an absolute local path lies in it."""
        return f"{path.rstrip('/')}/".startswith(f"{self.folder.rstrip('/')}/")

    def remote_path(self, path: str) -> str:
        """A path as a caller means it: relative ones start in the remote folder, local ones of the project map to it.

        >>> ours = Workspace("w", "/home/ann/p", "gpu1", "/data/p")
        >>> ours.remote_path("src/a.py"), ours.remote_path("/home/ann/p/b"), ours.remote_path("/etc/x")
        ('/data/p/src/a.py', '/data/p/b', '/etc/x')
        """
        if path.startswith("~"):
            return path
        if self.holds(path) and not f"{path}/".startswith(f"{self.remote}/"):
            path = path[len(self.folder.rstrip("/")) + 1 :]
        slash = "/" if path.endswith("/") and path != "/" else ""
        return posixpath.normpath(posixpath.join(self.remote, path)) + slash


@dataclass(frozen=True)
class Moved:
    """What moved in one pass. Names are relative to the workspace; of many, the first ones."""

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
    # New files that were too many to bring back.
    stayed_there: int = 0
    # What could not be moved, and why, as sentences.
    problems: tuple[str, ...] = ()
    # The background transfer that brings large files.
    transfer: str = ""

    @property
    def is_quiet(self) -> bool:
        return self == Moved()

    def line(self) -> str:
        """All of it in one line; empty where nothing moved and nothing is in conflict.

        >>> Moved(sent=("a.py",), sent_count=1, sent_bytes=2000, came=("b", "c"), came_count=2, came_bytes=9).line()
        'sent a.py (2 KB); came back: b, c (9 bytes)'
        """
        parts = []
        if self.sent_count:
            parts.append(f"sent {_names(self.sent, self.sent_count)} ({size(self.sent_bytes)})")
        if self.deleted_there:
            parts.append(f"deleted {counted(self.deleted_there, 'file')} there that went here")
        if self.came_count:
            parts.append(f"came back: {_names(self.came, self.came_count)} ({size(self.came_bytes)})")
        if self.deleted_here_count:
            parts.append(
                f"deleted here, since it was deleted there: {_names(self.deleted_here, self.deleted_here_count)}"
            )
        if self.transfer:
            parts.append(f"larger files come in the background: check_file_transfer_task {self.transfer}")
        if self.stayed_there:
            parts.append(f"{counted(self.stayed_there, 'new file')} stayed there, because they are too many")
        return "; ".join((*parts, *self.problems, *_conflict(self.conflicts)))


def _names(names: Sequence[str], count: int) -> str:
    told = ", ".join(names[:MOST_NAMED])
    left = count - min(len(names), MOST_NAMED)
    return f"{told} and {left} more" if left else told


def _conflict(paths: Sequence[str]) -> tuple[str, ...]:
    if not paths:
        return ()
    return (
        f"in conflict: {_names(paths, len(paths))} changed on both sides since they were last the same, and neither "
        f"was overwritten; compare your local file with read_remote_file, then make one of them right and call "
        f"link_workspace with keep_local or keep_remote and these paths",
    )
