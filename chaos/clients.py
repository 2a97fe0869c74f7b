"""Clients of every kind, each in a thread: on stdio, over HTTP, and verbs of the command line."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.support.server import Wire
from tests.support.sshd import wait_until

from . import calls
from .calls import ENDS_HUBS, EXIT, Made, judged
from .scene import Scene

ROUNDS = (2, 4)
MOST_ROUNDS = 60
# The exit code of a verb whose hub has ended before the verb was done.
NO_CONNECTION = 255
MAKERS = (
    *(calls.make_large, calls.make_in_session, calls.make_python, calls.make_job),
    *(calls.make_push, calls.make_pull, calls.make_list),
)


class Client(threading.Thread):
    """One session: in each round several calls at once, and then all of their answers."""

    def __init__(self, scene: Scene, chance: Random, number: int) -> None:
        super().__init__(daemon=True)
        self.scene = scene
        self.chance = Random(chance.random())
        self.number = number
        self.made: list[Made] = []
        self.trouble: list[str] = []
        self.is_doomed = False
        # Makers of calls that are in each round.
        self.always: tuple[Any, ...] = ()

    def run(self) -> None:
        try:
            self.begin()
            rounds = self.chance.randint(*ROUNDS)
            for turn in range(MOST_ROUNDS):
                # The first one goes on while strikes are to come: they hit what is used.
                if turn >= rounds and (self.number or not self.scene.is_striking):
                    break
                self.play(f"{type(self).__name__.lower()}{self.number}-t{turn}")
                if any(made.is_cut for made in self.made) and self.is_doomed:
                    return
            self.end()
        except Exception as problem:  # noqa: BLE001 it is reported with the schedule
            self.trouble.append(f"{type(self).__name__} {self.number}: {problem!r}")

    def begin(self) -> None: ...

    def play(self, name: str) -> None:
        raise NotImplementedError

    def end(self) -> None: ...

    def leave(self) -> list[str]:
        """Go; gives what was wrong with that."""
        return []

    def complaints(self) -> list[str]:
        found = list(self.trouble)
        if self.is_alive():
            found.append(f"unanswered: {[made.token or made.tool for made in self.made if not made.answers]}")
        for made in self.made:
            if made.answers or made.is_cut:
                found += [f"{made.token or made.tool}: {why}" for why in judged(self.scene, made)]
        return found


class Machine(Client):
    """A client on stdio whose calls run on the machine."""

    wire: Wire
    folder: Path | None = None
    _is_unsure = False

    @property
    def edited(self) -> Path:
        return self.scene.work / f"edited-{self.number}"

    def begin(self) -> None:
        self.edited.write_text("END\n")
        self.edited.chmod(0o666)
        self.wire = self.scene.serve(self.folder)

    def play(self, name: str) -> None:
        waiting: dict[Any, Made] = {}
        made_now = self.calls(name)
        self.made += made_now
        try:
            if self._is_unsure:
                # As its error asks for: look before you repeat it.
                self.call(Made("read_remote_file", "", {"remote_path": str(self.edited)}, calls.succeeds))
            for made in made_now:
                made.begun = time.monotonic()
                waiting[self.wire.start_call(made.tool, **made.arguments)] = made
            self._receive(waiting)
        # A front that is killed may leave half a line.
        except (AssertionError, OSError, json.JSONDecodeError):
            if not self.is_doomed or self.wire.process.wait(10) != -signal.SIGKILL:
                raise
            for made in made_now:
                made.is_cut = True

    def _receive(self, waiting: dict[Any, Made]) -> None:
        opened = set(waiting)
        while opened:
            message = self.wire.receive()
            if (number := message.get("id")) in waiting:
                waiting[number].answer(message)
                opened.discard(number)
        for made in waiting.values():
            if made.tool == "edit_remote_file":
                self._is_unsure = calls.is_unsure(made)
            elif task := made.fields.get("task_id"):
                self._wait_for(task)

    def _wait_for(self, task: str) -> None:
        for _ in range(4):
            made = self.call(Made("check_file_transfer_task", "", {"task_id": task, "wait_s": 40}, calls.succeeds))
            if made.fields.get("status") == "completed":
                return
        self.trouble.append(f"the transfer {task} is {made.fields}")

    def call(self, made: Made) -> Made:
        self.made.append(made)
        made.begun = time.monotonic()
        number = self.wire.start_call(made.tool, **made.arguments)
        made.answer(self.wire.answer_to(number))
        return made

    def calls(self, name: str) -> list[Made]:
        scene, chance = self.scene, self.chance
        found = [calls.make_exec(scene, chance, f"{name}-{number}") for number in range(chance.randint(1, 3))]
        for make in dict.fromkeys((*chance.sample(MAKERS, chance.randint(1, 3)), *self.always)):
            times = 4 if make is calls.make_large else 1
            found += [make(scene, chance, f"{name}-{make.__name__[5:]}{number}") for number in range(times)]
        if chance.random() < 0.5:
            token = f"{name}-edit"
            change = {"remote_path": str(self.edited), "old_text": "END", "new_text": f"{token}\nEND"}
            found.append(Made("edit_remote_file", token, change, calls.edit))
        chance.shuffle(found)
        return found

    def leave(self) -> list[str]:
        """By the end of its input: its process must end well."""
        process = self.wire.process
        if self.is_doomed:
            return []
        assert process.stdin
        process.stdin.close()
        code = process.wait(30)
        return [f"the front of {self.name} ended with {code}"] if code else []


class Workspace(Machine):
    """Works in a folder that is linked to the machine."""

    def begin(self) -> None:
        self.folder = self.scene.home / f"project-{self.number}"
        self.folder.mkdir()
        super().begin()
        link = {"remote_path": f"gpu:{self.scene.work}/linked-{self.number}"}
        while calls.met_two_cuts(self.scene, self.call(Made("link_workspace", "", link, calls.succeeds))):
            pass

    def calls(self, name: str) -> list[Made]:
        assert self.folder
        return [
            calls.make_in_workspace(self.scene, self.chance, f"{name}-{number}", self.folder)
            for number in range(self.chance.randint(1, 3))
        ]


class Local(Machine):
    """Runs its commands in `local`, or in a sandbox that it makes and deletes."""

    sandbox = "local"

    def begin(self) -> None:
        super().begin()
        if self.chance.random() < 0.5:
            self.sandbox = f"box{self.number}"
            order = {"name": self.sandbox}
            if calls.is_unsure(self.call(Made("create_sandbox", "", order, calls.is_made_or_unsure))):
                # As its error asks for: look first, and repeat it only if it was not done.
                listed = self.call(Made("list_sandboxes", "", {}, calls.succeeds)).fields.get("sandboxes", ())
                if self.sandbox not in [it.get("name") for it in listed]:
                    self.call(Made("create_sandbox", "", order, calls.succeeds))

    def calls(self, name: str) -> list[Made]:
        count = self.chance.randint(1, 3)
        return [calls.make_beside(self.sandbox, self.chance, f"{name}-{number}") for number in range(count)]

    def end(self) -> None:
        found = self._read_count()
        lines = str(found.fields.get("stdout", "")).splitlines()
        for made in self.made:
            times = lines.count(made.token) if made.token else 1
            is_over = made.fields.get("exit_code") == EXIT
            if times > 1 or (is_over and times != 1):
                self.trouble.append(f"{made.token}: done {times} times in {self.sandbox}")
        if self.sandbox != "local":
            self.call(Made("delete_sandbox", "", {"sandbox_id": self.sandbox}, calls.succeeds))

    def _read_count(self) -> Made:
        """Read what was done; again where that was lost with a hub, which `read_beside_the_hub` allows."""
        read = {"command": "cat ~/count", "sandbox_name": self.sandbox}
        while True:
            found = self.call(Made("exec_bash", "", read, calls.read_beside_the_hub))
            if not found.failed or calls.read_beside_the_hub(self.scene, found):
                return found


class Web(Client):
    """A client over HTTP, which opens another session when its own is gone."""

    KEY = "a-key-for-chaos"

    def begin(self) -> None:
        log, given = f"http-{self.number}.log", self.scene.environment() | {"REMOTE_SANDBOX_API_KEY": self.KEY}
        with (self.scene.home / log).open("ab") as said:
            self.process = subprocess.Popen(
                self.scene.words("--mode", "http", "--port", "0"),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=given,
                cwd=self.scene.home,
            )
        self.scene.servers.append(self.process)
        file, served = self.scene.home / log, re.compile(r"serving MCP at http://\S+?:(\d+) ")
        wait_until(lambda: served.search(file.read_text()), what="HTTP", seconds=60)
        found = served.search(file.read_text())
        assert found
        self._port, self._session, self._number = int(found[1]), "", 0

    def play(self, name: str) -> None:
        made = calls.make_exec(self.scene, self.chance, f"{name}-web")
        self.made.append(made)
        made.begun = time.monotonic()
        try:
            if not self._session:
                self._initialize()
            message = self._ask("tools/call", {"name": made.tool, "arguments": made.arguments})
        except (OSError, http.client.HTTPException):
            made.is_cut, made.ended, self._session = True, time.monotonic(), ""
            return
        if message is None:
            # The session was gone, and nothing was done: as the protocol says, with another one.
            self._session = ""
            self.made.remove(made)
            return self.play(name)
        made.answer(message)

    def _initialize(self) -> None:
        who = {"name": "by-hand", "version": "1"}
        self._ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who})
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """The answer; None where the server does not know the session. Raises OSError, HTTPException."""
        self._number += 1
        body = self._post({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        if body is None:
            return None
        lines = [line.removeprefix("data:") for line in body.splitlines() if line.startswith(("data:", "{"))]
        messages = [json.loads(line) for line in lines if line.strip()]
        found = [message for message in messages if message.get("id") == self._number]
        if not found:
            raise http.client.IncompleteRead(body.encode())
        return dict(found[0])

    def _post(self, message: dict[str, Any]) -> str | None:
        line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=100)
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        headers |= {"Authorization": f"Bearer {self.KEY}"} | (
            {"Mcp-Session-Id": self._session} if self._session else {}
        )
        try:
            line.request("POST", "/mcp", json.dumps(message), headers)
            answer = line.getresponse()
            body = answer.read().decode()
        finally:
            line.close()
        if answer.status == 404 and self._session:
            return None
        if answer.status >= 400:
            raise AssertionError(f"HTTP {answer.status}: {body}")
        self._session = answer.headers.get("Mcp-Session-Id") or self._session
        return body

    def leave(self) -> list[str]:
        self.process.terminate()
        code = self.process.wait(30)
        return [f"the HTTP front ended with {code}"] if code else []


class Verbs(Client):
    """A person at a terminal: verbs that the hub carries out."""

    def begin(self) -> None:
        self.ended: list[Ended] = []

    def play(self, name: str) -> None:
        order = calls.make_exec(self.scene, self.chance, f"{name}-verb")
        if self.chance.random() < 0.6:
            self._run(order.token, EXIT, "exec", "--sandbox", "gpu", "--", order.arguments["command"])
        else:
            self._run("", 0, self.chance.choice(("sandboxes", "jobs")), "--json")

    def _run(self, token: str, code: int, *words: str) -> None:
        files = [self.scene.home / f"verb-{self.number}.{end}" for end in ("out", "err")]
        begun = time.monotonic()
        with files[0].open("wb") as stdout:
            found = self.scene.start(*words, said=files[1].name, stdout=stdout).wait(140)
        out, said = (file.read_text() for file in files)
        self.ended.append(Ended(words[0], token, code, found, out, said[-300:], begun, time.monotonic()))

    def complaints(self) -> list[str]:
        return super().complaints() + [why for it in self.ended for why in it.complaints(self.scene)]


@dataclass(frozen=True)
class Ended:
    """A verb that has ended: the exit code that it was to have, the one that it had, and what it printed."""

    verb: str
    token: str
    wanted: int
    code: int
    out: str
    said: str
    begun: float
    ended: float

    def complaints(self, scene: Scene) -> list[str]:
        times = scene.times(self.token) if self.token else 1
        is_struck = (
            scene.struck(self.begun, self.ended, ENDS_HUBS) or scene.count(self.begun, self.ended, "cut_line") > 1
        )
        is_cut = self.code == NO_CONNECTION and is_struck
        is_true = self.code == self.wanted and times == 1 and self._is_whole()
        if is_true or (is_cut and times <= 1):
            return []
        return [f"{self.verb} {self.token} ended with {self.code}, done {times} times: {self.out[:300]} {self.said}"]

    def _is_whole(self) -> bool:
        return self.out == f"{self.token}\n" if self.token else bool(json.loads(self.out))


KINDS = (Machine, Machine, Workspace, Local, Web, Verbs)
