"""A folder as a sandbox's system: who may name which, and that nothing in it runs with rights or leads elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.bubblewrap import bwrap, images
from remote_sandbox_mcp.backends.bubblewrap.bwrap import Footing
from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.backends.link import pipe
from remote_sandbox_mcp.core.errors import BadArgument, ConnectError
from remote_sandbox_mcp.core.sandboxes.disposable import SandboxOrder, new_disposable_id
from tests.support.disposables import ORDINARY_USER, SOURCE, SYSTEM_PYTHON, made, provided, run, say, small_image
from tests.support.means import IS_ROOT

SECRET = "the-secret-of-the-host"
OTHER_USER = 61_300
BWRAP = shutil.which("bwrap") or ""
FOOTINGS = [
    footing for footing in (bwrap.footings(BWRAP, os.geteuid() == 0) if BWRAP else ()) if not bwrap.try_out(footing)
]
pytestmark = pytest.mark.skipif(not FOOTINGS, reason="bubblewrap cannot run here")
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can give files away")


@pytest.fixture(params=FOOTINGS, ids=lambda footing: f"as-{footing.user}")
def footing(request: pytest.FixtureRequest) -> Iterator[Footing]:
    chosen: Footing = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bwrap._found, (chosen.program, os.geteuid()), chosen)
        yield chosen


# Programs of the image


# Told in its home by whichever program of the image runs first. The setting is opened, and nothing is written.
SPY = """#!/bin/busybox sh
exec > /home/sandbox/seen
/bin/busybox id -u
/bin/busybox grep -E '^Cap(Prm|Eff|Bnd|Amb)' /proc/self/status
( : >> /proc/sys/kernel/core_pattern ) && echo core_pattern can be written
( : >> /proc/sysrq-trigger ) && echo sysrq can be written
/bin/busybox ls /image /usr/sbin
"""


def with_spy(folder: Path, program: str) -> Path:
    image = small_image(folder)
    (image / program).unlink(missing_ok=True)
    (image / program).write_text(SPY)
    (image / program).chmod(0o755)
    return image


@pytest.mark.parametrize("program", ["bin/python3", "bin/sh"])
async def test_the_first_program_of_an_image_has_no_rights(footing: Footing, program: str, tmp_path: Path) -> None:
    image = with_spy(tmp_path / "image", "bin/python3.11" if program.endswith("python3") else program)
    if program.endswith("python3"):
        (image / program).symlink_to("python3.11")
    async with provided(tmp_path / "state") as provider:
        disposable = await provider.create(new_disposable_id(), SandboxOrder(image=str(image)))
        with pytest.raises(ConnectError):
            await provider.open(disposable)
        seen = (tmp_path / "state/disposable" / disposable.id / "box/home/seen").read_text()
    user, *rights = seen.splitlines()
    assert int(user) == footing.user
    assert [line.split("\t")[1] for line in rights] == ["0" * 16] * 4


async def test_commands_in_an_image_have_no_rights_and_no_way_out(footing: Footing, tmp_path: Path) -> None:
    image = small_image(tmp_path / "image")
    (image / "bin/grep").symlink_to("/bin/busybox")
    (image / "bin/chroot").symlink_to("/bin/busybox")
    async with made(tmp_path / "state", SandboxOrder(image=str(image))) as (_, _, sandbox):
        assert (await run(sandbox, "grep -E 'Cap(Prm|Eff|Bnd|Amb):.*[1-9a-f]' /proc/self/status")).exit_code == 1
        assert "ro," in await say(sandbox, "grep ' /proc ' /proc/self/mountinfo")
        for way in ("ls /proc/1/root", "cat /proc/1/environ", "chroot / true", "ls /../usr/share/doc", "ls /image"):
            assert (await run(sandbox, way)).exit_code not in (0, 127), way


async def test_a_library_that_an_image_would_load_into_every_program_is_left_out(tmp_path: Path) -> None:
    image = small_image(tmp_path / "image")
    (image / "etc/ld.so.preload").write_text("/lib/spy.so\n")
    async with made(tmp_path / "state", SandboxOrder(image=str(image))) as (_, _, sandbox):
        assert (await run(sandbox, "cat /etc/ld.so.preload")).exit_code == 1


# An image that changes while it is opened


def leads_to_the_secret(entry: Path, secret: Path) -> None:
    entry.rename(entry.with_name(f".{entry.name}-before"))
    entry.symlink_to(secret)


def becomes_another_folder(entry: Path, secret: Path) -> None:
    entry.rename(entry.with_name(f".{entry.name}-before"))
    shutil.copytree(secret, entry)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "key").write_text(SECRET)
    return folder


def before_bubblewrap(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Change something when the image has been looked at, and nothing of it was bound yet."""
    start: Callable[..., Awaitable[Any]] = pipe.start

    async def changed_start(*words: Any) -> Any:
        change()
        monkeypatch.setattr(pipe, "start", start)
        return await start(*words)

    monkeypatch.setattr(pipe, "start", changed_start)


