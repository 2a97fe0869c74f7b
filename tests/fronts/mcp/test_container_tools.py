"""Disposable sandboxes as a client sees them: real ones behind bubblewrap, through the real server in memory."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp.types import PromptReference, ResourceTemplateReference

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules
from remote_sandbox_mcp.core.sandboxes.network import EVERY_HOST
from remote_sandbox_mcp.core.sandboxes.port import Stream
from remote_sandbox_mcp.fronts.mcp import reporting
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.means import folders_inside, needs_tun, require_bubblewrap
from tests.support.server import Caller
from tests.support.sshd import free_port


@pytest.fixture
def app(fake: FakeSandbox) -> App:
    rules = DisposableRules(max_concurrent=3, network_hosts=(EVERY_HOST,))
    return App(Fleet([member(fake)]), settings=Settings(expose_advanced_tools=True, rules=rules))


@pytest.fixture
async def tools(app: App) -> AsyncIterator[Caller]:
    async with connected(app) as caller:
        yield caller


async def make(tools: Caller, **given: Any) -> str:
    made = await tools.call("create_sandbox", **given)
    assert made["status"] == "running"
    return str(made["sandbox_id"])


async def test_a_sandbox_is_made_used_and_thrown_away(tools: Caller) -> None:
    place = await make(tools, env={"GREETING": "hello"})
    done = await tools.call("run_command", sandbox_id=place, command='echo "$GREETING"; echo oops >&2; exit 3')
    assert (done["exit_code"], done["stdout"], done["stderr"]) == (3, "hello\n", "oops\n")
    assert done["duration"] >= 0
    # Every other tool takes it, too.
    home, _ = folders_inside(Path(os.environ["REMOTE_SANDBOX_MCP_HOME"], "disposable", place, "box"))
    assert await tools.output("pwd", sandbox_name=place) == f"{home}\n"
    gone = await tools.call("delete_sandbox", sandbox_id=place)
    assert gone == {"sandbox_id": place, "status": "deleted"}
    problem = await tools.fail("run_command", sandbox_id=place, command="true")
    assert problem["code"] == "unknown_sandbox"
    assert "deleted" in problem["error"]


async def test_a_client_is_told_that_a_sandbox_is_still_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "SIGN_S", 0.01)
    made, told = asyncio.get_running_loop().create_future(), []

    class Heard(reporting.Reporting):
        def send(self, progress: float, total: float | None, message: str) -> None:
            told.append(message)
            if len(told) == 2:
                made.set_result("made")

    assert await reporting.with_signs_of_life(made, "making a sandbox from x on gpu1", Heard(None)) == "made"  # type: ignore[arg-type]
    assert told[0].startswith("making a sandbox from x on gpu1, for 0 s now; an image that is not there is fetched")


async def test_deleting_the_local_sandbox_ends_what_runs_in_it_and_leaves_its_files(local_tools: Caller) -> None:
    await local_tools.output("echo kept > ~/file; setsid sleep 54321 > /dev/null 2>&1 &")
    assert "sleep 54321" in await local_tools.output("ps ax -o args")
    gone = await local_tools.call("delete_sandbox", sandbox_id="local")
    assert gone == {"sandbox_id": "local", "status": "restarted"}
    seen = await local_tools.output("ps ax -o args; cat ~/file")
    assert "kept" in seen
    assert "sleep 54321" not in seen


async def test_sandboxes_do_not_see_each_other(tools: Caller) -> None:
    require_bubblewrap()
    first, second = await make(tools), await make(tools)
    await tools.output("echo secret >~/mine; echo secret >/tmp/mine", sandbox_name=first)
    assert "mine" not in await tools.output("ls ~ /tmp", sandbox_name=second)


async def test_a_name_leads_to_it_as_well(tools: Caller) -> None:
    place = await make(tools, name="clean")
    await tools.output("touch ~/here", sandbox_name="clean")
    assert await tools.output("ls", sandbox_name=place) == "here\n"
    problem = await tools.fail("create_sandbox", name="clean")
    assert "clean" in problem["error"]


async def test_it_is_listed_with_the_machines(tools: Caller) -> None:
    place = await make(tools)
    listed = {it["name"]: it for it in (await tools.call("list_sandboxes"))["sandboxes"]}
    assert set(listed) == {"fake", place}
    assert (listed[place]["id"], listed[place]["status"]) == (place, "running")
    assert "created_at" in listed[place]


async def test_no_more_than_allowed_live_at_once(tools: Caller) -> None:
    places = [await make(tools) for _ in range(3)]
    problem = await tools.fail("create_sandbox")
    assert "3" in problem["error"]
    await tools.call("delete_sandbox", sandbox_id=places[0])
    assert await make(tools)


async def test_files_go_in_and_come_out_as_bytes_text_and_copies(tools: Caller, tmp_path: Path) -> None:
    place = await make(tools)
    source = tmp_path / "project"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file").write_bytes(bytes(range(256)) * 1000)
    raw = bytes(range(256))
    put = await tools.call(
        "upload_files",
        sandbox_id=place,
        files=[
            {"path": "~/raw", "content": base64.b64encode(raw).decode()},
            {"path": "~/text", "text": "grüße\n"},
            {"path": "~/project", "local_path": str(source)},
        ],
    )
    assert [(it["path"], it["size"]) for it in put["files"]] == [("~/raw", 256), ("~/text", 8), ("~/project", 256_000)]
    assert await tools.output("cat text; wc -c <project/sub/file", sandbox_name=place) == "grüße\n256000\n"
    taken = await tools.call("download_files", sandbox_id=place, paths=["~/raw"])
    assert base64.b64decode(taken["files"][0]["content"]) == raw
    copied = await tools.call("download_files", sandbox_id=place, paths=["~/project"], local_dir=str(tmp_path / "out"))
    there = Path(copied["files"][0]["local_path"])
    assert (there / "sub" / "file").read_bytes() == (source / "sub" / "file").read_bytes()


@pytest.mark.parametrize("copies", [False, True], ids=["bytes", "copies"])
async def test_files_that_are_there_come_out_beside_those_that_are_not(
    tools: Caller, tmp_path: Path, copies: bool
) -> None:
    place = await make(tools)
    await tools.call(
        "upload_files", sandbox_id=place, files=[{"path": "~/a", "text": "a"}, {"path": "~/b", "text": "b"}]
    )
    given = {"sandbox_id": place} | ({"local_dir": str(tmp_path / "out")} if copies else {})
    taken = await tools.call("download_files", paths=["~/a", "~/gone", "~/b"], **given)
    assert [file["path"] for file in taken["files"]] == ["~/a", "~/b"]
    assert [problem["path"] for problem in taken["problems"]] == ["~/gone"]
    text = tools.answers[-1].content[0].text  # type: ignore[union-attr]
    assert text.startswith("2 taken\nnot taken: ")
    assert "gone" in text
    problem = await tools.fail("download_files", paths=["~/gone", "~/lost"], **given)
    assert problem["code"] == "file"
    assert "gone" in problem["error"]
    assert "lost" in problem["error"]


async def test_a_command_without_a_sandbox_runs_in_the_active_one(tools: Caller) -> None:
    place = await make(tools)
    await tools.call("run_command", sandbox_id=place, command="echo here >mark")
    await tools.call("select_sandbox", sandbox_name=place)
    assert (await tools.call("run_command", command="cat mark"))["stdout"] == "here\n"


async def test_what_a_copy_leaves_out_is_told(tools: Caller, tmp_path: Path) -> None:
    place = await make(tools)
    (tmp_path / "project" / "node_modules").mkdir(parents=True)
    (tmp_path / "project" / "file").write_text("x")
    os.mkfifo(tmp_path / "project" / "pipe")
    files = [{"path": "~/project", "local_path": str(tmp_path / "project")}]
    (put,) = (await tools.call("upload_files", sandbox_id=place, files=files))["files"]
    assert (put["files"], put["excluded_by_default"]) == (1, ["node_modules"])
    assert [problem["path"] for problem in put["problems"]] == ["pipe"]


@pytest.mark.parametrize(
    ("file", "says"),
    [
        pytest.param({"text": "x"}, "path", id="no path"),
        pytest.param({"path": "a"}, "exactly one", id="nothing to put"),
        pytest.param({"path": "a", "text": "x", "content": "eA=="}, "exactly one", id="two things"),
        pytest.param({"path": "a", "content": "no base64!"}, "is not base64", id="no base64"),
    ],
)
async def test_a_file_that_cannot_be_put_is_refused(tools: Caller, file: dict[str, str], says: str) -> None:
    problem = await tools.fail("upload_files", sandbox_id="fake", files=[file])
    assert problem["code"] == "bad_argument"
    assert says in problem["error"]


NAMELESS = {
    "above a folder": "d/..",
    "with slashes": "d/..///",
    "above the home": "..",
    "far above": "d/../..",
    "absolute": "/tmp/..",
    "the folder itself": "d/.",
    "the home itself": ".",
    "a NUL": "d/\0/..",
}


@pytest.mark.parametrize("path", NAMELESS.values(), ids=NAMELESS.keys())
async def test_a_path_that_ends_in_no_name_is_not_copied(tools: Caller, path: str, tmp_path: Path) -> None:
    place, here = await make(tools), tmp_path / "here"
    here.mkdir()
    await tools.call("run_command", sandbox_id=place, command="mkdir d; echo theirs > d/file; echo theirs > file")
    problem = await tools.fail("download_files", sandbox_id=place, paths=[path], local_dir=str(here))
    assert problem["code"] == "bad_argument"
    assert "name the file or folder itself" in problem["error"] or "NUL" in problem["error"]
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


NAMES = {"d": "d", "d///": "d", "d/..x": "..x", "d/a\\b": "a\\b", "d/../d/file": "file"}


@pytest.mark.parametrize(("path", "name"), NAMES.items(), ids=NAMES.keys())
async def test_what_is_copied_out_lies_in_the_local_folder(tools: Caller, path: str, name: str, tmp_path: Path) -> None:
    place, here = await make(tools), tmp_path / "here"
    await tools.call("run_command", sandbox_id=place, command="mkdir d; cd d; touch file ..x 'a\\b'")
    await tools.call("download_files", sandbox_id=place, paths=[path], local_dir=str(here))
    assert os.listdir(tmp_path) == ["here"]
    assert os.listdir(here) == [name]


NO_IMAGES = {
    **{path: path for path in ("/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/dev/fd/0", "/sys", "/nowhere")},
    **{"a file": "FOLDER/file", "a fifo": "FOLDER/fifo", "below a file": "FOLDER/file/x", "a loop": "FOLDER/loop"},
    **{"a NUL": "/tmp/\0", "a line break": "\n", "spaces": "  ", "no user": "~nobody-of-that-name/x"},
    **{"a long name": "/" + "x" * 5000, "a long path": "/x" * 5000, "half a pair": "/\udc80x"},
}


@pytest.mark.parametrize("image", NO_IMAGES.values(), ids=NO_IMAGES.keys())
async def test_what_is_no_image_is_refused_in_a_sentence(tools: Caller, image: str, tmp_path: Path) -> None:
    require_bubblewrap()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    problem = await tools.fail("create_sandbox", image=image.replace("FOLDER", str(tmp_path)))
    assert problem["code"] == "bad_argument", problem
    assert len(problem["error"]) < 600


async def test_local_paths_stay_within_the_roots_of_the_operator(
    fake: FakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "in").write_text("x")
    (root / "out").symlink_to("/etc/hostname")
    app = App(Fleet([member(fake)]), settings=Settings(allowed_roots=(str(root),)))
    monkeypatch.chdir("/")
    async with connected(app) as tools:
        place = await make(tools)
        await tools.call("upload_files", sandbox_id=place, files=[{"path": "~/in", "local_path": str(root / "in")}])
        for path in ("/etc/hostname", str(root / "out"), str(root / ".." / "other")):
            problem = await tools.fail("upload_files", sandbox_id=place, files=[{"path": "~/x", "local_path": path}])
            assert "remote-sandbox-mcp allow" in problem["error"]
        assert "remote-sandbox-mcp allow" in (await tools.fail("create_sandbox", image=str(tmp_path)))["error"]
        problem = await tools.fail("download_files", sandbox_id=place, paths=["~/in"], local_dir=str(tmp_path))
        assert "remote-sandbox-mcp allow" in problem["error"]


async def test_tests_are_run_and_told(tools: Caller) -> None:
    place = await make(tools)
    suite = (
        "import unittest\nclass T(unittest.TestCase):\n def test_a(self): pass\n def test_b(self): self.fail('no')\n"
    )
    await tools.call("upload_files", sandbox_id=place, files=[{"path": "~/p/test_it.py", "text": suite}])
    report = await tools.call("run_tests", sandbox_id=place, path="~/p", command="python3 -m unittest -v")
    assert (report["passed"], report["failed"], report["exit_code"]) == (1, 1, 1)
    assert "test_b" in report["failures"][0]["id"]
    crash = await tools.call("run_tests", sandbox_id=place, path="~/p", command="kill -SEGV $$")
    assert crash["problem"]
    logs = await tools.client.read_resource(f"sandbox://{place}/logs")
    assert "python3 -m unittest -v" in logs.contents[0].text  # type: ignore[union-attr]


async def test_a_sandbox_without_pytest_is_lent_one_and_told_so(tools: Caller) -> None:
    place = await make(tools)
    files = {"~/p/test_it.py": "def test_b():\n    assert 1 == 2\n", "~/p/Cargo.toml": ""}
    files["~/p/conftest.py"] = ""
    await tools.call("upload_files", sandbox_id=place, files=[{"path": at, "text": text} for at, text in files.items()])
    report = await tools.call("run_tests", sandbox_id=place, path="~/p")
    assert (report["runner"], report["failed"], report["other_runners"]) == ("pytest", 1, ["cargo"])
    text = tools.answers[-1].content[0].text  # type: ignore[union-attr]
    assert "also found, but not started: cargo" in text
    assert "was lent by the server" in text
    assert "was lent by the server" in report["notes"][0]


async def test_a_suite_that_outlasts_the_call_tells_its_results_later(app: App) -> None:
    app.patience_s = 0.2
    async with connected(app) as tools:
        place = await make(tools)
        suite = "import time, unittest\nclass T(unittest.TestCase):\n def test_a(self): time.sleep(2)\n"
        await tools.call("upload_files", sandbox_id=place, files=[{"path": "~/p/test_it.py", "text": suite}])
        running = await tools.call("run_tests", sandbox_id=place, path="~/p", command="python3 -m unittest -v")
        assert running["running"]
        app.patience_s = 20
        handle = running["tmux_session"]
        await tools.call("wait_background_task", tmux_session=handle, sandbox_name=place)
        report = await tools.call("run_tests", sandbox_id=place, tmux_session=handle)
        assert (report["passed"], report["failed"]) == (1, 0)


async def test_an_app_is_started_and_can_be_opened(tools: Caller) -> None:
    place = await make(tools)
    await tools.output("mkdir site; echo works >site/index.html", sandbox_name=place)
    deployed = await tools.call(
        "deploy_app", sandbox_id=place, command="python3 -m http.server 8123 -d ~/site", port=8123, health_path="/"
    )
    assert deployed["status"] == "running", deployed
    assert deployed["health"]["status"] == 200

    def fetch() -> str:
        with urllib.request.urlopen(deployed["url"], timeout=20) as answer:
            return str(answer.read().decode())

    assert await asyncio.to_thread(fetch) == "works\n"
    listed = {it["name"]: it for it in (await tools.call("list_sandboxes"))["sandboxes"]}
    assert [(it["port"], it["status"]) for it in listed[place]["apps"]] == [(8123, "running")]
    failed = await tools.call("deploy_app", sandbox_id=place, command="echo broken; exit 4", port=8124)
    assert (failed["status"], failed["exit_code"]) == ("failed", 4)
    assert "broken" in failed["log"]


async def test_resources_tell_of_sandboxes(tools: Caller) -> None:
    place = await make(tools)
    listed = json.loads((await tools.client.read_resource("sandbox://list")).contents[0].text)  # type: ignore[union-attr]
    assert [it["name"] for it in listed["sandboxes"]] == ["fake", place]
    status = json.loads(
        (await tools.client.read_resource(f"sandbox://{place}/status")).contents[0].text  # type: ignore[union-attr]
    )
    assert (status["sandbox_id"], status["status"], status["connection_alive"]) == (place, "running", True)
    await tools.output("echo noted", sandbox_name=place)
    logs = (await tools.client.read_resource(f"sandbox://{place}/logs")).contents[0].text  # type: ignore[union-attr]
    assert "$ echo noted\nnoted" in logs
    templates = (await tools.client.list_resource_templates()).resource_templates
    assert {it.uri_template for it in templates} == {
        "sandbox://{id}/status",
        "sandbox://{id}/logs",
        "job://{name}/log",
    }


async def test_prompts_have_arguments_and_completions(tools: Caller) -> None:
    place = await make(tools)
    prompts = {it.name: it for it in (await tools.client.list_prompts()).prompts}
    assert set(prompts) == {"test-in-sandbox", "debug-in-sandbox", "deploy-to-sandbox"}
    asked = await tools.client.get_prompt("test-in-sandbox", {"project": "/p q", "image": "python:3.12"})
    text = asked.messages[0].content.text  # type: ignore[union-attr]
    assert "'/p q'" in text
    assert "create_sandbox(image='python:3.12')" in text
    fitting = await tools.client.complete(
        PromptReference(type="ref/prompt", name="test-in-sandbox"), {"name": "image", "value": "python"}
    )
    assert fitting.completion.values[0].startswith("python")
    known = await tools.client.complete(
        ResourceTemplateReference(type="ref/resource", uri="sandbox://{id}/status"), {"name": "id", "value": "sb-"}
    )
    assert known.completion.values == [place]


@pytest.mark.parametrize(("memory", "says"), [("lots", "512m or 2g"), ("1.2.3g", "512m or 2g"), ("-1", "512m or 2g")])
async def test_memory_that_means_nothing_is_refused(tools: Caller, memory: str, says: str) -> None:
    assert says in (await tools.fail("create_sandbox", memory=memory))["error"]


async def test_volumes_are_written_as_source_and_target(tools: Caller) -> None:
    assert "source:/target" in (await tools.fail("create_sandbox", volumes=["nothing"]))["error"]


@pytest.mark.parametrize(
    ("network", "has_network"),
    [(None, False), (False, False), ([], False), pytest.param(True, True, marks=needs_tun), (["pypi.org"], True)],
    ids=str,
)
async def test_an_embedded_sandbox_has_the_network_that_was_asked_for(
    tools: Caller, network: bool | list[str] | None, has_network: bool
) -> None:
    if has_network:
        require_bubblewrap()
    given = {} if network is None else {"network": network}
    made = await tools.call("create_sandbox", **given)
    assert made["network"] is has_network


@pytest.mark.parametrize(
    ("network", "says", "code"),
    [
        (["192.168.1.1"], "192.168.1.1 is in a private network", "bad_argument"),
        (["https://pypi.org/"], "'https://pypi.org/' is no host; write a name", "bad_argument"),
        ("pypi.org", "network", "bad_argument"),
        # Only the operator can say so.
        ("host", "network", "bad_argument"),
    ],
    ids=["private", "no host", "no list", "the host's own"],
)
async def test_a_network_that_cannot_be_had_is_refused_and_nothing_is_made(
    tools: Caller, network: object, says: str, code: str
) -> None:
    problem = await tools.fail("create_sandbox", network=network)
    assert says in problem["error"]
    assert problem["code"] == code
    assert [it["name"] for it in (await tools.call("list_sandboxes"))["sandboxes"]] == ["fake"]


async def test_a_life_can_be_made_longer_paused_and_resumed(tools: Caller) -> None:
    place = await make(tools, timeout=100)
    renewed = await tools.call("renew_sandbox", sandbox_id=place, timeout=5000)
    assert "expires_at" in renewed
    assert (await tools.call("pause_sandbox", sandbox_id=place))["status"] == "paused"
    assert (await tools.call("resume_sandbox", sandbox_id=place))["status"] == "running"
    assert await tools.output("echo alive", sandbox_name=place) == "alive\n"


# Ports of the user's machine


async def test_an_agent_does_not_choose_a_port_of_the_users_machine(tools: Caller, fake: FakeSandbox) -> None:
    wanted = free_port()
    fake.ports[wanted] = silent_service
    problem = await tools.fail("forward_port", sandbox_id="fake", port=wanted, local_port=wanted)
    assert f'forward_ports = ["{wanted}"] under [server] in config.toml' in problem["error"]
    opened = await tools.call("forward_port", sandbox_id="fake", port=wanted)
    assert opened["local_port"] != wanted


async def test_a_port_that_the_operator_allows_is_used(fake: FakeSandbox) -> None:
    wanted = free_port()
    fake.ports[wanted] = silent_service
    app = App(Fleet([member(fake)]), settings=Settings(forward_ports=(f"{wanted}-{wanted}",)))
    async with connected(app) as tools:
        opened = await tools.call("forward_port", sandbox_id="fake", port=wanted, local_port=wanted)
        assert opened["local_port"] == wanted


async def silent_service(stream: Stream) -> None:
    await stream.read()
