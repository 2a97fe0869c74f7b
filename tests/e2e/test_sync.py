"""Copies through a real server: at once or in the background, over lines that are cut, by servers that are killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.local.store.transfers import PREFIX
from tests.support.line import ThreadedLine
from tests.support.server import Server, Wire, entry, serve, until, wire
from tests.support.sshd import Fleet, Sshd, wait_until
from tests.support.trees import MIB, File, Folder, Link, Node, differences, leftovers, noise, put, snapshot
from tests.support.waiting import eventually

INLINE = {"mode", "synced_type", "skipped_files", "bytes", "wire_bytes", "duration_s"}
PUSHED = INLINE | {"uploaded_dirs", "uploaded_files", "deleted_files", "deleted_dirs"}
PULLED = INLINE | {"created_dirs", "downloaded_files"}
BACKGROUND = {"REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES": "9", "REMOTE_SANDBOX_INLINE_SYNC_MAX_BYTES": str(8 * MIB)}
# As many files and links as there are in the tree of most tests.
FILES = 7
ODD_NAMES = [b"-rf", b"new\nline", b'it\'s "odd"', b"\xff\xfe", b"n" * 255, " é".encode()]


@pytest.fixture(scope="module")
def other_machine(fleet: Fleet) -> Sshd:
    return fleet.machine("other")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home folder of the user of most servers here."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
async def server(machine: Sshd, other_machine: Sshd, home: Path) -> AsyncIterator[Server]:
    async with serve(home, entry(machine), entry(other_machine), local=True, env=BACKGROUND) as server:
        yield server


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A tree with a bit of everything."""
    return make(tmp_path / "ours")


