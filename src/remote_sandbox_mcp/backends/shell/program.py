"""Sends requests to the shell program over a transport, and reads its answers."""

from __future__ import annotations

import asyncio
import base64
import functools
import re
import secrets
from collections.abc import Callable, Mapping, Sequence

from ...core.commands.command import Command, Completed, Ending, Environment, Excerpt, Missing, Observation, Running
from ...core.commands.shell import join
from ...core.errors import BadArgument, BrokenRules, ConnectError, SandboxError, Unreachable
from ...core.sandboxes.foreign import to_number
from ...far.outpost.place import to_bytes, to_text
from ...far.program import read_program
from ...local.waiting import unlogged
from .transport import ShellPlace, ShellRequest, Transport, unheard

RUNS = ("place.sh", "runs.sh")
JOBS = (*RUNS, "jobs.sh", "cards.sh", "job_states.sh")
FILES = ("place.sh", "files.sh")
TIMED_OUT = 124
MOST_LIVING = 100
# While a place does not answer, its platform is asked for the reason this often, and so many times.
CHECK_S, LOOKS = 5.0, 12
LONGEST_S = 10 * 365 * 86400.0
# A variable may hold 128 KiB on Linux, also if each of its bytes is written as five characters.
LONGEST_VALUE, LONGEST_CODED = 100_000, 20_000
# The most bytes of an answer besides the data that was asked for.
SMALL = 256 << 10
TOO_LONG = f"the variables are longer than {LONGEST_VALUE} bytes, and there is no python3"
NO_NUL = "a command or a path cannot hold a NUL character"
# Names that can be exported: not those that are read-only in some shell, nor IFS, which would change how the program
# splits words, nor the program's own.
_EXPORTED = re.compile(r"(?!(?:IFS|UID|EUID|PPID|BASHOPTS|SHELLOPTS|(?:rs|RSM)_\w*)\Z)[A-Za-z_][A-Za-z0-9_]*\Z")
_CODED = re.compile(rb"[^!-\[\]-~ ]")


class Shell:
    """A POSIX shell in one place; each question is one command there."""

    def __init__(self, transport: Transport, place: ShellPlace) -> None:
        self.place = place
        self._transport = transport
        self._base = ""
        self._home = ""
        # Identifies the folder for runs, the machine and its boot: elsewhere, runs that were started here are unknown.
        self.where = ""
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport.is_open

    async def open(self) -> None:
        """Wait until the shell has answered; callers that come meanwhile share the attempt. Raises ConnectError."""
        if self._opening is None or self._opening.done():
            self._opening = unlogged(asyncio.create_task(self._open()))
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        # The platform's agent in a paused container accepts requests and never answers them.
        if why := await self._transport.why_not():
            raise why
        try:
            await self._hello()
        except ConnectError:
            raise
        except SandboxError as problem:
            raise ConnectError(str(problem)) from None

    async def close(self) -> None:
        if self._opening:
            self._opening.cancel()
        await self._transport.close()

    async def ask(self, pieces: tuple[str, ...], verb: str, values: Mapping[str, str], most: int = 0) -> ShellAnswer:
        """Send a request that may be repeated, with an answer of `most` bytes or little more. Raises SandboxError."""
        try:
            return await self.ask_once(pieces, verb, values, most)
        except Unreachable as problem:
            if isinstance(problem, BrokenRules):
                raise
            # A connection that was kept open may have been cut long ago.
            return await self.ask_once(pieces, verb, values, most)

    async def ask_once(
        self, pieces: tuple[str, ...], verb: str, values: Mapping[str, str], most: int = 0
    ) -> ShellAnswer:
        if not self.is_open and verb != "hello":
            await self.open()
        asking = asyncio.ensure_future(self.send(self.request(pieces, verb, values, most)))
        try:
            for _ in range(LOOKS):
                done, _ = await asyncio.wait((asking,), timeout=CHECK_S)
                if done:
                    return asking.result()
                if why := await self._transport.why_not():
                    raise why
            raise Unreachable(f"{self.place.name}: no answer in {LOOKS * CHECK_S:.0f} s; try again")
        except BaseException:
            asking.cancel()
            await asyncio.wait((asking,))
            raise

    async def why_not(self) -> ConnectError | None:
        return await self._transport.why_not()

    def request(
        self,
        pieces: tuple[str, ...],
        verb: str,
        values: Mapping[str, str],
        most: int,
        heard: Callable[[str], None] = unheard,
        urgent: bool = True,
    ) -> ShellRequest:
        """A request for a verb of the program. Raises BadArgument for a value with a NUL."""
        own = {"base": self._base, "mark": secrets.token_hex(8)}
        given = {"RSM_PROGRAM": source(pieces), "RSM_VERB": verb, "RSM_NAMES": "", **coded({**own, **values})}
        return ShellRequest({**given, "RSM_NAMES": " ".join(given)}, heard, SMALL + most, urgent)

    async def send(self, request: ShellRequest) -> ShellAnswer:
        """Send a request without a time limit, and note what its answer says about the place."""
        printed = await self._transport.run(request)
        answer = ShellAnswer(dict(map(pair, printed.lines)), self.place, printed.complaints)
        self._base = answer.text("base") or self._base
        self.where = answer.text("place") or self.where
        return answer

    async def _hello(self) -> None:
        answer = await self.ask_once(RUNS, "hello", {})
        self._home = to_text(answer.data("home")) or "/"

    async def home(self) -> str:
        if not self._home:
            await self.open()
        return self._home or "/"

    async def upload(self, name: str, content: bytes) -> str:
        """Bring content that does not fit into a variable; returns its path. Raises SandboxError, NoRoom."""
        if not self._base:
            await self.open()
        return await self._transport.upload(self._base, name, content)


