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

    `missing` says, for a suite that cannot be run, what would have to be there; `problem`, for one that is run, which
    tests of the folder it leaves out. `expects` names modules from which at least one test must have been run. `lent`
    says that the server puts a pytest into the sandbox for this run; it lies at `argv[1]`.
    """

    runner: str
    argv: tuple[str, ...] = ()
    command: str = ""
    missing: str = ""
    others: tuple[str, ...] = ()
    problem: str = ""
    lent: str = ""
    expects: tuple[str, ...] = ()

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
            return cls(
                **words,
                argv=tuple(map(str, told["argv"])),
                others=tuple(map(str, told["others"])),
                # Earlier releases wrote none of these.
                problem=str(told.get("problem", "")),
                lent=str(told.get("lent", "")),
                expects=tuple(map(str, told.get("expects", ()))),
            )
        except (KeyError, TypeError) as problem:
            raise ValueError("it is not a plan of ours") from problem


@dataclass(frozen=True)
class Loan:
    """A pytest that the server can put into the sandbox, and the oldest Python that it runs on."""

    version: str
    oldest: tuple[int, int]


@dataclass(frozen=True)
class Found:
    """A folder as look.sh saw it: names below it, the texts of a few, and the tools that are there.

    Where no Python there has pytest, `for_pytest` are the test files that only pytest can run, and `for_unittest` those
    with classes that unittest may run; `loan` is a pytest that the server can lend, else `remedy` says how to get one.
    """

    folder: str = ""
    names: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    for_pytest: frozenset[str] = frozenset()
    for_unittest: frozenset[str] = frozenset()
    loan: Loan | None = None
    remedy: str = "install it in a virtual environment there (python3 -m venv .venv && .venv/bin/pip install pytest)"

    def has(self, *names: str) -> bool:
        return any(name in self.names for name in names)
