"""rsync, the baseline of every sync: over a connection of its own, or over one that is already open."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.sshd import HOST, Sshd

from .mux import Mux, spawn_and_wait


@dataclass(frozen=True)
class Rsync:
    """Makes one folder's contents equal to another's, as `rsync -a` does it."""

    ssh: tuple[str, ...]
    who: str
    options: tuple[str, ...]

    def up(self, source: Path, target: Path) -> None:
        self._run(f"{source}/", f"{self.who}:{target}/")

    def down(self, source: Path, target: Path) -> None:
        self._run(f"{self.who}:{source}/", f"{target}/")

    def _run(self, source: str, target: str) -> None:
        spawn_and_wait(["rsync", *self.options, "-e", shlex.join(self.ssh), source, target])


def alone(sshd: Sshd, port: int = 0, *, options: tuple[str, ...] = ("-a",)) -> Rsync:
    """With a new connection each time; `port` is that of a line to the machine."""
    there = replace(sshd, port=port or sshd.port)
    return _rsync(there, ("-o", f"HostKeyAlias=[{HOST}]:{sshd.port}"), options)


def over(mux: Mux, *, options: tuple[str, ...] = ("-a",)) -> Rsync:
    """With the connection of a master."""
    return _rsync(mux.sshd, ("-S", str(mux.control)), options)


def _rsync(sshd: Sshd, ssh_options: tuple[str, ...], options: tuple[str, ...]) -> Rsync:
    *ssh, who, _ = sshd.client("", *ssh_options)
    return Rsync(tuple(ssh), who, options)
