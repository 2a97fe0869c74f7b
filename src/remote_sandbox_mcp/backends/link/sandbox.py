"""A Sandbox over any line to an outpost: reopens the line after a cut, and finds every run again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from ...core import check
from ...core.client import is_again, only_waits
from ...core.commands.command import Command, Completed, Ending, Environment, Excerpt, Missing, Observation, Running
from ...core.errors import ConnectError, FileProblem, LostContact, NotStarted, Unreachable, Unsupported
from ...core.progress import Beat, OutputListener, Progress, StreamName, listener_in, silent
from ...core.sandboxes.files import Entry, FileSlice, Found, Listing, Match, Problem, Search, Span, Written
from ...core.sandboxes.foreign import Fields, to_list, to_number, to_text, to_whole, understood
from ...core.sandboxes.port import Stream, check_port
from ...core.sandboxes.sandbox import Description
from ...core.sandboxes.secret import Secret
from ...core.sync.transfer import Lane
from ...core.texts.text import last_line
from ...far.outpost import wire
from ...far.outpost.files import MOST_PROBLEMS
from ...far.program import ROOT, source
from ...local.waiting import Chores, unlogged, within
from ..mending import Pace, ask_again, mend
from .client import LARGEST, SMALL, Exchange, LineLost, OutpostClient, Refusal, too_long
from .jobs import OutpostJobs

if TYPE_CHECKING:
    from ...core import orders

# How often progress is reported; after how long a run that prints nothing is only waited for; how long a new line is
# tried after a cut; how long the last look at a run that goes on in the background may take.
BEAT_S = 0.5
SILENT_S = 0.05
MEND_S = 20.0
LAST_CHECK_S = 2.0
# How long after a run's time limit the far side may take to end it and to answer.
OVERTIME_S = 60.0
# Where repeated mistakes lock an account, they are usually counted for a quarter of an hour.
REFUSED_S = 900.0
# Time limit of the command that tries the password for sudo.
PROOF_S = 60.0
# A longer script is read from a file, which no other user can read.
LONGEST_OF_OTHERS = 20_000
# The most bytes of one entry of a listing: the longest path, with every byte escaped as six in JSON. The answer with
# all entries is one frame, which may be no larger than LARGEST_LISTING.
ENTRY_BYTES, LARGEST_LISTING = 8 << 10, 32 << 20


class Ports(Protocol):
    """Access to the ports of a sandbox with an outpost."""

    async def connect(self, client: OutpostClient, port: int) -> Stream:
        """Raises PortClosed, ConnectError, Unsupported, and LineLost if a new line may help."""

    async def close(self) -> None: ...


class OutpostSandbox:
    """Sandbox with an outpost, over a line that may be cut at any moment."""

    # Advice for a sandbox in which no process can be started, if there is any.
    crowded = ""

    def __init__(
        self,
        description: Description,
        environment: Environment,
        connect: Callable[[], Awaitable[OutpostClient]],
        branch: Callable[[OutpostClient], Awaitable[Lane]] | None = None,
        ports: Ports | None = None,
        sudo: Secret | None = None,
        queue_rate_s: float = 0.0,
    ) -> None:
        self.description = description
        self._environment = environment
        self._connect = connect
        self._branch = branch
        self._ports = ports
        self._elevation = Elevation(description.name, sudo)
        self._client: OutpostClient | None = None
        self._opening: asyncio.Task[OutpostClient] | None = None
        self._pace = Pace(description.name)
        self._hello: dict[str, Any] = {}
        self._chores = Chores(f"work on {description.name}")
        self._forgotten: list[str] = []
        self._jobs = OutpostJobs(description, environment, self._reach, self._explained, queue_rate_s)

    @property
    def is_open(self) -> bool:
        return self._client is not None and self._client.is_alive

    @property
    def connection(self) -> object | None:
        return self._client if self.is_open else None

    @property
    def jobs(self) -> OutpostJobs:
        return self._jobs

    @property
    def hello(self) -> dict[str, Any]:
        """Facts that the far side reported when the line was opened."""
        return self._hello

    async def open(self) -> None:
        client = await self._reach()
        # A line that seems alive may be cut: the ping shows it now, instead of during the first command.
        with contextlib.suppress(LineLost):
            await client.ping()
            return
        await self._reach()

    async def open_lane(self) -> Lane:
        client = await self._reach()
        if self._branch is None:
            raise Unsupported(f"{self.description.name} offers no way to move files")
        return await self._branch(client)

    async def connect(self, port: int) -> Stream:
        check_port("port", port)
        await self._reach()
        if (ports := self._ports) is None:
            raise Unsupported(f"{self.description.name} offers no way to its ports")

        async def ask() -> Stream:
            return await ports.connect(await self._reach(), port)

        return await ask_again(self.description.name, ask)

    async def close(self) -> None:
        self._send_forgotten()
        self._chores.cancel()
        if self._opening:
            self._opening.cancel()
        if self._ports:
            await self._ports.close()
        if self._client:
            await self._client.close()

    async def _reach(self) -> OutpostClient:
        """The live client, or a new one; callers that come while one is being opened share it."""
        if self._client and self._client.is_alive:
            return self._client
        if self._opening is None or self._opening.done():
            self._opening = unlogged(asyncio.create_task(self._reopen()))
        # Shielded: a caller that is cancelled must not cancel the opening for the others.
        return await asyncio.shield(self._opening)

    async def _reopen(self) -> OutpostClient:
        if self._client:
            await self._client.close()
            self._pace.ended(self._client.ended)
            self._client = None
        await self._pace.wait()
        client = await self._connect()
        self._pace.opened()
        self._client, self._hello = client, client.hello
        python, walls = (str(client.hello.get(name, "")) for name in ("python", "walls"))
        self.description = replace(self.description, python=python, walls=walls)
        return client

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        if command.as_root or (command.user and self._elevation.is_configured):
            await self._elevation.prove(self._try_root)
        if (command.as_root or command.user) and not isinstance(command.input, bytes):
            # The process between us and that command gets all of its input before it begins.
            try:
                command = replace(command, input=await command.whole_input(LARGEST))
            except ValueError as problem:
                raise NotStarted(f"{self.description.name}: no other user's command gets {problem}") from None
        return await self._run(command, patience_s, progress)

    async def _try_root(self) -> None:
        """Try the password by running `true` as root. Raises NotStarted, ConnectError."""
        command = Command("true", "/", timeout_s=PROOF_S, keep=1, as_root=True)
        try:
            await self._run(command, None, silent)
        except LostContact:
            # LostContact would say that the caller's command may have run; it has not begun.
            where = f"unable to run anything as root on {self.description.name}"
            raise Unreachable(f"{where}: contact was lost before the command began") from None
        self.forget(command.run_id)

    async def _run(self, command: Command, patience_s: float | None, progress: Progress) -> Completed | Running:
        order, given = self._order(command), command.input if isinstance(command.input, bytes) else b""
        if command.as_root or command.user:
            order["sudo"] = await self._elevation.order("" if command.as_root else command.user)
        client = first = await self._reach()
        watch = _RunWait(command, patience_s, progress)
        exchange = watch.listen(client.begin(order, given, room=room_of_run(command.keep)))
        stop_feeding = self._feed(client, exchange, command.input)
        try:
            while True:
                try:
                    seen = await watch.follow(client, exchange)
                    return seen or await self._delivered(watch, exchange)
                except LineLost:
                    self._stop_unfed(watch, exchange, "the connection was cut")
                    client = await self._mend(watch, exchange)
                    # The repeated order starts nothing unless it reaches the place of the first one, where a run with
                    # the same id is found again instead of started twice.
                    order["only_in"] = first.hello["place"]
                    exchange = watch.listen(client.begin(order, given, room=room_of_run(command.keep)))
        except asyncio.CancelledError:
            # After a cut the exchange on the new line only watches the run, so the run is stopped by its id.
            if not client.cancel(exchange) or client is not first or is_again():
                self._chores.start(self._stop_quietly(command.run_id))
            raise
        except Refusal as refusal:
            if refusal.reason == "killed":
                # Its keeper was killed. The run's folder shows whether it had begun, and what it had printed.
                return not_missing(await self.observe(command.run_id, keep=command.keep))
            self._elevation.note(refusal)
            raise NotStarted(self._explained(refusal)) from None
        except Unreachable as problem:
            # The run may have started, whatever the far side answered.
            so_far = watch.snapshot(exchange)
            raise LostContact.while_running(self.description.name, str(problem), so_far) from None
        finally:
            stop_feeding()

    def _feed(
        self, client: OutpostClient, exchange: Exchange, given: bytes | AsyncIterable[bytes]
    ) -> Callable[[], object]:
        """Begin to pass on a streamed input; returns what ends that."""
        if isinstance(given, bytes):
            return lambda: None
        return asyncio.create_task(self._pump(client, exchange, given)).cancel

    async def _pump(self, client: OutpostClient, exchange: Exchange, source: AsyncIterable[bytes]) -> None:
        try:
            await client.open_input(exchange).pump(source)
        except OSError:
            # Standard input that cannot be read: the command must not take what came for all of it.
            client.cancel(exchange)

    def _stop_unfed(self, watch: _RunWait, exchange: Exchange, why: str) -> None:
        """Stop a run that can no longer get the rest of its input. Raises LostContact then."""
        if exchange.input is None or exchange.input.is_over:
            return
        self._chores.start(self._stop_quietly(watch.command.run_id))
        message = (
            f"{why} before all of the command's standard input had reached {self.description.name}; the command was "
            "stopped there. What it did before that is not known; check before repeating it"
        )
        raise LostContact(message, outcome="lost", so_far=watch.snapshot(exchange))

    def _order(self, command: Command) -> orders.RunOrder:
        script = self._environment.source(command.script)
        if problem := too_long(script) or self._check_input(command):
            raise NotStarted(f"{self.description.name}: {problem}")
        check.user_name(command.user)
        order: orders.RunOrder = {
            "verb": "run",
            "id": command.run_id,
            "script": script,
            "shell": list(self._environment.shell),
            "env": {**self._environment.env, **command.env},
            "cwd": command.cwd,
            "timeout": command.timeout_s,
            "keep": command.keep,
        }
        if not isinstance(command.input, bytes):
            order["streamed"] = True
        return order

    def _check_input(self, command: Command) -> str:
        """Explain why the command's input cannot be sent; "" if it can."""
        if command.user and len(command.script) > LONGEST_OF_OTHERS:
            return f"a command of another user may have {LONGEST_OF_OTHERS} characters at most; put it into a file"
        if isinstance(command.input, bytes) and len(command.input) > LARGEST - len(command.script) * 12:
            return f"{len(command.input)} bytes of input are more than can be sent with a command; use a file there"
        return ""

    async def _delivered(self, watch: _RunWait, exchange: Exchange) -> Completed | Running:
        """The state of a run that goes on after its call: asked for once more, because its latest output says most."""
        self._stop_unfed(watch, exchange, "its caller waited no longer")
        # If the machine cannot answer, what has come so far is returned, with the run's id.
        with contextlib.suppress(ConnectError, FileProblem, asyncio.TimeoutError, TimeoutError):
            command = watch.command
            seen = await within(self.observe(command.run_id, keep=command.keep), LAST_CHECK_S)
            if not isinstance(seen, Missing):
                return seen
        return watch.snapshot(exchange)

    async def _mend(self, watch: _RunWait, exchange: Exchange) -> OutpostClient:
        """Open a new line after a cut. Raises LostContact if there is none in time."""
        try:
            return await mend(self._reach, min(time.monotonic() + MEND_S, watch.until))
        except ConnectError as problem:
            so_far = watch.snapshot(exchange)
            raise LostContact.while_running(self.description.name, str(problem), so_far) from None

    async def _stop_quietly(self, run_id: str) -> None:
        with contextlib.suppress(ConnectError, FileProblem, asyncio.TimeoutError):
            await within(self.stop(run_id), MEND_S)

    async def observe(self, run_id: str, *, keep: int = 40_000) -> Observation:
        order: orders.ObserveOrder = {"verb": "look", "id": run_id, "keep": keep}
        exchange, end = await self._ask(order, room=room_of_run(keep))
        return self._read_end(run_id, exchange, end)

    async def stop(self, run_id: str, *, keep: int = 40_000) -> Observation:
        order: orders.ObserveOrder = {"verb": "look", "id": run_id, "keep": keep, "stop": True, "wait": 8}
        exchange, end = await self._ask(order, room=room_of_run(keep))
        return self._read_end(run_id, exchange, end)

    def _read_end(self, run_id: str, exchange: Exchange, end: dict[str, Any]) -> Observation:
        with understood(self.description.name):
            return read_end(run_id, exchange, Fields(end))

    def forget(self, run_id: str) -> None:
        # Ids forgotten in the same round of the event loop go in one message.
        if not self._forgotten:
            asyncio.get_running_loop().call_soon(self._send_forgotten)
        self._forgotten.append(run_id)

    def _send_forgotten(self) -> None:
        ids, self._forgotten = " ".join(self._forgotten), []
        if ids and self._client and self._client.is_alive:
            self._client.release(self._client.begin({"verb": "forget", "ids": ids}))

    async def read(self, path: str, span: Span) -> FileSlice:
        order = cast("orders.ReadOrder", {"verb": "read", "path": path, **asdict(span)})
        exchange, end = await self._ask(order, room=span.limit + SMALL)
        data = exchange.part(wire.OUT)
        with understood(self.description.name):
            return read_slice(data, Fields(end))

    async def write(self, path: str, data: bytes, *, expected: str | None = None, force: bool = False) -> Written:
        if len(data) > LARGEST:
            what = f"{len(data)} bytes are more than the {LARGEST} that one write takes"
            advice = "use upload_files with local_path, or sync_local_to_remote"
            raise FileProblem(f"{self.description.name}: {path}: {what}; {advice}", "too_large")
        client = await self._reach()
        order: orders.WriteOrder = {"verb": "write", "path": path}
        if expected is not None:
            order["expected"] = expected
        if force:
            order["force"] = True
        try:
            _, end = await self._answered(client.ask(order, data))
        except LineLost:
            # The file may have been written before the cut. Repeating the request could then fail as "changed".
            with contextlib.suppress(FileProblem):
                found = await self.read(path, Span(limit=len(data) + 1))
                if found.data == data:
                    return Written(found.size, found.version)
            _, end = await self._ask(order, data)
        with understood(self.description.name):
            said = Fields(end)
            return Written(said.whole("size"), said.text("version"), said.flag("created"))

    async def list(self, path: str, *, recursive: bool = False, limit: int = 200) -> Listing:
        order: orders.ListOrder = {"verb": "list", "path": path, "recursive": recursive, "limit": limit}
        _, end = await self._ask(order, room=room_of_listing(limit))
        with understood(self.description.name):
            said = Fields(end)
            entries = tuple(map(read_entry, said.list("entries")[:limit]))
            return Listing(entries, said.flag("truncated"), read_problems(said))

    async def search(self, search: Search) -> Found:
        order = cast("orders.SearchOrder", {"verb": "search", **asdict(search)})
        _, end = await self._ask(order, room=room_of_listing(search.limit))
        with understood(self.description.name):
            said = Fields(end)
            matches = tuple(map(read_match, said.list("matches")[: search.limit]))
            return Found(matches, said.flag("truncated"), read_problems(said))

    async def _ask(
        self, order: orders.OutpostOrder, raw: bytes = b"", *, room: int = SMALL
    ) -> tuple[Exchange, dict[str, Any]]:
        """Send a request that may be repeated on a new line after a cut."""

        async def ask() -> tuple[Exchange, dict[str, Any]]:
            return await self._answered((await self._reach()).ask(order, raw, room=room))

        return await ask_again(self.description.name, ask)

    async def _answered(self, answer: Awaitable[tuple[Exchange, dict[str, Any]]]) -> tuple[Exchange, dict[str, Any]]:
        try:
            return await answer
        except Refusal as refusal:
            raise FileProblem(self._explained(refusal), refusal.reason) from None

    def _explained(self, refusal: Refusal) -> str:
        advice = f"; {self.crowded}" if self.crowded and refusal.reason == "fork" else ""
        return f"{self.description.name}: {refusal}{advice}"


