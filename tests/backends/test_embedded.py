"""Disposable sandboxes on this machine: made, used, paused, expired, deleted, found again; and their images."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.bubblewrap import disk, limits
from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.backends.link import client
from remote_sandbox_mcp.core.commands.command import Command, Environment, Running
from remote_sandbox_mcp.core.errors import BadArgument, ConnectError, LostContact, SandboxError, Unsupported
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobState, JobWait
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, Limits, SandboxOrder, Volume, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.files import Span
from tests.support.disposables import (
    as_ordinary_user,
    groups_of,
    host_processes,
    made,
    marked_sleep,
    nothing_left,
    provided,
    run,
    say,
    server_process,
    small_image,
    until,
    until_gone,
    with_python,
)
from tests.support.means import folders_inside, needs_tun, require_bubblewrap, require_local

# Made and used


async def test_it_has_its_own_home_variables_and_name(tmp_path: Path) -> None:
    order = SandboxOrder(name="box one", env={"GREETING": "it's me"})
    async with made(tmp_path, order) as (_, disposable, sandbox):
        home, _ = folders_inside(tmp_path / "disposable" / disposable.id / "box")
        assert await say(sandbox, 'echo "$GREETING at $PWD"') == f"it's me at {home}"
        assert (disposable.status, disposable.provider, disposable.title) == ("running", "embedded", "box one")
        assert (sandbox.description.name, sandbox.description.kind) == ("box one", "embedded")
        assert not sandbox.description.capabilities.network
        assert 590 < disposable.expires - time.time() <= 600


async def test_the_order_adds_to_the_servers_variables(tmp_path: Path) -> None:
    provider = EmbeddedProvider(tmp_path, Environment(env={"A": "usual", "B": "usual"}, init=("cd /tmp",)))
    try:
        disposable = await provider.create(new_disposable_id(), SandboxOrder(env={"B": "ordered"}))
        assert await say(await provider.open(disposable), "echo $A $B $PWD") == "usual ordered /tmp"
    finally:
        await provider.close()


async def test_a_sandbox_is_closed_to_other_sandboxes_and_other_users(tmp_path: Path) -> None:
    async with made(tmp_path) as (provider, disposable, sandbox):
        await run(sandbox, "touch ~/mine /tmp/mine; chmod 777 ~ /tmp")
        other = await provider.open(await provider.create(new_disposable_id(), SandboxOrder()))
        assert (await run(other, "ls ~/mine")).exit_code
        assert (await run(other, "ls /tmp/mine")).exit_code
        folder = tmp_path / "disposable" / disposable.id
        assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)} == {0o700}
        assert stat.S_IMODE((folder / "record.json").stat().st_mode) == 0o600


async def test_variables_are_written_down_for_the_owner_alone(tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(env={"TOKEN": "hush-hush"})) as (_, disposable, _):
        file = tmp_path / "disposable" / disposable.id / "record.json"
        assert "hush" in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "hush" not in repr(disposable)


async def test_a_network_that_was_not_asked_for_is_not_there(tmp_path: Path) -> None:
    require_bubblewrap()
    async with made(tmp_path) as (_, _, sandbox):
        assert await say(sandbox, "grep -c : /proc/net/dev") == "1"


@needs_tun
async def test_a_network_that_was_asked_for_is_there(tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(network=True)) as (_, disposable, sandbox):
        assert await say(sandbox, "readlink /proc/self/ns/net") != os.readlink("/proc/self/ns/net")
        assert await say(sandbox, "grep -c : /proc/net/dev") == "2"
        assert disposable.network
        assert "private networks" in disposable.notes[0]


async def test_a_kept_sandbox_is_narrowed_to_its_hosts_by_the_next_server_too(tmp_path: Path) -> None:
    require_bubblewrap()
    order = SandboxOrder(network=True, hosts=("pypi.org",))
    async with provided(tmp_path) as provider:
        disposable = await provider.create(new_disposable_id(), order)
        assert "only pypi.org" in disposable.notes[0]
    async with provided(tmp_path) as provider:
        sandbox = await provider.open(disposable)
        assert await say(sandbox, "grep -c : /proc/net/dev; echo $https_proxy") == "1\nhttp://127.0.0.1:3128"
        stream = await sandbox.connect(3128)
        stream.write(b"CONNECT example.net:443 HTTP/1.1\r\n\r\n")
        assert b"403 example.net is not in the list" in await stream.read()
        stream.close()
        await provider.delete(disposable)


NOTES = {
    "nothing unusual": (SandboxOrder(), ()),
    "entrypoint": (SandboxOrder(entrypoint=("nginx",)), ("entrypoint",)),
}


@pytest.mark.parametrize(("order", "words"), NOTES.values(), ids=NOTES.keys())
async def test_parts_of_an_order_that_are_not_met_are_in_its_notes(
    order: SandboxOrder, words: tuple[str, ...], tmp_path: Path
) -> None:
    async with provided(tmp_path) as provider:
        disposable = await provider.create(new_disposable_id(), order)
        assert tuple(note.partition(":")[0] for note in disposable.notes) == words


REFUSED = {
    "a gpu": (SandboxOrder(limits=Limits(gpus=1)), Unsupported, "no GPU"),
    "loopback as a host": (SandboxOrder(network=True, hosts=("127.0.0.1",)), BadArgument, "private_ranges"),
    "a private network": (SandboxOrder(network=True, hosts=("8.0.0.0/6",)), BadArgument, "8.0.0.0/6 is in a private"),
    "a folder of the host": (SandboxOrder(volumes=(Volume("/", "/host"),)), Unsupported, "upload"),
    "no variable": (SandboxOrder(env={"A=B": "x"}), BadArgument, "variable"),
    "a value with NUL": (SandboxOrder(env={"A": "x\x00"}), BadArgument, "NUL"),
    "a time before now": (SandboxOrder(timeout_s=-1), BadArgument, "timeout"),
    "too little memory": (SandboxOrder(limits=Limits(memory_mb=1)), BadArgument, "memory_mb is 1"),
    "too few processes": (SandboxOrder(limits=Limits(processes=2)), BadArgument, "processes is 2"),
    "a name as an image": (SandboxOrder(image="python:3.12"), BadArgument, "absolute path"),
    "no folder as an image": (SandboxOrder(image="/no/such/folder"), BadArgument, "no folder"),
    "the host as an image": (SandboxOrder(image="/"), BadArgument, "own files"),
    "the host by a detour as an image": (SandboxOrder(image="/proc/self/root"), BadArgument, "own files"),
    "no system as an image": (SandboxOrder(image="/etc"), BadArgument, "no /bin/sh"),
}


@pytest.mark.parametrize(("order", "error", "words"), REFUSED.values(), ids=REFUSED.keys())
async def test_an_order_that_cannot_be_met_leaves_nothing(
    order: SandboxOrder, error: type[Exception], words: str, tmp_path: Path
) -> None:
    if order.image:
        require_bubblewrap()
    disposable_id = new_disposable_id()
    async with provided(tmp_path) as provider:
        with pytest.raises(error, match=words):
            await provider.create(disposable_id, order)
        assert not await provider.list()
        assert nothing_left(tmp_path)
        assert not groups_of(disposable_id)


async def test_a_failure_on_the_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    disposable_id = new_disposable_id()
    async with provided(tmp_path) as provider:
        monkeypatch.setattr(limits, "hold", fail)
        with pytest.raises(SandboxError, match="No space"):
            await provider.create(disposable_id, SandboxOrder(limits=Limits(disk_mb=8)))
        assert nothing_left(tmp_path)
        assert not groups_of(disposable_id)


@pytest.mark.parametrize("name", ["..", "", "sb-../../x", "local", "sb-ABCDEFGHIJ", "sb-12345678/x"])
async def test_an_id_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    async with provided(tmp_path) as provider:
        with pytest.raises(BadArgument, match="not the id"):
            await provider.create(name, SandboxOrder())
        with pytest.raises(BadArgument, match="not the id"):
            await provider.delete(Disposable(id=name, provider="embedded"))


async def test_an_id_is_used_once(tmp_path: Path) -> None:
    async with made(tmp_path) as (provider, disposable, sandbox):
        with pytest.raises(BadArgument, match="already"):
            await provider.create(disposable.id, SandboxOrder())
        assert await say(sandbox, "echo unharmed") == "unharmed"


async def test_opening_twice_is_the_same_sandbox(tmp_path: Path) -> None:
    async with made(tmp_path) as (provider, disposable, sandbox):
        assert await provider.open(disposable) is sandbox
        await sandbox.close()
        assert await say(sandbox, "echo again") == "again"


@pytest.mark.parametrize("verb", ["snapshot", "endpoint"])
async def test_unsupported_operations_are_refused_in_one_sentence(verb: str, tmp_path: Path) -> None:
    async with provided(tmp_path) as provider:
        disposable = Disposable(id=new_disposable_id(), provider="embedded", name="box")
        asked = provider.snapshot(disposable) if verb == "snapshot" else provider.endpoint(disposable, 80)
        with pytest.raises(Unsupported, match="box is an embedded sandbox"):
            await asked


# Listed, looked at, deleted


async def test_sandboxes_of_all_processes_are_listed(tmp_path: Path) -> None:
    async with made(tmp_path) as (_, one, _), made(tmp_path) as (other, two, _):
        assert {disposable.id for disposable in await other.list()} == {one.id, two.id}
        assert (await other.inspect(one)) == one


DIRTY = (
    "mkdir -p ~/a/b; touch ~/a/b/c; chmod 000 ~/a/b ~/a; mkfifo ~/pipe; ln -s /etc ~/link; "
    'python3 -c \'import os\nfor _ in range(1200): os.mkdir("deep"); os.chdir("deep")\'; '
    "ln -s loop ~/loop; mkdir ~/.moved-1 ~/.moved-2; touch ~/.moved-1/x"
)


@pytest.mark.parametrize("disk_mb", [0, 64], ids=["on-disk", "in-memory"])
async def test_deleting_ends_and_removes_everything(disk_mb: int, means: str, tmp_path: Path) -> None:
    mark = marked_sleep()
    async with made(tmp_path, SandboxOrder(limits=Limits(disk_mb=disk_mb))) as (provider, disposable, sandbox):
        assert (await run(sandbox, DIRTY)).exit_code == 0
        seen = await sandbox.run(Command(f"(setsid {mark} &); trap '' TERM HUP; {mark}"), patience_s=0.2)
        assert isinstance(seen, Running)
        assert host_processes(mark)
        await provider.delete(disposable)
        assert not host_processes(mark)
        assert nothing_left(tmp_path)
        assert not groups_of(disposable.id)
        assert (await provider.inspect(disposable)).status == "gone"
        assert not await provider.list()


async def test_a_deleted_sandbox_is_reported_as_deleted(tmp_path: Path) -> None:
    async with made(tmp_path) as (provider, disposable, sandbox):
        await provider.delete(disposable)
        await provider.delete(disposable)
        with pytest.raises(ConnectError, match="was deleted; create another"):
            await sandbox.run(Command("true"))
        with pytest.raises(ConnectError, match="is gone"):
            await provider.open(disposable)
        with pytest.raises(SandboxError, match="is gone"):
            await provider.pause(disposable)


def test_an_ordinary_users_sandbox_is_removed_whatever_its_modes() -> None:
    assert as_ordinary_user([DIRTY])["left"] == [".lock"]


def test_links_in_what_is_removed_are_not_followed(tmp_path: Path) -> None:
    outside, trash = tmp_path / "outside", tmp_path / "trash"
    outside.mkdir()
    (outside / "file").touch()
    (trash / "inner").mkdir(parents=True)
    (trash / "link").symlink_to(outside)
    (trash / "inner/link").symlink_to(outside)
    disk.remove_tree(trash)
    assert (outside / "file").exists()
    assert not trash.exists()
    disk.remove_tree(trash)


async def test_deleting_from_another_server_ends_it_here(means: str, tmp_path: Path) -> None:
    mark = marked_sleep()
    async with made(tmp_path) as (_, disposable, sandbox), provided(tmp_path) as other:
        running = asyncio.create_task(run(sandbox, mark))
        await until(lambda: host_processes(mark))
        await other.delete(disposable)
        with pytest.raises(LostContact, match="was deleted"):
            await running
        assert not host_processes(mark)
        assert nothing_left(tmp_path)


async def test_two_dozen_made_and_deleted_at_once_leave_nothing(tmp_path: Path) -> None:
    async with provided(tmp_path) as provider:
        ids = [new_disposable_id() for _ in range(24)]
        all_of_them = await asyncio.gather(*(provider.create(name, SandboxOrder()) for name in ids))
        assert {disposable.id for disposable in await provider.list()} == set(ids)
        await asyncio.gather(*(provider.delete(disposable) for disposable in all_of_them))
        assert not await provider.list()
        assert nothing_left(tmp_path)
        assert not [folder for name in ids for folder in groups_of(name)]
        assert not host_processes(str(tmp_path))


# Its time


async def test_expiry_ends_everything(tmp_path: Path) -> None:
    mark = marked_sleep()
    async with made(tmp_path, SandboxOrder(timeout_s=1.5)) as (provider, disposable, sandbox):
        with pytest.raises(LostContact, match="has expired"):
            await run(sandbox, mark)
        await until(lambda: nothing_left(tmp_path))
        assert not host_processes(mark)
        assert (await provider.inspect(disposable)).status == "expired"
        with pytest.raises(ConnectError, match="has expired"):
            await sandbox.run(Command("true"))
        with pytest.raises(SandboxError, match="create another"):
            await provider.renew(disposable, 60)


async def test_renewing_moves_its_end(tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(timeout_s=1.5)) as (provider, disposable, sandbox):
        renewed = await provider.renew(disposable, 600)
        assert renewed.expires > disposable.expires + 500
        await until(lambda: time.time() > disposable.expires)
        assert await say(sandbox, "sleep 0.2; echo alive") == "alive"
        assert (await provider.inspect(disposable)).expires == renewed.expires
        assert (await provider.renew(disposable, 0)).expires == 0


async def test_a_sandbox_that_another_server_renewed_lives_on(tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(timeout_s=1.5)) as (_, disposable, sandbox), provided(tmp_path) as other:
        await other.renew(disposable, 600)
        await until(lambda: time.time() > disposable.expires)
        assert await say(sandbox, "sleep 0.2; echo alive") == "alive"


# Paused


async def test_a_paused_sandbox_stands_still_and_goes_on_when_resumed(
    means: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Shorter than the pause: a paused outpost gives no sign of life.
    monkeypatch.setattr(client, "SILENCE_S", 0.6)
    monkeypatch.setattr(client, "PONG_S", 0.4)
    async with made(tmp_path) as (provider, disposable, sandbox):
        counting = asyncio.create_task(run(sandbox, "for n in $(seq 50); do echo $n >> ~/ticks; sleep 0.02; done"))
        file = tmp_path / "disposable" / disposable.id / "box/home/ticks"
        await until(file.exists)
        assert (await provider.pause(disposable)).status == "paused"
        before = file.read_text()
        assert (await provider.inspect(disposable)).status == "paused"
        with pytest.raises(ConnectError, match="is paused; resume it first"):
            await sandbox.run(Command("true"))
        await asyncio.sleep(1.5)
        assert file.read_text() == before
        assert (await provider.pause(disposable)).status == "paused"
        assert (await provider.resume(disposable)).status == "running"
        assert (await counting).exit_code == 0
        assert file.read_text().split() == [str(number) for number in range(1, 51)]
        assert await say(sandbox, "echo awake") == "awake"


@pytest.mark.parametrize("end", ["delete", "close", "sandbox"])
async def test_a_paused_sandbox_can_be_deleted(end: str, means: str, tmp_path: Path) -> None:
    mark = marked_sleep()
    async with made(tmp_path) as (provider, disposable, sandbox):
        await sandbox.run(Command(mark), patience_s=0.2)
        await provider.pause(disposable)
        await {"delete": lambda: provider.delete(disposable), "close": provider.close, "sandbox": sandbox.close}[end]()
        await until_gone(mark)


async def test_a_sandbox_that_is_being_opened_can_be_paused(means: str, tmp_path: Path) -> None:
    async with provided(tmp_path) as provider:
        disposable = await provider.create(new_disposable_id(), SandboxOrder())
        await provider.pause(disposable)
        with pytest.raises(ConnectError, match="is paused"):
            await provider.open(disposable)
        await provider.resume(disposable)
        assert await say(await provider.open(disposable), "echo awake") == "awake"


async def test_a_sandbox_whose_files_are_being_moved_is_not_paused(tmp_path: Path) -> None:
    async with made(tmp_path) as (provider, disposable, sandbox):
        lane = await sandbox.open_lane()
        with pytest.raises(SandboxError, match="files are being moved"):
            await provider.pause(disposable)
        await lane.close()
        assert (await provider.pause(disposable)).status == "paused"


async def test_a_sandbox_that_two_servers_use_is_not_paused(tmp_path: Path) -> None:
    async with made(tmp_path) as (provider, disposable, sandbox), provided(tmp_path) as other:
        await other.open(disposable)
        with pytest.raises(SandboxError, match="another server uses it"):
            await provider.pause(disposable)
        assert (await provider.inspect(disposable)).status == "running"
        assert await say(sandbox, "echo awake") == "awake"


async def test_one_that_is_closed_while_it_is_made_ready_stays_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def ping(self: client.OutpostClient) -> None:
        """Its answer takes longer than the sandbox is open."""
        while self.is_alive:  # noqa: ASYNC110 - a line that is lost tells nobody
            await asyncio.sleep(0)
        raise client.LineLost

    async with made(tmp_path) as (provider, disposable, sandbox):
        await sandbox.close()
        monkeypatch.setattr(client.OutpostClient, "ping", ping)
        provider._tenants[disposable.id].warm()
        await until(lambda: sandbox.is_open)
        await sandbox.close()
        assert not sandbox.is_open


async def test_a_sandbox_that_another_server_paused_is_not_opened(tmp_path: Path) -> None:
    async with made(tmp_path) as (provider, disposable, sandbox), provided(tmp_path) as other:
        await provider.pause(disposable)
        with pytest.raises(ConnectError, match="another server has paused it"):
            await other.open(disposable)
        with pytest.raises(SandboxError, match="another server has paused it"):
            await other.resume(disposable)
        await provider.resume(disposable)
        assert (await other.resume(disposable)).status == "running"
        assert await say(sandbox, "echo awake") == "awake"


# After the end of its server


async def test_a_sandbox_that_two_servers_use_goes_on_when_one_of_them_ends(tmp_path: Path) -> None:
    async with made(tmp_path) as (_, disposable, sandbox):
        async with provided(tmp_path) as other:
            one, two = await asyncio.gather(other.open(disposable), other.open(disposable))
            assert one is two
            assert await say(one, "echo x > ~/file") == ""
        assert await say(sandbox, "cat ~/file") == "x"
        assert not nothing_left(tmp_path)


async def test_its_files_outlive_its_server_and_its_processes_do_not(tmp_path: Path) -> None:
    mark = marked_sleep()
    async with provided(tmp_path) as first:
        disposable = await first.create(new_disposable_id(), SandboxOrder(env={"A": "b"}))
        sandbox = await first.open(disposable)
        await run(sandbox, "echo mine > ~/file")
        await sandbox.run(Command(mark), patience_s=0.2)
    await until_gone(mark)
    assert not groups_of(disposable.id)
    async with provided(tmp_path) as provider:
        assert [known.id for known in await provider.list()] == [disposable.id]
        assert await say(await provider.open(disposable), "cat ~/file; echo $A") == "mine\nb"
        assert (await provider.inspect(disposable)).limits.told == disposable.limits.told
        await provider.delete(disposable)
        assert nothing_left(tmp_path)


CRASHING = """
import asyncio, sys
from pathlib import Path
from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.sandboxes.disposable import Limits, SandboxOrder, new_disposable_id

