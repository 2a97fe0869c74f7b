"""Looks at the sides of workspaces: followers kept between passes, and a task that sends local changes ahead."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Awaitable, Callable

from ...core.errors import SandboxError
from ...core.sync.transfer import DEFAULT_EXCLUDES, Order
from ...core.sync.tree import Tree
from ...core.workspaces.workspace import Workspace
from ...local.waiting import Chores, within
from ..sync.ends import End
from ..sync.follow import Followed, Follower
from ..sync.lanes import Lanes

# How many looks after runs may be under way; and how long one is waited for after the run, before another is begun.
MOST_EXPECTED, EXPECTED_S = 50, 2.0


class Followers:
    """One follower for each side of each workspace that was looked at lately."""

    def __init__(self) -> None:
        self._followers: dict[tuple[str, str], tuple[Lanes, Follower]] = {}
        # Both sides and the common state where a pass had nothing to do: with the same ones, none has.
        self._settled: dict[str, tuple[object, object, object]] = {}
        # Looks after the end of runs, with the common state at the time of the order.
        self._expected: dict[tuple[str, str], tuple[asyncio.Future[Tree | None], object]] = {}
        # This side as a pass has sent it, with the common state after that pass.
        self._sent: dict[str, tuple[Tree, object]] = {}
        self._tasks = Chores("looking at a workspace after a run", expected=(SandboxError,))

    async def scan(self, workspace_id: str, end: End, order: Order) -> Tree:
        """Return the tree that a scan of this end would give. Raises FileProblem, ConnectError, Unsupported."""
        return await (await self.follower(workspace_id, end, order)).scan()

    async def follower(self, workspace_id: str, end: End, order: Order) -> Follower:
        """The follower of an end; another one where its rules have changed, or the way to it."""
        key, wanted = (workspace_id, end.place.sandbox), followed(end, order)
        lanes, follower = self._followers.get(key, (None, None))
        if follower is not None and lanes is end.lanes and follower.followed == wanted:
            return follower
        fresh = Follower(end.lanes.open, wanted)
        self._followers[key] = end.lanes, fresh
        if follower is not None:
            await follower.close()
        return fresh

    def expect(self, workspace_id: str, end: End, order: Order, run_id: str, base: object) -> None:
        """Begin to look at an end when a run there has ended: the order travels together with that of the run."""

        async def scan() -> Tree | None:
            return await (await self.follower(workspace_id, end, order)).scan_after(run_id)

        while len(self._expected) >= MOST_EXPECTED:
            self._expected.pop(next(iter(self._expected)))[0].cancel()
        self._expected[workspace_id, run_id] = self._tasks.start(scan()), base

    async def expected(self, workspace_id: str, end: End, order: Order, run_id: str, base: object) -> Tree | None:
        """Return the tree after the end of a run; None if there is none, or passes have changed something since."""
        looking, before = self._expected.pop((workspace_id, run_id), (None, None))
        if looking is None:
            return None
        if before is not base:
            looking.cancel()
            return None
        (await self.follower(workspace_id, end, order)).hurry(run_id)
        try:
            return await within(looking, EXPECTED_S)
        except (SandboxError, asyncio.TimeoutError):
            return None

    def note_sent(self, workspace_id: str, end: End, tree: Tree, base: object) -> None:
        """Keep what a pass has seen of this side, where another look costs more than a moment."""
        _, follower = self._followers.get((workspace_id, end.place.sandbox), (None, None))
        if follower is not None and not follower.is_watched:
            self._sent[workspace_id] = tree, base

    def sent(self, workspace_id: str, base: object) -> Tree | None:
        """Return this side's tree as it was sent, if no pass has changed either side since; once."""
        tree, after = self._sent.pop(workspace_id, (None, None))
        return tree if after is base else None

    def settle(self, workspace_id: str, here: Tree, there: Tree, base: object) -> None:
        """Note that a pass over these had nothing to do."""
        self._settled[workspace_id] = here.folders, there.folders, base

    def is_settled(self, workspace_id: str, here: Tree, there: Tree, base: object) -> bool:
        """Whether nothing has changed since then. While a side is unchanged, its folders are one object."""
        before = self._settled.get(workspace_id, ())
        return bool(before) and all(map(operator.is_, before, (here.folders, there.folders, base)))

    async def forget(self, workspace_id: str) -> None:
        self._settled.pop(workspace_id, None)
        self._sent.pop(workspace_id, None)
        for key in [key for key in self._followers if key[0] == workspace_id]:
            await self._followers.pop(key)[1].close()

    async def close(self) -> None:
        await self._tasks.close()
        followers = [follower for _, follower in self._followers.values()]
        self._followers.clear()
        await asyncio.gather(*(follower.close() for follower in followers), return_exceptions=True)


def followed(end: End, order: Order) -> Followed:
    """The tree that `End.scan` would scan."""
    return Followed(
        name=str(end.place),
        path=end.path,
        rules=order.rules,
        watched=DEFAULT_EXCLUDES if order.default_excludes else (),
        gitignore=order.respect_gitignore,
        exact=None if end.exact is None else tuple(end.exact),
    )


# How often a folder is looked at, and for how long nothing may change in it before it is sent.
POLL_S, QUIET_S = 0.1, 0.3
# A look that takes long, because the folder cannot be watched, takes a tenth of the time at most.
REST_AFTER_SCAN = 10
# After a pass that failed; the result of the next command says why.
REST_AFTER_FAILURE_S = 10.0
# How long after the last call this goes on.
IN_USE_S = 300.0


# Looks at a local folder; what it gives is equal as long as nothing changes.
Scan = Callable[[], Awaitable[object]]


class BackgroundSend:
    """One task for each workspace in use. What fails is not told here: the next command finds it, and tells it."""

    def __init__(
        self, watch: Callable[[Workspace], Awaitable[Scan]], send: Callable[[Workspace], Awaitable[object]]
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
        await self._tasks.close()

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
        scan = await self._watch(workspace)
        now, changed_at = sent, 0.0
        while self._is_used(workspace):
            begun = time.monotonic()
            newest = await scan()
            if newest != now:
                now, changed_at = newest, time.monotonic()
            elif now != sent and time.monotonic() - changed_at >= QUIET_S:
                await self._send(workspace)
                break
            await asyncio.sleep(max(POLL_S, REST_AFTER_SCAN * (time.monotonic() - begun)))
        return now

    def _is_used(self, workspace: Workspace) -> bool:
        return time.monotonic() < self._until[workspace.id]
