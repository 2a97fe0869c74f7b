"""Sandboxes for Inspect: `sandbox=("remote", "gpu2")`, or `sandbox="remote"` for a fresh one for each sample.

Inspect finds this module by its entry point.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from typing import Any, Literal

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from .. import SandboxError, Sandboxes
from ..api import Box, Done
from . import DENIED, FOLDER, MISSING, NO_LIMIT_S

# Files and inputs that are larger go in such parts.
PART = 8 << 20
# What a shell says of a program that may not be run.
NOT_EXECUTABLE = 126
# Exceptions that Inspect's tools know, by the reasons of ours.
KNOWN: dict[str, type[OSError]] = {
    **dict.fromkeys(MISSING, FileNotFoundError),
    **dict.fromkeys(DENIED, PermissionError),
    **dict.fromkeys(FOLDER, IsADirectoryError),
    "not_a_file": OSError,
}


class Fresh(BaseModel, frozen=True):
    """A disposable sandbox for each sample: `SandboxEnvironmentSpec("remote", Fresh(image="python:3.12"))`."""

    image: str = ""
    # A machine with docker, podman or slurm; empty for this computer or the platform.
    on: str = ""
    gpus: int = 0
    cpu: float = 0.0
    memory: str = ""
    timeout: float = 0.0
    network: bool | None = None
    hosts: tuple[str, ...] = ()


class _Shared:
    """The sandboxes of one event loop, opened by its first task and closed by its last."""

    def __init__(self) -> None:
        self.boxes = Sandboxes()
        self.users = 0
        self.turn = asyncio.Lock()


_of_loops: dict[asyncio.AbstractEventLoop, _Shared] = {}


@sandboxenv(name="remote")
class RemoteSandboxEnvironment(SandboxEnvironment):
    """A sandbox of ours; relative paths begin in a folder of its own, which goes with the sample."""

    def __init__(self, box: Box, folder: str, is_fresh: bool) -> None:
        super().__init__()
        self.box = box
        self._folder = folder
        self._is_fresh = is_fresh
        self._is_entered = False

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return Fresh(**config)

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        shared = _of_loops.setdefault(asyncio.get_running_loop(), _Shared())
        shared.users += 1
        async with shared.turn:
            await shared.boxes.__aenter__()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool) -> None:
        shared = _of_loops[asyncio.get_running_loop()]
        shared.users -= 1
        if not shared.users:
            del _of_loops[asyncio.get_running_loop()]
            await shared.boxes.__aexit__()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        boxes = _of_loops[asyncio.get_running_loop()].boxes
        if isinstance(config, str) and config:
            # Inspect takes it for a file beside the task, and makes it a whole path.
            box = await boxes.open(config.rpartition("/")[2])
        else:
            box = await boxes.create(**(config.model_dump() if isinstance(config, Fresh) else {}))
        made = await box.run("mktemp -d /tmp/inspect-XXXXXXXXXX")
        if made.exit_code:
            raise SandboxError(f"no folder for a sample could be made on {box.name}: {made.stderr.decode()}")
        return {"default": cls(box, made.text.strip(), not isinstance(config, str) or not config)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:  # fmt: skip
        for environment in environments.values():
            ours = environment.as_type(cls)
            if ours._is_fresh:
                await ours.box.delete()
            else:
                await ours.box.run(f"rm -rf -- {shlex.quote(ours._folder)}")

    def default_polling_interval(self) -> float:
        return 0.5

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        if user:
            raise NotImplementedError("a shell of another user is not offered")
        return SandboxConnection(type="remote", command=f"remote-sandbox-mcp shell {shlex.quote(self.box.name)}")

    async def exec(
        self, cmd: list[str], input: str | bytes | None = None, cwd: str | None = None,
        env: dict[str, str] | None = None, user: str | None = None, timeout: int | None = None,
        timeout_retry: bool = True, concurrency: bool = True,
    ) -> ExecResult[str]:  # fmt: skip
        given = input.encode() if isinstance(input, str) else input or b""
        if user and not self._is_entered:
            # Others may enter the sample's folder, but not list it.
            await self.box.run(f"chmod 711 {shlex.quote(self._folder)}")
            self._is_entered = True
        try:
            done = await self.box.run(
                f"exec {shlex.join(cmd)}", cwd=self._path(cwd or ""), env=env or {}, user=user or "",
                input=given if len(given) <= PART or user else _parts(given), timeout=timeout or NO_LIMIT_S,
            )  # fmt: skip
        except SandboxError as problem:
            if user and problem.code == "not_started":
                raise SandboxUserUnsupportedError(str(problem)) from None
            raise
        if done.timed_out:
            raise TimeoutError(f"{cmd[0]} did not end within {timeout} s")
        stdout, stderr = await self._whole(done, "stdout"), await self._whole(done, "stderr")
        if done.exit_code == NOT_EXECUTABLE and "permission denied" in stderr.lower():
            raise PermissionError(stderr.strip())
        return ExecResult(done.exit_code == 0, done.exit_code, stdout, stderr)

    async def _whole(self, done: Done, stream: Literal["stdout", "stderr"]) -> str:
        """Output of a command, whole. Raises OutputLimitExceededError."""
        data: bytes = getattr(done, stream)
        seen = getattr(done.completed, stream)
        if seen.total > SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE:
            limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
            raise OutputLimitExceededError(limit, data.decode("utf-8", "replace"))
        if len(data) < seen.total and seen.file:
            data = await self._read(seen.file, SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE)
        return data.decode("utf-8", "replace")

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        path = self._path(file)
        try:
            await self.box.write(path, data[:PART])
        except SandboxError as problem:
            raise await self._known(problem, file) from None
        for at in range(PART, len(data), PART):
            done = await self.box.run(f"cat >> {shlex.quote(path)}", input=data[at : at + PART])
            if done.exit_code:
                raise OSError(f"{file} was not written to its end: {done.stderr.decode('utf-8', 'replace')}")

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        try:
            data = await self._read(self._path(file), SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        except SandboxError as problem:
            raise await self._known(problem, file) from None
        return data.decode() if text else data

    async def _read(self, path: str, most: int) -> bytes:
        """Raises OutputLimitExceededError for a file of more bytes."""
        data = bytearray()
        while part := await self.box.read(path, offset=len(data), limit=min(PART, most + 1)):
            data += part
            if len(data) > most:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return bytes(data)

    async def _known(self, problem: SandboxError, file: str) -> Exception:
        """The exception that Inspect knows for a failure of ours."""
        kind = KNOWN.get(problem.reason)
        if kind is OSError and not (await self.box.run(f"test -d {shlex.quote(self._path(file))}")).exit_code:
            kind = IsADirectoryError
        if kind is None:
            return problem
        return kind(f"{file} is a directory" if kind is IsADirectoryError else f"{file}: {problem}")

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self._folder}/{path}"


async def _parts(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), PART):
        yield data[at : at + PART]
