"""Selected sandboxes as rows: one for each server that a client process has started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .database import Database
from .disposables import Owner
from .sql import statements

if TYPE_CHECKING:
    import sqlite3


@dataclass(frozen=True)
class Choice:
    """What one server's client has selected; an empty sandbox stands for the configured default."""

    client: Owner
    configuration: str
    server: Owner
    sandbox: str = ""

    def same_place(self, other: Choice) -> bool:
        """Whether both are of the same client and configuration."""
        return (self.client, self.configuration) == (other.client, other.configuration)


class SelectionRows:
    """The rows. Each call is one short transaction. Raises ConfigError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def exists(self) -> bool:
        """Whether anything was ever written down; on a full disk a file is made that stays empty."""
        return self.database.file.exists() and self.database.file.stat().st_size > 0

    def put(self, choice: Choice) -> None:
        with self.database.writing() as connection:
            _execute(connection, "put", choice)

    def release(self, choice: Choice) -> None:
        """Its server ends: the next one may take its place at once."""
        with self.database.writing() as connection:
            _execute(connection, "release", choice)

    def inherit(self, mine: Choice, is_alive: Callable[[Owner], bool]) -> frozenset[str]:
        """What was selected in this server or, where that has no row yet, in those before it that have ended.

        If they agree, `mine` takes their place. If they do not, their rows stay, so that every server that is started
        in their place learns of it. Rows of clients that have ended are removed.
        """
        # The process that served it may have changed, but not the client's choice; a full disk is no reason to lose it.
        if own := [it for it in self._all() if it.same_place(mine) and it.server == mine.server]:
            return frozenset(it.sandbox for it in own)
        with self.database.writing() as connection:
            found = [_choice(row) for row in connection.execute(statements("selections")["all"]).fetchall()]
            for gone in [it for it in found if not is_alive(it.client)]:
                _execute(connection, "remove", gone)
            ended = [it for it in found if it.same_place(mine) and not is_alive(it.server)]
            selected = frozenset(it.sandbox for it in ended)
            if len(selected) <= 1:
                for it in ended:
                    _execute(connection, "remove", it)
                _execute(connection, "put", Choice(mine.client, mine.configuration, mine.server, *selected))
            return selected

    def _all(self) -> list[Choice]:
        with self.database.reading() as connection:
            return [_choice(row) for row in connection.execute(statements("selections")["all"]).fetchall()]


def _execute(connection: sqlite3.Connection, statement: str, choice: Choice) -> None:
    values = {
        "client_pid": choice.client.pid,
        "client_birth": choice.client.birth,
        "configuration": choice.configuration,
        "server_pid": choice.server.pid,
        "server_birth": choice.server.birth,
        "sandbox": choice.sandbox,
    }
    connection.execute(statements("selections")[statement], values)


def _choice(row: sqlite3.Row) -> Choice:
    client, server = Owner(row["client_pid"], row["client_birth"]), Owner(row["server_pid"], row["server_birth"])
    return Choice(client, row["configuration"], server, row["sandbox"])
