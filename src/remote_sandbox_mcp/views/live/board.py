"""The rows of all topics as they are now, and lookers that are told what has changed since they last asked.

A looker that is slow gets fewer and larger changes: nothing is queued for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

# Rows are never changed, only replaced: the same object is the same row.
Row = Mapping[str, Any]
# What a looker is shown of a row, from the one that it was shown before (None: none) and the one of now.
Shown = Callable[[Row | None, Row], Row]


@dataclass(frozen=True, kw_only=True)
class Change:
    """Rows of one topic that are new or different, and ids of those that are gone. A `whole` one replaces all."""

    topic: str
    put: Mapping[str, Row] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    whole: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the change as JSON."""
        whole = {"whole": True} if self.whole else {}
        return {"topic": self.topic, **whole, "put": dict(self.put), "gone": list(self.gone)}


def settled(before: Mapping[str, Row], now: Mapping[str, Row]) -> dict[str, Row]:
    """The rows of now; one that is equal to that of before is the same object."""
    return {id: before[id] if id in before and before[id] == row else row for id, row in now.items()}


def difference(seen: Mapping[str, Row], now: Mapping[str, Row]) -> tuple[dict[str, Row], tuple[str, ...]]:
    """Rows that are not the same object as before, and ids that are gone."""
    put = {id: row for id, row in now.items() if seen.get(id) is not row}
    return put, tuple(id for id in seen if id not in now)


class Board:
    """The rows of each topic that is known so far."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, Row]] = {}
        self._lookers: set[Viewer] = set()

    def rows(self, topic: str) -> Mapping[str, Row]:
        return self._topics.get(topic, {})

    def knows(self, topic: str) -> bool:
        return topic in self._topics

    def put(self, topic: str, rows: Mapping[str, Row]) -> None:
        """Replace all rows of a topic."""
        before = self._topics.get(topic)
        now = settled(before or {}, rows)
        self._topics[topic] = now
        if before is None or any(difference(before, now)):
            for looker in self._lookers:
                if topic in looker.topics:
                    looker.woken.set()

    def put_row(self, topic: str, id: str, row: Row | None) -> None:
        """Replace one row; None removes it."""
        others = {each: kept for each, kept in self.rows(topic).items() if each != id or row is not None}
        self.put(topic, others if row is None else others | {id: row})

    def enter(self, looker: Viewer) -> None:
        self._lookers.add(looker)

    def leave(self, looker: Viewer) -> None:
        self._lookers.discard(looker)

    @property
    def has_lookers(self) -> bool:
        return bool(self._lookers)


class Viewer:
    """Viewer of some topics: remembers which rows it was shown."""

    def __init__(self, board: Board, topics: Collection[str], shown: Mapping[str, Shown]) -> None:
        self.topics = tuple(topics)
        self.woken = asyncio.Event()
        self._board = board
        self._shown = shown
        self._seen: dict[str, Mapping[str, Row]] = {}

    async def changes(self) -> list[Change]:
        """Wait until there is something new. May be cancelled: then the next call has it."""
        while not (found := self.take()):
            await self.woken.wait()
        return found

    def take(self) -> list[Change]:
        """Return the changes without waiting; the first of each topic is whole."""
        self.woken.clear()
        return [change for topic in self.topics if self._board.knows(topic) and (change := self._change(topic))]

    def _change(self, topic: str) -> Change | None:
        before, now = self._seen.get(topic), dict(self._board.rows(topic))
        put, gone = difference(before or {}, now)
        self._seen[topic] = now
        if before is not None and not put and not gone:
            return None
        show = self._shown.get(topic)
        rows = {id: show((before or {}).get(id), row) if show else row for id, row in put.items()}
        return Change(topic=topic, put=rows, gone=gone, whole=before is None)
