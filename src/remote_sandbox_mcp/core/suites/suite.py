"""A test suite: its runner, its command, its report; and what look.sh and collect.sh print about it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from ..commands.command import Excerpt

GIVEN = "command"
_MARK = b"@@ "
MOST_FAILURES = 50
MOST_SLOWEST = 5
_NOTHING = Excerpt()


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
            parts = json.loads(text)
            words = {name: str(parts[name]) for name in ("runner", "command", "missing")}
            return cls(
                **words,
                argv=tuple(map(str, parts["argv"])),
                others=tuple(map(str, parts["others"])),
                # Earlier releases wrote none of these.
                problem=str(parts.get("problem", "")),
                lent=str(parts.get("lent", "")),
                expects=tuple(map(str, parts.get("expects", ()))),
            )
        except (KeyError, TypeError) as problem:
            raise ValueError("it is not a plan of ours") from problem


@dataclass(frozen=True)
class Loan:
    """A pytest that the server can put into the sandbox, and the oldest Python that it runs on."""

    version: str
    oldest: tuple[int, int]


@dataclass(frozen=True)
class SuiteFolder:
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


@dataclass(frozen=True)
class Frame:
    """One answer of a script: a word, the rest of its line, and the lines of text that belong to it."""

    word: str
    value: str
    data: bytes = b""


@dataclass(frozen=True)
class Collected:
    """Files of a run: its plan, the report that we asked for, and others that appeared or changed.

    `cut` names files that are incomplete here; `whole` says that the answer itself is complete.
    """

    plan: str = ""
    report: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: tuple[str, ...] = ()
    whole: bool = False


def frames(output: bytes, opening: str) -> Iterator[Frame]:
    """The answers after the opening line. Raises ValueError without one: then the output is not our script's."""
    lines = output.split(b"\n")
    begun = f"@@ {opening}".encode()
    if begun not in lines:
        raise ValueError("the answer has no beginning")
    head: bytes | None = None
    data: list[bytes] = []
    for line in lines[lines.index(begun) + 1 :]:
        if line.startswith(_MARK):
            if head is not None:
                yield _frame(head, data)
            head, data = line, []
        elif line.startswith(b" "):
            data.append(line[1:])
    if head is not None:
        yield _frame(head, data)


def _frame(head: bytes, data: list[bytes]) -> Frame:
    word, _, value = head[len(_MARK) :].decode("utf-8", "surrogateescape").partition(" ")
    # The scripts add one line to every text, in case its last line had no line break.
    return Frame(word, value, b"\n".join(data[:-1] if data[-1:] == [b""] else data))


def parse_inspection(output: bytes) -> tuple[SuiteFolder, str]:
    """The folder, and where the run will write its files. Raises ValueError for an incomplete answer."""
    parts = list(frames(output, "look 1"))
    one = {frame.word: frame.value for frame in parts}
    if "place" not in one or "end" not in one:
        raise ValueError("the answer breaks off")
    texts = {frame.value: frame.data.decode("utf-8", "replace") for frame in parts if frame.word == "text"}
    tools = {name: value for name, _, value in (frame.value.partition(" ") for frame in parts if frame.word == "tool")}
    found = SuiteFolder(
        folder=one.get("folder", "").strip(),
        names=_named(parts, "name"),
        texts=texts,
        tools=tools,
        for_pytest=_named(parts, "pytest"),
        for_unittest=_named(parts, "unittest"),
    )
    return found, one["place"]


def _named(parts: list[Frame], word: str) -> frozenset[str]:
    return frozenset(frame.value.removeprefix("./") for frame in parts if frame.word == word)


def parse_collected(output: bytes) -> Collected:
    """Raises ValueError for an answer that is none."""
    parts = list(frames(output, "collect 1"))
    one = {frame.word: frame.data for frame in parts}
    return Collected(
        plan=one.get("plan", b"").decode("utf-8", "replace").strip(),
        report=one.get("report", b""),
        files={frame.value.removeprefix("./"): frame.data for frame in parts if frame.word == "file"},
        cut=tuple(frame.value.removeprefix("./") for frame in parts if frame.word == "cut"),
        whole="end" in one,
    )


# What came of it


@dataclass(frozen=True)
class TestFailure:
    """A test that failed or could not be run. `id` is what the runner calls it; `line` is 0 where it is not known."""

    # pytest takes every class whose name begins with Test for one of its own.
    __test__: ClassVar[bool] = False

    id: str
    message: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Timing:
    """Duration of one test."""

    id: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TestReport:
    """One run of a suite. Zero counts with a `problem` mean that the result is unknown.

    `complete` says that the run came to its end and that the counts cover all of it. `failures` holds the first
    MOST_FAILURES of `failed + errors`. `log` and `stderr` are both ends of what was printed, with the file on the
    machine that has all of it; runners that we start ourselves print everything to `log`.
    """

    __test__: ClassVar[bool] = False

    runner: str
    command: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    errors: int = 0
    duration: float = 0.0
    failures: tuple[TestFailure, ...] = ()
    slowest: tuple[Timing, ...] = ()
    coverage: float | None = None
    exit_code: int = 0
    log: Excerpt = _NOTHING
    stderr: Excerpt = _NOTHING
    complete: bool = True
    problem: str = ""
    # What the counts were read from, so that they can be checked.
    source: str = ""
    # Other runners that also fit the folder.
    others: tuple[str, ...] = ()
    # That the server brought the runner (pytest) along, and where it is.
    lent: str = ""

    @property
    def failures_left_out(self) -> int:
        return max(0, self.failed + self.errors - len(self.failures))
