"""What the parts of the contract share: programs to run, things that tests do, fixtures."""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import pytest

from remote_sandbox_mcp.core.commands.command import Command, Completed, Environment, Missing, Running
from remote_sandbox_mcp.core.commands.shell import quote
from remote_sandbox_mcp.core.errors import FileProblem
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.support.waiting import DEADLINE_S, eventually

Opener = Callable[[Environment], Awaitable[Sandbox]]
T = TypeVar("T")

HOSTILE_NAMES = {
    "newline": "two\nlines",
    "ends in newline": "end\n",
    "quotes": 'it\'s "so" `so` $HOME',
    "dash": "-rf",
    "backslash": "a\\n\\0b",
    "glob": "[a]*?",
    "spaces": "  two  ",
    "tilde": "~",
    "escape": "\t\x1b[31mred",
    "unicode": "日本語 🎉",
    "not utf-8": "a\udcff\udcfe",
    "longest": "n" * 255,
}


def table(rows: dict[str, Any]) -> dict[str, Any]:
    """The arguments of parametrize for named rows."""
    return {"argvalues": list(rows.values()), "ids": list(rows)}


class Programs(Protocol):
    """The few things that a sandbox must be able to do, as scripts that it understands."""

    def prints(self, out: bytes = b"", err: bytes = b"", code: int = 0) -> str: ...

    def counts(self, last: int) -> str:
        """Prints what `counted` gives."""
        ...

    def appends(self, path: str, text: str) -> str: ...

    def waits_for(self, path: str, first: bytes = b"", then: bytes = b"") -> str:
        """Prints `first`, waits until there is a file, prints `then`."""
        ...


class ShellPrograms:
    """The programs for any POSIX shell."""

    def prints(self, out: bytes = b"", err: bytes = b"", code: int = 0) -> str:
        return f"printf '{octal(out)}'; printf '{octal(err)}' >&2; exit {code}"

    def counts(self, last: int) -> str:
        return f"seq -f %07.0f 1 {last}"

    def appends(self, path: str, text: str) -> str:
        return f"printf %s {quote(text)} >> {quote(path)}"

    def waits_for(self, path: str, first: bytes = b"", then: bytes = b"") -> str:
        return f"printf '{octal(first)}'; while ! [ -e {quote(path)} ]; do sleep 0.05; done; printf '{octal(then)}'"


def octal(data: bytes) -> str:
    return "".join(f"\\{byte:03o}" for byte in data)


def counted(last: int) -> bytes:
    return b"".join(b"%07d\n" % number for number in range(1, last + 1))


# What tests do


async def finish(sandbox: Sandbox, script: str, **fields: Any) -> Completed:
    """Run to the end."""
    seen = await sandbox.run(Command(script, **fields))
    assert isinstance(seen, Completed)
    return seen


async def said(sandbox: Sandbox, script: str, **fields: Any) -> bytes:
    """What a command that succeeds prints."""
    done = await finish(sandbox, script, **fields)
    assert (done.exit_code, done.stderr.head) == (0, b"")
    return done.stdout.head


async def begin(sandbox: Sandbox, script: str, **fields: Any) -> Running:
    """Start a command that does not end by itself, and see it run."""
    seen = await sandbox.run(Command(script, **fields), patience_s=0.3)
    assert isinstance(seen, Running)
    return seen


async def ended(sandbox: Sandbox, run_id: str) -> Completed:
    seen = await eventually(
        lambda: sandbox.observe(run_id), lambda seen: not isinstance(seen, Running), "the run's end"
    )
    assert isinstance(seen, Completed)
    return seen


async def forgotten(sandbox: Sandbox, run_id: str) -> None:
    """Ask seldom: who is kept busy may put the forgetting off."""
    await eventually(lambda: sandbox.observe(run_id), lambda seen: isinstance(seen, Missing), "forgetting", 0.3)


async def is_alive(sandbox: Sandbox, pid: int) -> bool:
    """Whether a process lives; a dead one that nobody has collected does not."""
    script = f"kill -0 {pid} 2>/dev/null && ! grep -qs '^State:.*Z' /proc/{pid}/status"
    return (await finish(sandbox, script)).exit_code == 0


async def is_dead(sandbox: Sandbox, pid: int) -> bool:
    return not await is_alive(sandbox, pid)


async def prepare(sandbox: Sandbox, folder: str, script: str = "") -> None:
    """Make a folder, and in it what a script makes."""
    await said(sandbox, f"mkdir -p {quote(folder)} && cd {quote(folder)} || exit\n{script}")


async def read_pid(sandbox: Sandbox, path: str) -> int:
    """A pid that a command writes to a file, as soon as it is there."""

    async def ask() -> bytes:
        try:
            return (await sandbox.read(path, Span())).data
        except FileProblem:
            return b""

    data = await eventually(ask, lambda data: data.endswith(b"\n"), path)
    return int(data)


async def refusal(call: Awaitable[object]) -> str:
    """The reason of the FileProblem that a call must raise."""
    with pytest.raises(FileProblem) as problem:
        await call
    assert len(str(problem.value)) > 10
    return problem.value.reason


async def write_all(sandbox: Sandbox, folder: str, files: dict[str, bytes]) -> None:
    await asyncio.gather(*(sandbox.write(f"{folder}/{name}", data) for name, data in files.items()))


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """For what takes seconds: it goes on while other tests run."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        await cancel(task)


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel, and wait for the end; a call that takes no notice fails the test instead of the whole session."""
    task.cancel()
    await asyncio.wait((task,), timeout=DEADLINE_S)
    assert task.done(), "a call was cancelled and took no notice"
    # Asked for, so that nobody complains that it was not.
    task.cancelled() or task.exception()


class Basics:
    """What the parts of the contract share. A backend's file has a fixture `opener` of module scope."""

    @pytest.fixture(scope="class")
    @classmethod
    async def sandbox(cls, opener: Opener) -> AsyncIterator[Sandbox]:
        sandbox = await opener(Environment())
        yield sandbox
        await sandbox.close()

    @pytest.fixture(scope="class")
    @classmethod
    def programs(cls) -> Programs:
        return ShellPrograms()

    @pytest.fixture(scope="class")
    @classmethod
    async def home(cls, sandbox: Sandbox) -> str:
        """The absolute path of `~`, as the sandbox tells it."""
        await sandbox.write("~/.contract/mark", b"")
        (entry,) = (await sandbox.list(".contract")).entries
        return posixpath.dirname(posixpath.dirname(entry.path))

    @pytest.fixture
    def folder(self, home: str) -> str:
        """A path of one test's own; nothing is there yet."""
        return f"{home}/test-{secrets.token_hex(4)}"
