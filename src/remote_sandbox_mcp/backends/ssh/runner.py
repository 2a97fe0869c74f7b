"""The near half of runner.sh: the text that is sent to a shell, and what comes back as values."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING

from ...core.command import Command, Completed, Ending, Environment, Excerpt, Missing, Observation, Running
from ...core.errors import BadArgument, Unreachable
from ...core.foreign import NONSENSE, not_understood, too_much
from ...core.shell import join, quote
from ...core.text import last_line
from ...waiting import within
from ..outpost.client import SMALL, LineLost, Refusal

if TYPE_CHECKING:
    import asyncssh

# One argument may hold 128 KiB on Linux; a longer script is read from its file.
LONGEST_ARGUMENT = 100_000
LONGEST_GREETING = 1 << 20
# The far side says something every two seconds while a command runs; it may be very busy, or stopped.
SILENCE_S = 20.0
LONGEST_S = 10 * 365 * 86400
# Plain words only, so that every login shell takes it alike.
START_LINE = "exec sh -s"
# Not what is read-only in some shell, nor what would change how the runner itself finds and splits words.
_EXPORTED = re.compile(r"(?!(?:PATH|IFS|UID|EUID|PPID|BASHOPTS|SHELLOPTS|rs_\w*)\Z)[A-Za-z_][A-Za-z0-9_]*\Z")
_WHOLE, _SECONDS = re.compile(r"[0-9]{1,18}\Z"), re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?\Z")
MOST_LIVING = 100


@functools.cache
def program(*pieces: str) -> str:
    folder = files(__package__)
    return "".join(folder.joinpath(piece).read_text(encoding="utf-8") for piece in pieces)


@dataclass(frozen=True)
class Order:
    """What is asked of the far side; nothing of it happens before the last line has arrived."""

    text: bytes
    last: bytes
    token: str
    # How many bytes of a stream may come back at once.
    keep: int = 0


def order(verb: str, words: Sequence[str] = (), **values: str) -> Order:
    """A request to runner.sh. Raises BadArgument for what no shell can hold."""
    names = {"verb": verb, "id": "", "keep": "40000", "wait": "0", "only_in": "", "revoke": "", **values}
    asked = script_order(names, words, "place.sh", "runner.sh", "keeper.sh")
    return replace(asked, keep=int(names["keep"]))


def script_order(values: Mapping[str, str], words: Sequence[str], *pieces: str) -> Order:
    """Assignments, the pieces of a program, and the call of its main function."""
    token = secrets.token_hex(16)
    given = {**values, "token": token, "mark": secrets.token_hex(8)}
    try:
        assignments = "".join(f"rs_{name}={quote(value)}\n" for name, value in given.items())
        last = f"main {join(words)}\n"
    except ValueError:
        raise BadArgument("a command cannot hold a NUL character") from None
    return Order(_encode(assignments + program(*pieces)), _encode(last), token)


def start_order(command: Command, environment: Environment, only_in: str = "") -> Order:
    """The start of a run; with `only_in`, only in the place where it was tried before."""
    script, shell = environment.source(command.script), environment.shell
    timeout_s = min(max(0.0, command.timeout_s), LONGEST_S)
    exports = {name: value for name, value in environment.env.items() if _EXPORTED.match(name)}
    others = [f"{name}={value}" for name, value in environment.env.items() if name not in exports]
    return order(
        "start",
        [*(["env", *others] if others else []), *shell],
        id=command.run_id,
        only_in=only_in,
        script=script,
        long="yes" if len(_encode(script)) > LONGEST_ARGUMENT else "",
        cwd=command.cwd,
        shell=shell[0] if shell else "",
        exports=f"export {join([f'{name}={value}' for name, value in exports.items()])}" if exports else "",
        path=environment.env.get("PATH", ""),
        timeout=f"{timeout_s:.3f}".rstrip("0").rstrip("."),
        timeout_whole=str(math.ceil(timeout_s)),
        keep=str(command.keep),
    )


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class Marks:
    """Cuts what the far side says at the lines that begin with the token."""

    def __init__(self, token: str) -> None:
        self._mark = b"\n" + token.encode() + b" "
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> list[tuple[str, str, bytes]]:
        """Name, values and the bytes before it, for each mark that is now complete."""
        self._buffer += data
        found: list[tuple[str, str, bytes]] = []
        while (start := self._buffer.find(self._mark, self._searched)) >= 0:
            end = self._buffer.find(b"\n", start + len(self._mark))
            if end < 0:
                self._searched = start
                return found
            name, _, values = _decode(bytes(self._buffer[start + len(self._mark) : end])).partition(" ")
            found.append((name, values, bytes(self._buffer[:start])))
            del self._buffer[: end + 1]
            self._searched = 0
        self._searched = max(0, len(self._buffer) - len(self._mark))
        return found

    @property
    def pending(self) -> bytes:
        """What no mark has claimed yet."""
        return bytes(self._buffer)

    @property
    def size(self) -> int:
        """How much that is."""
        return len(self._buffer)


class Overflow(Exception):
    """More came than was asked for."""


@dataclass
class Answer:
    """What the runner has said so far; `verdict` is its last word."""

    token: str
    # How many bytes may come before a mark.
    most: int = SMALL
    place: str = ""
    claimed: bool = False
    verdict: str = ""
    values: str = ""
    last_bytes: int = 0
    last_text: str = ""
    heard: bool = False
    folder: str = ""
    parts: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._marks = Marks(self.token)

    def feed(self, data: bytes) -> None:
        """Raises LineLost where a start-up file will not stop talking, ValueError for what is no answer."""
        for name, values, body in self._marks.feed(data):
            if self.heard and len(body) > self.most:
                raise Overflow
            self._take(name, values, body)
        if not self.heard and self._marks.size > LONGEST_GREETING:
            raise LineLost
        if self.heard and self._marks.size > self.most:
            raise Overflow

    @property
    def noise(self) -> bytes:
        return self._marks.pending

    def _take(self, name: str, values: str, body: bytes) -> None:
        if name == "here":
            self.heard, self.place = True, values
        elif name == "claimed":
            self.claimed = True
        elif name == "folder":
            self.folder = values
        elif name == "beat":
            total, _, text = values.partition(" ")
            self.last_bytes, self.last_text = whole(total), last_line(_encode(text.replace("\036", "\n")))
        elif name in ("out", "err", "out.tail", "err.tail"):
            self.parts[name] = (values, body)
        else:
            self.verdict, self.values = name, values

    def observation(self, run_id: str) -> Observation:
        """The last word as a value. Raises Refusal."""
        if self.verdict == "failed":
            reason, _, message = self.values.partition(" ")
            raise Refusal(reason, message)
        if self.verdict in ("missing", "unstarted"):
            return Missing(run_id, self.values)
        out, err = self._excerpt("out"), self._excerpt("err")
        begun, _, rest = self.values.partition(" ")
        if self.verdict == "running":
            return Running(run_id, out, err, lasted(begun, rest))
        if self.verdict == "lost":
            return Missing(run_id, rest, out, err)
        if self.verdict != "ended":
            raise ValueError("it is no last word")
        return self._completed(run_id, begun, rest.split(), out, err)

    def _completed(self, run_id: str, begun: str, end: list[str], out: Excerpt, err: Excerpt) -> Completed:
        ending, living = Ending(end[0]), tuple(map(whole, end[3:MOST_LIVING]))
        by_itself = ending is Ending.EXITED
        return Completed(
            run_id,
            124 if ending is Ending.TIMED_OUT else whole(end[1]),
            ending,
            stdout=out,
            stderr=err,
            seconds=lasted(begun, end[2]),
            survivors=() if by_itself else living,
            left_running=living if by_itself else (),
        )

    def _excerpt(self, name: str) -> Excerpt:
        total, head = self.parts.get(name, ("0", b""))
        _, tail = self.parts.get(f"{name}.tail", ("", b""))
        return Excerpt(head, tail, whole(total), f"{self.folder}/{name}" if whole(total) else "")


def whole(text: str) -> int:
    """Raises ValueError for what is no number, or none that a machine has a use for."""
    if not _WHOLE.match(text):
        raise ValueError(f"{text[:40]} is no number")
    return int(text)


def lasted(begun: str, ended: str) -> float:
    """Raises ValueError."""
    if not (_SECONDS.match(begun) and _SECONDS.match(ended)):
        raise ValueError("a time that is none")
    return round(max(0.0, float(ended) - float(begun)), 2)


class Talk:
    """One channel on which something was asked; `sent` when its last line may have gone out."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], request: Order, name: str) -> None:
        self._process = process
        self._name = name
        self._request = request
        self.answer = Answer(request.token, request.keep + SMALL)
        self.sent = False

    async def hold(self) -> Answer:
        """Ask, and listen until the last word.

        Raises LineLost, BrokenRules, or Unreachable where no shell runs what is sent.
        """
        import asyncssh

        # Who ends before everything is sent may have said why.
        with contextlib.suppress(OSError, asyncssh.Error):
            await self._send()
        try:
            while not self.answer.verdict:
                self.answer.feed(await self._read())
        except (OSError, asyncssh.Error, asyncio.TimeoutError) as problem:
            raise LineLost from problem
        except Overflow:
            raise too_much(self._name) from None
        except NONSENSE as problem:
            raise not_understood(self._name, problem) from None
        return self.answer

    async def _send(self) -> None:
        stdin = self._process.stdin
        stdin.write(self._request.text)
        await stdin.drain()
        self.sent = True
        stdin.write(self._request.last)
        stdin.write_eof()

    async def _read(self) -> bytes:
        data = await within(self._process.stdout.read(1 << 18), SILENCE_S)
        if data:
            return data
        await within(self._process.wait_closed(), SILENCE_S)
        if not self.answer.heard and self._process.exit_status is not None:
            said = last_line(self.answer.noise) or f"it ended with status {self._process.exit_status}"
            raise Unreachable(f"{self._name}: logged in, but its shell does not run commands: {said}")
        raise LineLost
