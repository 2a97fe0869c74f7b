"""A Sandbox whose commands and jobs a POSIX shell runs; files are served by the shell, too, or by the backend."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time

from ...core import errors
from ...core.commands.command import RUN_ID, Command, Completed, Environment, Missing, Observation, Running
from ...core.errors import ConnectError, NotStarted, SandboxError
from ...core.jobs.job import Jobs
from ...core.progress import Beat, Progress, silent
from ...core.sandboxes.files import FileSlice, Found, Listing, Search, Span, Written
from ...core.sandboxes.port import Stream
from ...core.sandboxes.sandbox import Description
from ...core.sync.transfer import Lane
from ...core.texts.text import last_line
from ...far.outpost.place import to_bytes
from ...local.waiting import Chores, within
from ..link.sandbox import not_missing
from . import program
from .files import ShellFiles
from .jobs import ShellJobs
from .program import RUNS, TOO_LONG, Shell, ShellAnswer, fits, pair, start_values
from .search import find_matches
from .transport import FULL, Gone, NoRoom, Paused, ShellPlace, ShellRequest, Transport

BEAT_S, MEND_S, SOON_S = 0.5, 20.0, 0.1
FORGET_S = 1.0
# A call whose waiting time is over still waits so long for a free session, and for the output so far.
START_S, SNAPSHOT_S = 15.0, 5.0
# How often a start without a sign of life is looked for, and how long it may take to begin.
ASK_S, CLAIM_S = 1.0, 60.0
# How long after a run's time limit the far side may take to end it and to answer.
OVERTIME_S = 60.0
MOST_INPUT = 16 << 20


class ShellSandbox:
    """Does what OutpostSandbox does for commands and jobs, more slowly. Its backend adds files, ports and lanes."""

    def __init__(
        self, description: Description, environment: Environment, transport: Transport, place: ShellPlace
    ) -> None:
        self.description = description
        self._environment = environment
        self._shell = Shell(transport, place)
        self.jobs: Jobs = ShellJobs(self._shell, environment)
        # Runs whose start was sent twice. Their folders are not removed: they keep a late request from starting again.
        self._tried_twice: set[str] = set()
        self._to_forget: set[str] = set()
        # Failures are not logged: nobody waits for what is done later.
        self._chores = Chores("work on a shell", expected=(Exception,))

    @property
    def is_open(self) -> bool:
        return self._shell.is_open

    @property
    def connection(self) -> object | None:
        """Requests may have no connection in common: then what carries them stands for it."""
        return self._shell if self.is_open else None

    async def open(self) -> None:
        """Check that a shell answers there. Raises ConnectError."""
        await self._shell.open()

    async def close(self) -> None:
        """Close the connections. Runs go on: they do not depend on our requests."""
        if self._to_forget and self.is_open:
            with contextlib.suppress(SandboxError, asyncio.TimeoutError):
                await within(self._forget_runs(), FORGET_S)
        await self._chores.close()
        await self._shell.close()

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        if not RUN_ID.match(command.run_id):
            raise errors.BadArgument(f"{command.run_id!r} is not a run id")
        if command.user:
            why = f"{self.description.name}: nothing can be run as {command.user[:64]!r}"
            raise NotStarted(f"{why} there, because that needs python3; nothing was run")
        if not self.is_open:
            await self.open()
        watch = _RunWait(command, patience_s, progress)
        following, is_cancelled = asyncio.ensure_future(self._follow(watch)), False
        try:
            while not following.done() and watch.left_s > 0:
                await asyncio.wait((following,), timeout=min(BEAT_S, watch.left_s))
                watch.report()
            return following.result() if following.done() else await self._so_far(watch, following)
        except asyncio.CancelledError:
            is_cancelled = True
            raise
        finally:
            following.cancel()
            try:
                await asyncio.gather(following, return_exceptions=True)
            finally:
                # Checked after the request has ended, because the start may have been sent at the moment of the cancel.
                if is_cancelled and watch.sent:
                    self._chores.start(self._stop_quietly(command.run_id))

    async def _so_far(self, watch: _RunWait, following: asyncio.Future[Completed | Running]) -> Completed | Running:
        """The state of a run that outlasts its call; waits until the far side has accepted it."""
        over, asked = time.monotonic(), 0.0
        while not following.done():
            waited = time.monotonic() - over
            if waited > (CLAIM_S if watch.sent else START_S):
                if watch.sent:
                    return watch.so_far()
                busy = "all of its sessions are busy with other commands; try again later"
                raise NotStarted(f"{self.description.name}: {busy}")
            if watch.claimed or (watch.sent and waited - asked > ASK_S):
                asked = waited
                seen = await self._snapshot(watch)
                if not isinstance(seen, Missing) or watch.claimed:
                    return self._result(seen, watch)
            await asyncio.wait((following,), timeout=SOON_S)
        return following.result()

    def _result(self, seen: Observation, watch: _RunWait) -> Completed | Running:
        if watch.given_up and isinstance(seen, Running):
            raise errors.LostContact.while_running(self.description.name, "it did not end when it was killed", seen)
        return not_missing(seen)

    async def _snapshot(self, watch: _RunWait) -> Observation:
        """The output of a running command so far, if that can be read soon."""
        with contextlib.suppress(ConnectError, asyncio.TimeoutError):
            return await within(self._ask_about("look", watch.command.run_id, watch.command.keep), SNAPSHOT_S)
        return watch.so_far() if watch.claimed else Missing(watch.command.run_id, "")

    async def _follow(self, watch: _RunWait) -> Completed | Running:
        """Start the run, or find the one that an earlier request started, and wait for its end."""
        values = await self._order(watch.command)
        give_up, delay = 0.0, 0.0
        while True:
            begun, request = time.monotonic(), self._request(watch, values)
            try:
                if not self.is_open:
                    await self.open()
                return not_missing(self._seen(watch.command, await self._attended(request, watch)))
            except NoRoom:
                raise NotStarted(f"{self.description.name}: unable to begin: {FULL}") from None
            except ConnectError as problem:
                await self._explain(watch)
                now = time.monotonic()
                # Each sign of life of a run that has begun renews the time for reconnecting.
                give_up = give_up if give_up and watch.heard_at < begun else min(now + MEND_S, watch.until)
                is_passing = isinstance(problem, errors.Unreachable) and not isinstance(problem, errors.BrokenRules)
                if now + delay >= give_up or not is_passing:
                    raise self._lost(str(problem), watch) from None
                await asyncio.sleep(delay)
                delay = min(delay * 2 or SOON_S, 2.0)

    def _request(self, watch: _RunWait, values: dict[str, str]) -> ShellRequest:
        """The request that starts the run. Once sent, a repeated one may start it only where the first was sent."""
        if watch.sent:
            self._tried_twice.add(watch.command.run_id)
            values = {**values, "only_in": watch.where}
        else:
            watch.where = self._shell.where
        request = self._shell.request(RUNS, "start", values, 6 * watch.command.keep, watch.hear, urgent=False)
        watch.begin(request)
        return request

    async def _attended(self, request: ShellRequest, watch: _RunWait) -> ShellAnswer:
        """The answer to a request. During silence the platform is asked whether the place is gone or paused."""
        asking = asyncio.ensure_future(self._shell.send(request))
        try:
            while not asking.done():
                await asyncio.wait((asking,), timeout=program.CHECK_S)
                if not asking.done() and time.monotonic() - watch.heard_at >= program.CHECK_S:
                    await self._explain(watch)
            return asking.result()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _order(self, command: Command) -> dict[str, str]:
        """The variables for `start`. Raises NotStarted for what does not fit into variables."""
        values, script = start_values(command, self._environment), self._environment.source(command.script)
        if "\0" in script:
            raise errors.BadArgument(program.NO_NUL)
        if not fits(values["exports"]) or not fits(values["words"]):
            raise NotStarted(f"{self.description.name}: {TOO_LONG} {self._shell.place.at}")
        try:
            if given := await self._whole_input(command):
                coded = base64.b64encode(given)
                values = {**values, "input": await self._shell.upload(f"{command.run_id}.input", coded)}
            if fits(script):
                return {**values, "script": script}
            return {**values, "from": await self._shell.upload(f"{command.run_id}.script", to_bytes(script))}
        except NoRoom:
            raise NotStarted(f"{self.description.name}: unable to begin: {FULL}") from None

    async def _whole_input(self, command: Command) -> bytes:
        """The command's input up to its end: a shell is given it before the command starts. Raises NotStarted."""
        try:
            return await command.whole_input(MOST_INPUT)
        except ValueError as problem:
            why = f"without python3 there, no command gets {problem}; use a file"
            raise NotStarted(f"{self.description.name}: {why}") from None

    def _seen(self, command: Command, answer: ShellAnswer) -> Observation:
        if answer.text("state") == "refused":
            why = answer.data("why").decode("utf-8", "replace")
            raise NotStarted(f"{self.description.name}: {why}")
        return answer.observation(command.run_id, command.keep)

    async def _explain(self, watch: _RunWait) -> None:
        """Raises LostContact if the container is gone or paused, and the run with it."""
        fate = await self._shell.why_not()
        if lost := lost_with(self.description.name, fate, Running(watch.command.run_id)):
            raise lost

    def _lost(self, why: str, watch: _RunWait) -> errors.LostContact:
        so_far, name = watch.so_far(), self.description.name
        if not watch.sent:
            message = f"contact with {name} was lost before the command was sent ({why}); it was not started"
            return errors.LostContact(message, outcome="not_started", so_far=so_far)
        return errors.LostContact.while_running(name, why, so_far)

    async def _stop_quietly(self, run_id: str) -> None:
        # The start may arrive after this stop; `revoke` makes it start nothing then.
        with contextlib.suppress(SandboxError):
            await self._shell.ask(RUNS, "stop", {"id": run_id, "keep": "0", "revoke": "yes"})

    async def observe(self, run_id: str, *, keep: int = 40_000) -> Observation:
        return await self._ask_about("look", run_id, keep)

    async def stop(self, run_id: str, *, keep: int = 40_000) -> Observation:
        # It reaches the run's session; a process that left that cannot be found.
        return await self._ask_about("stop", run_id, keep)

    async def _ask_about(self, verb: str, run_id: str, keep: int) -> Observation:
        if not RUN_ID.match(run_id):
            return Missing(run_id, self._shell.place.unknown)
        answer = await self._shell.ask(RUNS, verb, {"id": run_id, "keep": str(keep)}, 6 * keep)
        return answer.observation(run_id, keep)

    def forget(self, run_id: str) -> None:
        if not self.is_open or not RUN_ID.match(run_id) or run_id in self._tried_twice:
            return
        if not self._to_forget:
            self._chores.start(self._forget_soon())
        self._to_forget.add(run_id)

    async def _forget_soon(self) -> None:
        """Remove the folders of several runs in one request: one for each would delay the next commands."""
        await asyncio.sleep(FORGET_S)
        with contextlib.suppress(SandboxError):
            await self._forget_runs()

    async def _forget_runs(self) -> None:
        run_ids, self._to_forget = self._to_forget, set()
        await self._shell.ask(RUNS, "forget", {"ids": " ".join(sorted(run_ids))})


