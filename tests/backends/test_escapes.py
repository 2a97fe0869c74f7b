"""Escapes from a disposable sandbox, tried from inside: as root's, as root's by name only, and as an ordinary user's.

Bombs, hogs and fillers are in test_embedded_limits.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import pty
import select
import shutil
import socket
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap import bwrap
from remote_sandbox_mcp.backends.bubblewrap.bwrap import Footing
from remote_sandbox_mcp.backends.bubblewrap.disposable import EmbeddedSandbox
from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Command, Running
from remote_sandbox_mcp.core.errors import FileProblem
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.texts.text import clip, harmless
from remote_sandbox_mcp.far.outpost import guard
from tests.support.disposables import (
    SOURCE,
    as_ordinary_user,
    host_processes,
    made,
    marked_sleep,
    nothing_left,
    number,
    python,
    reachable,
    run,
    say,
    until_gone,
)
from tests.support.means import IS_ROOT

SECRET = "the-secret-of-the-host"
BWRAP = shutil.which("bwrap") or ""
IS_X86 = platform.machine() == "x86_64"
PTRACE, ATTACH = (101 if IS_X86 else 117), 16
SETNS, PIVOT_ROOT, OPEN_TREE, FSOPEN = (308 if IS_X86 else 268), (155 if IS_X86 else 41), 428, 430
PROCESS_READ = 310 if IS_X86 else 270
TIOCSTI = 0x5412


def all_footings() -> list[Footing]:
    ways = bwrap.footings(BWRAP, os.geteuid() == 0) if BWRAP else ()
    return [footing for footing in ways if not bwrap.try_out(footing)]


FOOTINGS = all_footings()
LANDLOCK = [Footing("", (), 0, guard.landlock_version())] if guard.landlock_version() else []
# What Landlock lets be seen; that it does so is told with the limits.
SEEN = ("seeing host processes", "seeing more processes than its own", "anything in /sys", "any other interface")
# The root of a container stays uid 0: modes of files tell it nothing, and it is root already, without any right.
IS_ROOT_BY_NAME = os.geteuid() == 0 and not IS_ROOT
if IS_ROOT_BY_NAME:
    SEEN += ("any setting of the kernel", "any trigger of the kernel", "becoming root", "a program that is root's")
# Nobody but root can give up what it has never had.
NEVER_HAD = ("any right at all",)
if os.geteuid() != 0:
    SEEN += NEVER_HAD
pytestmark = pytest.mark.skipif(not (FOOTINGS or LANDLOCK), reason="neither bubblewrap nor Landlock can run here")


def name_of(footing: Footing) -> str:
    return "landlock" if footing.landlock else f"as-{footing.user}"


def system_call(number: int, *arguments: int) -> str:
    """Fails if the call fails."""
    words = ", ".join(str(word) for word in (number, *arguments))
    return python(f"import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall({words}) < 0)")


def opened_for_writing(path: str) -> str:
    """Nothing is written: where it succeeded, it would do no harm."""
    return python(f'import os; os.open("{path}", os.O_WRONLY)')


# Each must fail. {words} are filled in with what only the host knows.
ATTEMPTS = {
    # Files of the host
    "passwords": "cat /etc/shadow",
    "passwords through the first process": "cat /proc/1/root/etc/shadow",
    "passwords through a folder above the root": "cat /../../etc/shadow",
    "root's home": "ls /root",
    "the home of the server's user": "ls {home}",
    "the state folder": "ls {state}",
    "the record of this very sandbox": "cat {state}/disposable/*/record.json",
    "another sandbox's home": "cat {other_home}/secret",
    "a secret by its name": "cat {secret}",
    "a secret through a link": "ln -sf {secret} ~/link; cat ~/link",
    "a secret through a hard link": "ln {secret} ~/hard",
    "a secret through the working folder of the first process": "cat /proc/1/cwd/{secret}",
    "a file by its handle": python(
        "import ctypes, sys; handle = (ctypes.c_char * 16)(8, 0, 0, 0, 1, 0, 0, 0, 2); "
        "sys.exit(ctypes.CDLL(None).open_by_handle_at(3, handle, 0) < 0)"
    ),
    "the program that runs the server": "ls {source}",
    "sockets of daemons": "find / -xdev -type s 2>/dev/null | grep .",
    # Processes of the host
    "seeing host processes": "ps ax -o args | grep [p]ytest",
    "seeing more processes than its own": "ls -d /proc/[0-9][0-9][0-9][0-9]",
    "signalling the server": "kill -0 {server}",
    "debugging the server": system_call(PTRACE, ATTACH, 999999, 0, 0).replace("999999", "{server}"),
    "ending the first process": "kill -9 1; kill -TERM 1; sleep 0.1; test ! -d /proc/1",
    # The outpost's and the server's own
    "the first process' memory": "head -c 1 /proc/1/mem",
    "the first process' map": "head -c 1 /proc/1/maps",
    "the first process' descriptors": "readlink /proc/1/fd/[0-9]*",
    "the first process' environment": "cat /proc/1/environ",
    "the outpost's memory": "head -c 1 /proc/2/mem",
    "the outpost's descriptors": "readlink /proc/2/fd/[0-9]*",
    "forging words of the outpost": "echo forged > /proc/2/fd/1",
    "debugging the outpost": system_call(PTRACE, ATTACH, 2, 0, 0),
    "reading the outpost's memory by a call": python(
        "import ctypes, sys; buffer = ctypes.create_string_buffer(8); "
        "vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8); "
        f"sys.exit(ctypes.CDLL(None).syscall({PROCESS_READ}, 2, vector, 1, vector, 1, 0) < 0)"
    ),
    "the keeper's memory": "head -c 1 /proc/$PPID/mem",
    "taking a descriptor of the outpost": python(
        "import ctypes, os, sys; call = ctypes.CDLL(None).syscall; "
        "sys.exit(min(call(438, os.pidfd_open(2), fd, 0) for fd in range(64)) < 0)"
    ),
    "an inherited descriptor": python(
        "import os\nfor fd in range(3, 256):\n try: os.fstat(fd)\n except OSError: continue\n"
        " raise SystemExit(0)\nraise SystemExit(1)"
    ),
    "an inherited socket": "ls -l /proc/self/fd | grep socket",
    # Devices
    "making a character device": "mknod ~/mem c 1 1",
    "making a block device": "mknod ~/disk b 254 0",
    "kernel memory as a device": "head -c 1 /dev/mem",
    "the kernel's log": "head -c 1 /dev/kmsg || dmesg",
    "kernel memory as a file": "head -c 1 /proc/kcore",
    "disks": "ls /dev | grep -E '^(sd|vd|nvme|mem|kmsg|fuse|kvm|loop|dm)'",
    "a device of its own in /dev": "touch /dev/probe",
    # /proc and /sys
    "sysrq": opened_for_writing("/proc/sysrq-trigger"),
    "the program for crashes": opened_for_writing("/proc/sys/kernel/core_pattern"),
    "the program for modules": opened_for_writing("/proc/sys/kernel/modprobe"),
    # All but those of its own namespaces, for process numbers, messages and shared memory.
    "any setting of the kernel": "find /proc/sys -type f -writable | "
    "grep -v -E '/(ns_last_pid|pid_max|(msg|sem|shm|queues_max).*|auto_msgmni)$'",
    "any trigger of the kernel": "find /proc -maxdepth 1 -type f -writable | grep .",
    "the program of a control group": "echo x > /sys/fs/cgroup/release_agent",
    "leaving its control group": "ls /sys/fs/cgroup/*/tasks /sys/fs/cgroup/cgroup.procs",
    "the program for devices": opened_for_writing("/sys/kernel/uevent_helper"),
    "anything in /sys": "ls -d /sys",
    "being spared when memory is short": "echo -500 > /proc/self/oom_score_adj",
    "mapping users": "echo 0 0 1 > /proc/self/uid_map",
    # Mounts and namespaces
    "mounting": "mount -t tmpfs none /tmp",
    "binding": "mount --bind /etc /tmp",
    "mounting proc": "mkdir -p ~/proc; mount -t proc none ~/proc",
    "making the system writable": "mount -o remount,rw /usr",
    "uncovering what a mount hides": "umount /tmp || umount -l /etc/passwd",
    "a mount namespace": "unshare -m true",
    "a user namespace": "unshare -U true",
    "a user namespace with root in it": "unshare -Ur mount -t tmpfs none /tmp",
    "a user namespace by clone": system_call(number("clone"), 0x10000000 | 17, 0, 0, 0, 0),
    "a user namespace by clone3": system_call(435, 0, 0),
    "a namespace of the first process": "nsenter -t 1 -m true",
    "a namespace by its descriptor": python(
        "import ctypes, os, sys; "
        f'sys.exit(ctypes.CDLL(None).syscall({SETNS}, os.open("/proc/self/ns/mnt", os.O_RDONLY), 0) < 0)'
    ),
    "another root folder": "chroot / true",
    "turning the root around": system_call(PIVOT_ROOT, 0, 0),
    "a detached mount": python(
        f'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall({OPEN_TREE}, -100, b"/", 1) < 0)'
    ),
    "a file system by the new calls": python(
        f'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall({FSOPEN}, b"tmpfs", 0) < 0)'
    ),
    # Rights
    "su": "su -c true < /dev/null",
    "becoming root": python("import os; os.setuid(0)"),
    "becoming another user": python("import os; os.setgroups([0])"),
    "a program that is root's": 'test "$(~/suid -u)" = 0',
    "rights from a file": "setcap cap_sys_admin+ep ~/suid || /usr/sbin/setcap cap_sys_admin+ep ~/suid",
    "any right at all": "grep -E 'Cap(Prm|Eff|Bnd|Amb):.*[1-9a-f]' /proc/self/status",
    "any right that could be used": "grep -E 'Cap(Prm|Eff|Amb):.*[1-9a-f]' /proc/self/status",
    "new rights by starting a program": "grep -E 'NoNewPrivs:.*0' /proc/self/status",
    "running without a filter": "grep -E 'Seccomp:.*0' /proc/self/status",
    # Doors of the kernel
    "the session's keyring": system_call(number("keyctl"), 0, -3, 0),
    "the user's keyring": system_call(number("keyctl"), 0, -4, 0),
    "a key": system_call(number("add_key"), 0, 0, 0, 0, -3),
    "bpf": system_call(number("bpf"), 0, 0, 0),
    "performance counters": system_call(number("perf_event_open"), 0, 0, -1, -1, 0),
    "faults in user space": system_call(number("userfaultfd"), 0),
    "io_uring": system_call(number("io_uring_setup"), 1, 0),
    "the hypervisor": python("import socket; socket.socket(40, socket.SOCK_STREAM)"),
    "raw packets": python("import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    "raw internet packets": python("import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    "crypto sockets": python("import socket; socket.socket(38, socket.SOCK_SEQPACKET)"),
    # Terminals
    "the server's terminal": "echo typed > /dev/tty",
    "typing into any terminal": python(
        f'import fcntl, os; near, far = os.openpty(); fcntl.ioctl(far, {TIOCSTI}, b"x")'
    ),
    "terminals of the host": "ls /dev/pts | grep [0-9]",
    # The network
    "the host's loopback": "exec 3<>/dev/tcp/127.0.0.1/{port}",
    "any other interface": "grep -v -E 'Inter|face|lo:' /proc/net/dev",
    "an abstract socket of the host": python('import socket; socket.socket(socket.AF_UNIX).connect("\\0{abstract}")'),
    # The system itself
    "writing to programs": "touch /usr/bin/probe || touch /usr/local/bin/probe",
    "writing to settings": "touch /etc/probe || echo x >> /etc/passwd",
    "writing to the root folder": "touch /probe || touch /home/probe || mkdir /run",
    "setting the clock": "date -s @0",
    "renaming the machine": "hostname other",
    "a higher limit": "ulimit -c unlimited",
    "a better place in the queue": "nice -n -5 true 2>&1 | grep -v .",
}


@dataclass(frozen=True)
class Prison:
    """A sandbox, and all that an attempt could want from the host."""

    provider: EmbeddedProvider
    sandbox: EmbeddedSandbox
    other: Disposable
    words: dict[str, str]
    seen: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What lies on the host: a secret that all of its users may read, and two things that listen."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o644)
    abstract = f"rsmcp-escape-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind(f"\0{abstract}")
        hidden.listen()
        yield {
            "secret": str(folder / "secret"),
            "port": str(listener.getsockname()[1]),
            "abstract": abstract,
            "server": str(os.getpid()),
            "source": str(SOURCE),
            "home": str(Path.home()),
        }


@pytest.fixture(scope="module", params=[*FOOTINGS, *LANDLOCK], ids=name_of)
async def prison(
    request: pytest.FixtureRequest, outside: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Prison]:
    """One for all attempts, on every way down that this machine offers."""
    footing: Footing = request.param
    state = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch, reachable():
        patch.setitem(bwrap._found, (footing.program, os.geteuid()), footing)
        async with made(state, walls="landlock" if footing.landlock else "") as (provider, disposable, sandbox):
            other = await provider.create(new_disposable_id(), SandboxOrder())
            await run(await provider.open(other), f"echo {SECRET} > ~/secret; chmod -R 777 ~")
            other_home = state / "disposable" / other.id / "box/home"
            plant_setuid(state / "disposable" / disposable.id / "box/home/suid")
            words = outside | {"state": str(state), "other_home": str(other_home)}
            yield Prison(provider, sandbox, other, words, SEEN if footing.landlock else ())
            await provider.delete(other)


def plant_setuid(path: Path) -> None:
    """A program of root's that everybody may start as root, where the host does not forbid it."""
    shutil.copy("/usr/bin/id", path)
    path.chmod(0o4755)


