"""Where the clients come from: npm packages and a virtual environment of their own, kept from one run to the next."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".clients-cache"
# Newer than many systems have, and needed by the Inspector.
NODE = "node@24"
PACKAGES = (
    "@modelcontextprotocol/inspector@2.12.0",
    "@modelcontextprotocol/conformance@0.1.16",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/client@2.4.0",
    "mcporter@0.12.3",
    "@anthropic-ai/claude-code@2.1.326",
    "@openai/codex@0.169.0",
    "axe-core@4.14.0",
    "@anthropic-ai/mcpb@2.1.2",
)
LIBRARIES = ("openai-agents==0.24.0", "langchain-mcp-adapters==0.3.2")
INSTALL_S = 600


class NoClients(Exception):
    """They cannot be had on this machine, and why."""


def install() -> None:
    """Raises NoClients where npm or PyPI does not answer."""
    mark, wanted = FOLDER / "installed", "\n".join((NODE, *PACKAGES, *LIBRARIES))
    if mark.exists() and mark.read_text() == wanted:
        return
    if shutil.which("npm") is None:
        raise NoClients("there is no npm on this machine")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true, "type": "module"}\n')
    print("installing the clients: once, three minutes or less", file=sys.stderr)
    # Some packages ask which node installs them, so node comes first.
    _run("npm", "install", "--no-audit", "--no-fund", "--silent", NODE)
    _run("npm", "install", "--no-audit", "--no-fund", "--silent", *PACKAGES)
    _run(sys.executable, "-m", "venv", "venv")
    _run("venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *LIBRARIES)
    mark.write_text(wanted)


def _run(*words: str) -> None:
    path = f"{FOLDER}/node_modules/.bin:{os.environ.get('PATH', '')}"
    try:
        done = subprocess.run(
            words, cwd=FOLDER, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=INSTALL_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NoClients(f"{words[0]} could not install them: {problem}") from None
    if done.returncode:
        raise NoClients(f"{' '.join(words[:2])} could not install them: {done.stderr.strip()[-300:]}")


def program(name: str) -> str:
    """A program of the npm packages."""
    return str(FOLDER / "node_modules/.bin" / name)


def library_python() -> str:
    return str(FOLDER / "venv/bin/python")
