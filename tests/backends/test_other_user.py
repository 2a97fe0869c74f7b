"""Commands of another user: by a real sudo where it allows that, and by root without one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.command.sandbox import open_place
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Command, Completed, Ending, Environment
from remote_sandbox_mcp.core.errors import NotStarted
from remote_sandbox_mcp.core.sandboxes.machine import CommandPlace
from tests.support.means import require_program
from tests.support.sshd import Fleet, Sshd
from tests.support.waiting import eventually

ALLOWED = "USER ALL=(nobody) NOPASSWD: ALL"
ENVIRONMENT = Environment(env={"COLOUR": "blue"})


@pytest.fixture(scope="module")
def machine(fleet: Fleet) -> Sshd:
    require_program("sudo")
    return fleet.machine("shared", sudoers=ALLOWED)


@pytest.fixture
async def by_sudo(machine: Sshd, tmp_path: Path) -> AsyncIterator[OutpostSandbox]:
    sandbox = await open_machine(machine.machine(environment=ENVIRONMENT), tmp_path / "known_hosts")
    assert isinstance(sandbox, OutpostSandbox)
    yield sandbox
    await sandbox.close()
    machine.allow(ALLOWED)


@pytest.fixture
async def by_root(tmp_path: Path) -> AsyncIterator[OutpostSandbox]:
    if os.geteuid():
        pytest.skip("needs root")
    command = ("env", f"HOME={tmp_path}", f"TMPDIR={tmp_path}", "sh", "-c")
    sandbox = await open_place(CommandPlace("here", command, "sh", environment=ENVIRONMENT))
    assert isinstance(sandbox, OutpostSandbox)
    yield sandbox
    await sandbox.close()


@pytest.fixture(params=["by_sudo", "by_root"])
def sandbox(request: pytest.FixtureRequest) -> OutpostSandbox:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, OutpostSandbox)
    return found


async def ran(sandbox: OutpostSandbox, script: str, **fields: object) -> Completed:
    seen = await sandbox.run(Command(script, user="nobody", **fields))  # type: ignore[arg-type]
    assert isinstance(seen, Completed)
    return seen


async def parts() -> AsyncIterator[bytes]:
    for part in (b"one ", b"two"):
        yield part


async def test_it_has_its_own_name_input_variables_and_folder(sandbox: OutpostSandbox) -> None:
    done = await ran(sandbox, 'id -un; echo "$COLOUR $MORE $USER"; pwd; cat; exit 7', input=b"in", env={"MORE": "x y"})
    assert done.stdout.head == b"nobody\nblue x y nobody\n/\nin"
    assert (done.exit_code, done.stderr.head) == (7, b"")
    assert (await ran(sandbox, "pwd; cat", cwd="/usr", input=parts())).stdout.head == b"/usr\none two"
    large = os.urandom(3 << 20)
    assert (await ran(sandbox, "wc -c", input=large)).stdout.head.strip() == b"%d" % len(large)


async def test_its_time_limit_ends_its_whole_tree(sandbox: OutpostSandbox) -> None:
    done = await ran(sandbox, "(setsid sleep 977 & echo $!); sleep 977", timeout_s=1.0)
    assert done.ending is Ending.TIMED_OUT
    pid = int(done.stdout.head)

    async def is_gone() -> bool:
        return not Path(f"/proc/{pid}").exists()

    await eventually(is_gone, bool, "the end of the tree")


async def test_what_sudo_does_not_allow_is_refused_in_one_sentence(by_sudo: OutpostSandbox, machine: Sshd) -> None:
    with pytest.raises(NotStarted, match=r"sudo does not let the user .* run commands as daemon there") as refused:
        await by_sudo.run(Command("id", user="daemon"))
    assert "\n" not in str(refused.value)
    await asyncio.to_thread(machine.allow, "")
    with pytest.raises(NotStarted, match="as nobody there without a password"):
        await by_sudo.run(Command("id", user="nobody"))


async def test_root_finds_no_user_of_that_name(by_root: OutpostSandbox) -> None:
    with pytest.raises(NotStarted, match="there is no such user there"):
        await by_root.run(Command("id", user="no_such_user"))
