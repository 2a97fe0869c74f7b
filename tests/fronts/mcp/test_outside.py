"""A place outside of the project: the client says what it works in, or its user is asked, or the refusal says how."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult, ListRootsResult, Root

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.allowances import allowances
from remote_sandbox_mcp.fronts.mcp.clients import OneClient
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.services.session import Session
from tests.fronts.mcp.conftest import Nearby, member
from tests.support.server import AGENT, Caller

MODES = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


class Person:
    """The user of a client: what was asked, and the answer."""

    def __init__(self, agrees: bool | None) -> None:
        self.agrees = agrees
        self.asked: list[str] = []

    async def fill_in(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        if self.agrees is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=dict.fromkeys(params.requested_schema["properties"], self.agrees))


@asynccontextmanager
async def client(folder: Path, **more: Any) -> AsyncIterator[Caller]:
    """A client that was started in a folder."""
    app = App(Fleet([member(Nearby())]))
    stack = AsyncExitStack()
    connecting = Client(build(app, OneClient(Session(folder=str(folder)))), client_info=AGENT, **more)
    try:
        yield Caller(await stack.enter_async_context(connecting))
    finally:
        await stack.aclose()
        await app.close()


@pytest.fixture
def elsewhere(clean_environment: Path) -> Path:
    folder = clean_environment / "elsewhere"
    folder.mkdir()
    (folder / "x").write_text("x")
    return folder


@MODES
async def test_a_yes_holds_for_this_conversation_and_this_place(project: Path, elsewhere: Path, mode: str) -> None:
    person, beside = Person(agrees=True), elsewhere.with_name("beside")
    async with client(project, mode=mode, elicitation_callback=person.fill_in) as tools:
        for _ in range(2):
            await tools.call("sync_local_to_remote", local_path=str(elsewhere), remote_path=f"{project}/far")
        assert len(person.asked) == 1
        assert f"read {elsewhere} on this computer?" in person.asked[0]
        person.agrees = False
        # What was allowed to be read is not to be written, and another place is another question.
        await tools.fail("sync_remote_to_local", local_path=str(elsewhere), remote_path=f"{project}/far")
        await tools.fail("sync_remote_to_local", local_path=str(beside), remote_path=f"{project}/far")
        assert ["write" in question for question in person.asked] == [False, True, True]
    assert [(it.path, it.writing, it.by) for it in allowances()] == [(str(elsewhere), False, "form")]
    async with client(project) as tools:
        problem = await tools.fail("sync_local_to_remote", local_path=str(elsewhere), remote_path=f"{project}/far")
    assert problem["error"].endswith(f"remote-sandbox-mcp allow '{elsewhere}' --read")


@MODES
@pytest.mark.parametrize("agrees", [False, None], ids=["no", "declined"])
async def test_without_a_yes_nothing_is_done(project: Path, elsewhere: Path, mode: str, agrees: bool | None) -> None:
    person = Person(agrees)
    async with client(project, mode=mode, elicitation_callback=person.fill_in) as tools:
        for tool, given in (
            ("sync_local_to_remote", {"local_path": str(elsewhere), "remote_path": f"{project}/far"}),
            ("upload_files", {"sandbox_id": "fake", "files": [{"path": "~/x", "local_path": str(elsewhere / "x")}]}),
            ("download_files", {"sandbox_id": "fake", "paths": [str(project)], "local_dir": str(elsewhere)}),
            ("link_workspace", {"remote_path": "fake:p", "local_path": str(elsewhere)}),
        ):
            problem = await tools.fail(tool, **given)
            assert "remote-sandbox-mcp allow" in problem["error"], tool
    assert not allowances()
    assert not (project / "far").exists()
    assert [path.name for path in elsewhere.iterdir()] == ["x"]


@MODES
async def test_no_question_opens_what_is_closed(project: Path, clean_environment: Path, mode: str) -> None:
    (clean_environment / ".ssh").mkdir()
    person = Person(agrees=True)
    async with client(project, mode=mode, elicitation_callback=person.fill_in) as tools:
        given = {"local_path": str(clean_environment / ".ssh"), "remote_path": f"{project}/far"}
        assert "allow_hidden" in (await tools.fail("sync_local_to_remote", **given))["error"]
    assert person.asked == []


async def test_the_folders_that_a_client_works_in_are_its_projects(project: Path, elsewhere: Path) -> None:
    async def roots(context: Any) -> ListRootsResult:
        uris = (elsewhere.as_uri(), "file://other.example.org/x")
        return ListRootsResult(roots=[Root(uri=uri) for uri in uris])

    async with client(Path("/"), mode="legacy", list_roots_callback=roots) as tools:
        given = {"local_path": str(elsewhere), "remote_path": f"{project}/far"}
        assert (await tools.call("sync_local_to_remote", **given))["uploaded_files"] == 1
        assert (await tools.call("sync_remote_to_local", **given))["skipped_files"] == 1
        outside = await tools.fail("sync_local_to_remote", local_path=str(project), remote_path=f"{project}/far")
    assert "remote-sandbox-mcp allow" in outside["error"]


async def test_a_client_that_names_the_home_folder_as_its_own_opens_no_home(project: Path, elsewhere: Path) -> None:
    async def roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=uri) for uri in ("file:///", elsewhere.parent.as_uri())])

    async with client(Path("/"), mode="legacy", list_roots_callback=roots) as tools:
        problem = await tools.fail("sync_local_to_remote", local_path=str(elsewhere), remote_path=f"{project}/far")
    assert "remote-sandbox-mcp allow" in problem["error"]
