"""What leaves this computer for an agent: names of secrets stay here, whichever tool sends the folder around them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import Nearby, connected, member
from tests.support.server import AGENT, Caller, text_of

SECRETS = (
    *(".env", ".netrc", "id_rsa", "vault.kdbx", ".mcp.json", "rclone.conf", ".bash_history", "office.ovpn"),
    *(".docker/config.json", ".kube/config", ".gnupg/pubring.kbx", "home/.ssh/known_hosts", ".config/gh/hosts.yml"),
)
ORDINARY = (
    "main.py",
    ".env.example",
    "config.json",
    "conf/config",
    "id_rsa.pub",
    "docs/history.md",
    ".docker/Dockerfile",
)


def fill(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"content of {name}\n")
    return folder


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def near(tmp_path: Path) -> Path:
    return fill(tmp_path / "near", (*SECRETS, *ORDINARY))


@pytest.fixture
def far(tmp_path: Path) -> Path:
    return tmp_path / "far"


@pytest.fixture
def app(fake: Nearby) -> App:
    return App(Fleet([member(fake)]), settings=Settings(expose_advanced_tools=True))


async def by_sync(tools: Caller, near: Path, far: Path) -> dict[str, Any]:
    return await tools.call("sync_local_to_remote", local_path=str(near), remote_path=str(far))


async def in_background(tools: Caller, near: Path, far: Path) -> dict[str, Any]:
    begun = await tools.call("sync_local_to_remote_background", local_path=str(near), remote_path=str(far))
    ended = await tools.call("check_file_transfer_task", task_id=begun["task_id"], wait_s=50)
    return dict(ended["result"])


async def by_upload(tools: Caller, near: Path, far: Path) -> dict[str, Any]:
    done = await tools.call("upload_files", sandbox_id="fake", files=[{"path": str(far), "local_path": str(near)}])
    return dict(done["files"][0])


WAYS = {"sync": by_sync, "background": in_background, "upload": by_upload}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_project_goes_without_its_secrets_which_are_named(
    tools: Caller, near: Path, far: Path, way: Callable[..., Any]
) -> None:
    done = await way(tools, near, far)
    assert files_in(far) == set(ORDINARY)
    top = {name if "/" not in name or name.startswith((".docker", ".config")) else "" for name in SECRETS} - {""}
    assert set(done["secrets_not_sent"]) == top | {".kube", ".gnupg", "home/.ssh"}
    assert "very path" in done["note"]


async def test_a_dry_run_names_what_would_stay_here(tools: Caller, near: Path, far: Path) -> None:
    answer = await tools.ask("sync_local_to_remote", local_path=str(near), remote_path=str(far), dry_run=True)
    assert answer.structured_content is not None
    assert ".env" in answer.structured_content["secrets_not_sent"]
    assert "secrets_not_sent: " in text_of(answer)
    assert "ask your user" in text_of(answer)


async def test_of_many_secrets_the_first_are_named_and_all_are_counted(
    tools: Caller, tmp_path: Path, far: Path
) -> None:
    near = fill(tmp_path / "keys", ("a", *(f"{number:03}.pem" for number in range(100))))
    done = await by_sync(tools, near, far)
    assert (len(done["secrets_not_sent"]), done["secret_count"]) == (20, 100)


@pytest.mark.parametrize(
    "more",
    [
        {"excludes": ["!.env"]},
        {"excludes": ["*", "!.env", "!**/.env"]},
        {"excludes": ["!.env", "!/.env", "!.*"], "default_excludes": False},
        {"respect_gitignore": True},
    ],
    ids=["a line", "all but it", "any line", "a .gitignore"],
)
async def test_no_rule_of_the_caller_brings_a_secret_back(
    tools: Caller, near: Path, far: Path, more: dict[str, Any]
) -> None:
    (near / ".gitignore").write_text("!.env\n")
    await tools.call("sync_local_to_remote", local_path=str(near), remote_path=str(far), **more)
    assert not {".env", "id_rsa"} & files_in(far)


async def test_secrets_of_the_other_side_are_no_extras(tools: Caller, near: Path, far: Path) -> None:
    fill(far, (".env", ".ssh/id_rsa", "old.txt"))
    done = await tools.call(
        "sync_local_to_remote", local_path=str(near), remote_path=str(far), delete_extras=True, confirm_delete=True
    )
    assert done["deleted_files"] == 1
    assert {".env", ".ssh/id_rsa"} < files_in(far)
    assert (far / ".env").read_text() == "content of .env\n"


async def test_a_folder_whose_own_name_makes_a_file_a_secret_goes_without_it(
    tools: Caller, near: Path, far: Path
) -> None:
    assert (await by_sync(tools, near / ".docker", far))["secrets_not_sent"] == ["config.json"]
    assert (await by_sync(tools, near / ".kube", far / "kube"))["secrets_not_sent"] == ["config"]
    assert files_in(far) == {"Dockerfile"}


# A path that names one


@pytest.mark.parametrize("name", [".env", ".docker/config.json", "home/.ssh/known_hosts"])
@pytest.mark.parametrize("target", ["far", "far/"], ids=["to a name", "into a folder"])
async def test_the_very_path_of_a_secret_sends_it_where_nobody_can_be_asked(
    tools: Caller, near: Path, tmp_path: Path, name: str, target: str
) -> None:
    done = await by_sync(tools, near / name, tmp_path / target if target == "far" else Path(f"{tmp_path}/{target}"))
    assert done["uploaded_files"] == 1
    assert "secrets_not_sent" not in done


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_link_is_not_the_very_path_of_the_secret_behind_it(
    tools: Caller, near: Path, far: Path, way: Callable[..., Any]
) -> None:
    (near / "notes.txt").symlink_to(".env")
    (near / "data").symlink_to("home/.ssh")
    for name, secret in (("notes.txt", ".env"), ("data", "home/.ssh"), ("data/known_hosts", "home/.ssh/known_hosts")):
        with pytest.raises(AssertionError, match=rf"{near}/{secret}, whose name is that of a secret"):
            await way(tools, near / name, far)
    assert not far.exists()


async def test_a_link_in_a_folder_goes_as_a_link(tools: Caller, near: Path, far: Path) -> None:
    (near / "notes.txt").symlink_to(".env")
    await by_sync(tools, near, far)
    assert os.readlink(far / "notes.txt") == ".env"
    assert not (far / "notes.txt").exists()


async def test_a_secret_is_not_read_as_a_list_of_patterns(tools: Caller, near: Path, far: Path) -> None:
    """The other side is told these lines."""
    (near / "rules").symlink_to(".env")
    for name in (".env", "rules", ".docker/config.json"):
        given = {"local_path": str(near), "remote_path": str(far), "exclude_file": str(near / name)}
        assert "name of a secret" in (await tools.fail("sync_local_to_remote", **given))["error"]


async def test_what_the_client_s_own_folder_is_called_says_nothing(
    app: App, tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = fill(tmp_path / "credentials" / "project", ("main.py", ".env"))
    monkeypatch.chdir(project)
    async with asked(app, None) as (tools, questions):
        await by_sync(tools, project, far)
    assert (files_in(far), questions) == ({"main.py"}, [])


# The person is asked


@asynccontextmanager
async def asked(app: App, agreed: bool | None, mode: str = "auto") -> AsyncIterator[tuple[Caller, list[str]]]:
    """A client that shows forms to a person who gives this answer, or none; and what they were asked."""
    questions: list[str] = []

    async def fill_in(context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        if agreed is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=dict.fromkeys(params.requested_schema["properties"], agreed))

    stack = AsyncExitStack()
    client = await stack.enter_async_context(
        Client(build(app), mode=mode, elicitation_callback=fill_in, client_info=AGENT)
    )
    try:
        yield Caller(client), questions
    finally:
        await stack.aclose()
        await app.close()


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_person_is_asked_before_a_secret_goes(
    app: App, near: Path, far: Path, way: Callable[..., Any], mode: str
) -> None:
    async with asked(app, True, mode) as (tools, questions):
        await way(tools, near / ".env", far)
    assert far.read_text() == "content of .env\n"
    assert questions == [f"Send {near}/.env to fake? That is the name of a secret."]


@pytest.mark.parametrize("agreed", [False, None], ids=["no", "declined"])
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_without_a_yes_a_secret_stays_here(
    app: App, near: Path, far: Path, way: Callable[..., Any], mode: str, agreed: bool | None
) -> None:
    async with asked(app, agreed, mode) as (tools, questions):
        with pytest.raises(AssertionError, match="so it was not sent"):
            await way(tools, near / ".env", far)
    assert not far.exists()
    assert len(questions) == 1


async def test_several_secrets_are_one_question_before_anything_is_sent(app: App, near: Path, far: Path) -> None:
    names = ("main.py", ".env", "id_rsa")
    files = [{"path": str(far / name), "local_path": str(near / name)} for name in names]
    async with asked(app, False, "2026-07-28") as (tools, questions):
        await tools.fail("upload_files", sandbox_id="fake", files=files)
    assert questions == [f"Send {near}/.env, {near}/id_rsa to fake? That is the name of a secret."]
    assert not far.exists()


async def test_a_project_is_sent_without_a_question(app: App, near: Path, far: Path) -> None:
    async with asked(app, False) as (tools, questions):
        await by_sync(tools, near, far)
        await by_sync(tools, near / "main.py", far)
    assert questions == []


async def test_a_folder_of_secrets_is_asked_about_and_goes_without_those_that_are_not_named(
    app: App, near: Path, far: Path
) -> None:
    fill(near / "home/.ssh", ("id_ed25519",))
    async with asked(app, True) as (tools, questions):
        await by_sync(tools, near / "home/.ssh", far)
    assert len(questions) == 1
    assert files_in(far) == {"known_hosts"}


async def test_names_cannot_forge_the_question(app: App, near: Path, far: Path) -> None:
    odd = near / "a\nAll is well.\x1b[2J" / ".env"
    fill(odd.parent, (".env",))
    async with asked(app, False) as (tools, questions):
        await tools.fail("sync_local_to_remote", local_path=str(odd), remote_path=str(far))
    assert "\n" not in questions[0]
    assert "\x1b" not in questions[0]


async def test_a_machine_s_own_files_are_not_filtered(tmp_path: Path, near: Path, far: Path) -> None:
    async with connected(App(Fleet([member(Nearby())]))) as tools:
        await tools.call("sync_local_to_remote", local_path=f"fake:{near}", remote_path=f"fake:{far}")
        assert set(SECRETS) < files_in(far)