def lost_with(name: str, fate: ConnectError | None, so_far: Running) -> errors.LostContact | None:
    """The error for a run whose container is gone or paused; None if it is neither."""
    if isinstance(fate, Gone):
        return errors.LostContact(f"the command was lost with {name}. {fate}", outcome="lost", so_far=so_far)
    if isinstance(fate, Paused):
        words = f"{name} was paused while the command ran; it goes on when {name} is resumed, and can be asked for as"
        return errors.LostContact(f"{words} {so_far.run_id!r}", outcome="unknown", so_far=so_far, says_how_to_ask=True)
    return None


class _RunWait:
    """One run for which a caller waits: until its end, or until the caller waits no longer."""

    def __init__(self, command: Command, patience_s: float | None, progress: Progress) -> None:
        self.command = command
        self._request: ShellRequest | None = None
        self._was_sent = False
        # The place to which the first start was sent.
        self.where = ""
        self.claimed = False
        self._progress = progress
        self._begun = self._reported = self.heard_at = time.monotonic()
        self._bytes, self._line = 0, ""
        # A far side that never reports the end must not keep the caller for ever.
        longest_s = max(0.0, command.timeout_s) + OVERTIME_S
        self.given_up = patience_s is None or patience_s > longest_s
        self.until = self._begun + (longest_s if patience_s is None else min(patience_s, longest_s))

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()

    @property
    def sent(self) -> bool:
        """Whether a start may have reached the far side."""
        return self._was_sent or (self._request is not None and self._request.sent)

    def begin(self, request: ShellRequest) -> None:
        """Note another attempt to start it."""
        self._was_sent, self._request = self.sent, request

    def hear(self, line: str) -> None:
        """Read one line of the answer while it comes: `claimed` and `beat`; others are ignored."""
        word, value = pair(line)
        if word in ("claimed", "beat"):
            self.heard_at, self.claimed = time.monotonic(), True
        if word == "beat":
            count, _, text = value.partition(" ")
            with contextlib.suppress(ValueError):
                self._line = last_line(base64.b64decode(text[:4096]))
                self._bytes = min(int(count[:18]), 1 << 62)

    def report(self) -> None:
        now = time.monotonic()
        if now - self._reported > BEAT_S * 0.9:
            self._reported = now
            self._progress(Beat(now - self._begun, self._bytes, self._line))

    def so_far(self) -> Running:
        return Running(self.command.run_id, seconds=time.monotonic() - self._begun)


