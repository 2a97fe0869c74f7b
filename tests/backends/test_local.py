"""The embedded sandbox, behind the real bubblewrap."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap import bwrap, processes, walls
from remote_sandbox_mcp.backends.bubblewrap.bwrap import Footing
from remote_sandbox_mcp.backends.bubblewrap.local import describe, open_local
from remote_sandbox_mcp.backends.bubblewrap.network import way
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.commands.command import Command, Completed, Ending, Environment, Missing, Running
from remote_sandbox_mcp.core.errors import ConfigError, FileProblem, LostContact, Unsupported
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sandboxes.network import Network, Reach
from remote_sandbox_mcp.core.sandboxes.sandbox import Capabilities
from tests.support.disposables import host_processes, marked_sleep, number, run, say
from tests.support.means import needs_tun, readable_source
from tests.support.pace import Deadline
from tests.support.root import can_be_root

BWRAP = shutil.which("bwrap") or ""
IS_ROOT = os.geteuid() == 0
IS_X86 = platform.machine() == "x86_64"
SOURCE = readable_source()
SYSTEM_PYTHON = "/usr/bin/python3"
HOSTS = Path("/etc/hosts").read_text().strip()
GONE_S = 10.0


def all_footings() -> list[Footing]:
    ways = bwrap.footings(BWRAP, IS_ROOT) if BWRAP else ()
    return [footing for footing in ways if not bwrap.try_out(footing)]


FOOTINGS = all_footings()
needs_bwrap = pytest.mark.skipif(not FOOTINGS, reason="bubblewrap cannot run here")
needs_root = pytest.mark.skipif(not can_be_root(), reason="only root can become another user")


@pytest.fixture(scope="module", params=FOOTINGS, ids=lambda footing: f"as-{footing.user}")
def footing(request: pytest.FixtureRequest) -> Iterator[Footing]:
    """Every way down that this machine offers, not only the one that is tried first."""
    chosen: Footing = request.param
    key = (chosen.program, os.geteuid())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bwrap._found, key, chosen)
        yield chosen


@pytest.fixture(scope="module")
async def walled(footing: Footing, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OutpostSandbox]:
    """One sandbox for all tests that leave it as it is."""
    async with opened(tmp_path_factory.mktemp("state")) as sandbox:
        yield sandbox


@asynccontextmanager
async def opened(state_folder: Path, place: LocalPlace | None = None) -> AsyncIterator[OutpostSandbox]:
    sandbox = await open_local(place or LocalPlace(), state_folder)
    try:
        yield sandbox
    finally:
        await sandbox.close()


def _arguments(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return []


def wait_until_gone(mark: str) -> None:
    deadline = Deadline(GONE_S)
    while left := host_processes(mark):
        assert not deadline.has_passed(), left
        time.sleep(0.01)


def python(code: str) -> str:
    return f"{SYSTEM_PYTHON} -c '{code}'"


def system_call(number: int, *arguments: int) -> str:
    """Python that makes a system call and fails if the call fails."""
    words = ", ".join(str(word) for word in (number, *arguments))
    return python(f"import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall({words}) < 0)")


# What is inside

SIGHTS = {
    "a user with a name": ("id -un; echo $USER; echo ~", "sandbox\nsandbox\n/home/sandbox"),
    "starts at home": ("pwd", "/home/sandbox"),
    "the host's programs": ("command -v bash env", "/usr/bin/bash\n/usr/bin/env"),
    "a small environment": (
        "env -u SHLVL -u _ -u OLDPWD | cut -d= -f1 | sort | tr '\\n' ' '",
        "HOME LANG PATH PWD TERM USER",
    ),
    "only itself at home": ("ls /home", "sandbox"),
    "a hostname of its own": ("cat /etc/hostname; uname -n", "local\nlocal"),
    "a localhost": ("getent hosts localhost | grep -c .", "1"),
    "a terminal when asked for": ("script -qc 'test -t 1 && echo yes' /dev/null", "yes"),
    "no rights": ("grep -E 'CapPrm|CapEff' /proc/self/status | cut -f2 | sort -u", "0000000000000000"),
    "no way to gain rights": ("grep NoNewPrivs /proc/self/status | cut -f2", "1"),
    "a /proc that can only be read": ("grep -c ' /proc ro,' /proc/self/mountinfo", "1"),
    "its own output by its names": ("echo a > /dev/stdout; echo b > /proc/self/fd/1; echo c > /dev/fd/1", "a\nb\nc"),
    "a filter on system calls": ("grep Seccomp: /proc/self/status | cut -f2", "2"),
    "writable places": (
        "for place in ~ /tmp /var/tmp /dev/shm; do echo x > $place/probe && rm $place/probe && echo yes; done",
        "yes\nyes\nyes\nyes",
    ),
    "programs can be built and run there": (
        "printf '#!/bin/sh\\necho ran\\n' > ~/program; chmod +x ~/program; ~/program; rm ~/program",
        "ran",
    ),
}


@pytest.mark.parametrize(("script", "seen"), SIGHTS.values(), ids=SIGHTS.keys())
async def test_inside_there_is(walled: OutpostSandbox, script: str, seen: str) -> None:
    assert (await say(walled, script)).rstrip() == seen


# Each attempt must fail. None would do harm where it succeeded.
ESCAPES = {
    "passwords": "cat /etc/shadow",
    "passwords through the first process": "cat /proc/1/root/etc/shadow",
    "private keys of the system": "ls /etc/ssl/private /etc/ssh",
    "root's home": "ls -d /root",
    "the host's var": "ls -d /var/lib /var/log",
    "the host's run": "ls -d /run /var/run",
    "the host's opt": "ls -d /opt",
    "the host's sys": "ls -d /sys",
    "identity of the host": "cat /etc/machine-id",
    "tools' settings with tokens": "ls /etc/pip.conf /etc/npmrc /etc/gitconfig /etc/environment",
    "kernel memory": "head -c 1 /proc/kcore",
    "kernel log": "head -c 1 /proc/kmsg",
    "disks": "ls /dev | grep -E '^(sd|vd|nvme|mem|kmsg|fuse|kvm)'",
    "kernel settings": "find /proc/sys -type f -writable -not -name ns_last_pid | grep .",
    "kernel triggers": "find /proc -maxdepth 1 -type f -writable | grep .",
    "host processes": "grep -l [p]ytest /proc/[0-9]*/cmdline",
    "more processes than its own": "ls -d /proc/[0-9][0-9][0-9][0-9]",
    "the first process' environment": "cat /proc/1/environ",
    "the first process' memory": "head -c 1 /proc/1/mem",
    "the first process' files": "readlink /proc/1/fd/[0-9]*",
    "the outpost's environment": "cat /proc/2/environ",
    "the outpost's memory": "head -c 1 /proc/2/mem",
    "the outpost's line": "echo forged > /proc/2/fd/1",
    "the keeper's memory": "head -c 1 /proc/$PPID/mem",
    "debugging the outpost": system_call(101 if IS_X86 else 117, 16, 2, 0, 0),
    "killing the first process": "kill -9 1; kill -INT 1; sleep 0.1; test ! -d /proc/1",
    "an inherited socket": "ls -l /proc/self/fd | grep socket",
    "writing to the system": "touch /usr/probe",
    "writing to programs": "touch /bin/probe || touch /usr/local/bin/probe",
    "writing to the root folder": "touch /probe || touch /home/probe",
    "writing to settings": "touch /etc/probe || echo x >> /etc/passwd",
    "writing to devices": "touch /dev/probe",
    "making a device": "mknod ~/disk b 254 0",
    "mounting": "mount -t tmpfs none /tmp",
    "making the system writable": "mount -o remount,rw /usr",
    "unmounting": "umount /etc/passwd",
    "a user namespace": "unshare -U true",
    "a user namespace by clone": system_call(number("clone"), 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0),
    "a mount namespace": "unshare -m true",
    "the namespaces of the first process": "nsenter -t 1 -a true",
    "another root folder": "chroot / true",
    "being root": python("import os; os.setuid(0)"),
    "the host's keyring": system_call(number("keyctl"), 0, -4, 0),
    "a key": system_call(number("add_key"), 0, 0, 0, 0, -3),
    "the hypervisor": python("import socket; socket.socket(40, socket.SOCK_STREAM)"),
    "raw packets": python("import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    "sockets past the filter": system_call(number("io_uring_setup"), 1, 0),
    "any route": "ip route 2>/dev/null | grep . || grep -v Iface /proc/net/route",
    "any other interface": "grep -v -E 'Inter|face|lo:' /proc/net/dev",
    "container daemons": "find / -xdev -type s 2>/dev/null | grep .",
}


@pytest.mark.parametrize("attempt", ESCAPES.values(), ids=ESCAPES.keys())
async def test_out_of_reach(walled: OutpostSandbox, attempt: str) -> None:
    seen = await run(walled, attempt)
    assert seen.exit_code not in (0, 127), seen.stdout.head


@needs_bwrap
async def test_the_servers_environment_is_not_inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hush-hush")
    async with opened(tmp_path) as sandbox:
        seen = await run(sandbox, "env; cat /proc/[0-9]*/environ; cat /proc/[0-9]*/cmdline")
        assert b"PATH=" in seen.stdout.head
        assert b"hush" not in seen.stdout.head
        assert str(tmp_path).encode() not in seen.stdout.head


@needs_bwrap
async def test_host_folders_are_not_there_by_their_names(tmp_path: Path) -> None:
    async with opened(tmp_path) as sandbox:
        for folder in (tmp_path, SOURCE, Path(sys.prefix)):
            with pytest.raises(FileProblem):
                await sandbox.list(str(folder))


@pytest.mark.parametrize("footing", [footing for footing in FOOTINGS if footing.step_down], indirect=True)
async def test_root_becomes_a_user_who_owns_nothing_of_the_host(footing: Footing, tmp_path: Path) -> None:
    async with opened(tmp_path) as sandbox:
        await run(sandbox, "touch ~/mine")
        assert (tmp_path / "local/local/home/mine").stat().st_uid == bwrap.STEP_DOWN_TO
        assert await say(sandbox, "find /proc /usr -maxdepth 2 -user root -perm 0400 -readable 2>/dev/null") == ""


# What stays


async def test_its_own_folders_stay_when_it_is_closed(footing: Footing, tmp_path: Path) -> None:
    async with opened(tmp_path) as sandbox:
        await run(sandbox, "echo kept > ~/file; echo kept too > /tmp/file; touch /app/file /workspace/file")
    async with opened(tmp_path) as sandbox:
        assert await say(sandbox, "cat ~/file /tmp/file /app/file /workspace/file") == "kept\nkept too"
        assert (await sandbox.read("file", Span())).data == b"kept\n"


async def test_opening_again_and_again_finds_no_leftovers_in_the_way(footing: Footing, tmp_path: Path) -> None:
    for _ in range(4):
        async with opened(tmp_path) as sandbox:
            assert {await say(sandbox, "echo ok") for _ in range(8)} == {"ok"}


@needs_bwrap
async def test_places_have_a_home_each(tmp_path: Path) -> None:
    async with opened(tmp_path, LocalPlace("one")) as one, opened(tmp_path, LocalPlace("two")) as two:
        await run(one, "touch ~/mine /tmp/mine")
        assert (await run(two, "ls ~/mine")).exit_code
        assert (await run(two, "ls /tmp/mine")).exit_code


async def test_other_users_of_the_host_cannot_enter(footing: Footing, tmp_path: Path) -> None:
    async with opened(tmp_path) as sandbox:
        await run(sandbox, "chmod 777 ~ /tmp")
    assert stat.S_IMODE((tmp_path / "local/local").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/", "../x", "a\0b", "-x"])
async def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        await open_local(LocalPlace(name), tmp_path)


# The network


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


NETWORKS = [
    pytest.param(Network(), id="nothing"),
    pytest.param(Network(Reach.OUTSIDE), id="outside", marks=needs_tun),
    pytest.param(Network(Reach.HOSTS, ("pypi.org",)), id="hosts"),
    pytest.param(Network(Reach.HOST), id="host"),
]


@pytest.mark.parametrize("network", NETWORKS)
async def test_the_hosts_loopback_is_reached_with_its_own_network_only(
    footing: Footing, listener: socket.socket, network: Network, tmp_path: Path
) -> None:
    port, abstract = listener.getsockname()[1], f"rsmcp-{os.getpid()}"
    code = f'import socket; socket.socket(socket.AF_UNIX).connect("\\0{abstract}")'
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{abstract}")
        server.listen()
        async with opened(tmp_path, LocalPlace(network=network)) as sandbox:
            seen = [await run(sandbox, script) for script in (f"exec 3<>/dev/tcp/127.0.0.1/{port}", python(code))]
            assert sandbox.description.capabilities.network == bool(network)
    is_shared = network.reach is Reach.HOST
    assert [one.exit_code == 0 for one in seen] == [is_shared, is_shared]


@needs_bwrap
async def test_without_slirp4netns_a_network_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(way, "find_slirp", str)
    monkeypatch.setattr(way, "_works", set())
    with pytest.raises(Unsupported, match="sudo apt install slirp4netns"):
        await open_local(LocalPlace(network=Network(Reach.OUTSIDE)), tmp_path)


@needs_bwrap
async def test_files_are_moved_without_a_network(tmp_path: Path) -> None:
    async with opened(tmp_path, LocalPlace(network=Network(Reach.HOST))) as sandbox:
        lane = await sandbox.open_lane()
        home = tmp_path / "local" / "local" / "home"
        shares = ["--unshare-net" not in _arguments(pid) for pid in processes.bubblewraps(home)]
        assert sorted(set(shares)) == [False, True]
        await lane.close()


async def test_abstract_sockets_of_the_host_are_out_of_reach(walled: OutpostSandbox) -> None:
    name = f"rsmcp-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        code = f'import socket; socket.socket(socket.AF_UNIX).connect("\\0{name}")'
        assert b"ConnectionRefused" in (await run(walled, python(code))).stderr.head


async def test_its_own_loopback_works(walled: OutpostSandbox) -> None:
    code = (
        'import socket; server = socket.create_server(("127.0.0.1", 0)); '
        "socket.create_connection(server.getsockname()); print(1)"
    )
    assert await say(walled, python(code)) == "1"


@needs_bwrap
async def test_names_are_resolved_as_on_the_host_with_its_network(tmp_path: Path) -> None:
    async with opened(tmp_path, LocalPlace(network=Network(Reach.HOST))) as sandbox:
        assert await say(sandbox, "cat /etc/hosts") == HOSTS


@needs_tun
@needs_bwrap
async def test_names_are_resolved_in_a_private_network(tmp_path: Path) -> None:
    async with opened(tmp_path, LocalPlace(network=Network(Reach.OUTSIDE))) as sandbox:
        assert await say(sandbox, "grep -v localhost /etc/hosts; cat /etc/resolv.conf") == "nameserver 10.0.2.3"


# Running


async def test_the_environment_of_the_place_is_given(footing: Footing, tmp_path: Path) -> None:
    environment = Environment(env={"GREETING": "it's me"}, init=("cd /tmp",))
    async with opened(tmp_path, LocalPlace(environment=environment)) as sandbox:
        assert await say(sandbox, 'echo "$GREETING in $PWD"') == "it's me in /tmp"


async def test_a_timeout_ends_the_whole_tree(walled: OutpostSandbox) -> None:
    mark = marked_sleep()
    seen = await run(walled, f"(setsid {mark} &); {mark}", timeout_s=0.3)
    assert (seen.ending, seen.exit_code, seen.survivors) == (Ending.TIMED_OUT, 124, ())
    assert not host_processes(mark)


async def test_orphans_are_collected(walled: OutpostSandbox) -> None:
    await run(walled, "for n in 1 2 3 4 5; do (setsid sleep 0.01 >/dev/null 2>&1 &); done")
    deadline = Deadline(GONE_S)
    while "sleep" in await say(walled, "cat /proc/[0-9]*/stat | grep -o '(sleep) Z' || true"):
        assert not deadline.has_passed()


async def test_many_at_once(walled: OutpostSandbox) -> None:
    said = await asyncio.gather(*(say(walled, f"sleep 0.2; echo {number}") for number in range(30)))
    assert said == [str(number) for number in range(30)]


async def test_much_output_comes_through(walled: OutpostSandbox) -> None:
    seen = await walled.run(Command("head -c 20000000 /dev/zero", keep=3_000_000))
    assert isinstance(seen, Completed)
    assert (seen.stdout.total, len(seen.stdout.head), len(seen.stdout.tail)) == (20_000_000, 3_000_000, 3_000_000)


# Ends


async def test_closing_ends_all_processes(footing: Footing, tmp_path: Path) -> None:
    mark = marked_sleep()
    async with opened(tmp_path) as sandbox:
        seen = await sandbox.run(Command(f"(setsid {mark} &); {mark}"), patience_s=0.2)
        assert isinstance(seen, Running)
        assert host_processes(mark)
    wait_until_gone(mark)


async def test_a_run_whose_sandbox_was_closed_is_reported_as_lost(footing: Footing, tmp_path: Path) -> None:
    command = Command("echo begun; sleep 60")
    async with opened(tmp_path) as sandbox:
        await sandbox.run(command, patience_s=0.3)
    async with opened(tmp_path) as sandbox:
        seen = await sandbox.observe(command.run_id)
        assert isinstance(seen, Missing)
        assert seen.stdout.head == b"begun\n"


async def test_a_run_that_kills_the_outpost_is_reported_as_lost(footing: Footing, tmp_path: Path) -> None:
    mark = marked_sleep()
    async with opened(tmp_path) as sandbox:
        bystander = asyncio.create_task(run(sandbox, mark))
        with pytest.raises(LostContact) as caught:
            await run(sandbox, "sleep 0.2; kill -9 -1; sleep 60")
        assert caught.value.outcome == "lost"
        with pytest.raises(LostContact):
            await bystander
        assert await say(sandbox, "echo back") == "back"
        wait_until_gone(mark)


NEAR_SIDE = """
import asyncio, sys
from pathlib import Path
from remote_sandbox_mcp.backends.bubblewrap.local import open_local
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace

