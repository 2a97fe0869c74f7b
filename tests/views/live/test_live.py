"""Live on real machines, a real local sandbox and a real state file: each topic's rows, and how they change."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import App, compose
from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.core.jobs.watch import WatchOrder
from remote_sandbox_mcp.core.resources.history import Minute, Owner
from remote_sandbox_mcp.core.sandboxes.disposable import SandboxOrder
from remote_sandbox_mcp.core.sync.transfer import Order, Place
from remote_sandbox_mcp.core.workspaces.workspace import LinkOrder
from remote_sandbox_mcp.services.history import MadeCall
from remote_sandbox_mcp.services.jobs.values import JobSnapshot, Wanted, Which
from remote_sandbox_mcp.views.live import watcher
from remote_sandbox_mcp.views.live.board import Board, Viewer
from remote_sandbox_mcp.views.live.rows import job_row
from remote_sandbox_mcp.views.live.service import TOPICS, Live
from tests.support.means import require_local
from tests.support.pace import at_most
from tests.support.server import entry, environment, write_config
from tests.support.sshd import Fleet, Sshd

SECRET = "a-pass-word-of-the-operators"
# Beside other work, a first login may take this long.
SOON_S = 20.0


class View:
    """What a looker has been told, put together as a page does."""

    def __init__(self, live: Live, looker: Viewer) -> None:
        self.live = live
        self._looker = looker
        self.topics: dict[str, dict[str, Any]] = {}
        self.told: list[str] = []

    async def until(self, holds: Callable[[Mapping[str, dict[str, Any]]], object], what: str) -> Any:
        deadline = time.monotonic() + SOON_S
        while not (found := holds(self.topics)):
            left = deadline - time.monotonic()
            assert left > 0, f"waited {SOON_S} s for {what}: {self.topics}"
            done, waiting = await asyncio.wait((asyncio.ensure_future(self._looker.changes()),), timeout=left)
            for task in waiting:
                task.cancel()
            for change in (change for task in done for change in task.result()):
                self.told.append(json.dumps(change.fields(), allow_nan=False))
                rows = {} if change.whole else self.topics.get(change.topic, {})
                rows = {id: row for id, row in rows.items() if id not in change.gone}
                self.topics[change.topic] = rows | dict(change.put)
        return found

    async def row(self, topic: str, id: str, holds: Callable[[Any], object] = bool) -> Any:
        """The row, once it is as it should be."""

        def found(topics: Mapping[str, dict[str, Any]]) -> Any:
            row = topics.get(topic, {}).get(id)
            return row if row and holds(row) else None

        return await self.until(found, f"{topic}/{id}")


@asynccontextmanager
async def looked_at(
    home: Path,
    *machines: Sshd,
    local: bool = False,
    config: str = "",
    first: str = "",
    topics: tuple[str, ...] = TOPICS,
) -> AsyncIterator[tuple[App, View]]:
    file = write_config(home, local=local, config=config)
    file.write_text(first + file.read_text())
    with pytest.MonkeyPatch.context() as patch:
        entries = tuple(entry(machine) for machine in machines)
        for name, value in environment(home, entries).items():
            patch.setenv(name, value)
        app = compose(load(file))
        live = Live(app)
        try:
            with live.looking(topics) as looker:
                yield app, View(live, looker)
        finally:
            await live.close()
            await app.close()


async def test_a_machine_is_shown_at_once_and_measured_soon(tmp_path: Path, sshd: Sshd) -> None:
    async with looked_at(tmp_path, sshd) as (_, view):
        first = await view.row("machines", sshd.name)
        assert first["state"] == "asking"
        row = await view.row("machines", sshd.name, lambda row: row["state"] == "up")
        assert row["host"] == sshd.host
        assert row["resources"]["cpu"]["count"] >= 1
        assert 0 <= row["idle_score"] <= 1
        assert abs(row["sampled"] - time.time()) < SOON_S
        trend = await view.row("trends", sshd.name)
        at, cpu, memory, gpus = trend["points"][0]
        assert abs(at - time.time()) < SOON_S
        assert 0 <= cpu <= 1
        assert 0 < memory < 1
        assert isinstance(gpus, tuple)
        # The next point comes alone.
        grown = await view.row("trends", sshd.name, lambda row: "add" in row)
        assert len(grown["add"]) == 1


async def test_about_names_the_process_and_problems_of_the_configuration(tmp_path: Path) -> None:
    async with looked_at(tmp_path, config="[server]\nno_such_setting = 1\n") as (_, view):
        row = await view.row("about", "hub")
        assert row["pid"] > 0
        assert abs(row["now"] - time.time()) < SOON_S
        assert any("no_such_setting" in problem for problem in row["problems"])
        assert row["config_file"] == str(tmp_path / "config.toml")
        everything = {topic: {} for topic in TOPICS if topic != "about"}
        await view.until(lambda topics: {t: topics.get(t) for t in everything} == everything, "empty topics")


async def test_a_frozen_machine_delays_no_other(tmp_path: Path, fleet: Fleet, sshd: Sshd) -> None:
    frozen = fleet.machine("frozen-for-live")
    async with looked_at(tmp_path, frozen, sshd) as (app, view):
        await view.row("machines", frozen.name, lambda row: row["state"] == "up")
        await view.row("machines", sshd.name, lambda row: row["state"] == "up")
        await asyncio.to_thread(frozen.freeze)
        try:
            begun = await app.jobs.start(Wanted(command="sleep 60", sandbox=sshd.name))
            view.live.stir()
            asked = time.monotonic()
            id = f"{sshd.name}/{begun.started.session}"
            await view.row("jobs", id, lambda row: row["state"] == "running")
            before = view.topics["machines"][sshd.name]["sampled"]
            await view.row("machines", sshd.name, lambda row: row["sampled"] > before)
            assert time.monotonic() - asked < at_most(SOON_S / 2)
            await app.jobs.stop(Which(session=begun.started.session), grace_s=0)
        finally:
            await asyncio.to_thread(frozen.thaw)


async def test_a_machine_that_goes_down_says_why_and_comes_back(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "DOWN_S", 0.5)
    monkeypatch.setattr(watcher, "SAMPLE_S", 0.3)
    machine = fleet.machine("now-and-then")
    async with looked_at(tmp_path, machine, topics=("machines",)) as (_, view):
        await view.row("machines", machine.name, lambda row: row["state"] == "up")
        await asyncio.to_thread(machine.stop)
        down = await view.row("machines", machine.name, lambda row: row["state"] == "down")
        assert "nothing listens" in down["trouble"]
        assert "resources" not in down
        await asyncio.to_thread(machine.start)
        await view.row("machines", machine.name, lambda row: row["state"] == "up")


async def test_a_host_that_only_a_pattern_offers_is_not_asked(tmp_path: Path) -> None:
    folder = tmp_path / ".ssh"
    folder.mkdir()
    (folder / "config").write_text("Host gpu1 gpu2\n  HostName 127.0.0.1\n  Port 1\n")
    async with looked_at(tmp_path, first='hosts = ["gpu*"]\n') as (app, view):
        row = await view.row("machines", "gpu2")
        assert row["state"] == "unasked"
        await view.until(lambda topics: "jobs" in topics, "jobs")
        assert app.fleet.member("gpu2").opening is None


async def test_a_job_is_followed_from_its_start_to_its_end(tmp_path: Path, sshd: Sshd) -> None:
    async with looked_at(tmp_path, sshd) as (app, view):
        command = f"export API_TOKEN={SECRET}; read line; exit 3"
        watch = WatchOrder(resume_command="./again --token=0123456789abcdef", max_resume_attempts=2)
        begun = await app.jobs.start(Wanted(command=command, session="for-live", sandbox=sshd.name, watch=watch))
        view.live.stir()
        id = f"{sshd.name}/for-live"
        row = await view.row("jobs", id, lambda row: row["state"] == "running" and "watch" in row)
        assert abs(row["began"] - time.time()) < SOON_S
        assert "read line" in row["command"]
        assert row["watch"]["id"] == begun.watch_id
        assert row["watch"]["max_resume_attempts"] == 2
        assert not row["can_resume"]
        await app.jobs.send(Which(session="for-live", sandbox=sshd.name), keys=["Enter"])
        view.live.stir()
        row = await view.row("jobs", id, lambda row: row["state"] == "ended")
        assert row["exit_code"] == 3
        assert row["running_s"] >= 0
        assert row["can_resume"]
        told = "".join(view.told)
        assert SECRET not in told
        assert "0123456789abcdef" not in told


async def test_the_checkpoint_of_a_running_job_is_looked_at_while_somebody_looks(
    tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.views.live.watcher.FILE_S", 0.2)
    async with looked_at(tmp_path, sshd, topics=("jobs",)) as (app, view):
        watch = WatchOrder(checkpoint_path="progress.json", checkpoint_format="json", notify_local=False)
        order = Wanted(
            command="echo '{\"step\": 1}' > progress.json; read x", session="ck", sandbox=sshd.name, watch=watch
        )
        await app.jobs.start(order)
        view.live.stir()
        id = f"{sshd.name}/ck"
        await view.row("jobs", id, lambda row: row.get("checkpoint", {}).get("value") == {"step": 1})
        await (await app.fleet.get(sshd.name)).write("progress.json", b'{"step": 2}')
        row = await view.row("jobs", id, lambda row: row.get("checkpoint", {}).get("value") == {"step": 2})
        assert row["checkpoint"]["mtime"] > 1e9
        await app.jobs.stop(Which(session="ck", sandbox=sshd.name), grace_s=0)


async def test_running_jobs_are_shown_before_newer_ones_that_are_over_and_the_rest_is_counted(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.views.live.service.MOST_JOBS", 1)
    machine = fleet.machine("many-jobs")
    async with looked_at(tmp_path, machine) as (app, view):
        await app.jobs.start(Wanted(command="sleep 60", session="first", sandbox=machine.name))
        await app.jobs.start(Wanted(command="true", session="short", sandbox=machine.name))
        view.live.stir()
        await view.row("about", "hub", lambda row: row["jobs_left_out"] == 1)
        await view.until(lambda topics: [*topics["jobs"]] == [f"{machine.name}/first"], "only the one that runs")
        await app.jobs.stop(Which(session="first", sandbox=machine.name), grace_s=0)


async def test_a_job_whose_row_cannot_be_made_is_its_own_trouble(
    tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(sight: JobSnapshot, *rest: Any) -> Mapping[str, Any]:
        if sight.session == "bad":
            raise RecursionError
        return job_row(sight, *rest)

    monkeypatch.setattr("remote_sandbox_mcp.views.live.service.job_row", made)
    async with looked_at(tmp_path, sshd) as (app, view):
        for name in ("bad", "good"):
            await app.jobs.start(Wanted(command="sleep 60", session=name, sandbox=sshd.name))
        view.live.stir()
        await view.row("jobs", f"{sshd.name}/good", lambda row: row["state"] == "running" and "command" in row)
        row = await view.row("jobs", f"{sshd.name}/bad")
        assert (row["state"], row["can_resume"]) == ("running", False)
        assert "RecursionError" in row["trouble"]
        assert caplog.text.count("making the row of") == 1
        for name in ("bad", "good"):
            await app.jobs.stop(Which(session=name, sandbox=sshd.name), grace_s=0)


async def test_a_look_that_fails_in_an_unforeseen_way_is_logged_once_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[Board] = []

    async def look(app: App, board: Board) -> None:
        failed.append(board)
        if len(failed) < 4:
            raise RecursionError("deep")
        board.put("sandboxes", {"made": {"id": "made"}})

    monkeypatch.setattr("remote_sandbox_mcp.views.live.service.PROVIDERS_S", 0.02)
    monkeypatch.setattr("remote_sandbox_mcp.views.live.service.refresh_disposables", look)
    async with looked_at(tmp_path) as (_, view):
        await view.row("sandboxes", "made")
        assert caplog.text.count("looking at what goes on failed") == 1


async def test_calls_events_and_transfers_of_any_process_are_noticed(tmp_path: Path, sshd: Sshd) -> None:
    async with looked_at(tmp_path, sshd) as (app, view):
        other, begun_at = compose(load(tmp_path / "config.toml")), time.time()
        call = MadeCall(
            tool="exec_bash", arguments={"command": f"PASSWORD={SECRET} ls"}, outcome="done", begun=begun_at,
            seconds=1.0, client="a client", sandbox=sshd.name,
        )  # fmt: skip
        other.history.note(call)
        data = tmp_path / "data"
        data.mkdir()
        (data / "file").write_bytes(b"x" * 1000)
        order = Order(source=Place("", str(data), True), target=Place(sshd.name, "copied"))
        moved = await other.transfers.sync(order, wait_s=10, background=True)
        begun = await other.jobs.start(Wanted(command="true", sandbox=sshd.name, watch=WatchOrder(notify_local=False)))
        running = replace(call, outcome="running", arguments={"command": f"PASSWORD={SECRET} sleep 9"})
        other.history.begin(running)
        shown = await view.row("running", str(running.number))
        assert (shown["tool"], shown["outcome"], shown["client"]) == ("exec_bash", "running", "a client")
        other.history.note(replace(running, outcome="done"))
        await other.close()
        await view.until(lambda topics: topics.get("running") == {}, "its end")
        found = (await view.until(lambda topics: [*topics.get("calls", {}).values()], "the call"))[0]
        assert (found["tool"], found["client"], found["began"]) == ("exec_bash", "a client", begun_at)
        assert SECRET not in "".join(view.told)
        row = await view.row("transfers", getattr(moved, "id", ""))
        assert (row["direction"], row["from"], row["to"]) == ("up", str(data), f"{sshd.name}:copied")
        assert row["status"] in ("running", "completed", "queued")
        id = f"{sshd.name}/{begun.started.session}"
        assert await view.row("jobs", id, lambda row: row.get("watch") and row["state"] == "ended")
        # One round of the watchdog sees the end of the job, and tells it.
        supervisor = app.jobs.supervisor()
        supervisor._clock = lambda: time.time() + 1000
        await supervisor.tick()
        events = await view.until(lambda topics: topics.get("events"), "the event")
        event = next(iter(events.values()))
        assert (event["watch_id"], event["sandbox"]) == (begun.watch_id, sshd.name)
        assert await view.live.older_events(event["id"] + 1, 10) == [*events.values()]
        assert await view.live.older_events(min(row["id"] for row in events.values()), 10) == []


async def test_a_disposable_sandbox_is_shown_with_its_ports_and_is_not_kept_alive(tmp_path: Path) -> None:
    require_local()
    async with looked_at(tmp_path, local=True, config='[disposable]\nprovider = "embedded"\n') as (app, view):
        await view.until(lambda topics: topics.get("sandboxes") == {}, "none")
        made = await app.disposables.create(SandboxOrder(name="scratch", timeout_s=600))
        begun = await app.jobs.start(Wanted(command="sleep 60", sandbox=made.id))
        view.live.stir()
        row = await view.row("sandboxes", made.id)
        assert (row["name"], row["status"], row["ports"]) == ("scratch", "running", [])
        await view.row("jobs", f"{made.id}/{begun.started.session}", lambda row: row["state"] == "running")
        forward = await app.apps.forward(made.id, 8000)
        view.live.stir()
        row = await view.row("sandboxes", made.id, lambda row: row["ports"])
        assert row["ports"] == [{"port": 8000, "url": forward.url}]
        assert made.id not in view.topics["machines"]
        life = app.disposables.service.registry.lives[made.id]
        before = life.kept.idle_since
        view.live.stir()
        seen = view.topics["jobs"]
        await view.live._watchers[made.id][0]._list_jobs()
        assert life.kept.idle_since == before, seen
        await app.disposables.service.delete(made.id)
        view.live.stir()
        await view.until(lambda topics: topics["sandboxes"] == {}, "its end")


async def test_a_workspace_says_how_it_stands_and_what_is_in_conflict(
    tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.views.live.topics.COMPARE_S", 0.3)
    monkeypatch.setattr("remote_sandbox_mcp.views.live.topics.REST_AFTER_SCAN", 0.0)
    project = tmp_path / "project"
    project.mkdir()
    (project / "file").write_text("one\n")
    async with looked_at(tmp_path, sshd) as (app, view):
        order = LinkOrder(folder=str(project), sandbox=sshd.name, remote="linked", free=True)
        linked = (await app.workspaces.link(order)).workspace
        row = await view.row("workspaces", linked.id, lambda row: row["state"] == "in step")
        assert (row["folder"], row["sandbox"]) == (str(project), sshd.name)
        assert row["remote_folder"].endswith("/linked")
        assert abs(row["last_pass"] - time.time()) < 2 * SOON_S
        (project / "file").write_text("another here\n")
        row = await view.row("workspaces", linked.id, lambda row: row["state"] == "changed")
        assert row["to_send"] == 1
        await (await app.fleet.get(sshd.name)).write("linked/file", b"another there\n")
        row = await view.row("workspaces", linked.id, lambda row: row["state"] == "conflict")
        assert row["conflicts"] == [{"path": "file"}]
        await app.workspaces.decide(linked, ["file"], [])
        row = await view.row("workspaces", linked.id, lambda row: row["state"] == "in step")
        assert row["conflicts"] == []
        await app.workspaces.unlink(str(project))
        await view.until(lambda topics: topics["workspaces"] == {}, "its end")


async def test_a_workspace_that_is_busy_holds_up_no_other(
    tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.views.live.topics.COMPARE_S", 0.3)
    monkeypatch.setattr("remote_sandbox_mcp.views.live.topics.REST_AFTER_SCAN", 0.0)
    async with looked_at(tmp_path, sshd) as (app, view):
        linked = {}
        for name in ("busy", "free"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text("one\n")
            order = LinkOrder(folder=str(tmp_path / name), sandbox=sshd.name, remote=f"linked-{name}", free=True)
            linked[name] = (await app.workspaces.link(order)).workspace
        busy, free = linked["busy"], linked["free"]
        for each in (busy, free):
            await view.row("workspaces", each.id, lambda row: row["state"] == "in step")
        async with app.workspaces._turn(busy):
            comparing = view.live._workspaces._comparing
            (first,) = await view.until(
                lambda _: [comparing[busy.id]] if not comparing[busy.id].done() else [], "a comparison that waits"
            )
            (tmp_path / "free" / "file").write_text("another here\n")
            await view.row("workspaces", free.id, lambda row: row["state"] == "changed")
            assert comparing[busy.id] is first
        (tmp_path / "busy" / "file").write_text("another here\n")
        await view.row("workspaces", busy.id, lambda row: row["state"] == "changed")


async def test_curves_do_not_begin_when_somebody_looks(tmp_path: Path, sshd: Sshd) -> None:
    async with looked_at(tmp_path, sshd, topics=("machines", "usage")) as (app, view):
        await view.row("machines", sshd.name, lambda row: row["state"] == "up")
        live, history = view.live, app.machine_history
        live._board.lookers.discard(view._looker)
        live._end()
        # The minutes of the machine while nobody looked, as the hub writes them.
        now = time.time()
        seen = [Minute(sshd.name, (now - 60 * ago, 0.5, 0.25, (1.0,)), {Owner("ann", "train"): 2.0}) for ago in (9, 5)]
        await asyncio.to_thread(history._rows.write, seen)
        with live.looking(("trends", "usage")) as looker:
            deadline, points, use = time.monotonic() + SOON_S, [], {}
            while len(points) < 3 or not use:
                assert time.monotonic() < deadline
                for change in await looker.changes():
                    use = change.put if change.topic == "usage" else use
                    rows = change.put.get(sshd.name, {})
                    points += [*rows.get("points", ()), *rows.get("add", ())]
        assert [point for point in points if point[3] == (1.0,)]
        assert use["ann"]["week"] == round(4 / 60, 2)
        while len(live._following):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


async def test_a_machine_that_the_configuration_drops_is_gone(tmp_path: Path, sshd: Sshd) -> None:
    async with looked_at(tmp_path, sshd, topics=("machines", "trends")) as (app, view):
        await view.row("trends", sshd.name)
        for dropped in app.fleet.configure(()):
            await dropped.close()
        await view.until(lambda topics: topics == {"machines": {}, "trends": {}}, "its end")


async def test_two_lookers_share_what_is_asked(tmp_path: Path, sshd: Sshd) -> None:
    async with looked_at(tmp_path, sshd) as (_, view):
        with view.live.looking(("machines",)) as second:
            await view.row("machines", sshd.name, lambda row: row["state"] == "up")
            (change,) = await second.changes()
            assert change.whole
            assert len(view.live._watchers) == 1
        sessions = await asyncio.to_thread(sshd.sessions)
        assert len([name for name in sessions.values() if "notty" in name]) == 1
