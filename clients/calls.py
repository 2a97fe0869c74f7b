"""Good and bad calls of every tool, in an order in which each finds what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TEST_FILE = "import unittest\n\nclass T(unittest.TestCase):\n    def test_it(self):\n        self.assertTrue(True)\n"
SERVE = "python3 -m http.server 8123 --bind 127.0.0.1"


@dataclass(frozen=True)
class Call:
    """One tool call; `says` must be in the text of its answer, which is all that some clients show."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    is_bad: bool = False


def good(project: Path, box: str) -> Iterator[Call]:
    """Every listed tool once, as an agent would call it; `project` is a local folder, `box` a name for a sandbox."""
    yield Call("list_sandboxes", {"check_resources": True}, "local")
    yield Call("get_active_sandbox", says="local")
    yield Call("exec_bash", {"command": "echo from-exec", "sandbox_name": "local"}, "from-exec")
    yield Call("run_python", {"code": "6 * 7", "session": box, "sandbox_name": "local"}, "42")
    yield Call("write_remote_file", {"remote_path": f"{box}/a.txt", "content": "pears\n", "sandbox_name": "local"})
    edit = {"remote_path": f"{box}/a.txt", "old_text": "pears", "new_text": "plums", "sandbox_name": "local"}
    yield Call("edit_remote_file", edit)
    yield Call("read_remote_file", {"remote_path": f"{box}/a.txt", "sandbox_name": "local"}, "plums")
    yield Call("list_remote_files", {"remote_path": box, "sandbox_name": "local"}, "a.txt")
    yield Call("search_remote_files", {"remote_path": box, "pattern": "pl.ms", "sandbox_name": "local"}, "plums")
    up = {"local_path": str(project), "remote_path": f"{box}/up", "sandbox_name": "local"}
    yield Call("sync_local_to_remote", up)
    down = {"remote_path": f"{box}/up", "local_path": f"{project}-{box}", "sandbox_name": "local"}
    yield Call("sync_remote_to_local", down)
    job = {"command": "read line; echo got $line", "session_name": box, "watch": False, "sandbox_name": "local"}
    yield Call("exec_bash_background", job, box)
    yield Call("check_background_task", {"tmux_session": box, "sandbox_name": "local"})
    yield Call("send_background_input", {"tmux_session": box, "text": "hello", "sandbox_name": "local"})
    yield Call("wait_background_task", {"tmux_session": box, "timeout_s": 20, "sandbox_name": "local"}, "got hello")
    yield Call("stop_background_task", {"tmux_session": box, "sandbox_name": "local"})
    yield Call("list_background_tasks", {"sandbox_name": "local"}, box)
    yield Call("create_sandbox", {"name": box, "timeout": 600}, box)
    yield Call("run_command", {"sandbox_id": box, "command": "echo from-box"}, "from-box")
    yield Call("upload_files", {"sandbox_id": box, "files": [{"path": "test_it.py", "text": TEST_FILE}]}, "test_it.py")
    yield Call("download_files", {"sandbox_id": box, "paths": ["test_it.py"]}, "test_it.py")
    yield Call("run_tests", {"sandbox_id": box, "command": "python3 -m unittest -v"}, "passed")
    yield Call("deploy_app", {"sandbox_id": box, "command": SERVE, "port": 8123}, "http://127.0.0.1:")
    yield Call("forward_port", {"sandbox_id": box, "port": 8123}, "127.0.0.1")
    yield Call("delete_sandbox", {"sandbox_id": box}, "deleted")


def bad() -> Iterator[Call]:
    """One mistake for every listed tool; each answer is an error with a sentence."""
    nowhere = {"sandbox_name": "no-such-place"}
    yield Call("list_sandboxes", {"check_resource": True}, "check_resources", is_bad=True)
    yield Call("get_active_sandbox", {"name": "x"}, is_bad=True)
    yield Call("select_sandbox", nowhere, "no-such-place", is_bad=True)
    yield Call("exec_bash", {"command": "true", **nowhere}, "no-such-place", is_bad=True)
    yield Call("run_python", {"code": "1", **nowhere}, "no-such-place", is_bad=True)
    yield Call("exec_bash_background", {"command": "true", **nowhere}, "no-such-place", is_bad=True)
    for tool in ("check_background_task", "wait_background_task", "stop_background_task"):
        yield Call(tool, {"tmux_session": "job", **nowhere}, "no-such-place", is_bad=True)
    yield Call(
        "send_background_input", {"tmux_session": "no-such-job", "text": "x", "sandbox_name": "local"}, is_bad=True
    )
    yield Call("list_background_tasks", nowhere, "no-such-place", is_bad=True)
    yield Call("list_remote_files", {"remote_path": "/no/such/folder", "sandbox_name": "local"}, is_bad=True)
    yield Call("read_remote_file", {"remote_path": "/no/such/file", "sandbox_name": "local"}, is_bad=True)
    yield Call("write_remote_file", {"remote_path": "/usr/x", "content": "x", "sandbox_name": "local"}, is_bad=True)
    edit = {"remote_path": "/etc/hosts", "old_text": "not in it", "new_text": "x", "sandbox_name": "local"}
    yield Call("edit_remote_file", edit, is_bad=True)
    yield Call("search_remote_files", {"pattern": "(", "sandbox_name": "local"}, is_bad=True)
    sync = {"local_path": "/no/such/folder", "remote_path": "x", "sandbox_name": "local"}
    yield Call("sync_local_to_remote", sync, is_bad=True)
    yield Call("sync_remote_to_local", {**sync, "remote_path": "/no/such/folder"}, is_bad=True)
    yield Call("check_file_transfer_task", {"task_id": "987654"}, is_bad=True)
    yield Call("cancel_file_transfer_task", {"task_id": "987654"}, is_bad=True)
    yield Call("create_sandbox", {"memory": "much"}, "memory", is_bad=True)
    box = {"sandbox_id": "no-such-place"}
    yield Call("run_command", {**box, "command": "true"}, "no-such-place", is_bad=True)
    yield Call("upload_files", {**box, "files": [{"path": "x", "text": "x"}]}, "no-such-place", is_bad=True)
    yield Call("download_files", {**box, "paths": ["x"]}, "no-such-place", is_bad=True)
    yield Call("delete_sandbox", box, "no-such-place", is_bad=True)
    yield Call("run_tests", box, "no-such-place", is_bad=True)
    yield Call("deploy_app", {**box, "command": "true", "port": 80}, "no-such-place", is_bad=True)
    yield Call("forward_port", {**box, "port": 80}, "no-such-place", is_bad=True)


def as_plain(calls: list[Call]) -> list[dict[str, Any]]:
    return [asdict(call) for call in calls]
