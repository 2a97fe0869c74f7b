from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.jobs.watch import Unsent
from remote_sandbox_mcp.core.permission import Hook, Notify
from remote_sandbox_mcp.local.notify import messages, program
from remote_sandbox_mcp.local.notify.announcer import Announcer
from tests.support import notify_scenes as scenes
from tests.support.notify_scenes import HIDDEN, NASTY, called, event, is_running, wait_until, watch


def announcer(tmp_path: Path, command: tuple[str, ...], timeout_s: float = 20, **environ: str) -> Announcer:
    base = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "REMOTE_PASSWORD": HIDDEN}
    return Announcer(Notify(hooks={"mine": Hook(command, timeout_s)}), tmp_path, {**base, **environ})


async def test_a_hook_gets_the_event_and_a_clean_environment(tmp_path: Path, clean_environment: Path) -> None:
    path, record = scenes.program(tmp_path / "hook")
    happened = event(NASTY)
    await announcer(tmp_path, (str(path), "a b", "$HOME", ""), XDG_X="1").announce("hook:mine", watch(), happened)
    seen = called(record)
    assert seen["argv"] == ["a b", "$HOME", ""]
    assert seen["stdin"] == ""
    assert seen["cwd"] == str(clean_environment)
    file = tmp_path / "events" / "17-completed.json"
    fields = messages.as_json(watch(), happened)
    assert json.loads(file.read_text()) == json.loads(seen["env"]["RSMCP_EVENT_JSON"]) == fields
    # Python adds LC_CTYPE by itself where no locale is set.
    assert {name: value for name, value in seen["env"].items() if name not in {"RSMCP_EVENT_JSON", "LC_CTYPE"}} == {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "XDG_X": "1",
        "RSMCP_EVENT_FILE": str(file),
        "RSMCP_EVENT_TYPE": "completed",
        "RSMCP_OUTCOME": "succeeded",
        "RSMCP_FAILED": "false",
        "RSMCP_EXIT_CODE": "0",
        "RSMCP_WATCH_ID": "5",
        "RSMCP_SANDBOX_NAME": "gpu1",
        "RSMCP_TMUX_SESSION": "bg-1",
        "RSMCP_LOG_FILE": "/l/a.log",
        "RSMCP_SUGGESTED_PROMPT": fields["suggested_prompt"],
    }


async def test_a_large_event_is_whole_in_its_file_and_bounded_in_the_environment(tmp_path: Path) -> None:
    path, record = scenes.program(tmp_path / "hook")
    await announcer(tmp_path, (str(path),)).announce("hook:mine", watch(), event(payload={"log": "é" * 500_000}))
    variables = called(record)["env"]
    assert len(variables["RSMCP_EVENT_JSON"]) <= 64 << 10
    short = json.loads(variables["RSMCP_EVENT_JSON"])
    assert (short["payload"], short["payload_omitted"], short["summary"]) == ({}, True, "exit code 0")
    assert len(json.loads(Path(variables["RSMCP_EVENT_FILE"]).read_text())["payload"]["log"]) == 500_000


def test_even_a_summary_without_end_is_bounded() -> None:
    text = program.bounded(messages.as_json(watch(log_file="/" + "é" * 90_000), event("é" * 900_000)))
    assert len(text) <= 64 << 10
    assert json.loads(text)["id"] == 17


async def test_names_that_no_variable_can_hold_do_no_harm(tmp_path: Path) -> None:
    path, record = scenes.program(tmp_path / "hook")
    await announcer(tmp_path, (str(path),)).announce("hook:mine", watch(log_file="/a\0b\ud800"), event("\ud800"))
    assert called(record)["env"]["RSMCP_LOG_FILE"] == "/ab?"


async def test_a_hook_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    path, _ = scenes.program(tmp_path / "hook", "print('x' * 100000, file=sys.stderr); sys.exit('no disk')")
    with pytest.raises(Unsent, match=r"^the hook mine ended with status 1; it said: no disk$") as caught:
        await announcer(tmp_path, (str(path),)).announce("hook:mine", watch(), event())
    assert not caught.value.passing


@pytest.mark.parametrize("command", [("/nowhere/hook",), ("no-such-program",), ("/etc/hostname",), ("/",)])
async def test_a_hook_that_cannot_be_started_is_told(tmp_path: Path, command: tuple[str, ...]) -> None:
    with pytest.raises(Unsent, match="the hook mine could not be started: ") as caught:
        await announcer(tmp_path, command).announce("hook:mine", watch(), event())
    assert not caught.value.passing


LEAVES_A_CHILD = ("/bin/sh", "-c", 'sleep 50 & echo $! > "$HOME/pid"; eval "$1"', "hook")


