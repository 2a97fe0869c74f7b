"""A thin MCP client over pipes, the same for ours and the peer's server: what it costs is small and equal."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from remote_sandbox_mcp.local.processes.locks import holder

from .problems import BenchError

PROTOCOL = "2025-06-18"
ANSWER_S = 180.0
ENDING_S = 2.0

Message = dict[str, Any]


class Server:
    """A running server. Used as a context manager: on entry it is started and greeted, at the end it is gone."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path | None = None
    ) -> None:
        """`folder` is the one that its client works in."""
        self._command = list(command)
        self._environment = dict(environment)
        self._log = log
        self._folder = folder
        self._number = 0
        self._inbox = bytearray()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def worker(self) -> int:
        """The process that does the work: the hub, where there is one."""
        state = Path(self._environment.get("XDG_STATE_HOME", os.devnull)) / "remote-sandbox-mcp"
        hubs = [holder(lock) for lock in (state / "hub").glob("*.lock")]
        return next((found.pid for found in hubs if found), self.pid)

    def start(self) -> None:
        """Spawn it and shake hands."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
            )
        assert self._process.stdin
        assert self._process.stdout
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._poller = select.poll()
        self._poller.register(self._output, select.POLLIN | select.POLLHUP)
        who = {"name": "bench", "version": "1"}
        self.request("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": who})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def end(self) -> None:
        """Close its input, as clients do; who stays is ended by its pid."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        for last_words in (process.terminate, process.kill):
            try:
                process.wait(ENDING_S)
                return
            except subprocess.TimeoutExpired:
                last_words()
        process.wait()

    def request(self, method: str, params: Message) -> Message:
        number = self._ask(method, params)
        while (answer := self._receive()).get("id") != number:
            pass
        return self._result(answer)

    def call(self, tool: str, **arguments: Any) -> Message:
        """A tool's result; an error of the tool is one of the bench."""
        return _content(tool, self.request("tools/call", {"name": tool, "arguments": arguments}))

    def call_at_once(self, count: int, tool: str, **arguments: Any) -> None:
        """The same call many times; all are asked before any is waited for."""
        self.calls_at_once(tool, [arguments] * count)

    def calls_at_once(self, tool: str, calls: Sequence[Mapping[str, Any]]) -> None:
        for result in self.requests("tools/call", [{"name": tool, "arguments": given} for given in calls]):
            succeeded(_content(tool, result))

    def requests(self, method: str, several: Sequence[Message]) -> Iterator[Message]:
        """The answers to several requests, as they come; all are sent before any is waited for."""
        waiting = {self._ask(method, params) for params in several}
        while waiting:
            answer = self._receive()
            if answer.get("id") in waiting:
                waiting.remove(answer["id"])
                yield self._result(answer)

    def _ask(self, method: str, params: Message) -> int:
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        return self._number

    def _send(self, message: Message) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self._input, data) :]

    def _receive(self) -> Message:
        deadline = time.monotonic() + ANSWER_S
        while (end := self._inbox.find(b"\n")) < 0:
            left = deadline - time.monotonic()
            data = os.read(self._output, 1 << 16) if left > 0 and self._poller.poll(left * 1000) else b""
            if not data:
                raise BenchError(f"{self._command[0]} gave no answer; its last words: {self._last_words()}")
            self._inbox += data
        message: Message = json.loads(self._inbox[:end])
        del self._inbox[: end + 1]
        return message

    def _result(self, answer: Message) -> Message:
        if "result" not in answer:
            raise BenchError(f"{self._command[0]} answered {answer.get('error')}")
        result: Message = answer["result"]
        return result

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-500:].strip() or "none"


def _content(tool: str, result: Message) -> Message:
    """What a tool said, structured or as text; the peer has only the text."""
    if result.get("isError"):
        raise BenchError(f"{tool} failed: {result.get('content')}")
    said: Message = result.get("structuredContent") or json.loads(result["content"][0]["text"])
    return said


def succeeded(said: Message) -> Message:
    """The result of a command that ended well."""
    if said.get("exit_code") != 0:
        raise BenchError(f"a command did not succeed: {said}")
    return said
