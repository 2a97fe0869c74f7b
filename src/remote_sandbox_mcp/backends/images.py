"""A folder with a root file system as a sandbox's own system: what is bound, and which Python runs in it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..core.errors import BadArgument
from ..core.shell import join
from .bubblewrap import PYTHON_NAME, SYSTEM_PYTHON, is_new_enough, is_usable

# A name that no root file system has: what is lent by the host lies there.
LENT = "/.host"
LENT_PYTHON = f"{LENT}/python3"
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", "/bin/python3")
# Bubblewrap's own, or the sandbox's.
OURS = {"proc", "dev", "sys", "tmp", "home", "etc", "run", LENT.strip("/")}
# Folders that documents for other sandboxes tell people to work in; see Folders.work.
WORK_FOLDERS = ("app", "workspace")
LOADERS = ("/lib64/ld-linux-*.so.*", "/lib/ld-linux-*.so.*", "/usr/lib/*/ld-linux-*.so.*")
MOST_LINKS = 40


def check(image: str, private: tuple[Path, ...]) -> Path:
    """The folder that `image` names. Raises BadArgument where it is no root file system, or holds what is private."""
    folder = Path(image).expanduser()
    if not folder.is_absolute():
        raise BadArgument(
            f"there is no image {image!r} here: without a platform, `image` is the absolute path of a folder with a "
            "root file system, or empty for this machine's own system"
        )
    folder = folder.resolve()
    if not folder.is_dir():
        raise BadArgument(f"the image {image!r} is no folder; unpack a root file system there, for example with "
                          "`docker export` or debootstrap, or leave `image` empty")  # fmt: skip
    if any(path.resolve().is_relative_to(folder) for path in private):
        raise BadArgument(
            f"the image {image!r} holds this user's own files, which no sandbox may see; name a folder with nothing "
            "but a root file system"
        )
    if find(folder, "/bin/sh") is None:
        raise BadArgument(f"the image {image!r} has no /bin/sh, so no command can run in it; it is no root file system")
    if find_python(folder) == LENT_PYTHON and loader() is None:
        raise BadArgument(
            f"the image {image!r} has no Python 3.6 or newer, and this machine's cannot be lent to it because it has "
            "no glibc; install python3 in the image"
        )
    return folder


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


def free_work_folders(root: Path) -> tuple[str, ...]:
    """Those that the sandbox can have as its own: what an image holds under such a name stays, and stays read-only."""
    return tuple(name for name in WORK_FOLDERS if _is_free(root / name))


def _is_free(folder: Path) -> bool:
    try:
        return not folder.is_symlink() and not os.listdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def find_python(root: Path) -> str:
    """The image's own, told by its real name, or else the one that is lent."""
    for python in PYTHONS:
        found = find(root, python)
        if found is not None and is_new_enough(found):
            return python
    return LENT_PYTHON


def loader() -> Path | None:
    """The program of glibc that starts others; called by its name, it finds libraries wherever it is told to."""
    found = (path for pattern in LOADERS for path in sorted(Path("/").glob(pattern.lstrip("/"))))
    return next((path.resolve() for path in found), None)


def lent_script() -> str:
    """What stands for Python in an image that has none."""
    starter = loader() or Path("/")
    home = _lent_home()
    libraries = [f"{LENT}{starter.parent}", f"{LENT}/usr/lib64", f"{LENT}/usr/lib", f"{LENT}{home}/lib"]
    name = SYSTEM_PYTHON.resolve().name if home == Path("/usr") else PYTHON_NAME
    words = [f"{LENT}{starter}", "--library-path", ":".join(libraries), f"{LENT}{home}/bin/{name}"]
    return f'#!/bin/sh\nexec {join(words)} "$@"\n'


def _lent_home() -> Path:
    """Where the Python that is lent lives on the host."""
    usable = SYSTEM_PYTHON.exists() and is_usable(SYSTEM_PYTHON.resolve())
    return Path("/usr") if usable else Path(sys.base_prefix).resolve()


def lent(script: Path) -> Iterator[str]:
    """The host's libraries and Python, beside the image's own."""
    yield from ("--dir", LENT, "--ro-bind", str(script), LENT_PYTHON)
    for folder in ("/usr", "/lib", "/lib64"):
        if Path(folder).is_dir() and not Path(folder).is_symlink():
            yield from ("--ro-bind", folder, f"{LENT}{folder}")
    home = _lent_home()
    if not home.is_relative_to("/usr"):
        for part in ("bin", "lib"):
            yield from ("--ro-bind", str(home / part), f"{LENT}{home}/{part}")


def folders(root: Path, synthetic: tuple[str, ...], tmp: Path) -> Iterator[str]:
    """All of the image but what is ours; entry by entry, because nothing can be put into a read-only folder."""
    yield from _entries(root, "/", OURS.union(free_work_folders(root)))
    if (root / "var/tmp").is_dir() and not (root / "var").is_symlink() and not (root / "var/tmp").is_symlink():
        yield from ("--bind", str(tmp), "/var/tmp")
    yield from ("--dir", "/etc", "--dir", "/run")
    if (root / "etc").is_dir() and not (root / "etc").is_symlink():
        yield from _entries(root / "etc", "/etc/", {*synthetic, "resolv.conf", "mtab"})


def _entries(folder: Path, inside: str, skipped: set[str]) -> Iterator[str]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name in skipped:
            continue
        if entry.is_symlink():
            yield from ("--symlink", os.readlink(entry.path), f"{inside}{entry.name}")
        elif stat.S_IFMT(entry.stat().st_mode) in (stat.S_IFDIR, stat.S_IFREG):
            # Closed to us, it is closed to commands too.
            yield from ("--ro-bind-try", entry.path, f"{inside}{entry.name}")
