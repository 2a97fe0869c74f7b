"""Sections 7 to 10 of remote-sandbox-mcp's README: what its tools do and return, on real machines."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.support.pace import Deadline
from tests.support.server import empty_fields, entry
from tests.support.sshd import Fleet, Sshd

from .promise import shown_by
from .scene import TRANSPORTS, Check, Scene, holds, session

VARIABLES = {"REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS": "1", "REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES": "3"}
WATCH = {
    *("id", "run_id", "name", "sandbox_name", "tmux_session", "log_file", "cwd", "launch_command", "resume_command"),
    *("checkpoint_path", "checkpoint_format", "checkpoint_command", "interval_s", "status", "last_state"),
    *("last_summary", "last_error", "last_exit_code", "last_log_tail", "last_checkpoint_text", "auto_resume"),
    *("resume_attempts", "max_resume_attempts", "alert_after_failures", "resume_delay_s", "metadata"),
}
# What is said of a watch is whole: programs read the fields of 0.7.6.
OF_WATCHES = {"watch", "watches"}
# The call of the README's section on scripts for long jobs.
EXAMPLE = {
    "command": "python train.py --workdir runs/exp-01 --checkpoint runs/exp-01/progress.json",
    "cwd": "~/sandboxes/project",
    "checkpoint_path": "runs/exp-01/progress.json",
    "checkpoint_format": "json",
    "resume_command": "python train.py --workdir runs/exp-01 --checkpoint runs/exp-01/progress.json --resume",
    "auto_resume": True,
}
PLAN = {"resume_command": "sh again.sh", "checkpoint_path": "~/state.json", "checkpoint_format": "json"}
# The README says "at least" of a plan's keys.
MORE = {"steps": ["load", "train"]}

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def machines(fleet: Fleet) -> tuple[Sshd, Sshd]:
    return fleet.machine("gpu1"), fleet.machine("gpu2", auth="password")


@pytest.fixture(scope="module", params=TRANSPORTS)
async def scene(
    request: pytest.FixtureRequest, machines: tuple[Sshd, Sshd], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    home, project = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("project")
    # One whose password is nowhere, and whose name could be taken for a path.
    locked = {"name": "lab/gpu3", "host": "127.0.0.1", "user": "u", "password": "file:/nonexistent/password"}
    async with session(request.param, home, *map(entry, machines), locked, env=VARIABLES, cwd=project) as caller:
        scene = Scene(caller)
        scene.notes |= {"places": [(it.host, it.port, it.user) for it in machines]}
        scene.notes |= {"users": [it.user for it in machines], "home": str(machines[0].home), "project": project}
        # Both transports use the same machines, one after the other.
        await scene.do(
            "cleared", "exec_bash", command="rm -rf ~/w ~/there ~/big ~/code ~/projects ~/hand.log ~/state.json"
        )
        for part in (choose, run, start_jobs, look_at_files, send, send_by_default, fetch, watch):
            await part(scene, project)
        yield scene


async def choose(scene: Scene, project: Path) -> None:
    await scene.do("listed", "list_sandboxes")
    await scene.do("measured", "list_sandboxes", check_resources=True)
    await scene.do("selected", "select_sandbox", sandbox_name="gpu2")
    await scene.do("in selected", "exec_bash", command="whoami")
    await scene.do("in another", "exec_bash", command="whoami", sandbox_name="gpu1")
    await scene.do("still selected", "get_active_sandbox")
    await scene.do("listed then", "list_sandboxes")
    await scene.do("selected by its old name", "select_sandbox", sandbox_name="lab/gpu3")
    await scene.do("selected again", "select_sandbox", sandbox_name="gpu1")


async def run(scene: Scene, project: Path) -> None:
    await scene.do("ran", "exec_bash", command="echo out; echo err >&2; exit 3")
    await scene.do("bash", "exec_bash", command='echo "${BASH_VERSION:+bash}"')
    await scene.do("made", "exec_bash", command="mkdir -p ~/w ~/projects/mymodel ~/sandboxes/project; echo ok >~/w/f")
    await scene.do("cwd", "exec_bash", command="cat f", cwd="~/w")
    await scene.do("cwd $HOME", "exec_bash", command="cat f", cwd="$HOME/w")
    await scene.do("late", "exec_bash", command="sleep 987 & sleep 987", timeout_s=1)
    await scene.do("left", "exec_bash", command="pgrep -u $(id -u) -f '[s]leep 987'")
    await scene.do("long", "exec_bash", command="seq 20000", max_output_chars=500)
    await scene.do("aliases", "exec_bash", cmd="cat f", workdir="~/w", description="Reads a file")
    await scene.do("unknown", "exec_bash", command="true", shell="zsh")


async def start_jobs(scene: Scene, project: Path) -> None:
    given: dict[str, Any] = {"session_name": "train-001", "cwd": "~/projects/mymodel"}
    started = await scene.do(
        "started", "exec_bash_background", command="echo one; echo two; until [ -e end ]; do sleep 0.1; done", **given
    )
    await scene.do("tmux", "exec_bash", command="tmux list-sessions")
    await scene.do("running", "check_background_task", tmux_session="train-001")
    await scene.do("end", "exec_bash", command="touch ~/projects/mymodel/end")
    await scene.do("waited", "wait_background_task", tmux_session="train-001", timeout_s=40)
    # As section 6 of 0.2 has it.
    log = "~/projects/mymodel/.codex_logs/train-001.log"
    await scene.do("checked", "check_background_task", tmux_session="train-001", log_file=log)
    number = {"watch_id": started["watch_id"]} if "watch_id" in started else {"tmux_session": "train-001"}
    await scene.do("checked by watch", "check_background_task", **number, last_n_lines=1)
    await scene.do("log", "exec_bash", command=f"cat {log}")
    await scene.do("unnamed", "exec_bash_background", command="true", watch=False)
    await scene.do("own log", "exec_bash_background", command="echo here", log_file="~/w/own.log", watch=False)
    session = scene["own log"]["tmux_session"]
    await scene.do("own log waited", "wait_background_task", tmux_session=session, timeout_s=40)
    await scene.do("own log read", "read_remote_file", remote_path="~/w/own.log")
    await scene.do("example", "exec_bash_background", **EXAMPLE)


async def look_at_files(scene: Scene, project: Path) -> None:
    await scene.do(
        "files",
        "exec_bash",
        command="mkdir -p ~/w/deep; echo 12345 >~/w/deep/g; touch -d @1600000001.7 ~/w/deep/g; "
        "printf 'a line with one odd byte \\377\\n' >~/w/odd",
    )
    await scene.do("list", "list_remote_files", remote_path="~/w")
    await scene.do("list all", "list_remote_files", remote_path="~/w", recursive=True)
    await scene.do("list one", "list_remote_files", remote_path="~/w", max_entries=1)
    await scene.do("list elsewhere", "list_remote_files", remote_path="~", sandbox_name="gpu2")
    deep = next(it["path"] for it in scene["list all"]["entries"] if it["path"].endswith("/g"))
    await scene.do("read", "read_remote_file", remote_path=deep)
    await scene.do("read part", "read_remote_file", remote_path=deep, max_bytes=3)
    await scene.do("read odd", "read_remote_file", remote_path="~/w/odd")


async def send(scene: Scene, project: Path) -> None:
    (project / "src").mkdir()
    for name in ("a.py", "b.txt", "c.tmp"):
        (project / "src" / name).write_text(name)
    (project / "patterns").write_text("*.txt\n")
    # Whole paths: a client over HTTP does not say where it works.
    there = {"local_path": str(project / "src"), "remote_path": "~/there"}
    await scene.do("sent", "sync_local_to_remote", **there, excludes=["*.tmp"], exclude_file=str(project / "patterns"))
    await scene.do("seen", "exec_bash", command="ls ~/there; touch ~/there/extra")
    await scene.do("sent again", "sync_local_to_remote", **there)
    await scene.do("seen again", "exec_bash", command="ls ~/there")
    await scene.do("sent and deleted", "sync_local_to_remote", **there, delete_extras=True)
    await scene.do("sent one", "sync_local_to_remote", local_path=str(project / "src/a.py"), remote_path="~/w/one.py")
    (project / "big").mkdir()
    for number in range(6):
        (project / "big" / f"{number}.{'tmp' if number > 3 else 'dat'}").write_text("x")
    begun = await scene.do(
        "much", "sync_local_to_remote", local_path=str(project / "big"), remote_path="~/big", excludes=["*.tmp"]
    )
    await scene.do("much done", "check_file_transfer_task", task_id=begun["task_id"], wait_s=60)
    await scene.do("much seen", "exec_bash", command="ls ~/big | wc -l")
    await scene.do("cancelled late", "cancel_file_transfer_task", task_id=begun["task_id"])
    await scene.do("forced", "sync_local_to_remote_background", **there)


async def send_by_default(scene: Scene, project: Path) -> None:
    for name in ("main.py", ".git/x", ".idea/x", ".vscode/x", "__pycache__/x", "old.pyc", "node_modules/x", ".venv/x"):
        (project / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / "code" / name).write_text(name)
    await scene.do("kept", "exec_bash", command="mkdir -p ~/code/.vscode; touch ~/code/.vscode/kept ~/code/extra")
    given = {"local_path": str(project / "code"), "remote_path": "~/code", "delete_extras": True}
    await scene.do("code", "sync_local_to_remote", **given)
    await scene.do("code seen", "exec_bash", command="cd ~/code; find . -type f | sort")


async def fetch(scene: Scene, project: Path) -> None:
    given = {"remote_path": "~/w", "local_path": str(project / "back"), "excludes": ["own.log", "odd"]}
    await scene.do("fetched", "sync_remote_to_local", **given)
    await scene.do("fetched again", "sync_remote_to_local", **given)
    scene.notes["fetched"] = {it.name for it in (project / "back").rglob("*") if it.is_file()}


async def watch(scene: Scene, project: Path) -> None:
    more = {"run_id": "r-1", "watch_name": "first", "metadata_json": '{"who": "me"}', "interval_s": 1}
    command = """echo '{"step": 3}' >~/state.json; echo working; until [ -e ~/w/go ]; do sleep 0.1; done"""
    begun = await scene.do(
        "watched",
        "exec_bash_background",
        command=command,
        session_name="w1",
        resume_plan_json=json.dumps(PLAN | MORE),
        **more,
    )
    number = {"watch_id": begun["watch_id"]}
    await scene.do("shown", "get_background_watch", **number)
    await scene.do("shown defaults", "get_background_watch", watch_id=scene["started"]["watch_id"])
    await scene.do("working", "wait_background_task", tmux_session="w1", until_pattern="working", timeout_s=40)
    await scene.do("progress", "get_background_watch_progress", **number)
    await scene.do("watch log", "read_background_watch_log", **number)
    await scene.do("checkpoint", "read_background_watch_checkpoint", **number)
    await scene.do("go", "exec_bash", command="touch ~/w/go")
    deadline = Deadline(100)
    # Only the promises about it may fail without it.
    while "completed" not in str(await scene.do("events", "list_background_watch_events", **number)):
        if deadline.has_passed():
            break
        await asyncio.sleep(0.2)
    await scene.do("watches", "list_background_watches")
    await scene.do("watches that are over", "list_background_watches", status="completed")
    hand = "tmux new-session -d -s hand 'echo by hand >~/hand.log; sleep 600'"
    await scene.do("by hand", "exec_bash", command=hand)
    await scene.do("watched by hand", "watch_background_task", tmux_session="hand", log_file="~/hand.log")
    by_hand = {"watch_id": scene["watched by hand"].get("watch", {}).get("id", 0)}
    await scene.do("cancelled", "cancel_background_watch", **by_hand)
    await scene.do("ended by hand", "exec_bash", command="tmux kill-session -t hand")
    await scene.do("other name", "exec_bash_background_watch", command="true", codex_wakeup=True)
    await scene.do("status", "get_watchdog_status")
    hooks = {"webhook_url": "https://ci.example.org/x", "event_command": "notify-me", "max_log_lines": 7}
    await scene.do("hooks", "exec_bash_background", command="true", **hooks)
    await scene.do("bounded", "get_background_watch_progress", **number, checkpoint_max_bytes=20000)
    for open_watch in (await scene.do("open", "list_background_watches", status="active")).get("watches", []):
        await scene.caller.call("cancel_background_watch", watch_id=open_watch["id"])


def is_long(fields: dict[str, Any]) -> bool:
    """Whether it says nothing somewhere, or repeats the caller."""
    return bool(list(empty_fields(fields))) or "command" in fields


def place(fields: dict[str, Any]) -> tuple[Any, ...]:
    return fields["host"], fields["port"], fields["user"]


def adds_up(total_mb: float, used_mb: float, free_mb: float, used_pct: float) -> bool:
    return total_mb > 0 and abs(used_mb + free_mb - total_mb) <= 2 and abs(used_pct - 100 * used_mb / total_mb) < 1


def names(listed: dict[str, Any], key: str = "name") -> list[str]:
    return [it.get(key, "") for it in listed["sandboxes"]]


def first(listed: dict[str, Any]) -> dict[str, Any]:
    return dict(listed["sandboxes"][0])


def resources(scene: Scene) -> dict[str, Any]:
    return dict(first(scene["measured"])["resources"])


def scores(scene: Scene) -> list[float]:
    return [it["resources"].get("idle_score", 0) for it in scene["measured"]["sandboxes"]]


def paths(listed: dict[str, Any]) -> str:
    return " ".join(it["path"] for it in listed["entries"])


def whole_watch(scene: Scene, step: str = "shown") -> dict[str, Any]:
    return dict(scene[step]["watch"])


CHECKS: dict[str, Check] = {
    "list_sandboxes.sandboxes": lambda it: names(it["listed"])[:2] == ["gpu1", "gpu2"],
    "list_sandboxes.name": lambda it: first(it["listed"])["name"] == "gpu1",
    "list_sandboxes.host": lambda it: place(first(it["listed"])) == it.notes["places"][0],
    "list_sandboxes.is_active": lambda it: (
        [x["is_active"] for x in it["listed then"]["sandboxes"]][:2] == [False, True]
    ),
    "list_sandboxes.connection_alive": lambda it: first(it["measured"])["connection_alive"] is True,
    "list_sandboxes.active_sandbox": lambda it: it["listed then"]["active_sandbox"] == "gpu2",
    "list_sandboxes.resources.cpu": lambda it: (
        resources(it)["cpu"]["count"] == os.cpu_count()
        and {"load_1m", "load_5m", "load_15m"} <= resources(it)["cpu"].keys()
    ),
    "list_sandboxes.resources.memory": lambda it: adds_up(**resources(it)["memory"]),
    "list_sandboxes.resources.gpu": lambda it: resources(it)["gpu"] == [] or which("nvidia-smi"),
    "list_sandboxes.resources.idle_score": lambda it: all(0 <= score <= 1 for score in scores(it)),
    "list_sandboxes without resources": lambda it: "resources" not in first(it["listed"]),
    "most idle": lambda it: (
        it["measured"]["sandboxes"][-1]["kind"] == "local" and scores(it)[-1] <= max(scores(it)[:-1])
    ),
    "select_sandbox.active_sandbox": lambda it: it["selected"] == {"active_sandbox": "gpu2", "status": "selected"},
    "select_sandbox holds": lambda it: it["in selected"]["stdout"].strip() == it.notes["users"][1],
    "get_active_sandbox.connection_alive": lambda it: it["still selected"]["connection_alive"] is True,
    "get_active_sandbox.host": lambda it: place(it["still selected"]) == it.notes["places"][1],
    "exec_bash.exit_code": lambda it: it["ran"]["exit_code"] == 3,
    "exec_bash.stdout": lambda it: it["ran"]["stdout"] == "out\n",
    "exec_bash.stderr": lambda it: it["ran"]["stderr"] == "err\n",
    "exec_bash is bash": lambda it: it["bash"]["stdout"] == "bash\n",
    "exec_bash cwd": lambda it: it["cwd"]["stdout"] == "ok\n",
    "exec_bash cwd $HOME": lambda it: it["cwd $HOME"]["stdout"] == "ok\n",
    "exec_bash.timed_out": lambda it: it["late"]["timed_out"] is True,
    "exec_bash timeout is real": lambda it: it["left"]["exit_code"] == 1,
    "exec_bash max_output_chars": lambda it: (
        500 <= len(it["long"]["stdout"]) < 1000 and it["long"]["stdout"].startswith("1\n2\n3\n")
    ),
    "exec_bash sandbox_name": lambda it: (
        it["in another"]["stdout"].strip() == it.notes["users"][0] and it["still selected"]["active_sandbox"] == "gpu2"
    ),
    "exec_bash_background.status": lambda it: it["started"]["status"] == "started",
    "exec_bash_background.tmux_session": lambda it: it["started"]["tmux_session"] == "train-001",
    "exec_bash_background.tmux_session default": lambda it: it["unnamed"]["tmux_session"].startswith("bg-"),
    "exec_bash_background.log_file": lambda it: it["started"]["log_file"].endswith("train-001.log"),
    "exec_bash_background.log_file default": lambda it: (
        it["started"]["log_file"] == f"{it.notes['home']}/projects/mymodel/.codex_logs/train-001.log"
    ),
    "exec_bash_background.log_file given": lambda it: it["own log read"]["content"].startswith("here\n"),
    "exec_bash_background.sandbox": lambda it: it["started"]["sandbox"] == "gpu1",
    "exec_bash_background.watch_id": lambda it: type(it["started"]["watch_id"]) is int,
    "exec_bash_background watch=false": lambda it: "watch_id" not in it["unnamed"],
    "exec_bash_background returns at once": lambda it: it["running"]["running"] is True,
    "exec_bash_background is in tmux": lambda it: "train-001:" in it["tmux"]["stdout"],
    "exec_bash_background writes its log": lambda it: it["log"]["stdout"].startswith("one\ntwo\n"),
    "exec_bash_background ends with EXIT_CODE": lambda it: it["log"]["stdout"].endswith("\nEXIT_CODE=0\n"),
    "check_background_task.tmux_session": lambda it: it["checked"]["tmux_session"] == "train-001",
    "check_background_task.running": lambda it: (it["running"]["running"], it["checked"]["running"]) == (True, False),
    "check_background_task.exit_code": lambda it: it["checked"]["exit_code"] == 0,
    "check_background_task.exit_code while it runs": lambda it: it["running"].get("exit_code") is None,
    "check_background_task.log_tail": lambda it: "two" in it["checked"]["log_tail"],
    "check_background_task last_n_lines": lambda it: len(it["checked by watch"]["log_tail"].splitlines()) == 1,
    "check_background_task.watch_id": lambda it: it["checked by watch"]["watch_id"] == it["started"]["watch_id"],
    "list_remote_files.entries": lambda it: len(it["list"]["entries"]) >= 3,
    "list_remote_files.path": lambda it: it["read"]["content"] == "12345\n",
    "list_remote_files.is_dir": lambda it: any(
        x["is_dir"] and x["path"].endswith("deep") for x in it["list"]["entries"]
    ),
    "list_remote_files.size": lambda it: any(x["size"] == 6 for x in it["list all"]["entries"]),
    "list_remote_files.mtime": lambda it: 1_600_000_001 in [x["mtime"] for x in it["list all"]["entries"]],
    "list_remote_files.truncated": lambda it: (it["list one"]["truncated"], it["list"]["truncated"]) == (True, False),
    "list_remote_files recursive": lambda it: "deep/g" in paths(it["list all"]) and "deep/g" not in paths(it["list"]),
    "list_remote_files sandbox_name": lambda it: (
        not [x for x in it["list elsewhere"]["entries"] if x["path"].endswith("/projects")]
    ),
    "read_remote_file.content": lambda it: it["read"]["content"] == "12345\n",
    "read_remote_file.size": lambda it: (it["read"]["size"], it["read part"]["size"]) == (6, 6),
    "read_remote_file.truncated": lambda it: (it["read"]["truncated"], it["read part"]["truncated"]) == (False, True),
    "read_remote_file odd bytes": lambda it: it["read odd"]["content"].endswith("odd byte \N{REPLACEMENT CHARACTER}\n"),
    "sync_local_to_remote.mode": lambda it: it["sent"]["mode"] == "inline",
    "sync_local_to_remote.uploaded_files": lambda it: it["sent"]["uploaded_files"] == 1,
    "sync_local_to_remote.skipped_files": lambda it: it["sent again"]["skipped_files"] == 1,
    "sync_local_to_remote is incremental": lambda it: it["sent again"]["uploaded_files"] == 2,
    "sync_local_to_remote excludes": lambda it: "c.tmp" not in it["seen"]["stdout"],
    "sync_local_to_remote exclude_file": lambda it: it["seen"]["stdout"] == "a.py\n",
    "sync_local_to_remote delete_extras": lambda it: it["sent and deleted"]["deleted_files"] == 1,
    "sync_local_to_remote.deleted_files": lambda it: it["sent and deleted"]["deleted_files"] == 1,
    "sync_local_to_remote keeps extras": lambda it: "extra" in it["seen again"]["stdout"],
    "sync_local_to_remote one file": lambda it: it["sent one"]["uploaded_files"] == 1,
    "sync_local_to_remote.auto_switched": lambda it: (
        (it["much"]["mode"], it["much"]["auto_switched"]) == ("background", True)
    ),
    "sync_local_to_remote.task_id": lambda it: bool(it["much"]["task_id"]),
    "sync_local_to_remote.status": lambda it: it["much"]["status"] in ("queued", "running", "completed"),
    "sync_local_to_remote.log_file": lambda it: Path(it["much"]["log_file"]).is_file(),
    "sync_local_to_remote excludes in the background": lambda it: it["much seen"]["stdout"].strip() == "4",
    "check_file_transfer_task.status": lambda it: it["much done"]["status"] == "completed",
    "check_file_transfer_task.result": lambda it: it["much done"]["result"]["uploaded_files"] == 4,
    "check_file_transfer_task.log_tail": lambda it: bool(it["much done"]["log_tail"]),
    "cancel_file_transfer_task.already_finished": lambda it: it["cancelled late"]["already_finished"] is True,
    "cancel_file_transfer_task.status": lambda it: it["cancelled late"]["status"] == "completed",
    "sync_local_to_remote_background is in the background": lambda it: it["forced"]["mode"] == "background",
    "sync_remote_to_local.downloaded_files": lambda it: it["fetched"]["downloaded_files"] >= 2,
    "sync_remote_to_local.skipped_files": lambda it: (
        it["fetched again"]["skipped_files"] == it["fetched"]["downloaded_files"]
    ),
    "sync_remote_to_local excludes": lambda it: "g" in it.notes["fetched"] and "own.log" not in it.notes["fetched"],
    "results are short": lambda it: (
        not [step for step, fields in it.answers.items() if not fields.keys() & OF_WATCHES and is_long(fields)]
    ),
    "default excludes": lambda it: "./main.py" in it["code seen"]["stdout"] and it["code"]["uploaded_files"] == 1,
    "default excludes are not deleted": lambda it: it["code seen"]["stdout"] == "./.vscode/kept\n./main.py\n",
    "name with a slash": lambda it: it["selected by its old name"]["active_sandbox"] == "lab-gpu3",
    "connection_alive with an unreadable secret": lambda it: (
        it["listed"]["sandboxes"][2]["connection_alive"] is False and it["listed"]["sandboxes"][2]["connection_error"]
    ),
    "resources.error": lambda it: it["measured"]["sandboxes"][2]["resources"]["error"],
    "a pull is told as fetched": lambda it: (
        it.texts["fetched"].startswith("{") or " fetched, 0 unchanged" in it.texts["fetched"]
    ),
    "max_log_lines": lambda it: it["hooks"]["status"] == "started",
    "checkpoint_max_bytes": lambda it: it["bounded"]["watch"]["id"] == it["watched"]["watch_id"],
    "webhook_url is left out": lambda it: "https://ci.example.org/" in str(it["hooks"]["notes"]),
    "event_command is left out": lambda it: "[hooks.notify-me]" in str(it["hooks"]["notes"]),
    "cmd and workdir": lambda it: (
        it["aliases"]["stdout"] == "ok\n" and "sandbox_name" in it["unknown"]["failed"]["error"]
    ),
    "get_watchdog_status works": lambda it: it["status"]["running"] is True and it["status"]["last_heartbeat_ts"] > 0,
    "list_background_watches works": lambda it: (
        {it[step]["watch_id"] for step in ("started", "example", "watched")}
        <= {x["id"] for x in it["watches"]["watches"]}
    ),
    "list_background_watches status": lambda it: (
        {x["status"] for x in it["watches that are over"]["watches"]} == {"completed"}
    ),
    "get_background_watch works": lambda it: (
        whole_watch(it).keys() >= WATCH
        and whole_watch(it)["tmux_session"] == "w1"
        and whole_watch(it)["status"] == "active"
    ),
    "get_background_watch defaults": lambda it: (
        [
            whole_watch(it, "shown defaults")[key]
            for key in ("interval_s", "alert_after_failures", "resume_delay_s", "max_resume_attempts", "auto_resume")
        ]
        == [300, 2, 300, 1, False]
    ),
    "get_background_watch run_id": lambda it: (whole_watch(it)["run_id"], whole_watch(it)["name"]) == ("r-1", "first"),
    "get_background_watch metadata": lambda it: whole_watch(it)["metadata"] == {"who": "me", "resume_plan": MORE},
    "get_background_watch resume_plan_json": lambda it: whole_watch(it).items() >= PLAN.items(),
    "get_background_watch_progress works": lambda it: (
        it["progress"]["checkpoint"]["value"] == {"step": 3} and "working" in it["progress"]["log_tail"]
    ),
    "read_background_watch_log works": lambda it: "working" in it["watch log"]["log_tail"],
    "read_background_watch_checkpoint works": lambda it: it["checkpoint"]["checkpoint"]["value"] == {"step": 3},
    "list_background_watch_events works": lambda it: (
        it["events"]["events"][0].keys() >= {"id", "watch_id", "event_type", "summary", "created_ts"}
    ),
    "completed": lambda it: "completed" in [x["event_type"] for x in it["events"]["events"]],
    "cancel_background_watch works": lambda it: it["cancelled"]["watch"]["status"] == "cancelled",
    "watch_background_task works": lambda it: it["watched by hand"]["watch"]["tmux_session"] == "hand",
    "exec_bash_background_watch works": lambda it: type(it["other name"]["watch_id"]) is int,
    "codex_wakeup is left out": lambda it: "[hooks.codex]" in it["other name"]["notes"][0],
    "README example": lambda it: it["example"]["status"] == "started" and it["example"]["watch_id"],
}


@pytest.mark.parametrize("promise", shown_by("test_machines.py::test_promise"))
async def test_promise(scene: Scene, promise: str) -> None:
    holds(CHECKS, promise, scene)
