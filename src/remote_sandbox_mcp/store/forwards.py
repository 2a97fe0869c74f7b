"""Forwarded ports as rows, so that another process of ours can open them again."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .database import Database
from .sql import statements

# One that is older was left by a hub that died when nobody was there to go on with.
KEPT_S = 7 * 86400.0


@dataclass(frozen=True)
class KeptForward:
    """A port of a sandbox, and the one of this machine that leads to it; 0 where it is closed."""

    sandbox: str
    port: int
    local_port: int = 0


class ForwardRows:
    """The rows of one configuration. Each method is one short transaction. Raises ConfigError."""

    def __init__(self, database: Database, configuration: str) -> None:
        self._database = database
        self._configuration = configuration

    def note(self, forward: KeptForward) -> None:
        """It is open now, or closed."""
        values = {"configuration": self._configuration, "sandbox": forward.sandbox, "port": forward.port}
        with self._database.writing() as connection:
            if forward.local_port:
                values |= {"local_port": forward.local_port, "opened": time.time()}
                connection.execute(statements("forwards")["put"], values)
            else:
                connection.execute(statements("forwards")["remove"], values)

    def all(self) -> tuple[KeptForward, ...]:
        values = {"configuration": self._configuration, "since": time.time() - KEPT_S}
        with self._database.reading() as connection:
            found = connection.execute(statements("forwards")["of"], values).fetchall()
        return tuple(KeptForward(row["sandbox"], row["port"], row["local_port"]) for row in found)
