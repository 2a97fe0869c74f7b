"""The guide of the OpenSandbox MCP server: its tools, resources and prompts, embedded and on a platform."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.platform import API_KEY, AS_ROOT, Platform
from tests.support.ports import free_port

from .promise import shown_by
from .scene import TRANSPORTS, Check, Scene, holds, session

# The engine and its images take their time to start, once.
pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(300)]

AT_MOST = "[opensandbox]\nmax_concurrent_sandboxes = 2\n"
SCRIPT = "print('from the script')\n"
TEST = (
    "import unittest\n\nclass Test(unittest.TestCase):\n    def test(self): open('report.html', 'w').write('85.3 %')\n"
)
PROMPTS = ("test-in-sandbox", "debug-in-sandbox", "deploy-to-sandbox")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture(scope="module", params=[f"{way}-{place}" for place in ("embedded", "platform") for way in TRANSPORTS])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    way, _, place = request.param.partition("-")
    env = {}
    if place == "platform":
        platform: Platform = request.getfixturevalue("platform")
        env = {"OPENSANDBOX_SERVER": platform.url, "OPENSANDBOX_DEFAULT_IMAGE": AS_ROOT}
        env |= {"OPEN_SANDBOX_API_KEY": API_KEY}
    async with session(way, tmp_path_factory.mktemp("guide"), env=env, config=AT_MOST) as caller:
        scene = Scene(caller)
        scene.notes |= {"image": env.get("OPENSANDBOX_DEFAULT_IMAGE"), "folder": "/app" if env else "/tmp/app"}
        await use(scene)
        await workflow(scene)
        yield scene


async def use(scene: Scene) -> None:
    """The guide's examples, and each tool in detail."""
    folder = scene.notes["folder"]
    made = await scene.do("made", "create_sandbox", timeout=600, env={"PYTHON_VERSION": "3.11"})
    which = {"sandbox_id": made["sandbox_id"]}
    await scene.do(
        "variable", "run_command", **which, command='echo "$PYTHON_VERSION"; echo err >&2; exit 4', timeout=300
    )
    await scene.do("quiet", "run_command", **which, command="true")
    await scene.do("late", "run_command", **which, command="sleep 600", timeout=1)
    script = {"path": f"{folder}/script.py", "content": encoded(SCRIPT)}
    await scene.do("put", "upload_files", **which, files=[script])
    await scene.do("script", "run_command", command=f"python3 {folder}/script.py")
    await scene.do("got", "download_files", **which, paths=[f"{folder}/script.py"])
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    await scene.do("streamed", "run_command", progress=hear, **which, command="echo early; sleep 3; echo late")
    scene.notes["heard"] = heard
    await scene.do("listed", "list_sandboxes")
    for name in ("list", f"{made['sandbox_id']}/status", f"{made['sandbox_id']}/logs"):
        read = await scene.caller.client.read_resource(f"sandbox://{name}")
        scene.notes[name.rpartition("/")[2]] = getattr(read.contents[0], "text", "")
    for prompt in PROMPTS:
        shown = await scene.caller.client.get_prompt(prompt, {})
        scene.notes[prompt] = getattr(shown.messages[0].content, "text", "")
    templates = await scene.caller.client.list_resource_templates()
    scene.notes["templates"] = {it.uri_template for it in templates.resource_templates}
    await scene.do("second", "create_sandbox")
    other = {"sandbox_id": scene["second"]["sandbox_id"]}
    await scene.do("apart", "run_command", **other, command=f"cat {folder}/script.py")
    await scene.do("one too many", "create_sandbox")
    await scene.do("second deleted", "delete_sandbox", **other)
    await scene.do("deleted", "delete_sandbox", **which)
    await scene.do("after", "run_command", **which, command="true")
    await scene.do("listed after", "list_sandboxes")


async def workflow(scene: Scene) -> None:
    """The guide's five steps, one after the other."""
    which = {"sandbox_id": (await scene.do("1", "create_sandbox"))["sandbox_id"]}
    await scene.do("2", "upload_files", **which, files=[{"path": "tests/test_app.py", "content": encoded(TEST)}])
    await scene.do("3", "run_command", **which, command="python3 -m unittest discover tests")
    await scene.do("suite", "run_tests", **which, command="python3 -m unittest discover tests")
    port = free_port()
    serves = f"cd tests && exec python3 -m http.server {port}"
    app = await scene.do("app", "deploy_app", **which, command=serves, port=port, health_path="/test_app.py")
    if "url" in app:
        opened = await asyncio.to_thread(urlopen, f"{app['url'].rstrip('/')}/test_app.py", timeout=30)
        scene.notes["page"] = opened.read().decode()
    await scene.do("4", "download_files", **which, paths=["report.html"])
    await scene.do("5", "delete_sandbox", **which)


def one(scene: Scene) -> dict[str, Any]:
    """The entry of the first sandbox in the list."""
    made = scene["made"]["sandbox_id"]
    return next(it for it in scene["listed"]["sandboxes"] if it.get("id") == made)


