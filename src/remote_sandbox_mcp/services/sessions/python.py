"""The verbs on Python sessions: run code in one, list them, close one; and the far side's program as it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...core.client import is_again, name_for_call, preamble
from ...core.commands import interpreter
from ...core.commands.command import Command, Completed, Ending, Missing, Observation, Running, new_run_id
from ...core.commands.interpreter import PythonOrder, PythonRecord, PythonSession
from ...core.commands.session_handle import PYTHON, SessionHandle, SessionSeen
from ...core.commands.shell import join
from ...core.errors import BadArgument, LostContact, NotStarted, SandboxError, Unsupported
from ...core.jobs.job import no_cards
from ...core.jobs.placement import place_of
from ...core.progress import Progress, silent
from ...core.sandboxes.files import FileSlice, Span
from ...core.sandboxes.foreign import NONSENSE, not_understood
from ...core.sandboxes.sandbox import Sandbox
from ...core.texts.image import MOST_BYTES
from ...core.texts.text import Clipped, clip_both, harmless, last_line
from ...far.program import read_program, source
from ...local.waiting import within
from ..fleet import Fleet, Member
from ..jobs.commands import tail_of

if TYPE_CHECKING:
    from ...local.store.sessions import KeptSessionRows
    from ..jobs.service import JobService

# How long a question to a session may take; and one that is listed with others.
ASK_S, LIST_S = 30.0, 12.0
# Besides what the code may take: the supervisor ends it in time, and this is for one that does not answer.
BESIDES_S = 15.0
LARGEST_ANSWER = 16 << 20
LEAST_PATIENCE_S = 1.0
TAIL_CHARS = 4000
# Exit codes of a call's client: no Python was found; another call had the session until the time was over.
NO_PYTHON, BUSY = 127, 75
# Sessions that were not used for so long have ended on their machines.
UNUSED_S = 7 * 86400.0


@dataclass(frozen=True)
class PythonReport:
    """Result of a call, with its output clipped; `record` is None while the code still runs."""

    sandbox: str
    seen: Completed | Running
    record: PythonRecord | None
    stdout: Clipped
    stderr: Clipped
    images: tuple[FileSlice, ...] = ()
    note: str = ""


class PythonService:
    """Python sessions in the sandboxes of a fleet. It needs no more of a sandbox than that it runs commands."""

    def __init__(self, fleet: Fleet, jobs: JobService, rows: KeptSessionRows) -> None:
        self._fleet = fleet
        self._jobs = jobs
        self.commands = jobs.commands
        self._rows = rows
        # Sessions that were there when they were used last: they need not be begun.
        self.live: set[tuple[str, str]] = set()
        # The Python by which a sandbox's sessions were reached last: it may have no other.
        self._pythons: dict[str, str] = {}

    async def run(
        self, order: PythonOrder, *, name: str = "", patience_s: float | None = None, room: int | None = None,
        progress: Progress = silent,
    ) -> PythonReport:  # fmt: skip
        """Run code in a session, which is begun if it is not there. Raises SandboxError where nothing was run."""
        order.check()
        member = self._fleet.member(await self._place(order, name))
        call = _Call(self, member, await member.open(), order, patience_s, progress)
        seen, record = await (call.run() if order.code.strip() else call.last_result())
        images = await call.images(record) if record else ()
        if record and record.python:
            self._pythons[member.name] = record.python
        await self._note(member, order)
        shown = clip_both(seen.stdout, seen.stderr, order.limit, room and room // 3)
        return PythonReport(member.name, seen, record, *shown, images, call.note(record))

    async def _place(self, order: PythonOrder, names: str) -> str:
        """The machine that has the session already, or else the best of several. Raises NoCards."""
        named, places = place_of(names)
        if not places:
            return named

        async def used(meant: Sequence[str]) -> str:
            rows = await asyncio.to_thread(self._rows.list, "")
            return next((row.sandbox for row in rows if row.name == order.session and row.sandbox in meant), "")

        return await self._jobs.waiting.one_of(places, order.cards, used)

    async def _note(self, member: Member, order: PythonOrder) -> None:
        """Record that the session was used from here, so that it is listed."""
        from ...local.store.sessions import KeptSession

        session = KeptSession(kind=PYTHON, sandbox=member.name, name=order.session, used=time.time())
        # A full disk must not lose a result.
        with contextlib.suppress(SandboxError):
            await asyncio.to_thread(self._rows.note, session)

    # Sessions in the list of jobs

    async def list(self, sandbox: str) -> Sequence[SessionSeen]:
        """List the sessions of sandboxes on which some were used from here; each machine is asked."""
        wanted = self._fleet.member(sandbox).name if sandbox else ""
        await asyncio.to_thread(self._rows.prune, time.time() - UNUSED_S)
        rows = await asyncio.to_thread(self._rows.list, wanted)
        used: dict[str, dict[str, float]] = {}
        for row in rows:
            used.setdefault(row.sandbox, {})[row.name] = row.used
        places = [(name, used_at) for name, used_at in used.items() if name in self._fleet.names]
        found = await asyncio.gather(*(self._list_on(name, used_at) for name, used_at in places))
        return [seen for part in found for seen in part]

    async def _list_on(self, name: str, used: Mapping[str, float]) -> Sequence[SessionSeen]:
        try:
            sandbox = await within(self._fleet.member(name).open(), LIST_S)
            sessions = interpreter.read_sessions(await within(self._ask(name, sandbox, {"verb": "list"}), LIST_S))
        except asyncio.TimeoutError:
            return [unknown(name, session, when, "it did not answer in time") for session, when in used.items()]
        except SandboxError as problem:
            return [unknown(name, session, when, str(problem)) for session, when in used.items()]
        except NONSENSE as problem:
            trouble = str(not_understood(name, problem))
            return [unknown(name, session, when, trouble) for session, when in used.items()]
        there = {session.name for session in sessions}
        for gone in used.keys() - there:
            await asyncio.to_thread(self._rows.remove, name, gone)
        return [seen_of(name, session) for session in sessions]

    async def _ask(self, name: str, sandbox: Sandbox, order: Mapping[str, Any]) -> Any:
        return await ask(sandbox, order, self._pythons.get(name, ""))

    async def close(self, name: str, sandbox: str) -> SessionSeen:
        """End a session with all that it has started. Raises BadArgument where there is none."""
        member = self._fleet.member(sandbox)
        reply = await self._ask(member.name, await member.open(), {"verb": "stop", "session": name})
        self.live.discard((member.name, name))
        await asyncio.to_thread(self._rows.remove, member.name, name)
        try:
            state = interpreter.read_record(reply).state
        except NONSENSE as problem:
            raise not_understood(member.name, problem) from None
        if state != "stopped":
            raise BadArgument(f"there is no Python session {name} on {member.name}; list_background_tasks shows them")
        return SessionSeen(handle=SessionHandle(PYTHON, name), sandbox=member.name, used=time.time())


def unknown(sandbox: str, session: str, used: float, trouble: str) -> SessionSeen:
    handle = SessionHandle(PYTHON, session)
    return SessionSeen(handle=handle, sandbox=sandbox, status="unknown", used=used, trouble=trouble)


def seen_of(sandbox: str, session: PythonSession) -> SessionSeen:
    handle, used = SessionHandle(PYTHON, session.name), time.time() - session.used_s
    if session.is_stuck:
        return SessionSeen(
            handle=handle, sandbox=sandbox, status="unknown", used=used, trouble="it does not answer; it can be stopped"
        )
    return SessionSeen(
        handle=handle,
        sandbox=sandbox,
        status="running" if session.record.busy_s else "idle",
        used=used,
        folder=session.record.folder,
        more=session.more,
    )


async def ask(sandbox: Sandbox, order: Mapping[str, Any], python: str = "", cwd: str = "", run_id: str = "") -> Any:
    """Carry out an order that prints nothing but its record. Raises SandboxError where there is none."""
    word = word_for(run_id)
    line = _after_preamble(command_line(python, {**order, "word": word}))
    seen = await sandbox.run(Command(line, cwd, ASK_S, LARGEST_ANSWER, run_id or new_run_id()))
    sandbox.forget(seen.run_id)
    try:
        record, _ = interpreter.find_record(seen.stdout, word)
    except ValueError as problem:
        raise not_understood(sandbox.description.name, problem) from None
    if record is None:
        raise problem_of(sandbox.description.name, seen, python)
    return record


def word_for(run_id: str) -> str:
    """The word around a run's record. A repeated call finds the run of the first, so it has to expect the same word."""
    return (run_id and name_for_call("word", run_id)) or secrets.token_hex(16)


