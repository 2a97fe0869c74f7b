"""Files from one machine straight to another: only where the operator allows it, and through us where it fails."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.app import App, compose
from remote_sandbox_mcp.config.schema import Configuration
from remote_sandbox_mcp.core.sync.transfer import Order, Outcome, unheard
from tests.support.sshd import HOST, Fleet, Sshd

SIZE = 24 << 20


@pytest.fixture(scope="module")
def first(fleet: Fleet) -> Sshd:
    return fleet.machine("direct-1")


@pytest.fixture(scope="module")
def second(fleet: Fleet, first: Sshd) -> Sshd:
    """A machine that the first may log in to with a key of its own, and whose host key it knows."""
    machine = fleet.machine("direct-2")
    folder = first.home / ".ssh"
    shutil.copy(machine.key_file, folder / "id_there")
    (folder / "known_hosts").write_text(f"[{HOST}]:{machine.port} {machine.host_key}\n")
    (folder / "config").write_text(
        f"Host there\n HostName {HOST}\n Port {machine.port}\n User {machine.user}\n IdentityFile ~/.ssh/id_there\n"
    )
    owner = first.home.stat()
    for file in ("id_there", "known_hosts", "config"):
        os.chown(folder / file, owner.st_uid, owner.st_gid)
        (folder / file).chmod(0o600)
    return machine


def app_with(first: Sshd, second: Sshd, direct: dict[str, str]) -> App:
    here, there = replace(first.machine(), direct=direct), second.machine()
    return compose(Configuration(machines=(here, there)))


async def copy(app: App, first: Sshd, second: Sshd, name: str) -> Outcome:
    places = [app.transfers.place(f"{machine.name}:{name}", sandbox=None) for machine in (first, second)]
    order = Order(source=places[0], target=places[1])
    try:
        return await app.transfers.syncs.run(order, unheard)
    finally:
        await app.close()


@pytest.fixture
def tree(first: Sshd, request: pytest.FixtureRequest) -> Path:
    folder = first.home / request.node.name[:40]
    (folder / "sub").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(SIZE))
    for number in range(300):
        (folder / "sub" / f"f{number}").write_bytes(b"%d" % number)
    owner = first.home.stat()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_files_go_from_machine_to_machine_without_passing_through_us(
    first: Sshd, second: Sshd, tree: Path
) -> None:
    done = await copy(app_with(first, second, {second.name: "there"}), first, second, tree.name)
    assert done.direct
    assert done.sent_files == 301
    assert done.wire_bytes < 1 << 20
    assert not done.problems
    assert contents(tree) == contents(second.home / tree.name)


async def test_without_permission_files_go_through_us(first: Sshd, second: Sshd, tree: Path) -> None:
    done = await copy(app_with(first, second, {}), first, second, tree.name)
    assert not done.direct
    assert done.wire_bytes > SIZE
    assert contents(tree) == contents(second.home / tree.name)


async def test_files_go_through_us_if_one_machine_does_not_reach_the_other(
    first: Sshd, second: Sshd, tree: Path
) -> None:
    done = await copy(app_with(first, second, {second.name: "nowhere.invalid"}), first, second, tree.name)
    assert not done.direct
    assert contents(tree) == contents(second.home / tree.name)


async def test_a_host_key_that_the_first_machine_does_not_know_is_not_accepted(
    first: Sshd, second: Sshd, tree: Path
) -> None:
    known = first.home / ".ssh/known_hosts"
    text = known.read_text()
    known.write_text("")
    try:
        done = await copy(app_with(first, second, {second.name: "there"}), first, second, tree.name)
    finally:
        known.write_text(text)
    assert not done.direct
    assert contents(tree) == contents(second.home / tree.name)
