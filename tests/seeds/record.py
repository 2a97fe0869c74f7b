"""Records the shapes of what the published remote-sandbox-mcp 0.7.6 returns: `python -m tests.seeds.record`.

The package comes from PyPI into an environment of its own, and is called on a real sshd with an ordinary user.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.original import install
from tests.support.pace import Deadline
from tests.support.server import Entry, Wire, entry
from tests.support.sshd import Fleet, closed_port

FILE = Path(__file__).with_name("shapes-0.7.6.json")
# Few enough for a transfer in the background, for the original and for us.
SETTINGS = {"REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS": "1", "REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES": "5"}
# They change the computer that runs the test.
INSTALLERS = ("install_macos_watchdog", "uninstall_macos_watchdog")
# The entry that has no result, but the parameters of all tools.
PARAMETERS, REQUIRED = "parameters", "required"

Fields = dict[str, Any]
Call = Callable[..., Fields]


def walk(call: Call, folder: Path) -> Iterator[tuple[str, Fields]]:
    """Every tool once or more, each with a name for what it is about; `folder` is the client's, and empty."""
    yield "list_sandboxes", call("list_sandboxes")
    yield "list_sandboxes of resources", call("list_sandboxes", check_resources=True)
    yield "select_sandbox", call("select_sandbox", sandbox_name="gpu1")
    yield "get_active_sandbox", call("get_active_sandbox")
    yield from commands(call)
    yield from files(call, folder)
    yield from jobs(call)
    yield from errors(call)


def commands(call: Call) -> Iterator[tuple[str, Fields]]:
    yield "exec_bash", call("exec_bash", command="echo out; echo err >&2; exit 3")
    yield "exec_bash of a silent command", call("exec_bash", command="true")
    yield "exec_bash that takes too long", call("exec_bash", command="echo begun; sleep 60", timeout_s=2)


def files(call: Call, folder: Path) -> Iterator[tuple[str, Fields]]:
    for number in range(3):
        (folder / "few" / "deep").mkdir(parents=True, exist_ok=True)
        (folder / "few" / "deep" / f"{number}").write_text(f"{number}\n")
    for number in range(12):
        (folder / "many").mkdir(exist_ok=True)
        (folder / "many" / f"{number}").write_text(f"{number}\n")
    yield "sync_local_to_remote", call("sync_local_to_remote", local_path="few", remote_path="few")
    one = {"local_path": "few/deep/1", "remote_path": "one"}
    yield "sync_local_to_remote of a file", call("sync_local_to_remote", **one)
    begun = call("sync_local_to_remote", local_path="many", remote_path="many")
    yield "sync_local_to_remote in the background", begun
    task = {"task_id": begun["task_id"]}
    ended = until(lambda: call("check_file_transfer_task", **task), lambda it: it["status"] == "completed")
    yield "check_file_transfer_task", ended
    yield "cancel_file_transfer_task", call("cancel_file_transfer_task", **task)
    yield "sync_remote_to_local", call("sync_remote_to_local", remote_path="few", local_path="back")
    yield "sync_remote_to_local of a file", call("sync_remote_to_local", remote_path="one", local_path="back-one")
    yield "list_remote_files", call("list_remote_files", remote_path="few", recursive=True)
    yield "read_remote_file", call("read_remote_file", remote_path="few/deep/2")
    yield "read_remote_file of a part", call("read_remote_file", remote_path="few/deep/2", max_bytes=1)


def jobs(call: Call) -> Iterator[tuple[str, Fields]]:
    going = {"command": "echo 7 > point; echo begun; sleep 600", "session_name": "going", "checkpoint_path": "point"}
    begun = call("exec_bash_background", ensure_watchdog=False, **going)
    yield "exec_bash_background", begun
    watch = {"watch_id": begun["watch_id"]}
    # The checkpoint is there as soon as this is printed.
    seen = until(lambda: call("check_background_task", **watch), lambda it: "begun" in it.get("log_tail", ""))
    yield "check_background_task", seen
    ends = call("exec_bash_background", command="echo done; false", session_name="ends", watch=False)
    yield "exec_bash_background without a watch", ends
    handle = {"tmux_session": "ends", "log_file": ends["log_file"]}
    ended = until(lambda: call("check_background_task", **handle), lambda it: not it["running"] and "exit_code" in it)
    yield "check_background_task of one that has ended", ended
    more = {"session_name": "more", "ensure_watchdog": False}
    yield "exec_bash_background_watch", call("exec_bash_background_watch", command="sleep 600", **more)
    bare = call("exec_bash_background", command="sleep 600", session_name="bare", watch=False)
    taken = {"tmux_session": "bare", "log_file": bare["log_file"], "ensure_watchdog": False}
    yield "watch_background_task", call("watch_background_task", **taken)
    yield "list_background_watches", call("list_background_watches")
    yield "get_background_watch", call("get_background_watch", **watch)
    yield "get_background_watch_progress", call("get_background_watch_progress", **watch)
    yield "read_background_watch_log", call("read_background_watch_log", **watch)
    yield "read_background_watch_checkpoint", call("read_background_watch_checkpoint", **watch)
    yield "cancel_background_watch", call("cancel_background_watch", **watch)
    soon = {"command": "true", "session_name": "soon", "interval_s": 1}
    over = {"watch_id": call("exec_bash_background", **soon)["watch_id"]}
    events = until(lambda: call("list_background_watch_events", **over), lambda it: bool(it["events"]))
    yield "list_background_watch_events", events
    yield "get_background_watch of one that has ended", call("get_background_watch", **over)
    yield "get_watchdog_status", call("get_watchdog_status")


