"""Processes of ours: how they are started, and how one is told from a later one. Imports next to nothing."""

from __future__ import annotations

import os
import sys

# Before Python 3.11 there is no -P, which leaves the current folder out of where modules are looked for.
_WITHOUT_P = "import sys; del sys.path[0]; import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"


def module_words(module: str) -> tuple[str, ...]:
    """The words that start a module of ours; no file of the folder that it is started in can take its place."""
    if sys.version_info >= (3, 11):
        return (sys.executable, "-P", "-m", module)
    return (sys.executable, "-c", _WITHOUT_P.format(module))


def started(pid: int) -> str:
    """When a process began, which tells it from a later one with its number; nothing where it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, parentheses too.
            fields = file.read().rpartition(b")")[2].split()
        # One that was killed is listed until its parent asks for its exit code.
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        return "" if os.path.exists("/proc/self/stat") else _asked(pid)


def is_alive(pid: int, birth: str) -> bool:
    """Whether that very process still runs."""
    return bool(pid and birth and started(pid) == birth)


def sign(fd: int) -> None:
    """Write into a file that is locked who has it locked."""
    line = f"{os.getpid()} {started(os.getpid())}\n".encode()
    os.ftruncate(fd, 0)
    os.pwrite(fd, line, 0)


def _asked(pid: int) -> str:
    import subprocess

    asked = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, *birth = asked.stdout.split() or ["Z"]
    return "" if state.startswith("Z") else "_".join(birth)
