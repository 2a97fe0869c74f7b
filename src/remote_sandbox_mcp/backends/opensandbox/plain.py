"""A container without Python as a Sandbox: a POSIX shell in it, started through the platform's agent."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from ...core.commands.command import Environment
from ...core.errors import ConnectError, SandboxError, Unreachable, Unsupported
from ...core.sandboxes.disposable import Disposable
from ..shell.program import RUNS, source
from ..shell.sandbox import ShellAlone
from ..shell.transport import FULL, NoRoom, Printed, ShellPlace, ShellRequest
from .api import IN_MEMORY, Link
from .container import describe
from .problems import too_old

if TYPE_CHECKING:
    from opensandbox.models.execd import Execution, OutputMessage

# The platform's agent stores what a command prints in the container's temporary folder, so on a full disk no answer
# arrives. `echo here` fails then, before anything is done, and the request is repeated with its answer in RSM_ANSWER, a
# file in memory.
HERE, OVER, NO_ROOM = "here", "over", 75
LINE = f"""exec sh -c 'if [ -n "${{RSM_ANSWER-}}" ]; then
(umask 077; set -C; : >"$RSM_ANSWER") && exec >>"$RSM_ANSWER" || exit {NO_ROOM}; fi
echo {HERE} || exit {NO_ROOM}; trap "echo {OVER}" EXIT; eval "$RSM_PROGRAM"'"""


class PlatformShell:
    """A Transport whose requests are commands run by the platform's agent."""

    def __init__(self, link: Link, disposable: Disposable) -> None:
        self._link = link
        self._disposable = disposable
        self._doing = f"unable to run a command in {disposable.title}"
        # Set when an answer was cut short: the next one comes through a file in memory.
        self._was_cut = False
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def why_not(self) -> ConnectError | None:
        return await self._link.why_not(self._disposable)

    async def run(self, request: ShellRequest) -> Printed:
        try:
            printed = await self._printed(request)
        except ConnectError:
            # The container's address may have changed at a restart of the platform.
            self._link.forget(self._disposable.key)
            self.is_open = False
            raise
        self.is_open = True
        return printed

    async def _printed(self, request: ShellRequest) -> Printed:
        """The complete answer. Raises Unreachable if a part is missing."""
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

    async def _printed_in_memory(self, request: ShellRequest) -> Printed:
        """Run a request with its answer in a file in memory. Raises NoRoom if there is no room either."""
        place = f"{IN_MEMORY}/remote-sandbox-{secrets.token_hex(16)}"
        done = await self._run(request, RSM_ANSWER=place)
        if done.exit_code == NO_ROOM:
            raise NoRoom(f"{self._doing}: {FULL}")
        read = await self._link.take_file(self._disposable.key, place, self._doing)
        printed = read.decode("utf-8", "replace").splitlines()
        if not printed or printed[-1] != OVER:
            raise NoRoom(f"{self._doing}: {FULL}")
        return Printed(printed[:-1])

    async def _run(self, request: ShellRequest, **more: str) -> Execution:
        from opensandbox.models.execd import ExecutionHandlers, RunCommandOpts

        async def hear(message: OutputMessage) -> None:
            request.heard(message.text)

        sandbox = await self._link.sandbox(self._disposable.key, self._doing)
        options, request.sent = RunCommandOpts(envs={**request.variables, **more}), True
        running = sandbox.commands.run(LINE, opts=options, handlers=ExecutionHandlers(on_stdout=hear))
        return await self._link.checked_by_agent(self._doing, running)

    async def upload(self, base: str, name: str, content: bytes) -> str:
        doing = f"unable to send a file to {self._disposable.title}"
        # The platform's agent expands `$NAME` in a path, and would write another file.
        if not base or "$" in base:
            raise Unsupported(f"{doing}: no folder in it is private and writable")
        sandbox, place = await self._link.sandbox(self._disposable.key, doing), f"{base}/{name}"
        try:
            await self._link.checked_by_agent(doing, sandbox.files.write_file(place, content, mode=600))
        except NoRoom:
            # The agent leaves a file with what there was room for.
            with contextlib.suppress(SandboxError):
                await self._run(ShellRequest({"RSM_PROGRAM": source(RUNS), "RSM_VERB": "discard", "RSM_FROM": place}))
            raise
        return place


class PlainContainer(ShellAlone):
    """A container without python3: commands, jobs and files by a POSIX shell, without file sync and ports."""

    ports = "a port can be reached by its endpoint only"

    def __init__(self, link: Link, disposable: Disposable, environment: Environment) -> None:
        # A restart keeps a container's temporary folder, so jobs need not be in the home folder.
        place = ShellPlace(disposable.title, "container", jobs_at_home=False)
        described = describe(disposable, kills_trees=False)
        super().__init__(described, environment, PlatformShell(link, disposable), place)
