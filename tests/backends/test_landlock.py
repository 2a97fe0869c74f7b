"""Ways out of a sandbox that has no namespaces, each tried with what old and new kernels hold."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import remote_sandbox_mcp
from remote_sandbox_mcp.backends.bubblewrap import landlock
from remote_sandbox_mcp.backends.bubblewrap.local import open_local
from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.errors import Unsupported
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sandboxes.network import Network, Reach
from remote_sandbox_mcp.far.outpost import guard
from tests.support.disposables import host_processes, marked_sleep, number
from tests.support.means import IS_ROOT

HERE = guard.landlock_version()
pytestmark = pytest.mark.skipif(not HERE, reason="this kernel has no Landlock")
# What Linux 5.13, 6.2, 6.10 and this one hold.
VERSIONS = sorted({version for version in (1, 3, 5, HERE) if version <= HERE})
STRANGER = 61_350
SOURCE = str(Path(remote_sandbox_mcp.__file__).parents[1])
CONFINED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from remote_sandbox_mcp.far.outpost import guard
home, version, user, network = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "network"
readable = [sys.argv[8], "/usr", "/bin", "/lib", "/lib64", "/proc", "/etc/passwd", "/etc/ld.so.cache", sys.base_prefix]
plan = dict(version=version, writable=[home], readable=readable, devices=["/dev/null"], network=network, outlives=False)
guard.fork_guarded(user, {}, plan)
os.chdir(home)
os.execve(sys.argv[6], [sys.argv[6], "-IS", "-c", sys.argv[7]], {"PATH": "/usr/bin:/bin", "HOME": home})
"""


@dataclass(frozen=True)
class Confined:
    """A program behind Landlock, and what lies outside of its folder."""

    home: Path
    outside: Path
    lent: Path
    version: int

    def run(self, program: str, *, network: str = "") -> str:
        """Run Python source inside; returns what it printed. `OUTSIDE` is the folder outside, `LENT` can be read."""
        source = program.replace("OUTSIDE", str(self.outside)).replace("LENT", str(self.lent))
        words = [sys.executable, "-c", CONFINED, SOURCE, str(self.home), str(self.version), str(self.user), network]
        words.append(str(landlock.python_outside()))
        done = subprocess.run(
            [*words, source, str(self.lent)], capture_output=True, text=True, timeout=120, check=False
        )
        return done.stdout + done.stderr

    @property
    def user(self) -> int:
        return STRANGER if IS_ROOT else 0


@pytest.fixture(params=VERSIONS, ids=lambda version: f"landlock {version}")
def confined(request: pytest.FixtureRequest) -> Iterator[Confined]:
    # Reachable for another user, as the folders of pytest are not.
    folder = Path(tempfile.mkdtemp(prefix="rsmcp-landlock-"))
    folder.chmod(0o711)
    home, outside, lent = folder / "home", folder / "outside", folder / "lent"
    for each in (home, outside, lent):
        each.mkdir(mode=0o755)
        (each / "file").write_text("untouched")
    (home / "file").unlink()
    if IS_ROOT:
        for each in (home, outside, outside / "file", lent, lent / "file"):
            os.chown(each, STRANGER, STRANGER)
    yield Confined(home, outside, lent, request.param)
    shutil.rmtree(folder)


