"""The verbs on shells that keep their state: run a command in one, list them, close one."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from ...config import paths
from ...core.commands import shell_session
from ...core.commands.command import Command, Completed, Running
from ...core.commands.session_handle import SHELL, SessionHandle, SessionSeen
from ...core.commands.shell_session import ShellSession, StateReport
from ...core.errors import BadArgument, LostContact, NotStarted, SandboxError, UnknownSandbox
from ...core.progress import Progress
from ...core.sandboxes.sandbox import Sandbox
from ...far.program import read_program
from ...local.store.sessions import KeptSession, KeptSessionRows
from ..fleet import Fleet, Member
from ..jobs.records import JobRegistry

# A session that was not used for so long is dropped with the next use of another one there.
KEPT_S = 7 * 86400.0
# How long a command waits for an earlier one of its session, unless its own time limit is shorter. It gives up so much
# earlier, so that the caller reads that the session is in use, and not that the time limit was reached.
WAIT_S, MARGIN_S = 60.0, 2.0
# Of our own short scripts: their time limit, and how much of their output is read.
ASK_S, ASK_KEEP = 60.0, 20_000

Key = tuple[str, str, bool]


class ShellService:
    """The sessions of exec_bash on all sandboxes. Their state is on the machine; rows say which were used from here."""

    def __init__(self, fleet: Fleet, registry: JobRegistry) -> None:
        self._fleet = fleet
        self._registry = registry
        self._turns: dict[Key, asyncio.Lock] = {}
        self._swept: set[str] = set()

    async def run(
        self,
        member: Member,
        sandbox: Sandbox,
        command: Command,
        name: str,
        patience_s: float | None,
        progress: Progress,
    ) -> tuple[Completed | Running, str]:
        """Run a command in a session; returns what came of it, and of the session's state. Raises as Sandbox.run."""
        begun = time.monotonic()
        limit_s = min(command.timeout_s, patience_s or WAIT_S)
        async with self._turn((member.name, name, command.as_root), limit_s):
            waited_s = time.monotonic() - begun
            wait_s = max(1.0, limit_s - MARGIN_S - waited_s)
            session, was_used = self._session(member, name), await self._was_used(member, name, command.as_root)
            wrapped = replace(command, script=shell_session.wrap(_pieces(), session, command, wait_s))
            left_s = None if patience_s is None else max(1.0, patience_s - waited_s)
            seen = await sandbox.run(wrapped, patience_s=left_s, progress=progress)
            if isinstance(seen, Running):
                return seen, shell_session.IN_USE
            if why := shell_session.refusal_of(seen, name, member.name):
                raise NotStarted(why)
            return seen, await self._state(member, sandbox, session, seen, command, was_used)

    async def _state(
        self, member: Member, sandbox: Sandbox, session: ShellSession, seen: Completed, command: Command, was_used: bool
    ) -> str:
        """Describe the session's state, as the machine has recorded it."""
        sweeps = member.name not in self._swept
        try:
            printed = await _ask(
                sandbox, shell_session.state_script(_pieces(), session, seen.run_id, sweeps), command.as_root
            )
        except SandboxError as problem:
            return f"not known: {problem}"
        self._swept.add(member.name)
        report = shell_session.read_report(printed, seen.run_id)
        if report and (report.is_kept or report.was_there):
            await self._note(member, session, command.as_root, report)
        return shell_session.state_text(report, seen, was_used)

    async def list(self, sandbox: str) -> Sequence[SessionSeen]:
        """List the sessions that were used from here, on sandboxes that can be used; no machine is asked."""
        if not self._registry.exists():
            return ()
        name = self._fleet.member(sandbox).name if sandbox else ""
        await asyncio.to_thread(self._rows.prune, time.time() - KEPT_S)
        rows = await asyncio.to_thread(self._rows.list, name)
        return [self._seen(row) for row in rows if self._can_be_used(row.sandbox)]

    def _seen(self, row: KeptSession) -> SessionSeen:
        turn = self._turns.get((row.sandbox, row.name, row.as_root))
        return SessionSeen(
            handle=SessionHandle(SHELL, row.name),
            sandbox=row.sandbox,
            status="running" if turn and turn.locked() else "idle",
            used=row.used,
            folder=row.folder,
            as_root=row.as_root,
        )

    def _can_be_used(self, sandbox: str) -> bool:
        with suppress(UnknownSandbox):
            return self._fleet.knows(sandbox)
        return False

    async def close(self, name: str, sandbox: str) -> SessionSeen:
        """Drop a session's state; root's of the same name, too. Raises BadArgument, NotStarted if it is in use."""
        member = self._fleet.member(sandbox)
        rows = [row for row in await asyncio.to_thread(self._rows.list, member.name) if row.name == name]
        opened, session = await member.open(), self._session(member, name)
        ended = [
            await self._closed(member, opened, session, as_root)
            for as_root in sorted({False, *(row.as_root for row in rows)})
        ]
        if not rows and not any(ended):
            raise BadArgument(
                f"there is no session {name} on {member.name}; list_background_tasks shows those there are"
            )
        await asyncio.to_thread(self._rows.remove, member.name, name)
        return SessionSeen(handle=SessionHandle(SHELL, name), sandbox=member.name)

    async def _closed(self, member: Member, sandbox: Sandbox, session: ShellSession, as_root: bool) -> bool:
        command = _question("", as_root)
        script = shell_session.close(_pieces(), session, command.run_id)
        done = await _run(sandbox, replace(command, script=script))
        if why := shell_session.refusal_of(done, session.name, member.name):
            raise NotStarted(why.replace("nothing was run", "nothing was closed", 1))
        return done.stdout.head == b"closed\n"

    @asynccontextmanager
    async def _turn(self, key: Key, limit_s: float) -> AsyncIterator[None]:
        """One command of a session at a time; the machine keeps out those of other processes. Raises NotStarted."""
        lock = self._turns.setdefault(key, asyncio.Lock())
        taking = asyncio.ensure_future(lock.acquire())
        try:
            await asyncio.wait((taking,), timeout=limit_s)
            if not taking.done():
                why = f"the session {key[1]} on {key[0]} was in use by another command for {limit_s:.0f} s"
                raise NotStarted(f"nothing was run: {why}; try again, or use another session")
            yield
        finally:
            if not taking.cancel() and not taking.cancelled():
                lock.release()

    def _session(self, member: Member, name: str) -> ShellSession:
        return ShellSession(name, shell_session.key_of(paths.installation(), member.name))

    async def _was_used(self, member: Member, name: str, as_root: bool) -> bool:
        if not self._registry.exists():
            return False
        rows = await asyncio.to_thread(self._rows.list, member.name)
        recent = time.time() - KEPT_S
        return any(row.name == name and row.as_root == as_root and row.used > recent for row in rows)

    async def _note(self, member: Member, session: ShellSession, as_root: bool, report: StateReport) -> None:
        row = KeptSession(
            kind=SHELL, sandbox=member.name, name=session.name, as_root=as_root, folder=report.folder, used=time.time()
        )
        await asyncio.to_thread(self._rows.note, row)

    @property
    def _rows(self) -> KeptSessionRows:
        return self._registry.sessions(SHELL)


@functools.cache
def _pieces() -> Mapping[str, str]:
    return shell_session.pieces_of(read_program("shell/session.sh"))


def _question(script: str, as_root: bool) -> Command:
    return Command(script, timeout_s=ASK_S, keep=ASK_KEEP, as_root=as_root)


async def _ask(sandbox: Sandbox, script: str, as_root: bool) -> str:
    return (await _run(sandbox, _question(script, as_root))).stdout.head.decode("utf-8", "surrogateescape")


async def _run(sandbox: Sandbox, command: Command) -> Completed:
    """Run a short script of our own. Raises SandboxError."""
    done = await sandbox.run(command)
    sandbox.forget(command.run_id)
    if isinstance(done, Running):
        raise LostContact.while_running(sandbox.description.name, f"no answer within {ASK_S:.0f} s", done)
    return done
