"""Tasks: what the list shows can be checked, waited for, stopped and read, by the service and by `jobs`."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.app import App, compose
from remote_sandbox_mcp.cli import jobs as verb
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.core.commands.command import Running
from remote_sandbox_mcp.core.errors import UnknownTask
from remote_sandbox_mcp.core.jobs.job import JobWait
from remote_sandbox_mcp.core.task import name_of, outcome_of
from remote_sandbox_mcp.services.jobs.values import Wanted, Which
from tests.support.means import require_local
from tests.support.server import environment, write_config

GO_ON = "echo begun; until [ -e go-on ]; do sleep 0.05; done; echo done; echo wrong >&2; exit 3"


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    require_local()
    for name, value in environment(tmp_path, ()).items():
        monkeypatch.setenv(name, value)
    made = compose(load(write_config(tmp_path, local=True, config="")))
    yield made
    await made.close()


async def begun(app: App, kind: str) -> str:
    """A task of this kind, in which something runs where the kind allows it."""
    if kind == "job":
        return (await app.jobs.start(Wanted(command=GO_ON, session="train", sandbox="local"))).started.session
    if kind == "session":
        await app.commands.run("x=1", name="local", session="main")
        return "shell:main"
    seen = (await app.commands.run(GO_ON, name="local", patience_s=0.2)).seen
    assert isinstance(seen, Running)
    return seen.run_id


def options(name: str, *, as_json: bool = False, **more: object) -> Namespace:
    return Namespace(name=name, sandbox="", json=as_json, **more)


@pytest.mark.parametrize("kind", ["run", "job", "session"])
async def test_each_task_of_the_list_is_checked_waited_for_read_and_stopped(app: App, kind: str) -> None:
    name = await begun(app, kind)
    sights, sessions = await app.tasks.list(sandbox="local")
    assert name in {*(sight.seen.session for sight in sights if sight.seen), *(str(it.handle) for it in sessions)}
    which = Which(session=name)
    live = "idle" if kind == "session" else "running"
    assert outcome_of(await app.tasks.check(which)).state.value == live
    assert await app.tasks.whereabouts(which) == "local"
    waited = await app.tasks.wait(which, JobWait(seconds=0))
    assert (waited.why, name_of(waited.seen)) == ("ended" if kind == "session" else "timeout", name)
    read = await app.tasks.read(which)
    assert read.log == (b"" if kind == "session" else b"begun\n")
    assert outcome_of(await app.tasks.stop(which)).state.value == "stopped"


@pytest.mark.parametrize("kind", ["run", "job"])
async def test_every_verb_of_jobs_takes_the_name_of_each_task(
    app: App, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name = await begun(app, kind)
    assert await verb._show(app, options(name)) == 0
    assert "running" in capfd.readouterr().out
    assert await verb._wait(app, options(name, timeout=0.1)) == 124
    await app.commands.run("touch go-on", name="local")
    assert await verb._wait(app, options(name, timeout=20)) == 3
    assert f"{name} failed with exit code 3" in capfd.readouterr().err
    assert await verb._logs(app, options(name, lines=50, follow=True)) == 0
    shown = capfd.readouterr()
    assert shown.out.startswith("begun\ndone\n")
    assert "wrong" in shown.out
    assert await verb._show(app, options(name, as_json=True)) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["tmux_session"], told["outcome"], told["exit_code"]) == (name, "failed", 3)
    assert await verb._list(app, options("", state="failed", limit=50)) == 0
    assert "failed (exit 3)" in capfd.readouterr().out


async def test_a_command_that_was_stopped_is_listed_as_stopped_and_not_as_failed(app: App) -> None:
    name = await begun(app, "run")
    await app.tasks.stop(Which(session=name))
    await app.jobs.commands.settled()
    (sight,), _ = await app.tasks.list(sandbox="local")
    assert sight.outcome.state.value == "stopped"


@pytest.mark.parametrize("name", ["trian", "run-0123456789abcdef", "shell:mian"])
async def test_an_unknown_task_is_an_error_with_what_was_probably_meant(app: App, name: str) -> None:
    await begun(app, "job")
    for ask in (app.tasks.check, app.tasks.read, app.tasks.stop) if "shell" not in name else (app.tasks.check,):
        with pytest.raises(UnknownTask) as told:
            await ask(Which(session=name))  # type: ignore[operator]
        assert "did you mean train?" in str(told.value) or "list_background_tasks" in str(told.value)
    if name == "trian":
        assert "did you mean train?" in str(told.value)
    await app.tasks.stop(Which(session="train"))
