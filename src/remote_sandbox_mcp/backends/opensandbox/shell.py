"""Asks container.sh, through the platform's own way of running commands, and reads what it prints."""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping, Sequence
from importlib.resources import files

from ...core.command import Completed, Ending, Excerpt, Missing, Observation, Running
from ...core.disposable import Disposable
from ...core.errors import Unreachable, Unsupported
from ...core.shell import quote
from .link import Link
from .problems import told

SIGNALS = {"TERM": 143, "KILL": 137}
# What one variable of a program may hold on Linux.
LONGEST_SCRIPT = 120_000
NONE: Mapping[str, str] = {}


class Shell:
    """A POSIX shell in one container; each question is one command of the platform."""

    def __init__(self, link: Link, disposable: Disposable) -> None:
        self._link = link
        self._disposable = disposable
        self._home = ""

    async def ask(
        self, verb: str, words: Sequence[str] = (), env: Mapping[str, str] = NONE, values: Mapping[str, str] = NONE
    ) -> Answer:
        """Raises SandboxError: what the platform says where it cannot run it."""
        from opensandbox.models.execd import RunCommandOpts

        doing = f"unable to run a command in {self._disposable.title}"
        sandbox = await self._link.sandbox(self._disposable.key, doing)
        given = {**env, "RSM_VERB": verb, **{f"RSM_{name.upper()}": value for name, value in values.items()}}
        line = " ".join(("exec sh -c", quote(source()), "sh", *map(quote, words)))
        done = await told(doing, sandbox.commands.run(line, opts=RunCommandOpts(envs=given)))
        printed = {}
        for message in done.logs.stdout:
            word, _, value = message.text.partition(" ")
            printed[word] = value
        if not printed and verb != "forget":
            complaint = " ".join(message.text for message in done.logs.stderr)[-200:]
            raise Unsupported(f"{doing}: its shell could not: {complaint or f'exit code {done.exit_code}'}")
        return Answer(printed)

    async def home(self) -> str:
        if not self._home:
            self._home = (await self.ask("hello")).text("home") or "/"
        return self._home


class Answer:
    """Lines of a word and a value."""

    def __init__(self, printed: Mapping[str, str]) -> None:
        self._printed = printed

    def text(self, word: str) -> str:
        return self._printed.get(word, "")

    def number(self, word: str) -> int:
        """Raises Unreachable: what a container prints may be anything."""
        try:
            return int(self._printed.get(word, "0"))
        except ValueError:
            raise Unreachable(f"a container's answer cannot be understood: {word} is not a number") from None

    def observation(self, run_id: str, seconds: float) -> Observation:
        state, out, err = self.text("state"), self._excerpt("out"), self._excerpt("err")
        if state == "running":
            return Running(run_id, out, err, seconds)
        if state == "ended":
            return Completed(run_id, self.number("exit"), Ending.EXITED, "", out, err, seconds)
        if state == "stopped":
            signal = self.text("signal")
            return Completed(run_id, SIGNALS.get(signal, 143), Ending.STOPPED, signal, out, err, seconds)
        reason = "it was ended from outside" if state == "lost" else "it is not known in this container"
        return Missing(run_id, reason, out, err)

    def _excerpt(self, name: str) -> Excerpt:
        head, tail = (base64.b64decode(self.text(f"{name}.{part}")) for part in ("head", "tail"))
        return Excerpt(head, tail, self.number(name))


@functools.cache
def source() -> str:
    return files(__package__).joinpath("container.sh").read_text(encoding="utf-8")