def _after_preamble(line: str) -> str:
    """Silently: what a call prints is what its code prints."""
    before = preamble.get()
    return f"{{ {before}\n}} >/dev/null 2>&1\n{line}" if before else line


def problem_of(name: str, seen: Observation, python: str) -> SandboxError:
    """Explain why a command has told nothing at all."""
    if isinstance(seen, Completed) and seen.ending is not Ending.EXITED:
        return SandboxError(f"the Python sessions of {name} did not answer within {ASK_S:g} s; try again")
    why = last_line(seen.stderr.head + seen.stderr.tail) or "it said nothing"
    if isinstance(seen, Completed) and seen.exit_code == NO_PYTHON:
        what = f"{python!r} is no Python" if python else "there is no Python 3"
        how = "pass python=PATH (a program, or an environment's folder), or install python3"
        return Unsupported(f"unable to run Python on {name}: {what} there ({why}); {how}")
    return NotStarted(f"unable to run Python on {name}: {why}; run_python needs Python 3.6 or later")


class _Call:
    """One call: begins the session if that is needed, runs the code, and gets its record."""

    def __init__(
        self, service: PythonService, member: Member, sandbox: Sandbox, order: PythonOrder,
        patience_s: float | None, progress: Progress,
    ) -> None:  # fmt: skip
        self._service = service
        self._member = member
        self._sandbox = sandbox
        self._order = order
        self._patience_s = patience_s
        self._progress = progress
        self._begun = time.monotonic()
        self._run_id = name_for_call("run") or new_run_id()

    async def run(self) -> tuple[Completed | Running, PythonRecord | None]:
        if is_again():
            await self._refuse_if_lost()
        if (self._member.name, self._order.session) not in self._service.live:
            await self._begin()
        seen, record = await self._run(self._run_id)
        if record and record.state in ("absent", "no_session"):
            # It ended since it was used last.
            self._service.live.discard((self._member.name, self._order.session))
            await self._begin()
            seen, record = await self._run(name_for_call("run", "in a new session") or new_run_id())
        if record:
            self._refuse(record)
        return seen, record

    async def last_result(self) -> tuple[Completed | Running, PythonRecord | None]:
        """The result of the newest call of the session: one that outlasted its time, perhaps."""
        order = {"verb": "result", "session": self._order.session, "id": ""}
        record = self._read(await ask(self._sandbox, order, self._order.python, self._order.cwd))
        self._refuse(record)
        return Completed(self._run_id, 0, seconds=record.seconds), record

    async def _refuse_if_lost(self) -> None:
        """Run nothing twice: what an earlier process of ours began may have ended with that process."""
        seen = await self._sandbox.observe(self._run_id, keep=1)
        if isinstance(seen, Missing) and not self._sandbox.description.capabilities.survives_disconnect:
            why = "the process that ran it was killed, and the session with it; if it had begun, its end is not known"
            raise SandboxError(f"the code on {self._member.name} was not run again: {why}")

    async def _begin(self) -> None:
        order = {"verb": "begin", "session": self._order.session, "files": program_files()}
        run_id = name_for_call("run", f"begin {self._order.session}")
        record = self._read(await ask(self._sandbox, order, self._order.python, self._order.cwd, run_id))
        if record.state not in ("begun", "there"):
            why = record.why or "it did not begin"
            raise NotStarted(f"unable to begin Python session {self._order.session} on {self._member.name}: {why}")
        self._service.live.add((self._member.name, self._order.session))

    async def _run(self, run_id: str) -> tuple[Completed | Running, PythonRecord | None]:
        word = word_for(run_id)
        left = self._left()
        inline_s = interpreter.INLINE_S if left is None else min(interpreter.INLINE_S, 0.4 * left)
        called = {**self._order.as_call(self._run_id, inline_s), "word": word}
        line = _after_preamble(command_line(self._order.python, called))
        # A call waits for its turn as long as it may run.
        limit_s = 2 * self._order.timeout_s + BESIDES_S
        command = Command(line, self._order.cwd, limit_s, 2 * self._order.limit + interpreter.RECORD_ROOM, run_id)
        commands = self._service.commands
        commands.begin(self._member, replace(command, script=self._order.shown))
        try:
            seen = await self._sandbox.run(command, patience_s=left, progress=self._progress)
        except LostContact:
            # It may be running, so its record stays.
            raise
        except SandboxError:
            commands.never_began(command)
            raise
        if isinstance(seen, Running):
            commands.note(seen, tail_of(seen), in_time=True)
            return seen, None
        try:
            seen, record = await self._record_in(seen, word)
            return seen, record
        finally:
            is_whole = not (seen.stdout.omitted or seen.stderr.omitted)
            then = commands.forgetting(self._sandbox, run_id) if is_whole else None
            commands.note(seen, tail_of(seen)[-TAIL_CHARS:], in_time=True, then=then)

    async def _record_in(self, seen: Completed, word: str) -> tuple[Completed, PythonRecord]:
        """The record behind the output, or asked for by itself where it took long or is large."""
        try:
            value, stdout = interpreter.find_record(seen.stdout, word)
        except ValueError as problem:
            raise not_understood(self._member.name, problem) from None
        if value is not None:
            return replace(seen, stdout=stdout), self._read(value, self._run_id)
        if seen.exit_code == NO_PYTHON:
            raise problem_of(self._member.name, seen, self._order.python)
        order = {"verb": "result", "session": self._order.session, "id": self._run_id}
        record = self._read(await ask(self._sandbox, order, self._order.python, self._order.cwd), self._run_id)
        if seen.exit_code == BUSY and not record.was_run:
            return seen, replace(record, state="busy")
        if not record.was_run:
            why = "its session is gone" if record.state == "no_session" else "its session does not know it any more"
            record = PythonRecord(state="lost", why=why, out=seen.stdout.total, err=seen.stderr.total)
        # What its client printed after the code's own output was for readers of a call that outlasted its time.
        stdout = interpreter.without_end(seen.stdout, max(0, seen.stdout.total - record.out))
        return replace(
            seen, stdout=stdout, stderr=interpreter.without_end(seen.stderr, max(0, seen.stderr.total - record.err))
        ), record

    def _read(self, value: Any, call_id: str = "") -> PythonRecord:
        try:
            return interpreter.read_record(value, call_id)
        except NONSENSE as problem:
            raise not_understood(self._member.name, problem) from None

    def _refuse(self, record: PythonRecord) -> None:
        """Raises where nothing was run."""
        session, name = self._order.session, self._member.name
        if record.was_run:
            return
        if record.state == "busy":
            raise NotStarted(interpreter.busy_sentence(self._order, record))
        if record.state == "other_python":
            raise NotStarted(
                f"session {session} on {name} runs {harmless(record.python.encode())}, not {self._order.python}; use "
                f"another session, or end this one with stop_background_task(tmux_session='python:{session}')"
            )
        if record.state == "no_cards":
            raise no_cards(name, record.why)
        if record.state == "fewer_cards":
            raise NotStarted(
                f"session {session} on {name} has {len(record.cards) or 'no'} GPUs of its own, as its first call asked "
                "for; use another session, or leave gpus out"
            )
        if record.state in ("absent", "no_session", "unknown"):
            raise BadArgument(f"session {session} on {name} has no result to show; pass code to run")
        raise NotStarted(f"unable to run Python on {name}: {record.why or 'its session did not answer'}")

    def _left(self) -> float | None:
        if self._patience_s is None:
            return None
        return max(LEAST_PATIENCE_S, self._patience_s - (time.monotonic() - self._begun))

    async def images(self, record: PythonRecord) -> tuple[FileSlice, ...]:
        """The images of a call, read from its session's folder."""
        span = Span(limit=MOST_BYTES + 1)
        read = (self._sandbox.read(image.path, span) for image in record.images)
        found = await asyncio.gather(*read, return_exceptions=True)
        return tuple(part for part in found if isinstance(part, FileSlice))

    def note(self, record: PythonRecord | None) -> str:
        """Return a note that holds for sessions of this sandbox alone."""
        if not record or not record.is_new or self._sandbox.description.capabilities.survives_disconnect:
            return ""
        return f"it ends with the connection to {self._member.name}"


# The far side's program

# The package that is put on the machine; boot.py comes with each call.
PIECES = ("__init__", "wire", "client", "supervisor", "calls", "interpreter", "child", "gpu")


@functools.cache
def program_files() -> dict[str, str]:
    found = {f"{piece}.py": read_program(f"python/{piece}.py") for piece in PIECES}
    shared = {"family.py": source(("outpost/family",)), "cards.py": source(("outpost/place", "jobs/cards"))}
    return {**found, **shared}


@functools.cache
def program_digest() -> str:
    """Names this version of the program on the machine."""
    return hashlib.sha256(json.dumps(program_files(), sort_keys=True).encode()).hexdigest()[:16]


def command_line(python: str, order: Mapping[str, Any]) -> str:
    """One command that gives an order to the program, by this Python, or the usual one."""
    words = ["sh", "-c", read_program("python/call.sh"), "call.sh", python, read_program("python/boot.py")]
    return "exec " + join([*words, *interpreter.packed({**order, "program": program_digest()})])
