"""A sandbox in memory, for tests: scripted answers, a dict of files, ports of services, and trouble on demand."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import posixpath
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from remote_sandbox_mcp.core.commands.command import Command, Completed, Ending, Excerpt, Missing, Observation, Running
from remote_sandbox_mcp.core.errors import FileProblem, LostContact, SandboxError, Unreachable, Unsupported
from remote_sandbox_mcp.core.progress import Beat, Progress, silent
from remote_sandbox_mcp.core.sandboxes.files import Entry, FileSlice, Found, Listing, Match, Search, Span, Written
from remote_sandbox_mcp.core.sandboxes.port import PortClosed, Stream, check_port
from remote_sandbox_mcp.core.sandboxes.sandbox import Capabilities, Description
from remote_sandbox_mcp.core.sync.transfer import Lane
from remote_sandbox_mcp.core.texts.text import last_line
from remote_sandbox_mcp.far.outpost.files import compile_pattern, glob_test, read_lines
from remote_sandbox_mcp.far.outpost.place import Refused, to_bytes
from remote_sandbox_mcp.local.waiting import within

from .jobs import FakeJobs

HOME = "/home/fake"
# In the program that tells how busy a machine is.
PROBE = "nvidia-smi --query-gpu"
COLUMNS, APPS = "index,uuid,name,memory.total,memory.used", "gpu_uuid,pid,used_memory,process_name"
EVERYTHING = Capabilities(survives_disconnect=True, kills_trees=True)


@dataclass(frozen=True)
class Answer:
    """Behaviour of a command: it prints, then ends with `exit_code` or goes on with what `then` gives."""

    stdout: str | bytes = b""
    stderr: str | bytes = b""
    exit_code: int = 0
    then: Callable[[], Awaitable[Answer]] | None = None


def after(seconds: float, answer: Answer | None = None) -> Callable[[], Awaitable[Answer]]:
    """For `then`: an answer that comes later. `Answer("so far", then=after(math.inf))` never ends by itself."""

    async def wait() -> Answer:
        await asyncio.sleep(seconds)
        return answer or Answer()

    return wait


Answers = Mapping[str, Answer] | Callable[[Command], Answer]


class FakeSandbox:
    """Keeps the Sandbox protocol without a machine.

    A script is never interpreted: `answers` says what it does, by its exact text or by calling (which may raise
    NotStarted); one without an answer ends with 127, as an unknown command does. Each printed piece is a beat.
    Files are the bytes in `files`, by absolute path; a folder is there where a file is in it. There are no links and
    no modes. `commands` holds what was started, in order, each run once; `forgotten` the ids that were let go.
    `jobs` are background jobs that a test ends. Where it has `jobs.cards`, looks at how busy it is show them; `looks`
    counts these. `ports` say who answers where: called with its end of a connection.
    With `delay_s` every call takes that much longer.
    """

    def __init__(
        self,
        answers: Answers | None = None,
        *,
        files: Mapping[str, bytes] | None = None,
        name: str = "fake",
        capabilities: Capabilities = EVERYTHING,
    ) -> None:
        self.description = Description(name, "fake", capabilities=capabilities)
        self.answers: Answers = {} if answers is None else answers
        self.files = {full_path(path): data for path, data in (files or {}).items()}
        self.commands: list[Command] = []
        self.forgotten: list[str] = []
        self.delay_s = 0.0
        self.looks = 0
        self._failure: SandboxError | None = None
        self._line: asyncio.Future[None] | None = None
        self._runs: dict[str, _Run] = {}
        self.jobs = FakeJobs(self._reach, HOME)
        self.ports: dict[int, Service] = {}

    def fail(self, failure: SandboxError | None) -> None:
        """From now on every call raises this, with nothing done; None makes all well again."""
        self._failure = failure

    def lose_contact(self) -> None:
        """Cut the connection: waiting calls of `run` get LostContact, the runs go on, the next call opens a new one."""
        if self._line is not None and not self._line.done():
            self._line.set_result(None)

    @property
    def is_open(self) -> bool:
        return self._line is not None and not self._line.done()

    @property
    def connection(self) -> object | None:
        return self._line if self.is_open else None

    async def open(self) -> None:
        await self._reach()

    async def close(self) -> None:
        self.lose_contact()

    async def _reach(self) -> asyncio.Future[None]:
        await asyncio.sleep(self.delay_s)
        if self._failure is not None:
            raise self._failure
        if self._line is None or self._line.done():
            self._line = asyncio.get_running_loop().create_future()
        return self._line

    # Commands

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        line = await self._reach()
        run = self._runs.get(command.run_id) or self._start(command, progress)
        try:
            await asyncio.wait((run.task, line), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            run.stop()
            raise
        seen = run.seen(command.keep)
        if line.done() and isinstance(seen, Running):
            raise LostContact(f"contact with {self.description.name} was lost", outcome="unknown", so_far=seen)
        return seen

    def _start(self, command: Command, progress: Progress) -> _Run:
        answer = self._answer(command)
        self.commands.append(command)
        run = self._runs[command.run_id] = _Run(command, answer, progress)
        return run

    def _answer(self, command: Command) -> Answer:
        if PROBE in command.script and self.jobs.cards is not None:
            self.looks += 1
            return Answer(probed(self.jobs))
        if callable(self.answers):
            return self.answers(command)
        return self.answers.get(command.script, Answer(stderr=f"{command.script}: not found\n", exit_code=127))

    async def observe(self, run_id: str, *, keep: int = 40_000) -> Observation:
        await self._reach()
        run = self._runs.get(run_id)
        return run.seen(keep) if run else Missing(run_id, "it is not known here")

    async def stop(self, run_id: str, *, keep: int = 40_000) -> Observation:
        await self._reach()
        if run := self._runs.get(run_id):
            run.stop()
            await asyncio.wait((run.task,))
        return await self.observe(run_id, keep=keep)

    def forget(self, run_id: str) -> None:
        self.forgotten.append(run_id)
        if run_id in self._runs and self._runs[run_id].task.done():
            del self._runs[run_id]

    # Files

    async def read(self, path: str, span: Span) -> FileSlice:
        await self._reach()
        data = self._data(full_path(path))
        if span.lines:
            start, part, more = read_lines(io.BytesIO(data), span.line, span.lines, span.limit)
        else:
            start = max(0, len(data) + span.offset) if span.offset < 0 else span.offset
            part, more = data[start : start + span.limit], start + span.limit < len(data)
        return FileSlice(part, len(data), version_of(data), start, more)

    async def write(self, path: str, data: bytes, *, expected: str | None = None, force: bool = False) -> Written:
        await self._reach()
        target = full_path(path)
        if self._is_folder(target):
            raise FileProblem(f"{target} is not a regular file, so it is not replaced", "not_a_file")
        old = self.files.get(target)
        if expected == "" and old is not None:
            raise FileProblem(f"{target} exists already", "exists")
        if expected and (old is None or expected != version_of(old)):
            raise FileProblem(f"{target} has changed since it was read", "stale")
        self.files[target] = bytes(data)
        return Written(len(data), version_of(data), created=old is None)

    async def list(self, path: str, *, recursive: bool = False, limit: int = 200) -> Listing:
        await self._reach()
        root = full_path(path)
        if not self._is_folder(root):
            return Listing((Entry(root, "file", len(self._data(root)), 0.0),))
        paths = [path for path in self._below(root) if recursive or posixpath.dirname(path) == root]
        return Listing(tuple(map(self._entry, paths[:limit])), len(paths) > limit)

    async def search(self, search: Search) -> Found:
        await self._reach()
        root = full_path(search.path)
        if not self._is_folder(root):
            self._data(root)
        try:
            matches = tuple(self._matches(root, search))
        except Refused as refusal:
            raise FileProblem(str(refusal), refusal.reason) from None
        return Found(matches[: search.limit], len(matches) > search.limit)

    async def open_lane(self) -> Lane:
        raise Unsupported(f"{self.description.name} offers no way to move files")

    async def connect(self, port: int) -> Stream:
        line = await self._reach()
        if check_port("port", port) not in self.ports:
            raise PortClosed(f"{self.description.name}: nothing accepts connections at port {port}")
        return converse(self.ports[port], line)

    def _data(self, path: str) -> bytes:
        if self._is_folder(path):
            raise FileProblem(f"{path} is a folder", "is_dir")
        if path not in self.files:
            raise FileProblem(f"{path}: No such file or directory", "ENOENT")
        return self.files[path]

    def _is_folder(self, path: str) -> bool:
        return path in ("/", HOME) or any(file.startswith(f"{path}/") for file in self.files)

    def _below(self, root: str) -> Sequence[str]:
        """Every file and folder below a folder, in the order of their names."""
        inside = [file for file in self.files if file.startswith(root.rstrip("/") + "/")]
        ends = [(file, at) for file in inside for at in range(len(root) + 1, len(file) + 1)]
        return sorted({file[:at] for file, at in ends if file[at : at + 1] in ("", "/")}, key=to_bytes)

    def _entry(self, path: str) -> Entry:
        data = self.files.get(path)
        return Entry(path, "dir", 0, 0.0) if data is None else Entry(path, "file", len(data), 0.0)

    def _matches(self, root: str, search: Search) -> Iterator[Match]:
        fits, wanted = glob_test(search.glob), compile_pattern(search.pattern, search.ignore_case)
        for path in self._below(root) or (root,):
            data, below = self.files.get(path), to_bytes(posixpath.relpath(path, root))
            if data is None or not (path == root or fits(posixpath.basename(below), below)):
                continue
            if wanted is None:
                yield Match(path)
            elif b"\0" not in data:
                lines = enumerate((line.rstrip(b"\r\n") for line in io.BytesIO(data)), 1)
                yield from (Match(path, n, line.decode("utf-8", "replace")) for n, line in lines if wanted.search(line))


class _Run:
    """A started command: what it has printed, and how it ended."""

    def __init__(self, command: Command, answer: Answer, progress: Progress) -> None:
        self.task = asyncio.ensure_future(self._play(answer))
        self._command = command
        self._progress = progress
        self._begun = time.monotonic()
        self._seconds = 0.0
        self._out, self._err = bytearray(), bytearray()
        self._ending, self._exit_code, self._signal = Ending.EXITED, 0, ""

    async def _play(self, answer: Answer) -> None:
        try:
            self._exit_code = await within(self._print(answer), self._command.timeout_s)
        except asyncio.TimeoutError:
            self._ending, self._exit_code, self._signal = Ending.TIMED_OUT, 124, "SIGTERM"
        finally:
            self._seconds = time.monotonic() - self._begun

    async def _print(self, answer: Answer) -> int:
        while True:
            self._out += to_data(answer.stdout)
            self._err += to_data(answer.stderr)
            self._beat()
            if answer.then is None:
                return answer.exit_code
            answer = await answer.then()

    def _beat(self) -> None:
        line = last_line(bytes(self._out) or bytes(self._err))
        self._progress(Beat(time.monotonic() - self._begun, len(self._out) + len(self._err), line))

    def stop(self) -> None:
        if not self.task.done():
            self._ending, self._exit_code, self._signal = Ending.STOPPED, 143, "SIGTERM"
            self.task.cancel()

    def seen(self, keep: int) -> Completed | Running:
        out, err = excerpt(bytes(self._out), keep), excerpt(bytes(self._err), keep)
        run_id = self._command.run_id
        if not self.task.done():
            return Running(run_id, out, err, time.monotonic() - self._begun)
        if not self.task.cancelled():
            # What went wrong in an answer is the test's own mistake, and is shown to it.
            self.task.result()
        return Completed(run_id, self._exit_code, self._ending, self._signal, out, err, self._seconds)


def full_path(path: str) -> str:
    """An absolute path; `~` and relative paths start at HOME."""
    below = HOME + path[1:] if path == "~" or path.startswith("~/") else path
    return posixpath.normpath(posixpath.join(HOME, below))


def version_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def to_data(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def excerpt(data: bytes, keep: int) -> Excerpt:
    """Cut a stream to its ends, `keep` bytes of each, none of them twice."""
    return Excerpt(data[:keep], data[max(keep, len(data) - keep) :], len(data))


# As much as a real connection holds before its writer has to wait.
MOST_UNREAD = 1 << 18

Service = Callable[[Stream], Awaitable[None]]


class MemoryStream:
    """One end of a connection; `other` is the other one."""

    other: MemoryStream

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._ended = False
        # Why nothing can be read any more, and why nothing can be sent.
        self._trouble = self._deaf = ""
        self._changed = asyncio.Event()

    async def read(self, most: int = 65536) -> bytes:
        await self._until(lambda: bool(self._arrived) or self._ended)
        data = bytes(self._arrived[:most])
        del self._arrived[: len(data)]
        if not data and self._trouble:
            raise cut(self._trouble)
        self._note()
        return data

    def write(self, data: bytes) -> None:
        if not self._deaf:
            self.other._arrived += data
            self.other._note()

    async def drain(self) -> None:
        await self.other._until(lambda: len(self.other._arrived) < MOST_UNREAD)
        if self._deaf:
            raise cut(self._deaf)

    def write_eof(self) -> None:
        self.other._ended = True
        self.other._note()

    def close(self) -> None:
        """The other end finds the end of what was sent, and cannot send any more."""
        self._arrived.clear()
        self._ended = True
        self._note()
        self.other._ended = True
        self.other._deaf = self.other._deaf or "the other side has closed it"
        self.other._note()

    def lose(self, why: str) -> None:
        self._trouble, self._deaf, self._ended = why, why, True
        self.other._arrived.clear()
        self.other._note()
        self._note()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _note(self) -> None:
        self._changed.set()


def cut(why: str) -> Unreachable:
    return Unreachable(f"the connection was cut: {why}")


def converse(service: Service, line: asyncio.Future[None]) -> MemoryStream:
    """A caller's end of a connection to the service; it is cut when the sandbox's line is, or the service fails."""
    ours, theirs = MemoryStream(), MemoryStream()
    ours.other, theirs.other = theirs, ours

    async def serve() -> None:
        # That the caller has gone is nothing that a service must expect.
        with contextlib.suppress(Unreachable), contextlib.closing(theirs):
            await service(theirs)

    serving = asyncio.ensure_future(serve())

    def lose(_: object) -> None:
        ours.lose("the line was lost")
        serving.cancel()

    line.add_done_callback(lose)
    # A failure of a fake service is not hidden: the event loop logs it.
    serving.add_done_callback(lambda _: line.remove_done_callback(lose))
    return ours


def probed(jobs: FakeJobs) -> str:
    """What probe.sh prints on a machine with these cards: a card that is used or leased has a process of its user."""
    jobs.free()
    cards = jobs.cards or []
    taken = {card.uuid: card.used_by or ("me" if card.holder else "") for card in cards}
    rows = [
        f" {number}, {card.uuid}, Fake, {card.memory_mb}, {9000 if taken[card.uuid] else 3}"
        for number, card in enumerate(cards)
    ]
    pids = {card.uuid: 100 + number for number, card in enumerate(cards) if taken[card.uuid]}
    apps = [f" {uuid}, {pid}, 8000, python3" for uuid, pid in pids.items()]
    owners = [f" {pid} {taken[uuid]} 10:00 python3" for uuid, pid in pids.items()]
    head = ["@@ probe 1", "@@ load", " 0.5 0.5 0.5", "@@ cpus", " online: 8", " usable: 8"]
    listed = [f"@@ nvidia 0 {COLUMNS}", *rows, f"@@ apps 0 {APPS}", *apps, "@@ owners", *owners] if rows else []
    return "\n".join([*head, *listed, "@@ end", ""])