class ShellAlone(ShellSandbox):
    """Commands, jobs and files through one shell. `ports` begins the sentence that refuses a port."""

    ports = "a port cannot be reached"

    def __init__(
        self, description: Description, environment: Environment, transport: Transport, place: ShellPlace
    ) -> None:
        super().__init__(description, environment, transport, place)
        self._files = ShellFiles(self._shell)
        self._why = f"there is no python3 {place.at}"

    async def read(self, path: str, span: Span) -> FileSlice:
        return await self._files.read(path, span)

    async def write(self, path: str, data: bytes, *, expected: str | None = None, force: bool = False) -> Written:
        with contextlib.suppress(errors.Unreachable):
            return await self._files.write(path, data, expected, force)
        # The file may have been written before the cut. Repeating the request could then fail as "changed".
        with contextlib.suppress(SandboxError):
            found = await self.read(path, Span(limit=len(data) + 1))
            if found.data == data:
                return Written(found.size, found.version)
        return await self._files.write(path, data, expected, force)

    async def list(self, path: str, *, recursive: bool = False, limit: int = 200) -> Listing:
        return await self._files.list(path, recursive, limit)

    async def search(self, search: Search) -> Found:
        return await find_matches(self._files, search)

    async def open_lane(self) -> Lane:
        raise errors.Unsupported(
            f"{self.description.name}: file sync needs python3, and {self._why}; upload_files and download_files copy "
            "files and folders there, too"
        )

    async def connect(self, port: int) -> Stream:
        raise errors.Unsupported(f"{self.description.name}: {self.ports}, because {self._why}")
