"""Every failure is one sentence with a code; a defect is told without its stack."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.commands.command import Command, Completed, Excerpt, Running
from remote_sandbox_mcp.core.errors import (
    ConfigError,
    ConnectError,
    FileProblem,
    HostKeyProblem,
    LoginRefused,
    LostContact,
    SandboxError,
    Unreachable,
    Unsupported,
)
from remote_sandbox_mcp.core.progress import Progress, silent
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller, text_of

SECRET = "hunter2-correct-horse"
NOT_STARTED = {"connection_error": True, "outcome": "not_started"}


@pytest.mark.parametrize(
    ("problem", "code", "more"),
    [
        (SandboxError("no"), "failed", {}),
        (ConfigError("no"), "config", {}),
        (Unsupported("no"), "unsupported", {}),
        (FileProblem("no", "stale"), "file", {}),
        (ConnectError("no"), "connect", NOT_STARTED),
        (Unreachable("no"), "unreachable", NOT_STARTED),
        (LoginRefused("no"), "login_refused", NOT_STARTED),
        (HostKeyProblem("no"), "host_key", NOT_STARTED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_of_our_errors_has_its_code(
    tools: Caller, fake: FakeSandbox, problem: SandboxError, code: str, more: dict[str, object]
) -> None:
    fake.fail(problem)
    text = "no (nothing was started)" if more else "no"
    assert await tools.fail("exec_bash", command="ls", sandbox_name="fake") == {"error": text, "code": code} | more
    # What only looks starts nothing anyhow.
    assert await tools.fail("list_remote_files", sandbox_name="fake") == {"error": "no", "code": code} | more


class Unlucky(FakeSandbox):
    """Loses contact with every command after it has printed something."""

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        so_far = Running("run-0123456789abcdef", Excerpt(b"half a line", total=11))
        raise LostContact("contact was lost", outcome="unknown", so_far=so_far)


async def test_lost_contact_tells_the_outcome_the_handle_and_what_was_printed() -> None:
    async with connected(App(Fleet([member(Unlucky())]))) as tools:
        assert await tools.fail("exec_bash", command="ls", sandbox_name="fake") == {
            "error": "contact was lost; it may have been started: ask with "
            "check_background_task(tmux_session='run-0123456789abcdef')\nstdout so far:\nhalf a line",
            "code": "connection_lost",
            "connection_error": True,
            "outcome": "unknown",
            "tmux_session": "run-0123456789abcdef",
        }


async def test_every_call_is_a_line_in_the_log_without_what_was_asked(
    tools: Caller, fake: FakeSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "remote_sandbox_mcp"):
        await tools.run(f"echo {SECRET}", sandbox_name="fake")
        fake.fail(FileProblem(f"fake: {SECRET} does not exist"))
        await tools.fail("read_remote_file", remote_path=SECRET)
        await tools.fail("exec_bash", command=SECRET, sandbox_name="a\nb\x1b[2J\ud800")
    said = [re.sub(r"\d+\.\d+", "N", record.getMessage()) for record in caplog.records]
    assert said == [
        "exec_bash on fake: done in N s",
        "read_remote_file: file in N s",
        "exec_bash on a b\ufffd\ufffd\ufffd: unknown_sandbox in N s",
    ]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_defect_is_told_without_its_stack_and_logged_with_it(
    app: App, fake: FakeSandbox, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(command: Command) -> object:
        raise RuntimeError(f"unexpected: {SECRET}")

    fake.answers = explode  # type: ignore[assignment]
    async with connected(app, mode) as tools:
        with caplog.at_level(logging.ERROR):
            problem = await tools.fail("exec_bash", command="ls", sandbox_name="fake")
        assert problem == {
            "error": "exec_bash failed because of a defect in remote-sandbox-mcp; its log has the details; it may have "
            "been started: look before repeating it",
            "code": "defect",
        }
        said = tools.answers[0].model_dump_json()
        assert SECRET not in said
        assert "RuntimeError" not in said
        (record,) = [record for record in caplog.records if record.name.startswith("remote_sandbox_mcp")]
        assert record.exc_info
        # And it serves on.
        fake.answers = {}
        assert (await tools.run("ls"))["exit_code"] == 127


@pytest.mark.parametrize(
    "path",
    ["x" * 100_000, "a\x1b[2J\x07b", "caf\udce9", "half \ud800"],
    ids=["long", "escapes", "latin-1", "surrogate"],
)
async def test_a_path_in_an_error_neither_floods_nor_harms(tools: Caller, fake: FakeSandbox, path: str) -> None:
    fake.fail(FileProblem(f"fake: {path} is a symbolic link; write to its target instead"))
    problem = await tools.fail("read_remote_file", remote_path="x")
    assert problem["error"].startswith("fake: ")
    assert problem["error"].endswith("write to its target instead")
    assert len(problem["error"]) < 1100
    assert problem["error"].replace("�", "").isprintable()


# Arguments that do not fit

WRONG = ("nonsense", [1], {"a": 1}, -5, 10**12, 1.5, True, None)
RAW = ("Input should", "Field required", "instances are not allowed", "validation error", "[type=", "pydantic")


async def test_no_sentence_about_an_argument_is_the_librarys_own(tools: Caller) -> None:
    said = set()
    for tool in (await tools.client.list_tools()).tools:
        required = dict.fromkeys(tool.input_schema.get("required", ()), "x")
        for name in tool.input_schema["properties"]:
            for value in WRONG:
                schema = tool.input_schema["properties"][name]
                if name == "timeout_s" or schema.get("type") == {str: "string", bool: "boolean"}.get(type(value)):
                    continue
                answer = await tools.client.call_tool(tool.name, {**required, "sandbox_name": "none", name: value})
                if answer.is_error:
                    said.add(text_of(answer))
        if required:
            said.add(text_of(await tools.client.call_tool(tool.name, {})))
    assert len(said) > 100
    assert not [text for text in said if any(raw in text for raw in RAW)]


@pytest.mark.parametrize(
    ("tool", "given", "says"),
    [
        ("exec_bash", {}, "exec_bash needs command; it takes: command, cwd, "),
        ("exec_bash", {"command": 5}, "exec_bash: command must be text, and is 5"),
        ("exec_bash", {"command": "ls", "timeout_s": "soon"}, "exec_bash: timeout_s must be a number, and is text"),
        ("exec_bash", {"command": "ls", "sandbox_names": 5}, "must be a list, such as"),
        ("download_files", {"sandbox_id": "fake", "paths": 3}, "paths must be a list, such as"),
        ("upload_files", {"sandbox_id": "fake", "files": "x"}, "files must be a list, such as"),
        ("list_background_tasks", {"limit": 5000}, "limit must be 1000 or less, and is 5000"),
        ("list_background_tasks", {"status": "done"}, "status must be '', 'pending', 'running', "),
    ],
    ids=str,
)
async def test_an_argument_that_does_not_fit_is_told_with_what_it_must_be(
    tools: Caller, tool: str, given: dict[str, object], says: str
) -> None:
    problem = await tools.fail(tool, **given)
    assert says in problem["error"]
    assert problem["code"] == "bad_argument"


async def test_a_secret_in_a_wrong_argument_is_not_repeated(tools: Caller) -> None:
    problem = await tools.fail("exec_bash", command="ls", timeout_s=SECRET)
    assert SECRET not in problem["error"]


async def test_a_wait_longer_than_allowed_is_shortened(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="true", session_name="short", sandbox_name="fake")
    for seconds in (281, 86400):
        assert "between" not in str(await tools.ask("wait_background_task", tmux_session="short", timeout_s=seconds))
    problem = await tools.fail("check_file_transfer_task", task_id="tr-1", wait_s=3600)
    assert "no transfer has the id" in problem["error"]


@pytest.mark.parametrize("name", ["GPU2", "Gpu2", "gpu2"])
async def test_capital_letters_of_a_name_do_not_matter(name: str) -> None:
    app = App(Fleet([member(FakeSandbox(name="gpu2")), member(FakeSandbox())]))
    async with connected(app) as tools:
        assert (await tools.call("select_sandbox", sandbox_name=name))["active_sandbox"] == "gpu2"
        await tools.call("write_remote_file", remote_path=f"{name}:~/x", content="there", sandbox_name=name)
        assert (await tools.call("read_remote_file", remote_path="gpu2:~/x"))["content"] == "there"


async def test_two_names_that_differ_in_capital_letters_are_two() -> None:
    app = App(Fleet([member(FakeSandbox(name="gpu2")), member(FakeSandbox(name="GPU2"))]))
    async with connected(app) as tools:
        for name in ("gpu2", "GPU2"):
            assert (await tools.call("select_sandbox", sandbox_name=name))["active_sandbox"] == name
        assert "did you mean" in (await tools.fail("select_sandbox", sandbox_name="Gpu2"))["error"]


@pytest.mark.parametrize("part", ["status", "logs"])
async def test_an_unknown_sandbox_in_the_address_of_a_resource_is_an_invalid_parameter(
    tools: Caller, part: str
) -> None:
    with pytest.raises(MCPError) as refused:
        await tools.client.read_resource(f"sandbox://fak/{part}")
    assert refused.value.error.code == INVALID_PARAMS
    assert "did you mean fake?" in refused.value.error.message


# No usable place


async def test_where_nothing_can_be_used_the_list_says_why_and_calls_nothing_active() -> None:
    async def why_not() -> str:
        return "this computer forbids namespaces"

    walled = replace(member(FakeSandbox(name="local")), why_not=why_not)
    async with connected(App(Fleet([walled]))) as tools:
        listed = (await tools.client.call_tool("list_sandboxes", {})).structured_content or {}
        assert (listed["active_sandbox"], listed["sandboxes"]) == ("", [])
        assert listed["problems"] == ["local cannot be used here: this computer forbids namespaces"]
