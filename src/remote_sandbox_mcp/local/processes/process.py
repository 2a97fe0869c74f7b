"""Starting our own processes, and telling one from a later process with the same pid. Imports almost nothing."""

from __future__ import annotations

import os
import sys

# Python before 3.11 has no -P, which keeps the current folder out of sys.path.
_WITHOUT_P = "import sys; del sys.path[0]; import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"


def module_words(module: str) -> tuple[str, ...]:
    """The words that start one of our modules; a file in the current folder cannot take its place."""
    if sys.version_info >= (3, 11):
        return (sys.executable, "-P", "-m", module)
    return (sys.executable, "-c", _WITHOUT_P.format(module))


def is_in_cache(path: str) -> bool:
    """Whether a program is in the cache of uvx, from which it may be removed one day."""
    return "/uv/archive-v" in path


def started(pid: int) -> str:
    """Start time of a process, which distinguishes it from a later one with its pid; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The program's name in parentheses may itself contain parentheses.
            fields = file.read().rpartition(b")")[2].split()
        # A killed process stays listed as a zombie until its parent collects its exit code.
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        return "" if os.path.exists("/proc/self/stat") else _asked(pid)


def is_alive(pid: int, birth: str) -> bool:
    """Whether the process with this pid and start time still runs."""
    return bool(pid and birth and started(pid) == birth)


def sign(fd: int) -> None:
    """Write pid and start time of this process into the locked file."""
    line = f"{os.getpid()} {started(os.getpid())}\n".encode()
    os.ftruncate(fd, 0)
    os.pwrite(fd, line, 0)


def _asked(pid: int) -> str:
    import subprocess

    from .programs import find_helper

    words = [find_helper("ps") or "/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)]
    # No variables: one language and one time zone for all that compare what it prints.
    asked = subprocess.run(words, env={}, capture_output=True, text=True, check=False)
    state, *birth = asked.stdout.split() or ["Z"]
    return "" if state.startswith("Z") else "_".join(birth)
