"""What look.sh and collect.sh print, as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .suite import Found

_MARK = b"@@ "


@dataclass(frozen=True)
class Frame:
    """One answer: a word, the rest of its line, and the lines of a text that belongs to it."""

    word: str
    value: str
    data: bytes = b""


@dataclass(frozen=True)
class Collected:
    """What a run wrote: the plan it followed, the report that was asked for, files that appeared or changed.

    `cut` names those of which not everything is here; `whole` says that the answer itself came to its end.
    """

    plan: str = ""
    report: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: tuple[str, ...] = ()
    whole: bool = False


def frames(output: bytes, opening: str) -> Iterator[Frame]:
    """The answers after the opening line. Raises ValueError without one: what came before was not ours."""
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
    # The scripts end every text with one line more, in case its last had no end.
    return Frame(word, value, b"\n".join(data[:-1] if data[-1:] == [b""] else data))


def parse_look(output: bytes) -> tuple[Found, str]:
    """The folder, and the place for what the run will write. Raises ValueError for an answer that breaks off."""
    told = list(frames(output, "look 1"))
    one = {frame.word: frame.value for frame in told}
    if "place" not in one or "end" not in one:
        raise ValueError("the answer breaks off")
    texts = {frame.value: frame.data.decode("utf-8", "replace") for frame in told if frame.word == "text"}
    tools = {name: value for name, _, value in (frame.value.partition(" ") for frame in told if frame.word == "tool")}
    found = Found(
        folder=one.get("folder", "").strip(),
        names=_named(told, "name"),
        texts=texts,
        tools=tools,
        for_pytest=_named(told, "pytest"),
        for_unittest=_named(told, "unittest"),
    )
    return found, one["place"]


def _named(told: list[Frame], word: str) -> frozenset[str]:
    return frozenset(frame.value.removeprefix("./") for frame in told if frame.word == word)


def parse_collected(output: bytes) -> Collected:
    """Raises ValueError for an answer that is none."""
    told = list(frames(output, "collect 1"))
    one = {frame.word: frame.data for frame in told}
    return Collected(
        plan=one.get("plan", b"").decode("utf-8", "replace").strip(),
        report=one.get("report", b""),
        files={frame.value.removeprefix("./"): frame.data for frame in told if frame.word == "file"},
        cut=tuple(frame.value.removeprefix("./") for frame in told if frame.word == "cut"),
        whole="end" in one,
    )
