"""Asks container.sh, through the platform's own way of running commands, and reads what it prints."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import re
import secrets
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from ...core.command import Command, Completed, Ending, Environment, Excerpt, Missing, Observation, Running
from ...core.disposable import Disposable
from ...core.errors import BadArgument, BrokenRules, ConnectError, SandboxError, Unreachable, Unsupported
from ...core.foreign import to_number
from ...core.shell import join
from ..outpost.far.place import to_bytes, to_text
from .api import IN_MEMORY, Link
from .problems import NoRoom, too_old

if TYPE_CHECKING:
    from opensandbox.models.execd import Execution

RUNS = ("container.sh", "container_runs.sh", "container_keeper.sh")
JOBS = (
    *RUNS,
    "container_job_state.sh",
    "container_jobs.sh",
    "container_job_keeper.sh",
    "container_looks.sh",
    "container_checkpoint.sh",
)
FILES = ("container.sh", "container_files.sh")
TIMED_OUT = 124
MOST_LIVING = 100
# The platform's agent keeps what a command prints in a file of the container's temporary folder. On a full disk nothing
# of it arrives: then nothing is done, and the same is asked again with the answer in RSM_ANSWER, a file in memory.
HERE, OVER, NO_ROOM = "here", "over", 75
LINE = f"""exec sh -c 'if [ -n "${{RSM_ANSWER-}}" ]; then
(umask 077; set -C; : >"$RSM_ANSWER") && exec >>"$RSM_ANSWER" || exit {NO_ROOM}; fi
echo {HERE} || exit {NO_ROOM}; trap "echo {OVER}" EXIT; eval "$RSM_PROGRAM"'"""
FULL = "No space left on device"
# How often the platform is asked what became of a container that does not answer, and how many times.
LOOK_S, LOOKS = 5.0, 12
LONGEST_S = 10 * 365 * 86400.0
# One variable may hold 128 KiB on Linux, also where each byte of it is written as five letters.
LONGEST_VALUE, LONGEST_CODED = 100_000, 20_000
NO_NUL = "a command or a path cannot hold a NUL character"
# Not what is read-only in some shell, nor what would change how the program itself splits words.
_EXPORTED = re.compile(r"(?!(?:IFS|UID|EUID|PPID|BASHOPTS|SHELLOPTS|(?:rs|RSM)_\w*)\Z)[A-Za-z_][A-Za-z0-9_]*\Z")
_CODED = re.compile(rb"[^!-\[\]-~ ]")


