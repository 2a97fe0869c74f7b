"""What is asked of a sandbox, in which order, and what is made of odd answers."""

from __future__ import annotations

import json
import math

import pytest

from remote_sandbox_mcp.core.commands.command import Command, Excerpt, Running
from remote_sandbox_mcp.core.errors import BadArgument, NotStarted, SandboxError, Unreachable
from remote_sandbox_mcp.core.progress import Beat
from remote_sandbox_mcp.core.sandboxes.files import FileSlice, Span
from remote_sandbox_mcp.core.suites.suite import TestReport
from remote_sandbox_mcp.services.suites import service
from remote_sandbox_mcp.services.suites.service import results_of, run_tests
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.values import succeeded

LOOK = "@@ look 1\n@@ folder /home/fake\n@@ place /tmp/p\n@@ name pytest.ini\n@@ tool pytest python3\n@@ end\n"
XML = '<testsuite name="pytest"><testcase classname="test_x" name="a" file="test_x.py" line="0"/></testsuite>'
COLLECTED = f"@@ collect 1\n@@ report\n {XML}\n@@ end\n"


class Machine:
    """Answers to the three scripts, and to everything else as the tests themselves."""

    def __init__(
        self, look: str | Answer = LOOK, tests: Answer | None = None, collected: str | Answer = COLLECTED
    ) -> None:
        self.look = look if isinstance(look, Answer) else Answer(look)
        self.tests = tests or Answer("ok\n")
        self.collected = collected if isinstance(collected, Answer) else Answer(collected)
        self.sandbox = FakeSandbox(self.answer)

    def answer(self, command: Command) -> Answer:
        kind = self.kind(command)
        return {"look": self.look, "collect": self.collected}.get(kind, self.tests)

    @staticmethod
    def kind(command: Command) -> str:
        names = {"inspect": "look", "collect": "collect", "run": "run"}
        return next((kind for name, kind in names.items() if f"'{name}.sh'" in command.script), command.script)

    @property
    def asked(self) -> list[str]:
        return [self.kind(command) for command in self.sandbox.commands]


async def test_three_round_trips_are_enough() -> None:
    machine = Machine()
    report = await run_tests(machine.sandbox, path="project", timeout_s=77)
    assert isinstance(report, TestReport)
    assert succeeded(report)
    assert machine.asked == ["look", "run", "collect"]
    look, tests, _ = machine.sandbox.commands
    assert (look.cwd, tests.cwd, tests.timeout_s) == ("project", "project", 77)
    assert sorted(machine.sandbox.forgotten) == sorted(command.run_id for command in machine.sandbox.commands)


async def test_a_given_command_is_run_as_it_is() -> None:
    command = "cd sub && FOO='a b' ./test.sh | tee log"
    machine = Machine(tests=Answer("=== 3 passed in 0.10s ===\n"), collected="@@ collect 1\n@@ end\n")
    report = await run_tests(machine.sandbox, command=command)
    assert isinstance(report, TestReport)
    assert machine.asked == ["look", command, "collect"]
    assert (report.command, report.passed, report.runner) == (command, 3, "pytest")


async def test_errors_on_the_other_stream_are_read_too() -> None:
    machine = Machine(tests=Answer(stderr="Ran 3 tests in 0.1s\n\nOK\n"), collected="@@ collect 1\n@@ end\n")
    report = await run_tests(machine.sandbox, command="./all")
    assert isinstance(report, TestReport)
    assert (report.runner, report.passed, report.stderr.head[:5]) == ("unittest", 3, b"Ran 3")


NO_LOOK = [
    pytest.param(Answer("", "mkdir: no space left on device\n", 1), "no space left on device", id="no room"),
    pytest.param(Answer(LOOK[:40]), "the answer breaks off", id="half an answer"),
    pytest.param(Answer("fish: what?\n"), "the answer has no beginning", id="no answer"),
    pytest.param(Answer(LOOK.replace("pytest.ini", "x.toml")), "no test runner is known", id="no runner"),
]


@pytest.mark.parametrize(("look", "why"), NO_LOOK)
async def test_a_folder_that_cannot_be_looked_at_is_told(look: Answer, why: str) -> None:
    machine = Machine(look)
    with pytest.raises(SandboxError, match=f"unable to run the tests in .* on fake: .*{why}"):
        await run_tests(machine.sandbox, path="project")
    assert "run" not in machine.asked


async def test_looking_does_not_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CHECK_S", 0.05)
    machine = Machine(Answer(then=after(math.inf)))
    with pytest.raises(SandboxError, match=r"it took longer than 0\.05 s to look at it"):
        await run_tests(machine.sandbox)


UNCOLLECTED = [
    pytest.param(Answer("", "sh: find: not found\n", 127), "could not be brought", id="nothing"),
    pytest.param(Answer(COLLECTED.replace("@@ end\n", "")), "only in part", id="broken off"),
    pytest.param(
        Answer(COLLECTED.replace("@@ end", "@@ cut report\n@@ end")), "report was read only in part", id="too large"
    ),
]


