"""Calls of tools by the page, and older calls and events."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fronts.http.conftest import Service
from tests.fronts.page.conftest import PASSWORD_WORD
from tests.support.page import Browser
from tests.support.sshd import Sshd


def test_a_call_has_the_answer_that_an_agent_gets(browser: Browser, machine: Sshd) -> None:
    answer = browser.call("exec_bash", command="echo hello; exit 3", sandbox_name=machine.name)
    assert not answer["is_error"]
    assert answer["structured"]["exit_code"] == 3
    assert answer["structured"]["stdout"].strip() == "hello"
    assert "hello" in answer["text"]


def test_a_mistake_is_a_sentence(browser: Browser) -> None:
    answer = browser.call("exec_bash", command="ls", sandbox_name="nowhere")
    assert answer["is_error"]
    assert "no sandbox is named 'nowhere'" in answer["text"]
    answer = browser.call("exec_bash", comand="ls")
    assert "did you mean command?" in answer["text"]


@pytest.mark.parametrize(
    "tool",
    [
        "write_remote_file",
        "sync_remote_to_local",
        "send_background_input",
        "select_sandbox",
        "",
        "__init__",
        "EXEC_BASH",
    ],
)
def test_other_tools_are_refused(browser: Browser, tool: str) -> None:
    answer = browser.ask("POST", "/ui/api/call", {"tool": tool, "arguments": {}})
    assert answer.status == 403
    assert "may not call" in answer.json["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="nothing"),
        pytest.param(b"{", 400, id="no JSON"),
        pytest.param(b"[]", 400, id="no object"),
        pytest.param(b"[" * 100_000, 400, id="deep"),
        pytest.param(b'{"tool": 5}', 400, id="no name"),
        pytest.param(b'{"tool": "exec_bash", "arguments": []}', 400, id="no arguments"),
        pytest.param(b'"' + b"x" * (1 << 20), 413, id="too much"),
    ],
)
def test_what_is_no_call_is_refused(browser: Browser, body: bytes, status: int) -> None:
    assert browser.ask("POST", "/ui/api/call", body).status == status


def test_a_disposable_sandbox_is_made_shown_and_deleted(browser: Browser) -> None:
    choices = browser.ask("GET", "/ui/api/choices").json["providers"]
    assert [choice["provider"] for choice in choices if choice["is_default"]] == ["embedded"]
    with browser.stream() as stream:
        made = browser.call("create_sandbox", name="by-page")["structured"]
        row = stream.row("sandboxes", made["sandbox_id"])
        assert (row["name"], row["status"]) == ("by-page", "running")
        assert row["expires_at"] > row["created_at"] > 1e9
        ran = browser.call("run_command", command="echo inside", sandbox_id=made["sandbox_id"])
        assert ran["structured"]["stdout"].strip() == "inside"
        assert not browser.call("delete_sandbox", sandbox_id=made["sandbox_id"])["is_error"]
        stream.until(lambda topics: made["sandbox_id"] not in topics["sandboxes"], "its end")


def test_calls_are_kept_without_secrets_and_older_ones_can_be_read(browser: Browser, machine: Sshd) -> None:
    for number in range(3):
        browser.call("exec_bash", command=f"PASSWORD={PASSWORD_WORD} true {number}", sandbox_name=machine.name)
    with browser.stream() as stream:
        rows = stream.until(
            lambda topics: (
                [row for row in topics.get("calls", {}).values() if "true 2" in str(row)] and topics["calls"].values()
            ),
            "the last call",
        )
        assert PASSWORD_WORD not in stream.said
    newest = max(row["id"] for row in rows)
    first = browser.ask("GET", f"/ui/api/calls?before={newest}&limit=2&client=page&tool=exec_bash").json["calls"]
    assert len(first) == 2
    assert all(row["id"] < newest for row in first)
    assert browser.ask("GET", "/ui/api/calls?before=1").json == {"calls": []}
    assert browser.ask("GET", "/ui/api/events?before=1").json == {"events": []}
    assert browser.ask("GET", "/ui/api/calls?before=x").status == 400
    failed = browser.ask("GET", "/ui/api/calls?failed=1").json["calls"]
    assert all(row["outcome"] != "done" or row["exit_code"] for row in failed)


def test_a_workspace_is_decided_about_from_its_own_folder(browser: Browser, served: Service, machine: Sshd) -> None:
    answer = browser.ask(
        "POST", "/ui/api/call", {"tool": "link_workspace", "arguments": {"local_path": str(served.home)}}
    )
    assert answer.status == 403
    assert "is not linked" in answer.json["error"]
    # A link that is made by the page would be one of the folder /, which is none.
    answer = browser.call("link_workspace", remote_path=f"{machine.name}:x")
    assert answer["is_error"]
    assert not Path("/.remote-sandbox").exists()
