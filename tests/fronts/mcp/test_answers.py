"""What reaches a model, whichever part of a result its client shows, and however little of it the client takes."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import jsonschema
import pytest
from mcp import Client
from mcp.types import CallToolResult, Implementation

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.client import CLIENTS
from remote_sandbox_mcp.core.commands.command import Command, Completed, Excerpt
from remote_sandbox_mcp.core.errors import FileProblem, SandboxError, Unreachable
from remote_sandbox_mcp.core.progress import Progress, silent
from remote_sandbox_mcp.core.resources.usage import Cpu, Disk, Gpu, GpuProcess, Memory, Usage, as_resources
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.views.texts import sandboxes_text
from tests.fronts.mcp.conftest import connected, member
from tests.fronts.mcp.test_tool_list import GOOD
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller, error_of, text_of

LONG = "".join(f'{number}: a "line" of text äöü\n' for number in range(20_000)).encode()
MEASURED = [client for client in CLIENTS if client.drops_text]
NAMES = [client.name for client in MEASURED]
ERAS = ("legacy", "auto")


@asynccontextmanager
async def called_by(name: str, app: App, mode: str = "auto") -> AsyncIterator[Caller]:
    """A client that gives itself a name."""
    stack = AsyncExitStack()
    who = Implementation(name=name, version="1")
    client = await stack.enter_async_context(Client(build(app), mode=mode, client_info=who))
    try:
        yield Caller(client)
    finally:
        await stack.aclose()
        await app.close()


def shown(answer: CallToolResult) -> str:
    """What a client shows its model that prefers the structured part."""
    if answer.structured_content is None:
        return text_of(answer)
    return json.dumps(answer.structured_content, ensure_ascii=False, separators=(",", ":"))


async def raw(tools: Caller, tool: str, **given: Any) -> CallToolResult:
    """Without the checks of Caller, for answers whose text is cut on purpose."""
    return await tools.client.call_tool(tool, given)


# Errors


@pytest.mark.parametrize("problem", [Unreachable("no route"), FileProblem("no disk"), SandboxError("no")], ids=str)
@pytest.mark.parametrize("tool", GOOD)
async def test_no_error_breaks_the_output_schema_of_its_tool(
    tools: Caller, fake: FakeSandbox, tool: str, problem: SandboxError
) -> None:
    """The TypeScript SDK throws such an answer away, with the sentence in it."""
    schemas = {it.name: it.output_schema for it in (await tools.client.list_tools()).tools}
    fake.fail(problem)
    for given in (GOOD[tool], {"nonsense": 1}):
        answer = await tools.client.call_tool(tool, given)
        if answer.structured_content is not None:
            jsonschema.validate(answer.structured_content, schemas[tool] or False)
        if answer.is_error:
            assert answer.structured_content is None
            assert error_of(answer)["code"]
            assert len(text_of(answer)) > 1


async def test_files_that_were_put_in_place_before_a_failure_are_told(tools: Caller) -> None:
    files = [{"path": "~/one", "text": "1"}, {"path": "~/src", "text": "a folder is there"}]
    problem = await tools.fail("upload_files", sandbox_id="fake", files=files)
    assert problem["error"].endswith("of 2, these were put in place before it: ~/one")


# Texts


async def test_the_text_of_a_list_has_every_sandbox_and_every_problem(fake: FakeSandbox, other: FakeSandbox) -> None:
    other.fail(Unreachable("no route to other"))
    app = App(Fleet([member(fake), member(other)]), problems=("entry 2 is left out: host is missing.",))
    async with connected(app) as tools:
        assert text_of(await tools.ask("list_sandboxes")).split("\n") == [
            "2 sandboxes, 1 of them answers; active: fake",
            "* fake (fake) answers",
            "- other (fake) does not answer: no route to other",
            "problem: entry 2 is left out: host is missing.",
        ]


@pytest.mark.parametrize(
    ("alive", "said"),
    [
        pytest.param([], "no sandboxes", id="none"),
        pytest.param([True], "1 sandbox, which answers", id="one that answers"),
        pytest.param([False], "1 sandbox, which does not answer", id="one that is silent"),
        pytest.param([True, False], "2 sandboxes, 1 of them answers", id="one of two"),
        pytest.param([True, True], "2 sandboxes, 2 of them answer", id="two"),
    ],
)
def test_the_number_of_sandboxes_is_told_in_good_grammar(alive: list[bool], said: str) -> None:
    rows = [{"name": "gpu1", "kind": "ssh", "connection_alive": one} for one in alive]
    assert sandboxes_text({"active_sandbox": "", "sandboxes": rows}).split("\n")[0] == f"{said}; active: none"


def test_a_machine_with_gpus_is_one_line() -> None:
    mine = GpuProcess(7, "alice", "python", 40_960, 3600)
    gpus = (Gpu(0, "A100", util_pct=97, mem_used_mb=40_960, mem_total_mb=81_920, processes=(mine,)),)
    usage = Usage(
        cpu=Cpu(3.5, 2, 1, 64, 64), memory=Memory(524_288, 131_072), gpus=gpus, disks=(Disk("/home", 1000, 750, 250),)
    )
    row = {"name": "gpu1", "kind": "ssh", "host": "gpu1.example.org", "port": 22, "user": "me", "is_active": False}
    row |= {"connection_alive": True, "resources": as_resources(usage, 0.25)}
    (_, line) = sandboxes_text({"active_sandbox": "", "sandboxes": [row]}).split("\n")
    assert line.startswith("- gpu1 (ssh, me@gpu1.example.org:22) answers; idle_score 0.25; load 3.5/2/1 on 64 CPUs; ")
    assert "GPU 0 A100: busy, 97 %, 40.0 of 80.0 GB used, alice python (pid 7) 40.0 GB" in line


async def test_the_text_of_a_listing_is_a_table(tools: Caller) -> None:
    assert text_of(await tools.ask("list_remote_files", sandbox_name="fake")).split("\n") == [
        "2 entries in /home/fake",
        "1970-01-01T00:00:00Z 14 /home/fake/notes.txt",
        "1970-01-01T00:00:00Z  0 /home/fake/src/",
    ]


async def test_a_name_cannot_look_like_another_row(tools: Caller, fake: FakeSandbox) -> None:
    fake.files = {"/home/fake/a\n1970-01-01T00:00:00Z 5 forged": b"two"}
    listed = text_of(await tools.ask("list_remote_files", sandbox_name="fake")).split("\n")
    assert listed[1:] == ["1970-01-01T00:00:00Z 3 /home/fake/a\\n1970-01-01T00:00:00Z 5 forged"]
    found = text_of(await tools.ask("search_remote_files", pattern="two", sandbox_name="fake")).split("\n")
    assert len(found) == 2


async def test_the_text_of_a_search_has_the_lines(tools: Caller) -> None:
    answer = await tools.ask("search_remote_files", pattern="two", sandbox_name="fake")
    assert text_of(answer) == "1 found\n/home/fake/notes.txt:2:two"


async def test_the_text_of_a_failed_app_says_why(tools: Caller, fake: FakeSandbox) -> None:
    answer = await tools.ask("deploy_app", sandbox_id="fake", command="serve", port=8000, timeout=1)
    assert "nothing accepts connections at port 8000" in text_of(answer)


# Sizes


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("name", [*NAMES, "cursor"])
async def test_a_large_file_comes_in_parts_that_the_client_takes_whole(
    app: App, fake: FakeSandbox, name: str, mode: str
) -> None:
    fake.files["/home/fake/large"] = LONG
    most = next((client.result_chars for client in CLIENTS if client.name == name), 100_000)
    whole, offset = b"", 0
    async with called_by(name, app, mode) as tools:
        while True:
            answer = await raw(tools, "read_remote_file", remote_path="large", offset=offset, sandbox_name="fake")
            part = answer.structured_content or {}
            assert len(shown(answer)) <= most
            assert "encoding" not in part
            whole += part["content"].encode()
            if not part["truncated"]:
                break
            assert len(shown(answer)) > most // 2
            offset = part["next_offset"]
            assert f"offset={offset} goes on" in text_of(answer)
    assert whole == LONG


@pytest.mark.parametrize("name", NAMES)
async def test_nothing_large_is_sent_twice_to_a_client_that_drops_the_text(
    app: App, fake: FakeSandbox, name: str
) -> None:
    fake.files["/home/fake/large"] = LONG
    async with called_by(name, app) as tools:
        answer = await raw(tools, "read_remote_file", remote_path="large", sandbox_name="fake")
        assert len(text_of(answer)) <= 2000
    async with called_by("cursor", app) as tools:
        answer = await raw(tools, "read_remote_file", remote_path="large", sandbox_name="fake")
        assert (answer.structured_content or {})["content"] in text_of(answer)


class Chatty(FakeSandbox):
    """Prints a lot on both streams, and keeps it in files as machines do."""

    async def run(self, command: Command, *, patience_s: float | None = None, progress: Progress = silent) -> Completed:
        streams = (Excerpt(LONG[: command.keep], LONG[-command.keep :], len(LONG), f"/runs/{n}") for n in (1, 2))
        return Completed(command.run_id, 0, stdout=next(streams), stderr=next(streams))


@pytest.mark.parametrize("tool", ["exec_bash", "run_command"])
@pytest.mark.parametrize("client", MEASURED, ids=NAMES)
async def test_output_of_a_command_is_cut_by_us_with_the_place_to_read_on(client: Any, tool: str) -> None:
    place = "sandbox_name" if tool == "exec_bash" else "sandbox_id"
    async with called_by(client.name, App(Fleet([member(Chatty())]))) as tools:
        answer = await raw(tools, tool, command="x", **{place: "fake"})
    said = answer.structured_content or {}
    assert len(shown(answer)) <= client.result_chars
    assert said["truncated"] is True
    assert "cut" not in said
    for stream, file in (("stdout", "/runs/1"), ("stderr", "/runs/2")):
        assert said[f"{stream}_file"] == file
        assert f"read_remote_file {file} from offset" in said[stream]


@pytest.mark.parametrize("name", [*NAMES, "cursor"])
async def test_the_pages_of_a_listing_make_up_the_whole(fake: FakeSandbox, name: str) -> None:
    wanted = [f"/home/fake/data/{number:05}-{'x' * 60}" for number in range(1200)]
    fake.files |= dict.fromkeys(wanted, b"")
    most = next((client.result_chars for client in CLIENTS if client.name == name), 100_000)
    found: list[str] = []
    cursor = ""
    async with called_by(name, App(Fleet([member(fake)]))) as tools:
        while True:
            given = {"remote_path": "data", "max_entries": 700, "cursor": cursor, "sandbox_name": "fake"}
            answer = await raw(tools, "list_remote_files", **given)
            page = answer.structured_content or {}
            assert len(shown(answer)) <= most
            found += [entry["path"] for entry in page["entries"]]
            if not page["truncated"]:
                break
            cursor = page["next_cursor"]
            assert repr(cursor) in text_of(answer)
    assert found == wanted


async def test_the_pages_of_a_search_make_up_the_whole(tools: Caller, fake: FakeSandbox) -> None:
    fake.files["/home/fake/large"] = LONG
    found: list[int] = []
    cursor = ""
    while not found or cursor:
        page = await tools.call("search_remote_files", pattern="[05]: a", max_results=1500, cursor=cursor)
        found += [match["line"] for match in page["matches"]]
        cursor = page.get("next_cursor", "")
    assert found == [number + 1 for number in range(20_000) if number % 5 == 0]


async def test_a_page_goes_on_where_the_last_one_ended_though_files_came_and_went(
    tools: Caller, fake: FakeSandbox
) -> None:
    fake.files |= {f"/home/fake/d/{name}": b"" for name in "bdfh"}
    first = await tools.call("list_remote_files", remote_path="d", max_entries=2)
    fake.files["/home/fake/d/a"] = b""
    del fake.files["/home/fake/d/b"]
    fake.files["/home/fake/d/c"] = b""
    second = await tools.call("list_remote_files", remote_path="d", max_entries=2, cursor=first["next_cursor"])
    assert [entry["path"] for entry in second["entries"]] == ["/home/fake/d/f"]
    del fake.files["/home/fake/d/d"]
    gone = await tools.fail("list_remote_files", remote_path="d", cursor=first["next_cursor"])
    assert "leave it out to begin anew" in gone["error"]


@pytest.mark.parametrize(
    "cursor", ["x", "0-000000000000", "3", "-1-000000000000", "999999-000000000000", "1-00000000000"]
)
async def test_a_cursor_that_is_not_ours_is_refused(tools: Caller, cursor: str) -> None:
    for tool, given in (("list_remote_files", {}), ("search_remote_files", {"glob": "*"})):
        assert (await tools.fail(tool, **given, cursor=cursor))["code"] == "bad_argument"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("from_cursor", [False, True], ids=["the end", "from a cursor"])
async def test_a_long_log_is_cut_with_the_way_to_the_rest(fake: FakeSandbox, name: str, from_cursor: bool) -> None:
    most = next(client.result_chars for client in CLIENTS if client.name == name)
    async with called_by(name, App(Fleet([member(fake)]))) as tools:
        await raw(tools, "exec_bash_background", command="x", session_name="job", watch=False, sandbox_name="fake")
        fake.jobs.print(fake.jobs.started[-1].job_id, LONG[:60_000])
        given: dict[str, Any] = {"tmux_session": "job", "last_n_lines": 5000, "sandbox_name": "fake"}
        if not from_cursor:
            answer = await raw(tools, "check_background_task", **given)
            seen = answer.structured_content or {}
            assert len(shown(answer)) <= most
            assert seen["truncated"] is True
            assert LONG[seen["log_offset"] : 60_000].decode("utf-8", "replace").rstrip("\n") == seen["log_tail"]
            return
        whole, cursor = "", 0
        while cursor < 60_000:
            answer = await raw(tools, "check_background_task", **given, log_cursor=cursor)
            seen = answer.structured_content or {}
            assert len(shown(answer)) <= most
            assert seen["log_cursor"] > cursor
            cursor = seen["log_cursor"]
            whole += seen["log_tail"]
        assert whole.replace("\n", "") == LONG[:60_000].decode("utf-8", "replace").replace("\n", "")


async def test_a_list_that_is_too_long_for_its_client_says_that_it_was_cut(fake: FakeSandbox) -> None:
    async with called_by("codex", App(Fleet([member(fake)]))) as tools:
        for number in range(60):
            session = f"job-{number:03}"
            await raw(tools, "exec_bash_background", command="x" * 250, session_name=session, watch=False)
        answer = await raw(tools, "list_background_tasks", limit=100)
    assert len(shown(answer)) <= 10_000
    assert (answer.structured_content or {})["truncated"] is True
    assert "cut" in text_of(answer)


async def test_the_operator_may_set_how_long_results_are(fake: FakeSandbox) -> None:
    fake.files["/home/fake/large"] = LONG
    app = App(Fleet([member(fake)]), settings=Settings(result_chars=5000))
    async with called_by("claude-code", app) as tools:
        answer = await raw(tools, "read_remote_file", remote_path="large")
    assert 3000 < len(shown(answer)) <= 5000


async def test_downloads_are_whole_for_a_program_and_cut_for_a_model(fake: FakeSandbox) -> None:
    fake.files["/home/fake/large"] = LONG
    for name, size in (("a-program", len(LONG)), ("codex", None)):
        async with called_by(name, App(Fleet([member(fake)]))) as tools:
            answer = await raw(tools, "download_files", sandbox_id="fake", paths=["large"])
            (file,) = (answer.structured_content or {})["files"]
            assert LONG.startswith(base64.b64decode(file["content"], validate=True))
            if size:
                assert len(base64.b64decode(file["content"])) == size
            else:
                assert len(shown(answer)) <= 10_000
                assert file["truncated"] is True
                assert "local_dir" in text_of(answer)
