"""Commands on sandboxes: run one to its true end, on one sandbox or on many at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from ..backends.mending import is_passing, over_cuts
from ..core import check
from ..core.client import Call, is_again, name_for_call, run_begins
from ..core.commands.command import Command, Completed, Missing, Observation, Running, new_run_id
from ..core.commands.session_handle import check_session
from ..core.errors import (
    BadArgument,
    ConnectError,
    Defect,
    LostContact,
    SandboxError,
    UnknownSandbox,
    Unreachable,
    Unsupported,
)
from ..core.progress import Progress, silent
from ..core.sandboxes.sandbox import Sandbox
from ..core.task import Report, make_report, printed
from ..local.waiting import Chores, within
from .fleet import Fleet, Member, unforeseen
from .jobs.service import JobService

if TYPE_CHECKING:
    from .sessions.shell import ShellService

# Of many sandboxes, this many are opened at once; each may take so long to tell the end of a command after its limit.
MOST_OPENING, LATE_S = 32, 8.0


# Between two looks at a command that was found again after a cut.
FOUND_S = 0.5

# How long each of them may take to open, unless the caller's own time limit is shorter.
OPEN_S = 60.0


Ended = TypeVar("Ended")


Clip = Callable[[Completed | Running | Missing], Report]


@dataclass(frozen=True)
class Row:
    """Outcome of a command on one of several sandboxes: a report, or a problem."""

    name: str
    seconds: float
    report: Report | None = None
    problem: SandboxError | None = None

    @property
    def is_good(self) -> bool:
        return self.report is not None and isinstance(self.report.seen, Completed) and not self.report.seen.exit_code


@dataclass(frozen=True)
class CommandLimits:
    """Limits for one of several commands at once: one sandbox that does not answer must not delay the others.

    `opening` is held while the sandbox is opened; `open_s` and `run_s` are how long opening and running may take.
    """

    opening: AbstractAsyncContextManager[object]
    open_s: float | None = None
    run_s: float | None = None

    async def opened(self, member: Member) -> Sandbox:
        if self.open_s is None:
            return await member.open()
        try:
            return await within(self._opened(member), self.open_s)
        except asyncio.TimeoutError:
            problem = f"it could not be opened within {self.open_s:.0f} s"
            raise Unreachable.of_parts(f"unable to open {member.name}", problem) from None

    async def _opened(self, member: Member) -> Sandbox:
        async with self.opening:
            return await member.open()

    async def ended(self, run: Awaitable[Ended], member: Member, command: Command) -> Ended:
        if self.run_s is None:
            return await run
        try:
            return await within(run, self.run_s)
        except asyncio.TimeoutError:
            why = f"no answer within {self.run_s:.0f} s"
            raise LostContact.while_running(member.name, why, Running(command.run_id)) from None


NO_BOUNDS = CommandLimits(nullcontext())


class CommandService:
    """Runs commands: each has an id on its sandbox, so that it is never run twice and its result is never lost."""

    def __init__(self, fleet: Fleet, jobs: JobService, shells: Callable[[], ShellService]) -> None:
        self._fleet = fleet
        self._jobs = jobs
        self._shells = shells
        self._ending = Chores("ending a command")

    async def run(
        self, script: str, *, cwd: str = "", timeout_s: float = 120, limit: int = 20_000, name: str = "",
        patience_s: float | None = None, room: int | None = None, progress: Progress = silent, as_root: bool = False,
        session: str = "", input: bytes | AsyncIterable[bytes] = b"", env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> Report:  # fmt: skip
        """Run a script within the caller's patience; returns up to `limit` characters per stream, `room` in all.

        With a `session` it runs in the shell of that name, in whose folder it begins unless `cwd` names another.
        """
        check_run(script, cwd, timeout_s, limit, session, env)
        member = self._fleet.member(name)
        run_id = name_for_call("run") or new_run_id()
        command = Command(script, cwd, timeout_s, 2 * limit + 8, run_id, as_root, input, env or {}, user)
        clip = functools.partial(make_report, limit=limit, room=room)
        return await self._run(member, command, clip, patience_s, progress, session=session)

    async def several(self, names: Sequence[str] | Literal["all"]) -> list[Member]:
        """The named sandboxes, each once; "all": those that are configured. Raises BadArgument, UnknownSandbox."""
        if not names:
            raise BadArgument(
                'sandbox_names is empty; name sandboxes, or pass "all", or leave it out for the active one'
            )
        for name in () if names == "all" else names:
            check.text_argument("a name in sandbox_names", name)
        try:
            members = await self._fleet.configured() if names == "all" else self._fleet.distinct(names)
        except UnknownSandbox as problem:
            raise problem.with_more("nothing was run") from None
        # Without any, the sentence for this is that of a call that names none.
        return members or [self._fleet.member()]

    async def run_on_each(
        self, members: Sequence[Member], script: str, *, cwd: str = "", timeout_s: float = 120, limit: int = 20_000,
        clip: Clip | None = None, patience_s: float | None = None, ended: Callable[[Row], None] = lambda row: None,
        progress: Callable[[str], Progress] = lambda name: silent, as_root: bool = False, session: str = "",
        input: bytes = b"", env: Mapping[str, str] | None = None,
    ) -> list[Row]:  # fmt: skip
        """Run a script on all of them at once. A failure is a row of its own; `ended` gets each row as it comes."""
        check_run(script, cwd, timeout_s, limit, session, env)
        opening, begun = asyncio.Semaphore(MOST_OPENING), time.monotonic()
        make = clip or functools.partial(make_report, limit=limit)

        async def run_on(member: Member) -> Row:
            run_id = name_for_call("run", member.name) or new_run_id()
            command = Command(script, cwd, timeout_s, 2 * limit + 8, run_id, as_root, input, env or {})
            turn = nullcontext() if member.sandbox and member.sandbox.is_open else opening
            bounds = CommandLimits(turn, patience_s or OPEN_S, min(timeout_s, patience_s or timeout_s) + LATE_S)
            try:
                report = await self._run(member, command, make, patience_s, progress(member.name), bounds, session)
                row = Row(member.name, time.monotonic() - begun, report)
            except SandboxError as problem:
                row = Row(member.name, time.monotonic() - begun, problem=problem)
            ended(row)
            return row

        seen = await asyncio.gather(*map(run_on, members), return_exceptions=True)
        return [_row_of(member, row, begun) for member, row in zip(members, seen, strict=True)]

    async def _run(
        self, member: Member, command: Command, clip: Clip, patience_s: float | None, progress: Progress,
        bounds: CommandLimits = NO_BOUNDS, session: str = "",
    ) -> Report:  # fmt: skip
        commands = self._jobs.commands
        try:
            sandbox = await bounds.opened(member)
            if command.as_root and (why_not := sandbox.description.capabilities.why_not_root):
                raise Unsupported(f"nothing can be run as root on {member.name}: {why_not}; nothing was run")
            if is_again() and (end := await self._recorded_end(sandbox, command)):
                return clip(end)
        except asyncio.CancelledError:
            if is_again():
                self._end_later(member, command.run_id)
            raise
        commands.begin(member, command)
        if begins := run_begins.get():
            begins(command.run_id)
        state, until = "", time.monotonic() + longest_s(command, patience_s, bounds)
        try:
            if session:
                running = self._shells().run(member, sandbox, command, session, patience_s, progress)
                seen, state = await bounds.ended(running, member, command)
            else:
                run = sandbox.run(command, patience_s=patience_s, progress=progress)
                seen = await bounds.ended(run, member, command)
        except LostContact as lost:
            # It may be running, so its record stays.
            if session:
                raise
            seen = await self._found_again(member.name, command, until, lost)
        except SandboxError:
            commands.never_began(command)
            raise
        report = replace(clip(seen), session=state)
        is_whole = isinstance(seen, Completed) and not (report.stdout.omitted or report.stderr.omitted)
        # The result is stored before the machine is told to drop its own copy.
        then = commands.forgetting(sandbox, command.run_id) if is_whole else None
        commands.note(seen, printed(report), in_time=True, then=then)
        return report

    async def _found_again(self, name: str, command: Command, until: float, lost: LostContact) -> Completed | Running:
        """Follow a command after a cut, on its machine as it is configured by then. Raises LostContact."""
        if not is_passing(lost):
            raise lost

        async def ask() -> Observation:
            try:
                return await within(self._observed(name, command), max(0.1, until - time.monotonic()))
            except asyncio.TimeoutError:
                raise lost from None

        while True:
            try:
                seen = await over_cuts(ask, until)
            except (ConnectError, UnknownSandbox):
                raise lost from None
            if isinstance(seen, Missing):
                # One that the machine has never seen may be on the one that had its name before.
                raise LostContact.of_lost(seen) if seen.stdout.total or seen.stderr.total else lost
            if isinstance(seen, Completed) or time.monotonic() + FOUND_S > until:
                return seen
            await asyncio.sleep(FOUND_S)

    async def _observed(self, name: str, command: Command) -> Observation:
        return await (await self._fleet.get(name)).observe(command.run_id, keep=command.keep)

    def _end_later(self, member: Member, run_id: str) -> None:
        """Stop a command that an earlier process of ours may have begun; no other process would."""

        async def end() -> None:
            with contextlib.suppress(SandboxError):
                await (await member.open()).stop(run_id)

        self._ending.start(end())

    async def give_up(self, call: str, name: str = "", several: Sequence[str] | str = ()) -> None:
        """Stop the commands of a call that was cancelled while the hub died, if the call had begun any.

        `name` is the call's sandbox, for a command that began too shortly before to be recorded; `several` are those
        of a call on many.
        """
        if not several:
            return await self._give_up(Call(call).name_of("run"), name)
        names = several if isinstance(several, (list, tuple)) else [it.name for it in await self._fleet.configured()]
        members = {self._fleet.member(it).name for it in names if it in self._fleet.names}
        await asyncio.gather(*(self._give_up(Call(call).name_of("run", name), name) for name in members))

    async def _give_up(self, run_id: str, name: str) -> None:
        row = await self._jobs.commands.find(run_id)
        where = row.sandbox if row else name
        if not where or where in self._fleet.names:
            with contextlib.suppress(SandboxError):
                await (await self._fleet.get(where)).stop(run_id)

    async def _recorded_end(self, sandbox: Sandbox, command: Command) -> Completed | None:
        """The end of a command that an earlier process of ours may have started; None if it may be run now.

        Raises LostContact for one that may have ended with that process.
        """
        seen = await sandbox.observe(command.run_id, keep=command.keep)
        if not isinstance(seen, Missing):
            return None
        recorded = await self._jobs.commands.recall(command.run_id)
        if recorded or sandbox.description.capabilities.survives_disconnect:
            return recorded
        why = "the process that ran it was killed, and the command with it, if it had begun"
        raise LostContact.of_lost(replace(seen, reason=why))

    async def was_begun(self, name: str) -> bool:
        """Whether an earlier process of ours has begun the command or the job of the current call."""
        if not is_again():
            return False
        run_id = name_for_call("run")
        seen = await (await self._fleet.get(name)).observe(run_id, keep=1)
        is_run = not isinstance(seen, Missing) or await self._jobs.commands.recall(run_id) is not None
        return is_run or await asyncio.to_thread(self._jobs.registry.begun, name_for_call("job")) is not None


def longest_s(command: Command, patience_s: float | None, bounds: CommandLimits) -> float:
    """Time that its caller waits for a command."""
    return min(limit for limit in (patience_s, bounds.run_s, command.timeout_s) if limit is not None)


def _row_of(member: Member, row: Row | BaseException, begun: float) -> Row:
    """Turn an unexpected exception into a problem of that one sandbox."""
    if isinstance(row, Row):
        return row
    problem = Defect(unforeseen(row, f"running a command on {member.name}"))
    return Row(member.name, time.monotonic() - begun, problem=problem)


def check_run(
    script: str, cwd: str, timeout_s: float, limit: int, session: str = "", env: Mapping[str, str] | None = None
) -> None:
    """Raises BadArgument."""
    if session:
        check_session(session)
    if session and env:
        # Its state, which is kept in a file there, would have them.
        raise BadArgument("env is for a command without a session; in a session, export the variables")
    check.variables(env or {})
    check.text_argument("command", script)
    check.text_argument("cwd", cwd, required=False)
    check.in_range("timeout_s", timeout_s, 0.1, check.LONGEST_TIMEOUT_S)
    check.in_range("max_output_chars", limit, 1, check.MOST_OUTPUT_CHARS)