async def main():
    sandbox = await open_local(LocalPlace(), Path(sys.argv[1]))
    print(await sandbox.run(Command(sys.argv[2]), patience_s=float(sys.argv[3])), flush=True)
    if float(sys.argv[3]) < 1:
        await asyncio.sleep(60)
    await sandbox.close()

asyncio.run(main())
"""


def near_side(*arguments: str, python: str = sys.executable, user: int | None = None) -> subprocess.Popen[bytes]:
    """A server of its own, as a process."""
    return subprocess.Popen(
        [python, "-W", "error", "-c", NEAR_SIDE, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )


# With the outpost stopped nobody inside sees the line end: only the kernel is left to act.
DEAF = "kill -STOP $(ps -o ppid= -p $PPID); "


@needs_bwrap
@pytest.mark.parametrize("prelude", ["", DEAF], ids=["listening", "deaf"])
def test_a_server_that_is_killed_leaves_nothing(prelude: str, tmp_path: Path) -> None:
    mark = marked_sleep()
    with near_side(str(tmp_path), f"(setsid {mark} &); {prelude}{mark}", "0.5") as server:
        assert server.stdout
        assert b"Running" in server.stdout.readline()
        assert len(host_processes(mark)) >= 2
        server.kill()
    wait_until_gone(mark)
    wait_until_gone(str(tmp_path))


async def test_closing_ends_an_outpost_that_does_not_listen(footing: Footing, tmp_path: Path) -> None:
    mark = marked_sleep()
    async with opened(tmp_path) as sandbox:
        await sandbox.run(Command(f"{DEAF}{mark}"), patience_s=0.3)
    wait_until_gone(mark)


@needs_root
@needs_bwrap
@pytest.mark.skipif(not os.access(SYSTEM_PYTHON, os.X_OK), reason="other users may not enter this Python's folder")
def test_an_ordinary_user_can_have_a_local_sandbox() -> None:
    user = 61_200
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, user, user)
        with near_side(folder, "id -u; cat /etc/shadow", "20", python=SYSTEM_PYTHON, user=user) as server:
            said, complaints = server.communicate(timeout=30)
    assert b"1000\\n" in said, complaints
    assert b"No such file" in said


@needs_bwrap
@pytest.mark.parametrize(
    "network", [Network(), pytest.param(Network(Reach.OUTSIDE), marks=needs_tun)], ids=["no-network", "network"]
)
async def test_without_a_system_python_ours_is_lent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, network: Network
) -> None:
    monkeypatch.setattr(bwrap, "SYSTEM_PYTHON", tmp_path / "python3")
    async with opened(tmp_path, LocalPlace(network=network)) as sandbox:
        assert sandbox.hello["python"] == ".".join(map(str, sys.version_info[:3]))
        assert (await run(sandbox, "touch /opt/python/probe || touch /opt/python/lib/probe")).exit_code
        assert await say(sandbox, "echo $LD_LIBRARY_PATH") == ""


@needs_bwrap
@pytest.mark.parametrize("kind", [walls.MAGIC_NUMBER, b"another"], ids=["of-our-kind", "of-another-kind"])
async def test_a_python_of_another_kind_compiles_for_itself(
    kind: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(walls, "MAGIC_NUMBER", kind)
    async with opened(tmp_path) as sandbox:
        assert await say(sandbox, "echo works") == "works"


# What it says of itself


def test_it_is_described_before_it_is_opened() -> None:
    description = describe(LocalPlace("box"))
    assert (description.name, description.kind) == ("box", "local")
    assert description.capabilities == Capabilities(kills_trees=True, network=False, is_this_computer=True)
    assert describe(LocalPlace(network=Network(Reach.HOSTS, ("pypi.org",)))).capabilities.network