class Elevation:
    """The password for sudo. One that was refused is not tried again for a while."""

    def __init__(self, name: str, password: Secret | None) -> None:
        self._name = name
        self._password = password
        self._tried = self._refused = ""
        self._refused_at = -math.inf
        self._turn = asyncio.Lock()
        self._is_proven = False

    async def prove(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Make sure that the password was accepted once. Raises what the attempt raises."""
        # Many commands at once with a wrong password would be as many mistakes, and lock the account.
        async with self._turn:
            if not self._is_proven:
                await attempt()
                self._is_proven = True

    @property
    def is_configured(self) -> bool:
        return self._password is not None

    async def order(self, user: str = "") -> orders.SudoOrder:
        """The part of a request that has the password. Raises NotStarted, and ConfigError if it cannot be read.

        Another `user` needs none where sudo asks for none.
        """
        if self._password is None:
            if user:
                return {"program": source(ROOT), "user": user}
            raise NotStarted(f"{self._name}: nothing can be run as root there, since its table has no `sudo`")
        # In a thread, because a keyring or a command that gives the password may be slow.
        password = await asyncio.to_thread(self._password.reveal)
        left = self._refused_at + REFUSED_S - time.monotonic()
        if password and password == self._refused and left > 0:
            raise NotStarted(
                f"{self._name}: sudo refused this password, which is not tried again for another {left:.0f} s, so as "
                "not to lock the account: correct the secret that `sudo` names in the machine's table"
            )
        if set("\r\n\0") & set(password):
            raise NotStarted(f"{self._name}: the password for sudo has a line end in it, which sudo cannot read")
        self._tried = password
        order: orders.SudoOrder = {"program": source(ROOT)}
        if password:
            order["password"] = password
        if user:
            order["user"] = user
        return order

    def note(self, refusal: Refusal) -> None:
        if refusal.reason == "sudo_password" and self._password is not None:
            self._refused, self._refused_at, self._is_proven = self._tried, time.monotonic(), False
            # Read it again next time: it may have been corrected where it is kept.
            self._password.forget()


class _RunWait:
    """Waits for one run: until its end, or until the time that the caller waits is over."""

    def __init__(self, command: Command, patience_s: float | None, progress: Progress) -> None:
        self.command = command
        self.progress = progress
        self.begun = time.monotonic()
        # A far side that never reports the end must not keep the caller for ever.
        longest_s = max(0.0, command.timeout_s) + OVERTIME_S
        self.until = self.begun + (longest_s if patience_s is None else min(patience_s, longest_s))
        self._passed_on: dict[StreamName, int] = {"stdout": 0, "stderr": 0}

    def listen(self, exchange: Exchange) -> Exchange:
        """Pass output on as it comes, if there is a listener. After a cut the far side sends it from the beginning."""
        if listener := listener_in(self.progress):
            exchange.on_output = partial(self._pass_on, exchange.parts, listener)
        return exchange

    def _pass_on(self, parts: Mapping[int, bytearray], listener: OutputListener) -> None:
        streams: tuple[tuple[StreamName, int], ...] = (("stdout", wire.OUT), ("stderr", wire.ERR))
        for name, kind in streams:
            if fresh := parts.get(kind, bytearray())[self._passed_on[name] :]:
                self._passed_on[name] += len(fresh)
                listener.heard(name, bytes(fresh))

    async def follow(self, client: OutpostClient, exchange: Exchange) -> Completed | Running | None:
        """The end of the run; None if the caller waits no longer. Raises LineLost, Refusal, LostContact."""
        await asyncio.wait((exchange.done,), timeout=min(SILENT_S, max(0.0, self.until - time.monotonic())))
        if not exchange.heard:
            only_waits.get()()
        while not exchange.done.done():
            left = self.until - time.monotonic()
            if left <= 0:
                client.release(exchange)
                return None
            await asyncio.wait((exchange.done,), timeout=min(left, BEAT_S))
            if not exchange.done.done():
                self._report(exchange)
        end = exchange.done.result()
        with understood(client.name):
            seen = read_end(self.command.run_id, exchange, Fields(end))
        return not_missing(seen)

    def _report(self, exchange: Exchange) -> None:
        # The first `keep` bytes come as they are printed; after that, beats have the count and the last line only.
        is_beyond = exchange.last_bytes > exchange.heard
        line = last_line(exchange.last_text.encode() if is_beyond else exchange.last_heard)
        self.progress(Beat(time.monotonic() - self.begun, max(exchange.last_bytes, exchange.heard), line))

    def snapshot(self, exchange: Exchange) -> Running:
        out, err = exchange.part(wire.OUT), exchange.part(wire.ERR)
        seconds = time.monotonic() - self.begun
        return Running(self.command.run_id, Excerpt(out, total=len(out)), Excerpt(err, total=len(err)), seconds)


def not_missing(seen: Observation) -> Completed | Running:
    """Return the state of a run that we started. Raises LostContact if the machine does not know it any more."""
    if isinstance(seen, Missing):
        raise LostContact.of_lost(seen)
    return seen


def room_of_run(keep: int) -> int:
    """The most bytes of an answer about a run: head and tail of each stream, and how it ended."""
    return 4 * max(0, keep) + SMALL


def room_of_listing(entries: int) -> int:
    return min(LARGEST_LISTING, entries * ENTRY_BYTES + (1 << 20))


# The far side's answers as values. Each function raises ValueError for an answer that cannot be understood.


def read_end(run_id: str, exchange: Exchange, end: Fields) -> Observation:
    """The state of a run, from the END frame of an answer."""
    state = end.text("state")
    if state == "missing":
        return Missing(run_id, end.sentence("reason"))
    folder, seconds = end.text("folder"), end.number("seconds")
    out = _excerpt(exchange, wire.OUT, wire.OUT_TAIL, end.whole("out"), f"{folder}/out")
    err = _excerpt(exchange, wire.ERR, wire.ERR_TAIL, end.whole("err"), f"{folder}/err")
    if state == "running":
        return Running(run_id, out, err, seconds)
    if state == "lost":
        return Missing(run_id, end.sentence("reason"), out, err)
    return Completed(
        run_id,
        end.whole("exit"),
        Ending(end.text("ending")),
        end.text("signal"),
        out,
        err,
        seconds,
        tuple(map(to_whole, end.list("survivors"))),
        tuple(map(to_whole, end.list("left"))),
    )


def _excerpt(exchange: Exchange, head: int, tail: int, total: int, file: str) -> Excerpt:
    if total < 0:
        raise ValueError("less than nothing was printed")
    return Excerpt(exchange.part(head), exchange.part(tail), total, file if total else "")


def read_slice(data: bytes, end: Fields) -> FileSlice:
    return FileSlice(data, end.whole("size"), end.text("version"), end.whole("offset"), end.flag("more"))


def read_entry(entry: object) -> Entry:
    path, kind, size, mtime = to_list(entry)
    return Entry(to_text(path), to_text(kind), to_whole(size), to_number(mtime))


def read_match(match: object) -> Match:
    path, line, text = to_list(match)
    return Match(to_text(path), to_whole(line), to_text(text))


def read_problems(end: Fields) -> tuple[Problem, ...]:
    pairs = [to_list(problem) for problem in end.list("problems")[:MOST_PROBLEMS]]
    return tuple(Problem(to_text(path), to_text(reason)) for path, reason in pairs)
