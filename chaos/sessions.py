"""Schedules against the hub: several clients call tools at once while hubs are killed, ended and stopped under them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.support.server import Wire
from tests.support.sshd import _processes

from .scene import Scene

SESSIONS, ROUNDS = (1, 4), (2, 4)
# A call that is not answered by then is lost.
LOST_S = 150.0
UNKNOWN = "whether it was done is not known"


@dataclass
class Made:
    """A call, what it was to leave behind once, and what came of it."""

    tool: str
    token: str
    arguments: dict[str, Any]
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def result(self) -> dict[str, Any]:
        return dict(self.answers[0].get("result", {})) if self.answers else {}

    @property
    def text(self) -> str:
        return "\n".join(part.get("text", "") for part in self.result.get("content", ()))

    @property
    def failed(self) -> bool:
        return not self.answers or "error" in self.answers[0] or bool(self.result.get("isError"))


class Client(threading.Thread):
    """One session: in each round several calls at once, and then all of their answers."""

    def __init__(self, scene: Scene, chance: Random, number: int) -> None:
        super().__init__(daemon=True)
        self._scene = scene
        self._chance = Random(chance.random())
        self._number = number
        self.wire: Wire | None = None
        self.made: list[Made] = []
        self.trouble = ""

    @property
    def edited(self) -> Path:
        return self._scene.work / f"edited-{self._number}"

    def run(self) -> None:
        try:
            self.wire = self._scene.serve()
            for turn in range(self._chance.randint(*ROUNDS)):
                self._play(turn)
        except Exception as problem:  # noqa: BLE001 it is told with the schedule
            self.trouble = f"session {self._number}: {problem!r}"

    def _play(self, turn: int) -> None:
        assert self.wire
        waiting: dict[int, Made] = {}
        for made in self._calls(f"s{self._number}-t{turn}"):
            self.made.append(made)
            waiting[self.wire.start_call(made.tool, **made.arguments)] = made
        open_ids = set(waiting)
        while open_ids:
            message = self.wire.receive()
            if (number := message.get("id")) in waiting:
                waiting[number].answers.append(message)
                open_ids.discard(number)

    def _calls(self, name: str) -> list[Made]:
        work, chance = self._scene.work, self._chance
        calls = [self._exec(f"{name}-{number}") for number in range(chance.randint(1, 4))]
        if chance.random() < 0.5:
            token = f"{name}-job"
            order = {"command": f"echo {token} >>{work}/count; sleep 0.1", "interval_s": 3600}
            calls.append(Made("exec_bash_background", token, {**order, "ensure_watchdog": False}))
        if chance.random() < 0.6:
            token = f"{name}-edit"
            edit = {"remote_path": str(self.edited), "old_text": "END", "new_text": f"{token}\nEND"}
            calls.append(Made("edit_remote_file", token, edit))
        if chance.random() < 0.4:
            calls.append(self._sync(f"{name}-sync"))
        if chance.random() < 0.5:
            calls.append(Made("list_remote_files", "", {"remote_path": str(work)}))
        chance.shuffle(calls)
        return calls

    def _exec(self, token: str) -> Made:
        seconds = self._chance.choice((0, 0, 0.3, 1, 3))
        command = f"echo {token} >>{self._scene.work}/count; sleep {seconds}; echo {token}; exit 3"
        return Made("exec_bash", token, {"command": command})

    def _sync(self, token: str) -> Made:
        source = self._scene.home / token
        source.write_bytes(self._chance.randbytes(self._chance.choice((100, 3 << 20, 40 << 20))))
        target = f"{self._scene.work}/{token}"
        return Made("sync_local_to_remote", token, {"local_path": str(source), "remote_path": target})


# Faults


def hubs(scene: Scene) -> list[int]:
    """The hubs of this schedule."""
    mark = f"REMOTE_SANDBOX_MCP_HOME={scene.state}\0".encode()
    return [
        process.pid
        for process in _processes()
        if "remote_sandbox_mcp.hub" in process.command and mark in environ_of(process.pid)
    ]


def environ_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def strike(scene: Scene, number: signal.Signals) -> None:
    for pid in hubs(scene):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_hub(scene: Scene, chance: Random) -> None:
    strike(scene, signal.SIGKILL)


def kill_two_hubs(scene: Scene, chance: Random) -> None:
    """The next one, too, in whatever it does then."""
    strike(scene, signal.SIGKILL)
    time.sleep(chance.uniform(0, 3))
    strike(scene, signal.SIGKILL)


def end_hub(scene: Scene, chance: Random) -> None:
    strike(scene, signal.SIGTERM)


def stop_hub(scene: Scene, chance: Random) -> None:
    """Shorter than fronts are patient."""
    stopped = hubs(scene)
    strike(scene, signal.SIGSTOP)
    time.sleep(chance.uniform(0.2, 4))
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def stop_and_kill_hub(scene: Scene, chance: Random) -> None:
    strike(scene, signal.SIGSTOP)
    time.sleep(chance.uniform(0.2, 2))
    strike(scene, signal.SIGKILL)


def cut_line(scene: Scene, chance: Random) -> None:
    scene.line.cut()


FAULTS = (kill_hub, kill_hub, kill_two_hubs, end_hub, stop_hub, stop_and_kill_hub, cut_line)


# A schedule


def play(scene: Scene, seed: int) -> list[str]:
    """What was wrong in the end; nothing, if all is well. The same seed makes the same choices."""
    chance = Random(seed)
    scene.prepare()
    clients = [Client(scene, chance, number) for number in range(chance.randint(*SESSIONS))]
    for client in clients:
        client.edited.write_text("END\n")
        os.chown(client.edited, scene.machine.uid, scene.machine.uid)
        client.start()
    struck = []
    for _ in range(chance.randint(1, 4)):
        time.sleep(chance.uniform(0, 3))
        fault = chance.choice(FAULTS)
        struck.append(fault.__name__)
        fault(scene, chance)
    deadline = time.monotonic() + LOST_S
    for client in clients:
        client.join(max(0.1, deadline - time.monotonic()))
    wrong = [each for client in clients for each in complaints(scene, client)]
    wrong += about_rows(scene)
    strike(scene, signal.SIGKILL)
    return [*wrong, *([f"after {', '.join(struck)}"] if wrong else [])]


def complaints(scene: Scene, client: Client) -> list[str]:
    found = [client.trouble] if client.trouble else []
    if client.is_alive():
        found.append(f"unanswered: {[made.token or made.tool for made in client.made if not made.answers]}")
    for made in client.made:
        found += [f"{made.token or made.tool}: {why}" for why in judge(scene, client, made)]
    return found


def judge(scene: Scene, client: Client, made: Made) -> list[str]:
    """Every rule that was broken by one call."""
    if not made.answers:
        return []
    if len(made.answers) > 1:
        return [f"{len(made.answers)} answers"]
    if made.tool == "edit_remote_file":
        times = client.edited.read_text().splitlines().count(made.token)
        return judge_edit(client, made, times)
    if made.failed:
        return [f"failed: {json.dumps(made.answers[0])[:300]}"]
    if made.tool == "sync_local_to_remote":
        return judge_sync(scene, client, made)
    if not made.token:
        return []
    count = scene.work / "count"
    times = count.read_text().splitlines().count(made.token)
    fields = made.result.get("structuredContent", {})
    is_true = made.tool != "exec_bash" or (fields.get("stdout"), fields.get("exit_code")) == (f"{made.token}\n", 3)
    return [*([f"done {times} times"] if times != 1 else []), *([] if is_true else [f"told as {fields}"])]


def judge_edit(client: Client, made: Made, times: int) -> list[str]:
    if times > 1 or (not made.failed and times != 1):
        return [f"done {times} times, and told as {made.text}"]
    if not made.failed or is_unsure(made):
        return []
    # An edit of which the client does not know whether it was done may have changed the file.
    earlier = client.made[: client.made.index(made)]
    unsure = any(is_unsure(each) for each in earlier if each.tool == made.tool)
    return [] if unsure and "changed since it was read" in made.text else [made.text]


def is_unsure(made: Made) -> bool:
    """Whether a call that failed says that it may have been done all the same; where the line was cut it may."""
    return made.failed and any(word in made.text for word in (UNKNOWN, "line", "contact"))


def judge_sync(scene: Scene, client: Client, made: Made) -> list[str]:
    assert client.wire
    fields = made.result.get("structuredContent", {})
    if task := fields.get("task_id"):
        fields = client.wire.call("check_file_transfer_task", task_id=task, wait_s=50).get("structuredContent", {})
        if fields.get("status") != "completed":
            return [f"the transfer is {fields}"]
    source, target = Path(made.arguments["local_path"]), Path(made.arguments["remote_path"])
    is_same = target.is_file() and target.read_bytes() == source.read_bytes()
    return [] if is_same else ["the files differ"]


def about_rows(scene: Scene) -> list[str]:
    with suppress(sqlite3.Error):
        twice = scene.rows("SELECT job_id, COUNT(*) AS n FROM watches GROUP BY job_id HAVING n > 1")
        return [f"{len(twice)} jobs have several watches"] if twice else []
    return []
