"""The real server in a process of its own, driven by the real MCP client or by raw lines."""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

import jsonschema
from mcp import Client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import CallToolResult, Implementation

from remote_sandbox_mcp.local.processes.locks import holder
from tests.support.pace import Deadline
from tests.support.sshd import Sshd
from tests.support.warm import NURSERY, Spoken, may_fork, speak, start_hub

COMMAND = str(Path(sys.executable).with_name("remote-sandbox-mcp"))
# For a server that was started already, and reads from and writes into pipes with names.
_RELAY = 'exec 3<"$2" 4>"$1"; : >"$3"; cat <&3 3<&- 4>&- & exec cat >&4 3<&- 4>&-'
ENDS_S = 30
# A client that shows results to a model, like those that most tests are about.
AGENT = Implementation(name="cursor-vscode", version="1")

Entry = dict[str, Any]


def entry(sshd: Sshd, **overrides: Any) -> Entry:
    """A machine as an operator writes it into REMOTE_SANDBOX_LIST."""
    fields = {
        "name": sshd.name,
        "host": sshd.host,
        "port": sshd.port,
        "user": sshd.user,
        "password": sshd.password,
        "key_file": sshd.key_file,
        "key_passphrase": sshd.key_passphrase,
        "certificate_file": sshd.certificate_file,
    }
    return {key: value for key, value in (fields | overrides).items() if value not in ("", None)}


def environment(home: Path, entries: tuple[Entry, ...], more: dict[str, str] | None = None) -> dict[str, str]:
    """What the server sees: a home of its own and nothing of the person who runs the tests. Agents may use all folders
    of the tests."""
    given = {"REMOTE_SANDBOX_ALLOWED_ROOTS": f"{tempfile.gettempdir()}:{home}"}
    given |= {"HOME": str(home), "REMOTE_SANDBOX_MCP_HOME": str(home / "state"), "PATH": os.environ["PATH"]}
    # A hub that nobody uses is to end soon.
    given |= {"REMOTE_SANDBOX_HUB_IDLE_S": "1"}
    return given | {"REMOTE_SANDBOX_LIST": json.dumps(entries)} | (more or {})


def arguments(home: Path, *, local: bool, config: str = "", hub: bool = True) -> list[str]:
    """The installed command with a config.toml."""
    file = write_config(home, local=local, config=config)
    return [COMMAND, "--config", str(file), *([] if hub else ["--no-hub"])]


def write_config(home: Path, *, local: bool, config: str) -> Path:
    """A config.toml; the embedded sandbox is left out unless a test is about it."""
    file = home / "config.toml"
    file.write_text(f"[local]\nenabled = {'true' if local else 'false'}\n{config}")
    file.chmod(0o600)
    return file


async def until(condition: Callable[[], object], what: str, seconds: float = 10.0) -> Any:
    """Wait until the condition, or what it awaits, holds; gives what it then is."""
    deadline = Deadline(seconds)
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert not deadline.has_passed(), f"waited {seconds} s for {what}"
        await asyncio.sleep(0.01)


# The output schema of each tool, as the first server that was asked for the tool has listed it. Every other server has
# the same one, and to list all tools takes longer than most calls.
LISTED: dict[str, Any] = {}


