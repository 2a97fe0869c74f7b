"""Root file systems for sandboxes: which folders are allowed, what is bound, which Python runs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...core.commands.shell import join
from ...core.errors import BadArgument
from ...local.processes.ownership import who_else
from .bwrap import PYTHON_NAME, SYSTEM_PYTHON, has_system_python, is_new_enough, python_home

# Where the image is mounted, beside the host's system, before the first process enters it.
ROOM = "/image"
# Capabilities for that, and for dropping all privileges afterwards.
RIGHTS_TO_ENTER = ("--cap-add", "CAP_SYS_CHROOT", "--cap-add", "CAP_SETPCAP")
# A name that no root file system has: what the host lends is mounted there.
LENT = "/.host"
LENT_PYTHON = f"{LENT}/python3"
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", "/bin/python3")
# Provided by bubblewrap or the sandbox itself.
OURS = {"proc", "dev", "sys", "tmp", "home", "etc", "run", "var", LENT.strip("/")}
# Folders that documentation for other sandboxes tells people to work in; see Folders.work.
WORK_FOLDERS = ("app", "workspace")
LOADERS = ("/lib64/ld-linux-*.so.*", "/lib/ld-linux-*.so.*", "/usr/lib/*/ld-linux-*.so.*")
MOST_LINKS = 40
LONGEST_SHOWN = 200
# Only Linux has O_PATH; other systems have no such sandboxes and only import this file.
FOLDER = getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_NOFOLLOW


@dataclass(frozen=True)
class ImageEntry:
    """One name in the image as the server saw it: a link, or a folder or file with its identity."""

    path: str
    link: str = ""
    device: int = 0
    inode: int = 0


@dataclass(frozen=True)
class OpenedImage:
    """An image held open: bubblewrap binds its entries by name, and the first process compares them with these."""

    folder: Path
    entries: tuple[ImageEntry, ...]
    python: str
    # Names of work folders that belong to the sandbox instead.
    free: tuple[str, ...] = ()

    @property
    def is_python_lent(self) -> bool:
        return self.python == LENT_PYTHON

    @property
    def identities(self) -> list[tuple[str, int, int]]:
        return [(f"{ROOM}{entry.path}", entry.device, entry.inode) for entry in self.entries if not entry.link]

    def walls(self, tmp: Path) -> Iterator[str]:
        """Bind all of it except what is ours; entry by entry, because nothing can be added to a read-only folder."""
        yield from ("--dir", ROOM)
        for name in ("etc", "run", "var"):
            yield from ("--dir", f"{ROOM}/{name}")
        for entry in self.entries:
            if entry.link:
                yield from ("--symlink", entry.link, f"{ROOM}{entry.path}")
            else:
                # If we cannot read it, commands cannot either.
                yield from ("--ro-bind-try", f"{self.folder}{entry.path}", f"{ROOM}{entry.path}")
        yield from ("--bind", str(tmp), f"{ROOM}/var/tmp")


def check(image: str, state: Path) -> Path:
    """The folder that `image` names. Raises BadArgument where it may not be used as a root file system."""
    with opened(image, state) as found:
        return found.folder


@contextmanager
def opened(image: str, state: Path, synthetic: tuple[str, ...] = ()) -> Iterator[OpenedImage]:
    """The image with its current entries, but those of /etc that are `synthetic`. Raises BadArgument."""
    with _refusing(image):
        folder = Path(image).expanduser()
        if not folder.is_absolute():
            raise BadArgument(
                f"there is no image {_shown(image)} here: without a platform, `image` is the absolute path of a folder "
                "with a root file system, or empty for this machine's own system"
            )
        folder = folder.resolve()
        descriptor = _hold(folder, _refusals(folder, state))
    try:
        with _refusing(image):
            found = _inspect(image, folder, descriptor, synthetic)
        yield found
    finally:
        os.close(descriptor)


@contextmanager
def _refusing(image: str) -> Iterator[None]:
    """Say of a folder that cannot be entered, or of a text that is no path, that it is no image."""
    try:
        yield
    except (OSError, RuntimeError, ValueError):
        raise BadArgument(
            f"the image {_shown(image)} is no folder that this server may enter; unpack a root file system there, for "
            "example with `docker export` or debootstrap, or leave `image` empty"
        ) from None


def _shown(image: str) -> str:
    return repr(image[:LONGEST_SHOWN])


def _inspect(image: str, folder: Path, descriptor: int, synthetic: tuple[str, ...]) -> OpenedImage:
    # While it is open, this path leads to exactly that folder.
    root = Path(f"/proc/self/fd/{descriptor}")
    python = _usable_python(image, root)
    skipped = {*synthetic, "resolv.conf", "mtab", "ld.so.preload"}
    # Work folders that the sandbox can have as its own; those that the image contains stay read-only.
    free = tuple(name for name in WORK_FOLDERS if _is_free(root / name))
    entries = (*_entries(root, "", OURS.union(free)), *_entries(root, "etc", skipped), *_entries(root, "var", {"tmp"}))
    return OpenedImage(folder, entries, python, free)


def _usable_python(image: str, root: Path) -> str:
    if find(root, "/bin/sh") is None:
        raise BadArgument(f"the image {image!r} has no /bin/sh, so no command can run in it; it is no root file system")
    python = find_python(root)
    if python == LENT_PYTHON and loader() is None:
        raise BadArgument(
            f"the image {image!r} has no Python 3.6 or newer, and this machine's cannot be lent to it because it has "
            "no glibc; install python3 in the image"
        )
    return python


def _refusals(folder: Path, state: Path) -> dict[tuple[int, int], str]:
    """Folders, by identity, in which no image may be, and why; raises where the image contains one of them."""
    home = Path(os.path.expanduser("~")).resolve()
    state = state.resolve()
    if any(path.is_relative_to(folder) for path in (home, state)):
        raise BadArgument(
            f"the image {str(folder)!r} holds this user's own files, which no sandbox may see; name a folder with "
            "nothing but a root file system"
        )
    if folder.is_relative_to(home) and folder.relative_to(home).parts[0].startswith("."):
        raise BadArgument(
            f"the image {str(folder)!r} is in a hidden part of the home folder, where keys and settings are; move it "
            "to a folder that is not hidden"
        )
    try:
        found = state.stat()
    except FileNotFoundError:
        return {}
    return {(found.st_dev, found.st_ino): "the state folder of this server, where sandboxes can write"}


def _hold(folder: Path, refused: dict[tuple[int, int], str]) -> int:
    """Open a folder step by step, without following links. Raises OSError, BadArgument."""
    at = os.open("/", FOLDER)
    try:
        for number, part in enumerate(folder.parts[1:], 2):
            inner = os.open(part, FOLDER, dir_fd=at)
            os.close(at)
            at = inner
            found = os.fstat(at)
            why = refused.get((found.st_dev, found.st_ino))
            if why:
                raise BadArgument(f"the image {str(folder)!r} is in {why}; move it elsewhere")
            if why := who_else(found, is_last=number == len(folder.parts)):
                raise BadArgument(
                    f"the image {str(folder)!r} could be exchanged while it is used: {part!r} on the way to it {why}; "
                    "move it to a folder that only you and root can change"
                )
    except BaseException:
        os.close(at)
        raise
    return at


def _entries(root: Path, inside: str, skipped: set[str]) -> Iterator[ImageEntry]:
    """Entries of a folder in the image. A linked folder is skipped, with everything behind it."""
    try:
        above = os.open(root / inside, os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if inside else 0))
    except OSError:
        return
    try:
        for name in sorted(os.listdir(above)):
            if name not in skipped and (entry := _entry(above, name, f"/{inside}/{name}".replace("//", "/"))):
                yield entry
    finally:
        os.close(above)


def _entry(above: int, name: str, path: str) -> ImageEntry | None:
    found = os.stat(name, dir_fd=above, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        return ImageEntry(path, os.readlink(name, dir_fd=above))
    if stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode):
        return ImageEntry(path, "", found.st_dev, found.st_ino)
    return None


def find(root: Path, path: str) -> Path | None:
    """The file that `path` means inside: links are followed as they would be there, never out of the root."""
    parts, at = [*PurePosixPath(path).parts[1:]][::-1], root
    for _ in range(MOST_LINKS * 8):
        if not parts:
            return at if at.is_file() else None
        part = parts.pop()
        if part == "..":
            at = at.parent if at != root else root
            continue
        at = at / part
        if at.is_symlink():
            target = PurePosixPath(os.readlink(at))
            parts += [word for word in target.parts if word != "/"][::-1]
            at = root if target.is_absolute() else at.parent
    return None


def _is_free(folder: Path) -> bool:
    try:
        return not folder.is_symlink() and not os.listdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def find_python(root: Path) -> str:
    """The image's own Python, judged by its real name, else the lent one."""
    for python in PYTHONS:
        found = find(root, python)
        if found is not None and is_new_enough(found):
            return python
    return LENT_PYTHON


