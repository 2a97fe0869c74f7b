"""Every failure is one sentence with a code; a defect is told without its stack."""

from __future__ import annotations

import logging
import re

import pytest

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
from tests.support.server import Caller

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
