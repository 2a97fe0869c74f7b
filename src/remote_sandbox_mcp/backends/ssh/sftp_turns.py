"""Which requests of an SFTP lane wait for which: a round trip each would be too slow, and no order at all wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

LARGE = frozenset({"begin", "join", "commit", "leave"})

# What a request is about, and whether it has that to itself; what is about nothing has everything to itself.
Place = tuple[object, bool]
ALONE: Place = (None, True)
ANYWHERE: Place = (None, False)


class Turns:
    """Work that begins in the order of asking, each as soon as what it must not overtake has ended."""

    def __init__(self) -> None:
        self.running: dict[asyncio.Task[None], Place] = {}
        self._alone: asyncio.Task[None] | None = None
        self._subjects: dict[object, dict[asyncio.Task[None], bool]] = {}

    def start(self, work: Callable[[], Awaitable[None]], place: Place) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._run(work, self._earlier(place)))
        self.running[task] = place
        if place == ALONE:
            self._alone = task
        elif place != ANYWHERE:
            self._subjects.setdefault(place[0], {})[task] = place[1]
        task.add_done_callback(self._ended)
        return task

    def _earlier(self, place: Place) -> list[asyncio.Task[None]]:
        if place == ALONE:
            return list(self.running)
        same = self._subjects.get(place[0], {}) if place != ANYWHERE else {}
        earlier = [task for task, alone in same.items() if alone or place[1]]
        return [*earlier, self._alone] if self._alone else earlier

    async def _run(self, work: Callable[[], Awaitable[None]], earlier: list[asyncio.Task[None]]) -> None:
        if earlier:
            await asyncio.wait(earlier)
        await work()

    def _ended(self, task: asyncio.Task[None]) -> None:
        subject, _ = self.running.pop(task)
        if self._alone is task:
            self._alone = None
        if subject in self._subjects:
            self._subjects[subject].pop(task, None)
            if not self._subjects[subject]:
                del self._subjects[subject]


def place_of(verb: str, root: str, raw: bytes) -> Place:
    """Parts of a file may overtake each other, but not its beginning or its end; other files do not matter."""
    if verb in ("send", "digests"):
        return ANYWHERE
    if verb in ("part", "check"):
        return ("source", root, raw), verb == "check"
    if verb in LARGE:
        key = raw.split(b"\0")[2:3] if verb in ("begin", "join") else [raw]
        return ("target", root, *key), True
    return ALONE


def place_of_frames(root: str, key: bytes) -> Place:
    """Of a large file, by its key, or of many small ones."""
    return (("target", root, key), False) if key else ANYWHERE
