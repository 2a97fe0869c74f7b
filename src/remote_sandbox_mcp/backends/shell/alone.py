"""A Sandbox that has nothing but a POSIX shell, which serves files, too; without file sync and ports."""

from __future__ import annotations

import contextlib

from ...core.command import Environment
from ...core.errors import SandboxError, Unreachable, Unsupported
from ...core.files import FileSlice, Found, Listing, Search, Span, Written
from ...core.port import Stream
from ...core.sandbox import Description
from ...core.transfer import Lane
from .files import ShellFiles
from .sandbox import ShellSandbox
from .search import find_matches
from .transport import Place, Transport


class ShellAlone(ShellSandbox):
    """Commands, jobs and files through one shell. `ports` begins the sentence that refuses a port."""

    ports = "a port cannot be reached"

    def __init__(self, description: Description, environment: Environment, transport: Transport, place: Place) -> None:
        super().__init__(description, environment, transport, place)
        self._files = ShellFiles(self._shell)
        self._why = f"there is no python3 {place.at}"

    async def read(self, path: str, span: Span) -> FileSlice:
        return await self._files.read(path, span)

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        with contextlib.suppress(Unreachable):
            return await self._files.write(path, data, expected)
        # The file may have been written before the cut. Repeating the request could then fail as "changed".
        with contextlib.suppress(SandboxError):
            found = await self.read(path, Span(limit=len(data) + 1))
            if found.data == data:
                return Written(found.size, found.version)
        return await self._files.write(path, data, expected)

    async def list(self, path: str, *, recursive: bool = False, limit: int = 200) -> Listing:
        return await self._files.list(path, recursive, limit)

    async def search(self, search: Search) -> Found:
        return await find_matches(self._files, search)

    async def open_lane(self) -> Lane:
        raise Unsupported(
            f"{self.description.name}: file sync needs python3, and {self._why}; upload_files and download_files copy "
            "files and folders there, too"
        )

    async def connect(self, port: int) -> Stream:
        raise Unsupported(f"{self.description.name}: {self.ports}, because {self._why}")
