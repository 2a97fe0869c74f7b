"""What only root may do: as it is for root, with sudo for others; a test is left out where neither can be had."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.support.means import IS_ROOT, require_program

WHY_NOT = "needs root, or sudo without a password"


@cache
def can_be_root() -> bool:
    if os.geteuid() == 0:
        return IS_ROOT
    try:
        return subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def as_root(*argv: str) -> list[str]:
    """The command line that runs these words as root. Ends the test as skipped where nobody here can be root."""
    if not can_be_root():
        pytest.skip(WHY_NOT)
    return [*argv] if os.geteuid() == 0 else ["sudo", "-n", *argv]


def run_as_root(*argv: str) -> None:
    subprocess.run(as_root(*argv), check=True)


@contextmanager
def exfat(path: Path) -> Iterator[None]:
    """A disk as cameras and sticks have it: names without case or colons, no modes, no links, times in steps."""
    for program in ("mkfs.exfat", "mount.exfat-fuse", "losetup"):
        require_program(program)
    if not Path("/dev/fuse").exists():
        pytest.skip("this system has no FUSE")
    path.mkdir(parents=True)
    image = path.with_name(f"{path.name}.image")
    with image.open("wb") as file:
        file.truncate(8 << 20)
    run_as_root("mkfs.exfat", str(image))
    attached = subprocess.run(as_root("losetup", "--find", "--show", str(image)), check=True, capture_output=True)
    device = attached.stdout.decode().strip()
    try:
        options = f"uid={os.geteuid()},gid={os.getegid()}"
        run_as_root("mount.exfat-fuse", "-o", options, device, str(path))
        try:
            yield
        finally:
            run_as_root("umount", "-l", str(path))
    finally:
        run_as_root("losetup", "--detach", device)


@contextmanager
def tmpfs(path: Path, size: str) -> Iterator[None]:
    """A small disk of its own."""
    path.mkdir(parents=True)
    options = f"size={size},uid={os.geteuid()},gid={os.getegid()}"
    run_as_root("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path))
    try:
        yield
    finally:
        run_as_root("umount", "-l", str(path))
