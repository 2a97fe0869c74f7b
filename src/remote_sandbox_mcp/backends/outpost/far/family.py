"""Processes: who descends from whom, how to end them, and how they ended."""

import os
import signal
import sys

MYPY = False
if MYPY:
    from typing import Any


def find_prctl() -> "Any":
    """Loaded once in the outpost, because loading it costs more than starting a run."""
    try:
        import ctypes

        return ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None
    except (ImportError, OSError, AttributeError):
        return None


PRCTL = find_prctl()


def become_subreaper() -> None:
    """Linux: descendants that daemonize become our children, so that they can still be found and ended."""
    if PRCTL is not None:
        PRCTL(36, 1, 0, 0, 0)


def descendants(root: int, group: int) -> "list[int]":
    """Every living process below `root`; where /proc does not tell, the members of the group that can be seen."""
    parents = read_parents()
    if parents is None:
        try:
            os.killpg(group, 0)
            return [-group]
        except OSError:
            return []
    children: "dict[int, list[int]]" = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        for pid in children.get(queue.pop(), []):
            found.append(pid)
            queue.append(pid)
    return found


def read_parents() -> "dict[int, int] | None":
    parents = {}
    if not os.path.isdir("/proc/self/task"):
        return None
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state not in (b"Z", b"X"):
                parents[int(name)] = int(parent)
    return parents


def strike(pids: "list[int]", number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def read_status(status: "int | None") -> "tuple[int, str]":
    """A wait status as the shell's number and, for a death by signal, the signal's name."""
    if status is None:
        return 137, "SIGKILL"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return 128 + number, signal.Signals(number).name
        except ValueError:
            return 128 + number, "signal %d" % number
    return os.WEXITSTATUS(status), ""
