"""Host keys through the real server: remembered once, refused when changed, accepted again on purpose."""

from __future__ import annotations

import asyncio
import stat
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
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


@pytest.fixture
def with_two_keys(fleet: Fleet) -> Iterator[Sshd]:
    """A machine with an RSA host key beside its Ed25519 one."""
    machine = fleet.machine("two-keys")
    machine.stop()
    new_key(machine.folder / "host_key_rsa", "rsa")
    with (machine.folder / "sshd_config").open("a") as config:
        config.write(f"HostKey {machine.folder}/host_key_rsa\n")
    machine.start()
    yield machine
    machine.stop()


def new_key(file: Path, kind: str) -> str:
    """A key pair; gives its public half as known_hosts has it."""
    words = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(file)]
    subprocess.run([*words, *(["-b", "2048"] if kind == "rsa" else [])], check=True, capture_output=True)
    return public(file)


def public(file: Path) -> str:
    return " ".join(Path(f"{file}.pub").read_text().split()[:2])


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
        assert f"run: remote-sandbox-mcp hosts forget {changing.name} (nothing was started)" in told
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


async def test_a_machine_that_an_authority_vouches_for_is_not_known_by_a_plain_key(
    machine: Sshd, tmp_path: Path
) -> None:
    file = user_file(tmp_path)
    authority = f"@cert-authority {line_of(machine, new_key(tmp_path / 'authority', 'ed25519'))}\n"
    file.write_text(authority)
    async with serve(tmp_path, entry(machine)) as server:
        assert "is known by a certificate authority, but shows a plain key" in await refused(server)
        assert not server.known_hosts.exists()
        file.write_text(f"{authority}{line_of(machine)}\n")
        assert await server.output("echo hi") == "hi\n"


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
        forget(tmp_path, told.rpartition(" hosts forget ")[2].partition(" (")[0], *entries)
        assert await server.output("echo hi") == "hi\n"


# Many at once, on a fresh state folder


def twelve(machine: Sshd, **how: str) -> tuple[Entry, ...]:
    """One machine under twelve names, and by two names of its address."""
    hosts = ["127.0.0.1", "localhost"] * 6
    return tuple(entry(machine, name=f"name-{number}", host=host, **how) for number, host in enumerate(hosts))


async def troubles(server: Server) -> list[str]:
    """What those say that cannot be opened, of all machines at once."""
    listed = (await server.call("list_sandboxes"))["sandboxes"]
    return [sandbox["connection_error"] for sandbox in listed if not sandbox["connection_alive"]]


async def test_several_names_of_one_address_may_be_opened_for_the_first_time_at_once(
    machine: Sshd, tmp_path: Path
) -> None:
    async with serve(tmp_path, *twelve(machine)) as server:
        assert await troubles(server) == []
        lines = server.known_hosts.read_text().splitlines()
        # By its name only where the address was not known yet, and never twice.
        assert set(lines) <= {line_of(machine), line_of(machine).replace("127.0.0.1", "localhost")}
        assert len(lines) == len(set(lines))


async def test_machines_behind_one_jump_host_may_be_opened_for_the_first_time_at_once(
    machine: Sshd, fleet: Fleet, tmp_path: Path
) -> None:
    bastion = fleet.machine("bastion", max_sessions=40)
    async with serve(tmp_path, *twelve(machine, jump="bastion"), entry(bastion)) as server:
        assert await troubles(server) == []
        assert server.known_hosts.read_text().count(line_of(bastion)) == 1


async def test_several_processes_may_meet_a_machine_for_the_first_time_at_once(
    machine: Sshd, changing: Sshd, tmp_path: Path
) -> None:
    shared = {"REMOTE_SANDBOX_MCP_HOME": str(tmp_path / "state")}
    async with AsyncExitStack() as stack:
        servers = []
        for number in range(4):
            home = tmp_path / f"home-{number}"
            home.mkdir()
            entries = (entry(changing), *twelve(machine)[:4])
            servers.append(await stack.enter_async_context(serve(home, *entries, env=shared)))
            # Whatever takes its time in the first connection is done before they begin.
            await servers[-1].run("true", sandbox_name=changing.name)
        assert await asyncio.gather(*map(troubles, servers)) == [[]] * 4
    lines = (tmp_path / "state" / "known_hosts").read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert line_of(changing) in lines


async def test_a_changed_key_is_still_refused_to_all_simultaneous_connections(changing: Sshd, tmp_path: Path) -> None:
    async with serve(tmp_path, entry(changing)) as server:
        await server.run("true")
    known = server.known_hosts.read_text()
    changing.change_host_key()
    async with serve(tmp_path, *(entry(changing, name=f"name-{number}") for number in range(6))) as server:
        told = await troubles(server)
        assert len(told) == 6
        assert all("the host key has changed" in trouble for trouble in told)
        assert server.known_hosts.read_text() == known


# Types of keys


async def test_a_machine_without_a_key_of_the_known_type_is_reported_as_such(machine: Sshd, tmp_path: Path) -> None:
    known = line_of(machine, new_key(tmp_path / "rsa", "rsa"))
    user_file(tmp_path).write_text(f"{known}\n")
    async with serve(tmp_path, entry(machine)) as server:
        told = await refused(server)
        assert "is known by its ssh-rsa key, but shows only an ssh-ed25519 key, which is not known" in told
        assert f"run: remote-sandbox-mcp hosts forget {machine.name} (nothing was started)" in told
        assert not server.known_hosts.exists()
        listed = (await server.call("list_sandboxes"))["sandboxes"][0]
        assert "shows only an ssh-ed25519 key" in listed["connection_error"]
        assert "ssh-keygen -R" in forget(tmp_path, machine.name, entry(machine))


@pytest.mark.parametrize("kind", ["host_key", "host_key_rsa"])
async def test_the_key_of_the_known_type_is_asked_for(with_two_keys: Sshd, tmp_path: Path, kind: str) -> None:
    known = line_of(with_two_keys, public(with_two_keys.folder / kind))
    user_file(tmp_path).write_text(f"{known}\n")
    async with serve(tmp_path, entry(with_two_keys, strict_host_keys=True)) as server:
        assert await server.output("echo hi") == "hi\n"


async def test_a_changed_key_of_the_known_type_is_refused_though_another_type_is_offered(
    with_two_keys: Sshd, tmp_path: Path
) -> None:
    user_file(tmp_path).write_text(f"{line_of(with_two_keys, new_key(tmp_path / 'rsa', 'rsa'))}\n")
    async with serve(tmp_path, entry(with_two_keys)) as server:
        assert "the host key has changed" in await refused(server)
