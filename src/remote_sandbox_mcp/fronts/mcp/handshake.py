"""A client's first questions, answered from memory while the SDK is still being loaded.

A server's answers to the handshake and to tools/list are the same at every start, and loading what makes them takes
most of a second. So they are remembered, by client and by version of everything that makes them. Every question
still goes to the SDK, too; its answer is dropped where it was given already, and remembered where it is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...config import paths
from ...local.files import write_private

if TYPE_CHECKING:
    from ...services.hub_contact.hello import Handover

QUESTIONS = frozenset({"initialize", "server/discover", "tools/list", "resources/list", "prompts/list"})
# Questions that change nothing in the server.
LISTS = frozenset({"tools/list", "resources/list", "prompts/list"})
FIRST_LINES = 20
LONGEST_QUESTION = 1 << 16
MOST_ANSWERS = 32
ADVANCED = "REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS"
# The code of JSON-RPC for a method that a server does not have.
NO_METHOD = -32601
# Raised by what is not JSON; the SDK reports it to the client.
NO_MESSAGE = (ValueError, RecursionError)


def fingerprint_of(files: Iterable[Path], *versions: str) -> str:
    """A value that changes whenever the answers could: with a version, or with a file that they depend on."""
    parts = [*versions]
    for file in files:
        found = file.stat()
        parts.append(f"{file.name}:{found.st_size}:{found.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def first_memory(state: Path, config: Path | None) -> AnswerMemory:
    """Cached answers of earlier starts of this program with this configuration."""
    sdk = find_spec("mcp")
    makers = [*sorted(Path(__file__).parent.rglob("*.py")), *([Path(sdk.origin)] if sdk and sdk.origin else [])]
    # The configuration also decides which tools there are.
    usual = paths.config_file()
    # So does a project's file that was accepted, which also says what the server is called.
    accepted, brought = state / paths.ACCEPTED, Path(paths.PROJECT_FILE)
    project = {accepted, brought} if accepted.is_file() and brought.is_file() else set()
    settings = sorted({config or usual, usual, usual.with_name(brought.name)} | project)
    fingerprint = fingerprint_of(
        [*makers, *(file for file in settings if file.is_file())], __version__, os.environ.get(ADVANCED, "")
    )
    return AnswerMemory(state / "first-answers.json", fingerprint)


class AnswerMemory:
    """Answers of earlier starts, in a private file."""

    def __init__(self, file: Path, fingerprint: str) -> None:
        self._file = file
        self._fingerprint = fingerprint
        self._answers: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            kept = json.loads(file.read_text())
            self._answers = kept["answers"] if kept.get("stamp") == fingerprint else {}

    @staticmethod
    def key(question: Any) -> str:
        """Key of a message in the cache; empty where it is not one of the first questions."""
        if not isinstance(question, dict) or not isinstance(question.get("id"), (str, int)):
            return ""
        if str(question.get("method")) not in QUESTIONS:
            return ""
        asked = json.dumps([question["method"], question.get("params")], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()

    def answer(self, question: Any) -> bytes:
        """The whole reply as a line; empty for none."""
        answer = self._answers.get(self.key(question))
        if answer is None:
            return b""
        return json.dumps({"jsonrpc": "2.0", "id": question["id"], **answer}).encode() + b"\n"

    def learn(self, key: str, reply: Mapping[str, Any]) -> None:
        """Keep what a reply says: a result, or that there is no such method."""
        is_lasting = "result" in reply or reply.get("error", {}).get("code") == NO_METHOD
        answer = {name: reply[name] for name in ("result", "error") if name in reply}
        if not is_lasting or self._answers.get(key) == answer:
            return
        self._answers[key] = answer
        answers = dict(list(self._answers.items())[-MOST_ANSWERS:])
        with contextlib.suppress(OSError):
            write_private(self._file, json.dumps({"stamp": self._fingerprint, "answers": answers}))


class Handshake:
    """Reads the input from the first moment on, in a thread, until the server takes over."""

    def __init__(self, memory: AnswerMemory, handover: Handover | None = None) -> None:
        """`handed` is a conversation that has begun already."""
        self.memory = memory
        self.heard = bytearray(handover.heard if handover else b"")
        self.who: Mapping[str, Any] = handover.who if handover else {}
        self.ended = False
        self.answered: set[Any] = set(handover.answered if handover else ())
        self._calls: list[dict[str, Any]] = []
        self._report: Callable[[dict[str, Any]], None] | None = None
        self._wakeup, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def report_calls(self, report: Callable[[dict[str, Any]], None]) -> None:
        """Call `tell`, from any thread, for each tool call that is read; an earlier one may be reported twice."""
        self._report = report
        for call in tuple(self._calls):
            report(call)

    def hand_over(self) -> None:
        """Stop; `heard` is all that was read, `answered` the ids that have their answer."""
        os.write(self._wake, b".")
        self._thread.join()
        os.close(self._wake)
        os.close(self._wakeup)

    def _listen(self) -> None:
        seen, lines = len(self.heard), 0
        while not self.ended:
            if self._wakeup in select.select([0, self._wakeup], [], [])[0]:
                return
            data = os.read(0, 1 << 16)
            self.ended = not data
            self.heard += data
            while (end := self.heard.find(b"\n", seen)) >= 0 and lines < FIRST_LINES:
                self._handle(bytes(self.heard[seen:end]))
                seen, lines = end + 1, lines + 1

    def _handle(self, line: bytes) -> None:
        if len(line) > LONGEST_QUESTION:
            return
        with contextlib.suppress(*NO_MESSAGE):
            question = json.loads(line)
            if reply := self.memory.answer(question):
                os.write(1, reply)
                self.answered.add(question["id"])
            elif isinstance(question, dict) and question.get("method") == "tools/call":
                self._calls.append(question)
                if self._report:
                    self._report(question)


class Learner:
    """Watches the first messages of a conversation: caches new answers, drops those already given from the cache."""

    def __init__(self, handshake: Handshake) -> None:
        self._memory = handshake.memory
        self._answered = handshake.answered
        self._asked: dict[Any, str] = {}
        self._left = FIRST_LINES

    @property
    def is_over(self) -> bool:
        """Whether the first messages are over."""
        return not self._left

    def asked(self, line: str) -> bool:
        """Whether the SDK may take its time: the client has the cached answer, and the SDK's only confirms it."""
        if not self._left:
            return False
        self._left -= 1
        with contextlib.suppress(*NO_MESSAGE):
            question: Any = json.loads(line) if len(line) <= LONGEST_QUESTION else None
            if key := self._memory.key(question):
                self._asked[question["id"]] = key
                return question["id"] in self._answered and question["method"] in LISTS
        return False

    def passes(self, line: str) -> bool:
        """Whether a message of the SDK goes out to the client."""
        if not self._asked and not self._answered:
            return True
        message = json.loads(line)
        number = message.get("id")
        if "method" in message or number is None:
            return True
        if key := self._asked.pop(number, ""):
            self._memory.learn(key, message)
        if number in self._answered:
            self._answered.discard(number)
            return False
        return True