TRY = """
import ctypes, fcntl, os, resource, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
def lent():
    return os.open("LENT/file", os.O_RDONLY)
def attempt(what):
    try:
        print("done:", what())
    except OSError as problem:
        print("refused:", problem.errno)
def beside(address, family, port):
    own = socket.create_server((address, port), family=family)
    return socket.create_connection(("127.0.0.1", port), 5)
"""
# Each of these changes something outside, or reads it, where nothing holds it: they belong to the same user.
WAYS_OUT = {
    "read": "open('OUTSIDE/file').read()",
    "list": "os.listdir('OUTSIDE')",
    "write": "open('OUTSIDE/file', 'w')",
    "make": "open('OUTSIDE/new', 'w')",
    "remove": "os.unlink('OUTSIDE/file')",
    "rename away": "os.rename('OUTSIDE/file', 'taken')",
    "hard link": "os.link('OUTSIDE/file', 'taken')",
    "truncate": "os.truncate('OUTSIDE/file', 0)",
    "open to empty it": "os.open('OUTSIDE/file', os.O_RDONLY | os.O_TRUNC)",
    "mode": "os.chmod('OUTSIDE/file', 0o777)",
    "mode through a link": "(os.symlink('OUTSIDE/file', 'link'), os.chmod('link', 0o777))",
    "mode through a folder's link": "(os.symlink('OUTSIDE', 'there'), os.chmod('there/file', 0o777))",
    "mode by a parent": "os.chmod('../outside/file', 0o777)",
    "owner": "os.chown('OUTSIDE/file', os.getuid(), os.getgid())",
    "times": "os.utime('OUTSIDE/file', (1, 1))",
    "times of the folder": "os.utime('OUTSIDE', (1, 1))",
    "mode by a descriptor": "os.chmod(lent(), 0o777)",
    "mode by the name of a descriptor": "os.chmod('/proc/self/fd/%d' % lent(), 0o777)",
    "mode without a path": f"call({number('fchmodat2')}, lent(), b'', 0o777, 0x1000)",
    "owner by a descriptor": "os.chown(lent(), os.getuid(), os.getgid())",
    "times by a descriptor": "os.utime(lent(), (1, 1))",
    "times of a folder by a descriptor": "os.utime(os.open('LENT', os.O_RDONLY), (1, 1))",
    "attribute by a descriptor": "os.setxattr(lent(), 'user.x', b'1')",
    "flags by a descriptor": "fcntl.ioctl(lent(), 0x40086602, (0x40).to_bytes(8, 'little'))",
    "verity by a descriptor": "fcntl.ioctl(lent(), 0x40806685, bytes(128))",
    "a program that runs as its owner": "os.open('tool', os.O_CREAT | os.O_WRONLY, 0o4755)",
    "one by its mode": "(open('tool', 'w'), os.chmod('tool', 0o4755))",
    "one by its group": "(open('tool', 'w'), os.chmod('tool', 0o2755))",
    "shared memory by number": f"call({number('shmat')}, SHARED, None, 0)",
    "its end": f"call({number('shmctl')}, SHARED, 0, None)",
    "a set of semaphores": f"call({number('semctl')}, 0, 0, 12, 0)",
    "attribute": "os.setxattr('OUTSIDE/file', 'user.x', b'1')",
    "memory of another process": "open('/proc/%d/environ' % PID).read()",
    "signal": "os.kill(PID, signal.SIGKILL)",
    "signal to a group": "os.killpg(os.getpgid(PID), signal.SIGKILL)",
    "signal to all": "os.kill(-1, signal.SIGTERM)",
    "priority of another process": "os.setpriority(os.PRIO_PROCESS, PID, 9)",
    "priority of all": "os.setpriority(os.PRIO_USER, 0, 9)",
    "processors of another process": "os.sched_setaffinity(PID, {0})",
    "scheduling of another process": "os.sched_setscheduler(PID, os.SCHED_IDLE, os.sched_param(0))",
    "disk priority of another process": f"call({number('ioprio_set')}, 1, PID, 3 << 13)",
    "limits of another process": "resource.prlimit(PID, resource.RLIMIT_CPU, (1, 1))",
    "a socket's path": "socket.socket(socket.AF_UNIX).connect('OUTSIDE/socket')",
    "an abstract socket": "socket.socket(socket.AF_UNIX).connect(chr(0) + 'rsmcp-test')",
    "datagrams of this computer": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "datagrams from a pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "a port of this computer": "socket.create_connection(('127.0.0.1', PORT), 5)",
    "its port on all addresses": "socket.create_connection(('0.0.0.0', PORT), 5)",
    "its port beside one of one's own": "beside('127.0.0.2', socket.AF_INET, PORT)",
    "its port beside one of version 6": "beside('::1', socket.AF_INET6, PORT)",
    "another computer": "socket.create_connection(('192.0.2.1', 80), 5)",
    "datagrams": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "fast open": "socket.socket().sendto(b'x', 0x20000000, ('127.0.0.1', PORT))",
    "another protocol": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
    "raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "packets of the kernel": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "shared memory": "open('/dev/shm/rsmcp-test', 'w')",
    "another's terminal": "os.open('/dev/ptmx', os.O_RDWR)",
}


