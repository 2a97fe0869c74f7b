"""A sandbox's processes as the host sees them, for hosts without a usable control group."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from ...far.outpost.family import descendants, strike

END_S = 10.0
# A word of the command line of a supervisor, where there are no namespaces.
GUARD = "guard-of"


def bubblewraps(home: Path) -> set[int]:
    """The outermost process of each connection into the sandbox with that home; its arguments name it."""
    wanted = {os.fsencode(home), os.path.realpath(os.fsencode(home))}
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and wanted.intersection(_words(name))}


def _words(pid: str) -> list[bytes]:
    words = _read(f"/proc/{pid}/cmdline").split(b"\0")
    # A command that only mentions the folder is not one of them.
    return words if os.path.basename(words[0]) == b"bwrap" or GUARD.encode() in words else []


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def family(roots: Iterable[int]) -> set[int]:
    """Collect the processes and all their descendants; inside, orphans become children of the first process."""
    found = set(roots)
    return found.union(*map(descendants, found))


def are_counted_by_namespace(kernel: str) -> bool:
    """Whether an rlimit counts processes per user namespace (since Linux 5.14), not per user."""
    version = re.match(r"(\d+)\.(\d+)", kernel)
    return version is not None and (int(version[1]), int(version[2])) >= (5, 14)


def threads_of(user: int) -> int:
    return sum(_threads(name, user) for name in filter(str.isdigit, os.listdir("/proc")))


def _threads(pid: str, user: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task")) if os.stat(f"/proc/{pid}").st_uid == user else 0
    except OSError:
        return 0


def stop(home: Path) -> set[int]:
    """Stop every process, and return them; repeated until no new one has appeared meanwhile."""
    stopped: set[int] = set()
    while new := family(bubblewraps(home)) - stopped:
        strike(new, signal.SIGSTOP)
        stopped |= new
    return stopped


def go_on(home: Path) -> None:
    strike(family(bubblewraps(home)), signal.SIGCONT)


def end(home: Path) -> None:
    """Kill the outermost ones and wait for all: the kernel ends a pid namespace with its first process."""
    # Without a namespace all of them are stopped first, and killed.
    until = time.monotonic() + END_S
    # A supervisor may have ended meanwhile, and what it leaves stopped is nobody's child any more.
    all_of_them = stop(home) | family(bubblewraps(home))
    strike(all_of_them, signal.SIGKILL)
    while (outermost := bubblewraps(home)) and time.monotonic() < until:
        strike(outermost, signal.SIGKILL)
        time.sleep(0.002)
    while any(map(_lives, all_of_them)) and time.monotonic() < until:
        time.sleep(0.002)


def _lives(pid: int) -> bool:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return bool(fields) and fields[0] not in (b"Z", b"X")
