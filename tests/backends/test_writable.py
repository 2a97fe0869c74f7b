"""A machine on which only some folders may be written: held by its kernel against what an agent would try."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.ssh.connection import LoginGate
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.backends.ssh.openssh import choose_transport, open_over_openssh
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.errors import ConnectError, FileProblem
from remote_sandbox_mcp.core.sandboxes.machine import Machine, OpenSsh
from remote_sandbox_mcp.core.sandboxes.port import PortClosed
from remote_sandbox_mcp.far import program
from remote_sandbox_mcp.far.outpost import guard
from remote_sandbox_mcp.services.transfers.service import routes_between
from tests.support.means import require_program
from tests.support.sshd import Fleet, Sshd

pytestmark = pytest.mark.skipif(not guard.landlock_version(), reason="this kernel has no Landlock")
PROJECT = ("~/project",)
KINDS = ("landlock", "bubblewrap")


@pytest.fixture(scope="module")
def sshd(fleet: Fleet) -> Sshd:
    require_program("tmux")
    made = fleet.machine("walled")
    by_hand(made, "mkdir -p project other; echo untouched >other/file; tmux new-session -d -s theirs 'sleep 600'")
    return made


@pytest.fixture(scope="module", autouse=True)
def no_tmux_is_left(sshd: Sshd) -> Iterator[None]:
    yield
    by_hand(sshd, "tmux kill-server")


@pytest.fixture
async def sandbox(sshd: Sshd, tmp_path: Path) -> AsyncIterator[OutpostSandbox]:
    opened = await opened_with(sshd.machine(writable=PROJECT), tmp_path)
    yield opened
    await opened.close()


async def opened_with(machine: Machine, folder: Path) -> OutpostSandbox:
    opened = await open_machine(machine, folder / "known_hosts")
    assert isinstance(opened, OutpostSandbox)
    return opened


def by_hand(sshd: Sshd, line: str, given: bytes = b"") -> str:
    """What the user's own shell prints, which has no walls."""
    done = subprocess.run(sshd.client(line), input=given, capture_output=True, check=False, timeout=60)
    return (done.stdout + done.stderr).decode()


def within(sshd: Sshd, kind: str, line: str, *writable: str) -> str:
    """What a line prints within walls of this kind."""
    start, sent = program.walled(line, "python3", writable)
    if kind == "bubblewrap":
        text = zlib.decompress(sent).replace(b"\nbuild(", b"\nlandlock_version = lambda: 0\nbuild(", 1)
        sent = zlib.compress(text)
        start = f"exec python3 -IS -c '{program.loader_of(len(sent))}'"
    return by_hand(sshd, start, sent)


async def said(sandbox: OutpostSandbox, script: str) -> str:
    done = await sandbox.run(Command(script))
    assert isinstance(done, Completed), done
    return (done.stdout.head + done.stderr.head).decode()