@pytest.fixture
def neighbour(confined: Confined) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user outside, which a sandbox must leave alone."""
    who = {"user": STRANGER, "group": STRANGER, "extra_groups": []} if IS_ROOT else {}
    with subprocess.Popen(["sleep", "300"], start_new_session=True, **who) as process:  # type: ignore[call-overload]
        yield process
        process.kill()


@pytest.fixture
def service(confined: Confined) -> Iterator[int]:
    """A port and two sockets outside at which somebody listens."""
    with socket.socket() as port, socket.socket(socket.AF_UNIX) as path, socket.socket(socket.AF_UNIX) as name:
        port.bind(("127.0.0.1", 0))
        path.bind(str(confined.outside / "socket"))
        (confined.outside / "socket").chmod(0o777)
        name.bind(b"\0rsmcp-test-%d" % os.getpid())
        for each in (port, path, name):
            each.listen()
        yield port.getsockname()[1]


def test_nothing_outside_can_be_read_changed_or_reached(
    confined: Confined, neighbour: subprocess.Popen[bytes], service: int
) -> None:
    libc = ctypes.CDLL(None)
    segment = libc.shmget(0, 4096, 0o1666)
    known = f"PID, PORT, SHARED = {neighbour.pid}, {service}, {segment}\n"
    tries = "".join(f"print({name!r}, end=' '); attempt(lambda: {way})\n" for name, way in WAYS_OUT.items())
    tries = tries.replace("'rsmcp-test'", f"'rsmcp-test-{os.getpid()}'", 1)
    files = confined.outside / "file", confined.lent / "file", confined.lent
    before = [(file.stat().st_mode, file.stat().st_mtime, file.stat().st_uid) for file in files]
    said = confined.run(TRY + known + tries)
    # Where the kernel keeps signals inside, one to all reaches only its own.
    allowed = ["signal to all done: None"]
    assert [line for line in said.splitlines() if "refused:" not in line and line not in allowed] == []
    assert len(said.splitlines()) == len(WAYS_OUT)
    assert [(file.stat().st_mode, file.stat().st_mtime, file.stat().st_uid) for file in files] == before
    # It is removed as the last one lets go of it.
    assert libc.shmctl(segment, 0, None) == 0
    assert (confined.outside / "file").read_text() == "untouched"
    assert sorted(os.listdir(confined.outside)) == ["file", "socket"]
    assert neighbour.poll() is None


BY_DESCRIPTOR = """
import fcntl, os, signal
ours, theirs = os.pipe()
for own in (PID, -os.getpgid(PID)):
    try:
        fcntl.fcntl(ours, 10, signal.SIGKILL)
        fcntl.fcntl(ours, fcntl.F_SETOWN, own)
        fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)
    except OSError:
        continue
    os.write(theirs, b"x")
for request, form in ((15, "ii"), (0x8901, "i"), (0x8902, "i")):
    import struct
    value = struct.pack(form, *((1, PID) if form == "ii" else (PID,)))
    try:
        (fcntl.fcntl if request == 15 else fcntl.ioctl)(ours, request, value)
        os.write(theirs, b"x")
    except OSError:
        pass
fcntl.fcntl(ours, fcntl.F_SETOWN, os.getpid())
print("tried")
"""


def test_a_descriptor_sends_no_signal_outside(confined: Confined, neighbour: subprocess.Popen[bytes]) -> None:
    assert (
        confined.run(BY_DESCRIPTOR.replace("PID", str(neighbour.pid), 1).replace("PID", str(neighbour.pid)))
        == "tried\n"
    )
    assert neighbour.poll() is None


def test_an_address_exchanged_while_it_is_bound_is_not_listened_at(confined: Confined) -> None:
    """A thread changes the address all the time: no port is served for other computers."""
    racing = """
import threading, struct
good = struct.pack("=H", 1) + b"name" + bytes(10)
bad = struct.pack("=HHI", 2, 0, 0) + bytes(8)
address, libc, open_to_all = ctypes.create_string_buffer(good, 16), ctypes.CDLL(None, use_errno=True), []
def exchange():
    while True:
        ctypes.memmove(address, bad, 16); ctypes.memmove(address, good, 16)