async def main():
    provider = EmbeddedProvider(Path(sys.argv[1]))
    for name, timeout_s, disk_mb in (("sized", 4, 8), ("kept", 0, 0), ("old", 4, 0)):
        order = SandboxOrder(name=name, timeout_s=timeout_s, limits=Limits(disk_mb=disk_mb))
        made = await provider.create(new_disposable_id(), order)
        sandbox = await provider.open(made)
        await sandbox.run(Command(f"echo {name} > ~/name"))
        await sandbox.run(Command(sys.argv[2]), patience_s=0.1)
        await provider.pause(made)
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_sandboxes_of_a_killed_server_are_found_and_expire(tmp_path: Path) -> None:
    require_local()
    mark = marked_sleep()
    with server_process(CRASHING, str(tmp_path), mark) as server:
        assert server.stdout
        assert await asyncio.to_thread(server.stdout.readline) == b"ready\n"
        # A living server's sandboxes are nobody's leftovers.
        async with provided(tmp_path) as another:
            assert [known.status for known in await another.list()] == ["paused"] * 3
        server.kill()
    names = os.listdir(tmp_path / "disposable")
    over = max(json.loads(file.read_text())["made"]["expires"] for file in tmp_path.glob("disposable/*/record.json"))
    await until(lambda: time.time() > over)
    async with provided(tmp_path) as provider:
        left = await provider.list()
        assert [(known.name, known.status) for known in left] == [("kept", "running")]
        assert not host_processes(mark)
        assert await say(await provider.open(left[0]), "cat ~/name") == "kept"
        await provider.delete(left[0])
    assert nothing_left(tmp_path)
    assert not [folder for name in names for folder in groups_of(name)]


