"""Processes: start one, find its descendants, end them, and read how it ended."""

import errno
import os
import signal
import sys
import time
from typing import Any, Callable, Iterable

NO_PROCESS = (
    "the machine cannot start another process: %s; a limit on processes (ulimit -u, perhaps in ~/.bashrc) is reached, "
    "or its memory is used up"
)
# A killed process counts against the limit on processes until its parent collects it: a fork that fails for want of
# room is repeated for this long.
FORK_S = 2.0


def find_prctl() -> "Any":
    """The C function prctl, or None. Loaded once, in the outpost: loading ctypes costs more than starting a run."""
    try:
        import ctypes

        return ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None
    except (ImportError, OSError, AttributeError):
        return None


PRCTL = find_prctl()


def become_subreaper() -> None:
    """Linux: descendants that daemonize become our children, so that they can still be found and ended."""
    if PRCTL is not None:
        # 36 is PR_SET_CHILD_SUBREAPER.
        PRCTL(36, 1, 0, 0, 0)


def descendants(root: int, group: int = 0) -> "list[int]":
    """Every living process below `root`; without /proc, the process group, if it has members, as a negative pid."""
    parents = read_parents()
    if parents is None:
        if not group:
            return []
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
    """The parent of every living process; None without /proc, as on macOS."""
    parents = {}
    if not os.path.isdir("/proc/self/task"):
        return None
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    # After the program's name, which may itself contain spaces and parentheses.
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state not in (b"Z", b"X"):
                parents[int(name)] = int(parent)
    return parents


def strike(pids: "Iterable[int]", number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def hear_signals(*numbers: int) -> int:
    """A descriptor from which the numbers of received signals are read, so that they wake a loop."""
    wakeup, wake_end = os.pipe()
    for fd in (wakeup, wake_end):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_end)
    # A command does not inherit handlers, as it would inherit ignored signals.
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return wakeup


def collect_children(ended: "Callable[[int, int], object]") -> bool:
    """Tell the pid and status of each child that has ended; returns whether there is none left."""
    # Until they are collected they count against the limit on processes.
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return False
            ended(pid, status)
    except ChildProcessError:
        return True


def read_status(status: "int | None") -> "tuple[int, str]":
    """A wait status as a shell's exit code and, for a death by signal, the signal's name."""
    if status is None:
        return 137, "SIGKILL"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return 128 + number, signal.Signals(number).name
        except ValueError:
            return 128 + number, "signal %d" % number
    return os.WEXITSTATUS(status), ""


def insist(start: "Callable[[], int]", wait: "Callable[[float], None]" = time.sleep) -> int:
    """Start a process; if the machine has no room for it, retry for FORK_S. It waits, so the outpost's loop may not."""
    give_up_at, pause = time.monotonic() + FORK_S, 0.01
    while True:
        try:
            return start()
        except OSError as problem:
            if problem.errno != errno.EAGAIN or time.monotonic() >= give_up_at:
                raise
        wait(pause)
        pause = min(2 * pause, 0.2)


def start_process(argv: "list[bytes]", environment: "dict[bytes, bytes]", out: int, err: int, given: int = 0) -> int:
    """Start a program in its own session with these outputs and this input. Raises OSError if it cannot be executed."""
    if not hasattr(os, "posix_spawnp") or not sys.platform.startswith("linux"):
        return fork_process(argv, environment, out, err, given)
    # Spawning copies no page tables: it is several times faster than a fork.
    moves = [(os.POSIX_SPAWN_DUP2, given, 0), (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
    # Python ignores these two, and ignored signals are inherited.
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]
    return os.posix_spawnp(argv[0], argv, environment, file_actions=moves, setsid=True, setsigdef=defaults)


def fork_process(argv: "list[bytes]", environment: "dict[bytes, bytes]", out: int, err: int, given: int = 0) -> int:
    """Start a process where posix_spawn cannot do it (Python 3.6 and 3.7, macOS)."""
    gate, gate_end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            os.dup2(given, 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(argv[0], argv, environment)
        except OSError as problem:
            os.write(gate_end, b"%d" % (problem.errno or errno.EINVAL))
        finally:
            os._exit(127)
    os.close(gate_end)
    # The pipe closes at a successful exec, and then nothing is read.
    trouble = os.read(gate, 64)
    os.close(gate)
    if trouble:
        os.waitpid(pid, 0)
        raise OSError(int(trouble), os.strerror(int(trouble)))
    return pid
