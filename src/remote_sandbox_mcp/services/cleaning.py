"""Removal of what use has left on a sandbox: records of what has ended, and programs that were lent."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.commands.command import Command
from ..core.commands.shell import join
from ..core.errors import Unsupported
from ..core.texts.text import harmless
from ..far.program import read_program
from .fleet import Fleet

CLEAN_S = 120.0
LONGEST_ANSWER = 4 << 20


@dataclass(frozen=True)
class Leftover:
    """A folder of ours on a sandbox: a run, a job or a program."""

    kind: str
    path: str


@dataclass(frozen=True)
class Cleaned:
    """Files that were removed, and what was kept because it runs, or may."""

    removed: tuple[Leftover, ...]
    kept: tuple[Leftover, ...]


async def clean(fleet: Fleet, name: str, *, is_dry: bool = False) -> Cleaned:
    """Clean one sandbox; with `is_dry`, only say what would be removed. Raises SandboxError."""
    sandbox = await fleet.get(name)
    words = ["sh", "-c", read_program("clean.sh"), "clean", *(["dry"] if is_dry else [])]
    seen = await sandbox.run(Command(f"exec {join(words)}", "", CLEAN_S, LONGEST_ANSWER))
    sandbox.forget(seen.run_id)
    lines = harmless(seen.stdout.head + seen.stdout.tail).splitlines()
    if "blind" in lines:
        raise Unsupported(
            f"unable to clean {name}: its processes cannot be seen (there is no /proc), so what runs is not known; "
            "remove ~/.local/state/remote-sandbox and /tmp/remote-sandbox-UID there when nothing runs."
        )
    return Cleaned(_of(lines, "removed"), _of(lines, "kept"))


def _of(lines: list[str], word: str) -> tuple[Leftover, ...]:
    parts = (line.split(" ", 2) for line in lines)
    return tuple(Leftover(it[1], it[2]) for it in parts if len(it) == 3 and it[0] == word)
