"""Both eras of the protocol, and the oldest handshake that clients still use, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp import __version__
from remote_sandbox_mcp.app import App
from tests.fronts.mcp.conftest import connected
from tests.support.fakes.sandbox import Answer, FakeSandbox
from tests.support.server import serve, wire

NESTED = (b"[" * 5000, b'{"a":' * 5000)
ODD = (b'{"jsonrpc":"2.0","id":[],"method":"tools/list"}', b'{"jsonrpc":"2.0","id":1,"method":[]}', b'{"id":{}}')
ERAS = [("legacy", "2025-11-25"), ("auto", "2026-07-28")]


@pytest.mark.parametrize(("mode", "version"), ERAS)
async def test_both_eras_are_served_in_memory(app: App, fake: FakeSandbox, mode: str, version: str) -> None:
    fake.answers = {"ls": Answer("x\n")}
    async with connected(app, mode) as tools:
        assert tools.client.protocol_version == version
        assert tools.client.instructions
        assert await tools.run("ls") == {"exit_code": 0, "stdout": "x\n"}
        assert (await tools.fail("exec_bash"))["code"] == "bad_argument"


@pytest.mark.parametrize(("mode", "version"), ERAS)
async def test_both_eras_are_served_by_the_installed_command(tmp_path: Path, mode: str, version: str) -> None:
    async with serve(tmp_path, mode=mode) as server:
        assert server.client.protocol_version == version
        assert server.client.server_info is not None
        assert server.client.server_info.version == __version__
        assert (await server.fail("exec_bash", command="ls"))["code"] == "unknown_sandbox"


def code_of(result: dict[str, Any]) -> str:
    """The code of an error, which is told twice to a client that is not known."""
    assert result["structuredContent"]["error"] == result["content"][0]["text"]
    assert result["structuredContent"]["code"] == result["_meta"]["remote-sandbox/error"]["code"]
    return str(result["structuredContent"]["code"])


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
def test_an_older_handshake_by_hand_is_answered_in_its_own_version(tmp_path: Path, version: str) -> None:
    with wire(tmp_path) as line:
        hello = line.initialize(version)
        assert hello["protocolVersion"] == version
        assert hello["serverInfo"]["name"] == "remote-sandbox-mcp"
        assert hello["instructions"]
        assert "tools" in hello["capabilities"]
        assert len(line.ask("tools/list")["result"]["tools"]) == 29
        answer = line.call("exec_bash", command="ls", comand="ls")
        assert answer["isError"] is True
        assert code_of(answer) == "bad_argument"


def test_lines_that_are_no_messages_do_not_end_the_server(tmp_path: Path) -> None:
    with wire(tmp_path) as line:
        line.initialize()
        for junk in (b"", b"not json", b"{}", b"[]", b'{"jsonrpc":"2.0","id":7}', b"\xff\xfe", *NESTED, *ODD):
            line.send_line(junk)
        assert code_of(line.call("get_active_sandbox")) == "unknown_sandbox"
        assert "Traceback" not in line.stderr


@pytest.mark.parametrize("half", [r"\ud83d", r"\uD83D", r"\udc00", r"\ude00\ud83d"])
def test_half_of_a_surrogate_pair_is_refused_and_never_left_without_an_answer(tmp_path: Path, half: str) -> None:
    with wire(tmp_path) as line:
        line.initialize()
        call = r'{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"exec_bash","arguments":%s}}'
        line.send_line((call % f'{{"command":"echo {half}"}}').encode())
        answer = line.receive()
        assert answer["id"] == 77
        assert "half of a surrogate pair" in answer["error"]["message"]
        line.send_line((call % r'{"command":"echo \ud83d\ude00 \\ud83d"}').encode())
        assert code_of(line.receive()["result"]) == "unknown_sandbox"


def test_a_second_start_answers_what_the_first_one_did(tmp_path: Path) -> None:
    answers = []
    for _ in range(3):
        with wire(tmp_path) as line:
            answers.append((line.initialize(), line.ask("tools/list")["result"], line.call("get_active_sandbox")))
            assert line.leave(None)[1:] == (0, b"")
    assert answers[0] == answers[1] == answers[2]
