"""The promises about machines, as disposable sandboxes keep them: embedded ones, and those of a real platform."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.platform import API_KEY, AS_ROOT, Platform

from . import test_machines as machines
from .promise import promises
from .scene import TRANSPORTS, Scene, holds, session

# The engine and its images take their time to start, once.
pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(300)]

# About the list of configured machines, their names and their logins.
OF_CONFIGURED = ("list_sandboxes", "select_sandbox", "get_active_sandbox", "most idle", "name with", "connection_alive")
OF_CONFIGURED += ("resources.error", "exec_bash sandbox_name", "exec_bash_background.sandbox")
# A job in an embedded sandbox ends with the hub, and so is not watched; its result says so.
WATCHED = ("exec_bash_background.watch_id", "check_background_task.watch_id", "README example", "max_log_lines")
WATCHED += ("checkpoint_max_bytes", "webhook_url is", "event_command is")
WATCHING = "The watchdog's tools: what they do and return"
PARTS = (machines.run, machines.start_jobs, machines.look_at_files, machines.send, machines.send_by_default)


def kept(place: str) -> list[str]:
    """The promises that a sandbox of this place keeps."""
    of_machines = [it for it in promises() if it.test == "tests/seeds/test_machines.py::test_promise"]
    found = [it for it in of_machines if not it.id.startswith(OF_CONFIGURED)]
    is_watched = place != "embedded"
    return [it.id for it in found if is_watched or not (it.id.startswith(WATCHED) or it.group == WATCHING)]


@pytest.fixture(scope="module", params=[f"{way}-{place}" for place in ("embedded", "platform") for way in TRANSPORTS])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    way, _, place = request.param.partition("-")
    env = machines.VARIABLES
    if place == "platform":
        platform: Platform = request.getfixturevalue("platform")
        env = env | {"OPENSANDBOX_SERVER": platform.url, "OPENSANDBOX_DEFAULT_IMAGE": AS_ROOT}
        env |= {"OPEN_SANDBOX_API_KEY": API_KEY}
    home, project = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("project")
    async with session(way, home, env=env, cwd=project) as caller:
        scene = Scene(caller)
        for name in ("gpu2", "gpu1"):
            await caller.call("create_sandbox", name=name)
        await caller.call("select_sandbox", sandbox_name="gpu1")
        scene.notes |= {"home": (await caller.output("echo ~")).strip(), "project": project}
        for part in (*PARTS, machines.fetch, *([machines.watch] if place == "platform" else [])):
            await part(scene, project)
        yield scene
        for name in ("gpu2", "gpu1"):
            await caller.call("delete_sandbox", sandbox_id=name)


@pytest.mark.parametrize("promise", kept("embedded"))
async def test_promise(scene: Scene, promise: str) -> None:
    holds(machines.CHECKS, promise, scene)


@pytest.mark.parametrize("promise", sorted({*kept("platform")} - {*kept("embedded")}))
@pytest.mark.parametrize("scene", [f"{way}-platform" for way in TRANSPORTS], indirect=True, scope="module")
async def test_promise_of_a_watched_job(scene: Scene, promise: str) -> None:
    holds(machines.CHECKS, promise, scene)