def filled_in(attempt: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        attempt = attempt.replace("{" + name + "}", value)
    return attempt


@pytest.mark.parametrize("name", ATTEMPTS)
async def test_out_of_reach(prison: Prison, name: str) -> None:
    seen = await run(prison.sandbox, filled_in(ATTEMPTS[name], prison.words))
    assert name in prison.seen or seen.exit_code not in (0, 127), seen.stdout.head
    assert SECRET.encode() not in seen.stdout.head + seen.stderr.head


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def ordinary(request: pytest.FixtureRequest, outside: dict[str, str]) -> dict[str, list[object]]:
    """What became of every attempt in a sandbox of a server without rights."""
    seen = {*SEEN, *NEVER_HAD} if request.param == "landlock" else set()
    words = outside | {"state": "/tmp", "other_home": "/tmp"}
    # Nobody but root can leave a program of root's.
    scripts = {name: filled_in(attempt, words) for name, attempt in ATTEMPTS.items() if "suid" not in attempt}
    became = as_ordinary_user(list(scripts.values()), walls=request.param)["seen"]
    return {name: [1] if name in seen else each for name, each in zip(scripts, became, strict=True)}


@pytest.mark.parametrize("name", [name for name, attempt in ATTEMPTS.items() if "suid" not in attempt])
def test_out_of_reach_for_an_ordinary_user(ordinary: dict[str, list[object]], name: str) -> None:
    if "{state}" in ATTEMPTS[name]:
        # There its own /tmp has that name, and nothing of the host's in it.
        assert SECRET not in str(ordinary[name])
    else:
        assert ordinary[name][0] not in (0, 127), ordinary[name]


async def test_attempts_are_real(prison: Prison) -> None:
    """The same ways lead to what a sandbox may have: that they fail elsewhere is not for want of tools."""
    await run(prison.sandbox, "echo mine > ~/mine; ln -sf ~/mine ~/link")
    assert await say(prison.sandbox, "cat ~/link; cat /proc/self/cmdline | tr '\\0' ' '; kill -0 $$") != ""
    assert await say(prison.sandbox, python("import os; print(os.fstat(0).st_size >= 0)")) == "True"
    assert await say(prison.sandbox, "~/suid -u") == await say(prison.sandbox, "id -u")
    assert IS_ROOT_BY_NAME or await say(prison.sandbox, "id -u") != "0"


# Files through the tools


async def test_the_tools_see_what_commands_see(prison: Prison) -> None:
    await run(prison.sandbox, f"ln -sfn {prison.words['secret']} ~/trap; ln -sfn / ~/top")
    for path in ("trap", prison.words["secret"], f"top{prison.words['secret']}", f"{prison.words['state']}/disposable"):
        with pytest.raises(FileProblem):
            await prison.sandbox.read(path, Span())
    if prison.seen:
        with pytest.raises(FileProblem, match="denied"):
            await prison.sandbox.list("top")
        return
    listed = await prison.sandbox.list("top")
    assert not {entry.path for entry in listed.entries} & {"root", "srv", "sys", "boot", "mnt"}


SWAP = "mkdir -p ~/real; for n in $(seq 3000); do ln -sfn {target} ~/swap; rm -rf ~/swap; cp -r ~/real ~/swap; done"


async def test_a_link_swapped_in_while_the_server_writes_and_reads_leads_nowhere(
    prison: Prison, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o777)
    (target / "file").write_text(SECRET)
    target.chmod(0o777)
    swapping = Command(SWAP.replace("{target}", str(target)), timeout_s=30)
    assert isinstance(await prison.sandbox.run(swapping, patience_s=0.05), Running)
    heard = b""
    for _ in range(60):
        for way in (prison.sandbox.write("swap/file", b"overwritten"), prison.sandbox.read("swap/file", Span())):
            try:
                heard += getattr(await way, "data", b"")
            except FileProblem:
                continue
    await prison.sandbox.stop(swapping.run_id)
    assert SECRET.encode() not in heard
    assert (target / "file").read_text() == SECRET
    assert os.listdir(target) == ["file"]


# Output


async def test_output_cannot_speak_for_the_outpost_or_to_a_terminal(prison: Prison) -> None:
    script = (
        r"printf '\033]0;owned\007\033[2J\033]52;c;ZXZpbA==\007plain\n'; head -c 3000 /dev/urandom; printf '\n\0\1\2'"
    )
    seen = await run(prison.sandbox, script)
    assert seen.exit_code == 0
    shown = harmless(seen.stdout.head)
    assert "plain" in shown
    assert not [letter for letter in shown if ord(letter) < 32 and letter not in "\n\t"]
    assert await say(prison.sandbox, "echo still here") == "still here"


async def test_endless_output_is_bounded(prison: Prison) -> None:
    seen = await prison.sandbox.run(Command("yes | head -c 150000000", timeout_s=20, keep=1000))
    assert not isinstance(seen, Running)
    assert (seen.stdout.total, len(seen.stdout.head) + len(seen.stdout.tail)) == (150_000_000, 2000)
    assert len(clip(seen.stdout, 500).text) < 800


# Processes that would stay


STAYING = {
    "a daemon": "(setsid {mark} > /dev/null 2>&1 &)",
    "deaf to signals": "trap '' TERM HUP INT QUIT; (setsid {mark} &) ; {mark}",
    "an orphan of an orphan": "( ( (setsid nohup {mark} > /dev/null 2>&1 &) & ) & )",
    "under the name of bubblewrap": "(exec -a bwrap setsid {mark} > /dev/null 2>&1 &)",
    "with the outpost stopped": "(setsid {mark} > /dev/null 2>&1 &); kill -STOP $(ps -o ppid= -p $PPID); {mark}",
    "with the outpost killed": "(setsid {mark} > /dev/null 2>&1 &); kill -9 $(ps -o ppid= -p $PPID); {mark}",
}


@pytest.mark.parametrize("walls", ["bubblewrap", "landlock"])
@pytest.mark.parametrize("script", STAYING.values(), ids=STAYING.keys())
async def test_nothing_survives_deletion(script: str, walls: str, tmp_path: Path) -> None:
    mark = marked_sleep()
    with reachable():
        await check_deletion(script.replace("{mark}", mark), mark, walls, tmp_path)


async def check_deletion(script: str, mark: str, walls: str, tmp_path: Path) -> None:
    async with made(tmp_path, walls=walls) as (provider, disposable, sandbox):
        running = asyncio.create_task(sandbox.run(Command(script), patience_s=0.5))
        await asyncio.wait((running,), timeout=1.0)
        await provider.delete(disposable)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until_gone(mark)
        assert nothing_left(tmp_path)
        assert not host_processes(str(tmp_path))


# The server's terminal


AT_A_TERMINAL = """
import asyncio, sys
from pathlib import Path
from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.sandboxes.disposable import SandboxOrder, new_disposable_id

async def main():
    provider = EmbeddedProvider(Path(sys.argv[1]))
    sandbox = await provider.open(await provider.create(new_disposable_id(), SandboxOrder()))
    for script in sys.argv[2:]:
        await sandbox.run(Command(script))
    await provider.close()

open("/dev/tty").close()
asyncio.run(main())
print("done", flush=True)
"""


def test_nothing_is_typed_or_shown_at_the_servers_terminal(tmp_path: Path) -> None:
    typed = 'import fcntl, os\nfor n in range(3):\n try: fcntl.ioctl(n, 0x5412, b"x")\n except OSError: pass'
    scripts = ["echo shown > /dev/tty", "echo shown > /dev/console", "echo shown >&2", python(typed)]
    near, far = pty.openpty()

    def at_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(far, termios.TIOCSCTTY, 0)

    words = [sys.executable, "-c", AT_A_TERMINAL, str(tmp_path), *scripts]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "HOME": "/"}
    with subprocess.Popen(
        words, stdin=far, stdout=far, stderr=far, env=environment, preexec_fn=at_the_terminal
    ) as server:
        assert server.wait(30) == 0
    assert select.select([near], [], [], 5)[0]
    assert os.read(near, 4096).split() == [b"done"]
    for end in (near, far):
        os.close(end)
