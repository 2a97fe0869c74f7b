"""Rows of the history of machines: how busy each was, and who used its GPUs; thinned after a day, dropped after 90."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ...core.resources.history import GpuHours, Minute, mean_point, packed, unpacked
from ...core.resources.usage import Point
from .database import Rows, statements
from .keeping import clean
from .library import sqlite3

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
KEPT_S = 90 * DAY_S
# Minutes are kept for a day, then a row for each quarter of an hour; hours of GPUs for a week, then days.
MINUTES_S, THINNED_TO, HOURS_S = DAY_S, 15, 8 * DAY_S
# Owners of a machine's GPUs in one hour; their names come from the machine.
MOST_OWNERS = 200


class MachineRows(Rows[GpuHours]):
    """The rows. Any number of processes may write them: the first one that has a minute of a machine keeps it."""

    name = "machines"

    def write(self, minutes: Sequence[Minute]) -> None:
        """Add minutes of machines, at once. Raises ConfigError."""
        with self.database.writing() as connection:
            for minute in minutes:
                at = int(minute.point[0]) // MINUTE_S
                fields = {"machine": clean(minute.machine), "minute": at, "shares": packed(minute.point)}
                self._execute(connection, "machine", **fields)
                if not self._execute(connection, "minute", **fields).rowcount:
                    continue
                for owner, cards in minute.cards.items():
                    used = {"user": clean(owner.user), "job": clean(owner.job), "seconds": cards * minute.seconds}
                    hour = {"hour": at * MINUTE_S // HOUR_S, "most": MOST_OWNERS}
                    self._execute(connection, "use", **fields, **used, **hour)

    def points(self, after: float, machine: str = "") -> dict[str, tuple[Point, ...]]:
        """List the points of all machines, or of one, since a time. Raises ConfigError."""
        rows = self._found("points", name=clean(machine), after=int(after) // MINUTE_S)
        by_name = groupby(rows, key=lambda row: str(row["name"]))
        return {name: tuple(_point(row) for row in found) for name, found in by_name}

    def hours(self, after: float, machine: str = "") -> list[GpuHours]:
        """List the GPU-hours since a time. Raises ConfigError."""
        return list(self._select("hours", name=clean(machine), after=int(after) // HOUR_S))

    def tidy(self, now: float) -> None:
        """Thin what is old, and drop what is too old. Raises ConfigError."""
        hour, old = int(now) // HOUR_S, (int(now) - KEPT_S) // MINUTE_S
        with self.database.writing() as connection:
            self._thin(connection, (int(now) - MINUTES_S) // MINUTE_S // THINNED_TO * THINNED_TO - 1)
            self._execute(connection, "old_minutes", before=old)
            for name in ("by_day", "drop_hours"):
                self._execute(connection, name, before=hour - HOURS_S // HOUR_S)
            self._execute(connection, "old_hours", before=hour - KEPT_S // HOUR_S)
            self._execute(connection, "old_machines")

    def _thin(self, connection: sqlite3.Connection, before: int) -> None:
        """Replace the minutes up to `before` by their means."""
        rows = self._execute(connection, "to_thin", before=before).fetchall()
        for machine, found in groupby(rows, key=lambda row: int(row["id"])):
            means = []
            for part, group in groupby(found, key=lambda row: int(row["minute"]) // THINNED_TO):
                shares = packed(mean_point([_point(row) for row in group]))
                means.append({"machine": machine, "minute": part * THINNED_TO, "shares": shares})
            self._execute(connection, "drop_minutes", machine=machine, before=before)
            connection.executemany(statements(self.name)["thinner"], means)
            self._execute(connection, "thinned", machine=machine, before=before)

    def _read(self, row: sqlite3.Row) -> GpuHours:
        return GpuHours(**dict(row))


def _point(row: sqlite3.Row) -> Point:
    return unpacked(float(row["minute"] * MINUTE_S), row["shares"])