def entry_in(scene: Scene) -> dict[str, Any]:
    """The same in the resource."""
    made = scene["made"]["sandbox_id"]
    return dict(next(it for it in json.loads(scene.notes["list"])["sandboxes"] if it.get("id") == made))


def file(scene: Scene) -> dict[str, Any]:
    return dict(scene["got"]["files"][0])


def time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def is_time(text: str) -> bool:
    return time(text).utcoffset() is not None


def lives(made: dict[str, Any]) -> float:
    """Seconds from the beginning of a sandbox to its end."""
    return (time(made["expires_at"]) - time(made["created_at"])).total_seconds()


CHECKS: dict[str, Check] = {
    "sandbox://list": lambda it: it["made"]["sandbox_id"] in it.notes["list"],
    "sandbox://{id}/status": lambda it: (
        "sandbox://{id}/status" in it.notes["templates"] and json.loads(it.notes["status"])["status"] == "running"
    ),
    "sandbox://{id}/logs": lambda it: "sandbox://{id}/logs" in it.notes["templates"] and "early" in it.notes["logs"],
    "sandbox://list shows image and state": lambda it: {"id", "status", "image"} <= entry_in(it).keys(),
    "test-in-sandbox": lambda it: "run_tests" in it.notes["test-in-sandbox"],
    "debug-in-sandbox": lambda it: "run_command" in it.notes["debug-in-sandbox"],
    "deploy-to-sandbox": lambda it: "deploy_app" in it.notes["deploy-to-sandbox"],
    "prompt without arguments": lambda it: all(it.notes[prompt] for prompt in PROMPTS),
    "create_sandbox.sandbox_id": lambda it: bool(it["made"]["sandbox_id"]),
    "create_sandbox.status": lambda it: it["made"]["status"] == "running",
    "create_sandbox.created_at": lambda it: is_time(it["made"]["created_at"]),
    "create_sandbox env": lambda it: it["variable"]["stdout"] == "3.11\n",
    "create_sandbox timeout": lambda it: lives(it["made"]) == 600,
    "run_command.exit_code": lambda it: it["variable"]["exit_code"] == 4,
    "run_command.stdout": lambda it: (it["variable"]["stdout"], it["quiet"]["stdout"]) == ("3.11\n", ""),
    "run_command.stderr": lambda it: (it["variable"]["stderr"], it["quiet"]["stderr"]) == ("err\n", ""),
    "run_command.duration": lambda it: it["streamed"]["duration"] >= 3,
    "run_command timeout": lambda it: it["late"]["timed_out"] is True,
    "run_command without sandbox_id": lambda it: (
        (it["script"]["stdout"], it["script"]["sandbox"]) == ("from the script\n", it["made"]["sandbox_id"])
    ),
    "upload_files content": lambda it: it["script"]["stdout"] == "from the script\n",
    "upload_files path": lambda it: it["put"]["files"][0]["path"] == f"{it.notes['folder']}/script.py",
    "download_files.path": lambda it: file(it)["path"] == f"{it.notes['folder']}/script.py",
    "download_files.content": lambda it: base64.b64decode(file(it)["content"]).decode() == SCRIPT,
    "download_files.size": lambda it: file(it)["size"] == len(SCRIPT),
    "list_sandboxes.id": lambda it: bool(one(it)),
    "list_sandboxes.image": lambda it: one(it).get("image") == it.notes["image"],
    "list_sandboxes.status": lambda it: one(it)["status"] == "running",
    "list_sandboxes.created_at": lambda it: is_time(one(it)["created_at"]),
    "delete_sandbox works": lambda it: (
        it["after"]["failed"]["code"] == "unknown_sandbox"
        and it["made"]["sandbox_id"] not in str(it["listed after"]["sandboxes"])
    ),
    "streaming": lambda it: any("early" in message and "late" not in message for message in it.notes["heard"]),
    "five steps": lambda it: (it["3"]["exit_code"], it["4"]["files"][0]["size"]) == (0, 6) and "failed" not in it["5"],
    "run_tests works": lambda it: (it["suite"]["passed"], it["suite"]["failed"]) == (1, 0),
    "deploy_app works": lambda it: it["app"]["url"] and it.notes["page"] == TEST,
    "isolation": lambda it: it["apart"]["exit_code"] != 0,
    # What else a platform gives is its own matter.
    "network isolation": lambda it: it.notes["image"] or it["made"]["network"] is False,
    "reuse": lambda it: it["quiet"]["exit_code"] == 0 and it["script"]["exit_code"] == 0,
    "max_concurrent_sandboxes holds": lambda it: (
        "max_concurrent_sandboxes is 2" in it["one too many"]["failed"]["error"]
    ),
}


@pytest.mark.parametrize("promise", shown_by("test_guide.py::test_promise"))
async def test_promise(scene: Scene, promise: str) -> None:
    holds(CHECKS, promise, scene)
