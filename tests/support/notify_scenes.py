"""What the tests of announcements share: a watch, an event, programs that write down how they were called."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remote_sandbox_mcp.core.jobs.watch import Event, EventType, Policy, Watch
from tests.support.pace import Deadline

HIDDEN = "hunter2-do-not-show"
NASTY = '<b>50% &amp; done</b>\x1b[31m\x07\r\n\\074img\\076 \u202eevil \x00$(touch x) `id` "; do shell script "x'
DEADLINE_S = 30.0

# Takes the place of a program: writes its arguments, environment and folder down, then does what it is told to.
RECORDER = """#!{python}
import json, os, sys
with open({record!r} + ".part", "w") as file:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "stdin": sys.stdin.read()}}, file)
os.rename({record!r} + ".part", {record!r})
{then}
"""


def watch(**changes: Any) -> Watch:
    policy = Policy(webhook_url=changes.pop("webhook_url", ""))
    fields = {"id": 5, "run_id": "run-7", "name": "train", "sandbox": "gpu1", "session": "bg-1", "log_file": "/l/a.log"}
    return Watch(**{**fields, "policy": policy, **changes})


def event(summary: str = "exit code 0", **changes: Any) -> Event:
    fields = {
        "type": EventType.COMPLETED,
        "id": 17,
        "watch_id": 5,
        "created": 1763222222.5,
        "payload": {"exit_code": 0},
    }
    return Event(**{**fields, "summary": summary, **changes})


def program(path: Path, then: str = "") -> tuple[Path, Path]:
    """A program at a path, and the file in which it writes down how it was called."""
    record = path.with_name(f"{path.name}.called")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RECORDER.format(python=sys.executable, record=str(record), then=then))
    path.chmod(0o700)
    return path, record


def called(record: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = Deadline(DEADLINE_S)
    while not condition():
        assert not deadline.has_passed()
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
