"""Maps names to open sandboxes: each is opened on first use, shared by all callers, and closed at the end."""

from __future__ import annotations

import asyncio
import difflib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.address import Address, contradiction, not_a_sandbox, plain_name, read_address
from ..core.commands.command import Environment
from ..core.errors import ConfigError, UnknownSandbox
from ..core.sandboxes.machine import Engine
from ..core.sandboxes.sandbox import Description, Sandbox
from ..core.sandboxes.slurm import Cluster
from ..local.asking import Questions

if TYPE_CHECKING:
    from ..backends.slurm.queue import ClusterQueue

log = logging.getLogger(__name__)

# How long a failed early opening is kept as the answer for the call that it was made for.
PREOPEN_S = 5.0


def unforeseen(problem: BaseException, doing: str) -> str:
    """The sentence for an unexpected exception, which is logged in full; a cancellation is raised again."""
    if not isinstance(problem, Exception):
        raise problem
    log.error("%s failed", doing, exc_info=problem)
    return f"{doing} failed in a way that was not foreseen ({type(problem).__name__}); the log says more"


async def _offered() -> str:
    return ""


def _nothing() -> None:
    """For a sandbox that needs nothing more."""


@dataclass(eq=False)
class Member:
    """One sandbox that can be opened.

    `why_not` returns why it is not offered here, or nothing. `prepare` loads what opening it needs. `questions` are
    those that it asks while it is opened, if it can ask any. `engine` makes disposable sandboxes on it; `slurm`:
    it is the login node of a cluster.
    """

    name: str
    describe: Callable[[], Description]
    opener: Callable[[], Awaitable[Sandbox]]
    why_not: Callable[[], Awaitable[str]] = _offered
    prepare: Callable[[], None] = _nothing
    questions: Questions | None = None
    engine: Engine | None = None
    slurm: Cluster | None = None
    # How commands are started on it, as its table says.
    environment: Environment = field(default_factory=Environment)
    # The queue of a cluster, for all apps that share this member; made with its first use.
    queue: ClusterQueue | None = None
    # Offered with many others by a pattern: it is opened only for a call that names it.
    is_by_pattern: bool = False
    sandbox: Sandbox | None = None
    # Until this monotonic time its load need not be measured again.
    rests_until: float = 0.0
    opening: asyncio.Task[Sandbox] | None = None
    # Until this monotonic time, a failed early opening is the answer to the next caller.
    preopened_until: float = 0.0

    @property
    def is_connected(self) -> bool:
        """Whether a live connection exists now; sends nothing."""
        return self.sandbox is not None and self.sandbox.is_open

    @property
    def may_open_unasked(self) -> bool:
        """Whether a call that looks at all sandboxes may open this one."""
        return not self.is_by_pattern or self.sandbox is not None

    def preopen(self) -> None:
        """Start to open it for a call that is still being read. If that fails, the call gets this failure, too."""
        if self.sandbox is None and self.opening is None:
            if self.questions:
                self.questions.is_awaited = True
            self.opening = asyncio.ensure_future(self._open())
            self.opening.add_done_callback(self._note_preopened)
            self.preopened_until = math.inf

    def _note_preopened(self, opening: asyncio.Task[Sandbox]) -> None:
        # The call may have been cancelled; then the failure is never asked for, and must be forgotten in time.
        if not opening.cancelled() and opening.exception() and self.preopened_until:
            self.preopened_until = time.monotonic() + PREOPEN_S

    async def open(self) -> Sandbox:
        """The open sandbox; callers that come while it is being opened share the attempt. Raises ConnectError."""
        # Where it has to be opened again by a login that needs a person, that one can be asked only at this point.
        needs_person = self.questions is not None and self.questions.need_person
        if self.sandbox is not None and (not needs_person or self.sandbox.is_open):
            return self.sandbox
        is_preopened, self.preopened_until = time.monotonic() < self.preopened_until, 0.0
        if self.opening is None or (self.opening.done() and not is_preopened):
            self.opening = asyncio.ensure_future(self._open())
            # Its caller may have left to ask a person, and may never come back for the result.
            self.opening.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
        return await (self.questions.attend(self.opening) if self.questions else asyncio.shield(self.opening))

    async def _open(self) -> Sandbox:
        if self.sandbox is None:
            self.sandbox = await self.opener()
        else:
            await self.sandbox.open()
        return self.sandbox

    async def close(self) -> None:
        if self.opening is not None and not self.opening.done():
            self.opening.cancel()
        if self.sandbox is not None:
            await self.sandbox.close()


