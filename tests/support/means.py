"""What a machine may not have, or not give to every user: a test that needs it is left out where it cannot be had.

With LEAVE_NOTHING_OUT in the environment, as in .ci/run, a means that is missing fails the test for root, so that no
fault in a probe hides one.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

import remote_sandbox_mcp
from remote_sandbox_mcp.backends.bubblewrap import bwrap, cgroups, disk
from remote_sandbox_mcp.far.outpost import filter as calls
from remote_sandbox_mcp.far.outpost import guard

TUN = "/dev/net/tun"
_NOBODY = 65534
MUST_RUN = os.geteuid() == 0 and bool(os.environ.get("LEAVE_NOTHING_OUT"))
_COPIES: list[Path] = []


def _may_become_others() -> bool:
    """Whether this is root with the rights of root, which the root of a container or a user namespace may lack."""
    if os.geteuid() != 0:
        return False
    try:
        with tempfile.NamedTemporaryFile() as file:
            os.chown(file.name, _NOBODY, _NOBODY)
        done = subprocess.run(["true"], user=_NOBODY, group=_NOBODY, extra_groups=[], check=False)
    except OSError:
        return False
    return done.returncode == 0


IS_ROOT = MUST_RUN or _may_become_others()


def _has_control_groups() -> bool:
    """Whether a group can be made that holds memory, processes and CPU."""
    group = cgroups.make(cgroups.plan(cgroups.find_bases(), f"probe-{os.getpid()}"))
    try:
        tries = (cgroups.limit_memory(group, 64), cgroups.limit_processes(group, 64), cgroups.limit_cpu(group, 0.5))
        return all(tries)
    finally:
        group.remove(1.0)


def _can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        is_mounted = disk.mount_sized(Path(folder), 1)
        disk.unmount(Path(folder))
        return is_mounted


def _can_have_a_card() -> bool:
    """Whether this user may make the network card of a sandbox's own network, and has the program that serves it."""
    try:
        os.close(os.open(TUN, os.O_RDWR))
    except OSError:
        return False
    return shutil.which("slirp4netns") is not None


@cache
def can_have_namespaces() -> bool:
    """Whether this user may make namespaces: root in a container, or where their number is 0, may not."""
    program = shutil.which("unshare")
    if not program:
        return False
    tried = subprocess.run([program, "--mount", "--net", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def require_namespaces() -> None:
    """For what runs in a namespace of its own. Ends the test as skipped where none can be made."""
    if not MUST_RUN and not can_have_namespaces():
        pytest.skip("no namespaces can be made here")


@cache
def bubblewrap_runs() -> bool:
    program = shutil.which("bwrap")
    ways = bwrap.footings(program, os.geteuid() == 0) if program and calls.is_known() else ()
    return any(not bwrap.try_out(way) for way in ways)


def require_local() -> None:
    """For what opens a sandbox on this machine, whatever confines it. Ends the test as skipped where nothing can."""
    if not MUST_RUN and not bubblewrap_runs() and not guard.landlock_version():
        pytest.skip("neither bubblewrap nor Landlock can run here")


def require_bubblewrap() -> None:
    """For what only namespaces give a sandbox on this machine. Ends the test as skipped where bubblewrap cannot run."""
    if not MUST_RUN and not bubblewrap_runs():
        pytest.skip("bubblewrap cannot run here")


def folders_inside(box: Path) -> tuple[str, str]:
    """Home and temporary folder of a sandbox on this machine, as its commands call them; `box` has both."""
    if bubblewrap_runs():
        return "/home/sandbox", "/tmp"
    return str(box.resolve() / "home"), str(box.resolve() / "tmp")


@cache
def readable_source() -> Path:
    """The program's source where every user may read it: a checkout below root's home is copied."""
    source = Path(remote_sandbox_mcp.__file__).parents[1]
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in (source, *source.parents)):
        return source
    folder = Path(tempfile.mkdtemp(prefix="source-"))
    _COPIES.append(folder)
    folder.chmod(0o755)
    name = remote_sandbox_mcp.__name__
    shutil.copytree(source / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def remove_copies() -> None:
    while _COPIES:
        shutil.rmtree(_COPIES.pop(), ignore_errors=True)


def require_program(name: str) -> str:
    """Give the path of a program of the system. Ends the test as skipped where it is not installed."""
    found = shutil.which(name)
    if not MUST_RUN and not found:
        pytest.skip(f"needs {name}, which is not installed")
    return found or name


needs_control_groups = pytest.mark.skipif(
    not MUST_RUN and not _has_control_groups(),
    reason="needs control groups for memory, processes and CPU that this user may make (root has them)",
)
needs_mounts = pytest.mark.skipif(
    not MUST_RUN and not _can_mount(), reason="needs a user who may mount file systems (root may)"
)
needs_tun = pytest.mark.skipif(
    not MUST_RUN and not _can_have_a_card(), reason=f"needs slirp4netns and a {TUN} that this user may open"
)
