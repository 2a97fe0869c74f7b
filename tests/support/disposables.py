"""Helpers for tests of disposable sandboxes: providers that leave nothing, ordinary users, small images."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.bubblewrap import landlock
from remote_sandbox_mcp.backends.bubblewrap.disposable import EmbeddedSandbox
from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, DisposableRules, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.far.outpost import guard
from remote_sandbox_mcp.far.outpost.filter import NUMBERS
from tests.support.means import IS_ROOT, readable_source, require_bubblewrap, require_local, require_program
from tests.support.pace import Deadline

SOURCE = readable_source()
SYSTEM_PYTHON = "/usr/bin/python3"
ORDINARY_USER = 61_200
GONE_S = 10.0

_numbers = itertools.count(1)


def require_walls(walls: str) -> None:
    """Ends the test as skipped where nothing of this kind, or of any, confines a sandbox."""
    if not walls:
        require_local()
    elif walls != landlock.LANDLOCK:
        require_bubblewrap()
    elif not guard.landlock_version():
        pytest.skip("this kernel has no Landlock")


@contextmanager
def reachable() -> Iterator[None]:
    """Sandboxes of root by Landlock, which lie where their user can pass, in a folder of this test's."""
    usual, landlock.REACHABLE = landlock.REACHABLE, Path(tempfile.mkdtemp(prefix="rsmcp-reachable-"))
    try:
        yield
    finally:
        shutil.rmtree(landlock.REACHABLE)
        landlock.REACHABLE = usual


@asynccontextmanager
async def provided(state_folder: Path, walls: str = "") -> AsyncIterator[EmbeddedProvider]:
    require_walls(walls)
    provider = EmbeddedProvider(state_folder, rules=DisposableRules(walls=walls))
    try:
        yield provider
    finally:
        await provider.close()


@asynccontextmanager
async def made(
    state_folder: Path, order: SandboxOrder | None = None, walls: str = ""
) -> AsyncIterator[tuple[EmbeddedProvider, Disposable, EmbeddedSandbox]]:
    async with provided(state_folder, walls) as provider:
        disposable = await provider.create(new_disposable_id(), order or SandboxOrder())
        try:
            yield provider, disposable, await provider.open(disposable)
        finally:
            # It would outlive its server.
            await provider.delete(disposable)


async def run(sandbox: Sandbox, script: str, timeout_s: float = 20.0) -> Completed:
    seen = await sandbox.run(Command(script, timeout_s=timeout_s))
    assert isinstance(seen, Completed)
    return seen


async def say(sandbox: Sandbox, script: str) -> str:
    seen = await run(sandbox, script)
    assert seen.exit_code == 0, seen.stderr.head.decode()
    return seen.stdout.head.decode().strip()


def number(call: str) -> int:
    """The number of a system call on this machine."""
    return NUMBERS[call][0 if platform.machine() == "x86_64" else 1]


def marked_sleep() -> str:
    """A sleep that can be told from all others in the host's process list."""
    return f"sleep 87654.{os.getpid()}{next(_numbers):04}"


def host_processes(mark: str) -> list[int]:
    wanted = mark.replace(" ", "\0").encode()
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if wanted in _read(folder / "cmdline")]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


async def until(condition: Callable[[], object]) -> None:
    deadline = Deadline(GONE_S)
    while not condition():
        assert not deadline.has_passed()
        await asyncio.sleep(0.02)


async def until_gone(mark: str) -> None:
    await until(lambda: not host_processes(mark))


