"""Calls that clients make, each with what it is to leave behind once, and the rule by which its answer is judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from .scene import Scene

# Faults after which a process on this computer that ran under the hub is gone, and a line to the hub is cut.
ENDS_HUBS = frozenset({"kill_hub", "kill_two_hubs", "end_hub", "stop_and_kill_hub", "kill_hub_before_answers"})
CUTS = frozenset({"cut_line"})
# What an error says of a call that such a fault has met.
LOST = frozenset({"lost", "unknown", "not_started"})
# As much as a result may have without being cut, and several of them are more than a socket holds.
LARGE = 45_000
EXIT = 3


@dataclass
class Made:
    """A call, what it was to leave behind once, and what came of it. `judge` gives every rule that it broke."""

    tool: str
    token: str
    arguments: dict[str, Any]
    judge: Callable[[Scene, Made], list[str]]
    answers: list[dict[str, Any]] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    # Its front was killed, or its line over HTTP was cut: nobody can know what became of it.
    is_cut: bool = False
    # The local folder of a workspace.
    folder: Path = Path()

    @property
    def result(self) -> dict[str, Any]:
        return dict(self.answers[0].get("result", {})) if self.answers else {}

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.result.get("structuredContent") or {})

    @property
    def error(self) -> dict[str, Any]:
        """What an error says to programs."""
        return dict((self.result.get("_meta") or {}).get("remote-sandbox/error") or {})

    @property
    def failed(self) -> bool:
        return not self.answers or "error" in self.answers[0] or bool(self.result.get("isError"))

    def answer(self, message: dict[str, Any]) -> None:
        self.answers.append(message)
        self.ended = time.monotonic()

    def was_struck(self, scene: Scene, faults: frozenset[str]) -> bool:
        return scene.struck(self.begun, self.ended or time.monotonic(), faults)

    @property
    def shown(self) -> str:
        return f"answered with {str(self.answers)[:700]}"


def judged(scene: Scene, made: Made) -> list[str]:
    """Every rule that was broken by one call."""
    if made.is_cut and not made.answers:
        times = scene.times(made.token) if made.token else 0
        # A front that is dead cuts off what comes later, too.
        struck = made.was_struck(scene, ENDS_HUBS) or scene.struck(0.0, time.monotonic(), {"kill_front"})
        wrong = [] if struck else ["cut off although nothing was struck"]
        return [*wrong, *([f"done {times} times by a call that was cut off"] if times > 1 else [])]
    if len(made.answers) != 1:
        return [f"{len(made.answers)} answers"]
    if met_two_cuts(scene, made):
        return [f"done although it says that it was not, {made.shown}"] if is_begun(scene, made) else []
    return made.judge(scene, made)


def met_two_cuts(scene: Scene, made: Made) -> bool:
    """Whether it says that nothing was started, after two cuts: a machine whose line is cut is opened once more."""
    cuts = scene.count(made.begun, made.ended, "cut_line")
    return cuts > 1 and made.failed and made.error.get("outcome") == "not_started"


def is_begun(scene: Scene, made: Made) -> bool:
    if made.tool == "edit_remote_file":
        return made.token in Path(made.arguments["remote_path"]).read_text().splitlines()
    return bool(made.token and scene.times(made.token))


# On the machine: whatever happens to hubs and lines, done once and truly told


def once(scene: Scene, made: Made) -> list[str]:
    times = scene.times(made.token)
    return [f"done {times} times, {made.shown}"] if times != 1 or made.failed else []


def command(scene: Scene, made: Made) -> list[str]:
    told = made.fields.get("exit_code"), str(made.fields.get("stdout", "")).partition("\n")[0]
    return once(scene, made) or ([] if told == (EXIT, made.token) else [made.shown])


def large_command(scene: Scene, made: Made) -> list[str]:
    whole = made.fields.get("stdout") == f"{made.token}\n" + "x" * LARGE
    return command(scene, made) or ([] if whole else [f"its output has changed: {made.shown}"])


def python(scene: Scene, made: Made) -> list[str]:
    return once(scene, made) or ([] if made.fields.get("value") == repr(made.token) else [made.shown])


def succeeds(scene: Scene, made: Made) -> list[str]:
    return [made.shown] if made.failed else []


def job(scene: Scene, made: Made) -> list[str]:
    if made.failed:
        return [made.shown]
    deadline = time.monotonic() + 20
    while not scene.times(made.token) and time.monotonic() < deadline:
        time.sleep(0.1)
    return once(scene, made)


def same_files(scene: Scene, made: Made) -> list[str]:
    if made.failed:
        return [made.shown]
    paths = Path(made.arguments["local_path"]), Path(made.arguments["remote_path"])
    one, other = (path.read_bytes() if path.is_file() else b"" for path in paths)
    return [] if one == other and one else [f"the files differ, {made.shown}"]


def edit(scene: Scene, made: Made) -> list[str]:
    """Done once; where the line was cut while it was made, it may say that it does not know."""
    times = Path(made.arguments["remote_path"]).read_text().splitlines().count(made.token)
    if is_unsure(made) and made.was_struck(scene, CUTS | ENDS_HUBS):
        return [f"done {times} times"] if times > 1 else []
    return [f"done {times} times, {made.shown}"] if times != 1 or made.failed else []


def is_made_or_unsure(scene: Scene, made: Made) -> list[str]:
    return [] if is_unsure(made) and made.was_struck(scene, ENDS_HUBS) else succeeds(scene, made)


def is_unsure(made: Made) -> bool:
    return made.failed and made.error.get("outcome") == "unknown"


def came_back(scene: Scene, made: Made) -> list[str]:
    """A command in a workspace: sent what it needed, and brought what it made."""
    wrong = command(scene, made)
    brought = made.folder / f"out-{made.token}"
    deadline = time.monotonic() + 20
    while not brought.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    is_true = brought.exists() and brought.read_text() == made.token
    return wrong or ([] if is_true else [f"what it made did not come back, {made.shown}"])


# In `local` and in disposable sandboxes: ended with the hub, which must be said


def beside_the_hub(scene: Scene, made: Made) -> list[str]:
    told = made.fields.get("exit_code"), str(made.fields.get("stdout", "")).partition("\n")[0]
    if not made.failed and told == (EXIT, made.token):
        return []
    return [] if was_lost(scene, made) else [made.shown]


def read_beside_the_hub(scene: Scene, made: Made) -> list[str]:
    """A command there that only reads."""
    return [] if was_lost(scene, made) else succeeds(scene, made)


def was_lost(scene: Scene, made: Made) -> bool:
    return made.was_struck(scene, ENDS_HUBS) and made.failed and made.error.get("outcome") in LOST


# Makers


def make_exec(scene: Scene, chance: Random, token: str, **more: Any) -> Made:
    seconds = chance.choice((0, 0, 0.3, 1, 3))
    script = f"echo {token} >>{scene.work}/count; sleep {seconds}; echo {token}; exit {EXIT}"
    return Made("exec_bash", token, {"command": script, **more}, command)


def make_large(scene: Scene, chance: Random, token: str) -> Made:
    seconds = chance.choice((0.2, 0.4, 0.6))
    printed = f"printf '%0{LARGE}d' 0 | tr 0 x"
    count = f"{scene.work}/count"
    script = (
        f"echo {token} >>{count}; sleep {seconds}; echo {token}; {printed}; echo {token}-ended >>{count}; exit {EXIT}"
    )
    return Made("exec_bash", token, {"command": script, "max_output_chars": 2 * LARGE}, large_command)


def make_in_session(scene: Scene, chance: Random, token: str) -> Made:
    script = f"echo {token} >>{scene.work}/count; LAST={token}; sleep 0.2; echo $LAST; (exit {EXIT})"
    return Made("exec_bash", token, {"command": script, "session": f"s{chance.randint(1, 2)}"}, command)


def make_python(scene: Scene, chance: Random, token: str) -> Made:
    code = f"with open('{scene.work}/count', 'a') as f: print('{token}', file=f)\n'{token}'"
    return Made("run_python", token, {"code": code, "session": "chaos"}, python)


def make_job(scene: Scene, chance: Random, token: str) -> Made:
    order = {"command": f"echo {token} >>{scene.work}/count; sleep 0.1", "interval_s": 3600, "ensure_watchdog": False}
    return Made("exec_bash_background", token, order, job)


def make_push(scene: Scene, chance: Random, token: str) -> Made:
    source = scene.home / token
    source.write_bytes(chance.randbytes(chance.choice((100, 3 << 20, 20 << 20))))
    order = {"local_path": str(source), "remote_path": f"{scene.work}/{token}"}
    return Made("sync_local_to_remote", token, order, same_files)


def make_pull(scene: Scene, chance: Random, token: str) -> Made:
    source = scene.work / token
    source.write_bytes(chance.randbytes(chance.choice((100, 3 << 20, 20 << 20))))
    order = {"remote_path": str(source), "local_path": str(scene.home / f"pulled-{token}")}
    return Made("sync_remote_to_local", token, order, same_files)


def make_list(scene: Scene, chance: Random, token: str) -> Made:
    return Made("list_remote_files", "", {"remote_path": str(scene.work)}, succeeds)


def make_beside(sandbox: str, chance: Random, token: str) -> Made:
    """A command in a sandbox on this computer, whose files only it sees."""
    script = f"echo {token} >>~/count; sleep {chance.choice((0, 0.3, 1))}; echo {token}; exit {EXIT}"
    return Made("exec_bash", token, {"command": script, "sandbox_name": sandbox}, beside_the_hub)


def make_in_workspace(scene: Scene, chance: Random, token: str, folder: Path) -> Made:
    (folder / f"in-{token}").write_text(token)
    script = f"echo {token} >>{scene.work}/count; cp in-{token} out-{token}; sleep 0.2; cat in-{token}; exit {EXIT}"
    return Made("exec_bash", token, {"command": script}, came_back, folder=folder)
