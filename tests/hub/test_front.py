"""The front between a client and a hub that does odd things; the test is both of them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.fronts.mcp.handshake import first_memory
from remote_sandbox_mcp.hub.transcript import MOST_VERSIONS, Transcript
from remote_sandbox_mcp.services.hub_contact.hello import say_version
from remote_sandbox_mcp.services.hub_contact.place import HubPlace
from remote_sandbox_mcp.services.session import REMEMBERED_VERSIONS
from tests.support.server import environment

# The front as it is, but for its patience.
IMPATIENT = """
import json
import sys
from remote_sandbox_mcp.hub import front, silence
silence.ASK_EVERY_S, silence.ANSWER_S, silence.GIVE_UP_S, silence.TURN_S = 0.1, 0.1, float(sys.argv[1]), 0.05
front.GREETING_S, front.STEADY_S, front.STOPPED_S, silence.POLL_EVERY_S = 1.0, 3600.0, 0.3, 0.2
front.QUIET_S = 0.2
handed = front.run("")
if handed:
    print("HANDED", json.dumps([handed.heard.decode(), sorted(handed.answered), handed.who]), flush=True)
"""


class FakeLine:
    """A line to a front, as a hub has it."""

    def __init__(self, line: socket.socket) -> None:
        line.settimeout(20)
        self.socket = line
        self._file = line.makefile("rb")
        self.hello: dict[str, Any] = self.receive()

    def receive(self) -> dict[str, Any]:
        return dict(json.loads(self._file.readline()))

    def greet(self, pid: int = 4711) -> None:
        self.send({"pid": pid})

    def send(self, message: dict[str, Any]) -> None:
        self.send_raw(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, request: dict[str, Any], **result: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def close(self) -> None:
        self._file.close()
        self.socket.close()


class Stage:
    """A front, with the test as its client and as its hub."""

    def __init__(self, home: Path, give_up_s: float) -> None:
        self.home = home
        self.environ = environment(home, ())
        self.place = HubPlace(self.environ)
        self.place.make()
        self.lock = self.place.take_lock()
        self.listener = self.place.listen()
        self.listener.settimeout(20)
        self.lines: list[FakeLine] = []
        with (home / "stderr").open("ab") as errlog:
            words, pipe = [sys.executable, "-c", IMPATIENT, str(give_up_s)], subprocess.PIPE
            self.front = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=errlog, env=self.environ)

    def accept(self) -> FakeLine:
        """The next front; who only asks whether the hub is there gets no answer."""
        while True:
            line = FakeLine(self.listener.accept()[0])
            self.lines.append(line)
            if line.hello["hello"] == "serve":
                return line
            line.close()

    @property
    def stderr(self) -> str:
        return (self.home / "stderr").read_text()

    def ask(self, number: Any, method: str = "tools/call", **params: Any) -> bytes:
        line = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"
        self.type(line)
        return line

    def type(self, data: bytes) -> None:
        assert self.front.stdin
        self.front.stdin.write(data)
        self.front.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.front.stdout
        return dict(json.loads(self.front.stdout.readline()))

    def handed(self) -> tuple[bytes, list[Any], dict[str, Any]]:
        """What the front leaves to a server in its own process."""
        assert self.front.stdout
        while not (line := self.front.stdout.readline()).startswith(b"HANDED "):
            assert line
        heard, answered, who = json.loads(line[len(b"HANDED ") :])
        return heard.encode(), answered, who

    def close(self) -> None:
        self.front.kill()
        self.front.wait()
        for file in (self.front.stdin, self.front.stdout):
            assert file
            file.close()
        for line in self.lines:
            line.close()
        self.listener.close()
        os.close(self.lock)


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Its parameter is the front's patience with a hub."""
    stage = Stage(tmp_path, getattr(request, "param", 0.5))
    yield stage
    stage.close()


def test_a_line_that_arrives_in_pieces_is_passed_on_whole(stage: Stage) -> None:
    line = stage.accept()
    line.greet()
    for piece in (b'{"jsonrpc":"2.0",', b'"id":1,', b'"method":"ping"}', b"\n"):
        stage.type(piece)
    request = line.receive()
    half = b'{"jsonrpc":"2.0","id":1,"res'
    line.send_raw(half)
    line.send_raw(b'ult":{"x":1}}\n')
    assert request["method"] == "ping"
    assert stage.read()["result"] == {"x": 1}


