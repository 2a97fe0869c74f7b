"""The sandbox for tests keeps the contract as far as it goes without a shell, and makes trouble when told to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from remote_sandbox_mcp.core.commands.command import Command, Completed, Environment, Running
from remote_sandbox_mcp.core.errors import LostContact, NotStarted, Unreachable
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import FileContract, Opener, RunContract, counted, finish
from tests.support.fakes.sandbox import HOME, Answer, FakeSandbox, after


class FakePrograms:
    """Each program is an answer under a name of its own."""

    def __init__(self) -> None:
        self.sandbox = FakeSandbox(lambda command: self._answers[command.script]())
        self._answers: dict[str, Callable[[], Answer]] = {}

    def _named(self, answer: Callable[[], Answer]) -> str:
        name = f"program {len(self._answers)}"
        self._answers[name] = answer
        return name

    def prints(self, out: bytes = b"", err: bytes = b"", code: int = 0) -> str:
        return self._named(lambda: Answer(out, err, code))

    def counts(self, last: int) -> str:
        return self.prints(counted(last))

    def appends(self, path: str, text: str) -> str:
        def append() -> Answer:
            self.sandbox.files[path] += text.encode()
            return Answer()

        return self._named(append)

    def waits_for(self, path: str, first: bytes = b"", then: bytes = b"") -> str:
        async def wait() -> Answer:
            while path not in self.sandbox.files:  # noqa: ASYNC110 - a dict tells nobody that it has changed
                await asyncio.sleep(0.01)
            return Answer(then)

        return self._named(lambda: Answer(first, then=wait))


class TestFake(RunContract, FileContract):
    @pytest.fixture(scope="class")
    @classmethod
    def programs(cls) -> FakePrograms:
        return FakePrograms()

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, programs: FakePrograms) -> Opener:
        async def open_it(environment: Environment) -> Sandbox:
            await programs.sandbox.open()
            return programs.sandbox

        return open_it


async def test_answers_are_given_by_the_text_of_a_script() -> None:
    sandbox = FakeSandbox({"hostname": Answer("gpu1\n"), "false": Answer(exit_code=1)})
    assert (await finish(sandbox, "hostname")).stdout.head == b"gpu1\n"
    assert (await finish(sandbox, "false")).exit_code == 1
    unknown = await finish(sandbox, "frobnicate")
    assert (unknown.exit_code, unknown.stderr.head) == (127, b"frobnicate: not found\n")
    assert [command.script for command in sandbox.commands] == ["hostname", "false", "frobnicate"]


async def test_an_answer_may_come_in_pieces() -> None:
    sandbox = FakeSandbox({"train": Answer("epoch 1\n", then=after(0.01, Answer("epoch 2\n", exit_code=3)))})
    done = await finish(sandbox, "train")
    assert (done.stdout.head, done.exit_code) == (b"epoch 1\nepoch 2\n", 3)


async def test_an_answer_may_refuse_to_start() -> None:
    def refuse(command: Command) -> Answer:
        raise NotStarted(f"unable to enter {command.cwd}")

    sandbox = FakeSandbox(refuse)
    with pytest.raises(NotStarted, match="/none"):
        await sandbox.run(Command("true", "/none"))
    assert sandbox.commands == []


async def test_files_are_those_in_the_dict() -> None:
    sandbox = FakeSandbox(files={"~/a": b"1", "/etc/b": b"2"})
    assert (await sandbox.read("a", Span())).data == b"1"
    await sandbox.write("/etc/c", b"3")
    assert sandbox.files == {f"{HOME}/a": b"1", "/etc/b": b"2", "/etc/c": b"3"}


async def test_a_failure_is_raised_with_nothing_done_until_it_is_over() -> None:
    sandbox = FakeSandbox()
    sandbox.fail(Unreachable("unable to open fake: no answer"))
    for call in (sandbox.open, lambda: sandbox.run(Command("x")), lambda: sandbox.write("x", b"")):
        with pytest.raises(Unreachable, match="no answer"):
            await call()
    assert (sandbox.commands, sandbox.files, sandbox.is_open) == ([], {}, False)
    sandbox.fail(None)
    await sandbox.open()
    assert sandbox.is_open


async def test_a_cut_line_loses_the_caller_and_not_the_run() -> None:
    sandbox = FakeSandbox({"train": Answer("epoch 1\n", then=after(math.inf))})
    command = Command("train")
    running = asyncio.ensure_future(sandbox.run(command))
    await asyncio.wait((running,), timeout=0.05)
    sandbox.lose_contact()
    with pytest.raises(LostContact) as lost:
        await running
    assert lost.value.so_far.stdout.head == b"epoch 1\n"
    assert not sandbox.is_open
    assert isinstance(await sandbox.observe(command.run_id), Running)
    assert isinstance(await sandbox.stop(command.run_id), Completed)


async def test_a_delay_is_taken_by_every_call() -> None:
    sandbox = FakeSandbox({"x": Answer("x")})
    sandbox.delay_s = math.inf
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(sandbox.run(Command("x")), 0.05)
    assert sandbox.commands == []
