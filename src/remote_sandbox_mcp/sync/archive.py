"""Copies where a sandbox has no lanes: one tar archive, through the verbs that every sandbox has."""

from __future__ import annotations

import asyncio
import os
import posixpath
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ..core.errors import BadArgument, FileProblem
from ..core.files import Problem
from ..core.sandbox import Sandbox
from ..core.transfer import DEFAULT_EXCLUDES, Order, Outcome, Place, unheard
from ..core.tree import is_name
from .archive_far import FarArchive, Packed
from .service import Syncs
from .tally import MOST_PROBLEMS
from .unpacking import pack, unpack

LARGEST = 1 << 30
Result = TypeVar("Result")


class Archives:
    """What is read and written here goes through an ordinary sync with a folder in between: its rules hold."""

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
            await self._check_place(order, far, posixpath.join(root, *os.listdir(tree)))
        problems = await far.put(root, files=files, folders=folders, modes=modes)
        if problems and outcome.synced_type == "file":
            raise FileProblem(f"{order.target}: {problems[0].reason}")
        sent = max(0, outcome.sent_files - len(problems))
        return replace(_with_problems(outcome, problems), sent_files=sent, wire_bytes=size)

    async def _destination(self, order: Order, far: FarArchive) -> tuple[str, str]:
        """The folder there, and what a file shall be called in it, where that is not as it is called here."""
        path, kind = spelled(order.target.path), await far.look(spelled(order.target.path))
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
        """What goes there, and nothing else, in a folder of ours."""
        os.mkdir(posixpath.dirname(path))
        gathering = replace(order, target=Place("", path, free=True))
        job = self._syncs.begin(gathering)
        if (await job.prepare()).bytes > LARGEST:
            job.release()
            raise _too_large(order)
        return await self._syncs.run(gathering, unheard, job)

    async def _check_place(self, order: Order, far: FarArchive, path: str) -> None:
        if await far.look(path) == "dir":
            raise FileProblem(f"{path} is a folder, but {order.source} is a file", "is_dir")

    # Out of the sandbox

    async def _carry_out(self, order: Order, far: FarArchive, folder: Path) -> Outcome:
        # Where a rule brings something back, what is left out is known only when all is here.
        names = () if any(rule.startswith("!") for rule in order.excludes) else DEFAULT_EXCLUDES
        tree, archive = str(folder / "tree"), str(folder / "archive")
        os.mkdir(tree)
        packed = await far.pack(spelled(order.source.path), LARGEST, names if order.default_excludes else ())
        self._check_packed(order, packed)
        await far.fetch(archive, packed)
        problems = [*packed.problems, *await self._unpack(order, packed, archive, tree)]
        source = tree if packed.kind == "dir" else _only_file(order, tree, problems)
        outcome = await self._syncs.run(replace(order, source=Place("", source, free=True)), unheard)
        excluded = tuple(sorted({*outcome.excluded, *packed.left_out}))
        return replace(_with_problems(outcome, problems), excluded=excluded, wire_bytes=packed.size)

    def _check_packed(self, order: Order, packed: Packed) -> None:
        if packed.kind == "missing":
            raise FileProblem(f"{order.source} does not exist", "ENOENT")
        if packed.kind not in ("dir", "file"):
            raise FileProblem(f"{order.source} is neither a file nor a folder", "not_a_file")
        if packed.size > LARGEST:
            raise _too_large(order)

    async def _unpack(self, order: Order, packed: Packed, archive: str, tree: str) -> list[Problem]:
        try:
            problems = await whole(unpack, archive, tree, LARGEST)
        except FileProblem as problem:
            why = packed.last_words if problem.reason == "broken" else ""
            told = f"{order.source} was not copied: {problem}{f' ({why})' if why else ''}"
            raise FileProblem(told, problem.reason) from None
        os.unlink(archive)
        return problems


@asynccontextmanager
async def _between() -> AsyncIterator[Path]:
    """A folder of this user's alone; nothing of it stays."""
    folder = Path(tempfile.mkdtemp(prefix="remote-sandbox-"))
    try:
        yield folder
    finally:
        await whole(_remove, folder)


def _remove(folder: Path) -> None:
    """Also what is in folders that their owner may not write to."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            inner = os.path.join(path, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


async def whole(work: Callable[..., Result], *given: object) -> Result:
    """In a thread, to its end even if the caller leaves: nobody may write into what is then removed."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        # Nobody is there to hear of it.
        task.cancelled() or task.exception()
        raise


def spelled(path: str) -> str:
    """As a shell takes it that stands in the home folder: absolute, or from there on."""
    below = path[2:] if path.startswith("~/") else "" if path == "~" else path
    normal = posixpath.normpath(below)
    return normal if normal.startswith("/") else f"./{normal}"


def _only_file(order: Order, tree: str, problems: list[Problem]) -> str:
    """Under the name that its user has for it, whatever a link to it leads to."""
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