class Shell:
    """A POSIX shell in one container; each question is one command of the platform."""

    def __init__(self, link: Link, disposable: Disposable) -> None:
        self._link = link
        self._disposable = disposable
        self._base = ""
        self._home = ""
        # An answer was cut short: the next one comes through a file in memory.
        self._was_cut = False
        self.is_open = True

    async def open(self) -> None:
        """The container's shell has answered. Raises ConnectError."""
        # An agent in a paused container takes requests and never answers them.
        if known_reason := await self._link.why_not(self._disposable):
            raise known_reason
        self.is_open = True
        try:
            await self._hello()
        except SandboxError as problem:
            self.is_open = False
            raise problem if isinstance(problem, ConnectError) else ConnectError(str(problem)) from None

    async def ask(self, pieces: tuple[str, ...], verb: str, **values: str) -> Answer:
        """One that may be asked twice. Raises SandboxError: what the platform says where it cannot run it."""
        try:
            return await self.ask_once(pieces, verb, **values)
        except Unreachable as problem:
            if isinstance(problem, BrokenRules):
                raise
            # A connection that was kept open may have been cut long ago.
            return await self.ask_once(pieces, verb, **values)

    async def ask_once(self, pieces: tuple[str, ...], verb: str, **values: str) -> Answer:
        asking = asyncio.ensure_future(self.follow(pieces, verb, **values))
        try:
            for _ in range(LOOKS):
                done, _ = await asyncio.wait((asking,), timeout=LOOK_S)
                if done:
                    return asking.result()
                if known_reason := await self._link.why_not(self._disposable):
                    raise known_reason
            raise ConnectError(f"{self._disposable.title}: no answer in {LOOKS * LOOK_S:.0f} s; try again")
        except BaseException:
            asking.cancel()
            await asyncio.wait((asking,))
            raise

    async def follow(self, pieces: tuple[str, ...], verb: str, **values: str) -> Answer:
        """Ask what may take as long as it likes."""
        if not self.is_open:
            await self.open()
        doing = f"unable to run a command in {self._disposable.title}"
        given = {"RSM_PROGRAM": source(pieces), "RSM_VERB": verb, **coded({"base": self._base, **values})}
        try:
            printed, complaints = await self._printed(given, doing)
        except ConnectError:
            # Its address may be another one since the platform was restarted.
            self._link.forget(self._disposable.key)
            self.is_open = False
            raise
        answer = Answer(dict(_pair(line) for line in printed), complaints)
        self._base = answer.text("base") or self._base
        return answer

    async def _printed(self, given: dict[str, str], doing: str) -> tuple[list[str], tuple[str, ...]]:
        """The whole answer, and what programs complained about. Raises Unreachable for a part of an answer."""
        done = None if self._was_cut else await self._run(given, doing)
        if done is None or done.exit_code == NO_ROOM:
            self._was_cut = False
            return await self._printed_in_memory(given, doing), ()
        complaints = tuple(message.text for message in done.logs.stderr)
        printed = [message.text for message in done.logs.stdout]
        if not printed:
            why = " ".join(complaints)[-200:] or f"exit code {done.exit_code}"
            raise Unsupported(f"{doing}: its shell could not: {why}")
        if printed[-1] != OVER:
            self._was_cut = True
            raise Unreachable(f"{doing}: a part of the answer is missing; the disk of its temporary folder may be full")
        if len(printed) == len((HERE, OVER)):
            raise too_old(doing, self._link.name)
        return printed[:-1], complaints

    async def _printed_in_memory(self, given: dict[str, str], doing: str) -> list[str]:
        """Raises NoRoom where there is no room for an answer in memory either."""
        place = f"{IN_MEMORY}/remote-sandbox-{secrets.token_hex(16)}"
        done = await self._run({**given, "RSM_ANSWER": place}, doing)
        if done.exit_code == NO_ROOM:
            raise NoRoom(f"{doing}: {FULL}")
        read = await self._link.take_file(self._disposable.key, place, doing)
        printed = read.decode("utf-8", "replace").splitlines()
        if not printed or printed[-1] != OVER:
            raise NoRoom(f"{doing}: {FULL}")
        return printed[:-1]

    async def _run(self, given: dict[str, str], doing: str) -> Execution:
        from opensandbox.models.execd import RunCommandOpts

        sandbox = await self._link.sandbox(self._disposable.key, doing)
        running = sandbox.commands.run(LINE, opts=RunCommandOpts(envs=given))
        return await self._link.told_by_agent(doing, running)

    async def _hello(self) -> None:
        answer = await self.ask_once(RUNS, "hello")
        self._home = to_text(answer.data("home")) or "/"

    async def home(self) -> str:
        if not self._home:
            await self._hello()
        return self._home

    async def upload(self, name: str, content: bytes) -> str:
        """The path of what is more than fits into a variable. Raises SandboxError, NoRoom."""
        doing = f"unable to send a file to {self._disposable.title}"
        if not self._base:
            await self._hello()
        # The platform's agent takes `$NAME` in a path for a variable, and would write another file.
        if not self._base or "$" in self._base:
            raise Unsupported(f"{doing}: no folder in it is private and writable")
        sandbox, place = await self._link.sandbox(self._disposable.key, doing), f"{self._base}/{name}"
        try:
            await self._link.told_by_agent(doing, sandbox.files.write_file(place, content, mode=600))
        except NoRoom:
            # The agent leaves what there was room for.
            with contextlib.suppress(SandboxError):
                await self.ask_once(RUNS, "discard", **{"from": place})
            raise
        return place


