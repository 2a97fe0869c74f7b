"""The tools that move files, over lanes whose far end is this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.sync.transfer import Listener, Order, Outcome, Place
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.services.transfers.records import TransferRecords
from tests.fronts.mcp.conftest import Nearby, connected, member
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller


@pytest.fixture
def near(tmp_path: Path) -> Path:
    folder = tmp_path / "near"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print(1)\n")
    (folder / "src" / "run.sh").write_text("true\n")
    (folder / "src" / "run.sh").chmod(0o755)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x")
    return folder


@pytest.fixture
def far(tmp_path: Path) -> Path:
    return tmp_path / "far"


async def push(tools: Caller, near: Path, far: Path, **more: Any) -> dict[str, Any]:
    return await tools.call("sync_local_to_remote", local_path=str(near), remote_path=str(far), **more)


async def test_a_push_makes_the_far_folder_like_the_near_one(tools: Caller, near: Path, far: Path) -> None:
    done = await push(tools, near, far)
    assert (far / "src" / "main.py").read_text() == "print(1)\n"
    assert (far / "src" / "run.sh").stat().st_mode & 0o777 == 0o755
    told = {key: done[key] for key in done if key not in ("duration_s", "wire_bytes")}
    assert told == {
        "mode": "inline",
        "synced_type": "directory",
        "uploaded_dirs": 1,
        "uploaded_files": 2,
        "skipped_files": 0,
        "deleted_files": 0,
        "deleted_dirs": 0,
        "bytes": 14,
        "excluded_by_default": [".git"],
    }


async def test_a_second_push_sends_nothing(tools: Caller, near: Path, far: Path) -> None:
    await push(tools, near, far)
    again = await push(tools, near, far)
    assert (again["uploaded_files"], again["uploaded_dirs"], again["skipped_files"]) == (0, 0, 2)


async def test_a_pull_has_words_of_its_own(tools: Caller, near: Path, far: Path) -> None:
    done = await tools.call("sync_remote_to_local", remote_path=str(near), local_path=str(far))
    assert (done["created_dirs"], done["downloaded_files"], done["skipped_files"]) == (1, 2, 0)
    assert "uploaded_files" not in done
    assert "deleted_files" not in done
    assert (far / "src" / "main.py").exists()


async def test_a_single_file_goes_into_a_folder_or_to_a_name(tools: Caller, near: Path, far: Path) -> None:
    far.mkdir()
    into = await push(tools, near / "src" / "main.py", far)
    named = await push(tools, near / "src" / "main.py", far / "other.py")
    assert into["synced_type"] == named["synced_type"] == "file"
    assert sorted(path.name for path in far.iterdir()) == ["main.py", "other.py"]


async def test_a_path_may_name_its_sandbox(tools: Caller, near: Path, far: Path) -> None:
    await tools.call("sync_local_to_remote", local_path=f"fake:{near}", remote_path=f"fake:{far}")
    assert (far / "src" / "main.py").exists()


async def test_a_dry_run_shows_what_and_why_and_does_nothing(tools: Caller, near: Path, far: Path) -> None:
    await push(tools, near, far)
    (near / "src" / "main.py").write_text("print(2, 3)\n")
    (far / "extra").write_text("x")
    shown = await push(tools, near, far, dry_run=True, delete_extras=True)
    assert shown["send"] == [{"path": "src/main.py", "bytes": 12, "why": "size"}]
    assert shown["delete"] == ["extra"]
    assert (shown["mode"], shown["would_send_files"], shown["would_send_bytes"], shown["would_delete"]) == (
        ("dry_run", 1, 12, 1)
    )
    assert (far / "extra").exists()
    assert (far / "src" / "main.py").read_text() == "print(1)\n"


async def test_excludes_come_from_the_call_and_from_a_file(tools: Caller, near: Path, far: Path) -> None:
    rules = near.parent / "rules"
    rules.write_text("# all scripts\n*.sh\r\n*.py\n")
    done = await push(tools, near, far, exclude_file=str(rules), excludes=["!main.py"], default_excludes=False)
    assert {path.name for path in far.rglob("*") if path.is_file()} == {"main.py", "HEAD"}
    assert "excluded_by_default" not in done


async def test_what_is_excluded_is_not_deleted_either(tools: Caller, near: Path, far: Path) -> None:
    await push(tools, near, far)
    for name in ("weights.pt", "old.txt"):
        (far / name).write_text("x")
    done = await push(tools, near, far, delete_extras=True, excludes=["*.pt"])
    assert done["deleted_files"] == 1
    assert (far / "weights.pt").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({"local_path": "missing"}, "does not exist", id="no source"),
        pytest.param({"exclude_file": "missing"}, "cannot be read", id="no exclude file"),
        pytest.param({"excludes": ["a\nb"]}, "line break", id="two lines in one"),
        pytest.param({"remote_path": ""}, "empty", id="empty path"),
    ],
)
async def test_a_mistake_is_one_sentence(
    tools: Caller, near: Path, far: Path, arguments: dict[str, Any], words: str
) -> None:
    given = {"local_path": str(near), "remote_path": str(far)} | arguments
    problem = await tools.fail("sync_local_to_remote", **given)
    assert words in problem["error"]
    assert not far.exists()


async def test_an_empty_source_deletes_nothing_without_a_word(tools: Caller, near: Path, far: Path) -> None:
    await push(tools, near, far)
    empty = near.parent / "empty"
    empty.mkdir()
    given = {"local_path": str(empty), "remote_path": str(far), "delete_extras": True}
    problem = await tools.fail("sync_local_to_remote", **given)
    assert "confirm_delete=true" in problem["error"]
    assert (far / "src" / "main.py").exists()
    done = await tools.call("sync_local_to_remote", **given, confirm_delete=True)
    assert (done["deleted_files"], done["deleted_dirs"]) == (2, 1)


@pytest.mark.parametrize("hidden", [".ssh/authorized_keys", ".bashrc", ".config/autostart"])
async def test_hidden_parts_of_the_home_folder_are_neither_written_nor_read(
    tools: Caller, near: Path, far: Path, clean_environment: Path, hidden: str
) -> None:
    door = clean_environment / hidden
    pulled = await tools.fail("sync_remote_to_local", remote_path=str(near), local_path=str(door))
    door.mkdir(parents=True)
    pushed = await tools.fail("sync_local_to_remote", local_path=str(door), remote_path=str(far))
    for problem in (pulled, pushed):
        assert "allow_hidden" in problem["error"]
    assert not list(door.iterdir())


async def test_a_link_is_no_way_around_that(tools: Caller, near: Path, clean_environment: Path) -> None:
    (clean_environment / ".ssh").mkdir()
    (near.parent / "way").symlink_to(clean_environment / ".ssh")
    problem = await tools.fail("sync_remote_to_local", remote_path=str(near), local_path=str(near.parent / "way/in"))
    assert "allow_hidden" in problem["error"]


async def test_a_pull_into_the_home_folder_leaves_its_hidden_parts_alone(
    app: App, tools: Caller, near: Path, clean_environment: Path
) -> None:
    (near / ".bashrc").write_text("evil")
    given = {"remote_path": str(near), "local_path": str(clean_environment)}
    assert "remote-sandbox-mcp allow" in (await tools.fail("sync_remote_to_local", **given))["error"]
    app.transfers.gate.reconfigure(Settings(allowed_roots=(str(clean_environment),)), ())
    await tools.call("sync_remote_to_local", **given)
    assert (clean_environment / "src" / "main.py").exists()
    assert not (clean_environment / ".bashrc").exists()


async def test_what_the_operator_allows_is_synced(near: Path, clean_environment: Path) -> None:
    app = App(Fleet([member(Nearby())]), settings=Settings(allow_hidden=("~/.vim",)))
    async with connected(app) as tools:
        given = {"remote_path": str(near), "local_path": str(clean_environment / ".vim")}
        assert (await tools.call("sync_remote_to_local", **given))["downloaded_files"] == 2
        given["local_path"] = str(clean_environment / ".vimrc")
        assert "allow_hidden" in (await tools.fail("sync_remote_to_local", **given))["error"]


async def test_beyond_the_limits_it_is_a_transfer_that_can_be_asked_after(near: Path, far: Path) -> None:
    app = App(Fleet([member(Nearby())]), settings=Settings(inline_sync_max_files=1))
    async with connected(app) as tools:
        begun = await push(tools, near, far)
        assert (begun["mode"], begun["auto_switched"], "pid" in begun) == ("background", True, False)
        seen = await tools.call("check_file_transfer_task", task_id=begun["task_id"], wait_s=10)
        assert seen["status"] == "completed"
        assert seen["result"]["uploaded_files"] == 2
        assert Path(begun["log_file"]).stat().st_mode & 0o777 == 0o600
        late = await tools.call("cancel_file_transfer_task", task_id=begun["task_id"])
        assert late == {"task_id": begun["task_id"], "status": "completed", "already_finished": True}
    assert (far / "src" / "main.py").exists()


async def test_an_unknown_transfer_is_told(tools: Caller) -> None:
    problem = await tools.fail("check_file_transfer_task", task_id="tr-nowhere")
    assert "tr-nowhere" in problem["error"]


@pytest.mark.parametrize("tool", ["check_file_transfer_task", "cancel_file_transfer_task"])
async def test_an_id_is_a_number_and_may_be_a_text_of_earlier_versions(
    tools: Caller, app: App, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def done(order: Order, listener: Listener) -> Outcome:
        return Outcome(synced_type="file")

    app.transfers.background._records.new_id()
    monkeypatch.setattr(TransferRecords, "new_id", lambda self, **_: "tr-0012abcd")
    order = Order(source=Place("", "/etc/hostname"), target=Place("", "/nowhere/x"))
    await app.transfers.background.begin(order, done, wait_s=10)
    for task_id in (0x12ABCD, str(0x12ABCD), "tr-0012abcd"):
        assert (await tools.call(tool, task_id=task_id))["task_id"] == 0x12ABCD
    for task_id in (7, -1, "9" * 5000):
        problem = (await tools.fail(tool, task_id=task_id))["error"]
        assert problem.startswith(f"no transfer has the id '{str(task_id)[:80]}'; the latest are: {0x12ABCD}")


async def test_a_sandbox_that_cannot_move_files_says_so(other: FakeSandbox, near: Path) -> None:
    async with connected(App(Fleet([member(other)]))) as tools:
        problem = await tools.fail("sync_local_to_remote", local_path=str(near), remote_path="x")
    assert problem["code"] == "unsupported"


async def test_the_background_tool_is_listed_only_for_who_asks_for_it(near: Path, far: Path) -> None:
    async with connected(App(Fleet([member(Nearby())]))) as plain:
        assert "sync_local_to_remote_background" not in {tool.name for tool in (await plain.client.list_tools()).tools}
    app = App(Fleet([member(Nearby())]), settings=Settings(expose_advanced_tools=True))
    async with connected(app) as tools:
        assert "sync_local_to_remote_background" in {tool.name for tool in (await tools.client.list_tools()).tools}
        given = {"local_path": str(near), "remote_path": str(far)}
        begun = await tools.call("sync_local_to_remote_background", **given)
        assert begun["status"] in ("running", "completed")
        ended = await tools.call("check_file_transfer_task", task_id=begun["task_id"], wait_s=10)
        assert ended["status"] == "completed"
