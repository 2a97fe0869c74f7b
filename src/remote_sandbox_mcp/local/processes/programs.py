"""Programs of this computer, each by its whole path, from folders in which nobody else could have put one.

- A program that we choose ourselves (bwrap, slirp4netns, notify-send, systemctl, ps) is taken from the system's
  folders, and from the PATH that this process was started with only where the system has none: `find_helper`.
- A program that the operator chooses by its name (ssh, docker, kubectl, a hook) is the first one of that name in PATH,
  as at the operator's own terminal: `find_chosen`. Its whole path in the configuration counts as it is.

Either is found once and remembered. A folder of PATH counts if its path is absolute, and if only root, this user and
who installed this program can change it, the program, and each folder and link on the way. What came there after this
process had started never counts, because a tool of ours may have been talked into writing it; the system's own
folders, which belong to root, may get new programs at any time. No session's PATH decides what `find_helper` finds.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence

SYSTEM_FOLDERS = (
    *("/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/local/sbin"),
    *("/opt/homebrew/bin", "/run/wrappers/bin", "/run/current-system/sw/bin", "/snap/bin"),
)
LATE = "was put there or changed after this program had started (if that was you, run: remote-sandbox-mcp hub restart)"


class NotUsed(FileNotFoundError):
    """A program of that name is there, but none that may be used; `strerror` says why."""


class Programs:
    """Knowledge of one process about programs: the folders of its PATH, when it began, and what was found."""

    def __init__(self, path: str, system: tuple[str, ...] = SYSTEM_FOLDERS) -> None:
        self.folders = absolute_folders(path)
        self.system = system
        self.began = time.time()
        self.found: dict[tuple[str, tuple[str, ...]], str] = {}

    def find(self, name: str, folders: tuple[str, ...]) -> str:
        if (name, folders) not in self.found:
            path = next((file for file, why in self.candidates(name, folders) if not why), "")
            if not path:
                return ""
            self.found[name, folders] = path
        return self.found[name, folders]

    def candidates(self, name: str, folders: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The programs of that name, each with why it is not used; a relative path names none."""
        for folder in folders if "/" not in name else ():
            file = os.path.join(folder, name)
            if os.path.isfile(file) and os.access(file, os.X_OK):
                yield file, self.objection_to(file, folder)

    def objection_to(self, file: str, folder: str) -> str:
        from .ownership import installers, steps, who_else_on_the_way

        try:
            if why := who_else_on_the_way(file, installers()):
                return why
            if folder in self.system and os.stat(folder).st_uid == 0:
                return ""
            # The time of a file's last change is the kernel's own: nobody sets it back.
            late = next((here for here, found in steps(file) if is_late(found, self.began)), "")
        except OSError as problem:
            return f"{file} cannot be examined ({problem.strerror})"
        return f"{late} {LATE}" if late else ""


def is_late(found: os.stat_result, began: float) -> bool:
    # A folder changes with each new entry.
    return not stat.S_ISDIR(found.st_mode) and found.st_ctime > began


def absolute_folders(path: str) -> tuple[str, ...]:
    """Folders of a PATH, each once. A relative one would be looked up in whatever project we are started in."""
    return tuple(dict.fromkeys(os.path.normpath(folder) for folder in path.split(os.pathsep) if os.path.isabs(folder)))


def absolute_path(path: str) -> str:
    """A PATH for programs of the operator's: their own folders, in their order."""
    return os.pathsep.join(absolute_folders(path))


_here = Programs(os.environ.get("PATH", os.defpath))


def find_helper(name: str) -> str:
    """The path of a program that we need ourselves; "" where there is none that may be used."""
    return _here.find(name, (*_here.system, *_here.folders))


def find_chosen(name: str, path: str | None = None) -> str:
    """The path of a program that the operator names; "" where there is none in `path`, by default our own PATH."""
    return name if os.path.isabs(name) else _here.find(name, _folders_of(path))


def by_path(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """A command of the operator's with its program by its path, found in the PATH of `environ`.

    Raises FileNotFoundError, which may be NotUsed: a name would be looked up again by whoever starts the program.
    """
    name, *rest = words
    path = environ.get("PATH")
    if found := find_chosen(name, path):
        return [found, *rest]
    if why := objection(name, path):
        raise NotUsed(2, f"it is not used, because {why}", name)
    raise FileNotFoundError(2, "it is not installed", name)


def objection(name: str, path: str | None = None) -> str:
    """Explain why a program that is in a PATH is not used; "" where there is none."""
    return next((why for _, why in _here.candidates(name, _folders_of(path)) if why), "")


def _folders_of(path: str | None) -> tuple[str, ...]:
    return _here.folders if path is None else absolute_folders(path)
