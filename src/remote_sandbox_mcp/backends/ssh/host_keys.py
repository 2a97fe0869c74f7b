"""Host keys in the user's, the system's and our own known_hosts: looks them up, and remembers or forgets ours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from .library import asyncssh

USUAL_FILES = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
# A decision takes milliseconds; only a process that was stopped during one holds the lock for longer.
LOCK_S, LOCK_STEP_S = 3.0, 0.005


def entry_name(host: str, port: int) -> str:
    """Describe how known_hosts names a machine."""
    return host if port == 22 else f"[{host}]:{port}"


class HostKeys:
    """Known host keys, read anew for each connection; `own` is the file that we write."""

    def __init__(self, own: Path, others: Iterable[str] = USUAL_FILES) -> None:
        self.own = own
        self._others = tuple(others)

    def trusted(self, host: str, addr: str, port: int) -> list[asyncssh.SSHKey]:
        """The keys known for exactly this port: a key of port 22 is not valid for another."""
        return self.lookup(host, addr, port)[0]  # type: ignore[return-value]

    def lookup(self, host: str, addr: str, port: int | None) -> tuple[list[object], ...]:
        """For asyncssh: the host keys, authorities and revoked keys known for this machine."""
        entries = self._read()
        names = dict.fromkeys(entry_name(name, port or 22) for name in (host, addr) if name)
        found = [entries.match(name, "", None) for name in names]
        return tuple([item for part in parts for item in part] for parts in zip(*found, strict=True))

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Hold the lock of our own file, so that one connection of all processes decides at a time. Raises OSError."""
        # Of two connections that see a new machine at the same moment, the second finds what the first has remembered.
        self.own.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.own.with_name(f"{self.own.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            _take(fd)
            yield
        finally:
            os.close(fd)

    def remember(self, host: str, port: int, key: asyncssh.SSHKey) -> None:
        """Append a line; the caller is `deciding`."""
        line = f"{entry_name(host, port)} {key.export_public_key('openssh').decode().strip()}\n"
        fd = os.open(self.own, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        with open(fd, "rb+") as file:
            end = file.seek(0, os.SEEK_END)
            # A last line that was written by hand, or cut off by a full disk, may lack its line end.
            if end and os.pread(fd, 1, end - 1) != b"\n":
                line = f"\n{line}"
            file.write(line.encode())

    def forget(self, host: str, port: int) -> int:
        """Drop the keys that we remembered of a machine; returns how many. The user's own files are not touched."""
        if not self.own.exists():
            return 0
        with self.deciding():
            return self._drop(host, port)

    def _drop(self, host: str, port: int) -> int:
        lines = self.own.read_text().splitlines(keepends=True)
        kept = [line for line in lines if line.split(" ", 1)[0] != entry_name(host, port)]
        fresh = self.own.with_suffix(f".{os.getpid()}")
        fresh.write_text("".join(kept))
        fresh.chmod(0o600)
        fresh.replace(self.own)
        return len(lines) - len(kept)

    def elsewhere(self, host: str, port: int) -> list[str]:
        """List other files that have a key for this machine."""
        name = entry_name(host, port)
        return [path for path in self._others if _parse(_text(path)).match(name, "", None)[0]]

    def _read(self) -> asyncssh.SSHKnownHosts:
        return _parse("\n".join(_text(path) for path in (*self._others, str(self.own))))


def _take(fd: int) -> None:
    """Lock an open file within a time limit, because waiting here blocks the event loop."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(None, f"another process has held its lock for {LOCK_S:g} s") from None
            time.sleep(LOCK_STEP_S)


def _text(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(errors="replace")
    except OSError:
        return ""


def _parse(text: str) -> asyncssh.SSHKnownHosts:
    try:
        return asyncssh.import_known_hosts(text)
    except ValueError:
        # One broken line must not hide the others.
        return asyncssh.import_known_hosts("\n".join(line for line in text.splitlines() if _is_entry(line)))


def _is_entry(line: str) -> bool:
    try:
        asyncssh.import_known_hosts(line)
    except ValueError:
        return False
    return True