def errors(call: Call) -> Iterator[tuple[str, Fields]]:
    yield "an unknown sandbox", call("select_sandbox", sandbox_name="nowhere")
    yield "a file that is not there", call("read_remote_file", remote_path="nothing")
    yield "a machine that is gone", call("exec_bash", command="true", sandbox_name="gone")
    yield "an unknown watch", call("get_background_watch", watch_id=987654)
    yield "an unknown transfer", call("check_file_transfer_task", task_id=987654)


def parameters(wire: Wire) -> Fields:
    """Each tool's parameters with their defaults, as clients see them."""
    listed = [(it["name"], it["inputSchema"]) for it in wire.ask("tools/list")["result"]["tools"]]
    return {
        tool: {
            name: REQUIRED if name in schema.get("required", ()) else parameter.get("default")
            for name, parameter in schema["properties"].items()
        }
        for tool, schema in listed
    }


def until(ask: Callable[[], Fields], is_it: Callable[[Fields], bool], seconds: float = 60.0) -> Fields:
    deadline = Deadline(seconds)
    while not is_it(found := ask()):
        assert not deadline.has_passed(), found
        time.sleep(0.1)
    return found


def shape(value: object) -> Any:
    """Names of fields, and the types that JSON has for their values; the items of a list have one shape together."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in sorted(value.items())}
    if isinstance(value, list):
        merged: Any = None
        for item in value:
            merged = shape(item) if merged is None else merge(merged, shape(item))
        return [] if merged is None else [merged]
    kinds = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


def merge(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: merge(one.get(name, other.get(name)), other.get(name, one.get(name))) for name in {*one, *other}}
    return one if one == other else "|".join(sorted({str(one), str(other)}))


@contextmanager
def machines(fleet: Fleet) -> Iterator[list[Entry]]:
    """One that answers, and one that does not."""
    sshd = fleet.machine("gpu1")
    with closed_port() as port:
        yield [entry(sshd), entry(sshd, name="gone", port=port)]


@contextmanager
def started(words: list[str], env: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    with (folder / "stderr").open("ab") as errors:
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=errors, env=env, cwd=folder)
    assert process.stdin
    assert process.stdout
    with process.stdin, process.stdout:
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def record(programs: Path, fleet: Fleet, folder: Path) -> Fields:
    """The shapes of the original's results."""
    env = {"HOME": str(folder), "PATH": os.environ["PATH"], "REMOTE_SANDBOX_MCP_HOME": str(folder / "state")}
    program, project = str(programs / "remote-sandbox-mcp"), folder / "project"
    project.mkdir()
    daemon = [program, "daemon", "--loop-sleep", "1"]
    with machines(fleet) as entries:
        env |= {"REMOTE_SANDBOX_LIST": json.dumps(entries), **SETTINGS}
        with started([program], env, project) as process, started(daemon, env, folder):
            wire = Wire(process, project)
            wire.initialize()

            def call(tool: str, **given: Any) -> Fields:
                return dict(json.loads(wire.call(tool, **given)["content"][0]["text"]))

            walked = {label: shape(fields) for label, fields in walk(call, project)}
            return walked | {tool: shape(call(tool)) for tool in INSTALLERS} | {PARAMETERS: parameters(wire)}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Fleet() as fleet:
        shapes = record(install(Path(folder, "original")), fleet, Path(folder))
    FILE.write_text(json.dumps(shapes, indent=1, sort_keys=True) + "\n")
    print(f"wrote {FILE.name}: {len(shapes)} results")


if __name__ == "__main__":
    main()
