"""A command or job in a linked folder: what changed here is sent before it, and what it changed comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.errors import ConnectError, SandboxError
from ...core.workspaces.workspace import Moved, Workspace, not_brought, not_sent

if TYPE_CHECKING:
    from .service import WorkspaceService


class WorkspaceCall:
    """One call from a folder of a workspace; `moved` is what it has moved so far."""

    def __init__(self, service: WorkspaceService, workspace: Workspace, client_folder: str) -> None:
        self._service = service
        self._workspace = workspace
        self._client_folder = client_folder
        self.moved = Moved()

    @property
    def sandbox(self) -> str:
        return self._workspace.sandbox

    def start_folder(self, named: str) -> str:
        """The folder over there in which it starts: the named one, else the one that the caller is in."""
        return self._workspace.start_folder(named, self._client_folder)

    def source(self, script: str, cwd: str) -> str:
        """The script after the workspace's init lines."""
        return self._workspace.source(script, self.start_folder(cwd))

    async def send(self) -> None:
        """Send what changed here. Raises SandboxError where it cannot be sent; then nothing may be run."""
        try:
            self.moved = self.moved.and_then(await self._service.send(self._workspace))
        except ConnectError:
            raise
        except SandboxError as problem:
            raise not_sent(self._workspace, problem) from None

    async def bring(self) -> None:
        """Bring back what changed there; what cannot come is told in `moved`."""
        try:
            brought = await self._service.bring(self._workspace)
        except SandboxError as problem:
            brought = not_brought(self._workspace, problem)
        self.moved = self.moved.and_then(brought)
