"""Set-up on machines that are not ours: every Python from 3.10 on, every promised system, and from the wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import platformdirs
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.support.pipe import pythons

ROOT = Path(__file__).parents[2]
OLDEST, NEWEST = 10, 14
# With the one that runs these tests, their own environment was made in the same way.
OURS = str(Path(sys.executable).resolve())
PYTHONS = [python for python in pythons() if int(python.rpartition(".")[2]) >= OLDEST and python != OURS] or [OURS]
# The one with which pip does everything, as it does for users: the system's, whose pip may be an extra package. For pip
# to unpack all wheels takes twenty seconds of processor time, so for the others uv does that, by the same hashes.
BY_PIP_ALONE = next((python for python in PYTHONS if python.startswith("/usr/")), PYTHONS[0])
SYSTEMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "x86_64-apple-darwin", "aarch64-apple-darwin")
# Found before any test gives itself another home: downloads are kept from one run to the next.
INSTALLERS = {
    "PIP_CACHE_DIR": platformdirs.user_cache_dir("pip"),
    "UV_CACHE_DIR": platformdirs.user_cache_dir("uv"),
    # Half of the time would go into compiling modules that are never imported.
    "PIP_NO_COMPILE": "1",
}
REQUIREMENTS = (ROOT / "requirements.txt", ROOT / "requirements-dev.txt")
UV = Path(sys.executable).with_name("uv")
SETUP_S = 240


def run(*words: str | Path, folder: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """What a command said; a failure shows it all."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=os.environ | INSTALLERS | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return copy_project(tmp_path / "project")


def copy_project(folder: Path) -> Path:
    """The project as a clone has it, with what is not committed yet."""
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


async def call(command: Path, home: Path, tool: str, arguments: dict[str, object]) -> dict[str, object]:
    """One tool call over MCP to a server that was just installed; the client's own Python does not matter."""
    home.mkdir()
    env = {"HOME": str(home), "REMOTE_SANDBOX_MCP_HOME": str(home / "state"), "PATH": os.environ["PATH"]}
    env |= {"REMOTE_SANDBOX_HUB_IDLE_S": "1"}
    parameters = StdioServerParameters(command=str(command), args=[], env=env, cwd=home)
    async with Client(stdio_client(parameters)) as client:
        answer = await client.call_tool(tool, arguments)
        assert not answer.is_error, answer.content
        return dict(answer.structured_content or {})


def unpack_wheels(python: str, environment: Path) -> None:
    """Leaves pip to find that all requirements are met, and to install the program itself."""
    run(UV, "venv", "--quiet", "--no-config", "--seed", "--python", python, environment)
    options = ("--quiet", "--no-config", "--require-hashes", "--only-binary", ":all:")
    run(UV, "pip", "install", *options, "--python", environment / "bin/python", "-r", REQUIREMENTS[0])


def short(python: str) -> str:
    return "-".join(part for part in Path(python).parts if part.startswith(("python", "3")) or part == "usr")


@pytest.mark.timeout(SETUP_S)
@pytest.mark.parametrize("python", PYTHONS, ids=short)
async def test_a_clone_is_set_up_and_serves_with_every_python_of_this_machine(
    python: str, copy: Path, tmp_path: Path
) -> None:
    if python != BY_PIP_ALONE:
        unpack_wheels(python, copy / ".venv")
    said = run("make", "setup", f"PYTHON={python}", folder=copy)
    assert "setting up .venv with what the program needs" in said
    command = copy / ".venv/bin/remote-sandbox-mcp"
    assert run(copy / ".venv/bin/python", "-V") == run(python, "-V")
    answer = await call(command, tmp_path / "home", "list_sandboxes", {})
    assert "sandboxes" in answer
    # Test tools are for those who test.
    assert not (copy / ".venv/bin/pytest").exists()


@pytest.mark.timeout(SETUP_S)
@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
def test_the_pins_can_be_had_as_wheels_for_every_promised_python_and_system(minor: int, tmp_path: Path) -> None:
    options = ("--no-config", "--quiet", "--dry-run", "--no-build", "--require-hashes", "--target", tmp_path)
    files = [word for file in REQUIREMENTS for word in ("-r", file)]
    for system in SYSTEMS:
        target = ("--python-version", f"3.{minor}", "--python-platform", system)
        run(UV, "pip", "install", *options, *target, *files)


def test_the_pins_record_hashes_and_no_download_addresses() -> None:
    for file in REQUIREMENTS:
        pins = re.split(r"\n(?! )", file.read_text().strip())
        assert all("--hash=sha256:" in pin for pin in pins)
        assert "://" not in file.read_text()


def data_files(names: Sequence[str]) -> set[str]:
    """What the program reads at run time: scripts for the other side, SQL, pages."""
    return {name for name in names if not name.endswith((".py", ".pyc", "/")) and ".dist-info" not in name}


@pytest.mark.timeout(SETUP_S)
async def test_from_the_wheel_alone_it_runs_commands_jobs_and_syncs(copy: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, copy)
    (wheel,) = tmp_path.glob("*.whl")
    source = copy / "src"
    wanted = data_files([str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()])
    assert data_files(zipfile.ZipFile(wheel).namelist()) == wanted
    shutil.rmtree(copy)
    bare = tmp_path / "bare"
    # Not with pip: how that installs is tested above, for every Python.
    run(UV, "venv", "--quiet", "--no-config", "--python", sys.executable, bare)
    run(UV, "pip", "install", "--quiet", "--no-config", "--python", bare / "bin/python", wheel)
    server = bare / "bin/remote-sandbox-mcp"
    job = {"command": "echo from the wheel", "watch": False}
    assert (await call(server, tmp_path / "job", "exec_bash_background", job))["status"] == "started"
    project = tmp_path / "sync/project"
    sent = {"local_path": str(project), "remote_path": "project"}
    project.parent.mkdir()
    project.mkdir()
    (project / "file").write_text("text")
    assert (await call(server, tmp_path / "sync/home", "sync_local_to_remote", sent))["uploaded_files"] == 1
