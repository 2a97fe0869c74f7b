"""The peer: the program that our users come from, as published, in a virtual environment of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from .problems import NoPeer

VERSION = "0.7.6"
CACHE = Path(__file__).resolve().parents[1] / ".bench-cache"
INSTALL_S = 300


@dataclass(frozen=True)
class Peer:
    """An installed peer."""

    folder: Path

    @property
    def command(self) -> list[str]:
        return [str(self.folder / "bin/remote-sandbox-mcp")]

    @property
    def versions(self) -> str:
        """With the libraries that decide its speed."""
        packages = distributions(path=[str(path) for path in self.folder.glob("lib/*/site-packages")])
        found = {package.name: package.version for package in packages}
        libraries = ", ".join(f"{name} {found[name]}" for name in ("mcp", "paramiko") if name in found)
        return f"remote-sandbox-mcp {found.get('remote-sandbox-mcp', '?')} ({libraries})"


def install() -> Peer:
    """Install it once for this Python. Raises NoPeer."""
    folder = CACHE / f"peer-{VERSION}-python{sys.version_info.major}.{sys.version_info.minor}"
    ready = folder / ".ready"
    if not ready.exists():
        print(f"installing the peer, remote-sandbox-mcp {VERSION}, into {folder}", file=sys.stderr)
        run([sys.executable, "-m", "venv", "--clear", str(folder)])
        run([str(folder / "bin/pip"), "install", "--quiet", f"remote-sandbox-mcp=={VERSION}"])
        ready.touch()
    return Peer(folder)


def run(argv: Sequence[str]) -> None:
    """Raises NoPeer where an installer fails."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NoPeer(str(problem)) from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        raise NoPeer(words[-1] if words else f"{argv[0]} ended with {done.returncode}")