threading.Thread(target=exchange, daemon=True).start()
for _ in range(1000):
    server = socket.socket()
    libc.bind(server.fileno(), address, 16)
    if libc.listen(server.fileno(), 5) == 0 and server.getsockname()[0] == "0.0.0.0":
        open_to_all.append(server.getsockname())
    server.close()
print(open_to_all)
"""
    assert confined.run(TRY + racing) == "[]\n"


AT_WORK = """
import subprocess, threading
os.mkdir("folder")
open("folder/file", "w").write("own")
os.chmod("folder/file", 0o640); os.utime("folder/file", (7, 7)); subprocess.run(["mv", "folder/file", "file"])
print(oct(os.stat("file").st_mode), os.stat("file").st_mtime)
os.symlink("file", "link"); os.utime("link", (9, 9), follow_symlinks=False); print(os.lstat("link").st_mtime)
folder = os.open("folder", os.O_RDONLY); open("folder/other", "w"); os.chmod("other", 0o600, dir_fd=folder)
print(oct(os.stat("folder/other").st_mode))
server = socket.socket(); server.bind(("0.0.0.0", 0)); server.listen(); print(server.getsockname()[0])
socket.create_connection(("127.0.0.1", server.getsockname()[1]), 5).close(); print("connected")
unbound = socket.socket(); unbound.listen(); print(unbound.getsockname()[0])
local = socket.socket(socket.AF_UNIX); local.bind("socket"); local.listen()
client = socket.socket(socket.AF_UNIX); client.connect("socket"); client.send(b"x"); print(local.accept()[0].recv(1))
own = open("file", "r+"); os.chmod(own.fileno(), 0o2640); os.utime(own.fileno(), (5, 5))
os.fchown(own.fileno(), -1, -1)
print(oct(os.stat("file").st_mode), os.stat("file").st_mtime); os.truncate("file", 1); print(os.path.getsize("file"))
os.chmod("folder", 0o2755); os.chmod("file", 0o640); os.fchmod(client.fileno(), 0o600)
os.fchmod(os.memfd_create("x"), 0o600)
os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0)); os.setpriority(os.PRIO_PROCESS, 0, 19)
thread = threading.Thread(target=lambda: os.sched_setaffinity(threading.get_native_id(), os.sched_getaffinity(0)))
thread.start(); thread.join()
child = subprocess.Popen(["sleep", "300"]); child.terminate(); print(child.wait())
child = subprocess.Popen(["sleep", "300"], start_new_session=True); os.killpg(child.pid, 9); print(child.wait())
for words in (["chmod", "+x", "file"], ["touch", "-d", "2001-01-01", "file"]):
    print(subprocess.run(words).returncode)
"""


def test_what_programs_do_in_their_own_folder_works(confined: Confined) -> None:
    said = confined.run(TRY + AT_WORK).splitlines()
    assert said == [
        "0o100640 7.0",
        "9.0",
        "0o100600",
        "127.0.0.1",
        "connected",
        "127.0.0.1",
        "b'x'",
        "0o102640 5.0",
        "1",
        "-15",
        "-9",
        "0",
        "0",
    ]


def test_what_detaches_itself_ends_with_the_sandbox(confined: Confined) -> None:
    # A number that no other test uses at the same time.
    mine = f"{os.getpid()}.{time.monotonic_ns()}"
    detached = "import subprocess, os\n" + "".join(
        f"subprocess.Popen(['sleep', '{mine}'], start_new_session={alone})\n" for alone in (True, False)
    )
    confined.run(detached)
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"sleep {mine}" not in running


def test_an_address_cannot_be_exchanged_while_it_is_checked(confined: Confined, service: int) -> None:
    """A thread changes the address all the time: what was checked is what is connected."""
    racing = f"""
import threading, struct, time
own = socket.socket(); own.bind(("127.0.0.1", 0)); own.listen(128)
good = struct.pack("=H", 2) + struct.pack("!H", own.getsockname()[1]) + bytes([127, 0, 0, 1]) + bytes(8)
bad = struct.pack("=H", 2) + struct.pack("!H", {service}) + bytes([127, 0, 0, 1]) + bytes(8)
address = ctypes.create_string_buffer(good, 16)
def exchange():
    while True:
        ctypes.memmove(address, bad, 16); ctypes.memmove(address, good, 16)
