"""Rows of clients' sessions: selected sandboxes, calls in progress, forwarded ports, and their shells."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .database import Database, Rows
from .disposables import Owner
from .library import sqlite3

# No client waits longer for an answer.
CALLS_KEPT_S = 86400.0
# An older row was left by a hub that died without a successor.
FORWARDS_KEPT_S = 7 * 86400.0


@dataclass(frozen=True)
class CallRecord:
    """A call as its row has it; `answer` is JSON, empty until there is one."""

    call: str
    tool: str
    answer: str | None = None


class CallRows(Rows[CallRecord]):
    """The rows."""

    name, or_in_memory = "calls", True

    def begin(self, call: str, tool: str) -> None:
        """Record that a call is about to begin; drops old rows."""
        now = time.time()
        with self.database.writing(or_in_memory=True) as connection:
            self._execute(connection, "prune", before=now - CALLS_KEPT_S)
            self._execute(connection, "begin", call=call, tool=tool, begun=now)

    def answer(self, call: str, answer: Mapping[str, Any]) -> None:
        self._change("answer", call=call, answer=json.dumps(self._keeper.values(answer)))

    def remove(self, call: str) -> None:
        """Remove a call that did nothing."""
        self._change("remove", call=call)

    def get(self, call: str) -> CallRecord | None:
        """Return the record of a call; None for one that never began.

        Only the file has it: this process has not begun the call.
        """
        with self.database.reading() as connection:
            row = self._execute(connection, "get", call=call).fetchone()
        return CallRecord(row["call"], row["tool"], row["answer"]) if row else None


@dataclass(frozen=True)
class SelectedSandbox:
    """The sandbox that one client has selected; empty stands for the configured default."""

    client: Owner
    configuration: str
    server: Owner
    sandbox: str = ""

    def same_place(self, other: SelectedSandbox) -> bool:
        """Whether both are of the same client and configuration."""
        return (self.client, self.configuration) == (other.client, other.configuration)


class SelectionRows(Rows[SelectedSandbox]):
    """The rows."""

    name, or_in_memory = "selections", True

    def exists(self) -> bool:
        """Whether there is a database with anything in it: on a full disk an empty file may be made."""
        return self.database.file.exists() and self.database.file.stat().st_size > 0

    def put(self, choice: SelectedSandbox) -> None:
        self._change("put", **_values(choice))

    def release(self, choice: SelectedSandbox) -> None:
        """Mark its server as ended, so that the next one may take its place at once."""
        self._change("release", **_values(choice))

    def inherit(self, mine: SelectedSandbox, is_alive: Callable[[Owner], bool]) -> frozenset[str]:
        """The selection of this server or, where it has no row yet, those of its predecessors that have ended.

        If they agree, `mine` takes their place. If they do not, their rows stay, so that every server that is started
        in their place learns of it. Rows of clients that have ended are removed.
        """
        # The serving process may have been replaced, but the client's choice stays.
        if own := [it for it in self._select("all") if it.same_place(mine) and it.server == mine.server]:
            return frozenset(it.sandbox for it in own)
        with self.database.writing(or_in_memory=True) as connection:
            found = [self._read(row) for row in self._execute(connection, "all").fetchall()]
            for gone in [it for it in found if not is_alive(it.client)]:
                self._execute(connection, "remove", **_values(gone))
            ended = [it for it in found if it.same_place(mine) and not is_alive(it.server)]
            selected = frozenset(it.sandbox for it in ended)
            if len(selected) <= 1:
                for it in ended:
                    self._execute(connection, "remove", **_values(it))
                taken = SelectedSandbox(mine.client, mine.configuration, mine.server, *selected)
                self._execute(connection, "put", **_values(taken))
            return selected

    def _read(self, row: sqlite3.Row) -> SelectedSandbox:
        client, server = Owner(row["client_pid"], row["client_birth"]), Owner(row["server_pid"], row["server_birth"])
        return SelectedSandbox(client, row["configuration"], server, row["sandbox"])


def _values(choice: SelectedSandbox) -> dict[str, object]:
    client = {"client_pid": choice.client.pid, "client_birth": choice.client.birth}
    server = {"server_pid": choice.server.pid, "server_birth": choice.server.birth}
    return {**client, **server, "configuration": choice.configuration, "sandbox": choice.sandbox}


@dataclass(frozen=True)
class KeptForward:
    """A port of a sandbox and the local port that leads to it; 0 where it is closed."""

    sandbox: str
    port: int
    local_port: int = 0


class ForwardRows(Rows[KeptForward]):
    """The rows of one configuration."""

    name, or_in_memory = "forwards", True

    def __init__(self, database: Database, configuration: str) -> None:
        super().__init__(database)
        self._configuration = configuration

    def note(self, forward: KeptForward) -> None:
        """Record that it is open, or closed."""
        values = {"configuration": self._configuration, "sandbox": forward.sandbox, "port": forward.port}
        if forward.local_port:
            self._change("put", **values, local_port=forward.local_port, opened=time.time())
        else:
            self._change("remove", **values)

    def all(self) -> tuple[KeptForward, ...]:
        return self._select("of", configuration=self._configuration, since=time.time() - FORWARDS_KEPT_S)

    def _read(self, row: sqlite3.Row) -> KeptForward:
        return KeptForward(row["sandbox"], row["port"], row["local_port"])


@dataclass(frozen=True, kw_only=True)
class KeptSession:
    """A session that keeps its state between calls, as it was used last from here."""

    kind: str
    sandbox: str
    name: str
    as_root: bool = False
    folder: str = ""
    used: float = 0.0


class KeptSessionRows(Rows[KeptSession]):
    """The rows of one kind of session."""

    name, or_in_memory = "kept_sessions", True

    def __init__(self, database: Database, kind: str) -> None:
        super().__init__(database)
        self._kind = kind

    def note(self, session: KeptSession) -> None:
        """Record that it was used."""
        folder = os.fsencode(session.folder).decode("utf-8", "replace")
        values = {"sandbox": session.sandbox, "name": session.name, "as_root": session.as_root, "folder": folder}
        self._change("note", **values, kind=self._kind, used=session.used)

    def list(self, sandbox: str = "") -> tuple[KeptSession, ...]:
        """List the sessions of one sandbox, or of all; the last used first."""
        return self._select("list", kind=self._kind, sandbox=sandbox)

    def _read(self, row: sqlite3.Row) -> KeptSession:
        values = {name: row[name] for name in ("sandbox", "name", "folder", "used")}
        return KeptSession(kind=self._kind, as_root=bool(row["as_root"]), **values)

    def remove(self, sandbox: str, name: str) -> None:
        """Remove a session that was closed: root's state of the same name, too."""
        self._change("remove", kind=self._kind, sandbox=sandbox, name=name)

    def prune(self, before: float) -> None:
        """Drop those that were not used since."""
        self._change("prune", kind=self._kind, before=before)
