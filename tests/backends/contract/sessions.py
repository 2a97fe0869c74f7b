"""Shells that keep their state between commands."""

from __future__ import annotations

import asyncio

import pytest

from remote_sandbox_mcp.core.commands.command import Command, Completed, Ending
from remote_sandbox_mcp.core.commands.shell import quote
from remote_sandbox_mcp.core.commands.shell_session import AS_BEFORE, LOST
from remote_sandbox_mcp.core.errors import NotStarted
from remote_sandbox_mcp.core.progress import silent
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.jobs.records import JobRegistry
from remote_sandbox_mcp.services.sessions.shell import ShellService

from .basics import Basics, finish, prepare, said

SET = """cd {folder}
plain=1; export shown=$'two\\nlines\\377'; list=(a 'b c'); readonly fixed=7
greet() {{ echo "hello $plain"; }}
set -u; umask 027
printf out; printf err >&2
trap 'printf bye' EXIT
exit 3"""
SHOW = """pwd; greet; printf '%s\\n' "${list[1]}" "$fixed" "$-"; umask; printenv shown; echo ${unset_one-none}"""
ADD = "n=$((${n-0} + 1)); sleep 0.1; echo $n"
REMOVED = "rm -rf ~/.local/state/remote-sandbox/shells /tmp/remote-sandbox-$(id -u)/shells"


class SessionContract(Basics):
    """Shells that keep their state between commands. They need bash, and say so where there is none."""

    async def test_a_session_keeps_a_shells_state(self, sandbox: Sandbox, folder: str) -> None:
        if (await finish(sandbox, "command -v bash")).exit_code:
            with pytest.raises(NotStarted, match=r"nothing was run: .* has no bash, which sessions need"):
                await Shell(sandbox).run("echo hi")
            return
        shell, other = Shell(sandbox), Shell(sandbox)
        await prepare(sandbox, folder)
        done, state = await shell.run(SET.format(folder=quote(folder)))
        assert (done.exit_code, done.stdout.head, done.stderr.head, state) == (3, b"outbye", b"err", "new")
        ended, state = await shell.run("plain=2; cd /; sleep 60", timeout_s=0.8)
        assert (ended.ending, state) == (Ending.TIMED_OUT, AS_BEFORE)
        done, state = await shell.run(SHOW)
        assert (done.exit_code, done.stderr.head, state) == (0, b"", "kept")
        here, greeting, second, fixed, options, mask, *rest = done.stdout.head.split(b"\n")
        assert (here.decode(), greeting, second, fixed, mask) == (folder, b"hello 1", b"b c", b"7", b"0027")
        assert (b"u" in options, rest) == (True, [b"two", b"lines\xff", b"none", b""])
        # Two that know nothing of each other: on the machine, one waits for the other.
        counted = await asyncio.gather(*(one.run(ADD) for one in (shell, other, shell, other)))
        assert {done.stdout.head for done, _ in counted} == {b"1\n", b"2\n", b"3\n", b"4\n"}
        await said(sandbox, REMOVED)
        done, state = await shell.run("echo ${plain-gone}")
        assert (done.stdout.head, state) == (b"gone\n", LOST)


class Shell:
    """A session of a service of its own, as another process of ours would have it."""

    def __init__(self, sandbox: Sandbox) -> None:
        async def opener() -> Sandbox:
            return sandbox

        self._member = Member("contract", lambda: sandbox.description, opener)
        self._sandbox = sandbox
        self._service = ShellService(Fleet([self._member]), JobRegistry())

    async def run(self, script: str, timeout_s: float = 30.0) -> tuple[Completed, str]:
        command = Command(script, timeout_s=timeout_s)
        seen, state = await self._service.run(self._member, self._sandbox, command, "main", None, silent)
        assert isinstance(seen, Completed)
        return seen, state