class Fleet:
    """All configured sandboxes, and disposable ones while they live."""

    def __init__(
        self, members: Iterable[Member], default: str = "", refusal: str = "", *, are_lent: bool = False
    ) -> None:
        """`are_lent`: the members are shared with other fleets, so this one does not close them."""
        self._are_lent = are_lent
        self._members: dict[str, Member] = {}
        self._configured: dict[str, Member] = {}
        # Further names of members.
        self._aliases: dict[str, str] = {}
        # Why a call that names no sandbox fails: one was configured, but cannot be used.
        self.refusal = ""
        # The sandbox for calls that name none, unless the client has selected another; empty where nothing is
        # configured.
        self.default = ""
        self.configure(members, default, refusal)
        # Called for an unknown name: may add a member, or raise UnknownSandbox with what became of it.
        self.find: Callable[[str], Member | None] = lambda name: None
        # The same for hosts that the operator allows to be found by their names, and what an error says of them.
        self.find_host: Callable[[str], Member | None] = lambda name: None
        self.also_found = ""

    def configure(self, members: Iterable[Member], default: str = "", refusal: str = "") -> list[Member]:
        """Replace the configured sandboxes. Returns those that were dropped; they are not closed."""
        fresh = {member.name: member for member in members}
        dropped = [member for name, member in self._configured.items() if fresh.get(name) is not member]
        others = {name: member for name, member in self._members.items() if name not in self._configured}
        self._members, self._configured = {**fresh, **others}, fresh
        self._aliases = {alias: name for alias, name in self._aliases.items() if alias not in fresh}
        self.refusal = refusal
        self.default = default if default in fresh or refusal else next(iter(fresh), "")
        return dropped

    @property
    def with_engines(self) -> list[Member]:
        """The configured members on which an engine may make disposable sandboxes."""
        return [member for member in self._configured.values() if member.engine]

    @property
    def clusters(self) -> list[Member]:
        """The configured members that are login nodes of clusters."""
        return [member for member in self._configured.values() if member.slurm]

    @property
    def names(self) -> Collection[str]:
        return {**self._members, **self._aliases}.keys()

    @property
    def configured_names(self) -> Collection[str]:
        """Names that the operator's configuration gives, whether or not they can be opened."""
        return self._configured.keys()

    def add(self, member: Member, alias: str = "") -> None:
        """Add a member under its name and, if given, an alias."""
        self._members[member.name] = member
        if alias and alias not in self._members:
            self._aliases[alias] = member.name

    def remove(self, name: str) -> Member | None:
        """Remove a member without closing it."""
        member = self._members.pop(self._aliases.get(name, name), None)
        if member is not None:
            self._aliases = {alias: names for alias, names in self._aliases.items() if names != member.name}
        return member

    def knows(self, name: str) -> bool:
        """Whether a sandbox has that name. Raises UnknownSandbox for a disposable one that has ended."""
        return bool(name) and self._find(name) is not None

    def _find(self, name: str) -> Member | None:
        names = self._members.get(self._aliases.get(name, name)) or self.find(name)
        return names or self._in_other_letters(name) or self._members.get(plain_name(name)) or self.find_host(name)

    def _in_other_letters(self, name: str) -> Member | None:
        """The one sandbox whose name differs only in capital letters."""
        same = {names for names in self.names if names.casefold() == name.casefold()}
        found = {self._aliases.get(names, names) for names in same}
        return self._members.get(found.pop()) if len(found) == 1 else None

    def member(self, name: str = "") -> Member:
        """The named member, or the default. Raises UnknownSandbox with the names that exist, ConfigError."""
        wanted = name or self.default
        if not wanted and self.refusal:
            raise ConfigError(self.refusal)
        if not wanted:
            raise UnknownSandbox(
                "no sandbox is configured; set REMOTE_HOST or REMOTE_SANDBOX_LIST, or write a config.toml "
                "(remote-sandbox-mcp doctor shows where)"
            )
        found = self._find(wanted)
        if found is None:
            near = difflib.get_close_matches(
                wanted.casefold(), by_letters := {it.casefold(): it for it in self.names}, 1
            )
            hint = f"did you mean {by_letters[near[0]]}? " if near else ""
            names = ", ".join(filter(None, (*self.names, self.also_found)))
            problem = UnknownSandbox(f"no sandbox is named {wanted[:80]!r}; {hint}there are: {names}")
            problem.available = tuple(self.names)
            raise problem
        return found

    def address(self, path: str, sandbox: str = "") -> Address:
        """Resolve a path of a sandbox, which `gpu2:path` names itself; else it is on `sandbox`, or on the default.

        Raises UnknownSandbox, and BadArgument where both are named and differ.
        """
        named = self.address_in(path)
        if named is None:
            return Address(self.member(sandbox).name, path)
        if sandbox and self.member(sandbox).name != named.sandbox:
            raise contradiction(path, sandbox)
        return named

    def address_in(self, path: str) -> Address | None:
        """Resolve a path that names its sandbox; None for any other. Raises UnknownSandbox."""
        named = read_address(path)
        if not named.sandbox:
            return None
        try:
            return Address(self.member(named.sandbox).name, named.path)
        except UnknownSandbox as problem:
            raise not_a_sandbox(problem, path) from None

    async def get(self, name: str = "") -> Sandbox:
        return await self.member(name).open()

    def distinct(self, names: Iterable[str]) -> list[Member]:
        """The named members, each once, in this order. Raises UnknownSandbox."""
        return list({member.name: member for member in map(self.member, names)}.values())

    async def configured(self) -> list[Member]:
        """The configured members that can be used here; disposable ones are not among them."""
        return [member for member in await self.offered() if self._configured.get(member.name) is member]

    async def offered(self) -> list[Member]:
        """The members that can be used here, in the order of the configuration."""
        members = list(self._members.values())
        reasons = await asyncio.gather(*(member.why_not() for member in members), return_exceptions=True)
        for member, reason in zip(members, reasons, strict=True):
            if isinstance(reason, BaseException):
                unforeseen(reason, f"asking whether {member.name} can be used")
        return [member for member, reason in zip(members, reasons, strict=True) if not reason]

    async def close(self) -> None:
        lent = set(map(id, self._configured.values())) if self._are_lent else set()
        own = [member for member in self._members.values() if id(member) not in lent]
        await asyncio.gather(*(member.close() for member in own), return_exceptions=True)
