"""One disposable sandbox as a Sandbox: an outpost behind walls that stand only while it may be used."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from weakref import WeakSet

from ...core.command import Command, Completed, Running
from ...core.errors import ConnectError, LostContact
from ...core.files import Written
from ...core.lane import Lane
from ...core.machine import LocalPlace
from ...core.progress import Progress, silent
from ...core.sandbox import Capabilities, Description
from .. import walled
from ..outpost.client import OutpostClient
from ..outpost.lane import OutpostLane
from ..outpost.sandbox import OutpostSandbox
from ..walls import USER, Bounds, Folders


class StillClient(OutpostClient):
    """A client that can tell a paused outpost from a dead one."""

    is_held = False

    def hold(self) -> None:
        """Expect no sign of life until `go_on`."""
        self.is_held = True
        self._tasks.pop().cancel()

    def go_on(self) -> None:
        if self.is_held:
            self.is_held = False
            self._heard, self._pinged = time.monotonic(), 0.0
            self._tasks.append(asyncio.create_task(self._watch()))


CROWDED = (
    "it has as many processes as it may: wait until some have ended, stop its jobs with stop_background_task, or "
    "delete it with delete_sandbox and create another"
)


class EmbeddedSandbox(OutpostSandbox):
    """Refuses, in one sentence, what its state forbids.

    `closed` says why it cannot be reached now, `full` why nothing more may be done in it; empty where there is no
    reason. `release` lets what is frozen go on: nothing frozen can be ended. `crowded` says what helps when it has as
    many processes as it may.
    """

    crowded = CROWDED

    def __init__(
        self,
        place: LocalPlace,
        folders: Folders,
        bounds: Bounds,
        closed: Callable[[], str],
        full: Callable[[], str],
        release: Callable[[], None],
        description: Description | None = None,
    ) -> None:
        async def start() -> OutpostClient:
            if reason := closed():
                raise ConnectError(reason)
            return await walled.open_outpost(place, folders, self._bounds, StillClient)

        super().__init__(
            description or describe(place),
            place.environment,
            start,
            lambda _: walled.open_lane(place, folders, self._bounds),
            walled.Doors(place.name),
        )
        self._bounds = bounds
        self._closed = closed
        self._full = full
        self._release = release
        self._lanes: WeakSet[OutpostLane] = WeakSet()
        self._lanes_to_come = 0

    async def _reach(self) -> OutpostClient:
        if reason := self._closed():
            raise ConnectError(reason)
        return await super()._reach()

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        self._refuse_more()
        try:
            return await super().run(command, patience_s=patience_s, progress=progress)
        except LostContact as lost:
            if reason := self._full():
                raise LostContact(f"{reason}. All that ran in it was ended", **vars(lost)) from None
            raise

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        self._refuse_more()
        return await super().write(path, data, expected=expected)

    async def open_lane(self) -> Lane:
        self._refuse_more()
        self._lanes_to_come += 1
        try:
            lane = await super().open_lane()
        except ConnectError as problem:
            # Another bubblewrap is needed for it, which says so itself.
            if os.strerror(errno.EAGAIN) in str(problem):
                raise ConnectError(f"{problem}; {self.crowded}") from None
            raise
        finally:
            self._lanes_to_come -= 1
        assert isinstance(lane, OutpostLane)
        self._lanes.add(lane)
        return lane

    @property
    def is_in_use(self) -> bool:
        return self.is_open or self.is_moving_files

    @property
    def is_moving_files(self) -> bool:
        return self._lanes_to_come > 0 or any(lane.is_alive for lane in self._lanes)

    async def end_all(self) -> None:
        """End what runs in it, and what brings files into it."""
        await asyncio.gather(*(lane.close() for lane in list(self._lanes)), return_exceptions=True)
        await EmbeddedSandbox.close(self)

    async def settle(self) -> None:
        """On return nothing is being opened."""
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)

    def _refuse_more(self) -> None:
        if reason := self._full():
            raise ConnectError(reason)

    def hold(self) -> None:
        if isinstance(self._client, StillClient) and self._client.is_alive:
            self._client.hold()

    def go_on(self) -> None:
        if isinstance(self._client, StillClient) and self._client.is_alive:
            self._client.go_on()

    async def close(self) -> None:
        """On return nothing is being started any more."""
        self._release()
        await super().close()
        await self.settle()


def describe(place: LocalPlace) -> Description:
    capabilities = Capabilities(kills_trees=True, network=bool(place.network))
    return Description(place.name, "embedded", user=USER, capabilities=capabilities)