def start_values(command: Command, environment: Environment) -> dict[str, str]:
    """What container_runs.sh has to know about a run, but for its script."""
    shell, variables = environment.shell, environment.env
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
        "timeout": f"{min(max(0.0, command.timeout_s), LONGEST_S):.3f}",
    }


def _joined(words: Sequence[str]) -> str:
    """Raises BadArgument."""
    try:
        return join(words)
    except ValueError:
        raise BadArgument(NO_NUL) from None


def is_text(value: str) -> bool:
    """Whether it can be said in JSON: what is not UTF-8 is held in surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def fits(value: str) -> bool:
    """Whether one variable can hold it."""
    return len(to_bytes(value)) <= (LONGEST_VALUE if is_text(value) else LONGEST_CODED)


def _pair(line: str) -> tuple[str, str]:
    word, _, value = line.partition(" ")
    return word, value


def coded(values: Mapping[str, str]) -> dict[str, str]:
    """Variables as an agent takes them, which knows texts alone. Raises BadArgument for what no shell can hold."""
    given, names = {}, []
    for name, value in values.items():
        if "\0" in value:
            raise BadArgument(NO_NUL)
        if not is_text(value):
            names.append(name.upper())
            value = _CODED.sub(lambda found: b"\\0%03o" % found[0][0], to_bytes(value)).decode("ascii")
        given[f"RSM_{name.upper()}"] = value
    return {**given, "RSM_CODED": " ".join(names)}


class Answer:
    """Lines of a word and a value, and what programs complained about."""

    def __init__(self, printed: Mapping[str, str], complaints: tuple[str, ...] = ()) -> None:
        self._printed = printed
        self.complaints = complaints

    def has(self, word: str) -> bool:
        return word in self._printed

    def text(self, word: str) -> str:
        return self._printed.get(word, "")

    def data(self, word: str) -> bytes:
        """Raises Unreachable: what a container prints may be anything."""
        try:
            return base64.b64decode(self.text(word))
        except ValueError:
            raise BrokenRules(f"a container's answer cannot be understood: {word[:40]!r} is not in base64") from None

    def part(self, name: str) -> Answer:
        """The words that begin with a name and a dot, without them."""
        mine = f"{name}."
        return Answer({word[len(mine) :]: value for word, value in self._printed.items() if word.startswith(mine)})

    def numbers(self, word: str) -> list[float]:
        """Raises Unreachable."""
        return [self._seconds(word, place) for place in range(len(self.text(word).split()))]

    def number(self, word: str) -> int:
        return int(self._seconds(word))

    def _seconds(self, word: str, place: int = 0) -> float:
        """Raises Unreachable."""
        try:
            return to_number(float((self.text(word).split() or ["0"])[place]))
        except (ValueError, IndexError, OverflowError):
            raise BrokenRules(f"a container's answer cannot be understood: {word[:40]!r} is no number") from None

    def observation(self, run_id: str, keep: int) -> Observation:
        state, out, err = self.text("state"), self._excerpt(run_id, "out", keep), self._excerpt(run_id, "err", keep)
        if state == "running":
            return Running(run_id, out, err, round(max(0.0, self._seconds("now") - self._seconds("begun")), 2))
        if state == "ended":
            return self._completed(run_id, out, err)
        reason = "the process that kept it was killed" if state == "lost" else "it is not known in this container"
        return Missing(run_id, reason, out, err)

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
    """Programs as one text; its last line calls main, so that a text that was cut does nothing."""
    folder = files(__package__)
    return "".join((*(folder.joinpath(piece).read_text(encoding="utf-8") for piece in pieces), 'main "$@"\n'))
