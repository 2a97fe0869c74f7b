"""A container without Python as a Sandbox: commands and files through the platform's own agent and a POSIX shell."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any

from ...core.command import RUN_ID, Command, Completed, Environment, Missing, Observation, Running
from ...core.disposable import Disposable
from ...core.errors import (
    BadArgument,
    BrokenRules,
    ConnectError,
    LostContact,
    NotStarted,
    SandboxError,
    Unreachable,
    Unsupported,
)
from ...core.files import FileSlice, Found, Listing, Search, Span, Written
from ...core.port import Stream
from ...core.progress import Beat, Progress, silent
from ...core.text import last_line
from ...core.transfer import Lane
from ...waiting import within
from ..outpost.far.place import to_bytes
from .api import Gone, Link, Paused
from .container import describe, lost_with
from .plain_files import PlainFiles
from .plain_jobs import PlainJobs
from .plain_search import find_matches
from .problems import NoRoom
from .shell import FULL, LONGEST_VALUE, RUNS, Answer, Shell, fits, start_values

BEAT_S, MEND_S, SOON_S = 2.0, 20.0, 0.1
FORGET_S = 1.0
NO_PYTHON = "there is no python3 in the container"


class PlainContainer:
    """The answers of an outpost, from a POSIX shell: slower, without file sync and ports.

    A run ends with its process group: who has left that cannot be found.
    """

    def __init__(self, link: Link, disposable: Disposable, environment: Environment) -> None:
        self.description = describe(disposable, kills_trees=False)
        self._link = link
        self._disposable = disposable
        self._environment = environment
        self._shell = Shell(link, disposable)
        self._files = PlainFiles(self._shell, disposable.title)
        self.jobs = PlainJobs(self._shell, disposable.title, environment)
        self._starting: dict[str, float] = {}
        self._known: set[str] = set()
        self._chores: set[asyncio.Task[Any]] = set()

    @property
    def is_open(self) -> bool:
        return self._shell.is_open

    async def open(self) -> None:
        await self._shell.open()

    async def close(self) -> None:
        """Runs go on: the end of our requests does not reach them."""
        if self._known and self.is_open:
            with contextlib.suppress(SandboxError, asyncio.TimeoutError):
                await within(self._forget_known(), FORGET_S)
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self._shell.is_open = False

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        if not RUN_ID.match(command.run_id):
            raise BadArgument(f"{command.run_id!r} is not a run id")
        begun = self._starting[command.run_id] = time.monotonic()
        running = self._later(self._follow(command))
        limit_s = command.timeout_s + MEND_S
        until = begun + (limit_s if patience_s is None else min(patience_s, limit_s))
        try:
            while not running.done() and time.monotonic() < until:
                await asyncio.wait((running,), timeout=min(BEAT_S, max(0.0, until - time.monotonic())))
                if not running.done() and time.monotonic() < until:
                    progress(await self._beat(command))
            if running.done():
                seen: Completed | Running = running.result()
                return seen
            return await self._so_far(command, given_up=patience_s is None)
        except asyncio.CancelledError:
            self._later(self._stop_quietly(command.run_id))
            raise

    async def _so_far(self, command: Command, *, given_up: bool) -> Completed | Running:
        seen = self._truth(await self.observe(command.run_id, keep=command.keep))
        if given_up and isinstance(seen, Running):
            raise LostContact.while_running(self.description.name, "it did not end when it was killed", seen)
        return seen

    async def _follow(self, command: Command) -> Completed | Running:
        """Start it, or find the start that an earlier request made, and wait for the end."""
        try:
            values, give_up = await self._order(command), 0.0
            while True:
                try:
                    answer = await self._shell.follow(RUNS, "start", **values)
                    return self._truth(self._seen(command, answer))
                except NoRoom:
                    raise NotStarted(f"{self.description.name}: unable to begin: {FULL}") from None
                except ConnectError as problem:
                    await self._explain(command)
                    give_up = give_up or time.monotonic() + MEND_S
                    if time.monotonic() > give_up or isinstance(problem, BrokenRules):
                        so_far = Running(command.run_id)
                        raise LostContact.while_running(self.description.name, str(problem), so_far) from None
                    await asyncio.sleep(SOON_S)
        finally:
            self._starting.pop(command.run_id, None)

    async def _order(self, command: Command) -> dict[str, str]:
        """Raises NotStarted for what a container without Python cannot be told."""
        values, script = start_values(command, self._environment), self._environment.source(command.script)
        if not fits(values["exports"]) or not fits(values["words"]):
            raise NotStarted(
                f"{self.description.name}: the variables are longer than {LONGEST_VALUE} bytes, and {NO_PYTHON}"
            )
        if fits(script):
            return {**values, "script": script}
        try:
            return {**values, "from": await self._shell.upload(f"{command.run_id}.script", to_bytes(script))}
        except NoRoom:
            raise NotStarted(f"{self.description.name}: unable to begin: {FULL}") from None

    def _seen(self, command: Command, answer: Answer) -> Observation:
        if answer.text("state") == "refused":
            why = answer.data("why").decode("utf-8", "replace")
            raise NotStarted(f"{self.description.name}: {why}")
        return answer.observation(command.run_id, command.keep)

    async def _explain(self, command: Command) -> None:
        """Raises LostContact where it was lost with its container, or paused with it."""
        fate = await self._link.why_not(self._disposable)
        if lost := lost_with(self.description.name, fate, Running(command.run_id)):
            raise lost

    def _truth(self, seen: Observation) -> Completed | Running:
        if isinstance(seen, Missing):
            words = f"the run was lost: {seen.reason}; look before repeating it"
            raise LostContact(words, outcome="lost", so_far=Running(seen.run_id, seen.stdout, seen.stderr))
        return seen

    async def _stop_quietly(self, run_id: str) -> None:
        # Its start may come after us; then it must find that it is not wanted any more.
        with contextlib.suppress(SandboxError):
            await self._shell.ask(RUNS, "stop", id=run_id, keep="0", revoke="yes")

    async def _beat(self, command: Command) -> Beat:
        """Raises LostContact where it was paused, or is gone."""
        seconds = time.monotonic() - self._starting.get(command.run_id, time.monotonic())
        try:
            seen = await self.observe(command.run_id, keep=4096)
        except (Gone, Paused):
            await self._explain(command)
            return Beat(seconds)
        except SandboxError:
            return Beat(seconds)
        heard = seen.stdout.tail or seen.stdout.head or seen.stderr.tail or seen.stderr.head
        return Beat(seconds, seen.stdout.total + seen.stderr.total, last_line(heard))

    def _later(self, chore: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        # A failure that nobody waits for any more is not an error in the log.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def observe(self, run_id: str, *, keep: int = 40_000) -> Observation:
        seen = await self._ask_about("look", run_id, keep)
        begun = self._starting.get(run_id)
        # A start that is on its way is no run that is missing.
        if isinstance(seen, Missing) and begun is not None:
            return Running(run_id, seconds=round(time.monotonic() - begun, 2))
        return seen

    async def stop(self, run_id: str, *, keep: int = 40_000) -> Observation:
        seen = await self._ask_about("stop", run_id, keep)
        while isinstance(seen, Missing) and run_id in self._starting:
            await asyncio.sleep(SOON_S)
            seen = await self._ask_about("stop", run_id, keep)
        return seen

    async def _ask_about(self, verb: str, run_id: str, keep: int) -> Observation:
        if not RUN_ID.match(run_id):
            return Missing(run_id, "it is not known in this container")
        answer = await self._shell.ask(RUNS, verb, id=run_id, keep=str(keep))
        return answer.observation(run_id, keep)

    def forget(self, run_id: str) -> None:
        if not self.is_open or not RUN_ID.match(run_id):
            return
        if not self._known:
            self._later(self._forget_soon())
        self._known.add(run_id)

    async def _forget_soon(self) -> None:
        """Many at once: a request for each would be in the way of the next commands."""
        await asyncio.sleep(FORGET_S)
        with contextlib.suppress(SandboxError):
            await self._forget_known()

    async def _forget_known(self) -> None:
        known, self._known = self._known, set()
        await self._shell.ask(RUNS, "forget", ids=" ".join(sorted(known)))

    async def read(self, path: str, span: Span) -> FileSlice:
        return await self._files.read(path, span)

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        with contextlib.suppress(Unreachable):
            return await self._files.write(path, data, expected)
        # It may have been written before the cut: then the file says so.
        with contextlib.suppress(SandboxError):
            found = await self.read(path, Span(limit=len(data) + 1))
            if found.data == data:
                return Written(found.size, found.version)
        return await self._files.write(path, data, expected)

    async def list(self, path: str, *, recursive: bool = False, limit: int = 200) -> Listing:
        return await self._files.list(path, recursive, limit)

    async def search(self, search: Search) -> Found:
        return await find_matches(self._files, search)

    async def open_lane(self) -> Lane:
        raise Unsupported(
            f"{self.description.name}: file sync needs python3, and {NO_PYTHON}; upload_files and download_files copy "
            "files and folders there, too"
        )

    async def connect(self, port: int) -> Stream:
        raise Unsupported(f"{self.description.name}: a port can be reached by its endpoint only, because {NO_PYTHON}")
