"""What the README tells users to type: the lines that install, and what clients are told to start."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.install.test_setup import SETUP_S, call, copy_project, run
from tests.support.doc_pages import ROOT, blocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

README = ROOT / "README.md"
TOLD = (README, ROOT / "docs/clients.md")
COMMAND = "remote-sandbox-mcp"
BIN = Path(sys.executable).parent

# All of them need the one installation.
pytestmark = [pytest.mark.xdist_group("the way in"), pytest.mark.timeout(SETUP_S)]


def shell_lines(*pages: Path) -> list[str]:
    text = "".join(block.text for page in pages for block in blocks(page) if block.language == "sh")
    return [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def servers() -> Iterator[dict[str, Any]]:
    """What each line and block makes a client start."""
    for line in shell_lines(*TOLD):
        words = shlex.split(line, comments=True)
        if "--" in words:
            command, *args = words[words.index("--") + 1 :]
            yield {"command": command, "args": args}
        elif "--add-mcp" in words:
            yield json.loads(words[words.index("--add-mcp") + 1])
    for block in (block for page in TOLD for block in blocks(page)):
        document: dict[str, Any] = {"json": json.loads, "toml": tomllib.loads}.get(block.language, lambda _: {})(
            block.text
        )
        for key in ("mcpServers", "servers", "mcp_servers"):
            yield from document.get(key, {}).values()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_project(tmp_path_factory.mktemp("checkout") / "project")


@pytest.fixture(scope="module")
def tools(project: Path) -> Path:
    """The folder into which the README's first line has put the command, and nothing else."""
    folder = project.parent / "bin"
    places = {"UV_TOOL_DIR": str(project.parent / "tools"), "UV_TOOL_BIN_DIR": str(folder)}
    line = next(line for line in shell_lines(README) if line.startswith("uv "))
    run(
        "sh",
        "-c",
        line,
        folder=project,
        env=places | {"PATH": f"{BIN}:{os.environ['PATH']}", "UV_PYTHON": sys.executable},
    )
    return folder


def test_the_readme_installs_from_the_checkout() -> None:
    lines = [line for line in shell_lines(README) if "install" in line]
    assert lines == ["uv tool install .", "pipx install .", "python3 -m venv ~/rsmcp && ~/rsmcp/bin/pip install ."]


def test_pip_takes_its_line_too(project: Path, tmp_path: Path) -> None:
    line = next(line for line in shell_lines(README) if "pip install" in line)
    # What the program needs is installed by the other line.
    run("sh", "-c", f"{line} --no-deps", folder=project, env={"HOME": str(tmp_path)})
    assert (tmp_path / "rsmcp/bin" / COMMAND).exists()


@pytest.mark.skipif(not shutil.which("pipx"), reason="needs pipx")
def test_pipx_takes_its_line_too(project: Path, tmp_path: Path) -> None:
    env = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    run("sh", "-c", "pipx install .", folder=project, env=env)
    assert (tmp_path / "bin" / COMMAND).exists()


async def test_what_clients_are_told_to_start_is_what_was_installed(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {(server["command"], tuple(server.get("args", ()))) for server in servers()}
    assert len([*servers()]) >= 10
    assert told == {(COMMAND, ())}
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert shutil.which(COMMAND) == str(tools / COMMAND)
    (answer,) = await call(Path(COMMAND), tmp_path / "home", list_sandboxes={})
    assert "sandboxes" in answer


async def test_the_module_serves_as_well(tools: Path, tmp_path: Path) -> None:
    python = (tools / COMMAND).resolve().with_name("python")
    starter = tmp_path / "start"
    starter.write_text(f"#!/bin/sh\nexec {python} -m remote_sandbox_mcp.server\n")
    starter.chmod(0o755)
    (answer,) = await call(starter, tmp_path / "home", list_sandboxes={})
    assert "sandboxes" in answer


def test_the_command_tells_its_version(tools: Path) -> None:
    assert run(tools / COMMAND, "--version").strip().count(".") == 2
