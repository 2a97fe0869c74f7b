"""No secret of a command, of its output or of a call stays in our state, and none that we know reaches a model."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.backends.bubblewrap.local import describe, open_local
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.history import HistoryRows, WantedCalls
from remote_sandbox_mcp.services.fleet import Fleet, Member
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.means import require_local
from tests.support.server import Caller

# Words without digits are known by where they stand, the others by how they look.
SECRETS = {
    "export": ("export API_TOKEN={}", "sesame-a-open"),
    "variable": ("DB_PASSWORD={} make", "sesame-b-open"),
    "postgres": ("PGPASSWORD={} psql -h h", "sesame-c-open"),
    "mysql": ("mysql -u me -p{} db", "sesame-d-open"),
    "redis": ("redis-cli -h h -a {} ping", "sesame-e-open"),
    "curl user": ("curl -u me:{} https://example.org", "sesame-f-open"),
    "bearer": ('curl -H "Authorization: Bearer {}" https://example.org', "sesame-g-open"),
    "header": ("curl -H 'X-Api-Key: {}' https://example.org", "sesame-h-open"),
    "address": ("git clone https://me:{}@example.org/a.git", "sesame-i-open"),
    "sshpass": ("sshpass -p {} ssh h", "sesame-j-open"),
    "wandb": ("wandb login --relogin {}", "sesame-k-open"),
    "docker": ("docker login -u me -p {} example.org", "sesame-l-open"),
    "stdin": ("echo {} | docker login --password-stdin", "sesame-m-open"),
    "document": ("docker login --password-stdin <<EOF\n{}\nEOF", "sesame-n-open"),
    "assigned in a document": ("cat > .env <<EOF\nPLAIN={}\nEOF", "sesame-o-open"),
    "substituted": ("export TOKEN=$(cat <<EOF\n{}\nEOF\n)", "sesame-p-open"),
    "two words": ("aws configure set aws_secret_access_key {}", "sesame-q-open"),
    "python call": ('wandb.login(key="{}")', "sesame-r-open"),
    "github": ("use {}", "ghp_" + "sT5" * 12),
    "openai": ("use {}", "sk-proj-" + "uV5_" * 8),
    "aws": ("use {}", "AKIAZ5XW5VU5TS5RQ5PO"),
    "jwt": ("use {}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"),
    "pem": ("use {}", "-----BEGIN PRIVATE KEY-----\nsesame/w/open\n-----END PRIVATE KEY-----"),
    "random": ("use {}", "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"),
}
ALL = "\n".join(form.format(secret) for form, secret in SECRETS.values())


def stored() -> dict[str, str]:
    """All files of our state, by their paths in it."""
    with tempfile.TemporaryDirectory() as copy:
        # In another process: to close a file of a database that is open here would drop its locks.
        subprocess.run(["cp", "-r", f"{paths.state_folder()}/.", copy], check=True)
        found = [file for file in Path(copy).rglob("*") if file.is_file()]
        return {str(file.relative_to(copy)): file.read_bytes().decode("latin-1") for file in found}


def left() -> list[str]:
    """Which of the secrets are somewhere in our state."""
    texts = stored().values()
    return [name for name, (_, secret) in SECRETS.items() if any(secret.split("\n")[-2:][0] in text for text in texts)]


def printing(text: str) -> str:
    """A command that has a text in it, and prints it."""
    return f"cat <<'SHOWN'\n{text}\nSHOWN"


@asynccontextmanager
async def local(folder: Path, env: dict[str, str] | None = None, **more: Any) -> AsyncIterator[Caller]:
    require_local()
    place = dataclasses.replace(LocalPlace(), environment=Environment(env=env or {}))
    embedded = Member(place.name, lambda: describe(place), lambda: open_local(place, folder))
    async with connected(App(Fleet([embedded]), **more)) as caller:
        yield caller


async def use(tools: Caller) -> None:
    """Every way in which a text gets into our state."""
    for form, secret in SECRETS.values():
        assert secret in await tools.output(printing(form.format(secret)))
    await tools.client.call_tool("run_command", {"command": printing(ALL), "sandbox_id": "local"})
    await tools.client.call_tool("run_python", {"code": f"print({ALL!r})"})
    order = {"command": printing(ALL), "session_name": "job", "ensure_watchdog": False}
    await tools.call("exec_bash_background", **order)
    await tools.call("wait_background_task", tmux_session="job", timeout_s=30)
    await tools.call("list_background_tasks")
    # Arguments that the tools do not have, and a tool that is not there.
    await tools.client.call_tool("exec_bash", {"cmd": printing(ALL)})
    await tools.client.call_tool("write_remote_file", {"remote_path": "a", "contents": "sesame-x-open"})
    await tools.client.call_tool("no_such_tool", {"command": "sesame-x-open"})
    await tools.client.call_tool("write_remote_file", {"remote_path": "b", "content": ALL})


async def test_no_secret_of_commands_and_calls_is_in_our_state(tmp_path: Path) -> None:
    async with local(tmp_path) as tools:
        await use(tools)
    assert (left(), "sesame-x" in str(stored())) == ([], False)
    database = Database(paths.state_folder() / STATE_FILE)
    calls = HistoryRows(database).newest(WantedCalls(limit=100))
    database.close()
    assert calls[-1].arguments["content"] == f"({len(ALL)} characters)"
    assert calls[-3].arguments == {"remote_path": "a", "contents": "(13 characters)"}


async def test_with_no_days_nothing_of_a_command_or_its_output_is_in_our_state(tmp_path: Path) -> None:
    async with local(tmp_path, settings=Settings(keep_calls_days=0)) as tools:
        assert await tools.output("echo visible-$((1 + 1))") == "visible-2\n"
        await use(tools)
        await tools.call("exec_bash_background", command="echo visible-3", session_name="plain", ensure_watchdog=False)
        await tools.call("wait_background_task", tmux_session="plain", timeout_s=30)
    assert left() == []
    assert [name for name, text in stored().items() if "visible" in text] == []


async def test_texts_of_an_earlier_time_go_once_no_days_are_wanted(tmp_path: Path) -> None:
    for days, is_kept in ((1, True), (0, False)):
        async with local(tmp_path, settings=Settings(keep_calls_days=days)) as tools:
            await tools.run(f"echo earlier-{days}")
            read = await tools.client.read_resource("sandbox://local/logs")
        assert ("earlier-1" in str(read.contents[0])) is is_kept


async def test_another_configuration_reads_none_of_the_commands(fake: FakeSandbox) -> None:
    fake.answers["make secret-plans"] = Answer(stdout=b"secret-output\n")
    for identity, sees in (("mine", True), ("theirs", False), ("mine", True)):
        async with connected(App(Fleet([member(fake)]), identity=identity)) as tools:
            if identity == "mine":
                await tools.run("make secret-plans")
            read = str(await tools.client.read_resource("sandbox://fake/logs"))
        assert ("secret-plans" in read, "secret-output" in read) == (sees, sees)


async def test_a_command_that_outlasts_its_call_is_listed_elsewhere_without_its_text(fake: FakeSandbox) -> None:
    fake.answers["long"] = Answer(then=after(math.inf))
    async with connected(App(Fleet([member(fake)]), identity="mine", patience_s=0.05)) as tools:
        assert (await tools.run("long"))["running"]
    for identity, command in (("theirs", None), ("mine", "long")):
        async with connected(App(Fleet([member(fake)]), identity=identity)) as tools:
            (task,) = (await tools.call("list_background_tasks"))["tasks"]
        assert task.get("command") == command


# What has to be run again

AGAIN = "HF_TOKEN=sesame-y-open python train.py --resume"


async def test_a_resume_command_is_run_as_it_was_given_and_kept_nowhere_after_the_end(fake: FakeSandbox) -> None:
    settings = Settings(expose_advanced_tools=True)
    async with connected(App(Fleet([member(fake)]), settings=settings)) as tools:
        order = {"command": AGAIN, "session_name": "t", "resume_command": AGAIN, "ensure_watchdog": False}
        order |= {"metadata_json": json.dumps({"api_key": "sesame-z-open", "note": AGAIN}), "checkpoint_command": AGAIN}
        watch_id = (await tools.call("exec_bash_background", **order))["watch_id"]
        shown = await tools.call("get_background_watch", watch_id=watch_id)
        assert "sesame" not in str(shown)
        assert "[hidden]" in shown["watch"]["resume_command"]
        assert "sesame" not in stored()["state.db"] + stored().get("state.db-wal", "")
        fake.jobs.vanish(fake.jobs.started[-1].job_id)
        await tools.client.call_tool("resume_background_task", {"watch_id": watch_id})
        assert fake.jobs.started[-1].script == AGAIN
        await tools.call("stop_background_task", tmux_session="t")
        assert [name for name, text in stored().items() if "sesame" in text] == []
        refused = await tools.fail("resume_background_task", watch_id=watch_id)
        assert "not kept after the end of its watch: pass the whole command as resume_command" in refused["error"]
        await tools.client.call_tool("resume_background_task", {"watch_id": watch_id, "resume_command": AGAIN})
        assert (fake.jobs.started[-1].script, len(fake.jobs.started)) == (AGAIN, 3)


async def test_a_resume_command_whose_secret_is_lost_is_not_run(fake: FakeSandbox) -> None:
    async with connected(App(Fleet([member(fake)]))) as tools:
        order = {"command": "x", "session_name": "t", "resume_command": AGAIN, "ensure_watchdog": False}
        watch_id = (await tools.call("exec_bash_background", **order))["watch_id"]
        (paths.state_folder() / "again" / f"{watch_id}.json").unlink()
        fake.jobs.vanish(fake.jobs.started[-1].job_id)
        refused = await tools.client.call_tool("resume_background_task", {"watch_id": watch_id})
    assert (refused.is_error, len(fake.jobs.started)) == (True, 1)


async def test_another_configuration_sees_a_watch_without_its_commands(fake: FakeSandbox) -> None:
    settings = Settings(expose_advanced_tools=True)
    async with connected(App(Fleet([member(fake)]), settings=settings, identity="mine")) as tools:
        order = {"command": "make secret-plans", "resume_command": "make more-plans", "ensure_watchdog": False}
        watch_id = (await tools.call("exec_bash_background", **order, session_name="t"))["watch_id"]
        own = (await tools.call("get_background_watch", watch_id=watch_id))["watch"]
        assert (own["launch_command"], own["resume_command"]) == ("make secret-plans", "make more-plans")
    async with connected(App(Fleet([member(fake)]), settings=settings, identity="theirs")) as tools:
        (seen,) = (await tools.call("list_background_watches"))["watches"]
    assert (seen["tmux_session"], seen["launch_command"], seen["resume_command"]) == ("t", "", "")


# What comes back to a model

KEY = "sesame/of the+machine"
ENV = {"WANDB_API_KEY": KEY, "DATABASE_URL": "postgres://me:sesame-db@example.org/x", "MODE": "production-1"}


async def test_secret_variables_of_a_sandbox_do_not_come_back(tmp_path: Path) -> None:
    async with local(tmp_path, ENV) as tools:
        answers = [
            await tools.ask("exec_bash", command='env; env >&2; env > ~/env.txt; test -n "$WANDB_API_KEY"'),
            await tools.ask("run_command", command="env", sandbox_id="local"),
            await tools.ask(
                "run_python", code="import os, json; print(dict(os.environ)); json.dumps(dict(os.environ))"
            ),
            await tools.ask("read_remote_file", remote_path="~/env.txt"),
            await tools.ask("search_remote_files", remote_path="~", pattern="WANDB"),
            await tools.ask("exec_bash_background", command="env; sleep 0.1", session_name="j", watch=False),
            await tools.ask("wait_background_task", tmux_session="j", timeout_s=30),
            await tools.ask("check_background_task", tmux_session="j"),
        ]
        read = await tools.client.read_resource("sandbox://local/logs")
    for answer in (*answers, read):
        told = answer.model_dump_json()
        assert ("sesame" in told, "production" in told) == (False, "MODE=" in told or "'MODE'" in told), told
    assert answers[0].structured_content
    assert answers[0].structured_content["exit_code"] == 0
    assert "WANDB_API_KEY=[hidden]" in answers[0].structured_content["stdout"]
    assert "sesame" not in str(stored())


async def test_a_file_is_written_as_it_was_given(tmp_path: Path) -> None:
    async with local(tmp_path, ENV) as tools:
        await tools.call("write_remote_file", remote_path="~/a", content=f"key={KEY}\n")
        assert await tools.output('test "$(cat ~/a)" = "key=$WANDB_API_KEY" && echo same') == "same\n"


async def test_a_configured_password_does_not_come_back_in_results_and_errors(tools: Caller, fake: FakeSandbox) -> None:
    password = Secret("correct horse battery")
    fake.answers["show"] = Answer(stdout=b"it is correct horse battery\n")
    assert await tools.output("show") == "it is [hidden]\n"
    refused = await tools.ask("read_remote_file", remote_path=f"~/{password.reveal()}")
    assert "horse" not in refused.model_dump_json()


@pytest.mark.parametrize(("hides", "said"), [(False, "ghp_" + "sT5" * 12), (True, "[hidden]")])
async def test_a_token_in_foreign_output_is_marked_or_hidden(fake: FakeSandbox, hides: bool, said: str) -> None:
    fake.answers["show"] = Answer(stdout=f"a {SECRETS['github'][1]} b\n".encode())
    async with connected(App(Fleet([member(fake)]), settings=Settings(redact_output=hides))) as tools:
        told = await tools.run("show")
    assert told["stdout"] == f"a {said} b\n"
    assert ("warning" in told, "ghp_…" in told.get("warning", "")) == (not hides, not hides)
