"""Records of exec_bash commands, so that every process of this user finds those that outlasted their call."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...core.client import current_call
from ...core.commands.command import Command, Completed, Ending, Excerpt, Missing, Observation, Running, new_run_id
from ...core.errors import SandboxError
from ...core.jobs.job import JobSeen, JobState
from ...core.sandboxes.sandbox import Sandbox
from ...local.store.jobs import RowChange, RunRecord, added, forgotten, noted, removed
from ..fleet import Member
from .records import JobRegistry
from .values import COMMAND, JobSnapshot

log = logging.getLogger(__name__)

# A machine keeps results for a day: how old commands are listed, and how many are asked about at once.
LISTED_S, MOST_ASKED = 86400.0, 30
# Time between writing the row and the machine knowing the command.
STARTING_S = 30.0
SHOWN = 50
STOPPED = Ending.STOPPED.value
# By then the client has the answer, or another process of ours has asked for it again; and by then where we end in
# order, after our clients or with an answer to each.
ANSWERED_S, ENDED_S = 30.0, 2.0
# A command that runs longer than the first is recorded while it runs; an ended one within the second.
MOMENT_S, SOON_S = 0.1, 0.25


class Commands:
    """Rows of commands, written in the background: no command waits for them, or fails because of them.

    A command that ends within a moment is written once, after its end, with others that ended at about the same time.
    One that lasts longer is written when that moment is over, so that it is found even if this server is killed.
    """

    def __init__(self, registry: JobRegistry) -> None:
        self._registry = registry
        # Commands that just began, and the timer that records each if it does not end soon.
        self._young: dict[str, tuple[RunRecord, asyncio.TimerHandle]] = {}
        # Written in order, so that an end never precedes its beginning; with what is called once a change is stored.
        self._queue: list[tuple[RowChange, Callable[[], None] | None]] = []
        self._timer: asyncio.TimerHandle | None = None
        # Runs that were answered, and when; their machines drop them later.
        self._answered: deque[tuple[float, Sandbox, str]] = deque()
        self._dropping: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None

    # Writing

    def begin(self, member: Member, command: Command) -> None:
        """Note a command that is about to start."""
        record = self._record(member, command.run_id, command.script)
        timer = asyncio.get_running_loop().call_later(MOMENT_S, self._write_young, command.run_id)
        self._young[command.run_id] = record, timer

    def never_began(self, command: Command) -> None:
        if self._take_young(command.run_id) is None:
            self._write(removed(command.run_id))

    def note(
        self, seen: Observation, tail: str, *, in_time: bool = False, then: Callable[[], None] | None = None
    ) -> None:
        """Record what was seen; `in_time`: by the call that started it. `then` is called once that is stored."""
        is_listed = not in_time or isinstance(seen, Running)
        values: dict[str, Any] = {
            "state": state_of(seen).value,
            "outcome": outcome_of(seen),
            "is_listed": is_listed,
            "exit_code": seen.exit_code if isinstance(seen, Completed) else None,
            "seconds": getattr(seen, "seconds", 0.0),
            "tail": tail,
        }
        young = self._take_young(seen.run_id)
        change = added(young, **values) if young else noted(seen.run_id, **values)
        self._write(change, then, at_once=is_listed)

    def outlasted(self, member: Member, running: Running, script: str) -> None:
        """Record a command that a test suite started and that outlasted its call."""
        record = replace(self._record(member, running.run_id, script), is_listed=True)
        self._write(added(record), at_once=True)

    def add(self, member: Member, script: str, outcome: str, seconds: float, tail: str) -> None:
        """Record something else that ran and has ended, for the log of its sandbox."""
        record = self._record(member, new_run_id(), script)
        over = replace(record, state=JobState.ENDED.value, outcome=outcome, seconds=seconds, tail=tail)
        self._write(added(over))

    def forget(self, sandbox: str) -> None:
        """Drop the commands of a disposable sandbox that is gone."""
        for run_id in [run_id for run_id, (record, _) in self._young.items() if record.place == sandbox]:
            self._take_young(run_id)
        self._write(forgotten(sandbox))

    def _record(self, member: Member, run_id: str, script: str) -> RunRecord:
        place = place_of(member)
        return RunRecord(run_id=run_id, sandbox=member.name, place=place, command=script, created=time.time())

    def _take_young(self, run_id: str) -> RunRecord | None:
        """Take the record of a command that is not written yet; the caller is responsible for it then."""
        record, timer = self._young.pop(run_id, (None, None))
        if timer:
            timer.cancel()
        return record

    def _write_young(self, run_id: str) -> None:
        if record := self._take_young(run_id):
            self._write(added(record), at_once=True)

    def _write(self, change: RowChange, then: Callable[[], None] | None = None, *, at_once: bool = False) -> None:
        self._queue.append((change, then))
        if at_once:
            self._start_writing()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self._start_writing)

    def _start_writing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # A running writer also takes what was added since.
        if self._queue and (self._writer is None or self._writer.done()):
            self._writer = asyncio.ensure_future(self._write_queue())

    async def _write_queue(self) -> None:
        while self._queue:
            entries, self._queue = self._queue, []
            try:
                await asyncio.to_thread(self._registry.runs.write, [change for change, _ in entries])
            except SandboxError as problem:
                # The store has logged the reason, once. The machine keeps what it has: `then` is not called.
                log.debug("commands could not be written down: %s", problem)
                continue
            for _, then in entries:
                if then is not None:
                    then()

    async def settled(self, limit_s: float | None = None) -> None:
        """Wait until everything is written, or the time is over."""
        for run_id in tuple(self._young):
            self._write_young(run_id)
        self._start_writing()
        if self._writer is not None and not self._writer.done():
            await asyncio.wait((self._writer,), timeout=limit_s)

    def forgetting(self, sandbox: Sandbox, run_id: str) -> Callable[[], None]:
        """Lets the machine drop a result; if this process may be replaced, only once the client surely has it."""

        def forget_later() -> None:
            self._answered.append((time.monotonic(), sandbox, run_id))
            if self._dropping is None:
                self._drop_answered()

        return forget_later if current_call() else functools.partial(sandbox.forget, run_id)

    def _drop_answered(self) -> None:
        self._drop_older(ANSWERED_S)
        waits_s = self._answered[0][0] + ANSWERED_S - time.monotonic() if self._answered else 0.0
        loop = asyncio.get_running_loop()
        self._dropping = loop.call_later(max(waits_s, SOON_S), self._drop_answered) if self._answered else None

    def _drop_older(self, seconds: float) -> None:
        latest = time.monotonic() - seconds
        while self._answered and self._answered[0][0] <= latest:
            _, sandbox, run_id = self._answered.popleft()
            sandbox.forget(run_id)

    async def close(self, limit_s: float) -> None:
        """Write what is not written yet, and let machines drop what clients have; called before those are closed."""
        await self.settled(limit_s)
        if self._dropping:
            self._dropping.cancel()
        self._drop_older(ENDED_S)

    # Reading

    async def latest(self, member: Member) -> Sequence[RunRecord]:
        """The last commands of a sandbox, oldest first, whichever process ran them. Raises ConfigError."""
        await self.settled()
        return (await asyncio.to_thread(self._registry.runs.latest, place_of(member), SHOWN))[::-1]

    async def find(self, run_id: str) -> RunRecord | None:
        """The row of a command; None where it does not exist or cannot be read."""
        await self.settled()
        with contextlib.suppress(SandboxError):
            return await asyncio.to_thread(self._registry.runs.get, run_id) if self._registry.exists() else None
        return None

    async def recall(self, run_id: str) -> Completed | None:
        """A command's recorded end, for when its machine cannot be asked."""
        found = await self.find(run_id)
        if found is None or found.exit_code is None:
            return None
        tail = found.tail.encode()
        return Completed(run_id, found.exit_code, stdout=Excerpt(tail, total=len(tail)), seconds=found.seconds)

    async def list(self, member: Member, sandbox: Sandbox | None, why: str = "") -> Sequence[JobSnapshot]:
        """Commands of a sandbox that outlasted their calls; those that may still run are looked up there."""
        since = time.time() - LISTED_S
        await self.settled()
        rows = await asyncio.to_thread(self._registry.runs.background, place_of(member), since, MOST_ASKED)
        return await asyncio.gather(*(self._snapshot(member, row, sandbox, why) for row in rows))

    async def _snapshot(self, member: Member, row: RunRecord, sandbox: Sandbox | None, why: str) -> JobSnapshot:
        if row.state != JobState.RUNNING.value or sandbox is None:
            return JobSnapshot(member.name, as_job(row), trouble=why, kind=COMMAND)
        seen = await sandbox.observe(row.run_id, keep=2000)
        if isinstance(seen, Missing) and time.time() - row.created < STARTING_S:
            return JobSnapshot(member.name, as_job(row), kind=COMMAND)
        self.note(seen, tail_of(seen))
        return JobSnapshot(member.name, as_job(row, seen), kind=COMMAND)


