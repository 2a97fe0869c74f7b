"""A container without Python as a Sandbox: commands and files through the platform's own agent and a POSIX shell."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from ...core.command import RUN_ID, Command, Completed, Ending, Environment, Missing, Observation, Running
from ...core.disposable import Disposable
from ...core.errors import BadArgument, ConnectError, LostContact, NotStarted, SandboxError, Unreachable, Unsupported
from ...core.files import FileSlice, Found, Listing, Search, Span, Written
from ...core.job import NoJobs
from ...core.lane import Lane
from ...core.output import last_line
from ...core.port import Stream
from ...core.progress import Beat, Progress, silent
from ..deadline import within
from .link import Gone, Link
from .opened import describe
from .plain_files import PlainFiles
from .shell import LONGEST_SCRIPT, Answer, Shell

BEAT_S, MEND_S, ASK_S, SOON_S = 5.0, 20.0, 15.0, 0.2
TIMED_OUT = 124
NO_PYTHON = "there is no python3 in the container"


class PlainContainer:
    """Slower than an outpost, and without jobs, file sync and ports; a run ends with its process group."""

    def __init__(self, link: Link, disposable: Disposable, environment: Environment) -> None:
        self.description = describe(disposable, kills_trees=False)
        self._link = link
        self._disposable = disposable
        self._environment = environment
        self._shell = Shell(link, disposable)
        self._files = PlainFiles(link, disposable, self._shell)
        self._begun: dict[str, float] = {}
        self._starting: dict[str, asyncio.Task[Answer]] = {}
        self._ended: dict[str, Completed] = {}
        self._chores: set[asyncio.Task[Any]] = set()
        self._open = True

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def jobs(self) -> NoJobs:
        return NoJobs(f"{self.description.name}: background jobs need python3, and {NO_PYTHON}")

    async def open(self) -> None:
        if problem := await self._link.why_not(self._disposable):
            self._open = False
            raise problem
        self._open = True

    async def close(self) -> None:
        self._open = False
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        if not RUN_ID.match(command.run_id):
            raise BadArgument(f"{command.run_id!r} is not a run id")
        if problem := _unfit(command.script):
            raise NotStarted(f"{self.description.name}: the script {problem}, and {NO_PYTHON}, which would take it")
        self._begun[command.run_id] = begun = time.monotonic()
        running = self._starting[command.run_id] = self._later(self._start(command))
        until = begun + min(command.timeout_s, patience_s if patience_s is not None else command.timeout_s)
        try:
            while not running.done() and time.monotonic() < until:
                await asyncio.wait((running,), timeout=min(BEAT_S, max(0.0, until - time.monotonic())))
                if not running.done():
                    progress(await self._beat(command))
            return await self._concluded(command, running)
        except asyncio.CancelledError:
            self._later(self._stop_quietly(command.run_id))
            raise

    async def _concluded(self, command: Command, running: asyncio.Task[Answer]) -> Completed | Running:
        if running.done():
            return self._truth(await self._answer(command, running))
        if time.monotonic() - self._begun[command.run_id] >= command.timeout_s:
            return await self._time_out(command)
        self._later(self._time_out_later(command))
        return self._truth(await self.observe(command.run_id, keep=command.keep))

    async def _start(self, command: Command) -> Answer:
        words = self._environment.shell or ("bash",)
        given = {"id": command.run_id, "script": self._environment.source(command.script)}
        given |= {"keep": str(command.keep), "cwd": await self._files.from_home(command.cwd)}
        return await self._shell.ask("start", words, self._environment.env, given)

    async def _answer(self, command: Command, running: asyncio.Task[Answer]) -> Observation:
        """What the start's own answer says, or, where that was cut off, what is found when asked again."""
        try:
            answer = running.result()
        except SandboxError as problem:
            return await self._find_again(command, problem)
        if answer.text("state") == "refused":
            raise NotStarted(f"{self.description.name}: {answer.text('why')}")
        return self._noted(answer.observation(command.run_id, self._seconds(command.run_id)))

    async def _find_again(self, command: Command, problem: SandboxError) -> Observation:
        give_up = time.monotonic() + MEND_S
        while time.monotonic() < give_up:
            fate = await self._link.why_not(self._disposable)
            if isinstance(fate, Gone):
                words = f"the command was lost with {self.description.name}. {fate}"
                raise LostContact(words, outcome="lost", so_far=Running(command.run_id)) from None
            with contextlib.suppress(SandboxError, asyncio.TimeoutError):
                seen = await within(self.observe(command.run_id, keep=command.keep), ASK_S)
                if isinstance(seen, Missing):
                    raise problem
                if not isinstance(seen, Running):
                    return seen
                if self._seconds(command.run_id) >= command.timeout_s:
                    return await self._time_out(command)
                give_up = time.monotonic() + MEND_S
            await asyncio.sleep(SOON_S)
        raise LostContact.while_running(self.description.name, str(problem), Running(command.run_id)) from None

    def _truth(self, seen: Observation) -> Completed | Running:
        if isinstance(seen, Missing):
            so_far = Running(seen.run_id, seen.stdout, seen.stderr)
            raise LostContact(
                f"the run was lost: {seen.reason}; look before repeating it", outcome="lost", so_far=so_far
            )
        return seen

    async def _time_out(self, command: Command) -> Completed:
        seen = self._truth(await self.stop(command.run_id, keep=command.keep))
        if isinstance(seen, Running):
            raise LostContact.while_running(self.description.name, "it did not end when it was killed", seen)
        if seen.ending is not Ending.STOPPED:
            return seen
        ended = self._ended[command.run_id] = replace(seen, ending=Ending.TIMED_OUT, exit_code=TIMED_OUT)
        return ended

    async def _time_out_later(self, command: Command) -> None:
        await asyncio.sleep(max(0.0, self._begun[command.run_id] + command.timeout_s - time.monotonic()))
        with contextlib.suppress(SandboxError):
            await self._time_out(command)

    async def _stop_quietly(self, run_id: str) -> None:
        with contextlib.suppress(SandboxError, asyncio.TimeoutError):
            await within(self.stop(run_id), MEND_S)

    async def _beat(self, command: Command) -> Beat:
        seconds = self._seconds(command.run_id)
        with contextlib.suppress(SandboxError):
            seen = await self.observe(command.run_id, keep=4096)
            heard = seen.stdout.tail or seen.stdout.head or seen.stderr.tail or seen.stderr.head
            return Beat(seconds, seen.stdout.total + seen.stderr.total, last_line(heard))
        return Beat(seconds)

    def _seconds(self, run_id: str) -> float:
        return round(time.monotonic() - self._begun.get(run_id, time.monotonic()), 4)

    def _later(self, chore: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        # A failure that nobody waits for any more is not an error in the log.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def observe(self, run_id: str, *, keep: int = 40_000) -> Observation:
        return await self._ask_about("look", run_id, keep)

    async def stop(self, run_id: str, *, keep: int = 40_000) -> Observation:
        return await self._ask_about("stop", run_id, keep)

    async def _ask_about(self, verb: str, run_id: str, keep: int) -> Observation:
        if not RUN_ID.match(run_id):
            return Missing(run_id, "it is not known in this container")
        try:
            answer = await within(self._shell.ask(verb, values={"id": run_id, "keep": str(keep)}), ASK_S)
        except asyncio.TimeoutError:
            raise await self._why() from None
        return self._noted(answer.observation(run_id, self._seconds(run_id)))

    def _noted(self, seen: Observation) -> Observation:
        """An end is told alike whenever it is asked for, and a start that is on its way is no run that is missing."""
        starting = self._starting.get(seen.run_id)
        if isinstance(seen, Missing) and starting and not starting.done():
            return Running(seen.run_id, seconds=self._seconds(seen.run_id))
        if isinstance(seen, Completed):
            known = self._ended.setdefault(seen.run_id, seen)
            return replace(seen, ending=known.ending, exit_code=known.exit_code, seconds=known.seconds)
        return seen

    async def _why(self) -> ConnectError:
        known = await self._link.why_not(self._disposable)
        return known or Unreachable(f"{self.description.name}: no answer in {ASK_S:.0f} s; try again")

    def forget(self, run_id: str) -> None:
        for known in (self._begun, self._starting, self._ended):
            known.pop(run_id, None)
        if RUN_ID.match(run_id):
            self._later(self._shell.ask("forget", values={"id": run_id}))

    async def read(self, path: str, span: Span) -> FileSlice:
        return await self._files.read(path, span)

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        return await self._files.write(path, data, expected)

    async def list(self, path: str, *, recursive: bool = False, limit: int = 200) -> Listing:
        return await self._files.list(path, recursive, limit)

    async def search(self, search: Search) -> Found:
        return await self._files.search(search)

    async def open_lane(self) -> Lane:
        raise Unsupported(f"{self.description.name}: file sync needs python3, and {NO_PYTHON}")

    async def connect(self, port: int) -> Stream:
        raise Unsupported(f"{self.description.name}: a port can be reached by its endpoint only, because {NO_PYTHON}")


def _unfit(script: str) -> str:
    """Why a script cannot be given to the platform's agent, which takes it as a text in JSON."""
    try:
        return f"is longer than {LONGEST_SCRIPT} bytes" if len(script.encode()) > LONGEST_SCRIPT else ""
    except UnicodeEncodeError:
        return "is not UTF-8"
