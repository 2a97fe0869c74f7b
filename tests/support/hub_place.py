"""A home with a hub of its own, and fronts that a test speaks to by hand."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.server import COMMAND, Entry, Wire
from tests.support.sshd import Sshd
from tests.support.warm import speak, start_hub


class Place:
    """A home with a hub, and any number of fronts."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def config(self) -> Path:
        return self.home / "config.toml"

    def write(self, text: str, name: str = "config.toml") -> Path:
        """Put a file in place at once, as editors do."""
        fresh = self.home / f"{name}.new"
        fresh.write_text(text)
        fresh.chmod(0o600)
        return fresh.replace(self.home / name)

    @contextmanager
    def front(
        self,
        *entries: Entry,
        env: dict[str, str] | None = None,
        config: str = "config.toml",
        cwd: Path | None = None,
        words: tuple[str, ...] = (),
        idle_s: float = 2,
    ) -> Iterator[Wire]:
        """A client's process, with its handshake done."""
        given = {
            "HOME": str(self.home),
            "REMOTE_SANDBOX_ALLOWED_ROOTS": f"{tempfile.gettempdir()}:{self.home}",
            "REMOTE_SANDBOX_MCP_HOME": str(self.home / "state"),
            "PATH": os.environ["PATH"],
        }
        given |= {
            "REMOTE_SANDBOX_HUB_IDLE_S": str(idle_s),
            **({"REMOTE_SANDBOX_LIST": json.dumps(entries)} if entries else {}),
        }
        if "--no-hub" not in words:
            start_hub(given | (env or {}))
        with (self.home / "stderr").open("ab") as errlog:
            command = [COMMAND, "--config", str(self.home / config), *words]
            process = speak(command, given | (env or {}), errlog.fileno(), cwd=str(cwd or ""))
        assert process.stdin
        assert process.stdout
        with process.stdin, process.stdout:
            try:
                line = Wire(process, self.home, given | (env or {}))
                line.initialize()
                yield line
            finally:
                process.kill()
                process.wait()

    def hubs(self) -> list[int]:
        """The processes that have signed a lock of this home, as far as they live."""
        found = []
        for lock in (self.home / "state" / "hub").glob("*.lock"):
            pid = int((lock.read_text().split() or ["0"])[0])
            if pid and Path(f"/proc/{pid}").exists():
                found.append(pid)
        return found

    def end(self) -> None:
        for pid in self.hubs():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def told(answer: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in answer["content"] if part["type"] == "text")


def done(answer: dict[str, Any]) -> dict[str, Any]:
    assert not answer.get("isError"), told(answer)
    return dict(answer["structuredContent"])


def names(line: Wire) -> list[str]:
    return [it["name"] for it in done(line.call("list_sandboxes"))["sandboxes"]]


def logins(sshd: Sshd) -> int:
    return len(re.findall(r"Accepted \S+ for", sshd.log))
