"""One client's session: its folder and variables, the file versions it has read, and the sandbox it has selected."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import subprocess
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import paths
from ..core.client import only_waits
from ..core.errors import BadArgument, ConfigError, UnknownSandbox
from ..local.processes import process

if TYPE_CHECKING:
    from ..local.store.disposables import Owner
    from ..local.store.sessions import SelectedSandbox, SelectionRows


# Programs between a client and the server that it starts. Each start has a new one, so they do not identify the client.
LAUNCHERS = frozenset({"uv", "uvx", "npx", "npm", "pipx", "env"})
# Interpreters: they run a launcher as a script, or a command line as -c.
INTERPRETERS = frozenset({"node", "python", "python3"})
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh", "fish"})
MOST_LAUNCHERS = 8
# Adopt orphaned processes, so they are never the client.
REAPERS = frozenset({"init", "systemd", "launchd", "tini", "dumb-init", "docker-init", "catatonit"})
REMEMBERED_VERSIONS = 1000
# The key of the sandbox created last among the versions; those of files have the name of a sandbox before it.
CREATED = "created"
# After so many refusals of questions of one kind, no more of that kind are asked.
MOST_REFUSALS = 5
# Further calls of the same client wait, so that a flood from one does not starve the others. The second limit is for
# a client that is alone at work, and for many clients that cannot be told apart; the third also counts calls that only
# wait for a far side.
MOST_AT_WORK, MOST_ALONE, MOST_IN_ALL = 25, 128, 200
# A client that makes one call after the other is at work for so long after each: a flood that comes right between two
# of them would be let in whole.
LATELY_S = 0.1


class Selection:
    """One client's selected sandbox, kept as long as this process lives."""

    def __init__(self) -> None:
        self._name = ""

    async def name(self) -> str:
        """The selected sandbox; empty where none was selected, which means the configured default."""
        return self._name

    async def choose(self, name: str) -> None:
        self._name = name


class KeptSelection(Selection):
    """The selection of the client that started this server; it survives a restart of the server.

    A server takes over what servers of the same client and configuration had selected that have ended. Where these
    disagree, we cannot tell which of them this one replaces, so none counts until the client selects again.
    """

    def __init__(self, configuration: str, server: int = 0) -> None:
        """`server` is the process that the client started; by default this one."""
        super().__init__()
        self._configuration = configuration
        self._server = server or os.getpid()
        # Read before the parent can end: then another process would be the parent.
        self._birth = process.started(self._server)
        self._parent = process_of(server)[1] if server else os.getppid()
        self._turn = asyncio.Lock()
        self._doubt = ""
        self._is_recalled = False

    async def name(self) -> str:
        """Raises UnknownSandbox where predecessors disagree, ConfigError where it cannot be read."""
        async with self._turn:
            if not self._is_recalled:
                await asyncio.to_thread(self._recall)
                self._is_recalled = True
        if self._doubt:
            raise UnknownSandbox(self._doubt)
        return self._name

    async def choose(self, name: str) -> None:
        async with self._turn:
            # Agents often select what is selected already; that is stored already.
            if self._is_recalled and name and name == self._name:
                return
            if choice := self._choice(name):
                await asyncio.to_thread(self._put, choice)
            self._name, self._doubt, self._is_recalled = name, "", True

    @property
    def server(self) -> tuple[int, str]:
        """Pid and birth of the process that the client started."""
        return self._server, self._birth

    def release(self) -> None:
        """Release the selection at the end: the client's next server need not wait until this process is gone."""
        if self._is_recalled and (mine := self._choice("")):
            with contextlib.suppress(ConfigError), self._rows() as rows:
                if rows.exists():
                    rows.release(mine)

    def _put(self, choice: SelectedSandbox) -> None:
        with self._rows() as rows:
            rows.put(choice)

    def _recall(self) -> None:
        with self._rows() as rows:
            if not rows.exists() or not (mine := self._choice("")):
                return
            found = rows.inherit(mine, lambda it: process.is_alive(it.pid, it.birth))
        self._name = next(iter(found)) if len(found) == 1 else ""
        if len(found) > 1:
            names = " and ".join(sorted(name or "none" for name in found))
            self._doubt = (
                f"several servers of this client have ended, and they had selected different sandboxes ({names}); "
                "select one with select_sandbox, or name sandbox_name in each call"
            )

    def _choice(self, name: str) -> SelectedSandbox | None:
        from ..local.store.disposables import Owner
        from ..local.store.sessions import SelectedSandbox

        server = Owner(self._server, self._birth)
        return SelectedSandbox(self._client, self._configuration, server, name) if self._client else None

    @contextmanager
    def _rows(self) -> Iterator[SelectionRows]:
        """The rows, for one use: an open database would cost each session descriptors for as long as it lasts."""
        from ..local.store.database import STATE_FILE, Database
        from ..local.store.sessions import SelectionRows

        database = Database(paths.state_folder() / STATE_FILE)
        try:
            yield SelectionRows(database)
        finally:
            database.close()

    @functools.cached_property
    def _client(self) -> Owner | None:
        return client_of(self._parent)


