"""Rows of what all processes of this user share in the state file: watches, events, calls and transfers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..app import App
from ..config import paths
from ..core.watch import Watch
from ..store.database import STATE_FILE, Database
from ..store.history import HistoryRows, Wanted
from ..store.watches import Watches
from .board import Board
from .rows import Known, by_id, call_row, event_row, transfer_row

MOST_EVENTS, MOST_CALLS, MOST_TRANSFERS, MOST_WATCHES = 200, 200, 100, 1000

EVENTS, CALLS, TRANSFERS = "events", "calls", "transfers"


class StateFile:
    """Reads the file after each change that anybody has made to it. Raises ConfigError."""

    def __init__(self, app: App, board: Board, known: Callable[[], Known]) -> None:
        """`known` gives the secrets that are not to be shown."""
        self.watches: Mapping[int, Watch] = {}
        self._app = app
        self._board = board
        self._known = known
        self._version = -1

    @functools.cached_property
    def _database(self) -> Database:
        # A connection of its own: it is told of changes by all others, those of this process too.
        return Database(paths.state_folder() / STATE_FILE)

    def exists(self) -> bool:
        """Whether there is a state file; makes none."""
        return (paths.state_path() / STATE_FILE).exists()

    async def look(self) -> bool:
        """Bring the board up to date; returns whether anything in the file has changed."""
        if not self.exists():
            for topic in (EVENTS, CALLS, TRANSFERS):
                self._board.put(topic, {})
            return False
        version = await asyncio.to_thread(self._read_version)
        if version == self._version:
            return False
        watches, events, calls = await asyncio.to_thread(self._read, self._known())
        self.watches = watches
        self._board.put(EVENTS, by_id(events))
        self._board.put(CALLS, by_id(calls))
        await self._look_at_transfers()
        # Only now: what could not be read is read again.
        self._version = version
        return True

    async def older_events(self, before: int, limit: int) -> list[Mapping[str, Any]]:
        """Those with a lower number, oldest first."""
        return list(await asyncio.to_thread(self._events, before, limit, self._known())) if self.exists() else []

    async def older_calls(self, wanted: Wanted) -> list[Mapping[str, Any]]:
        if not self.exists():
            return []
        found = await asyncio.to_thread(HistoryRows(self._database).newest, wanted)
        return [call_row(row) for row in found]

    async def close(self) -> None:
        if "_database" in self.__dict__:
            await asyncio.to_thread(self._database.close)

    def _read_version(self) -> int:
        with self._database.reading() as connection:
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    def _read(self, known: Known) -> tuple[Mapping[int, Watch], list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        watches = {watch.id: watch for watch in Watches(self._database).list(limit=MOST_WATCHES)}
        calls: list[Mapping[str, Any]] = [
            call_row(row) for row in HistoryRows(self._database).newest(Wanted(limit=MOST_CALLS))
        ]
        return watches, self._events(0, MOST_EVENTS, known, watches), calls

    def _events(
        self, before: int, limit: int, known: Known, watches: Mapping[int, Watch] | None = None
    ) -> list[Mapping[str, Any]]:
        found = Watches(self._database).events(limit=limit, newest=True, before=before)
        return [event_row(event, self.watches if watches is None else watches, known) for event in found]

    async def _look_at_transfers(self) -> None:
        background = self._app.transfers.background
        found = await background.list(MOST_TRANSFERS)
        stale = {it.id: not it.is_over and await background.is_stale(it) for it in found}
        rows = {it.id: transfer_row(it, stale[it.id]) for it in found}
        self._board.put(TRANSFERS, rows)
