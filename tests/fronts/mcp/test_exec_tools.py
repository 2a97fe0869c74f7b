"""exec_bash, check_background_task and stop_background_task as a client sees them."""

from __future__ import annotations

import asyncio
import base64
import math
import re
import time
from itertools import pairwise

import pytest
from mcp import Client
from mcp.types import Implementation

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.core.commands.command import Command, Completed, Ending, Running
from remote_sandbox_mcp.core.errors import NotStarted
from remote_sandbox_mcp.core.progress import Progress, silent
from remote_sandbox_mcp.core.texts.text import harmless
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.server import Caller, until

ENDLESS = Answer("so far\n", "a warning\n", then=after(math.inf))
MISSING = "run-0123456789abcdef"


async def test_a_command_returns_what_it_printed_and_how_it_ended(tools: Caller, fake: FakeSandbox) -> None:
    fake.answers = {"make": Answer("built\n", "a warning\n", 2)}
    assert await tools.run("make") == {"exit_code": 2, "stdout": "built\n", "stderr": "a warning\n"}


async def test_what_is_empty_is_left_out_but_not_a_zero(tools: Caller, fake: FakeSandbox) -> None:
    fake.answers = {"true": Answer()}
    assert await tools.run("true") == {"exit_code": 0}


async def test_the_text_says_the_same_to_clients_that_read_only_text(tools: Caller, fake: FakeSandbox) -> None:
    fake.answers = {"make": Answer("built\n", "a warning\n", 2)}
    answer = await tools.ask("exec_bash", command="make")
    assert answer.content[0].model_dump()["text"] == "on fake: exit 2 after 0.0 s\nbuilt\n\nstderr:\na warning\n"


async def test_all_arguments_reach_the_sandbox_that_was_named(
    tools: Caller, fake: FakeSandbox, other: FakeSandbox
) -> None:
    await tools.run("ls", cwd="/srv", timeout_s=7, max_output_chars=100, sandbox_name="other")
    assert [(it.script, it.cwd, it.timeout_s) for it in other.commands] == [("ls", "/srv", 7)]
    assert not fake.commands


@pytest.mark.parametrize(
    ("tool", "given"),
    [("exec_bash", {}), ("exec_bash", {"sandbox_names": ["other"]}), ("run_command", {"sandbox_id": "other"})],
)
async def test_a_command_gets_its_input_and_variables_which_nobody_keeps(
    app: App, fake: FakeSandbox, other: FakeSandbox, tool: str, given: dict[str, object]
) -> None:
    async with connected(app) as tools:
        await tools.call(tool, command="cat", input="in-19c4 \udcff\0", env={"NAME": "value-77b1"}, **given)
    (command,) = (other if given else fake).commands
    assert (command.input, command.env) == (b"in-19c4 \xff\0", {"NAME": "value-77b1"})
    assert "77b1" not in repr(command)
    assert "19c4" not in repr(command)
    kept = b"".join(file.read_bytes() for file in paths.state_folder().rglob("*") if file.is_file())
    assert tool.encode() in kept
    assert b"NAME" in kept
    assert b"77b1" not in kept
    assert b"19c4" not in kept


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"env": {"A=B": "secret"}}, "cannot be the name of a variable"),
        ({"env": {"": "secret"}}, "cannot be the name of a variable"),
        ({"env": {"A": "sec\0ret"}}, "NUL"),
        ({"env": {"A": "secret"}, "session": "main"}, "without a session"),
        ({"input": "\ud800secret"}, "half of a surrogate pair"),
    ],
)
async def test_input_and_variables_that_no_command_can_have_are_refused(
    tools: Caller, fake: FakeSandbox, given: dict[str, object], why: str
) -> None:
    problem = await tools.fail("exec_bash", command="cat", **given)
    assert why in problem["error"]
    assert "secret" not in problem["error"]
    assert not fake.commands


async def test_a_session_gets_input_too(local_tools: Caller) -> None:
    done = await local_tools.run("read -r first; echo got $first; cat", input="one\ntwo\n", session="main")
    assert done["stdout"] == "got one\ntwo\n"


