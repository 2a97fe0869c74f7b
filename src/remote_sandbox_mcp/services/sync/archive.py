"""Copies for sandboxes without lanes: one tar archive, moved in parts through ordinary file requests."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import fnmatch
import itertools
import os
import posixpath
import re
import secrets
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ...core.commands.command import Command, Completed, Ending, Excerpt
from ...core.commands.shell import join
from ...core.errors import BadArgument, FileProblem, SandboxError, Unsupported
from ...core.sandboxes.files import Problem, Span
from ...core.sandboxes.sandbox import Sandbox
from ...core.sync.transfer import DEFAULT_EXCLUDES, Order, Outcome, Place, unheard
from ...core.sync.tree import is_name
from ...core.texts.text import last_line
from ...far.program import read_program
from .meter import MOST_PROBLEMS
from .service import Syncs
from .unpacking import pack, unpack

LARGEST = 1 << 30
Result = TypeVar("Result")
# How much is held in memory at once.
PORTION = 16 << 20
CHECK_S, WORK_S, REMOVE_S = 60.0, 3600.0, 30.0
KEEP = 200_000
_COMPLAINT = re.compile(r"(?:tar|find): (?:can't \w+ )?'?(?=\./)")


class Archives:
    """Local files are read and written by an ordinary sync with a temporary folder, so its rules apply."""

    def __init__(self, open_sandbox: Callable[[str], Awaitable[Sandbox]], syncs: Syncs) -> None:
        self._open_sandbox = open_sandbox
        self._syncs = syncs

    async def run(self, order: Order) -> Outcome:
        """Between this machine and a sandbox that has a POSIX shell and tar. Raises SandboxError."""
        begun = time.monotonic()
        far = FarArchive(await self._open_sandbox(order.target.sandbox or order.source.sandbox))
        carry = self._carry_in if order.target.sandbox else self._carry_out
        async with _between() as folder:
            try:
                outcome = await carry(order, far, folder)
            finally:
                await far.remove()
        return replace(outcome, seconds=time.monotonic() - begun)

    # Into the sandbox

    async def _carry_in(self, order: Order, far: FarArchive, folder: Path) -> Outcome:
        root, wanted = await self._destination(order, far)
        tree, files, folders, modes = (str(folder / name) for name in ("tree", "files", "folders", "modes"))
        outcome = await self._gather(order, f"{tree}/{wanted}")
        size = await whole(pack, tree, files, folders, modes)
        if outcome.synced_type == "file":
            if not outcome.sent_files:
                return outcome
            path = posixpath.join(root, *os.listdir(tree))
            if await far.inspect(path) == "dir":
                raise FileProblem(f"{path} is a folder, but {order.source} is a file", "is_dir")
        problems = await far.put(root, files=files, folders=folders, modes=modes)
        if problems and outcome.synced_type == "file":
            raise FileProblem(f"{order.target}: {problems[0].reason}")
        sent = max(0, outcome.sent_files - len(problems))
        return replace(_with_problems(outcome, problems), sent_files=sent, wire_bytes=size)

    async def _destination(self, order: Order, far: FarArchive) -> tuple[str, str]:
        """The remote folder, and the file's name in it where that differs from the local one."""
        path, kind = spelled(order.target.path), await far.inspect(spelled(order.target.path))
        if await asyncio.to_thread(os.path.isdir, order.source.path):
            if kind in ("file", "other"):
                raise FileProblem(f"{order.target} is not a folder, but {order.source} is", "not_a_folder")
            return path, ""
        if kind == "dir" or order.target.path.endswith("/"):
            return path, ""
        root, name = posixpath.split(path)
        if not is_name(name.encode("utf-8", "surrogateescape")):
            raise BadArgument(f"{order.target} does not name a file")
        return root, name

    async def _gather(self, order: Order, path: str) -> Outcome:
        """Collect exactly what is to be sent in a temporary folder."""
        os.mkdir(posixpath.dirname(path))
        gathering = replace(order, target=Place("", path, free=True))
        job = await self._syncs.prepare(gathering)
        if job.plan.bytes > LARGEST:
            job.release()
            raise _too_large(order)
        return await self._syncs.run(gathering, unheard, job)

    # Out of the sandbox

    async def _carry_out(self, order: Order, far: FarArchive, folder: Path) -> Outcome:
        # With a rule that re-includes something, exclusion is decided only after everything has arrived.
        names = () if any(rule.startswith("!") for rule in order.excludes) else DEFAULT_EXCLUDES
        tree, archive = str(folder / "tree"), str(folder / "archive")
        os.mkdir(tree)
        packed = await far.pack(spelled(order.source.path), LARGEST, names if order.default_excludes else ())
        if packed.kind == "missing":
            raise FileProblem(f"{order.source} does not exist", "ENOENT")
        if packed.kind not in ("dir", "file"):
            raise FileProblem(f"{order.source} is neither a file nor a folder", "not_a_file")
        if packed.size > LARGEST:
            raise _too_large(order)
        await far.fetch(archive, packed)
        problems = [*packed.problems, *await self._unpack(order, packed, archive, tree)]
        source = tree if packed.kind == "dir" else _only_file(order, tree, problems)
        outcome = await self._syncs.run(replace(order, source=Place("", source, free=True)), unheard)
        excluded = tuple(sorted({*outcome.excluded, *packed.left_out}))
        return replace(_with_problems(outcome, problems), excluded=excluded, wire_bytes=packed.size)

    async def _unpack(self, order: Order, packed: Packed, archive: str, tree: str) -> list[Problem]:
        try:
            problems = await whole(unpack, archive, tree, LARGEST)
        except FileProblem as problem:
            why = packed.last_words if problem.reason == "broken" else ""
            message = f"{order.source} was not copied: {problem}{f' ({why})' if why else ''}"
            raise FileProblem(message, problem.reason) from None
        os.unlink(archive)
        return problems