def place_of(member: Member) -> str:
    """Identifies a machine by its address, because names are reused; without an address, by its name."""
    what = member.describe()
    return f"{what.user}@{what.host}:{what.port}" if what.host else member.name


def state_of(seen: Observation) -> JobState:
    if isinstance(seen, Completed):
        return JobState.ENDED
    return JobState.RUNNING if isinstance(seen, Running) else JobState.GONE


def outcome_of(seen: Observation) -> str:
    """The outcome in a word or two, for the log of a sandbox."""
    if isinstance(seen, Completed):
        code = f"exit {seen.exit_code}"
        return f"{STOPPED}, {code}" if seen.ending is Ending.STOPPED else code
    return "still running" if isinstance(seen, Running) else seen.reason


def tail_of(seen: Observation) -> str:
    parts = [_end_of(each) for each in (seen.stdout, seen.stderr)]
    return "\n".join(part.decode("utf-8", "replace") for part in parts if part)


def _end_of(excerpt: Excerpt) -> bytes:
    """The end of a stream; where it is cut, from the next line on: half a secret is not known as one."""
    if not excerpt.tail:
        return excerpt.head
    return excerpt.tail.partition(b"\n")[2] or excerpt.tail


def as_job(row: RunRecord, seen: Observation | None = None) -> JobSeen:
    """A command as an entry of the list of jobs."""
    state = state_of(seen) if seen else JobState(row.state)
    is_stopped = seen.ending is Ending.STOPPED if isinstance(seen, Completed) else row.outcome.startswith(STOPPED)
    seconds = getattr(seen, "seconds", row.seconds) or (time.time() - row.created if state is JobState.RUNNING else 0.0)
    return JobSeen(
        state=state, job_id=row.run_id, session=row.run_id, command=row.command,
        exit_code=seen.exit_code if isinstance(seen, Completed) else row.exit_code,
        ending=STOPPED if is_stopped else "", signal=seen.signal if isinstance(seen, Completed) else "",
        reason=seen.reason if isinstance(seen, Missing) else "", started=row.created, seconds=seconds,
    )  # fmt: skip