@pytest.mark.parametrize("script", ['{"a": 1}', "[1, 2]", '"quoted"', "null", "123", "true", " - x "])
async def test_a_command_that_looks_like_json_stays_as_it_is(tools: Caller, fake: FakeSandbox, script: str) -> None:
    await tools.run(script, cwd=script)
    assert [(it.script, it.cwd) for it in fake.commands] == [(script, script)]


async def test_an_ended_run_is_forgotten_once_all_of_it_was_told(tools: Caller, fake: FakeSandbox) -> None:
    fake.answers = {"short": Answer("x"), "long": Answer("x" * 1000)}
    await tools.run("short", max_output_chars=100)
    await tools.run("long", max_output_chars=100)
    await until(lambda: fake.forgotten, "the first to be forgotten")
    assert fake.forgotten == [fake.commands[0].run_id]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"command": ""}, "command is empty"),
        ({"command": " \n"}, "command is empty"),
        ({"command": "a\0b"}, "command holds a NUL character"),
        ({"command": "x", "cwd": "a\0b"}, "cwd holds a NUL character"),
        ({"command": "x", "timeout_s": 0}, "timeout_s is 0, but must be between 0.1 and 604800"),
        ({"command": "x", "timeout_s": -1}, "timeout_s is -1"),
        ({"command": "x", "timeout_s": 1e9}, "timeout_s is 1000000000"),
        ({"command": "x", "max_output_chars": 0}, "max_output_chars is 0"),
        ({"command": "x", "max_output_chars": 10**9}, "max_output_chars is 1000000000"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
async def test_a_bad_argument_is_told_and_nothing_runs(
    tools: Caller, fake: FakeSandbox, given: dict[str, object], told: str
) -> None:
    problem = await tools.fail("exec_bash", **given)
    assert problem["code"] == "bad_argument"
    assert problem["error"].startswith(told)
    assert not fake.commands


async def test_as_root_is_refused_where_the_sandbox_does_not_offer_it(tools: Caller, fake: FakeSandbox) -> None:
    problem = await tools.fail("exec_bash", command="id", sandbox_name="fake", as_root=True)
    assert problem == {
        "error": "nothing can be run as root on fake: as_root is for SSH machines whose table in config.toml has "
        "`sudo`; nothing was run",
        "code": "unsupported",
    }
    assert not fake.commands


async def test_a_command_that_cannot_start_says_why(tools: Caller, fake: FakeSandbox) -> None:
    def refuse(command: Command) -> Answer:
        raise NotStarted("fake: unable to enter /nope: No such file or directory")

    fake.answers = refuse
    problem = await tools.fail("exec_bash", sandbox_name="fake", command="ls", cwd="/nope")
    assert problem == {
        "error": "fake: unable to enter /nope: No such file or directory (nothing was started)",
        "code": "not_started",
    }


async def test_a_timeout_is_told_with_what_was_printed(tools: Caller, fake: FakeSandbox) -> None:
    fake.answers = {"slow": ENDLESS}
    done = await tools.run("slow", timeout_s=0.1)
    assert done == {"exit_code": 124, "timed_out": True, "stdout": "so far\n", "stderr": "a warning\n"}


async def test_an_exit_124_of_the_command_itself_is_no_timeout(tools: Caller, fake: FakeSandbox) -> None:
    fake.answers = {"exit 124": Answer(exit_code=124)}
    assert await tools.run("exit 124") == {"exit_code": 124}


class Ended(FakeSandbox):
    """A sandbox in which every command has ended already, in a way of the test's choice."""

    def __init__(self, end: Completed) -> None:
        super().__init__()
        self.end = end

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        return self.end


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (Completed(MISSING, 139, signal="SIGSEGV"), {"exit_code": 139, "signal": "SIGSEGV"}),
        (Completed(MISSING, 143, Ending.STOPPED, "SIGTERM"), {"exit_code": 143, "stopped": True}),
        (
            Completed(MISSING, 124, Ending.TIMED_OUT, "SIGKILL", survivors=(7,)),
            {"exit_code": 124, "timed_out": True, "still_alive": [7]},
        ),
        (Completed(MISSING, 0, left_running=(7, 8)), {"exit_code": 0, "left_running": [7, 8]}),
    ],
    ids=["signal", "stopped", "survivors", "left running"],
)
async def test_every_way_to_end_is_told(end: Completed, told: dict[str, object]) -> None:
    async with connected(App(Fleet([member(Ended(end))]))) as tools:
        assert await tools.run("x") == told


