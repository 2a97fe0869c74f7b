"""Confines all that is started on a machine to the folders that its owner lets be written, before it takes orders."""

import glob
import hashlib
import os
import shutil
import stat
import sys

from .guard import fork_guarded, landlock_version, lies_in, why_not_supervised

MYPY = False
if MYPY:
    from typing import Any, NoReturn

    # The text of this program, as its loader has read it.
    text = b""

# What a program needs to compute: to this machine's cards it may write, to its disks not.
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "nvidia*", "dri", "kfd")
CARDS = ("infiniband", "accel", "dxg", "davinci*", "hisi_hdc", "devmm_svm")
# Who asks here is told names of users, and nothing else.
LOOKUPS = ["/run/nscd/socket", "/var/lib/sss/pipes/nss"]
NO_KERNEL = "it has neither Landlock (Linux 5.13 or newer) nor bubblewrap for an ordinary user"
FAILED = 1


class Unheld(Exception):
    """The walls cannot be built, and why."""


def build(line: str, writable: "list[str]") -> None:
    """Confine this process, then run the line for the shell in it; what starts nothing says why."""
    try:
        folders = [find_folder(path) for path in writable]
        for folder in folders:
            check_start(folder)
        place = "walls-" + hashlib.sha256("\n".join(sorted(folders)).encode()).hexdigest()[:12]
        own = make_own_folders(place)
        kind = confine(folders + own)
    except (Unheld, OSError) as problem:
        said = ("\nwritable cannot be held there: %s\n" % problem).encode("utf-8", "surrogateescape")
        os.write(1, said)
        os.write(2, said)
        os._exit(FAILED)
    temporary = own[0] + "/.tmp"
    os.makedirs(temporary, 0o700, exist_ok=True)
    os.environ.update(TMPDIR=temporary, TMUX_TMPDIR=temporary, REMOTE_SANDBOX_PLACE=place, REMOTE_SANDBOX_WALLS=kind)
    os.execv("/bin/sh", ["sh", "-c", line])


def find_folder(path: str) -> str:
    """The real path of a folder that may be written. Raises Unheld."""
    home = os.path.realpath(os.path.expanduser("~"))
    whole = os.path.normpath(home + path[1:] if path == "~" or path.startswith("~/") else path)
    if not os.path.isdir(whole):
        raise Unheld("%s is no folder there; make it, or correct `writable`" % path)
    real = os.path.realpath(whole)
    # What lies in a writable folder can be exchanged: a link in it would open another folder next time.
    if real != whole:
        raise Unheld("%s is reached through a link; write %s" % (path, real))
    return real


def check_start(folder: str) -> None:
    """Refuse a folder with something that the next login uses before its walls stand. Raises Unheld."""
    home = os.path.realpath(os.path.expanduser("~"))
    inside = os.path.relpath(folder, home).split("/")
    cached = inside[0] == ".cache" and len(inside) > 1 and not inside[1].startswith("remote-sandbox")
    if lies_in(folder, home) and inside[0] != "." and inside[0].startswith(".") and not cached:
        raise Unheld("%s is a hidden folder of the home folder, which holds what logins trust" % folder)
    for needed in (home, "/tmp", "/run", "/dev", *programs()):
        if lies_in(needed, folder):
            raise Unheld(
                "%s holds %s, which a login uses before its walls stand; name folders in it" % (folder, needed)
            )
        if lies_in(folder, needed) and needed not in (home, "/tmp"):
            raise Unheld("%s lies in %s, which a login uses before its walls stand" % (folder, needed))


def programs() -> "list[str]":
    """Folders from which the login shell and this Python start programs and libraries."""
    named = [path for name in ("PATH", "LD_LIBRARY_PATH") for path in os.environ.get(name, "").split(":") if path]
    return [os.path.realpath(path) for path in named + [sys.base_prefix + "/bin", sys.base_prefix + "/lib"]]


def make_own_folders(place: str) -> "list[str]":
    """Folders for our records: others than those of programs without walls, which trust what lies in theirs."""
    paths = ["/tmp/remote-sandbox-%d-%s" % (os.getuid(), place), os.path.expanduser("~/.cache/remote-sandbox-" + place)]
    made = [path for path in paths if is_made(path)]
    if not made:
        raise Unheld("neither /tmp nor ~/.cache has room for our records")
    return made


def is_made(path: str) -> bool:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.lexists(path):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def confine(writable: "list[str]") -> str:
    """Return in a confined process only, what it is confined by. Raises Unheld, OSError."""
    version, is_inside = landlock_version(), sys.argv[1:] == ["inside"]
    if not (version or is_inside):
        enter_namespaces(writable)
    why = why_not_supervised()
    if why:
        raise Unheld(why)
    devices = [path for name in DEVICES + CARDS for path in glob.glob("/dev/" + name)]
    plan: "dict[str, Any]" = {"writable": writable, "readable": ["/"], "devices": devices, "lookups": LOOKUPS}
    plan.update(version=0 if is_inside else version, network=True, outlives=True)
    fork_guarded(0, {}, plan)
    return "bubblewrap" if is_inside else "Landlock %d" % version


def enter_namespaces(writable: "list[str]") -> "NoReturn":
    """Become bubblewrap, which runs this program again where all else is read-only. Raises Unheld, OSError."""
    bwrap = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
    if not bwrap or not os.getuid():
        raise Unheld(NO_KERNEL)
    words = [bwrap, "--unshare-user", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--tmpfs", "/dev/shm"]
    for folder in writable:
        words += ["--bind", folder, folder]
    if os.spawnv(os.P_WAIT, bwrap, words + ["--", "/bin/true"]):
        raise Unheld(NO_KERNEL)
    os.execv(bwrap, words + ["--", sys.executable, "-IS", "-c", text.decode(), "inside"])