class Caller:
    """Calls tools, and sees to it that every answer keeps to the tool's output schema and says nothing empty."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.answers: list[CallToolResult] = []

    async def ask(self, tool: str, *, progress: ProgressFnT | None = None, **given: Any) -> CallToolResult:
        # The SDK would list all tools to check the answer, which is checked here against the same schema.
        self.client.session._tool_output_schemas.setdefault(tool, None)
        answer = await self.client.call_tool(tool, given, progress_callback=progress)
        self.answers.append(answer)
        if tool not in LISTED:
            LISTED.update({tool.name: tool.output_schema for tool in (await self.client.list_tools()).tools})
        check_answer(answer, LISTED.get(tool))
        return answer

    async def call(self, tool: str, *, progress: ProgressFnT | None = None, **given: Any) -> dict[str, Any]:
        """What a tool returns, but for where that was; fails where it tells an error."""
        answer = await self.ask(tool, progress=progress, **given)
        assert not answer.is_error, text_of(answer)
        fields = dict(answer.structured_content or {})
        if tool not in ALWAYS_SAY_WHERE:
            fields.pop("sandbox", None)
        return fields

    async def fail(self, tool: str, **given: Any) -> dict[str, Any]:
        """The error that a tool tells; fails where it tells none."""
        answer = await self.ask(tool, **given)
        assert answer.is_error, answer.structured_content
        return error_of(answer)

    async def run(self, command: str, **given: Any) -> dict[str, Any]:
        return await self.call("exec_bash", command=command, **given)

    async def output(self, command: str, **given: Any) -> str:
        """What a command prints that succeeds."""
        done = await self.run(command, **given)
        assert done.get("exit_code") == 0, done
        return str(done.get("stdout", ""))


def text_of(answer: CallToolResult) -> str:
    """All that a model is shown by a client that knows nothing but texts."""
    return "\n".join(part.text for part in answer.content if part.type == "text")


def error_of(answer: CallToolResult) -> dict[str, Any]:
    """What an error tells: its text to the model, and the rest to programs."""
    details: dict[str, Any] = (answer.meta or {}).get("remote-sandbox/error", {})
    return {"error": text_of(answer)} | details


def check_answer(answer: CallToolResult, schema: dict[str, Any] | None) -> None:
    """The contract of every result, whatever the tool."""
    first, *shown = [part.type for part in answer.content]
    assert first == "text"
    assert set(shown) <= {"image"}
    assert text_of(answer)
    if answer.is_error:
        check_error(answer)
        return
    structured = answer.structured_content
    assert structured, answer
    validator(json.dumps(schema or False)).validate(structured)
    if text_of(answer).startswith("{"):
        # For a program, which may expect empty fields.
        assert json.loads(text_of(answer)) == structured
        return
    assert not list(empty_fields(structured))
    said = words(text_of(answer))
    unsaid = [text for text in texts_in(structured) if words(text) not in said and words(as_text(text)) not in said]
    assert not unsaid, (unsaid, text_of(answer))


@functools.cache
def validator(schema: str) -> Any:
    """For a schema, which is checked itself, once."""
    parsed = json.loads(schema)
    made = jsonschema.validators.validator_for(parsed)
    made.check_schema(parsed)
    return made(parsed)


def check_error(answer: CallToolResult) -> None:
    """An error has structured content only for strangers, with the same in it."""
    error = error_of(answer)
    assert answer.structured_content in (None, error)
    assert re.fullmatch(r"[a-z_]+", error["code"])
    assert not list(empty_fields(error))
    assert "Traceback" not in error["error"]
    assert len(error["error"].partition("\nstdout so far:")[0]) < 1200


def texts_in(value: object, name: str = "") -> Iterator[str]:
    """Every text of a result; what the text says in other words is left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from texts_in(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item, name)
    elif isinstance(value, str) and name not in SAID_OTHERWISE:
        yield value


def words(text: str) -> str:
    """Whatever the line ends and spaces between them; a line end in a name is shown as \\n."""
    return " ".join(text.replace("\\n", "\n").split())


def as_text(content: str) -> str:
    """What base64 stands for, where that is a text."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except ValueError:
        return content


# A signal's name is enough, and a mode shows in what was done.
SAID_OTHERWISE = ("mode", "status", "signal", "start_at", "limit_at")


ALWAYS_SAY_WHERE = ("exec_bash_background", "exec_bash_background_watch", "deploy_app")
ALWAYS_THERE = (
    ".active_sandbox",
    ".content",
    ".entries",
    ".matches",
    ".tasks",
    ".events",
    ".watches",
    ".stdout",
    ".stderr",
    ".files",
    ".sandboxes.resources.gpu",
)
# Clients rely on every field of a watch.
WHOLE = (".watch.", ".watches.")


def empty_fields(value: object, name: str = "") -> Iterator[str]:
    """Where a result says nothing, except in the few fields that are always there."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from empty_fields(item, f"{name}.{key}")
    elif isinstance(value, list) and value:
        for item in value:
            yield from empty_fields(item, name)
    elif (value is None or value in ("", [])) and name not in ALWAYS_THERE and not name.startswith(WHOLE):
        yield name