@pytest.mark.parametrize("change", [leads_to_the_secret, becomes_another_folder])
@pytest.mark.parametrize("entry", ["root", "etc/conf", "var/lib", "."])
async def test_an_entry_that_is_exchanged_is_not_seen_inside(
    entry: str,
    change: Callable[[Path, Path], None],
    secret: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    image = small_image(tmp_path / "image")
    for folder in ("etc/conf", "var/lib"):
        (image / folder).mkdir()
    (secret / "root").mkdir()
    before_bubblewrap(monkeypatch, lambda: change((image / entry).absolute(), secret))
    async with provided(tmp_path / "state") as provider:
        disposable = await provider.create(new_disposable_id(), SandboxOrder(image=str(image)))
        with pytest.raises(ConnectError, match="was exchanged while the image was opened"):
            await provider.open(disposable)


# Folders that are no images


async def refusal(provider: EmbeddedProvider, image: Path) -> str:
    with pytest.raises(BadArgument) as caught:
        await provider.create(new_disposable_id(), SandboxOrder(image=str(image)))
    return str(caught.value)


@pytest.mark.parametrize("way", ["its path", "a link", "a link to the folder above"])
async def test_no_image_may_lie_where_a_sandbox_can_write(way: str, tmp_path: Path) -> None:
    async with made(tmp_path / "state") as (provider, disposable, _):
        home = tmp_path / "state/disposable" / disposable.id / "box/home"
        small_image(home / "image")
        (tmp_path / "link").symlink_to(home / "image")
        (tmp_path / "above").symlink_to(home)
        image = {"its path": home / "image", "a link": tmp_path / "link"}.get(way, tmp_path / "above/image")
        assert "in the state folder of this server" in await refusal(provider, image)


async def test_no_image_may_lie_in_the_local_sandbox(tmp_path: Path) -> None:
    async with provided(tmp_path / "state") as provider:
        (tmp_path / "state/local/local/home").mkdir(parents=True)
        image = small_image(tmp_path / "state/local/local/home/image")
        assert "in the state folder of this server" in await refusal(provider, image)


async def test_no_image_may_lie_where_keys_and_settings_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    hidden, plain = small_image(tmp_path / "home/.ssh"), small_image(tmp_path / "home/images/small")
    async with provided(tmp_path / "state") as provider:
        assert "hidden part of the home folder" in await refusal(provider, hidden)
        assert await provider.create(new_disposable_id(), SandboxOrder(image=str(plain)))


MODES = {
    "open to everybody": (0o777, "written by everybody"),
    "open to everybody, and sticky": (0o1777, "written by everybody"),
}


@pytest.mark.parametrize(("mode", "words"), MODES.values(), ids=MODES.keys())
async def test_no_image_may_be_open_to_others(mode: int, words: str, tmp_path: Path) -> None:
    image = small_image(tmp_path / "image")
    image.chmod(mode)
    async with provided(tmp_path / "state") as provider:
        assert words in await refusal(provider, image)


async def test_no_other_user_may_be_able_to_replace_a_folder_on_the_way(tmp_path: Path) -> None:
    image = small_image(tmp_path / "above/image")
    async with provided(tmp_path / "state") as provider:
        image.parent.chmod(0o777)
        assert "'above' on the way to it can be written by everybody" in await refusal(provider, image)
        image.parent.chmod(0o1777)
        assert await provider.create(new_disposable_id(), SandboxOrder(image=str(image)))


@needs_root
async def test_no_other_user_may_own_or_write_to_a_folder_on_the_way(tmp_path: Path) -> None:
    image = small_image(tmp_path / "above/image")
    async with provided(tmp_path / "state") as provider:
        os.chown(image.parent, OTHER_USER, OTHER_USER)
        assert f"belongs to another user ({OTHER_USER})" in await refusal(provider, image)
        os.chown(image.parent, 0, OTHER_USER)
        image.parent.chmod(0o775)
        assert f"written by the group {OTHER_USER}" in await refusal(provider, image)
        os.chown(image.parent, 0, 0)
        assert images.check(str(image), tmp_path / "state") == image


async def test_an_image_that_was_moved_into_a_refused_place_is_not_opened_again(tmp_path: Path) -> None:
    image = small_image(tmp_path / "image")
    async with made(tmp_path / "state", SandboxOrder(image=str(image))) as (_, disposable, sandbox):
        await sandbox.close()
        home = tmp_path / "state/disposable" / disposable.id / "box/home"
        image.rename(home / "image")
        image.symlink_to(home / "image")
        with pytest.raises(BadArgument, match="in the state folder"):
            await sandbox.open()


# Folders that cannot be entered


CLOSED = """
import json, os, sys
from pathlib import Path
from remote_sandbox_mcp.backends.bubblewrap import images
from remote_sandbox_mcp.core.errors import BadArgument
for image in sys.argv[2:]:
    try:
        images.check(image, Path(sys.argv[1]))
        print("taken")
    except BadArgument as problem:
        print(problem)
"""


@needs_root
def test_a_folder_that_this_user_may_not_enter_is_refused_in_a_sentence() -> None:
    with tempfile.TemporaryDirectory() as folder:
        closed = Path(folder, "closed")
        (closed / "bin").mkdir(parents=True)
        closed.chmod(0o700)
        Path(folder).chmod(0o755)
        told = subprocess.run(
            [SYSTEM_PYTHON, "-c", CLOSED, "/nowhere", "/proc/1/root", "/proc/1/cwd", str(closed), f"{closed}/bin"],
            env={"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nowhere"}, cwd="/",
            capture_output=True, text=True, user=ORDINARY_USER, group=ORDINARY_USER, extra_groups=[], check=False,
        )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert len(told.stdout.splitlines()) == 4
    assert all("is no folder that this server may enter" in line for line in told.stdout.splitlines())
