"""Host keys through the real server: remembered once, refused when changed, accepted again on purpose."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Entry, Server, arguments, entry, environment, serve
from tests.support.sshd import Fleet, Sshd


@pytest.fixture
def changing(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Sshd]:
    """A machine of the test's own, because its host key is going to change."""
    machine = fleet.machine("changing")
    yield machine
    machine.stop()


def line_of(machine: Sshd, key: str = "") -> str:
    """The machine as known_hosts has it."""
    return f"[{machine.host}]:{machine.port} {key or machine.host_key}"


def forget(home: Path, name: str, *entries: Entry) -> str:
    """What an operator runs after a host key has changed."""
    done = subprocess.run(
        [*arguments(home, local=False), "hosts", "forget", name],
        env=environment(home, entries),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def refused(server: Server) -> str:
    problem = await server.fail("exec_bash", command="touch pwned")
    assert problem["code"] == "host_key"
    assert problem["outcome"] == "not_started"
    return str(problem["error"])


def hash_names(file: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)


def user_file(home: Path) -> Path:
    (home / ".ssh").mkdir(mode=0o700)
    return home / ".ssh" / "known_hosts"


async def test_an_unknown_key_is_accepted_once_and_remembered_for_the_owner_alone(
    machine: Sshd, tmp_path: Path
) -> None:
    for _ in range(2):
        async with serve(tmp_path, entry(machine)) as server:
            await server.run("true")
        assert server.known_hosts.read_text() == line_of(machine) + "\n"
    assert stat.S_IMODE(server.known_hosts.stat().st_mode) == 0o600


async def test_a_changed_key_is_refused_until_it_is_forgotten_on_purpose(changing: Sshd, tmp_path: Path) -> None:
    async with serve(tmp_path, entry(changing)) as server:
        await server.run("true")
        first = changing.host_key
        changing.change_host_key()
        told = await refused(server)
        assert "the host key has changed" in told
        assert told.endswith(f"run: remote-sandbox-mcp hosts forget {changing.name}")
        assert server.known_hosts.read_text() == line_of(changing, first) + "\n"
        listed = (await server.call("list_sandboxes"))["sandboxes"][0]
        assert listed["connection_alive"] is False
        assert "the host key has changed" in listed["connection_error"]
        assert not (changing.home / "pwned").exists()
        # The server that runs already takes notice.
        forget(tmp_path, changing.name, entry(changing))
        assert await server.output("echo hi") == "hi\n"
        assert server.known_hosts.read_text() == line_of(changing) + "\n"


async def test_a_key_in_the_users_own_known_hosts_is_honoured(machine: Sshd, tmp_path: Path) -> None:
    user_file(tmp_path).write_text(f"# mine\n{line_of(machine)}\n")
    async with serve(tmp_path, entry(machine)) as server:
        await server.run("true")
        assert not server.known_hosts.exists()


async def test_a_hashed_name_in_the_users_known_hosts_is_honoured(machine: Sshd, tmp_path: Path) -> None:
    file = user_file(tmp_path)
    file.write_text(f"{line_of(machine)}\n")
    hash_names(file)
    assert machine.host not in file.read_text()
    async with serve(tmp_path, entry(machine, strict_host_keys=True)) as server:
        await server.run("true")


async def test_another_key_in_the_users_own_known_hosts_is_a_changed_key(
    machine: Sshd, fleet: Fleet, tmp_path: Path
) -> None:
    other = fleet.machine("other")
    file = user_file(tmp_path)
    file.write_text(f"{line_of(machine, other.host_key)}\n")
    async with serve(tmp_path, entry(machine)) as server:
        assert "the host key has changed" in await refused(server)
        # It is theirs: told, but not touched.
        assert f"ssh-keygen -R '[127.0.0.1]:{machine.port}'" in forget(tmp_path, machine.name, entry(machine))
        assert file.read_text() == f"{line_of(machine, other.host_key)}\n"


@pytest.mark.parametrize("where", ["entry", "server"])
async def test_strict_mode_refuses_an_unknown_key_and_says_how_to_add_it(
    machine: Sshd, tmp_path: Path, where: str
) -> None:
    strict = {"strict_host_keys": True} if where == "entry" else {}
    more = "[server]\nstrict_host_keys = true\n" if where == "server" else ""
    async with serve(tmp_path, entry(machine, **strict), config=more) as server:
        told = await refused(server)
        assert "is not known and strict_host_keys is on" in told
        assert f"ssh-keyscan -p {machine.port} 127.0.0.1" in told
        assert not server.known_hosts.exists()
        user_file(tmp_path).write_text(f"{line_of(machine)}\n")
        assert await server.output("echo hi") == "hi\n"


async def test_a_revoked_key_is_refused(machine: Sshd, tmp_path: Path) -> None:
    user_file(tmp_path).write_text(f"@revoked {line_of(machine)}\n")
    async with serve(tmp_path, entry(machine)) as server:
        await refused(server)


async def test_a_broken_line_in_known_hosts_hides_no_other(machine: Sshd, fleet: Fleet, tmp_path: Path) -> None:
    other = fleet.machine("another")
    user_file(tmp_path).write_text(f"garbage\n{line_of(machine, other.host_key)}\n|1|x|y ssh-rsa z\n")
    async with serve(tmp_path, entry(machine)) as server:
        assert "the host key has changed" in await refused(server)


async def test_a_key_of_another_port_says_nothing_of_this_one(machine: Sshd, fleet: Fleet, tmp_path: Path) -> None:
    other = fleet.machine("neighbour")
    user_file(tmp_path).write_text(f"127.0.0.1 {other.host_key}\n{line_of(other)}\n")
    async with serve(tmp_path, entry(machine)) as server:
        await server.run("true")
        assert server.known_hosts.read_text() == line_of(machine) + "\n"


async def test_jump_hosts_are_checked_too(machine: Sshd, changing: Sshd, tmp_path: Path) -> None:
    jump = entry(changing)
    entries = (entry(machine, jump=changing.name), jump)
    async with serve(tmp_path, *entries) as server:
        await server.run("true")
        assert sorted(server.known_hosts.read_text().splitlines()) == sorted([line_of(machine), line_of(changing)])
    changing.change_host_key()
    async with serve(tmp_path, *entries) as server:
        told = await refused(server)
        assert "jump host" in told
        assert "the host key has changed" in told
        forget(tmp_path, told.rpartition(" ")[2], *entries)
        assert await server.output("echo hi") == "hi\n"
