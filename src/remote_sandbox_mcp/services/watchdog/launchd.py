"""The watchdog as an agent of macOS's launchd."""

from __future__ import annotations

import asyncio
import os
import plistlib
import re
import time
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError, SandboxError
from .daemon import LOG_FILE, open_log
from .manager import Facts, ManagerOutput, Program, call, fixed, must_be_text, put, take_away

# Exit codes of launchctl for a service that is not loaded.
NOT_FOUND = (3, 113)
# launchd's answer while it is still ending the service.
IN_PROGRESS = 36
UNLOADING_S = 8.0
# The agent of the original program (0.x).
ORIGINAL = "com.remote-sandbox-mcp.watchdog"


def render(label: str, program: Program) -> bytes:
    """The property list."""
    log = str(program.state / LOG_FILE)
    fields: dict[str, Any] = {
        "Label": label,
        "ProgramArguments": list(program.words),
        "WorkingDirectory": "/",
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": 10,
        "ExitTimeOut": 5,
        "ProcessType": "Background",
        "Umask": 0o077,
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    if variables := fixed(program):
        fields["EnvironmentVariables"] = variables
    return plistlib.dumps(fields)


class Launchd:
    """The watchdog's launch agent, installed or not."""

    kind = "launchd"

    def __init__(self, program: Program, label: str = "") -> None:
        self._program = program
        self.label = label or f"remote-sandbox-mcp.watchdog{program.suffix}"
        self.file = Path.home() / "Library/LaunchAgents" / f"{self.label}.plist"
        self._domain = f"gui/{os.getuid()}"
        self._target = f"{self._domain}/{self.label}"

    def is_installed(self) -> bool:
        return self.file.exists()

    async def install(self, start_now: bool) -> None:
        """Write the file and, if wanted, load or reload it; otherwise the next login loads it. Raises SandboxError."""
        must_be_text((*self._program.words, str(self._program.state)))
        put(self.file, render(self.label, self._program))
        try:
            # Created here, because launchd would make it readable by all.
            os.close(open_log(self._program.state / LOG_FILE))
        except OSError as error:
            raise ConfigError(f"unable to make {self._program.state / LOG_FILE}: {error.strerror}") from error
        if start_now:
            await self._unload()
            (await self._launchctl("enable", self._target)).needed()
            (await self._launchctl("bootstrap", self._domain, str(self.file))).needed()

    async def start(self) -> None:
        """Raises SandboxError."""
        if (await self._launchctl("print", self._target)).code in NOT_FOUND:
            (await self._launchctl("bootstrap", self._domain, str(self.file))).needed()
        (await self._launchctl("kickstart", self._target)).needed()

    async def remove(self) -> None:
        """Stop it and remove the file; the original's, too. Raises SandboxError."""
        if self.is_installed():
            await self._unload()
            take_away(self.file)
        if self.label != ORIGINAL:
            await Launchd(self._program, ORIGINAL).remove()

    async def facts(self) -> Facts:
        answer = await self._launchctl("print", self._target)
        found = re.search(r"^[ \t]*pid = (\d+)$", answer.stdout, re.MULTILINE)
        is_active = "state = running" in answer.stdout
        return Facts(enabled=answer.code == 0, active=is_active, pid=int(found[1]) if found else 0)

    async def _unload(self) -> None:
        """Wait until launchd has dropped it: until then it would refuse to load it again."""
        answer = await self._launchctl("bootout", self._target)
        if answer.code not in (*NOT_FOUND, IN_PROGRESS):
            answer.needed()
        deadline = time.monotonic() + UNLOADING_S
        while (await self._launchctl("print", self._target)).code not in NOT_FOUND:
            if time.monotonic() > deadline:
                raise SandboxError(f"launchd does not let go of {self.label}; run: launchctl bootout {self._target}")
            await asyncio.sleep(0.1)

    async def _launchctl(self, *words: str) -> ManagerOutput:
        return await call("launchctl", *words)