ATTACKS = """
import ctypes, fcntl, os, pty, socket, subprocess, sys, termios
def attempt(name, what):
    try:
        print(name, "done:", what())
    except (OSError, subprocess.CalledProcessError) as problem:
        print(name, "refused:", problem)
def run(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30).stdout
port, outside, tmux = int(sys.argv[1]), "other/file", "/tmp/tmux-%d/default" % os.getuid()
attempt("write", lambda: open(outside, "w"))
attempt("append", lambda: open(outside, "a"))
attempt("make", lambda: open("other/new", "w"))
attempt("login file", lambda: open(".bashrc", "a"))
attempt("login folder", lambda: os.makedirs(".config/autostart"))
attempt("remove", lambda: os.unlink(outside))
attempt("rename", lambda: os.rename(outside, "project/taken"))
attempt("mode", lambda: os.chmod(outside, 0o777))
attempt("times", lambda: os.utime(outside, (1, 1)))
attempt("attribute", lambda: os.setxattr(outside, "user.x", b"1"))
opened = lambda: os.open(outside, os.O_RDONLY)
attempt("mode by a descriptor", lambda: os.chmod(opened(), 0o777))
attempt("mode by its name", lambda: os.chmod("/proc/self/fd/%d" % opened(), 0o777))
attempt("owner by a descriptor", lambda: os.chown(opened(), os.getuid(), os.getgid()))
attempt("times by a descriptor", lambda: os.utime(opened(), (1, 1)))
attempt("attribute by a descriptor", lambda: os.setxattr(opened(), "user.x", b"1"))
attempt("flags by a descriptor", lambda: fcntl.ioctl(opened(), 0x40086602, (0x40).to_bytes(8, "little")))
attempt("link", lambda: os.link(outside, "project/hard"))
attempt("a program that runs as its owner", lambda: os.open("project/tool", os.O_CREAT | os.O_WRONLY, 0o4755))
attempt("one by its mode", lambda: (open("project/tool", "w"), os.chmod("project/tool", 0o4755)))
attempt("empty", lambda: os.open(outside, os.O_RDONLY | os.O_TRUNC))
attempt("through a link", lambda: (os.symlink(os.path.abspath(outside), "project/link"), open("project/link", "w")))
attempt("a file in /tmp", lambda: open("/tmp/rsmcp-planted-%d" % os.getuid(), "w"))
attempt("records of others", lambda: os.makedirs("/tmp/remote-sandbox-%d" % os.getuid()))
attempt("records at home", lambda: os.makedirs(".local/state/remote-sandbox/jobs"))
attempt("sudo", lambda: run("sudo", "-n", "id"))
def rights():
    if run("other/suid", "-u") .strip() != b"0":
        raise OSError("refused: it ran without rights")
attempt("a program of root's", rights)
attempt("su", lambda: run("su", "-c", "id"))
attempt("another session's tmux", lambda: run("tmux", "-S", tmux, "run-shell", "echo >other/file"))
attempt("its socket", lambda: socket.socket(socket.AF_UNIX).connect(tmux))
attempt("sshd here", lambda: socket.create_connection(("127.0.0.1", port), 5))
attempt("sshd on all", lambda: socket.create_connection(("0.0.0.0", port), 5))
attempt("sshd by version 6", lambda: socket.create_connection(("::ffff:127.0.0.1", port), 5))
def beside():
    own = socket.create_server(("127.0.0.2", port))
    return socket.create_connection(("127.0.0.1", port), 5)
attempt("sshd beside one's own", beside)
attempt("docker", lambda: socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock"))
attempt("bus", lambda: socket.socket(socket.AF_UNIX).connect("/run/dbus/system_bus_socket"))
attempt("datagrams", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
attempt("an abstract socket", lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + sys.argv[3]))
attempt("a descriptor by a socket", lambda: socket.socket(socket.AF_UNIX).connect("other/socket"))
attempt("cron", lambda: run("crontab", "-l"))
attempt("cron's folder", lambda: open("/var/spool/cron/crontabs/x", "w"))
attempt("at", lambda: subprocess.run(["at", "now"], input=b"touch other/new", check=True, stderr=subprocess.PIPE))
attempt("a unit of systemd", lambda: os.makedirs(".config/systemd/user"))
attempt("systemd-run", lambda: run("systemd-run", "--user", "touch", "other/new"))
parent = os.getppid()
attempt("the supervisor's memory", lambda: open("/proc/%d/mem" % parent, "r+b"))
attempt("the supervisor's root", lambda: open("/proc/%d/root/home" % parent))
attempt("namespaces", lambda: run("unshare", "-Urm", "mount", "-o", "remount,rw", "/"))
attempt("mounting", lambda: run("unshare", "-Urm", "mount", "--bind", "/tmp", "project"))
libc = ctypes.CDLL(None, use_errno=True)
def io_uring():
    if libc.syscall(425, 8, ctypes.create_string_buffer(120)) < 0:
        raise OSError(ctypes.get_errno(), "refused")
attempt("io_uring", io_uring)
def typed():
    if os.fork() == 0:
        near, far = pty.openpty()
        os.setsid()
        fcntl.ioctl(far, termios.TIOCSCTTY, 0)
        try:
            fcntl.ioctl(far, termios.TIOCSTI, b"x")
        except OSError as problem:
            os._exit(problem.errno)
        os._exit(0)
    if os.WEXITSTATUS(os.wait()[1]):
        raise OSError("refused")
attempt("typing into a terminal", typed)
def handle():
    if libc.open_by_handle_at(opened(), ctypes.create_string_buffer(bytes(16)), os.O_WRONLY) < 0:
        raise OSError(ctypes.get_errno(), "refused")
attempt("a file by its handle", handle)
def debug():
    if libc.ptrace(16, int(sys.argv[2]), 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "refused")
attempt("debugging a process outside", debug)
attempt("memory of a process outside", lambda: open("/proc/%s/mem" % sys.argv[2], "r+b"))
attempt("a process outside", lambda: open("/proc/%s/root/etc/passwd" % sys.argv[2]))
open("project/made", "w").write("own")
os.chmod("project/made", 0o640)
print("own", oct(os.stat("project/made").st_mode))
served = socket.create_server(("127.0.0.1", 0))
socket.create_connection(served.getsockname(), 5)
print("served")
"""


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_agent_would_try_is_held(sshd: Sshd, kind: str) -> None:
    if kind == "bubblewrap":
        require_program("bwrap")
    (sshd.folder / "attacks.py").write_text(ATTACKS)
    suid, abstract = sshd.home / "other/suid", f"rsmcp-walls-{os.getpid()}-{kind}"
    shutil.copy("/usr/bin/id", suid)
    suid.chmod(0o4755)
    with socket.socket(socket.AF_UNIX) as name, socket.socket(socket.AF_UNIX) as path:
        name.bind(f"\0{abstract}")
        path.bind(str(sshd.home / "other/socket"))
        (sshd.home / "other/socket").chmod(0o777)
        for each in (name, path):
            each.listen()
        seen = attacked(sshd, kind, abstract)
    for planted in ("suid", "socket"):
        (sshd.home / "other" / planted).unlink()
    allowed = ["own 0o100640", "served"]
    assert [line for line in seen if "refused" not in line and line not in allowed] == []
    assert {"own 0o100640", "served"} <= {*seen}
    assert len(seen) > 50
    assert by_hand(sshd, "cat other/file; ls other; tmux ls -F '#S'") == "untouched\nfile\ntheirs\n"
    by_hand(sshd, "rm -f project/link project/made project/tool")


