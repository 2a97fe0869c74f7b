"""A Sandbox for SSH machines without Python: commands over plain session channels, files over SFTP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.command import RUN_ID, Command, Completed, Environment, Missing, Observation, Running
from ...core.errors import (
    BadArgument,
    BrokenRules,
    ConnectError,
    FileProblem,
    LostContact,
    NotStarted,
    SandboxError,
    Unreachable,
)
from ...core.files import FileSlice, Found, Listing, Search, Span, Written
from ...core.foreign import understood
from ...core.job import NoJobs
from ...core.port import Stream
from ...core.progress import Beat, Progress, silent
from ...core.sandbox import Description
from ...waiting import within
from ..outpost.client import LineLost, Refusal
from ..pace import Pace
from .channels import Channels
from .connection import Gate
from .plain_files import PlainFiles
from .plain_search import find_matches
from .ports import PlainPorts
from .runner import START_LINE, Answer, Order, Talk, order, start_order
from .sftp_lane import SftpLane, open_lane

if TYPE_CHECKING:
    import asyncssh


MEND_S = 20.0
# How long a caller without patience still waits for a free channel, and for what was printed so far.
START_S, SNAPSHOT_S = 15.0, 5.0
FORGET_S = 1.0
ANSWER_S = 90.0

T = TypeVar("T")


class PlainSandbox:
    """The answers of an outpost, from a POSIX shell: slower, and "unknown" where a shell cannot know."""

    def __init__(
        self,
        description: Description,
        environment: Environment,
        gate: Gate,
        connection: asyncssh.SSHClientConnection | None = None,
    ) -> None:
        """`connection`: one that is logged in already."""
        self.description = description
        self._environment = environment
        self._channels = Channels(gate)
        if connection is not None:
            self._channels.adopt(connection)
        self._files = PlainFiles(self._channels, description.name, self._find_home)
        self._ports = PlainPorts(gate)
        self._opening: asyncio.Task[None] | None = None
        self._place = ""
        self._home: str | None = None
        self._tried_twice: set[str] = set()
        self._known: set[str] = set()
        self._chores: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._channels.is_open

    @property
    def jobs(self) -> NoJobs:
        return NoJobs(f"{self.description.name}: background jobs need python3 on the machine, and it has none")

    async def open(self) -> None:
        """The far side has a shell that answers."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._greet())
            # A failure that nobody waits for any more is not an error in the log.
            self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._opening)

    async def _greet(self) -> None:
        answer = await self._ask(order("hello"))
        if not answer.place:
            raise Unreachable(f"unable to open {self.description.name}: it offers no private folder for runs")
        self._place, self._home = answer.place, answer.values

    async def close(self) -> None:
        if self._known and self.is_open:
            with contextlib.suppress(SandboxError, asyncio.TimeoutError):
                await within(self._forget_known(), FORGET_S)
        for task in (*self._chores, *([self._opening] if self._opening else [])):
            task.cancel()
        await self._ports.close()
        await self._channels.close()

    async def _reach(self) -> None:
        if not self.is_open or not self._place:
            await self.open()

    async def _find_home(self) -> str:
        if self._home is None:
            await self.open()
        return self._home or "/"

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        request = self._start_order(command)
        await self._reach()
        watch = Watch(command, patience_s, progress, self._place, self.description.name)
        try:
            while True:
                try:
                    return await self._follow(watch, request)
                except LineLost:
                    watch.pace.ended(time.monotonic())
                    await self._mend(watch)
                    request = self._start_again(watch)
        except asyncio.CancelledError:
            if watch.sent:
                self._later(self._stop_quietly(command.run_id))
            raise
        except Refusal as refusal:
            raise NotStarted(f"{self.description.name}: {refusal}") from None
        except BrokenRules as problem:
            # Whatever it answered, it may have started it.
            raise self._lost(str(problem), watch) from None

    def _start_order(self, command: Command, only_in: str = "") -> Order:
        if not RUN_ID.match(command.run_id):
            raise BadArgument(f"{command.run_id!r} is not a run id")
        return start_order(command, self._environment, only_in)

    def _start_again(self, watch: Watch) -> Order:
        """The same id never starts twice where the first start can be found again."""
        if not watch.sent:
            return self._start_order(watch.command)
        # Its folder stays: it is what keeps a start that is still on its way from starting it again.
        self._tried_twice.add(watch.command.run_id)
        return self._start_order(watch.command, watch.place)

    async def _follow(self, watch: Watch, request: Order) -> Completed | Running:
        """Start, or find the start that an earlier line made, and wait. Raises LineLost."""
        async with contextlib.AsyncExitStack() as stack:
            channel = stack.enter_async_context(self._channels.process(START_LINE))
            try:
                process = await within(channel, max(START_S, watch.left_s))
            except asyncio.TimeoutError:
                return self._never_its_turn(watch)
            except ConnectError as problem:
                # It was open a moment ago.
                raise LineLost from problem
            watch.pace.opened()
            answer = await watch.follow(Talk(process, request, self.description.name))
        if answer is None:
            answer = await self._look_once(watch)
        return watch.judge(answer) if answer else watch.so_far()

    def _never_its_turn(self, watch: Watch) -> Running:
        if watch.sent:
            return watch.so_far()
        raise NotStarted(f"{self.description.name}: all of its sessions are busy with other commands; try again later")

    async def _look_once(self, watch: Watch) -> Answer | None:
        """What a run that goes on has printed so far, if that can be learned soon."""
        request = order("look", id=watch.command.run_id, keep=str(watch.command.keep))
        with contextlib.suppress(ConnectError, asyncio.TimeoutError):
            return await within(self._ask(request), SNAPSHOT_S)
        return None

    async def _mend(self, watch: Watch) -> None:
        """A new line after a cut. Raises LostContact when there is none in time."""
        delay = 0.1 if watch.mend_until else 0.0
        watch.mend_until = give_up = watch.mend_until or min(time.monotonic() + MEND_S, watch.until)
        if time.monotonic() > give_up:
            raise self._lost("it was cut again and again", watch)
        while True:
            await asyncio.sleep(delay)
            delay = min(delay * 2 or 0.1, 2.0)
            try:
                await watch.pace.wait()
                return await within(self._reach(), max(0.1, give_up - time.monotonic()))
            except (ConnectError, TimeoutError, asyncio.TimeoutError) as problem:
                passing = isinstance(problem, Unreachable) and not isinstance(problem, BrokenRules)
                final = isinstance(problem, ConnectError) and not passing
                if time.monotonic() + delay > give_up or final:
                    raise self._lost(str(problem) or "no answer in time", watch) from None

    def _lost(self, why: str, watch: Watch) -> LostContact:
        so_far, name = watch.so_far(), self.description.name
        if not watch.sent:
            message = f"contact with {name} was lost before the command was sent ({why}); it was not started"
            return LostContact(message, outcome="not_started", so_far=so_far)
        return LostContact.while_running(name, why, so_far)

    async def _stop_quietly(self, run_id: str) -> None:
        # Its start may come after us; then it must find that it is not wanted any more.
        request = order("stop", id=run_id, wait="8", revoke="yes")
        with contextlib.suppress(SandboxError, asyncio.TimeoutError):
            await within(self._ask(request), MEND_S)

    def _later(self, chore: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def observe(self, run_id: str, *, keep: int = 40_000) -> Observation:
        return await self._ask_about(run_id, "look", keep, wait="0")

    async def stop(self, run_id: str, *, keep: int = 40_000) -> Observation:
        return await self._ask_about(run_id, "stop", keep, wait="8")

    async def _ask_about(self, run_id: str, verb: str, keep: int, wait: str) -> Observation:
        if not RUN_ID.match(run_id):
            return Missing(run_id, "it is not known on this machine")
        answer = await self._ask(order(verb, id=run_id, keep=str(keep), wait=wait))
        with understood(self.description.name):
            try:
                return answer.observation(run_id)
            except Refusal as refusal:
                raise Unreachable(f"{self.description.name}: {refusal}") from None

    def forget(self, run_id: str) -> None:
        if not self.is_open or not RUN_ID.match(run_id) or run_id in self._tried_twice:
            return
        if not self._known:
            self._later(self._forget_soon())
        self._known.add(run_id)

    async def _forget_soon(self) -> None:
        """Many at once: a channel for each would be in the way of the next commands."""
        await asyncio.sleep(FORGET_S)
        with contextlib.suppress(SandboxError):
            await self._forget_known()

    async def _forget_known(self) -> None:
        known, self._known = self._known, set()
        await self._ask(order("forget", ids=" ".join(sorted(known))))

    async def read(self, path: str, span: Span) -> FileSlice:
        return await self._twice(lambda: self._files.read(path, span))

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        with contextlib.suppress(LineLost):
            return await self._files.write(path, data, expected)
        # It may have been written before the cut: then the file says so.
        with contextlib.suppress(FileProblem):
            found = await self.read(path, Span(limit=len(data) + 1))
            if found.data == data:
                return Written(found.size, found.version)
        return await self._twice(lambda: self._files.write(path, data, expected))

    async def list(self, path: str, *, recursive: bool = False, limit: int = 200) -> Listing:
        return await self._twice(lambda: self._files.list(path, recursive, limit))

    async def search(self, search: Search) -> Found:
        """The pattern is an extended regular expression, as `grep -E` understands it."""
        home = await self._find_home()
        return await self._twice(lambda: find_matches(self._channels, self.description.name, home, search))

    async def open_lane(self) -> SftpLane:
        home = await self._find_home()
        return await self._twice(lambda: open_lane(self._channels, self.description.name, home))

    async def connect(self, port: int) -> Stream:
        return await self._ports.connect(port)

    async def _ask(self, request: Order) -> Answer:
        """A request that may be repeated on a new line after a cut, and does not wait behind runs."""
        return await self._twice(lambda: self._ask_once(request))

    async def _ask_once(self, request: Order) -> Answer:
        async with self._channels.process(START_LINE, urgent=True) as process:
            name = self.description.name
            try:
                return await within(Talk(process, request, name).hold(), ANSWER_S)
            except asyncio.TimeoutError:
                raise Unreachable(f"{name} did not answer in {ANSWER_S:.0f} s; try again later") from None

    async def _twice(self, action: Callable[[], Awaitable[T]]) -> T:
        with contextlib.suppress(LineLost):
            return await action()
        try:
            return await action()
        except LineLost:
            raise Unreachable(f"{self.description.name}: the connection was cut twice in a row; try again") from None


BEAT_S = 0.5
# How long after its own time limit the far side may take to end a run, and to tell it; and to take one at all.
OVERTIME_S, CLAIM_S = 60.0, 60.0


class Watch:
    """Waits for one run: until its end, or until the caller's patience is over."""

    def __init__(self, command: Command, patience_s: float | None, progress: Progress, place: str, name: str) -> None:
        self.command = command
        self.name = name
        self.pace = Pace(name)
        self.progress = progress
        self.place = place
        self.sent = False
        self.mend_until = 0.0
        self.begun = self.beaten = time.monotonic()
        # Who never tells the end of a run does not keep its caller for ever.
        longest_s = max(0.0, command.timeout_s) + OVERTIME_S
        self.until = self.begun + (longest_s if patience_s is None else min(patience_s, longest_s))

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()

    async def follow(self, talk: Talk) -> Answer | None:
        """The whole answer, or None when patience is over; never before the far side has taken the run."""
        holding = asyncio.create_task(talk.hold())
        try:
            while not holding.done():
                if self.left_s <= (0 if talk.answer.claimed else -CLAIM_S):
                    return None
                await asyncio.wait((holding,), timeout=max(0.05, min(self.left_s, BEAT_S)))
                self._report(talk.answer)
            return holding.result()
        finally:
            self.sent = self.sent or talk.sent
            self.place = talk.answer.place or self.place
            self.mend_until = 0.0 if talk.answer.heard else self.mend_until
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)

    def _report(self, answer: Answer) -> None:
        now = time.monotonic()
        if now - self.beaten > BEAT_S * 0.9:
            self.beaten = now
            self.progress(Beat(now - self.begun, answer.last_bytes, answer.last_text))

    def judge(self, answer: Answer) -> Completed | Running:
        """Raises Refusal for what could not be started, LostContact for what is not there any more, BrokenRules."""
        with understood(self.name):
            seen = answer.observation(self.command.run_id)
        if not isinstance(seen, Missing):
            return seen
        never = answer.verdict == "unstarted"
        advice = "It was not started" if never else "What it did before that is not known; look before repeating it"
        raise LostContact(
            f"the run was lost: {seen.reason}. {advice}",
            outcome="not_started" if never else "lost",
            so_far=Running(seen.run_id, seen.stdout, seen.stderr),
        )

    def so_far(self) -> Running:
        return Running(self.command.run_id, seconds=time.monotonic() - self.begun)