def client_of(parent: int) -> Owner | None:
    """The client of a server whose parent is `parent`; None where that cannot be determined."""
    from ..local.store.disposables import Owner

    pid = parent
    for _ in range(MOST_LAUNCHERS):
        words, above = process_of(pid)
        if not is_launcher(words):
            break
        pid = above
    birth = process.started(pid)
    is_client = pid > 0 and bool(birth) and _program(words) not in REAPERS
    return Owner(pid, birth) if is_client else None


def is_launcher(words: list[str]) -> bool:
    """Whether a command line only starts another program and ends with it."""
    program, first = _program(words), words[1] if len(words) > 1 else ""
    if program in SHELLS:
        # Not an interactive shell or a shell script: that may be the client itself.
        return first.startswith("-") and first.endswith("c")
    if program.rstrip("0123456789.") in INTERPRETERS:
        return os.path.basename(first).partition("-cli")[0].removesuffix(".js") in LAUNCHERS
    return program in LAUNCHERS


def process_of(pid: int) -> tuple[list[str], int]:
    """Command line and parent of a process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return words, int(fields[1])
    except (OSError, IndexError, ValueError):
        return ([], 0) if os.path.exists("/proc/self/stat") else _asked(pid)


def _asked(pid: int) -> tuple[list[str], int]:
    """Ask ps for a process's words and parent, where there is no /proc."""
    from ..local.processes.programs import find_helper

    words = [find_helper("ps") or "/bin/ps", "-o", "ppid=,args=", "-p", str(pid)]
    asked = subprocess.run(words, env={}, capture_output=True, text=True, check=False)
    above, *words = asked.stdout.split() or ["0"]
    return words, int(above)


def _program(words: list[str]) -> str:
    # npm writes its whole command line into the first word.
    return os.path.basename((words[0] if words else "").partition(" ")[0]).lstrip("-")


class Versions:
    """The last version of each file that this client has read; overwriting a newer one is refused."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], str] = OrderedDict()
        # Called with every change, so that the versions outlive this process: sandbox, path, version or None.
        self.noted: Callable[[str, str, str | None], None] | None = None

    def restore(self, seen: Iterable[Sequence[str]]) -> None:
        """Take over what another process has noted that served the client before."""
        self._seen.update({(sandbox, path): version for sandbox, path, version in seen})

    def get(self, sandbox: str, path: str) -> str | None:
        return self._seen.get((sandbox, path))

    def remember(self, sandbox: str, path: str, version: str) -> None:
        self._seen[sandbox, path] = version
        self._seen.move_to_end((sandbox, path))
        if len(self._seen) > REMEMBERED_VERSIONS:
            self._seen.popitem(last=False)
        if self.noted:
            self.noted(sandbox, path, version)

    def forget(self, sandbox: str, path: str) -> None:
        if self._seen.pop((sandbox, path), None) is not None and self.noted:
            self.noted(sandbox, path, None)


class Refusals:
    """The questions that this client's user has refused, by their kind: none of them is asked again."""

    def __init__(self) -> None:
        self._refused: defaultdict[str, set[str]] = defaultdict(set)
        # Of one kind, one question is open at a time: the answer may make the next one needless.
        self.turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def note(self, kind: str, key: str) -> None:
        self._refused[kind].add(key)

    def hold(self, kind: str, key: str) -> bool:
        """Whether the question is not asked: it was refused, or so many others of its kind were."""
        return key in self._refused[kind] or len(self._refused[kind]) >= MOST_REFUSALS


