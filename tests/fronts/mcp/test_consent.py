"""What an agent may not decide by itself: its user is asked, and a no stays a no."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult, ElicitResult

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.services.session import MOST_REFUSALS
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.means import require_bubblewrap
from tests.support.server import Caller, serve

ATTACKER = "attacker.example:443"
ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


class User:
    """Who sits before the client; gives the same answer to every question until told another one."""

    def __init__(self, answer: str = "no") -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        if self.answer in ("decline", "cancel"):
            return ElicitResult(action=self.answer)  # type: ignore[arg-type]
        given = {} if self.answer == "nothing" else dict.fromkeys(params.requested_schema["properties"])
        return ElicitResult(action="accept", content={name: self.answer == "yes" for name in given})


@asynccontextmanager
async def served(
    fake: FakeSandbox, user: User | None = None, mode: str = "auto", **rules: Any
) -> AsyncIterator[Caller]:
    app = App(Fleet([member(fake)]), settings=Settings(rules=DisposableRules(**rules)))
    async with connected(app, mode, user) as caller:
        yield caller


async def sandboxes(tools: Caller) -> list[str]:
    return [it["name"] for it in (await tools.call("list_sandboxes"))["sandboxes"]]


# The network of a sandbox


@pytest.mark.parametrize(
    ("network", "allow"),
    [
        pytest.param([ATTACKER], f'["{ATTACKER}"]', id="a host"),
        pytest.param(["pypi.org", "attacker.example"], '["attacker.example"]', id="beside a listed one"),
        pytest.param(["pypi.org:22"], '["pypi.org:22"]', id="another port of a listed one"),
        pytest.param(["pypi.org.attacker.example"], '["pypi.org.attacker.example"]', id="a name like a listed one"),
        pytest.param(["*.org"], '["*.org"]', id="more than a listed one"),
        pytest.param(["203.0.113.7"], '["203.0.113.7"]', id="an address"),
        pytest.param(True, '["*"]', id="every host"),
    ],
)
async def test_an_agent_does_not_choose_its_own_way_out(fake: FakeSandbox, network: object, allow: str) -> None:
    async with served(fake) as tools:
        problem = await tools.fail("create_sandbox", network=network)
        assert problem["code"] == "bad_argument"
        assert allow in problem["error"]
        assert "network_hosts" in problem["error"]
        assert "[disposable] in config.toml" in problem["error"]
        assert await sandboxes(tools) == ["fake"]


async def test_packages_are_installed_without_a_question(fake: FakeSandbox) -> None:
    require_bubblewrap()
    user = User()
    async with served(fake, user) as tools:
        made = await tools.call("create_sandbox", network=["pypi.org", "files.pythonhosted.org:443"])
        assert (made["network"], user.asked) == (True, [])


async def test_the_operators_list_takes_the_place_of_the_usual_one(fake: FakeSandbox) -> None:
    require_bubblewrap()
    async with served(fake, network_hosts=("*.example.org", "data.example.net:8443")) as tools:
        made = await tools.call("create_sandbox", network=["a.b.example.org", "DATA.example.net:8443"])
        assert made["network"] is True
        for network in (["pypi.org"], ["example.org"], ["data.example.net"]):
            assert "network_hosts" in (await tools.fail("create_sandbox", network=network))["error"]


@ERAS
async def test_another_host_is_reached_after_a_yes(fake: FakeSandbox, mode: str) -> None:
    require_bubblewrap()
    user = User("yes")
    async with served(fake, user, mode) as tools:
        made = await tools.call("create_sandbox", network=["pypi.org", ATTACKER])
        assert made["network"] is True
        (asked,) = user.asked
        assert ATTACKER in asked
        assert "pypi.org" not in asked


@ERAS
@pytest.mark.parametrize("answer", ["no", "decline"])
async def test_a_no_is_remembered_for_the_session(fake: FakeSandbox, mode: str, answer: str) -> None:
    require_bubblewrap()
    user = User(answer)
    async with served(fake, user, mode) as tools:
        first = await tools.fail("create_sandbox", network=[ATTACKER])
        user.answer = "yes"
        second = await tools.fail("create_sandbox", network=[ATTACKER.upper()])
        for problem in (first, second):
            assert "declined" in problem["error"]
            assert "remote-sandbox-mcp create --host=" in problem["error"]
        assert len(user.asked) == 1
        assert await sandboxes(tools) == ["fake"]
        # Another question is asked.
        await tools.call("create_sandbox", network=["other.example"])
        assert len(user.asked) == 2


@ERAS
@pytest.mark.parametrize("answer", ["cancel", "nothing"])
async def test_a_form_that_is_closed_is_no_yes_and_may_be_shown_again(
    fake: FakeSandbox, mode: str, answer: str
) -> None:
    require_bubblewrap()
    user = User(answer)
    async with served(fake, user, mode) as tools:
        await tools.fail("create_sandbox", network=[ATTACKER])
        assert await sandboxes(tools) == ["fake"]
        user.answer = "yes"
        await tools.call("create_sandbox", network=[ATTACKER])
        assert len(user.asked) == 2


@ERAS
async def test_a_user_who_keeps_saying_no_is_left_alone(fake: FakeSandbox, mode: str) -> None:
    user = User("decline")
    async with served(fake, user, mode) as tools:
        for number in range(MOST_REFUSALS + 3):
            await tools.fail("create_sandbox", network=[f"attacker-{number}.example"])
    assert len(user.asked) == MOST_REFUSALS


async def test_many_calls_at_once_ask_once(fake: FakeSandbox) -> None:
    user = User("decline")
    async with served(fake, user, "legacy") as tools:
        await asyncio.gather(*(tools.fail("create_sandbox", network=[ATTACKER]) for _ in range(8)))
    assert len(user.asked) == 1


async def test_what_does_not_fit_a_form_is_not_asked(fake: FakeSandbox) -> None:
    user, label = User("yes"), "x" * 60
    async with served(fake, user) as tools:
        hosts = [f"{number}.{label}.example" for number in range(99)]
        problem = await tools.fail("create_sandbox", network=[*hosts, ATTACKER])
        assert "too long to be shown" in problem["error"]
        assert (user.asked, await sandboxes(tools)) == ([], ["fake"])


async def test_a_person_at_the_page_chooses_any_host(fake: FakeSandbox) -> None:
    require_bubblewrap()
    app = App(Fleet([member(fake)]))
    server = build(app)
    try:
        made = await server.call_as("page", "create_sandbox", {"network": ["other.example"]})
        assert isinstance(made, CallToolResult)
        assert made.structured_content
        assert made.structured_content["network"] is True
    finally:
        await app.close()


@ERAS
async def test_a_hub_asks_and_remembers(tmp_path: Path, mode: str) -> None:
    require_bubblewrap()
    user = User("yes")
    async with serve(tmp_path, local=True, mode=mode, elicitation=user) as server:
        assert (await server.call("create_sandbox", network=["other.example"]))["network"] is True
        user.answer = "decline"
        for _ in range(2):
            assert "declined" in (await server.fail("create_sandbox", network=[ATTACKER]))["error"]
    assert len(user.asked) == 2


# Deletions


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Any]:
    """The arguments of a sync that would empty a folder."""
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    (full / "thesis.tex").write_text("kept")
    return {"local_path": str(empty), "remote_path": str(full), "delete_extras": True, "sandbox_name": "fake"}


@ERAS
async def test_a_deletion_that_an_agent_confirms_is_asked_of_its_user(
    fake: FakeSandbox, folders: dict[str, Any], mode: str
) -> None:
    user, kept = User("decline"), Path(folders["remote_path"], "thesis.tex")
    async with served(fake, user, mode) as tools:
        for _ in range(2):
            problem = await tools.fail("sync_local_to_remote", **folders, confirm_delete=True)
            assert "remote-sandbox-mcp push" in problem["error"]
            assert "--delete" in problem["error"]
        assert (kept.read_text(), len(user.asked)) == ("kept", 1)
        assert folders["remote_path"] in user.asked[0]


@ERAS
async def test_a_deletion_is_done_after_a_yes(fake: FakeSandbox, folders: dict[str, Any], mode: str) -> None:
    user = User("yes")
    async with served(fake, user, mode) as tools:
        done = await tools.call("sync_local_to_remote", **folders)
        assert (done["deleted_files"], len(user.asked)) == (1, 1)


async def test_other_syncs_ask_nothing(fake: FakeSandbox, folders: dict[str, Any]) -> None:
    user = User()
    async with served(fake, user) as tools:
        await tools.call("sync_local_to_remote", **folders | {"delete_extras": False}, confirm_delete=True)
        Path(folders["local_path"], "new.tex").write_text("new")
        done = await tools.call("sync_local_to_remote", **folders, confirm_delete=True)
        assert (done["uploaded_files"], done["deleted_files"]) == (1, 1)
    assert user.asked == []