class Server(Caller):
    """A running server and the client that talks to it."""

    def __init__(self, client: Client, home: Path) -> None:
        super().__init__(client)
        self.home = home

    @property
    def known_hosts(self) -> Path:
        return self.home / "state" / "known_hosts"

    @property
    def pid(self) -> int:
        return int((self.home / "pid").read_text())

    @property
    def worker(self) -> int:
        """The process that does the work: the hub, where there is one."""
        hubs = [holder(lock) for lock in (self.home / "state" / "hub").glob("*.lock")]
        return next((found.pid for found in hubs if found), self.pid)

    @property
    def stderr(self) -> str:
        """What the command said, and the hub's log."""
        return "".join(
            file.read_text(errors="replace")
            for file in (self.home / "stderr", self.home / "state" / "hub" / "hub.log")
            if file.exists()
        )

    @property
    def everything_said(self) -> str:
        """All that a client or a log reader could have seen so far."""
        return "\n".join([self.stderr, *(answer.model_dump_json() for answer in self.answers)])

    def memory(self, what: str = "VmHWM") -> int:
        """Bytes: VmHWM is the most that was ever resident, VmRSS what is now."""
        found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{self.worker}/status").read_text())
        assert found
        return int(found[1]) * 1024


@asynccontextmanager
async def serve(
    home: Path,
    *entries: Entry,
    mode: str = "auto",
    local: bool = False,
    env: dict[str, str] | None = None,
    config: str = "",
    cwd: Path | None = None,
    hub: bool = True,
    elicitation: Any = None,
    who: Implementation = AGENT,
) -> AsyncIterator[Server]:
    """Fork the command, which finds a hub, and connect; a stack trace in its log fails the test.

    Without a `hub` the process is the server itself: for tests of what becomes of it.
    """
    words = arguments(home, local=local, config=config, hub=hub)
    given = environment(home, entries, env)
    if hub:
        start_hub(given)
    with (home / "stderr").open("a") as errlog:
        # Closed by hand, so that a failed assertion comes through without the groups that the SDK wraps around it.
        stack = AsyncExitStack()
        forked = _Forked(words, get_default_environment() | given, errlog, cwd)
        stack.push_async_callback(forked.end)
        (home / "pid").write_text(f"{forked.pid}\n")
        parameters = StdioServerParameters(command="/bin/sh", args=forked.words, env=given, cwd=cwd)
        connecting = Client(
            stdio_client(parameters, errlog), mode=mode, elicitation_callback=elicitation, client_info=who
        )
        try:
            client = await stack.enter_async_context(connecting)
            # A client of the newer era says nothing until it calls, so its shell may not have opened the pipes yet.
            await until(forked.is_heard, "the client's shell to open the pipes")
            forked.leave_to_both()
            server = Server(client, home)
            yield server
        finally:
            await stack.aclose()
    assert "Traceback" not in server.stderr, server.stderr