async def test_output_that_is_too_long_keeps_its_ends_and_tells_its_size(tools: Caller, fake: FakeSandbox) -> None:
    fake.answers = {"long": Answer("a" * 5000 + "b" * 5000, "c" * 300)}
    done = await tools.run("long", max_output_chars=100)
    assert done["truncated"] is True
    assert (done["stdout_bytes"], done["stderr_bytes"]) == (10_000, 300)
    assert done["stdout"].startswith("a" * 50 + "\n[... 9900 of 10000 bytes left out")
    assert done["stdout"].endswith("...]\n" + "b" * 50)


NOTE = re.compile(
    r"\n\[\.\.\. (\d+) of (\d+) bytes left out; all of it: read_remote_file (\S+) from offset (\d+) \.\.\.\]\n"
)


@pytest.mark.parametrize(
    "piece",
    [r"line of text\n", r"\303\244\360\237\231\202\345\244\247\n", r"\351\n", r"\033[31mred\033[0m\r\n", r"\0\1\2"],
    ids=["text", "unicode", "latin-1", "colours", "controls"],
)
@pytest.mark.parametrize("count", [500, 20_000])
async def test_the_missing_middle_can_be_read_from_the_file_that_is_named(
    local_tools: Caller, piece: str, count: int
) -> None:
    """Exactly that: no byte is missing, whatever had to be made harmless in what was shown."""
    # Each line is another one, so that a mistake of one byte is seen.
    script = f'for n in $(seq {count}); do printf "$n {piece}"; done'
    done = await local_tools.run(f"({script}); ({script}) >&2", max_output_chars=1000)
    for stream in ("stdout", "stderr"):
        note = NOTE.search(done[stream])
        assert note, done[stream]
        omitted, total, offset = int(note[1]), int(note[2]), int(note[4])
        assert (total, note[3]) == (done[f"{stream}_bytes"], done[f"{stream}_file"])
        whole = await read_all(local_tools, note[3])
        assert len(whole) == total
        assert done[stream][: note.start()] == harmless(whole[:offset])
        assert done[stream][note.end() :] == harmless(whole[offset + omitted :])


async def read_all(tools: Caller, path: str) -> bytes:
    whole, offset = b"", 0
    while True:
        part = await tools.call("read_remote_file", remote_path=path, offset=offset, max_bytes=10_000_000)
        content: str = part["content"]
        whole += base64.b64decode(content) if part.get("encoding") else content.replace("\\u001b", "\x1b").encode()
        if not part["truncated"]:
            return whole
        offset = part["next_offset"]


async def test_what_a_command_prints_cannot_drive_a_terminal(tools: Caller, fake: FakeSandbox) -> None:
    fake.answers = {"evil": Answer(b"a\x1b[31mred\x1b[0m \x1b]0;title\x07b\0\xff\x9b2Jc\r\nd\re")}
    told = (await tools.run("evil"))["stdout"]
    assert told.startswith("ared b")
    assert not {letter for letter in told if ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0} - {"\n"}