def attacked(sshd: Sshd, kind: str, abstract: str) -> list[str]:
    before = (sshd.home / "other/file").stat()
    tmux = by_hand(sshd, "tmux display-message -p -t theirs '#{pid}'").strip()
    seen = within(sshd, kind, f"python3 {sshd.folder}/attacks.py {sshd.port} {tmux} {abstract}", *PROJECT)
    after = (sshd.home / "other/file").stat()
    assert (after.st_mode, after.st_mtime, after.st_uid) == (before.st_mode, before.st_mtime, before.st_uid)
    return seen.splitlines()


async def test_every_door_leads_within_the_walls(sandbox: OutpostSandbox, sshd: Sshd) -> None:
    assert sandbox.description.writable == "~/project"
    with pytest.raises(FileProblem, match="ermission denied"):
        await sandbox.write("other/file", b"changed")
    await sandbox.write("project/file", b"own")
    line = await sandbox.start("echo changed >other/file; cat project/file; exit 7")  # type: ignore[attr-defined]
    output = b"".join([part async for part in parts_of(line)])
    assert output.endswith(b"own")
    # sshd itself would reach what the walls do not.
    with pytest.raises(PortClosed):
        await sandbox.connect(sshd.port)
    assert by_hand(sshd, "cat other/file") == "untouched\n"


