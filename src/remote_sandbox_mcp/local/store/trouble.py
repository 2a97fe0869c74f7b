"""Decides what an error of SQLite or of the disk means, and what becomes of calls until the file can be used again."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ConfigError
from .library import sqlite3
from .mark import STATE_FILE

log = logging.getLogger(__name__)

# After this long, what is kept in memory tries the file again.
RETRY_S = 15.0
# A transaction needs less; with less than this, SQLite names other reasons than a full disk.
NEEDED_BYTES = 128 << 10
# A larger file is not copied into memory for those who read it meanwhile.
LARGEST_COPY = 16 << 20
FULL, READ_ONLY, LOCKED, DESCRIPTORS, DAMAGED, OTHER = "full", "read_only", "locked", "descriptors", "damaged", "other"
ELSEWHERE = "or set REMOTE_SANDBOX_MCP_HOME to a folder {}"
REPAIR = "`remote-sandbox-mcp doctor --repair` copies it, and saves what can be read"
_WORDS = {
    **{"not a database": DAMAGED, "malformed": DAMAGED, "locked": LOCKED},
    **{"disk is full": FULL, "readonly": READ_ONLY},
}
_ERRNOS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), FULL),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), READ_ONLY),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), DESCRIPTORS),
}
MEANWHILE = (
    "%s. Calls on sandboxes go on. Until it can be written, selected sandboxes and the history of calls are kept in "
    "the memory of this process alone; jobs, transfers and new sandboxes, which must be found again, are refused; and "
    "a call that this process is killed with (an edit, for example) cannot be recognised when it is sent again, so it "
    "may be made twice"
)


class StateError(ConfigError):
    """The state file cannot be used now. `reason` is one of the kinds above."""


def explain(file: Path, error: Exception, waited_s: float = 0.0) -> StateError:
    """The sentence for an error of SQLite or of the system: what is wrong, and what to do about that."""
    kind, doing = kind_of(file, error), f"unable to use {file}"
    found, remedy = {
        FULL: ("its disk is full", f"free some space, {ELSEWHERE.format('on another disk')}"),
        READ_ONLY: ("this user cannot write there", f"make it writable, {ELSEWHERE.format('that is')}"),
        LOCKED: (f"{_holder(file)} keeps it locked", "try again; if it stays so, end that process"),
        DESCRIPTORS: ("this process has as many files open as it may", "raise the limit (ulimit -n), and restart it"),
        DAMAGED: (f"it is damaged ({error})", REPAIR),
    }.get(kind, (str(getattr(error, "strerror", None) or error), "`remote-sandbox-mcp doctor` checks it"))
    waited = f" and has done so for {waited_s:.0f} s" if kind == LOCKED and waited_s else ""
    return StateError.of_parts(doing, found + waited, remedy, reason=kind)


def kind_of(file: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return _ERRNOS.get(error.errno or 0, OTHER)
    text = str(error)
    return next((kind for words, kind in _WORDS.items() if words in text), "") or _found_out(file)


def _found_out(file: Path) -> str:
    """The cause of an error in which SQLite names none, such as "unable to open database file"."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return DESCRIPTORS
    if is_full(file):
        return FULL
    writable = os.access(file.parent, os.W_OK) and (not file.exists() or os.access(file, os.W_OK))
    return OTHER if writable else READ_ONLY


def is_full(file: Path) -> bool:
    with suppress(OSError):
        found = os.statvfs(file.parent)
        return found.f_bavail * found.f_frsize < NEEDED_BYTES
    return False


def standing_problem(file: Path) -> str:
    """Reason why state cannot be kept now, as far as is known without writing; empty where it can.

    A file that does not exist yet is judged by its folder.
    """
    if outage := outage_of(file):
        return str(outage.problem)
    if file.exists() or not file.parent.exists():
        return ""
    if is_full(file):
        return str(explain(file, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    return "" if os.access(file.parent, os.W_OK) else str(explain(file, OSError(errno.EACCES, "not writable")))


def _holder(file: Path) -> str:
    """The process that has a lock on the file, where the kernel shows it."""
    with suppress(OSError, ValueError, IndexError):
        numbers = {
            str(Path(f"{file}{end}").stat().st_ino) for end in ("", "-wal", "-shm") if Path(f"{file}{end}").exists()
        }
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "WRITE" in words and words[-3].rpartition(":")[2] in numbers and int(words[-4]) != os.getpid():
                return f"process {words[-4]}"
    return "another process"


@dataclass
class Outage:
    """A file that cannot be used, and the database in memory that takes its place for what need not survive."""

    problem: StateError
    turn: threading.RLock
    retry_at: float
    memory: sqlite3.Connection | None = None


_outages: dict[Path, Outage] = {}
_turn = threading.Lock()


def outage_of(file: Path) -> Outage | None:
    return _outages.get(file)


def begins(file: Path, problem: StateError) -> Outage:
    """Note that a file cannot be used, and say so once."""
    with _turn:
        known = _outages.get(file)
        if file.name == STATE_FILE and (known is None or known.problem.reason != problem.reason):
            log.warning(MEANWHILE, problem)
        if known is None:
            known = _outages[file] = Outage(problem, threading.RLock(), 0.0)
        known.problem, known.retry_at = problem, time.monotonic() + RETRY_S
        return known


def ends(file: Path) -> None:
    """Note that a file was written."""
    if file not in _outages:
        return
    with _turn:
        if (known := _outages.pop(file, None)) is not None:
            level = logging.WARNING if file.name == STATE_FILE else logging.DEBUG
            log.log(level, "%s can be written again; what was kept in memory until now is not written later", file)
            if known.memory is not None:
                known.memory.close()
