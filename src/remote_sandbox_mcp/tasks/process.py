"""What a guardian needs while it waits: its signature and the words it listens for. Imports next to nothing."""

from __future__ import annotations

import os

# What is said to a guardian on its standard input; the end of that means the same as TAKE_OVER.
TAKE_OVER, LEAVE = b"t", b"q"


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