# Images


@pytest.fixture(scope="module")
def bare_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_image(tmp_path_factory.mktemp("image") / "bare")


@pytest.fixture(scope="module")
def python_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_python(tmp_path_factory.mktemp("image") / "python")


async def test_an_image_without_python_is_its_system(bare_image: Path, tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(image=str(bare_image), env={"A": "b"})) as (_, disposable, sandbox):
        assert disposable.image == str(bare_image)
        assert "read-only" in disposable.notes[0]
        assert await say(sandbox, "cat /etc/marker; pwd; echo $A") == "of the image\n/home/sandbox\nb"
        assert "sandbox" in await say(sandbox, "cat /etc/passwd")
        assert await say(sandbox, "echo x > ~/file && echo x > /tmp/file && cat /var/tmp/file") == "x"
        for path in ("/file", "/bin/file", "/etc/marker", "/root/file", "/.host/file"):
            assert (await run(sandbox, f"touch {path}")).exit_code
        assert (await run(sandbox, "python3 -c 1")).exit_code == 127
        assert (await sandbox.read("file", Span())).data == b"x\n"
        await (await sandbox.open_lane()).close()
    assert sorted(os.listdir(bare_image)) == ["bin", "etc", "lib", "lib64", "root", "usr", "var"]


@pytest.mark.parametrize("image", ["", "bare", "python"])
async def test_jobs_run_in_every_kind_of_image(
    image: str, bare_image: Path, python_image: Path, tmp_path: Path
) -> None:
    folder = {"": "", "bare": str(bare_image), "python": str(python_image)}[image]
    async with made(tmp_path, SandboxOrder(image=folder)) as (_, _, sandbox):
        started = await sandbox.jobs.start(JobOrder(session="train", script="echo out; exit 3"))
        waited = await sandbox.jobs.wait(JobQuery(job_id=started.job_id), JobWait(seconds=15))
        assert (waited.seen.state, waited.seen.exit_code) == (JobState.ENDED, 3)
        assert waited.seen.log == b"out\nEXIT_CODE=3\n"