@pytest.mark.parametrize(("collected", "problem"), UNCOLLECTED)
async def test_results_that_cannot_be_brought_are_no_success(collected: Answer, problem: str) -> None:
    report = await run_tests(Machine(collected=collected).sandbox)
    assert isinstance(report, TestReport)
    assert problem in report.problem
    assert not report.complete


async def test_patience_is_over_while_the_tests_run() -> None:
    machine = Machine(tests=Answer("so far\n", then=after(math.inf)))
    seen = await run_tests(machine.sandbox, patience_s=0.01)
    assert isinstance(seen, Running)
    assert seen.stdout.head == b"so far\n"
    assert machine.asked == ["look", "run"]
    assert isinstance(await results_of(machine.sandbox, seen.run_id), Running)
    await machine.sandbox.stop(seen.run_id)


async def test_the_plan_on_the_machine_tells_what_was_run() -> None:
    machine = Machine(tests=Answer("so far\n", then=after(math.inf)))
    seen = await run_tests(machine.sandbox, patience_s=0.01)
    assert isinstance(seen, Running)
    plan = {"runner": "pytest", "argv": ["pytest"], "command": "", "missing": "", "others": ["go"]}
    machine.collected = Answer(f"@@ collect 1\n@@ plan\n {json.dumps(plan)}\n@@ report\n {XML}\n@@ end\n")
    await machine.sandbox.stop(seen.run_id)
    report = await results_of(machine.sandbox, seen.run_id)
    assert isinstance(report, TestReport)
    assert (report.runner, report.command, report.passed, report.others) == ("pytest", "pytest", 1, ("go",))
    assert (report.problem, report.complete) == ("it was stopped before its end; 1 test had ended by then", False)


async def test_results_of_an_unknown_run_are_lost() -> None:
    with pytest.raises(SandboxError, match="are lost: it is not known here; run them again"):
        await results_of(Machine().sandbox, "run-0123456789abcdef")


async def test_what_cannot_start_is_tidied_up() -> None:
    machine = Machine()

    def answer(command: Command) -> Answer:
        if Machine.kind(command) == "run":
            raise NotStarted("no such shell")
        return machine.answer(command)

    machine.sandbox.answers = answer
    with pytest.raises(NotStarted):
        await run_tests(machine.sandbox)
    assert machine.asked == ["look", "collect"]


async def test_a_line_that_breaks_after_the_tests_loses_only_their_files() -> None:
    machine = Machine(tests=Answer("=== 1 failed, 2 passed in 0.10s ===\n", exit_code=1))

    def answer(command: Command) -> Answer:
        if Machine.kind(command) == "collect":
            raise Unreachable("no route")
        return machine.answer(command)

    machine.sandbox.answers = answer
    report = await run_tests(machine.sandbox)
    assert isinstance(report, TestReport)
    assert (report.passed, report.failed, report.complete) == (2, 1, False)
    assert report.problem == "what the run wrote could not be brought, or only in part"


async def test_what_tests_print_is_progress() -> None:
    beats: list[Beat] = []
    machine = Machine(tests=Answer("first\n", then=after(0, Answer("second\n"))))
    await run_tests(machine.sandbox, progress=beats.append)
    assert [beat.line for beat in beats] == ["first", "second"]


@pytest.mark.parametrize(
    "arguments", [{"command": "a\0b"}, {"path": "a\0b"}, {"timeout_s": 0}, {"timeout_s": 1e9}, {"timeout_s": math.nan}]
)
async def test_bad_arguments_do_nothing(arguments: dict[str, object]) -> None:
    machine = Machine()
    with pytest.raises(BadArgument):
        await run_tests(machine.sandbox, **arguments)  # type: ignore[arg-type]
    assert machine.asked == []


async def test_a_machine_that_does_not_answer_is_told_as_it_is() -> None:
    machine = Machine()
    machine.sandbox.fail(Unreachable("no route"))
    with pytest.raises(Unreachable):
        await run_tests(machine.sandbox)


class Shelf(FakeSandbox):
    """A sandbox with one file, too long to be given whole."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self.asked: list[Span] = []

    async def read(self, path: str, span: Span) -> FileSlice:
        self.asked.append(span)
        return FileSlice(self.data[span.offset :][: span.limit], len(self.data), "1", span.offset)


async def test_the_middle_of_an_output_is_read_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(200))
    shelf, cut = Shelf(data), Excerpt(data[:50], data[-50:], len(data), "/out")
    assert await service._whole(shelf, cut, wanted=True) == (data, 0)
    assert await service._whole(shelf, cut, wanted=False) == (data[:50] + b"\n" + data[-50:], 100)
    monkeypatch.setattr(service, "MOST_TEXT", 60)
    assert await service._whole(shelf, cut, wanted=True) == (data[:110] + b"\n" + data[-50:], 40)
    assert len(shelf.asked) == 2
