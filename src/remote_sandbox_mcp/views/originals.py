"""Fields of an earlier program's results, for programs that were written for it; agents get ours alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = dict[str, Any]
Given = Mapping[str, Any]
CHECKPOINT = ("checkpoint_path", "checkpoint_format", "checkpoint_command")
PLAN = ("launch_command", "cwd", "resume_command", *CHECKPOINT, "tmux_session")
STORED = ("last_state", "last_summary", "last_error", "last_log_tail")


def pushed(given: Given, fields: Fields) -> Fields:
    """The sync's arguments, if it is done."""
    if fields.get("mode") != "inline":
        return {}
    return _paths(given, ".") | {"delete_extras": bool(given.get("delete_extras"))}


def pulled(given: Given, fields: Fields) -> Fields:
    return _paths(given, "./remote_mirror") if fields.get("mode") == "inline" else {}


def _paths(given: Given, local_path: str) -> Fields:
    return {"local_path": given.get("local_path") or local_path, "remote_path": given.get("remote_path") or "."}


def transferred(given: Given, fields: Fields) -> Fields:
    return {"progress": {"phase": "complete", **fields["result"]}} if "result" in fields else {}


def watch(given: Given, fields: Fields) -> Fields:
    return {"watch": _with_plan(fields["watch"])}


def watches(given: Given, fields: Fields) -> Fields:
    return {"watches": [_with_plan(each) for each in fields["watches"]]}


def _with_plan(found: Fields) -> Fields:
    more = found["metadata"].get("resume_plan")
    plan = (more if isinstance(more, dict) else {}) | {name: found[name] for name in PLAN if found[name]}
    run_id = found["run_id"] or found["tmux_session"]
    return found | {"run_id": run_id, "resume_plan": plan, "resume_due_ts": int(found.get("resume_ts", 0))}


def watched(given: Given, fields: Fields) -> Fields:
    number = fields["watch"]["id"]
    return watch(given, fields) | {"watch_id": number, "watch_query_id": number}


def log(given: Given, fields: Fields) -> Fields:
    return watch(given, fields) | {"log": _task(fields)}


def progress(given: Given, fields: Fields) -> Fields:
    """The state that the watchdog saw last, and that of now."""
    found, problem = fields["watch"], fields.get("connection_error")
    stored = {name: found[name] for name in STORED} | {"checkpoint": _raw(found["last_checkpoint_text"], found)}
    live = {"task": _task(fields), "errors": [{"kind": "task", "error": problem}] if problem else []}
    live |= _checkpoint(fields)
    return watch(given, fields) | {"stored": stored, "live": fields.get("live", {}) | live}


def checkpoint(given: Given, fields: Fields) -> Fields:
    found = fields.get("checkpoint", {})
    text = found.get("text", "")
    file = {"content": text, "size": len(text.encode()), "truncated": found.get("truncated", False)}
    return watch(given, fields) | ({"file_result": file} if "checkpoint" in fields else {}) | _checkpoint(fields)


def _checkpoint(fields: Fields) -> Fields:
    found = fields.get("checkpoint")
    return {"checkpoint": found | _raw(found.get("text", ""), fields["watch"], found.get("value"))} if found else {}


def _raw(text: str, found: Fields, value: Any = None) -> Fields:
    return {"format": found["checkpoint_format"], "raw": text, "parsed": value}


def _task(fields: Fields) -> Fields:
    found = fields["watch"]
    running = fields.get("live", fields).get("running", found["outcome"] == "running")
    tail = fields.get("log_tail", "")
    return {"tmux_session": found["tmux_session"], "running": running, "log_tail": tail, "watch_id": found["id"]}