async def test_an_image_has_its_own_python(python_image: Path, tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(image=str(python_image))) as (_, _, sandbox):
        assert (await run(sandbox, "ls /.host")).exit_code
        assert await say(sandbox, "cat /etc/marker; python3 -c 'print(6 * 7)'") == "of the image\n42"


async def test_app_and_workspace_can_be_written_and_are_its_own(tmp_path: Path) -> None:
    require_bubblewrap()
    async with made(tmp_path, SandboxOrder()) as (_, _, sandbox), made(tmp_path) as (_, _, other):
        await sandbox.write("/workspace/deep/a.txt", b"mine")
        assert await say(sandbox, "cd /app && cp /workspace/deep/a.txt b && cat b") == "mine"
        assert await say(other, "ls /app /workspace | tr '\\n' ' '") == "/app:  /workspace:"
        assert await say(sandbox, "touch /other /a 2>/dev/null || echo refused") == "refused"


async def test_what_an_image_has_in_app_stays_readable(tmp_path: Path) -> None:
    image = small_image(tmp_path / "image")
    (image / "app").mkdir()
    (image / "app/main.py").write_text("of the image")
    (image / "workspace").mkdir()
    async with made(tmp_path / "state", SandboxOrder(image=str(image))) as (_, disposable, sandbox):
        assert await say(sandbox, "cat /app/main.py; touch /app/x 2>/dev/null || echo ' kept'") == "of the image kept"
        assert await say(sandbox, "echo mine >/workspace/x; cat /workspace/x") == "mine"
        assert "/app and /workspace where the image has none" in disposable.notes[-1]
    assert os.listdir(image / "workspace") == []


async def test_a_link_in_an_image_gives_no_way_to_write_elsewhere(tmp_path: Path) -> None:
    image = small_image(tmp_path / "image")
    (image / "app").symlink_to("etc")
    async with made(tmp_path / "state", SandboxOrder(image=str(image))) as (_, _, sandbox):
        assert await say(sandbox, "touch /app/x 2>/dev/null || cat /app/marker") == "of the image"


def test_an_ordinary_user_has_images_too() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        image = small_image(Path(folder) / "image")
        told = as_ordinary_user(["cat /etc/marker", "touch /etc/new"], image=str(image))
    assert told["seen"][0][1] == "of the image\n"
    assert told["seen"][1][0] != 0


async def test_a_link_in_an_image_leads_nowhere_else(tmp_path: Path) -> None:
    image = small_image(tmp_path / "image")
    (image / "bin/sh").unlink()
    (image / "bin/sh").symlink_to("../../../../../../../../../../usr/bin/bash")
    async with provided(tmp_path / "state") as provider:
        with pytest.raises(BadArgument, match="no /bin/sh"):
            await provider.create(new_disposable_id(), SandboxOrder(image=str(image)))
