"""The first answers come from memory, and are the SDK's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.fronts.mcp.handshake import AnswerMemory, fingerprint_of
from tests.support.sshd import wait_until

COMMAND = str(Path(sys.executable).with_name("remote-sandbox-mcp"))
CLIENT = {"name": "test", "version": "1"}
LEGACY = [
    {"method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": CLIENT}},
    {"method": "tools/list"},
]
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
MODERN = [
    {"method": "server/discover", "params": {"_meta": META}},
    {"method": "tools/list", "params": {"_meta": META}},
]


class Talk:
    """A server process and one line of JSON after another."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.number = 0

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self.number += 1
        self.tell(question | {"id": self.number})
        assert self.process.stdout
        reply: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert reply["id"] == self.number
        return reply

    def tell(self, message: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        self.process.stdin.flush()


@contextmanager
def talk(home: Path, *words: str) -> Iterator[Talk]:
    environment = os.environ | {"REMOTE_SANDBOX_MCP_HOME": str(home)}
    with subprocess.Popen([COMMAND, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        try:
            yield Talk(process)
        finally:
            assert process.stdin
            process.stdin.close()
            process.wait(10)


@pytest.mark.parametrize("questions", [LEGACY, MODERN], ids=["2025", "2026"])
def test_remembered_answers_are_the_sdks_own(tmp_path: Path, questions: list[dict[str, Any]]) -> None:
    def conversation() -> list[dict[str, Any]]:
        with talk(tmp_path) as server:
            answers = [server.ask(question) for question in questions]
            server.tell({"method": "notifications/initialized"})
            meta = {"_meta": META} if questions is MODERN else {}
            # The SDK has heard all that was answered before it was there: a call works, and answers in turn.
            called = {"name": "select_sandbox", "arguments": {"sandbox_name": "local"}} | meta
            answers.append(server.ask({"method": "tools/call", "params": called}))
            return answers

    first = conversation()
    kept = json.loads((tmp_path / "first-answers.json").read_text())
    assert len(kept["answers"]) == 2
    assert conversation() == first
    assert all("result" in answer for answer in first)
    assert (tmp_path / "first-answers.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("words", [(), ("--no-hub",)], ids=["the hub", "a server of its own"])
def test_claude_code_is_sent_to_the_version_in_which_messages_reach_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    """It asks for 2026-07-28 first, and leaves channels out where it gets that."""
    claude = {"name": "claude-code", "version": "2.1.326"}
    meta = META | {"io.modelcontextprotocol/clientInfo": claude}
    greeting = LEGACY[0] | {"params": LEGACY[0]["params"] | {"clientInfo": claude}}
    for _ in "not remembered", "remembered":
        with talk(tmp_path, *words) as server:
            refusal = server.ask({"method": "server/discover", "params": {"_meta": meta}})
            assert refusal["error"]["code"] == -32601
            answer = server.ask(greeting)["result"]
            assert answer["capabilities"]["experimental"] == {"claude/channel": {}}
            server.tell({"method": "notifications/initialized"})
            called = {"name": "select_sandbox", "arguments": {"sandbox_name": "local"}}
            assert "result" in server.ask({"method": "tools/call", "params": called})
    kept = json.loads((tmp_path / "first-answers.json").read_text())
    assert sorted(next(iter(answer)) for answer in kept["answers"].values()) == ["error", "result"]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"stamp": 1}', '{"stamp": "other", "answers": {}}'])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, damage: str) -> None:
    (tmp_path / "first-answers.json").write_text(damage)
    with talk(tmp_path) as server:
        assert "result" in server.ask(LEGACY[0])


def test_what_is_remembered_wrongly_is_put_right_once_the_client_is_quiet(tmp_path: Path) -> None:
    file = tmp_path / "first-answers.json"

    def ask() -> dict[str, Any]:
        with talk(tmp_path, "--no-hub") as server:
            server.ask(LEGACY[0])
            server.tell({"method": "notifications/initialized"})
            listed = server.ask(LEGACY[1])
            # Works at once, whatever is to be checked.
            chosen = {"name": "select_sandbox", "arguments": {"sandbox_name": "local"}}
            assert "result" in server.ask({"method": "tools/call", "params": chosen})
            wait_until(lambda: '"tools": []' not in file.read_text(), what="a memory that is right")
            return listed

    right = ask()
    kept = json.loads(file.read_text())
    for answer in kept["answers"].values():
        answer["result"] |= {"tools": []} if "tools" in answer["result"] else {}
    file.write_text(json.dumps(kept))
    assert ask()["result"]["tools"] == []
    assert ask() == right


def test_a_new_version_forgets(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("1")
    before = fingerprint_of([code], "1.0")
    memory = AnswerMemory(tmp_path / "answers", before)
    question = LEGACY[0] | {"id": 7}
    memory.learn(memory.key(question), {"result": {"x": 1}})
    assert json.loads(AnswerMemory(tmp_path / "answers", before).answer(question)) == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {"x": 1},
    }
    code.write_text("22")
    after = fingerprint_of([code], "1.0")
    assert after != before != fingerprint_of([code], "1.1")
    assert AnswerMemory(tmp_path / "answers", after).answer(question) == b""


def test_input_that_ends_at_once_is_still_answered(tmp_path: Path) -> None:
    lines = b"".join(json.dumps({"jsonrpc": "2.0", "id": n} | q).encode() + b"\n" for n, q in enumerate(LEGACY, 1))
    environment = os.environ | {"REMOTE_SANDBOX_MCP_HOME": str(tmp_path)}
    done = subprocess.run(COMMAND, input=lines, capture_output=True, env=environment, timeout=30, check=True)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2]
