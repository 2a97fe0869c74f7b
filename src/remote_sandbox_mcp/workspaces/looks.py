"""Looks at the sides of workspaces: followers are kept between passes, so that an unchanged side costs little."""

from __future__ import annotations

import asyncio
import operator

from ..core.transfer import DEFAULT_EXCLUDES, Order
from ..core.tree import Tree
from ..sync.ends import End
from ..sync.follow import Followed, Follower
from ..sync.lanes import Lanes


class Looks:
    """One follower for each side of each workspace that was looked at lately."""

    def __init__(self) -> None:
        self._followers: dict[tuple[str, str], tuple[Lanes, Follower]] = {}
        # Both sides and the common state where a pass had nothing to do: with the same ones, none has.
        self._settled: dict[str, tuple[object, object, object]] = {}

    async def look(self, workspace_id: str, end: End, order: Order) -> Tree:
        """What a scan of this end would give. Raises FileProblem, ConnectError, Unsupported."""
        return await (await self.follower(workspace_id, end, order)).look()

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

    def settle(self, workspace_id: str, here: Tree, there: Tree, base: object) -> None:
        """Note that a pass over these had nothing to do."""
        self._settled[workspace_id] = here.folders, there.folders, base

    def is_settled(self, workspace_id: str, here: Tree, there: Tree, base: object) -> bool:
        """Whether nothing has changed since then. While a side is unchanged, its folders are one object."""
        before = self._settled.get(workspace_id, ())
        return bool(before) and all(map(operator.is_, before, (here.folders, there.folders, base)))

    async def forget(self, workspace_id: str) -> None:
        self._settled.pop(workspace_id, None)
        for key in [key for key in self._followers if key[0] == workspace_id]:
            await self._followers.pop(key)[1].close()

    async def close(self) -> None:
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
