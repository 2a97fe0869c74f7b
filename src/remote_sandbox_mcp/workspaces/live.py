"""Sends local changes of workspaces in use soon after they are made, so that the next command finds them there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from ..core.errors import SandboxError
from ..core.workspace import Workspace
from ..waiting import Chores

# How often a folder is looked at, and for how long nothing may change in it before it is sent.
POLL_S, QUIET_S = 0.1, 0.3
# A look that takes long, because the folder cannot be watched, takes a tenth of the time at most.
REST_AFTER_LOOK = 10
# After a pass that failed; the result of the next command says why.
REST_AFTER_FAILURE_S = 10.0
# How long after the last call this goes on.
IN_USE_S = 300.0


# Looks at a local folder; what it gives is equal as long as nothing changes.
Look = Callable[[], Awaitable[object]]


class Live:
    """One task for each workspace in use. What fails is not told here: the next command finds it, and tells it."""

    def __init__(
        self,
        watch: Callable[[Workspace], Awaitable[Look]],
        send: Callable[[Workspace], Awaitable[object]],
    ) -> None:
        self._watch = watch
        self._send = send
        self._until: dict[str, float] = {}
        self._tasks = Chores("sending changes ahead")

    def use(self, workspace: Workspace) -> None:
        """Note a call in a workspace, which has sent what changed until now."""
        is_new = workspace.id not in self._until
        self._until[workspace.id] = time.monotonic() + IN_USE_S
        if is_new:
            self._tasks.start(self._keep_sending(workspace))

    def forget(self, workspace: Workspace) -> None:
        """Begin no further pass."""
        if workspace.id in self._until:
            self._until[workspace.id] = 0.0

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_sending(self, workspace: Workspace) -> None:
        sent: object = None
        try:
            while self._is_used(workspace):
                try:
                    sent = await self._send_next_change(workspace, sent)
                except SandboxError:
                    await asyncio.sleep(REST_AFTER_FAILURE_S)
        finally:
            del self._until[workspace.id]

    async def _send_next_change(self, workspace: Workspace, sent: object) -> object:
        """Wait for a change, then until nothing more changes for a moment, and send it; returns what was sent.

        That is what was seen before the pass: what changes during it may be in it or not. Raises SandboxError.
        """
        look = await self._watch(workspace)
        now, changed_at = sent, 0.0
        while self._is_used(workspace):
            begun = time.monotonic()
            newest = await look()
            if newest != now:
                now, changed_at = newest, time.monotonic()
            elif now != sent and time.monotonic() - changed_at >= QUIET_S:
                await self._send(workspace)
                break
            await asyncio.sleep(max(POLL_S, REST_AFTER_LOOK * (time.monotonic() - begun)))
        return now

    def _is_used(self, workspace: Workspace) -> bool:
        return time.monotonic() < self._until[workspace.id]