def loader() -> Path | None:
    """glibc's dynamic loader; called by name, it takes the path of its libraries as an option."""
    found = (path for pattern in LOADERS for path in sorted(Path("/").glob(pattern.lstrip("/"))))
    return next((path.resolve() for path in found), None)


def lent_script() -> str:
    """The script that stands in for Python in an image without one."""
    starter = loader() or Path("/")
    home = python_home()
    libraries = [f"{LENT}{starter.parent}", f"{LENT}/usr/lib64", f"{LENT}/usr/lib", f"{LENT}{home}/lib"]
    name = SYSTEM_PYTHON.resolve().name if has_system_python() else PYTHON_NAME
    words = [f"{LENT}{starter}", "--library-path", ":".join(libraries), f"{LENT}{home}/bin/{name}"]
    return f'#!/bin/sh\nexec {join(words)} "$@"\n'


def lent(script: Path) -> Iterator[str]:
    """The host's libraries and Python, beside the image's own."""
    yield from ("--dir", f"{ROOM}{LENT}", "--ro-bind", str(script), f"{ROOM}{LENT_PYTHON}")
    for folder in ("/usr", "/lib", "/lib64"):
        if Path(folder).is_dir() and not Path(folder).is_symlink():
            yield from ("--ro-bind", folder, f"{ROOM}{LENT}{folder}")
    home = python_home()
    if not home.is_relative_to("/usr"):
        for part in ("bin", "lib"):
            yield from ("--ro-bind", str(home / part), f"{ROOM}{LENT}{home}/{part}")