def start_values(command: Command, environment: Environment) -> dict[str, str]:
    """The variables that runs.sh needs to start a run, except its script."""
    shell, variables = environment.shell, {**environment.env, **command.env}
    exports = [f"{name}={value}" for name, value in variables.items() if _EXPORTED.match(name)]
    others = [f"{name}={value}" for name, value in variables.items() if not _EXPORTED.match(name)]
    return {
        "id": command.run_id,
        "keep": str(command.keep),
        "cwd": command.cwd,
        "shell": shell[0] if shell else "",
        "words": _joined([*(["env", *others] if others else []), *shell]),
        "exports": f"export {_joined(exports)}" if exports else "",
        "seek": variables.get("PATH", ""),
        "limit": str(round(100 * min(max(0.0, command.timeout_s), LONGEST_S))),
    }


def _joined(words: Sequence[str]) -> str:
    """Quoted words as one text. Raises BadArgument for a NUL."""
    try:
        return join(words)
    except ValueError:
        raise BadArgument(NO_NUL) from None


def is_text(value: str) -> bool:
    """Whether a text is valid UTF-8: other bytes are held in surrogates, which JSON cannot carry."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def fits(value: str) -> bool:
    """Whether one variable can hold this value."""
    return len(to_bytes(value)) <= (LONGEST_VALUE if is_text(value) else LONGEST_CODED)


def pair(line: str) -> tuple[str, str]:
    word, _, value = line.partition(" ")
    return word, value


def coded(values: Mapping[str, str]) -> dict[str, str]:
    """Values as variables, as JSON can carry them: other bytes than UTF-8 are escaped. Raises BadArgument for a NUL."""
    given, names = {}, []
    for name, value in values.items():
        if "\0" in value:
            raise BadArgument(NO_NUL)
        if not is_text(value):
            names.append(name.upper())
            value = _CODED.sub(lambda found: b"\\0%03o" % found[0][0], to_bytes(value)).decode("ascii")
        given[f"RSM_{name.upper()}"] = value
    return {**given, "RSM_CODED": " ".join(names)}


class ShellAnswer:
    """The answer of the program: lines of a word and a value; and what was printed on standard error."""

    def __init__(self, printed: Mapping[str, str], place: ShellPlace, complaints: tuple[str, ...] = ()) -> None:
        self._printed = printed
        self._place = place
        self.complaints = complaints

    def has(self, word: str) -> bool:
        return word in self._printed

    def text(self, word: str) -> str:
        return self._printed.get(word, "")

    def data(self, word: str) -> bytes:
        """A value in base64. Raises BrokenRules: another machine may print anything."""
        try:
            return base64.b64decode(self.text(word))
        except ValueError:
            raise self._nonsense(word, "is not in base64") from None

    def part(self, name: str) -> ShellAnswer:
        """The lines whose words begin with a name and a dot, without that prefix."""
        mine = f"{name}."
        words = {word[len(mine) :]: value for word, value in self._printed.items() if word.startswith(mine)}
        return ShellAnswer(words, self._place)

    def _nonsense(self, word: str, what: str) -> BrokenRules:
        return BrokenRules(f"{self._place.name}'s answer cannot be understood: {word[:40]!r} {what}")

    def numbers(self, word: str) -> list[float]:
        """All numbers of a value. Raises BrokenRules."""
        return [self._seconds(word, place) for place in range(len(self.text(word).split()))]

    def number(self, word: str) -> int:
        return int(self._seconds(word))

    def _seconds(self, word: str, place: int = 0) -> float:
        """One number of a value; 0 if there is none. Raises BrokenRules."""
        try:
            return to_number(float((self.text(word).split() or ["0"])[place]))
        except (ValueError, IndexError, OverflowError):
            raise self._nonsense(word, "is no number") from None

    def observation(self, run_id: str, keep: int) -> Observation:
        state, out, err = self.text("state"), self._excerpt(run_id, "out", keep), self._excerpt(run_id, "err", keep)
        if state == "running":
            return Running(run_id, out, err, round(max(0.0, self._seconds("now") - self._seconds("begun")), 2))
        if state == "ended":
            return self._completed(run_id, out, err)
        return Missing(run_id, self._why_missing(state), out, err)

    def _why_missing(self, state: str) -> str:
        if state != "lost":
            return self._place.unknown
        is_restart = self.data("why") == b"restarted"
        return f"the {self._place.noun} was restarted" if is_restart else "the process that kept it was killed"

    def _completed(self, run_id: str, out: Excerpt, err: Excerpt) -> Completed:
        ending, *_ = words = self.text("end").split() or [""]
        living = tuple(int(word) for word in words[3:MOST_LIVING] if len(word) < 19 and word.isdecimal())
        by_itself = ending not in (Ending.STOPPED, Ending.TIMED_OUT)
        return Completed(
            run_id,
            TIMED_OUT if ending == Ending.TIMED_OUT else int(self._seconds("end", 1)),
            Ending.EXITED if by_itself else Ending(ending),
            stdout=out,
            stderr=err,
            seconds=round(max(0.0, self._seconds("end", 2) - self._seconds("begun")), 2),
            survivors=() if by_itself else living,
            left_running=living if by_itself else (),
        )

    def _excerpt(self, run_id: str, name: str, keep: int) -> Excerpt:
        held, total = self.data(f"{name}.data"), self.number(f"{name}.size")
        return Excerpt(
            held[:keep], held[keep : 2 * keep], total, f"{self.text('base')}/{run_id}/{name}" if total else ""
        )


@functools.cache
def source(pieces: tuple[str, ...]) -> str:
    """The pieces as one text. Its last line calls main, so that a text that was cut short does nothing."""
    return "".join((*(read_program(f"shell/{piece}") for piece in pieces), 'main "$@"\n'))