class _Forked:
    """The command as a process whose modules are loaded already, and a shell's words that talk to it in its place."""

    def __init__(self, words: list[str], env: dict[str, str], errlog: IO[str], cwd: Path | None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        to, of = (f"{self._folder.name}/{name}" for name in ("to", "of"))
        self._opened = Path(self._folder.name, "opened")
        # Open for both directions they wait for nobody, until each end is open for its own.
        self._held = []
        for name in (to, of):
            os.mkfifo(name, 0o600)
            self._held.append(os.open(name, os.O_RDWR))
        theirs = os.open(to, os.O_RDONLY), os.open(of, os.O_WRONLY)
        self._process = NURSERY.start(words, env, (*theirs, errlog.fileno()), cwd=str(cwd or ""), forks_hubs=True)
        self.pid = self._process.pid
        self.words = ["-c", _RELAY, "sh", to, of, str(self._opened)]
        for fd in theirs:
            os.close(fd)

    def is_heard(self) -> bool:
        """Whether the shell has opened both pipes, which may go then."""
        return self._opened.exists()

    def leave_to_both(self) -> None:
        """Once they have heard of each other: the end of the one is then the end of the other."""
        while self._held:
            os.close(self._held.pop())
        self._folder.cleanup()

    async def end(self) -> None:
        """After its input has ended, as the SDK waits for a process of its own."""
        self.leave_to_both()
        try:
            await asyncio.to_thread(self._process.wait, ENDS_S)
        finally:
            self._process.kill()


class Wire:
    """The server by hand: one line of JSON for each message, and nothing that a client library would add."""

    def __init__(
        self, process: subprocess.Popen[bytes] | Spoken, home: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.process = process
        self.home = home
        # What it was started with, for another hub like its own.
        self.env = env or {}
        self._number = 0

    @property
    def stderr(self) -> str:
        return (self.home / "stderr").read_text(errors="replace")

    def send(self, method: str, params: dict[str, Any] | None = None, *, answered: bool = True) -> int:
        """Send a request, or a notification, which has no number."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if answered:
            self._number += 1
            message["id"] = self._number
        self.send_line(json.dumps(message).encode())
        return self._number

    def send_line(self, line: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next message; what is no message fails here."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the server has gone: {self.stderr}"
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return dict(message)

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """A request and its answer."""
        return self.answer_to(self.send(method, params))

    def answer_to(self, number: int) -> dict[str, Any]:
        """The answer to a request; what else comes before it is not kept."""
        while (message := self.receive()).get("id") != number:
            pass
        return message

    def initialize(self, version: str = "2025-06-18") -> dict[str, Any]:
        who = {"name": "by-hand", "version": "1"}
        answer = self.ask("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": who})
        self.send("notifications/initialized", answered=False)
        return dict(answer["result"])

    def call(self, tool: str, **given: Any) -> dict[str, Any]:
        return dict(self.ask("tools/call", {"name": tool, "arguments": given})["result"])

    def start_call(self, tool: str, **given: Any) -> int:
        return self.send("tools/call", {"name": tool, "arguments": given})

    def leave(self, how: signal.Signals | None) -> tuple[float, int, bytes]:
        """End it by a signal, or by the end of its input: the seconds that took, the exit code, its last words."""
        process = self.process
        assert process.stdin
        assert process.stdout
        begun = time.monotonic()
        process.stdin.close() if how is None else process.send_signal(how)
        code = process.wait(20)
        return time.monotonic() - begun, code, process.stdout.read()


@contextmanager
def wire(
    home: Path,
    *entries: Entry,
    local: bool = False,
    env: dict[str, str] | None = None,
    hub: bool = True,
    finds_hub: bool = True,
    forks_hubs: bool = True,
    is_child: bool = False,
    config_file: Path | None = None,
    cwd: Path | None = None,
) -> Iterator[Wire]:
    """The command, which finds a hub, with nobody but the test on its line; its modules are loaded already.

    Where it is to find none, it is the installed command itself, which starts one. Without `forks_hubs` all further
    hubs are started as users' are, and not forked. A front tells clients apart by the processes that started it: where
    that counts, it is a child of this process.
    """
    given = environment(home, entries, env)
    if hub and finds_hub:
        start_hub(given)
    words, pipe = arguments(home, local=local, hub=hub), subprocess.PIPE
    if config_file:
        words[words.index("--config") + 1] = str(config_file)
    process: subprocess.Popen[bytes] | Spoken
    with (home / "stderr").open("ab") as errlog:
        if finds_hub and not is_child and may_fork(env or {}):
            process = speak(words, given, errlog.fileno(), cwd=str(cwd or ""), forks_hubs=forks_hubs)
        else:
            process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=errlog, env=given, cwd=cwd)
    assert process.stdin
    assert process.stdout
    with process.stdin, process.stdout:
        try:
            yield Wire(process, home, given)
        finally:
            process.kill()
            process.wait()
