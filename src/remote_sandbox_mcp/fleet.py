"""Names to open sandboxes: each is opened on first use, shared by all callers, and closed at the end."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from .core.errors import UnknownSandbox
from .core.sandbox import Description, Sandbox


async def _offered() -> str:
    return ""


@dataclass(eq=False)
class Member:
    """One sandbox that may be opened. `why_not` says why it is not offered here, or nothing."""

    name: str
    describe: Callable[[], Description]
    opener: Callable[[], Awaitable[Sandbox]]
    why_not: Callable[[], Awaitable[str]] = _offered
    sandbox: Sandbox | None = None
    opening: asyncio.Task[Sandbox] | None = None

    async def open(self) -> Sandbox:
        """The open sandbox; callers who come while it is being opened share the attempt. Raises ConnectError."""
        if self.sandbox is not None:
            return self.sandbox
        if self.opening is None or self.opening.done():
            self.opening = asyncio.ensure_future(self._open())
        return await asyncio.shield(self.opening)

    async def _open(self) -> Sandbox:
        self.sandbox = await self.opener()
        return self.sandbox

    async def close(self) -> None:
        if self.opening is not None and not self.opening.done():
            self.opening.cancel()
        if self.sandbox is not None:
            await self.sandbox.close()


class Fleet:
    """All sandboxes of a configuration, and the one that is meant when none is named."""

    def __init__(self, members: Iterable[Member], default: str = "") -> None:
        self._members = {member.name: member for member in members}
        self._active = default if default in self._members else next(iter(self._members), "")

    @property
    def names(self) -> Collection[str]:
        return self._members.keys()

    @property
    def active(self) -> str:
        return self._active

    def select(self, name: str) -> None:
        self._active = self.member(name).name

    def member(self, name: str = "") -> Member:
        """The named member, or the active one. Raises UnknownSandbox with the names that exist."""
        wanted = name or self._active
        if not wanted:
            raise UnknownSandbox(
                "no sandbox is configured; set REMOTE_HOST or REMOTE_SANDBOX_LIST, or write a config.toml "
                "(remote-sandbox-mcp doctor shows where)"
            )
        if wanted not in self._members:
            near = difflib.get_close_matches(wanted, self._members, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UnknownSandbox(f"no sandbox is named {wanted[:80]!r}; {hint}there are: {', '.join(self._members)}")
        return self._members[wanted]

    async def get(self, name: str = "") -> Sandbox:
        return await self.member(name).open()

    async def offered(self) -> list[Member]:
        """The members that can be used here, in the order of the configuration."""
        members = list(self._members.values())
        reasons = await asyncio.gather(*(member.why_not() for member in members))
        return [member for member, reason in zip(members, reasons, strict=True) if not reason]

    async def close(self) -> None:
        await asyncio.gather(*(member.close() for member in self._members.values()), return_exceptions=True)
