"""A member of a fleet that counts how often it is opened."""

from __future__ import annotations

import asyncio

from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.services.fleet import Member
from tests.support.fakes.sandbox import FakeSandbox


class Door:
    """Counts how often a sandbox is opened, and refuses as long as there is trouble."""

    def __init__(self, name: str = "gpu1") -> None:
        self.sandbox = FakeSandbox(name=name)
        self.member = Member(name, lambda: self.sandbox.description, self._open)
        self.knocks = 0
        self.trouble: Exception | None = None

    async def _open(self) -> Sandbox:
        self.knocks += 1
        await asyncio.sleep(0)
        if self.trouble:
            raise self.trouble
        return self.sandbox