def child(tmp_path: Path) -> int:
    text = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
    return int(text or 0)


async def test_a_hook_that_does_not_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(Unsent, match=r"did not end within 2 s and was killed$") as caught:
        await announcer(tmp_path, (*LEAVES_A_CHILD, "wait"), timeout_s=2).announce("hook:mine", watch(), event())
    assert not caught.value.passing
    assert time.monotonic() - began < 20
    pid = child(tmp_path)
    assert pid
    wait_until(lambda: not is_running(pid))


async def test_a_hook_ends_with_the_daemon_that_waits_for_it(tmp_path: Path) -> None:
    mine = announcer(tmp_path, (*LEAVES_A_CHILD, "wait"))
    telling = asyncio.create_task(mine.announce("hook:mine", watch(), event()))
    await asyncio.to_thread(wait_until, lambda: child(tmp_path) > 0)
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    pid = child(tmp_path)
    wait_until(lambda: not is_running(pid))


async def test_a_hook_that_is_cancelled_while_it_starts_ends_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, late = asyncio.create_subprocess_exec, asyncio.Event()

    async def start_late(*words: str, **how: Any) -> asyncio.subprocess.Process:
        process = await start(*words, **how)
        await late.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_late)
    telling = asyncio.create_task(
        announcer(tmp_path, (*LEAVES_A_CHILD, "wait")).announce("hook:mine", watch(), event())
    )
    await asyncio.to_thread(wait_until, lambda: child(tmp_path) > 0)
    telling.cancel()
    await asyncio.sleep(0)
    late.set()
    with pytest.raises(asyncio.CancelledError):
        await telling
    pid = child(tmp_path)
    wait_until(lambda: not is_running(pid))


async def test_what_a_hook_leaves_running_goes_on(tmp_path: Path) -> None:
    began = time.monotonic()
    await announcer(tmp_path, (*LEAVES_A_CHILD, ":")).announce("hook:mine", watch(), event())
    assert time.monotonic() - began < 15
    pid = child(tmp_path)
    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("channel", "reason"),
    [
        pytest.param("hook:other", r"command = \[\"/path/to/program\"\] under \[hooks.other\]", id="no such hook"),
        pytest.param("hook:", "is not allowed to", id="no name"),
        pytest.param("pigeon", "no way to announce events that is called 'pigeon'", id="no such channel"),
        pytest.param("", "no way to announce", id="empty"),
    ],
)
async def test_what_is_not_allowed_is_not_run(tmp_path: Path, channel: str, reason: str) -> None:
    path, record = scenes.program(tmp_path / "hook")
    with pytest.raises(Unsent, match=reason) as caught:
        await announcer(tmp_path, (str(path),)).announce(channel, watch(), event())
    assert not caught.value.passing
    assert not record.exists()


async def test_without_its_file_no_hook_runs(tmp_path: Path) -> None:
    path, record = scenes.program(tmp_path / "hook")
    (tmp_path / "events").touch()
    with pytest.raises(Unsent, match="unable to write") as caught:
        await announcer(tmp_path, (str(path),)).announce("hook:mine", watch(), event())
    assert caught.value.passing
    assert not record.exists()


# Agents


@pytest.mark.parametrize("kind", ["codex", "claude"])
@pytest.mark.parametrize("is_its_own", [True, False])
async def test_an_agent_gets_its_prompt_on_standard_input(
    tmp_path: Path, clean_environment: Path, kind: str, is_its_own: bool
) -> None:
    path, record = scenes.program(tmp_path / "agent")
    project = tmp_path / "project"
    project.mkdir()
    hooks = {"mine": Hook((str(path), "exec"), 20, kind)}
    # It follows the files of a project, so it goes only where its user had it work already.
    client = {"codex": "codex", "claude": "claude-code"}[kind] if is_its_own else "cursor"
    job, happened = watch(client=client, folder=str(project)), event(NASTY)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    await Announcer(Notify(hooks=hooks), tmp_path, environ).announce("hook:mine", job, happened)
    seen = called(record)
    assert seen["argv"] == ["exec"]
    assert seen["stdin"] == messages.suggested_prompt(job, happened)
    assert seen["cwd"] == str(project if is_its_own else clean_environment)


def test_a_folder_that_is_gone_is_not_gone_to(tmp_path: Path) -> None:
    gone = watch(client="codex", folder=str(tmp_path / "gone"))
    assert program.folder_of(Hook(("x",), kind="codex"), gone) == ""
    assert program.folder_of(Hook(("x",)), watch(client="codex", folder=str(tmp_path))) == ""