class Heard:
    """What a client hears of a call's progress, and when."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.progress: list[float] = []
        self.totals: set[float | None] = set()
        self.messages: list[str | None] = []

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.at.append(time.monotonic())
        self.progress.append(progress)
        self.totals.add(total)
        self.messages.append(message)

    @property
    def is_growing(self) -> bool:
        return all(before < after for before, after in pairwise(self.progress))

    @property
    def shortest_pause(self) -> float:
        return min((after - before for before, after in pairwise(self.at)), default=1.0)


async def test_progress_carries_the_last_line_and_no_total(tools: Caller, fake: FakeSandbox) -> None:
    heard = Heard()
    fake.answers = {"build": Answer("one\ntw\u202eo\n", then=after(0.1, Answer("three\n")))}
    await tools.call("exec_bash", command="build", timeout_s=30, progress=heard)
    assert "tw\\u202eo" in heard.messages
    # A client would show the timeout as what is to be done, and "8 %" of it.
    assert heard.totals == {None}


async def test_progress_comes_at_most_twice_a_second_with_the_newest_line(tools: Caller, fake: FakeSandbox) -> None:
    heard = Heard()
    answer = Answer("last\n")
    for number in range(120):
        answer = Answer(f"line {120 - number}\n", then=after(0.01, answer))
    fake.answers = {"flood": answer}
    await tools.call("exec_bash", command="flood", progress=heard)
    assert 2 <= len(heard.messages) <= 8
    assert heard.shortest_pause > 0.3
    assert heard.is_growing
    assert heard.messages[-1] not in ("line 1", "line 2")


# Progress is told once a second, and the first may come before the first step.
STEPS = "for i in 1 2 3 4 5 6 7 8 9 10; do echo step $i; sleep 0.35; done"
STREAMING = {
    "from the first byte": STEPS,
    "on the other stream": f"({STEPS}) >&2",
    "after much else": f"head -c 200000 /dev/zero | tr '\\0' x; echo; {STEPS}",
}


@pytest.mark.parametrize("command", STREAMING.values(), ids=STREAMING)
async def test_output_streams_while_it_is_printed(local_tools: Caller, command: str) -> None:
    heard = Heard()
    await local_tools.call("exec_bash", command=command, progress=heard)
    steps = [message for message in heard.messages if message and message.startswith("step")]
    assert len(set(steps)) >= 3, heard.messages
    assert heard.totals == {None}
    assert heard.is_growing


async def test_waiting_for_a_command_that_outlasted_its_call_tells_its_last_line(
    tools: Caller, app: App, fake: FakeSandbox
) -> None:
    app.patience_s = 0.1
    fake.answers = {"slow": Answer("begun\n", then=after(1.5, Answer("done\n")))}
    session = (await tools.call("exec_bash", command="slow"))["tmux_session"]
    app.patience_s = 10.0
    heard = Heard()
    await tools.call("wait_background_task", tmux_session=session, progress=heard)
    assert "begun" in heard.messages
    assert heard.totals == {None}


@pytest.mark.parametrize("on", ["fake", "real"])
async def test_waiting_for_a_job_tells_its_last_line(
    tools: Caller, local_tools: Caller, fake: FakeSandbox, on: str
) -> None:
    caller, heard = (tools if on == "fake" else local_tools), Heard()
    command = "ask" if on == "fake" else "echo epoch 1; sleep 0.2; echo epoch 2; sleep 30"
    await caller.call("exec_bash_background", command=command, session_name="train", watch=False)
    if on == "fake":
        fake.jobs.print(fake.jobs.started[-1].job_id, b"epoch 1\nepoch 2\n")
    waited = await caller.call("wait_background_task", tmux_session="train", timeout_s=1.5, progress=heard)
    assert waited["reason"] == "timeout"
    assert "epoch 2" in heard.messages
    assert heard.totals == {None}
    await caller.call("stop_background_task", tmux_session="train", grace_s=0)


async def test_a_cancelled_call_stops_its_command(tools: Caller, fake: FakeSandbox) -> None:
    fake.answers = {"slow": ENDLESS}
    call = asyncio.ensure_future(tools.client.call_tool("exec_bash", {"command": "slow"}))
    await until(lambda: fake.commands, "the command to start")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async def ended() -> Ending | None:
        seen = await fake.observe(fake.commands[0].run_id)
        return seen.ending if isinstance(seen, Completed) else None

    assert await until(ended, "the command to stop") is Ending.STOPPED


# What outlasts its call


async def test_a_command_that_outlasts_the_call_is_handed_over(app: App, fake: FakeSandbox) -> None:
    app.patience_s = 0.05
    release = asyncio.Event()

    async def rest() -> Answer:
        await release.wait()
        return Answer("the rest\n", exit_code=3)

    fake.answers = {"slow": Answer("so far\n", then=rest)}
    async with connected(app) as tools:
        started = await tools.run("slow")
        handle = started["tmux_session"]
        assert started == {"running": True, "tmux_session": handle, "stdout": "so far\n"}
        seen = await tools.call("check_background_task", tmux_session=handle)
        assert seen == {"tmux_session": handle, "running": True, "outcome": "running", "log_tail": "so far"}
        release.set()
        while seen["running"]:
            seen = await tools.call("check_background_task", tmux_session=handle)
        ended = {"running": False, "outcome": "failed", "exit_code": 3}
        assert seen == {"tmux_session": handle, **ended, "log_tail": "so far\nthe rest"}
    assert len(fake.commands) == 1


async def test_the_end_of_the_log_is_as_long_as_asked_for(app: App, fake: FakeSandbox) -> None:
    app.patience_s = 0.01
    fake.answers = {"slow": Answer("1\n2\n3\n", "x\ny\n", then=after(math.inf))}
    async with connected(app) as tools:
        handle = (await tools.run("slow"))["tmux_session"]
        seen = await tools.call("check_background_task", tmux_session=handle, last_n_lines=1)
    assert (seen["log_tail"], seen["stderr_tail"]) == ("3", "y")


async def test_what_was_handed_over_can_be_stopped(app: App, fake: FakeSandbox) -> None:
    app.patience_s = 0.01
    fake.answers = {"slow": ENDLESS}
    async with connected(app) as tools:
        handle = (await tools.run("slow"))["tmux_session"]
        stopped = await tools.call("stop_background_task", tmux_session=handle)
        assert stopped["running"] is False
        assert stopped["stopped"] is True
        assert stopped["exit_code"] == 143
        assert await tools.call("check_background_task", tmux_session=handle) == stopped


@pytest.mark.parametrize("tool", ["check_background_task", "stop_background_task"])
async def test_a_run_that_nobody_began_is_an_unknown_task(tools: Caller, tool: str) -> None:
    problem = await tools.fail(tool, tmux_session=MISSING)
    assert (problem["code"], problem["error"].startswith(f"fake knows no task '{MISSING}'")) == ("unknown_task", True)


@pytest.mark.parametrize("tool", ["check_background_task", "wait_background_task", "stop_background_task"])
@pytest.mark.parametrize("handle", ["bg-1", "run-../../etc", "run-ABCDEFGH"])
async def test_what_is_no_handle_of_a_run_is_the_name_of_a_job(tools: Caller, tool: str, handle: str) -> None:
    problem = await tools.fail(tool, tmux_session=handle)
    assert (problem["code"], problem["error"].startswith("fake knows no task ")) == ("unknown_task", True)


async def test_for_an_unknown_task_the_name_is_told_that_was_probably_meant(tools: Caller) -> None:
    await tools.call("exec_bash_background", command="x", session_name="train-large", watch=False)
    problem = await tools.fail("check_background_task", tmux_session="train-lagre")
    assert "did you mean train-large?" in problem["error"]


@pytest.mark.parametrize("tool", ["check_background_task", "wait_background_task", "stop_background_task"])
@pytest.mark.parametrize("handle", ["", "x" * 10_000], ids=["empty", "long"])
async def test_what_can_be_neither_is_refused(tools: Caller, tool: str, handle: str) -> None:
    problem = await tools.fail(tool, tmux_session=handle)
    assert problem["code"] == "bad_argument"


@pytest.mark.parametrize("lines", [0, -1, 5001])
async def test_the_number_of_lines_has_bounds(tools: Caller, lines: int) -> None:
    problem = await tools.fail("check_background_task", tmux_session=MISSING, last_n_lines=lines)
    assert problem["code"] == "bad_argument"


class Patient(FakeSandbox):
    """Notes how long it was asked to wait."""

    asked: float | None = None

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        self.asked = patience_s
        return Completed(command.run_id, 0)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("hears", [False, True], ids=["without progress", "with progress"])
@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("claude-code", (110, 110)),
        ("codex-mcp-client", (280, 280)),
        ("cursor", (50, 50)),
        ("something-else", (55, 110)),
    ],
)
async def test_a_call_waits_no_longer_than_its_client(
    mode: str, name: str, seconds: tuple[float, float], hears: bool
) -> None:
    async def hear(progress: float, total: float | None, message: str | None) -> None:
        """What is said does not matter."""

    sandbox = Patient()
    info = Implementation(name=name, version="1")
    async with Client(build(App(Fleet([member(sandbox)]))), mode=mode, client_info=info) as client:
        await client.call_tool("exec_bash", {"command": "true"}, progress_callback=hear if hears else None)
    # In memory, the newer era hands the callback over without a token.
    assert sandbox.asked == seconds[hears and mode == "legacy"]


async def test_the_operator_can_set_how_long_a_call_waits() -> None:
    sandbox = Patient()
    async with connected(App(Fleet([member(sandbox)]), patience_s=7)) as tools:
        await tools.run("true")
    assert sandbox.asked == 7