threading.Thread(target=exchange, daemon=True).start()
libc, reached = ctypes.CDLL(None, use_errno=True), []
for _ in range(60):
    client = socket.socket()
    if libc.connect(client.fileno(), address, 16) == 0:
        reached.append(client.getpeername()[1])
    client.close()
print(set(reached) <= {{own.getsockname()[1]}}, len(reached) > 0)
"""
    assert confined.run(TRY + racing).split() == ["True", "True"]


NONSENSE = """
import mmap
pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
libc = ctypes.CDLL(None, use_errno=True)
libc.munmap(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE)
end = ctypes.c_void_p(start + mmap.PAGESIZE - 1)
client = socket.socket()
open("file", "w")
for call in (
    lambda: libc.connect(client.fileno(), end, 16), lambda: libc.bind(client.fileno(), end, 28),
    lambda: libc.connect(client.fileno(), None, 1 << 31), lambda: libc.connect(9999, end, 2),
    lambda: libc.chmod(end, 0o600), lambda: libc.chmod(None, 0o600), lambda: libc.utimensat(-100, b"file", end, 0),
    lambda: libc.fchmodat(-7, b"file", 0o600, 0), lambda: libc.listen(0, 5),
):
    print(call(), end=" ")
os.chmod("file", 0o640)
print(oct(os.stat("file").st_mode))
"""


def test_arguments_that_make_no_sense_do_not_end_the_supervisor(confined: Confined) -> None:
    assert confined.run(TRY + NONSENSE).split() == ["-1"] * 9 + ["0o100640"]


async def test_a_network_that_cannot_be_held_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "REACHABLE", tmp_path / "reachable")
    place = LocalPlace(network=Network(Reach.OUTSIDE), walls="landlock")
    with pytest.raises(Unsupported, match="cannot have a network of its own where namespaces are forbidden"):
        await open_local(place, tmp_path)


async def test_what_is_not_held_is_said_with_the_limits(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reachable = Path(tempfile.mkdtemp(prefix="rsmcp-reachable-"))
    monkeypatch.setattr(landlock, "REACHABLE", reachable)
    sandbox = await open_local(LocalPlace(walls="landlock"), tmp_path)
    try:
        assert sandbox.limits.told[0].startswith(f"walls: Landlock {HERE} instead of namespaces: ")
        done = await sandbox.run(Command("id -u; echo x >$TMPDIR/x && cat $TMPDIR/x"))
        assert isinstance(done, Completed)
        user = str(landlock.STEP_DOWN_TO if IS_ROOT else os.geteuid())
        assert done.stdout.head.decode().split() == [user, "x"]
    finally:
        await sandbox.close()
        shutil.rmtree(reachable)


async def test_a_large_file_is_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "REACHABLE", reachable := Path(tempfile.mkdtemp(prefix="rsmcp-reachable-")))
    sandbox = await open_local(LocalPlace(walls="landlock"), tmp_path)
    lane = await sandbox.open_lane()
    try:
        await lane.begin({"verb": "begin", "root": "~/made", "size": 5}, b"\0large\0key")
        await lane.begin({"verb": "commit", "root": "~/made", "size": 5, "mtime": 10**18, "mode": 0o640}, b"key")
        done = await sandbox.run(Command("stat -c '%s %a %Y' made/large"))
        assert isinstance(done, Completed)
        assert done.stdout.head == b"5 640 1000000000\n"
    finally:
        await lane.close()
        await sandbox.close()
        shutil.rmtree(reachable)


async def test_a_paused_sandbox_leaves_nothing_when_its_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reachable = Path(tempfile.mkdtemp(prefix="rsmcp-reachable-"))
    monkeypatch.setattr(landlock, "REACHABLE", reachable)
    mark = marked_sleep()
    provider = EmbeddedProvider(tmp_path, rules=DisposableRules(walls="landlock"))
    made = await provider.create(new_disposable_id(), SandboxOrder())
    await (await provider.open(made)).run(Command(f"setsid {mark} & {mark}"), patience_s=0.1)
    await provider.pause(made)
    await provider.close()
    shutil.rmtree(reachable)
    assert not host_processes(mark)