def groups_of(disposable_id: str) -> list[Path]:
    """Control groups of a sandbox, wherever they are."""
    return [Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup") if folder.endswith(f"rsmcp-{disposable_id}")]


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


def nothing_left(state_folder: Path) -> bool:
    shelf = state_folder / "disposable"
    left = [name for name in os.listdir(shelf) if name != ".lock"] if shelf.exists() else []
    return not left and not mounts_below(state_folder)


# A server of an ordinary user, as a process: it makes one sandbox, runs scripts in it and prints what became of them.
SERVER = """
import asyncio, json, sys
from pathlib import Path
from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, Limits, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.errors import SandboxError

async def tried(sandbox, script, timeout_s):
    try:
        seen = await sandbox.run(Command(script, timeout_s=timeout_s))
    except SandboxError as problem:
        return [-1, "", str(problem)]
    return [seen.exit_code, seen.stdout.head.decode("utf-8", "replace"), seen.stderr.head.decode("utf-8", "replace")]

async def main():
    order = json.loads(sys.argv[2])
    provider = EmbeddedProvider(Path(sys.argv[1]), rules=DisposableRules(walls=order.get("walls", "")))
    limits = Limits(**order.get("limits", {}))
    made = await provider.create(new_disposable_id(), SandboxOrder(limits=limits, image=order.get("image", "")))
    sandbox = await provider.open(made)
    seen = [await tried(sandbox, script, order.get("timeout_s", 20)) for script in order["scripts"]]
    await provider.delete(made)
    await provider.close()
    left = [path.name for path in (Path(sys.argv[1]) / "disposable").iterdir()]
    print(json.dumps({"seen": seen, "told": made.limits.told, "left": left}))

asyncio.run(main())
"""


def as_ordinary_user(scripts: list[str], **order: Any) -> dict[str, Any]:
    """What the scripts did in a sandbox of a server that has no rights of its own."""
    require_walls(order.get("walls", ""))
    if os.geteuid() == 0 and not IS_ROOT:
        pytest.skip("needs the rights of root, to become an ordinary user")
    # Without a namespace all processes of a user are counted, also those of a test beside this one.
    user = ORDINARY_USER + (1 + os.getpid() % 90 if order.get("walls") == landlock.LANDLOCK else 0)
    other = {"user": user, "group": user, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:
        if other:
            os.chown(folder, user, user)
        done = subprocess.run(
            [SYSTEM_PYTHON, "-W", "error", "-c", SERVER, folder, json.dumps({"scripts": scripts, **order})],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1", "HOME": folder},
            cwd="/",
            capture_output=True,
            timeout=50,
            check=False,
            **other,  # type: ignore[call-overload]
        )
    assert done.returncode == 0, done.stderr.decode()
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def small_image(folder: Path) -> Path:
    """A root file system with busybox alone, and the libraries that this needs; only namespaces make it one."""
    require_bubblewrap()
    busybox = require_program("busybox")
    for name in ("bin", "etc", "usr/share", "var/tmp", "root"):
        (folder / name).mkdir(parents=True)
    shutil.copy(busybox, folder / "bin/busybox")
    for name in ("sh", "ls", "cat", "id", "echo", "touch", "true", "sleep", "env", "pwd"):
        (folder / "bin" / name).symlink_to("/bin/busybox")
    (folder / "etc/marker").write_text("of the image\n")
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (folder / "usr/bin").symlink_to("../bin")
    _copy_libraries(folder, Path(busybox))
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    return folder


def with_python(folder: Path) -> Path:
    """The same, with a Python of its own."""
    small_image(folder)
    real = Path(SYSTEM_PYTHON).resolve()
    library = Path("/usr/lib") / real.name
    shutil.copy(real, folder / "bin" / real.name)
    (folder / "bin/python3").symlink_to(real.name)
    unneeded = shutil.ignore_patterns("__pycache__", "test", "dist-packages", "config-*", "idlelib", "ensurepip")
    shutil.copytree(library, folder / "usr/lib" / real.name, ignore=unneeded)
    _copy_libraries(folder, real, *(library / "lib-dynload").glob("_ctypes.*"))
    return folder


def _copy_libraries(folder: Path, *programs: Path) -> None:
    listed = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    for word in listed.split():
        if word.startswith("/") and not word.endswith(":"):
            target = folder / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, target)


def python(code: str) -> str:
    """A command line that runs code in the sandbox's Python."""
    return f"{SYSTEM_PYTHON} -IS -c '{code}'"


def server_process(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A server of its own, that can be killed."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "HOME": "/"},
        stdout=subprocess.PIPE,
    )