def test_a_last_line_without_a_line_break_is_passed_on(stage: Stage) -> None:
    line = stage.accept()
    line.greet()
    assert stage.front.stdin
    stage.type(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    stage.front.stdin.close()
    line.answer(line.receive())
    assert stage.read()["id"] == 1
    assert not line.socket.recv(1)


def test_a_list_from_the_cache_is_checked_by_the_hub_after_all_calls(stage: Stage) -> None:
    state = Path(stage.place.state)
    remembered = first_memory(state, None)
    remembered.learn(remembered.key({"id": 0, "method": "tools/list", "params": {}}), {"result": {"tools": ["old"]}})
    line = stage.accept()
    for number in (1, 2):
        # The hub does not greet, so the front answers; from the second question on at once.
        stage.ask(number, "tools/list")
        assert stage.read() == {"jsonrpc": "2.0", "id": number, "result": {"tools": ["old"]}}
    stage.ask(3)
    line.greet()
    first, call = line.receive(), line.receive()
    assert (first["id"], call["id"]) == (1, 3)
    # Not while a call is being answered, nor right after it: the client may have another one.
    assert not select.select([line.socket], [], [], 0.4)[0]
    line.answer(call, done=True)
    assert stage.read()["result"] == {"done": True}
    stage.ask(4)
    line.answer(line.receive(), done=True)
    assert stage.read()["id"] == 4
    check = line.receive()
    assert check["id"] == 2
    line.answer(check, tools=["new"])
    # The client has its answer; the new one is for the next start.
    stage.ask(5)
    line.answer(line.receive(), done=True)
    assert stage.read()["id"] == 5
    assert '"new"' in (state / "first-answers.json").read_text()


def test_half_an_answer_is_dropped_and_asked_for_again(stage: Stage) -> None:
    first = stage.accept()
    first.greet()
    stage.ask(1, name="exec_bash")
    request = first.receive()
    first.send_raw(b'{"jsonrpc":"2.0","id":1,"result":{"cut')
    first.close()
    second = stage.accept()
    (again,) = second.hello["again"]
    assert again["name"] == "1.0"
    second.greet()
    assert second.receive() == request
    second.answer(request, whole=True)
    assert stage.read()["result"] == {"whole": True}


def test_versions_of_files_are_kept_for_another_hub_and_not_passed_on(stage: Stage) -> None:
    first = stage.accept()
    first.greet()
    stage.ask(1, name="read_remote_file")
    request = first.receive()
    for path, version in (("/a", "1"), ("/b", "1"), ("/a", "2"), ("/b", None)):
        first.send_raw(say_version("gpu", path, version))
    # A file may hold what such a line looks like.
    first.answer(request, text=say_version("gpu", "/c", "1").decode())
    assert stage.read()["result"] == {"text": say_version("gpu", "/c", "1").decode()}
    first.close()
    second = stage.accept()
    assert second.hello["versions"] == [["gpu", "/a", "2"]]


def test_no_more_versions_are_kept_than_a_session_remembers() -> None:
    kept = Transcript()
    lines = [say_version("gpu", f"/{number}", "1") for number in range(MOST_VERSIONS + 5)]
    assert kept.without_versions(lines) == b""
    versions = kept.opening(0)[0]["versions"]
    assert (len(versions), versions[0][1], MOST_VERSIONS) == (MOST_VERSIONS, "/5", REMEMBERED_VERSIONS)


def test_requests_that_stay_in_force_are_repeated_and_their_answers_dropped(stage: Stage) -> None:
    first = stage.accept()
    first.greet()
    for number, (method, uri) in enumerate([("initialize", ""), *[("resources/subscribe", uri) for uri in "abc"]]):
        stage.ask(number, method, uri=uri)
        first.answer(first.receive(), first=number)
        stage.read()
    stage.type(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    stage.ask(9, "resources/unsubscribe", uri="b")
    first.receive()
    first.answer(first.receive())
    stage.read()
    first.close()
    second = stage.accept()
    second.greet()
    said = [second.receive() for _ in range(4)]
    assert [(each["method"], each.get("params", {}).get("uri")) for each in said] == [
        ("initialize", ""),
        ("resources/subscribe", "a"),
        ("resources/subscribe", "c"),
        ("notifications/initialized", None),
    ]
    assert second.hello["again"] == [None] * 4
    for each in said[:3]:
        second.answer(each, second=True)
    stage.ask(10)
    second.answer(second.receive(), last=True)
    assert stage.read() == {"jsonrpc": "2.0", "id": 10, "result": {"last": True}}


def test_a_request_that_no_hub_received_does_not_count_as_begun(stage: Stage) -> None:
    first = stage.accept()
    first.greet()
    # More than a socket holds: the hub dies before it has heard the end of it.
    stage.type(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":"' + b"y" * (4 << 20) + b'"}}\n')
    assert first.socket.recv(10)
    first.close()
    second = stage.accept()
    assert second.hello["again"] == [None]
    second.greet()
    request = second.receive()
    assert len(request["params"]["x"]) == 4 << 20
    second.answer(request)
    assert stage.read()["id"] == 1


@pytest.mark.parametrize("stage", [60], indirect=True)
def test_fifty_megabytes_pass_in_both_directions(stage: Stage) -> None:
    line = stage.accept()
    line.greet()
    stage.type(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":"' + b"y" * (50 << 20) + b'"}}\n')
    request = line.receive()
    line.answer(request, x=request["params"]["x"])
    assert len(stage.read()["result"]["x"]) == 50 << 20


def test_the_next_hub_is_told_of_a_cancelled_call_which_is_not_sent_again(stage: Stage) -> None:
    first = stage.accept()
    first.greet()
    stage.ask(1, name="exec_bash")
    first.receive()
    first.close()
    stage.type(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}\n')
    second = stage.accept()
    # It may come before or after the front has seen the end of the line.
    if second.hello["again"]:
        second.greet()
        assert second.receive()["id"] == 1
        assert second.receive()["method"] == "notifications/cancelled"
    else:
        assert second.hello["cancelled"] == [{"name": "1.0", "sandbox": ""}]


def test_a_silent_hub_is_reported_and_calls_end_in_time(stage: Stage) -> None:
    line = stage.accept()
    line.greet(4711)
    begun = time.monotonic()
    stage.ask(1, name="edit_remote_file")
    answer = stage.read()
    assert time.monotonic() - begun < 5
    assert answer["result"]["isError"]
    assert "(process 4711) has not answered" in answer["result"]["content"][0]["text"]
    assert "whether this was done is not known" in answer["result"]["content"][0]["text"]
    assert "the hub (process 4711) does not answer" in stage.stderr
    # What comes now is not sent to it, so that it cannot be done later.
    stage.ask(2, name="exec_bash")
    assert "this was not begun" in stage.read()["result"]["content"][0]["text"]
    stage.ask(3, "resources/read")
    assert "this was not begun" in stage.read()["error"]["message"]
    # It goes on: the late answer is dropped, the call is cancelled, and later ones work.
    late = line.receive()
    line.answer(late, late=True)
    assert line.receive() == {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    stage.ask(4)
    line.answer(line.receive(), on=True)
    assert stage.read() == {"jsonrpc": "2.0", "id": 4, "result": {"on": True}}
    assert "answers again" in stage.stderr


READS = {"name": "read_remote_file", "annotations": {"readOnlyHint": True}}
WRITES = {"name": "edit_remote_file", "annotations": {"readOnlyHint": False}}


def test_an_error_of_the_front_has_its_code_and_does_not_doubt_what_only_reads(stage: Stage) -> None:
    line = stage.accept()
    line.greet(4711)
    stage.ask(1, "tools/list")
    line.answer(line.receive(), tools=[READS, WRITES])
    stage.read()
    stage.ask(2, name="read_remote_file")
    stage.ask(3, name="edit_remote_file")
    stage.ask(4, "resources/read")
    answers = {answer["id"]: answer for answer in (stage.read() for _ in range(3))}
    about = {number: answers[number]["result"]["_meta"]["remote-sandbox/error"] for number in (2, 3)}
    assert about[2] == {"code": "connection_lost", "outcome": "not_started"}
    assert about[3] == {"code": "connection_lost", "outcome": "unknown"}
    assert answers[4]["error"]["data"] == about[2]
    for number, says in ((2, "it only reads"), (3, "whether this was done is not known"), (4, "it only reads")):
        assert says in str(answers[number])
    # One that it was not even sent.
    stage.ask(5, name="edit_remote_file")
    assert stage.read()["result"]["_meta"]["remote-sandbox/error"]["outcome"] == "not_started"


def test_time_in_which_the_front_was_suspended_does_not_count(stage: Stage) -> None:
    """As when a laptop sleeps: both processes stand still, and the hub is not to blame."""
    line = stage.accept()
    line.greet()
    stage.ask(1)
    request = line.receive()
    stage.front.send_signal(signal.SIGSTOP)
    time.sleep(1)
    stage.front.send_signal(signal.SIGCONT)
    line.answer(request, awake=True)
    assert stage.read()["result"] == {"awake": True}
    assert stage.stderr == ""


def test_a_hub_that_does_not_greet_is_given_up_and_has_begun_nothing(stage: Stage) -> None:
    sent = stage.ask(1, name="exec_bash")
    line = stage.accept()
    heard, answered, who = stage.handed()
    assert heard == sent
    assert answered == []
    assert who["again"] == [None]
    assert "a hub has not greeted" in stage.stderr
    assert not line._file.read()


def test_hubs_that_end_at_once_are_given_up_and_calls_keep_their_names(stage: Stage) -> None:
    stage.ask(1, name="exec_bash")
    for _ in range(5):
        line = stage.accept()
        line.greet()
        line.receive()
        line.close()
    heard, _, who = stage.handed()
    assert json.loads(heard)["id"] == 1
    assert who["again"][0]["name"] == "1.0"
    assert "5 hubs in a row have ended at once" in stage.stderr


def test_the_connection_of_a_killed_front_is_closed(stage: Stage) -> None:
    line = stage.accept()
    line.greet()
    stage.ask(1)
    line.receive()
    stage.front.kill()
    assert not line.socket.recv(1)


def test_a_hub_that_answers_again_after_a_while_is_used_at_once(stage: Stage) -> None:
    line = stage.accept()
    line.greet()
    stage.ask(1)
    line.receive()
    assert stage.read()["result"]["isError"]
    time.sleep(0.5)
    stage.ask(2)
    # The front asks whether it is there; this time it is.
    while True:
        asked = FakeLine(stage.listener.accept()[0])
        stage.lines.append(asked)
        with suppress(OSError):
            asked.greet()
            break
    assert line.receive()["method"] == "notifications/cancelled"
    line.answer(line.receive(), on=True)
    assert stage.read() == {"jsonrpc": "2.0", "id": 2, "result": {"on": True}}
