"""The far side of a copy as an archive: asks archive.sh, and moves the archive itself in portions."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import itertools
import posixpath
import re
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ..core.command import Command, Completed, Ending, Excerpt
from ..core.errors import FileProblem, SandboxError, Unsupported
from ..core.files import Problem, Span
from ..core.output import last_line
from ..core.sandbox import Sandbox
from ..core.shell import join

# As much as is held in memory at once.
PORTION = 16 << 20
LOOK_S, WORK_S, REMOVE_S = 60.0, 3600.0, 30.0
KEEP = 200_000
_COMPLAINT = re.compile(r"(?:tar|find): (?:can't \w+ )?'?(?=\./)")


@dataclass(frozen=True)
class Packed:
    """An archive that lies there, and what was said of it."""

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
    """One archive on a sandbox; nobody else knows its name. Every method raises SandboxError."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._name = sandbox.description.name
        self._token = f"archive-{secrets.token_hex(8)}"
        self._folder = ""
        self._run_id = ""
        self._has_begun = False
        self._removing: asyncio.Future[None] | None = None

    async def look(self, path: str) -> str:
        """dir, file, other or missing; a link is followed."""
        return (await self._ask("look", path, timeout_s=LOOK_S)).value("kind")

    async def put(self, where: str, **packed: str) -> list[Problem]:
        """Unpack what `pack` made into a folder there; entries that could not be put in place are problems."""
        self._folder, self._has_begun = where, True
        holding = (await self._ask("receive", where, timeout_s=LOOK_S)).value("holding")
        for name, file in packed.items():
            await self._send(file, f"{holding}/{name}")
        said = await self._ask("unpack", holding)
        if "finished" not in said.values:
            raise FileProblem(f"{self._name}: {where}: {said.last_words or 'tar was ended'}")
        return [_problem(text) for text in said.values.get("problem", ())]

    async def _send(self, archive: str, path: str) -> None:
        with await asyncio.to_thread(open, archive, "rb") as file:
            for number in itertools.count():
                part = await asyncio.to_thread(file.read, PORTION)
                if not part:
                    return
                await self._sandbox.write(f"{path}-{number:06}", part)

    async def pack(self, path: str, most: int, names: Sequence[str]) -> Packed:
        """Make an archive of at most so many bytes, or one more; without what has one of these names."""
        self._has_begun = True
        said = await self._ask("pack", path, str(most), *names)
        size = said.value("size").strip()
        return Packed(
            said.value("kind"),
            posixpath.join(said.value("holding"), "archive"),
            int(size) if size.isascii() and size.isdigit() else 0,
            tuple(name for name in said.value("left_out").split("\n") if name in names),
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
        """In any case, and also where the caller has left; without contact it stays there."""
        if self._has_begun:
            self._removing = asyncio.ensure_future(self._remove())
            await asyncio.wait((self._removing,), timeout=REMOVE_S)

    async def _remove(self) -> None:
        with contextlib.suppress(SandboxError):
            if self._run_id:
                # It may still be about to make what is removed.
                await self._sandbox.stop(self._run_id)
            await self._ask("remove", *filter(None, [self._folder]), timeout_s=REMOVE_S)

    async def _ask(self, verb: str, *words: str, timeout_s: float = WORK_S) -> _Said:
        script = "exec " + join(["sh", "-c", _script(), "sh", self._token, verb, *words])
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
        """What the script said among what else a shell may print."""
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
    """What find and tar could not read, from their lines: a program, a path, perhaps in quotes, and an error."""
    return [problem for line in text.split("\n") if (problem := _complaint(line))]


def _complaint(line: str) -> Problem | None:
    begun = _COMPLAINT.match(line)
    path, colon, said = line[begun.end() :].partition(": ") if begun else ("", "", "")
    reason = said.rpartition(": ")[2]
    if not colon or not reason or ":" in reason:
        return None
    return Problem(path.removesuffix("'").removeprefix("./"), reason)


@cache
def _script() -> str:
    return resources.files(__package__).joinpath("archive.sh").read_text(encoding="utf-8")
