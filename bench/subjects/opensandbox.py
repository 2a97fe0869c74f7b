"""A container of an OpenSandbox platform: what we add to the platform's own SDK, on the same server and containers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.platform import IMAGE, USER, Platform

from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.opensandbox import transport
from remote_sandbox_mcp.backends.opensandbox.api import POLL
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, DisposableRules, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.sync.transfer import Order, Place
from remote_sandbox_mcp.services.sync.service import Syncs

from ..measure import Contestant, Times, in_turns, timed
from ..report import Row, Target
from ..stage import Stage

SUBJECT, AGAINST, NAME = "opensandbox", "the SDK itself", "box"
# Below the largest answer that the SDK may be given here: its transport is ours, which bounds answers.
LARGE = 60_000_000
FAR = f"/home/{USER}"
NO_SLOWER = Target(1, of_ratio=True)


class Chunks(dict[bytes, bytes]):
    """What is remembered of large files."""

    def put(self, key: bytes, blob: bytes) -> None:
        self[key] = blob


class Contest:
    """Ours and the SDK's on one container, in one loop."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = folder
        self.provider = OpenSandboxProvider(platform.settings(), DisposableRules(default_image=IMAGE), "bench")
        self.made: Disposable = self.wait(self._make())
        self.ours: Sandbox = self.wait(self.provider.open(self.made))
        self.sdk: Any = self.wait(self.provider._link.sandbox(self.made.key, "bench"))
        self.syncs = Syncs(self._opened, here.open_lane, Chunks())

    def wait(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def timed(self, work: Callable[[], Awaitable[Any]]) -> Contestant:
        return timed(lambda: self.wait(work()))

    async def _opened(self, name: str) -> Sandbox:
        return self.ours

    async def _make(self) -> Disposable:
        return await self.provider.create(new_disposable_id(), SandboxOrder(network=True))

    def create_ours(self) -> float:
        """Deleting it does not count."""
        begun = time.perf_counter()
        made = self.wait(self._make())
        spent = time.perf_counter() - begun
        self.wait(self.provider.delete(made))
        return spent

    def create_theirs(self) -> float:
        """At our pace of looking whether it is ready, and without retries: as it comes it takes up to 0.2 s more."""
        from opensandbox import Sandbox as SdkSandbox

        config, begun = self.provider._link._patient(), time.perf_counter()
        made = self.wait(SdkSandbox.create(IMAGE, connection_config=config, health_check_polling_interval=POLL))
        spent = time.perf_counter() - begun
        self.wait(made.kill())
        return spent

    async def push_ours(self) -> None:
        await self._sync(Place("", str(self.folder)), Place(NAME, f"{FAR}/ours-{os.urandom(4).hex()}"))

    async def push_theirs(self) -> None:
        with (self.folder / "large").open("rb") as file:
            await self.sdk.files.write_file(f"{FAR}/theirs", file)

    async def pull_ours(self) -> None:
        await self._sync(Place(NAME, f"{FAR}/source"), Place("", str(self.folder.parent / os.urandom(4).hex())))

    async def pull_theirs(self) -> None:
        # Random bytes have more brackets in them than an answer may have over our transport.
        with patch.object(transport, "MOST_BRACKETS", LARGE), (self.folder.parent / "theirs").open("wb") as file:
            async for piece in await self.sdk.files.read_bytes_stream(f"{FAR}/source/large"):
                file.write(piece)

    async def _sync(self, source: Place, target: Place) -> None:
        await self.syncs.run(Order(source=source, target=target), lambda _: None)

    def close(self) -> None:
        self.wait(self.syncs.close())
        self.wait(self.ours.close())
        self.wait(self.provider.delete(self.made))
        self.wait(self.provider.close())
        self.loop.close()


def rows(stage: Stage) -> Iterator[Row]:
    folder = stage.folder / "opensandbox" / "source"
    folder.mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(LARGE))
    with Platform() as platform:
        contest = Contest(platform, folder)
        try:
            yield from _rows(stage, contest)
        finally:
            contest.close()


def _rows(stage: Stage, contest: Contest) -> Iterator[Row]:
    exec_ours = contest.timed(lambda: contest.ours.run(Command("true")))
    exec_theirs = contest.timed(lambda: contest.sdk.commands.run("true"))
    times = _measure({"ours": exec_ours, "sdk": exec_theirs}, stage.rounds(10, 3), 10)
    yield _added("exec `true` in a container, warm: what we add", times, 10)
    creating = {"ours": contest.create_ours, "sdk": contest.create_theirs}
    yield _added("create a container: what we add", _measure(creating, stage.rounds(20, 4), 1), 20)
    contest.wait(contest.sdk.files.write_file(f"{FAR}/source/large", (contest.folder / "large").read_bytes()))
    up = {"ours": contest.timed(contest.push_ours), "sdk": contest.timed(contest.push_theirs)}
    yield _compared("60 MB into a container", _measure(up, stage.rounds(5, 2), 1))
    down = {"ours": contest.timed(contest.pull_ours), "sdk": contest.timed(contest.pull_theirs)}
    yield _compared("60 MB out of a container", _measure(down, stage.rounds(5, 2), 1))


def _measure(contestants: dict[str, Contestant], rounds: int, batch: int) -> dict[str, Times]:
    in_turns(contestants, rounds=1)
    return in_turns(contestants, rounds=rounds, batch=batch)


def _added(name: str, times: dict[str, Times], limit: float) -> Row:
    ours, theirs = times["ours"], times["sdk"]
    note = f"ours {ours.p50_ms:.1f} ms, the SDK {theirs.p50_ms:.1f} ms"
    detail = {"ours_ms": ours.p50_ms, "sdk_ms": theirs.p50_ms, "ours_spread_ms": ours.spread_ms}
    return Row(SUBJECT, name, ours.p50_ms - theirs.p50_ms, target=Target(limit), note=note, detail=detail)


def _compared(name: str, times: dict[str, Times]) -> Row:
    ours, theirs = times["ours"].p50_ms, times["sdk"].p50_ms
    return Row(SUBJECT, name, ours, baseline=theirs, against=AGAINST, target=NO_SLOWER)
