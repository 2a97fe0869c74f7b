"""Calls of the system's own commands: bounded in time, their complaints as one line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ..core.errors import SandboxError
from ..core.output import last_line

CALL_S = 20.0


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    words: tuple[str, ...]
    code: int
    stdout: str
    complaint: str

    def needed(self) -> Answer:
        """Itself where it went well. Raises SandboxError."""
        if self.code:
            why = self.complaint or f"it ended with {self.code}"
            raise SandboxError(f"unable to run {' '.join(self.words)}: {why}")
        return self


async def call(*words: str, env: Mapping[str, str] = os.environ, limit_s: float = CALL_S) -> Answer:
    """Run a command to its end. One that is missing or takes too long has failed, too."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words, env=env, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return Answer(words, 127, "", error.strerror or str(error))
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), limit_s)
    except BaseException as problem:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(problem, asyncio.TimeoutError):
            return Answer(words, 124, "", f"no answer in {limit_s:g} s")
        raise
    return Answer(words, process.returncode or 0, stdout.decode("utf-8", "replace"), last_line(stderr))
