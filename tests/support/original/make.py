"""Run by a Python that has remote-sandbox-mcp 0.7.6: makes a state folder, and state.sql of its database."""
# mypy: ignore-errors

import sqlite3
from pathlib import Path

from remote_sandbox_mcp import server
from remote_sandbox_mcp import watchdog_daemon as daemon
from remote_sandbox_mcp import watchdog_store as store

store.init_db()
server._persist_current_sandboxes()
resume = {"resume_command": "python train.py --resume", "checkpoint_path": "/home/me/step", "auto_resume": True}
plan = {"resume_command": "python train.py --resume", "tmux_session": "train", "checkpoint_format": "text"}
plan["steps"] = [1, 2]
watches = [
    ("gpu1", "build", {}, {"status": "completed", "last_state": "completed", "last_exit_code": 0}),
    ("gpu1", "tests", {}, {"status": "completed", "last_state": "completed", "last_exit_code": 3}),
    ("gpu1", "old", {}, {"status": "cancelled"}),
    ("gpu1", "train", resume, {"last_state": "running"}),
    ("gpu1", "train", {**resume, "resume_plan": plan}, {"last_state": "running", "resume_attempts": 0}),
    ("lab/gpu", "sweep", resume, {"last_state": "interrupted", "interrupted_ts": 1_700_000_000, "resume_attempts": 1}),
    ("lab/gpu", "codex", {"event_command": server._default_codex_event_command("codex")}, {"last_state": "running"}),
]
for sandbox, session, how, fields in watches:
    more = {key: value for key, value in how.items() if key in ("event_command", "resume_plan")}
    wanted = {key: value for key, value in how.items() if key not in more}
    watch = store.create_watch(
        sandbox, session, f"/home/me/.codex_logs/{session}.log", cwd="/home/me", launch_command=f"python {session}.py",
        max_resume_attempts=3, metadata={"run": session}, **more, **wanted,
    )  # fmt: skip
    store.update_watch(watch["id"], **fields)
database = str(store.db_path())
for number, kind, summary in (
    (1, "completed", "ended with 0"),
    (2, "completed", "ended with 3"),
    (6, "interrupted", "gone"),
):
    daemon._emit_state_event(store.get_watch(number), kind, summary, db_path=database)
for status, result in (("completed", {"uploaded_files": 2, "synced_type": "directory"}), ("running", {})):
    task = store.create_transfer_task("local_to_remote", "gpu1", "/home/me/project", "project")
    log = server._transfer_log_path(task["id"])
    log.write_text(f"[transfer] task={task['id']} {status}\n")
    store.update_transfer_task(task["id"], status=status, result=result, log_file=str(log))
store.set_daemon_meta("heartbeat", {"ts": 1_700_000_000})
with sqlite3.connect(database) as connection:
    connection.execute("UPDATE daemon_meta SET updated_ts = 1700000000")
    dump = "\n".join(connection.iterdump())
Path("state.sql").write_text(dump.replace(str(store.base_dir()), "{state}") + "\n")