@asynccontextmanager
async def _between() -> AsyncIterator[Path]:
    """A private temporary folder, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="remote-sandbox-"))
    try:
        yield folder
    finally:
        await whole(_remove, folder)


def _remove(folder: Path) -> None:
    """Remove a folder, including folders in it that are not writable."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            inner = os.path.join(path, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


async def whole(work: Callable[..., Result], *given: object) -> Result:
    """Run in a thread, to its end even if the caller is cancelled: it must not write into a folder being removed."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        # The caller is gone, so the result is dropped.
        task.cancelled() or task.exception()
        raise


def spelled(path: str) -> str:
    """A path for a shell in the home folder: absolute, or relative to it."""
    below = path[2:] if path.startswith("~/") else "" if path == "~" else path
    normal = posixpath.normpath(below)
    return normal if normal.startswith("/") else f"./{normal}"


def _only_file(order: Order, tree: str, problems: list[Problem]) -> str:
    """The one file, under the name that the user gave, whatever a link to it is called."""
    name = posixpath.basename(spelled(order.source.path))
    found = [entry for entry in os.scandir(tree) if entry.is_file(follow_symlinks=False)]
    if len(found) != 1 or not is_name(os.fsencode(name)):
        why = problems[0].reason if problems else "what came is not one file"
        raise FileProblem(f"{order.source} was not copied: {why}")
    os.rename(found[0].path, os.path.join(tree, name))
    return os.path.join(tree, name)


def _with_problems(outcome: Outcome, problems: Iterable[Problem]) -> Outcome:
    every = (*outcome.problems, *problems)
    count = outcome.problem_count + len(every) - len(outcome.problems)
    return replace(outcome, problems=every[:MOST_PROBLEMS], problem_count=count)


def _too_large(order: Order) -> FileProblem:
    return FileProblem(
        f"{order.source} holds more than {LARGEST >> 20} MiB, the most that is copied at once where there is no "
        "python3; copy parts of it",
        "too_large",
    )


@dataclass(frozen=True)
class Packed:
    """An archive on the sandbox, and its size and problems."""

    kind: str
    path: str = ""
    size: int = 0
    left_out: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    last_words: str = ""


@dataclass(frozen=True)
class _Said:
    values: dict[str, list[str]]
    complaints: str

    def value(self, word: str) -> str:
        return self.values[word][-1] if word in self.values else ""

    @property
    def last_words(self) -> str:
        return last_line(self.complaints.encode("utf-8", "surrogateescape"))


class FarArchive:
    """One archive on a sandbox, under a random name. Every method raises SandboxError."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._name = sandbox.description.name
        self._token = f"archive-{secrets.token_hex(8)}"
        self._folder = ""
        self._run_id = ""
        self._has_begun = False
        self._removing: asyncio.Future[None] | None = None

    async def inspect(self, path: str) -> str:
        """dir, file, other or missing; a link is followed."""
        return (await self._ask("look", path, timeout_s=CHECK_S)).value("kind")

    async def put(self, where: str, **packed: str) -> list[Problem]:
        """Unpack what `pack` made into a folder there; entries that could not be put in place are problems."""
        self._folder, self._has_begun = where, True
        holding = (await self._ask("receive", where, timeout_s=CHECK_S)).value("holding")
        for name, file in packed.items():
            await self._send(file, f"{holding}/{name}")
        said = await self._ask("unpack", holding)
        if "finished" not in said.values:
            raise FileProblem(f"{self._name}: {where}: {said.last_words or 'tar was ended'}")
        return [_problem(text) for text in said.values.get("problem", ())]

    async def _send(self, archive: str, path: str) -> None:
        with await asyncio.to_thread(open, archive, "rb") as file:
            for number in itertools.count():
                if not (part := await asyncio.to_thread(file.read, PORTION)):
                    return
                await self._sandbox.write(f"{path}-{number:06}", part)

    async def pack(self, path: str, most: int, names: Sequence[str]) -> Packed:
        """Make an archive of at most `most` bytes (or one more), without entries of these names."""
        self._has_begun = True
        said = await self._ask("pack", path, str(most), *names)
        size = said.value("size").strip()
        return Packed(
            said.value("kind"),
            posixpath.join(said.value("holding"), "archive"),
            int(size) if size.isascii() and size.isdigit() else 0,
            tuple(rule for rule in names if fnmatch.filter(said.value("left_out").split("\n"), rule)),
            tuple(_complaints(said.complaints)),
            said.last_words,
        )

    async def fetch(self, archive: str, packed: Packed) -> None:
        """Copy it into a file here."""
        with await asyncio.to_thread(open, archive, "xb") as file:
            while file.tell() < packed.size:
                found = await self._sandbox.read(packed.path, Span(file.tell(), PORTION))
                if found.offset != file.tell() or not 0 < len(found.data) <= packed.size - found.offset:
                    raise FileProblem(f"{self._name}: what was packed has changed while it was read", "hostile")
                await asyncio.to_thread(file.write, found.data)

    async def remove(self) -> None:
        """Always, also if the caller was cancelled; without contact it stays there."""
        if self._has_begun:
            self._removing = asyncio.ensure_future(self._remove())
            await asyncio.wait((self._removing,), timeout=REMOVE_S)

    async def _remove(self) -> None:
        with contextlib.suppress(SandboxError):
            if self._run_id:
                # It may still be writing what is to be removed.
                await self._sandbox.stop(self._run_id)
            await self._ask("remove", *filter(None, [self._folder]), timeout_s=REMOVE_S)

    async def _ask(self, verb: str, *words: str, timeout_s: float = WORK_S) -> _Said:
        script = "exec " + join(["sh", "-c", read_program("archive.sh"), "sh", self._token, verb, *words])
        command = Command(script, timeout_s=timeout_s, keep=KEEP)
        self._run_id = command.run_id
        done = await self._sandbox.run(command)
        self._run_id = ""
        self._sandbox.forget(command.run_id)
        if not isinstance(done, Completed) or done.ending is not Ending.EXITED:
            raise FileProblem(f"{self._name}: tar did not end in {timeout_s:.0f} s; copy parts of it")
        said = _Said(self._values(_text(done.stdout)), _text(done.stderr))
        if "lacking" in said.values:
            raise Unsupported(
                f"{self._name}: copying files needs python3 or tar there, and it has neither; install tar, or move "
                "single files by their content"
            )
        if complaint := said.value("complaint"):
            raise FileProblem(f"{self._name}: {complaint.strip().rpartition(chr(10))[2]}")
        if not said.values and verb != "remove":
            raise FileProblem(f"{self._name}: its shell could not: {said.last_words or f'exit code {done.exit_code}'}")
        return said

    def _values(self, printed: str) -> dict[str, list[str]]:
        """The script's answers among other output of the shell."""
        found: dict[str, list[str]] = defaultdict(list)
        for line in printed.split("\n"):
            token, _, rest = line.partition(" ")
            word, _, value = rest.partition(" ")
            if token == self._token:
                with contextlib.suppress(binascii.Error):
                    found[word].append(base64.b64decode(value).decode("utf-8", "surrogateescape"))
        return found


def _text(excerpt: Excerpt) -> str:
    return (excerpt.head + excerpt.tail).decode("utf-8", "surrogateescape")


def _problem(text: str) -> Problem:
    path, _, reason = text.rpartition("\n")
    return Problem(path, reason)


def _complaints(text: str) -> list[Problem]:
    """Parse the messages of find and tar: a program, a path, perhaps quoted, and an error."""
    return [problem for line in text.split("\n") if (problem := _complaint(line))]


def _complaint(line: str) -> Problem | None:
    begun = _COMPLAINT.match(line)
    path, colon, said = line[begun.end() :].partition(": ") if begun else ("", "", "")
    reason = said.rpartition(": ")[2]
    if not colon or not reason or ":" in reason:
        return None
    return Problem(path.removesuffix("'").removeprefix("./"), reason)
