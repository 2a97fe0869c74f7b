"""Run frameworks' own tests on our adapters (`make suites`), each in an environment of its own.

Where PyPI does not answer, it says so and ends well. With ALL=1 it runs every framework on every kind of sandbox.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".suites-cache"
# Newest versions on purpose, and not pinned: that a framework has changed is what these tests are to show.
ENVIRONMENTS = {
    "inspect": [".[inspect,opensandbox]", "pytest"],
    "deepagents": [".[deepagents,opensandbox]", "langchain-tests", "pytest"],
    # langchain-tests 1.1 has been written for this one.
    "deepagents-06": ["deepagents<0.7", "langchain-tests", "pytest", ".[opensandbox]"],
    "mini-swe": [".[mini-swe,opensandbox]", "pytest"],
}
INSTALL_S = 600


def main() -> int:
    begun = time.monotonic()
    for name, wanted in ENVIRONMENTS.items():
        if problem := prepare(CACHE / name, wanted):
            print(f"the frameworks' tests are left out, because {name} cannot be installed: {problem}", file=sys.stderr)
            return 0
    print(f"environments are ready after {time.monotonic() - begun:.0f} s", file=sys.stderr)
    words = [sys.executable, "-m", "pytest", "tests/suites", "-n", "2", "--dist", "loadgroup", *sys.argv[1:]]
    return subprocess.call(words, cwd=ROOT, env=os.environ | {"REMOTE_SANDBOX_SUITES": str(CACHE)})


def prepare(folder: Path, wanted: list[str]) -> str:
    """Make an environment, unless it is there; returns what went wrong."""
    terms = hashlib.sha256("\n".join([*wanted, (ROOT / "pyproject.toml").read_text(), sys.version]).encode())
    ready = folder / "ready"
    if ready.exists() and ready.read_text() == terms.hexdigest():
        return ""
    uv = Path(sys.executable).with_name("uv")
    python = folder / "bin" / "python"
    steps = (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder],
        [uv, "pip", "install", "--quiet", "--python", python, "--editable", ".", *wanted],
    )
    for step in steps:
        try:
            done = subprocess.run(step, cwd=ROOT, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            return f"no end after {INSTALL_S} s"
        if done.returncode:
            return " ".join(done.stderr.split())[-300:]
    ready.write_text(terms.hexdigest())
    return ""


if __name__ == "__main__":
    raise SystemExit(main())
