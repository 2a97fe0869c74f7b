"""A tree of one side that is kept up to date: its lane tells only what changed since the last look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...core.errors import BrokenRules, FileProblem, Unreachable
from ...core.orders import FollowOrder, ScanOrder
from ...core.sync.transfer import Lane, Reply, numbers
from ...core.sync.tree import MOST_BYTES, Tree, TreeReader
from ...far.outpost.wire import CANCEL
from ...local.waiting import Chores
from .ends import LONG_S

# After this time without a look the lane is closed. An open lane counts as use of a disposable sandbox.
IDLE_S = 600.0
# How often one look may begin anew, on a new lane or with a whole listing.
MOST_ATTEMPTS = 3
# The far side cannot say what changed since the listing that we have, but it can say everything.
AGAIN = "again"


@dataclass(frozen=True, kw_only=True)
class Followed:
    """Tree to follow: a path and its excludes, as a scan has them. `name` is for sentences."""

    name: str
    path: str
    rules: tuple[str, ...] = ()
    # Names of which the tree tells whether a rule left one out.
    watched: tuple[str, ...] = ()
    gitignore: bool = False
    # Of a local path that the gate admitted: device and inode of all along it, which it must still be.
    exact: tuple[tuple[int, int], ...] | None = None

    def scan_order(self, squeeze: bool) -> ScanOrder:
        rules, watched = list(self.rules), list(self.watched)
        order: ScanOrder = {
            "verb": "scan", "path": self.path, "rules": rules, "watched": watched, "gitignore": self.gitignore,
            "squeeze": squeeze,
        }  # fmt: skip
        if self.exact is not None:
            order["exact"] = list(self.exact)
        return order

    def follow_order(self, squeeze: bool, since: int, after_run: str) -> FollowOrder:
        rules, watched = list(self.rules), list(self.watched)
        order: FollowOrder = {
            "verb": "follow", "path": self.path, "rules": rules, "watched": watched, "gitignore": self.gitignore,
            "squeeze": squeeze, "since": since,
        }  # fmt: skip
        if self.exact is not None:
            order["exact"] = list(self.exact)
        if after_run:
            order["after"] = after_run
        return order


class Follower:
    """Any number of looks may be under way at once; each gives the tree as it was at some moment after its call.

    While nothing changes, all trees have the same `folders`, as one object, and `version` stays as it is. What was
    seen is kept while the lane is open; another lane begins with a whole listing.
    """

    def __init__(self, open_lane: Callable[[], Awaitable[Lane]], followed: Followed) -> None:
        self.followed = followed
        # Whether the last look brought something new, and how many have.
        self.changed = False
        self.version = 0
        # Inode of the top folder; 0 if there is none, or if it is not known (SFTP).
        self.inode = 0
        # Whether the far side sees changes by inotify, so that a look costs almost nothing.
        self.is_watched = False
        self._open_lane = open_lane
        self._opening = asyncio.Lock()
        self._lane: Lane | None = None
        self._squeeze = False
        self._tree: Tree | None = None
        # Number of the listing that the far side remembers us to have; 0 for none.
        self._number = 0
        self._waiting: dict[int, tuple[str, Lane]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing = Chores(f"closing the lane that follows {followed.name}")

    async def scan(self, after_run: str = "") -> Tree:
        """The tree as it is now; with `after_run`, when that run on the same machine has ended or is not known there.

        A lane that was cut is opened again once. Raises FileProblem, ConnectError, Unsupported.
        """
        return (await self._refresh(after_run))[0]

    async def scan_after(self, run_id: str) -> Tree | None:
        """The tree after the end of a run; None if that is not known to have ended. Raises like look."""
        tree, has_ended = await self._refresh(run_id)
        return tree if has_ended else None

    async def _refresh(self, after_run: str) -> tuple[Tree, bool]:
        cuts = 0
        for attempt in range(MOST_ATTEMPTS):
            lane = await self._opened()
            try:
                if not lane.follows:
                    return await self._scan(lane), False
                return await self._follow(lane, after_run, self._number if not attempt else 0)
            except Unreachable as problem:
                cuts += 1
                if cuts > 1 or isinstance(problem, BrokenRules):
                    raise
            except FileProblem as problem:
                if problem.reason != AGAIN:
                    raise
        raise FileProblem(f"{self.followed.name}: its machine does not tell what is in it; try again later", "hostile")

    def hurry(self, run_id: str) -> None:
        """Say that a run has ended: a look that waits for it need not find that out by itself."""
        for number, (awaited, lane) in self._waiting.items():
            if awaited == run_id:
                lane.pass_on(CANCEL, number, b"")

    async def close(self) -> None:
        """Close the lane; a later look opens another one."""
        lane, self._lane, self._number = self._lane, None, 0
        if self._timer:
            self._timer.cancel()
        if lane:
            await lane.close()

    async def _opened(self) -> Lane:
        async with self._opening:
            if self._lane is None or not self._lane.is_alive:
                await self.close()
                self._lane = await self._open_lane()
                asked = time.perf_counter()
                await self._lane.begin({"verb": "rest"})
                self._squeeze = time.perf_counter() - asked > LONG_S
            return self._lane

    async def _follow(self, lane: Lane, after_run: str, since: int) -> tuple[Tree, bool]:
        order = self.followed.follow_order(self._squeeze, since, after_run)
        reader, number = TreeReader(self.followed.name), next(numbers)
        self._waiting[number] = after_run, lane
        self._put_off_closing()
        answered = False
        try:
            reply = await lane.begin(order, number=number, heard=reader.feed, room=MOST_BYTES)
            answered = True
        finally:
            del self._waiting[number]
            self._put_off_closing()
            if after_run and not answered:
                lane.pass_on(CANCEL, number, b"")
        return self._take(lane, reply, reader), reply.end.get("ended") is True

    def _take(self, lane: Lane, reply: Reply, reader: TreeReader) -> Tree:
        """Raises FileProblem; the lane is given up then, unless everything has to be told again."""
        try:
            number, since, inode = map(reply.number, ("number", "since", "inode"))
            if since and (self._tree is None or since != self._number or lane is not self._lane):
                # An answer in between was not read, because its caller went away.
                raise FileProblem(f"{self.followed.name}: a listing was missed", AGAIN)
            tree = (
                reader.finish_differences(reply.end, self._tree) if self._tree and since else reader.finish(reply.end)
            )
        except FileProblem as problem:
            if problem.reason != AGAIN and lane is self._lane:
                self._closing.start(self.close())
            raise
        if lane is self._lane:
            self._number = number
        self.inode, self.is_watched = inode, reply.end.get("watched") is True
        return self._keep(tree)

    async def _scan(self, lane: Lane) -> Tree:
        reader = TreeReader(self.followed.name)
        self._put_off_closing()
        order = self.followed.scan_order(self._squeeze)
        reply = await lane.begin(order, heard=reader.feed, room=MOST_BYTES)
        self.inode, self.is_watched = 0, False
        return self._keep(reader.finish(reply.end))

    def _keep(self, tree: Tree) -> Tree:
        """Keep the newest tree; one that is equal to it has its folders."""
        before = self._tree
        self.changed = before is None or (tree.kind, tree.meta) != (before.kind, before.meta)
        if before and tree.folders is not before.folders:
            if tree.folders == before.folders:
                tree.folders, tree.counts = before.folders, before.counts
            else:
                self.changed = True
        self.version += self.changed
        self._tree = tree
        return tree

    def _put_off_closing(self) -> None:
        """Close the lane some time after the last look, but not while one waits for a run."""
        if self._timer:
            self._timer.cancel()
        if not self._waiting:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, lambda: self._closing.start(self.close()))
