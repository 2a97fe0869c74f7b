"""One SQLite file used by several processes and threads: opened, kept private, migrated; its named SQL."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Generic, TypeVar

from ...core.errors import ConfigError
from . import trouble
from .keeping import Keeper, offer_functions
from .library import sqlite3
from .mark import STATE_FILE as STATE_FILE
from .original import reserve_numbers

T = TypeVar("T")

BUSY_S = 5.0
_HEADING = "-- name: "


class Database:
    """A database that is opened on first use; any thread may use it. Every failure is raised as ConfigError.

    Where the file cannot be used, those that read or write `or_in_memory` get a database in the memory of this process
    in its place; all others fail, because others rely on what they write.
    """

    def __init__(self, file: Path, steps: str = "migrations") -> None:
        self.file = file
        self._steps = steps
        self._turn = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._waits_s = BUSY_S

    @contextmanager
    def reading(self, *, or_in_memory: bool = False) -> Iterator[sqlite3.Connection]:
        """The connection, locked for this thread."""
        outage = trouble.outage_of(self.file) if or_in_memory else None
        if or_in_memory and not outage:
            try:
                with self._turn, self._explained():
                    self._ready()
            except trouble.StateError as problem:
                outage = trouble.begins(self.file, problem)
        if outage:
            with self._in_memory(outage) as connection:
                yield connection
            return
        with self._turn, self._explained():
            yield self._ready()

    @contextmanager
    def writing(self, *, or_in_memory: bool = False) -> Iterator[sqlite3.Connection]:
        """The connection in a transaction; an exception rolls it back."""
        with self._turn:
            outage = trouble.outage_of(self.file)
            if not or_in_memory or not outage or time.monotonic() > outage.retry_at:
                outage = self._begin(is_needed=not or_in_memory)
            if outage is None:
                with self._explained():
                    assert self._connection is not None
                    with _ended(self._connection):
                        yield self._connection
                trouble.ends(self.file)
                return
        with self._in_memory(outage) as connection, _transaction(connection):
            yield connection

    def _begin(self, *, is_needed: bool) -> trouble.Outage | None:
        """Begin a transaction in the file; where that fails and is not needed, returns the outage."""
        try:
            with self._explained():
                if not is_needed and trouble.is_full(self.file):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._ready().execute("BEGIN IMMEDIATE")
        except trouble.StateError as problem:
            if is_needed:
                raise
            return trouble.outage_of(self.file) or trouble.begins(self.file, problem)
        return None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise errors of SQLite and of the disk in a sentence, and note that the file cannot be used."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.IntegrityError | sqlite3.InterfaceError):
                raise ConfigError(f"unable to use {self.file}: {error}") from error
            problem = trouble.explain(self.file, error, self._waits_s)
            trouble.begins(self.file, problem)
            raise problem from error

    def _ready(self) -> sqlite3.Connection:
        """The open connection. A file that was locked a moment ago is not waited for once more."""
        outage = trouble.outage_of(self.file)
        self._waits_s = 0.0 if outage and outage.problem.reason == trouble.LOCKED else BUSY_S
        self._connection = self._connection or self._open()
        self._connection.execute(f"PRAGMA busy_timeout = {self._waits_s * 1000:.0f}")
        return self._connection

    @contextmanager
    def _in_memory(self, outage: trouble.Outage) -> Iterator[sqlite3.Connection]:
        with outage.turn:
            if outage.memory is None:
                outage.memory = self._copied()
            yield outage.memory

    def _copied(self) -> sqlite3.Connection:
        """A database in memory with what can be read of the file."""
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        with suppress(sqlite3.Error, OSError):
            if 0 < self.file.stat().st_size < trouble.LARGEST_COPY:
                with closing(sqlite3.connect(f"{self.file.as_uri()}?mode=ro", uri=True, timeout=0)) as source:
                    source.backup(memory)
        try:
            self._prepare(memory)
        except sqlite3.Error:
            memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._prepare(memory)
        return memory

    def version(self) -> int:
        """Return a number that changes with each change to the file by another process, or another part of this one."""
        with self.reading() as connection:
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        with self._turn:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def discard(self) -> None:
        """Remove the file with all that is in it; the next use makes a new one."""
        self.close()
        with one_at_a_time(self.file.with_suffix(".lock")):
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self.file}{suffix}").unlink(missing_ok=True)

    def _open(self) -> sqlite3.Connection:
        with one_at_a_time(self.file.with_suffix(".lock")):
            _make_private(self.file)
            connection = sqlite3.connect(
                self.file, timeout=self._waits_s, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.row_factory = sqlite3.Row
        # With a write-ahead log readers and the writer do not wait for each other, nor a commit for the disk.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        steps, before = migrations(self._steps), _version(connection)
        if before != len(steps):
            with _transaction(connection):
                self._migrate(connection)
            if before:
                _forget_deleted(connection)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        steps, version = migrations(self._steps), _version(connection)
        if version > len(steps):
            raise ConfigError(
                f"{self.file} was written by a newer remote-sandbox-mcp (its version is {version}, this one knows "
                f"{len(steps)}); update remote-sandbox-mcp, or set REMOTE_SANDBOX_MCP_HOME to another folder"
            )
        offer_functions(connection, self.file)
        for script in steps[version:]:
            for statement in split(script):
                connection.execute(statement)
        if not version and self.file.name == STATE_FILE:
            reserve_numbers(connection, self.file.parent)
        connection.execute(f"PRAGMA user_version = {len(steps)}")


class Rows(Generic[T]):
    """Rows that the statements of one file read and change, each in one short transaction. Raises ConfigError.

    Any number of processes may use them at once.
    """

    # The statements are those of NAME.sql.
    name = ""
    or_in_memory = False

    def __init__(self, database: Database, keeper: Keeper | None = None) -> None:
        self.database = database
        self._keeper = keeper or Keeper()

    def exists(self) -> bool:
        """Whether there is a database; makes none."""
        return self.database.file.exists()

    def _read(self, row: sqlite3.Row) -> T:
        raise NotImplementedError

    def _select(self, statement: str, /, **values: object) -> tuple[T, ...]:
        return tuple(map(self._read, self._found(statement, **values)))

    def _first(self, statement: str, /, **values: object) -> T | None:
        return next(map(self._read, self._found(statement, **values)), None)

    def _execute(self, connection: sqlite3.Connection, statement: str, /, **values: object) -> sqlite3.Cursor:
        """Run a statement as a part of a transaction."""
        return connection.execute(statements(self.name)[statement], values)

    def _change(self, statement: str, /, **values: object) -> bool:
        """Run a statement; returns whether there was a row to change."""
        with self.database.writing(or_in_memory=self.or_in_memory) as connection:
            return self._execute(connection, statement, **values).rowcount > 0

    def _found(self, statement: str, /, **values: object) -> list[sqlite3.Row]:
        with self.database.reading(or_in_memory=self.or_in_memory) as connection:
            return self._execute(connection, statement, **values).fetchall()


def _forget_deleted(connection: sqlite3.Connection) -> None:
    """Remove what a migration changed or deleted from the file itself, unless another process is just reading it."""
    with suppress(sqlite3.OperationalError):
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    with _ended(connection):
        yield


@contextmanager
def _ended(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end of a transaction; an exception rolls it back."""
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


@contextmanager
def one_at_a_time(file: Path) -> Iterator[None]:
    """Only one process at a time opens and prepares the file: SQLite does not wait for a change of journal mode."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _make_private(file: Path) -> None:
    """Readable by its owner only; SQLite gives the files beside it the same mode."""
    try:
        # Opened only if it does not exist: closing a second descriptor would drop this process's locks on the file.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        os.chmod(file, 0o600)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@functools.cache
def statements(name: str) -> Mapping[str, str]:
    """The statements of NAME.sql, each under the name in the comment before it."""
    text = resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    pieces = (piece.split("\n", 1) for piece in text.split(_HEADING)[1:])
    return {heading.strip(): statement.strip() for heading, statement in pieces}


@functools.cache
def migrations(folder: str) -> Sequence[str]:
    """The scripts of a folder in the order of their numbers: the first makes version 1 of a database, and so on."""
    scripts = (file for file in resources.files(__package__).joinpath(folder).iterdir() if file.name.endswith(".sql"))
    return [file.read_text(encoding="utf-8") for file in sorted(scripts, key=lambda file: file.name)]


def split(script: str) -> Iterator[str]:
    """The statements of a script one by one; a trigger, which holds several, stays whole."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