async def parts_of(line: object) -> AsyncIterator[bytes]:
    while data := await line.read():  # type: ignore[attr-defined]
        yield data


SERVE = """
import os, socket
served = socket.create_server(("127.0.0.1", 0))
print(served.getsockname()[1], flush=True)
if not os.fork():
    os.closerange(0, 3)
    served.accept()[0].sendall(b"hi")
"""


async def test_a_port_that_is_served_within_is_reached(sandbox: OutpostSandbox) -> None:
    port = await said(sandbox, f"python3 -c '{SERVE}'")
    stream = await sandbox.connect(int(port))
    assert await stream.read() == b"hi"
    stream.close()


async def test_the_same_holds_over_openssh(sshd: Sshd, tmp_path: Path) -> None:
    client = OpenSsh((shutil.which("ssh") or "ssh", "-F", "none"), sshd.user + "@" + sshd.host, ("-p", str(sshd.port)))
    client = replace(client, options=("-p", str(sshd.port), *(w for f in sshd.login.key_files for w in ("-i", f))))
    machine = sshd.machine(writable=PROJECT, transport="openssh", openssh=client)
    opened = await open_over_openssh(LoginGate(machine, tmp_path / "known_hosts"), await choose_transport(machine))
    try:
        assert isinstance(opened, OutpostSandbox)
        assert "denied" in await said(opened, "echo changed >other/file")
        assert await said(opened, "echo own >project/file; cat project/file") == "own\n"
    finally:
        await opened.close()


@pytest.mark.parametrize(
    ("writable", "why"),
    [
        ("~/missing", "~/missing is no folder there; make it, or correct `writable`"),
        ("~/", "holds .*, which a login uses before its walls stand; name folders in it"),
        ("/", "/ holds /.*, which a login uses before its walls stand"),
        ("/tmp", "/tmp holds /tmp.*, which a login uses"),
        ("~/.ssh", "is a hidden folder of the home folder, which holds what logins trust"),
        ("~/linked", r"~/linked is reached through a link; write /.*/project"),
        ("/usr/lib", "/usr/lib (holds|lies in) /usr.*, which a login uses"),
    ],
)
async def test_what_cannot_be_held_is_refused_with_its_reason(
    sshd: Sshd, tmp_path: Path, writable: str, why: str
) -> None:
    by_hand(sshd, "mkdir -p .ssh; ln -sfn project linked")
    with pytest.raises(
        ConnectError, match=f"unable to open walled: writable cannot be held there: .*({why})"
    ) as refused:
        await open_machine(sshd.machine(writable=(writable,)), tmp_path / "known_hosts")
    assert "\n" not in str(refused.value)


async def test_a_machine_without_python_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    bare = fleet.machine("bare", python=False)
    why = "unable to open bare: writable cannot be held there: its python3 did not start"
    with pytest.raises(ConnectError, match=why):
        await open_machine(bare.machine(writable=()), tmp_path / "known_hosts")


def test_no_lane_leads_past_the_walls_from_another_machine() -> None:
    first = Machine("first", "gpu1.example.org", direct={"second": "gpu2", "third": "gpu3"})
    second = Machine("second", "gpu2.example.org", writable=())
    route = routes_between([first, second, Machine("third", "gpu3.example.org")])
    assert route("first", "second") is None
    assert route("first", "third")


async def test_where_nothing_may_be_written_our_own_records_still_can(sshd: Sshd, tmp_path: Path) -> None:
    opened = await opened_with(sshd.machine(writable=()), tmp_path)
    try:
        assert opened.description.writable == "nothing"
        assert "denied" in await said(opened, "echo x >project/x")
        assert await said(opened, 'echo x >"$TMPDIR/x"; cat "$TMPDIR/x"') == "x\n"
        # Records of what runs without walls are trusted by it, and so are not the same.
        assert re.search(rf"^/tmp/remote-sandbox-{sshd.uid}-walls-", await said(opened, "echo $TMPDIR"))
    finally:
        await opened.close()
