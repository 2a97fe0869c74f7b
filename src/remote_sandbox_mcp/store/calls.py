"""Calls as rows: which of those that must not be made twice have begun, and what was answered."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .database import Database
from .sql import statements

# A client that waits for an answer does not wait for longer.
KEPT_S = 86400.0


@dataclass(frozen=True)
class CallRecord:
    """A call as its row says; the answer is JSON, and nothing until there is one."""

    call: str
    tool: str
    answer: str | None = None


class CallRows:
    """The rows. Each method is one short transaction. Raises ConfigError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def begin(self, call: str, tool: str) -> None:
        """Write down that it is about to begin; drops what is old."""
        now = time.time()
        with self.database.writing() as connection:
            connection.execute(statements("calls")["prune"], {"before": now - KEPT_S})
            connection.execute(statements("calls")["begin"], {"call": call, "tool": tool, "begun": now})

    def answer(self, call: str, answer: str) -> None:
        with self.database.writing() as connection:
            connection.execute(statements("calls")["answer"], {"call": call, "answer": answer})

    def get(self, call: str) -> CallRecord | None:
        """Nothing where it has never begun."""
        with self.database.reading() as connection:
            row = connection.execute(statements("calls")["get"], {"call": call}).fetchone()
        return CallRecord(row["call"], row["tool"], row["answer"]) if row else None
