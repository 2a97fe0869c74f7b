"""A machine with a container engine, as its user reaches it: over ssh, by the engine's own command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from remote_sandbox_mcp.backends.engine.order import ID
from tests.support.disposables import with_python
from tests.support.engine import ALONE, Engine
from tests.support.means import require_program
from tests.support.sshd import Fleet, Sshd

WITH_PYTHON, PLAIN, NO_SHELL = "with-python:1", "plain:1", "no-shell:1"


@dataclass(frozen=True)
class Place:
    """A machine, its engine, and the words by which its user reaches it."""

    sshd: Sshd
    engine: Engine
    tar: Path

    @property
    def words(self) -> tuple[str, ...]:
        return ("docker", f"--host={self.engine.socket}")

    def left(self) -> list[str]:
        """All that the engine has: containers in any state, and volumes."""
        containers = self.engine.docker("ps", "--all", "--quiet", "--no-trunc").stdout.split()
        return containers + self.engine.docker("volume", "ls", "--quiet").stdout.split()

    def inspect(self, key: str) -> dict[str, object]:
        (found,) = json.loads(self.engine.docker("inspect", key).stdout)
        assert isinstance(found, dict)
        return found


@contextmanager
def running_place(fleet: Fleet, folder: Path) -> Iterator[Place]:
    """The user's own group may use the engine's socket, as members of the group docker may on other machines."""
    sshd = fleet.machine("gpu1")
    tar = make_image(folder)
    with Engine((*ALONE, f"--group={sshd.user}")) as engine:
        engine.folder.chmod(0o711)
        engine.import_image(tar, WITH_PYTHON)
        shutil.rmtree(folder / "root/usr/lib")
        # Each of its containers has a volume without a name.
        tar = packed(folder / "root", folder / "plain.tar")
        engine.docker("import", "--change=VOLUME /scratch", f"--change=LABEL {ID}=sb-00000000", str(tar), PLAIN)
        engine.import_image(packed(folder / "root/etc", folder / "no-shell.tar"), NO_SHELL)
        yield Place(sshd, engine, folder / "plain.tar")


def make_image(folder: Path) -> Path:
    root = with_python(folder / "root")
    subprocess.run([require_program("busybox"), "--install", "-s", str(root / "bin")], capture_output=True, check=False)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return packed(root, folder / "image.tar")


def packed(root: Path, tar: Path) -> Path:
    subprocess.run(["tar", "-C", str(root), "-cf", str(tar), "."], check=True)
    return tar
