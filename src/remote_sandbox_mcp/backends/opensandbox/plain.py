"""A container without Python as a Sandbox: a POSIX shell in it, through the platform's own way of running commands."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from ...core.command import Environment
from ...core.disposable import Disposable
from ...core.errors import ConnectError, SandboxError, Unreachable, Unsupported
from ..shell.alone import ShellAlone
from ..shell.program import RUNS, source
from ..shell.transport import FULL, NoRoom, Place, Printed, Request
from .api import IN_MEMORY, Link
from .container import describe
from .problems import too_old

if TYPE_CHECKING:
    from opensandbox.models.execd import Execution, OutputMessage

# The platform's agent keeps what a command prints in a file of the container's temporary folder. On a full disk nothing
# of it arrives: then nothing is done, and the same is asked again with the answer in RSM_ANSWER, a file in memory.
HERE, OVER, NO_ROOM = "here", "over", 75
LINE = f"""exec sh -c 'if [ -n "${{RSM_ANSWER-}}" ]; then
(umask 077; set -C; : >"$RSM_ANSWER") && exec >>"$RSM_ANSWER" || exit {NO_ROOM}; fi
echo {HERE} || exit {NO_ROOM}; trap "echo {OVER}" EXIT; eval "$RSM_PROGRAM"'"""


class PlatformShell:
    """Each request is one command of the platform."""

    def __init__(self, link: Link, disposable: Disposable) -> None:
        self._link = link
        self._disposable = disposable
        self._doing = f"unable to run a command in {disposable.title}"
        # An answer was cut short: the next one comes through a file in memory.
        self._was_cut = False
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def why_not(self) -> ConnectError | None:
        return await self._link.why_not(self._disposable)

    async def run(self, request: Request) -> Printed:
        try:
            printed = await self._printed(request)
        except ConnectError:
            # Its address may be another one since the platform was restarted.
            self._link.forget(self._disposable.key)
            self.is_open = False
            raise
        self.is_open = True
        return printed

    async def _printed(self, request: Request) -> Printed:
        """The whole answer. Raises Unreachable for a part of one."""
        done = None if self._was_cut else await self._run(request)
        if done is None or done.exit_code == NO_ROOM:
            self._was_cut = False
            return await self._printed_in_memory(request)
        complaints = tuple(message.text for message in done.logs.stderr)
        printed = [message.text for message in done.logs.stdout]
        if not printed:
            why = " ".join(complaints)[-200:] or f"exit code {done.exit_code}"
            raise Unsupported(f"{self._doing}: its shell could not: {why}")
        if printed[-1] != OVER:
            self._was_cut = True
            what = "a part of the answer is missing; the disk of its temporary folder may be full"
            raise Unreachable(f"{self._doing}: {what}")
        if len(printed) == len((HERE, OVER)):
            raise too_old(self._doing, self._link.name)
        return Printed(printed[:-1], complaints)

    async def _printed_in_memory(self, request: Request) -> Printed:
        """Raises NoRoom where there is no room for an answer in memory either."""
        place = f"{IN_MEMORY}/remote-sandbox-{secrets.token_hex(16)}"
        done = await self._run(request, RSM_ANSWER=place)
        if done.exit_code == NO_ROOM:
            raise NoRoom(f"{self._doing}: {FULL}")
        read = await self._link.take_file(self._disposable.key, place, self._doing)
        printed = read.decode("utf-8", "replace").splitlines()
        if not printed or printed[-1] != OVER:
            raise NoRoom(f"{self._doing}: {FULL}")
        return Printed(printed[:-1])

    async def _run(self, request: Request, **more: str) -> Execution:
        from opensandbox.models.execd import ExecutionHandlers, RunCommandOpts

        async def hear(message: OutputMessage) -> None:
            request.heard(message.text)

        sandbox = await self._link.sandbox(self._disposable.key, self._doing)
        options, request.sent = RunCommandOpts(envs={**request.variables, **more}), True
        running = sandbox.commands.run(LINE, opts=options, handlers=ExecutionHandlers(on_stdout=hear))
        return await self._link.told_by_agent(self._doing, running)

    async def upload(self, base: str, name: str, content: bytes) -> str:
        doing = f"unable to send a file to {self._disposable.title}"
        # The platform's agent takes `$NAME` in a path for a variable, and would write another file.
        if not base or "$" in base:
            raise Unsupported(f"{doing}: no folder in it is private and writable")
        sandbox, place = await self._link.sandbox(self._disposable.key, doing), f"{base}/{name}"
        try:
            await self._link.told_by_agent(doing, sandbox.files.write_file(place, content, mode=600))
        except NoRoom:
            # The agent leaves what there was room for.
            with contextlib.suppress(SandboxError):
                await self._run(Request({"RSM_PROGRAM": source(RUNS), "RSM_VERB": "discard", "RSM_FROM": place}))
            raise
        return place


class PlainContainer(ShellAlone):
    """The answers of an outpost, from a POSIX shell, without file sync and ports."""

    ports = "a port can be reached by its endpoint only"

    def __init__(self, link: Link, disposable: Disposable, environment: Environment) -> None:
        # A container that is started again finds its folders as they were.
        place = Place(disposable.title, "container", jobs_at_home=False)
        described = describe(disposable, kills_trees=False)
        super().__init__(described, environment, PlatformShell(link, disposable), place)