class InProgress:
    """Calls that are being answered."""

    def __init__(self) -> None:
        self._ends: set[asyncio.Event] = set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Use around the answering of one call."""
        end = asyncio.Event()
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)
            end.set()

    async def settled(self) -> None:
        """Wait for the calls that are being answered now."""
        for end in tuple(self._ends):
            await end.wait()

    async def idle(self) -> None:
        """Wait until no call is being answered."""
        while self._ends:
            await self.settled()


class Turns(AbstractAsyncContextManager[None]):
    """Decides when a call of one client begins: entered around each call, in the order in which they came.

    A client has at most `most` calls at work beside others, and up to MOST_ALONE while no other is, or was lately.
    A call that only waits for a far side steps aside, and is not at work any more.
    """

    def __init__(self, most: int, busy: set[Turns] | None = None) -> None:
        """`busy`: those that have calls at work, of all clients; by default of this process."""
        self._most = most
        self._busy = _BUSY if busy is None else busy
        self._at_work = self._aside = self._begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def _has_room(self) -> bool:
        most = self._most if self._busy - {self} else MOST_ALONE
        return self._at_work < most and self._at_work + self._aside < MOST_IN_ALL

    async def __aenter__(self) -> None:
        place = _Place()
        _place.set(place)
        only_waits.set(functools.partial(self._step_aside, place))
        if not self._waiting and self._has_room:
            self._begin()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._end()
            raise

    async def __aexit__(self, *_: object) -> None:
        place = _place.get()
        if place.is_at_work:
            place.is_at_work = False
            self._end()
        else:
            self._aside -= 1
            self._admit()

    def _step_aside(self, place: _Place) -> None:
        if place.is_at_work:
            place.is_at_work = False
            self._aside += 1
            self._end()
            self._rest(self._begun)

    def _begin(self) -> None:
        self._at_work += 1
        self._begun += 1
        self._busy.add(self)

    def _end(self) -> None:
        self._at_work -= 1
        self._admit()
        if not self._at_work:
            asyncio.get_running_loop().call_later(LATELY_S, self._rest, self._begun)

    def _rest(self, begun: int) -> None:
        """Let the others have all, unless a call has begun meanwhile."""
        if self._begun == begun and not self._at_work:
            self._busy.discard(self)
            for other in tuple(self._busy):
                other._admit()

    def _admit(self) -> None:
        """Let those begin that wait and have room now."""
        while self._waiting and self._has_room:
            turn = self._waiting.popleft()
            if not turn.done():
                self._begin()
                turn.set_result(None)


@dataclass
class _Place:
    """The place of one call: at work or aside."""

    is_at_work: bool = True


_BUSY: set[Turns] = set()
_place: ContextVar[_Place] = ContextVar("place")


class Session:
    """One conversation. `folder` is the client's current one, `environ` its variables, by default this process's own.

    `name` identifies it, also when it moves to another process of ours. A session that
    `is_of_many` holds what all HTTP clients of one front have in common; it is no client's own.
    """

    def __init__(
        self,
        selection: Selection | None = None,
        *,
        name: str = "",
        folder: str = "",
        environ: Mapping[str, str] = os.environ,
        is_of_many: bool = False,
        is_over_http: bool = False,
    ) -> None:
        self.selection = selection or Selection()
        self.name = name or os.urandom(6).hex()
        self.folder = folder
        self.environ = environ
        self.is_of_many = is_of_many
        # Its folder is then that of the server, which its clients did not start.
        self.is_over_http = is_over_http or is_of_many
        # The folders that the client works in, as it says (MCP roots).
        self.roots: tuple[str, ...] = ()
        self.are_roots_asked = False
        # The sandbox that a call without a name meant first: a configuration that changes later does not change it.
        self.default = ""
        self.versions = Versions()
        self.refusals = Refusals()
        self.turns = Turns(MOST_ALONE if is_of_many else MOST_AT_WORK)
        self.calls = InProgress()
        # Where its log lines go; None: to the process's log.
        self.log: object | None = None
        # The client as core/client.py knows it, once it has made a call.
        self.client = ""
        # Of a client that can be told of its jobs at any time: what it has in common with its next sessions, and the
        # address of this one (its name, and pid and birth of the process that the client started).
        self.home = self.seat = ""
        # Whether what is written to the client now arrives.
        self.is_served: Callable[[], bool] = lambda: True
        # Set when the client has to open the conversation again before anything else is done for it.
        self.moved = asyncio.Event()

    @property
    def created(self) -> str:
        """The disposable sandbox that this client has created last; empty once it has deleted that.

        Kept with the versions, which go along when the session moves to another process.
        """
        return self.versions.get("", CREATED) or ""

    def note_created(self, sandbox: str) -> None:
        self.versions.remember("", CREATED, sandbox)

    def note_deleted(self, sandbox: str) -> None:
        if self.created == sandbox:
            self.versions.forget("", CREATED)

    @property
    def start_folder(self) -> str:
        """Folder in which relative local paths start; empty for a client over HTTP that has not said where it works."""
        if self.is_over_http:
            return next(iter(self.roots), "")
        return self.folder or os.getcwd()

    def for_one(self) -> Session:
        """A session for one of many HTTP clients: same folder, variables and log, its own selection."""
        own = Session(folder=self.folder, environ=self.environ, is_over_http=True)
        own.log = self.log
        return own


# The session that the current task works for. On the command line there is none, and one default serves all.
_current: ContextVar[Session] = ContextVar("session")
_only = Session()


def current() -> Session:
    return _current.get(_only)


def begin(session: Session) -> None:
    """Make this the current session, in this task and in those that it starts."""
    _current.set(session)


def client_folder() -> str:
    """The client's current folder, or this process's own where it serves one client alone.

    Empty for a client over HTTP that has not said where it works.
    """
    try:
        return current().start_folder
    except OSError:
        # It was removed.
        return "/"


def absolute(path: str) -> str:
    """A local path as the client means it: a relative one starts in the client's current folder.

    Raises BadArgument over HTTP, where that is not known unless the client tells it (MCP roots).
    """
    start, whole = current().start_folder, os.path.expanduser(path)
    if not start and not os.path.isabs(whole):
        raise BadArgument(
            f"{path[:200]} is relative, and your client has not said where it works (MCP roots); give the whole path"
        )
    return os.path.normpath(os.path.join(start, whole))


def may_tell(session: Session, home: str, seat: str) -> bool:
    """Whether a session is the one that is told of a job: it began the watch, or follows one that is gone."""
    if not home or session.home != home:
        return False
    _, pid, birth = seat.split(" ", 2)
    return seat == session.seat or not process.is_alive(int(pid), birth)
