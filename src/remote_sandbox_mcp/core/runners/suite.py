"""A test suite that is to be run: by which runner, with which command, and where its report will lie."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

GIVEN = "command"


@dataclass(frozen=True)
class Suite:
    """`argv` is what we start ourselves; for a command that was given it is empty and `command` is the script.

    `missing` says, for a suite that cannot be run, what would have to be there.
    """

    runner: str
    argv: tuple[str, ...] = ()
    command: str = ""
    missing: str = ""
    others: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        return self.command or shlex.join(self.argv)

    def dumped(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loaded(cls, text: str) -> Suite:
        """Raises ValueError for what `dumped` did not write."""
        try:
            told = json.loads(text)
            words = {name: str(told[name]) for name in ("runner", "command", "missing")}
            return cls(**words, argv=tuple(map(str, told["argv"])), others=tuple(map(str, told["others"])))
        except (KeyError, TypeError) as problem:
            raise ValueError("it is not a plan of ours") from problem


@dataclass(frozen=True)
class Found:
    """A folder as look.sh saw it: names below it, the texts of a few, and the tools that are there."""

    folder: str = ""
    names: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        return any(name in self.names for name in names)