@pytest.fixture
def there(machine: Sshd, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A place on the machine, as this test sees it."""
    folder = machine.home / request.node.originalname[:60]
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def line(machine: Sshd) -> Iterator[ThreadedLine]:
    with ThreadedLine(machine.port, rtt_s=0.02) as line:
        yield line


def make(path: Path, more: dict[bytes, Node] | None = None) -> Path:
    odd: dict[bytes, Node] = {name: File(10, number, 0o640, number) for number, name in enumerate(ODD_NAMES[:4])}
    inner: dict[bytes, Node] = {name: File(9, mtime=-1_000_000_007) for name in ODD_NAMES[4:]}
    links: dict[bytes, Node] = {b"link": Link(b"nowhere"), b"empty": Folder({}, 0o700, 5)}
    sub = Folder({**inner, **links}, 0o555, 1_234_567_890_123_456_789)
    put(os.fsencode(path), Folder({**odd, b"sub": sub, **(more or {})}))
    return path


def seen(folder: Path) -> Any:
    return snapshot(os.fsencode(folder))


def check_equal(ours: Path, theirs: Path) -> None:
    assert not differences(seen(ours), seen(theirs))
    assert not leftovers(os.fsencode(theirs))


def own(machine: Sshd, path: Path) -> None:
    """Give a tree to the machine's user."""
    owner = machine.home.stat()
    for found in (path, *path.rglob("*")):
        os.chown(found, owner.st_uid, owner.st_gid, follow_symlinks=False)


# At once


async def test_push_and_pull_report_what_they_did(server: Server, ours: Path, there: Path, tmp_path: Path) -> None:
    pushed = await server.call("sync_local_to_remote", local_path=str(ours), remote_path=there.name)
    assert pushed.keys() == PUSHED
    counts = {"uploaded_files": FILES, "uploaded_dirs": 2, "skipped_files": 0, "deleted_files": 0, "deleted_dirs": 0}
    assert pushed == pushed | counts | {"mode": "inline", "synced_type": "directory"}
    check_equal(ours, there)
    again = await server.call("sync_local_to_remote", local_path=str(ours), remote_path=f"~/{there.name}/")
    assert (again["uploaded_files"], again["skipped_files"], again["bytes"]) == (0, FILES, 0)
    pulled = await server.call("sync_remote_to_local", remote_path=there.name, local_path=f"{tmp_path}/back")
    assert pulled.keys() == PULLED
    assert pulled == pulled | {"mode": "inline", "downloaded_files": FILES, "created_dirs": 2}
    check_equal(ours, tmp_path / "back")


async def test_a_pull_takes_no_special_bits_and_no_links_that_lead_out(
    server: Server, machine: Sshd, there: Path, tmp_path: Path
) -> None:
    entries: dict[bytes, Node] = {b"tool": File(5, 1, 0o4755), b"out": Link(b"/root/.ssh"), b"in": Link(b"tool")}
    put(os.fsencode(there), Folder(entries))
    own(machine, there)
    os.chmod(there / "tool", 0o6755)
    done = await server.call("sync_remote_to_local", remote_path=there.name, local_path=f"{tmp_path}/back")
    assert [problem["path"] for problem in done["problems"]] == ["out"]
    assert sorted(os.listdir(tmp_path / "back")) == ["in", "tool"]
    assert (tmp_path / "back" / "tool").stat().st_mode & 0o7777 == 0o755
    await server.call("sync_local_to_remote", local_path=str(there), remote_path=f"{there.name}/copy")
    assert (there / "copy" / "tool").stat().st_mode & 0o7777 == 0o6755
    assert os.readlink(there / "copy" / "out") == "/root/.ssh"


async def test_a_single_file_goes_to_a_file_or_into_a_folder(server: Server, there: Path, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"one")
    done = await server.call("sync_local_to_remote", local_path=f"{tmp_path}/one", remote_path=f"{there.name}/two")
    assert (done["synced_type"], done["uploaded_files"]) == ("file", 1)
    done = await server.call("sync_remote_to_local", remote_path=f"{there}/two", local_path=f"{tmp_path}/")
    assert (done["synced_type"], done["downloaded_files"]) == ("file", 1)
    assert (tmp_path / "two").read_bytes() == b"one"
    problem = await server.fail("sync_remote_to_local", remote_path=f"{there}/three", local_path=str(tmp_path))
    assert problem["code"] == "file"
    assert "does not exist" in problem["error"]


async def test_files_that_the_remote_user_may_not_read_are_reported(
    server: Server, machine: Sshd, there: Path, tmp_path: Path
) -> None:
    put(os.fsencode(there), Folder({b"mine": File(5), b"fine": File(5), b"closed": Folder({b"x": File(1)})}))
    own(machine, there)
    for path in ("mine", "closed"):
        os.chown(there / path, 0, 0)
        (there / path).chmod(0)
    done = await server.call("sync_remote_to_local", remote_path=there.name, local_path=f"{tmp_path}/back")
    assert {problem["path"]: problem["reason"] for problem in done["problems"]} == {
        "mine": "Permission denied",
        "closed": "Permission denied",
    }
    assert (tmp_path / "back" / "fine").exists()
    back = f"{machine.name}:{there.name}-2"
    extra = Path(f"{there}-2")
    put(os.fsencode(extra), Folder({b"extra": File(1)}))
    own(machine, extra)
    done = await server.call(
        "sync_local_to_remote", local_path=f"{machine.name}:{there.name}", remote_path=back, delete_extras=True
    )
    assert any("nothing was deleted" in problem["reason"] for problem in done["problems"])
    assert (extra / "extra").exists()
    shutil.rmtree(extra)


async def test_folders_that_may_not_be_written_to_are_copied_and_changed(
    server: Server, ours: Path, there: Path
) -> None:
    await server.call("sync_local_to_remote", local_path=str(ours), remote_path=there.name)
    sub = ours / "sub"
    (sub / "link").unlink()
    put(os.fsencode(sub / "link"), Folder({b"x": File(3)}, 0o555))
    (sub / "empty").rmdir()
    put(os.fsencode(sub / "empty"), File(3, 1))
    for name in ODD_NAMES[4:]:
        (Path(os.fsdecode(os.fsencode(sub) + b"/" + name))).unlink()
    put(os.fsencode(sub / "large"), File(2 * MIB, 1))
    done = await server.call("sync_local_to_remote", local_path=str(ours), remote_path=there.name, delete_extras=True)
    assert "problems" not in done
    check_equal(ours, there)


async def test_a_dry_run_shows_the_plan_and_does_nothing(server: Server, ours: Path, there: Path) -> None:
    (ours / ".git").mkdir()
    given = {"local_path": str(ours), "remote_path": there.name, "delete_extras": True, "dry_run": True}
    planned = await server.call("sync_local_to_remote", **given)
    assert (planned["mode"], planned["would_send_files"], planned["would_create_dirs"]) == ("dry_run", FILES, 2)
    assert {item["why"] for item in planned["send"]} == {"new"}
    assert planned["excluded_by_default"] == [".git"]
    assert not there.exists()
    await server.call("sync_local_to_remote", **given | {"dry_run": False})
    (ours / "-rf").write_bytes(b"another size")
    (there / "extra").mkdir()
    (there / "extra" / "file").write_bytes(b"x")
    planned = await server.call("sync_local_to_remote", **given)
    assert planned["send"] == [{"path": "-rf", "bytes": 12, "why": "size"}]
    assert sorted(planned["delete"]) == ["extra", "extra/file"]
    assert (there / "extra" / "file").exists()


async def test_deletion_is_refused_where_a_slip_would_cost_most(
    server: Server, machine: Sshd, there: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    there.mkdir()
    (there / "mine").write_bytes(b"x")
    own(machine, there)
    given = {"local_path": f"{tmp_path}/empty", "remote_path": there.name, "delete_extras": True}
    problem = await server.fail("sync_local_to_remote", **given)
    assert problem["code"] == "bad_argument"
    assert "confirm_delete=true" in problem["error"]
    (tmp_path / "empty" / "file").write_bytes(b"")
    for target in ("~", ".", str(machine.home)):
        problem = await server.fail("sync_local_to_remote", **given | {"remote_path": target})
        assert problem["code"] == "bad_argument"
        assert "home folder" in problem["error"]
    for target in ("~/.ssh", f"{machine.home}/.config/app", "/etc", "/home"):
        problem = await server.fail("sync_local_to_remote", **given | {"remote_path": target})
        assert problem["code"] == "bad_argument"
        assert "confirm_delete=true" in problem["error"]
    assert (machine.home / ".ssh" / "authorized_keys").exists()
    (tmp_path / "empty" / "file").unlink()
    done = await server.call("sync_local_to_remote", **given, confirm_delete=True)
    assert done["deleted_files"] == 1


async def test_the_hidden_parts_of_the_users_home_are_not_touched(
    server: Server, home: Path, machine: Sshd, there: Path
) -> None:
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh" / "id_x").write_text("secret")
    (home / "way in").symlink_to(".ssh")
    put(os.fsencode(there), Folder({b".bashrc": File(5), b".config": Folder({b"x": File(1)}), b"fine": File(1)}))
    own(machine, there)
    for path in ("~/.ssh", "~/.ssh/id_x", "~/way in", f"{home}/other/../.ssh"):
        problem = await server.fail("sync_local_to_remote", local_path=path, remote_path=f"{there.name}/got")
        assert problem["code"] == "bad_argument"
        assert "allow_hidden" in problem["error"]
    for path in ("~/.bashrc", "~/.ssh/authorized_keys", "~/way in/x", "~/.new/x"):
        problem = await server.fail("sync_remote_to_local", remote_path=f"{there.name}/fine", local_path=path)
        assert problem["code"] == "bad_argument"
    problem = await server.fail("sync_remote_to_local", remote_path=f"{there.name}/.bashrc", local_path="~")
    assert problem["code"] == "bad_argument"
    await server.call("sync_remote_to_local", remote_path=there.name, local_path="~")
    assert (home / "fine").exists()
    assert not (home / ".bashrc").exists()
    assert not (home / ".config").exists()
    await server.call("sync_local_to_remote", local_path="~", remote_path=f"{there.name}/all", excludes=["/state"])
    assert (there / "all" / "fine").exists()
    assert not (there / "all" / ".ssh").exists()
    (home / "fine").unlink()
    (home / "way in").unlink()


async def test_what_runs_or_instructs_by_its_name_comes_only_by_its_very_path(
    server: Server, machine: Sshd, there: Path, tmp_path: Path
) -> None:
    inner = Folder({b"ci.yml": File(1), b".x": File(1)})
    entries: dict[bytes, Node] = {name.encode(): File(1) for name in ("a.py", "CLAUDE.md", ".gitignore", ".envrc")}
    put(os.fsencode(there), Folder({**entries, b".github": inner, b"sub": Folder({b"mise.toml": File(1)})}))
    own(machine, there)
    back = tmp_path / "back"

    async def pull(path: str = "", **more: Any) -> set[str]:
        done = await server.call(
            "sync_remote_to_local", remote_path=f"{there.name}/{path}", local_path=str(back / path), **more
        )
        assert all(each["reason"].startswith(("kept there, ", "left out: ")) for each in done.get("problems", []))
        return {each["path"] for each in done.get("problems", [])}

    for more in ({}, {"default_excludes": False}, {"checksum": True}):
        assert await pull(**more) == {"CLAUDE.md", ".gitignore", ".envrc", ".github", "sub/mise.toml"}
        assert sorted(map(str, (path.relative_to(back) for path in back.rglob("*")))) == ["a.py", "sub"]
    await server.call("sync_remote_to_local", remote_path=f"{there.name}/CLAUDE.md", local_path=f"{back}/")
    assert await pull(".github") == {".x"}
    assert sorted(os.listdir(back)) == [".github", "CLAUDE.md", "a.py", "sub"]
    # What is the same on both sides is no longer told.
    (there / ".github/.x").unlink()
    assert await pull() == {".gitignore", ".envrc", "sub/mise.toml"}
    for name, told in ((".gitignore", "decides what is sent from here"), (".envrc", "run something")):
        for local in (back, back / name):
            refused = await server.fail(
                "sync_remote_to_local", remote_path=f"{there.name}/{name}", local_path=str(local)
            )
            assert told in refused["error"]
        assert not (back / name).exists()


async def test_the_local_sandbox_is_pushed_to_and_pulled_from(server: Server, ours: Path, tmp_path: Path) -> None:
    pushed = await server.call("sync_local_to_remote", local_path=str(ours), remote_path="local:in")
    assert pushed["uploaded_files"] == FILES
    printed = await server.output("cd in && find . -type f -printf x && readlink sub/link", sandbox_name="local")
    assert printed == "xxxxxxnowhere\n"
    pulled = await server.call(
        "sync_remote_to_local", remote_path="in", local_path=f"{tmp_path}/back", sandbox_name="local"
    )
    assert pulled["downloaded_files"] == FILES
    check_equal(ours, tmp_path / "back")
    for path in ("/etc/passwd/x", "/root/x", "/usr/x"):
        problem = await server.fail("sync_local_to_remote", local_path=str(ours), remote_path=f"local:{path}")
        assert problem["code"] == "file"
    # Its /tmp is not ours.
    await server.call("sync_local_to_remote", local_path=str(ours), remote_path=f"local:{tmp_path}/x")
    assert not (tmp_path / "x").exists()


async def test_one_machine_is_copied_to_another(
    server: Server, machine: Sshd, other_machine: Sshd, there: Path
) -> None:
    make(there, {b"large": File(5 * MIB, 1)})
    own(machine, there)
    given = {
        "local_path": f"{machine.name}:{there.name}",
        "remote_path": f"{other_machine.name}:copies/{there.name}",
    }
    done = await server.call("sync_local_to_remote", **given)
    copied = done.get("result") or done
    assert copied["uploaded_files"] == FILES + 1
    check_equal(there, other_machine.home / "copies" / there.name)
    done = await server.call("sync_local_to_remote", **given)
    assert (done["uploaded_files"], done["skipped_files"]) == (0, FILES + 1)


# In the background


async def test_a_large_transfer_goes_on_in_the_background(server: Server, there: Path, tmp_path: Path) -> None:
    ours = make(tmp_path / "ours", {b"%d" % number: File(1000, number) for number in range(10)})
    done = await server.call("sync_local_to_remote", local_path=str(ours), remote_path=there.name)
    assert done == done | {"mode": "background", "auto_switched": True}
    assert "pid" not in done
    assert Path(done["log_file"]).exists()
    told = await server.call("check_file_transfer_task", task_id=done["task_id"], wait_s=10)
    assert told["status"] == "completed"
    assert told["result"]["uploaded_files"] == FILES + 10
    assert not told.keys() & {"running", "pending", "stale", "error"}
    assert "completed in" in told["log_tail"]
    check_equal(ours, there)
    gone = await server.call("cancel_file_transfer_task", task_id=done["task_id"])
    assert gone == {"task_id": done["task_id"], "status": "completed", "already_finished": True}


async def test_an_unknown_task_is_refused_with_the_known_ones(server: Server) -> None:
    for tool in ("check_file_transfer_task", "cancel_file_transfer_task"):
        problem = await server.fail(tool, task_id="tr-unknown")
        assert problem["code"] == "bad_argument"
        assert "no transfer has the id 'tr-unknown'" in problem["error"]


async def test_a_transfer_goes_on_over_a_line_that_is_cut(
    machine: Sshd, line: ThreadedLine, there: Path, tmp_path: Path
) -> None:
    ours = make(tmp_path / "ours", {b"large": File(40 * MIB, 1)})
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        await server.run("true")
        call = asyncio.ensure_future(server.call("sync_local_to_remote", local_path=str(ours), remote_path=there.name))
        for opened in (2, 3):
            await until(lambda: written(there) or call.done(), "the transfer to begin")
            line.cut()
            await until(lambda opened=opened: line.total_opened >= opened or call.done(), "a new connection")
        done = await call
        assert done["mode"] == "inline"
        assert "problems" not in done
        assert line.total_opened >= 3
        check_equal(ours, there)
        # What had arrived was not sent again.
        assert done["wire_bytes"] < 60 * MIB
        back = asyncio.ensure_future(
            server.call("sync_remote_to_local", remote_path=there.name, local_path=f"{tmp_path}/back")
        )
        await until(lambda: written(tmp_path / "back") or back.done(), "the transfer to begin")
        line.cut()
        assert "problems" not in await back
        check_equal(ours, tmp_path / "back")


async def test_a_line_that_was_cut_between_two_calls_is_not_noticed(
    machine: Sshd, line: ThreadedLine, ours: Path, there: Path, tmp_path: Path
) -> None:
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        for number in range(4):
            (ours / "new").write_text("." * number)
            done = await server.call("sync_local_to_remote", local_path=str(ours), remote_path=there.name)
            assert done["mode"] == "inline"
            check_equal(ours, there)
            line.cut()


def written(folder: Path) -> int:
    """Bytes of large files that are on their way."""
    with suppress(FileNotFoundError):
        return sum(path.stat().st_blocks for path in folder.glob(".remote-sandbox-part-*"))
    return 0


def begin(line: Wire, frozen: ThreadedLine, ours: Path, there: Path) -> float:
    """A push that has begun and cannot go on; when it began."""
    line.initialize()
    line.call("exec_bash", command="true")
    begun = time.monotonic()
    line.start_call("sync_local_to_remote", local_path=str(ours), remote_path=there.name)
    wait_until(lambda: written(there), what="the transfer to begin")
    frozen.freeze()
    return begun


@pytest.mark.parametrize("hub", [True, False], ids=["a front", "a server without a hub"])
async def test_a_transfer_outlives_the_process_of_its_client(
    machine: Sshd, line: ThreadedLine, there: Path, tmp_path: Path, hub: bool
) -> None:
    """Killed without a word: the hub goes on with it, or the next server does."""
    ours = make(tmp_path / "ours", {b"large": File(60 * MIB, 1)})
    with wire(tmp_path, entry(machine, port=line.port), env=BACKGROUND, hub=hub) as killed:
        begin(killed, line, ours, there)
        task_id = await until(lambda: task_ids(tmp_path, ".lock"), "the transfer")
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
    assert "large" not in os.listdir(there)
    line.thaw()
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        told = await server.call("check_file_transfer_task", task_id=task_id[0], wait_s=20)
        assert told["status"] == "completed"
        assert "problems" not in told["result"]
        (listed,) = (await server.call("check_file_transfer_task"))["tasks"]
        assert (listed["task_id"], listed["status"], listed["source"]) == (task_id[0], "completed", str(ours))
    check_equal(ours, there)


def task_ids(home: Path, suffix: str) -> list[int]:
    return [
        int(path.name.removesuffix(suffix).removeprefix(PREFIX), 16)
        for path in (home / "state" / "transfers").glob(f"*{suffix}")
    ]


async def test_a_transfer_is_cancelled_by_another_server(
    machine: Sshd, line: ThreadedLine, there: Path, tmp_path: Path
) -> None:
    ours = make(tmp_path / "ours", {b"large": File(60 * MIB, 1), b"-rf": File(9, 9)})
    put(os.fsencode(there), Folder({b"large": File(10, 4)}))
    own(machine, there)
    with wire(tmp_path, entry(machine, port=line.port), env=BACKGROUND) as one:
        begin(one, line, ours, there)
        [task_id] = await until(lambda: task_ids(tmp_path, ".lock"), "the task")
        async with serve(tmp_path, entry(machine, port=line.port)) as other:
            # What it has done is written down once in a while.
            told = await eventually(
                lambda: other.call("check_file_transfer_task", task_id=task_id),
                lambda seen: "progress" in seen,
                "progress",
            )
            assert (told["status"], told["running"]) == ("running", True)
            assert told["progress"]["bytes_total"] > 60 * MIB
            done = await other.call("cancel_file_transfer_task", task_id=task_id)
            assert done == {"task_id": task_id, "status": "cancelled", "terminated": True}
            line.thaw()
            assert (await other.call("check_file_transfer_task", task_id=task_id))["status"] == "cancelled"
            # Not one byte of the old file is lost, and the next sync tidies up.
            assert (there / "large").read_bytes() == noise(10, 4)
            finished = await other.call("sync_local_to_remote", local_path=str(ours), remote_path=there.name)
            assert "problems" not in (finished.get("result") or finished)
        # It was answered when a moment had gone by, or when it was over.
        assert one.receive()["result"]["structuredContent"]["task_id"] == task_id
    check_equal(ours, there)


async def test_many_copies_at_once_share_the_sessions_of_a_stock_sshd(
    machine: Sshd, line: ThreadedLine, there: Path, tmp_path: Path
) -> None:
    """The first has taken nearly all of them when the others come."""
    for number in range(5):
        make(tmp_path / f"ours{number}", {b"large": File((6 if number else 60) * MIB, number)})
    async with serve(tmp_path, entry(machine, port=line.port)) as server:

        def push(number: int) -> asyncio.Future[Any]:
            given = {"local_path": f"{tmp_path}/ours{number}", "remote_path": f"{there}/{number}"}
            return asyncio.ensure_future(server.call("sync_local_to_remote", **given))

        pushes = [push(0)]
        await until(lambda: written(there / "0"), "the first to be at work")
        pushes += [push(number) for number in range(1, 5)]
        assert await server.output("echo hi") == "hi\n"
        done = await asyncio.gather(*pushes)
    assert not [each for each in done if "problems" in each]
    for number in range(5):
        check_equal(tmp_path / f"ours{number}", there / str(number))
