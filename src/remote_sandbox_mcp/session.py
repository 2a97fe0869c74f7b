"""What belongs to one client's conversation with us, and to no other: several may be held by one process."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from .selection import Selection

REMEMBERED_VERSIONS = 1000
# Further calls of the same client wait, so that one that floods us takes nothing from the others; and those of many
# clients that cannot be told apart.
MOST_AT_WORK, MOST_OF_MANY = 32, 128


class Versions:
    """Which version of a file this client has seen last; what it would overwrite unseen is refused."""

    # Whether it may have seen files of which we do not know: another process that served it has died with them.
    are_incomplete = False

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], str] = OrderedDict()

    def get(self, sandbox: str, path: str) -> str | None:
        return self._seen.get((sandbox, path))

    def remember(self, sandbox: str, path: str, version: str) -> None:
        self._seen[sandbox, path] = version
        self._seen.move_to_end((sandbox, path))
        if len(self._seen) > REMEMBERED_VERSIONS:
            self._seen.popitem(last=False)

    def forget(self, sandbox: str, path: str) -> None:
        self._seen.pop((sandbox, path), None)


class InProgress:
    """The calls that are being answered."""

    def __init__(self) -> None:
        self._ends: set[asyncio.Event] = set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """For as long as a call is answered."""
        end = asyncio.Event()
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)
            end.set()

    async def settled(self) -> None:
        """Wait until those have been answered that are being answered now."""
        for end in tuple(self._ends):
            await end.wait()


class Session:
    """One conversation. `folder` is the client's current one, `environ` its variables, by default this process's own.

    `name` tells it from all others, and stays the same where it goes on with another process of ours. One that
    `is_of_many` is no client's own: it is what all clients have in common that come over HTTP, through one front.
    """

    def __init__(
        self,
        selection: Selection | None = None,
        *,
        name: str = "",
        folder: str = "",
        environ: Mapping[str, str] = os.environ,
        is_of_many: bool = False,
    ) -> None:
        self.selection = selection or Selection()
        self.name = name
        self.folder = folder
        self.environ = environ
        self.is_of_many = is_of_many
        self.versions = Versions()
        self.turns = asyncio.Semaphore(MOST_OF_MANY if is_of_many else MOST_AT_WORK)
        self.calls = InProgress()
        # Where what is said in its name is written down; None: where all that is said is.
        self.log: object | None = None
        # Set when this conversation has to be opened anew before anything else is done for it.
        self.moved = asyncio.Event()

    def for_one(self) -> Session:
        """That of one of the many: with the same folder, variables and log, and a selection of its own."""
        own = Session(folder=self.folder, environ=self.environ)
        own.log = self.log
        return own


# The conversation to which the work at hand belongs. Where there is none, as on the command line, all is one.
_current: ContextVar[Session] = ContextVar("session")
_only = Session()


def current() -> Session:
    return _current.get(_only)


def begin(session: Session) -> None:
    """From now on, in this task and in those that it starts, work is that session's."""
    _current.set(session)


def absolute(path: str) -> str:
    """A local path as the client means it: a relative one starts in its current folder."""
    return os.path.normpath(os.path.join(current().folder or os.getcwd(), os.path.expanduser(path)))
