"""Set-up on machines that are not ours: every Python from 3.10 on, every promised system, and from the wheel."""

from __future__ import annotations

import itertools
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
FOUND = [python for python in pythons() if int(python.rpartition(".")[2]) >= OLDEST and python != OURS] or [OURS]
# The one with which pip does everything, as it does for users: the system's, whose pip may be an extra package. For pip
# to unpack all wheels takes twenty seconds of processor time, so for the others uv does that, by the same hashes.
BY_PIP_ALONE = next((python for python in FOUND if python.startswith("/usr/")), FOUND[0])
# What works with the oldest and the newest works with those between them.
PYTHONS = [python for python in FOUND if python in (FOUND[0], FOUND[-1], BY_PIP_ALONE)]
SYSTEMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "x86_64-apple-darwin", "aarch64-apple-darwin")
# Found before any test gives itself another home: downloads are kept from one run to the next.
INSTALLERS = {
    "PIP_CACHE_DIR": platformdirs.user_cache_dir("pip"),
    "UV_CACHE_DIR": platformdirs.user_cache_dir("uv"),
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
    """The project as a clone has it, with what is not committed yet; without git, as it was unpacked."""
    if not (ROOT / ".git").exists():
        kept_out = shutil.ignore_patterns(".venv", "__pycache__", ".*_cache", ".hypothesis")
        return Path(shutil.copytree(ROOT, folder, ignore=kept_out))
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


async def call(
    command: Path, home: Path, folder: Path | None = None, **calls: dict[str, object]
) -> list[dict[str, object]]:
    """Tool calls over MCP to a server that was just installed; the client's own Python does not matter."""
    home.mkdir()
    env = {"HOME": str(home), "REMOTE_SANDBOX_MCP_HOME": str(home / "state"), "PATH": os.environ["PATH"]}
    env |= {"REMOTE_SANDBOX_HUB_IDLE_S": "1"}
    parameters = StdioServerParameters(command=str(command), args=[], env=env, cwd=folder or home)
    async with Client(stdio_client(parameters)) as client:
        answers = [await client.call_tool(tool, arguments) for tool, arguments in calls.items()]
    assert not any(answer.is_error for answer in answers), answers
    return [dict(answer.structured_content or {}) for answer in answers]


def unpack_wheels(python: str, environment: Path) -> None:
    """Leaves pip to find that all requirements are met, and to install the program itself."""
    run(UV, "venv", "--quiet", "--no-config", "--seed", "--python", python, environment)
    options = ("--quiet", "--no-config", "--require-hashes", "--only-binary", ":all:")
    run(UV, "pip", "install", *options, "--python", environment / "bin/python", "-r", REQUIREMENTS[0])


def short(python: str) -> str:
    return "-".join(part for part in Path(python).parts if part.startswith(("python", "3")) or part == "usr")


@pytest.mark.timeout(SETUP_S)
@pytest.mark.parametrize("python", PYTHONS, ids=short)
async def test_a_clone_is_set_up_and_serves_with_the_oldest_and_newest_python_and_the_systems(
    python: str, copy: Path, tmp_path: Path
) -> None:
    if python != BY_PIP_ALONE:
        unpack_wheels(python, copy / ".venv")
    said = run("make", "setup", f"PYTHON={python}", folder=copy)
    assert "setting up .venv with what the program needs" in said
    command = copy / ".venv/bin/remote-sandbox-mcp"
    assert run(copy / ".venv/bin/python", "-V") == run(python, "-V")
    (answer,) = await call(command, tmp_path / "home", list_sandboxes={})
    assert "sandboxes" in answer
    # Test tools are for those who test.
    assert not (copy / ".venv/bin/pytest").exists()
    if python == BY_PIP_ALONE:
        # As `du` counts, with pip and all extras: 105 MB with setuptools, and with each module compiled in advance.
        blocks = sum(path.lstat().st_blocks for path in (copy / ".venv").rglob("*"))
        assert blocks * 512 < 75 << 20
        assert not list((copy / ".venv").glob("lib/*/site-packages/setuptools"))


@pytest.mark.timeout(SETUP_S)
def test_the_pins_can_be_had_as_wheels_for_every_promised_python_and_system(tmp_path: Path) -> None:
    wheels = pinned_wheels(tmp_path / "pylock.toml")
    for minor, system in itertools.product(range(OLDEST, NEWEST + 1), SYSTEMS):
        options = ("--no-config", "--quiet", "--dry-run", "--no-build", "--target", tmp_path / "nowhere")
        run(UV, "pip", "install", *options, "--python-version", f"3.{minor}", "--python-platform", system, "-r", wheels)


def pinned_wheels(file: Path) -> Path:
    """What the pins and all that these need come to on any system, each with the wheels whose hashes are pinned.

    Found once: to choose among them then takes a twentieth of the time that it takes to find them.
    """
    options = ("--no-config", "--quiet", "--universal", "--no-build", "--format", "pylock.toml")
    run(UV, "pip", "compile", *options, "--python-version", f"3.{OLDEST}", "-o", file, *REQUIREMENTS)
    pinned = {found for pins in REQUIREMENTS for found in re.findall(r"--hash=sha256:(\w+)", pins.read_text())}
    wheel = re.compile(r'\{ url = "[^"]+\.whl", [^{}]*hashes = \{ sha256 = "(\w+)" \} \},?')
    found = file.read_text()
    assert pinned & set(wheel.findall(found))
    file.write_text(wheel.sub(lambda it: it[0] if it[1] in pinned else "", found))
    return file


def test_the_pins_record_hashes_and_no_download_addresses() -> None:
    for file in REQUIREMENTS:
        pins = re.split(r"\n(?! )", file.read_text().strip())
        assert all("--hash=sha256:" in pin for pin in pins)
        assert "://" not in file.read_text()


def data_files(names: Sequence[str]) -> set[str]:
    """What the program reads at run time: scripts for the other side, SQL, pages."""
    return {
        name
        for name in names
        if not name.endswith((".py", ".pyc", "/")) and not re.search(r"\.(dist-info|data)/", name)
    }


@pytest.mark.timeout(SETUP_S)
async def test_from_the_wheel_alone_it_runs_commands_jobs_and_syncs(copy: Path, tmp_path: Path) -> None:
    run(UV, "build", "--quiet", "--no-config", "--wheel", "--python", sys.executable, "--out-dir", tmp_path, copy)
    (wheel,) = tmp_path.glob("*.whl")
    source = copy / "src"
    wanted = data_files([str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()])
    assert data_files(zipfile.ZipFile(wheel).namelist()) == wanted
    shutil.rmtree(copy)
    bare = tmp_path / "bare"
    # Not with pip: how that installs is tested above, for every Python.
    run(UV, "venv", "--quiet", "--no-config", "--python", sys.executable, bare)
    run(UV, "pip", "install", "--quiet", "--no-config", "--python", bare / "bin/python", wheel)
    installed = [path for path in bare.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in installed if path.suffix != ".pyc") < 70_000_000
    assert not {"keyring", "opensandbox"} & {path.name for path in bare.glob("lib/*/site-packages/*")}
    for page in ("share/man/man1/remote-sandbox-mcp.1", "share/bash-completion/completions/remote-sandbox-mcp"):
        assert (bare / page).stat().st_size > 500
    server = bare / "bin/remote-sandbox-mcp"
    # The client is started in it.
    project = tmp_path / "project"
    project.mkdir()
    (project / "file").write_text("text")
    started, synced = await call(
        server,
        tmp_path / "home",
        project,
        exec_bash_background={"command": "echo from the wheel", "watch": False},
        sync_local_to_remote={"local_path": str(project), "remote_path": "project"},
    )
    assert started["status"] == "started"
    assert synced["uploaded_files"] == 1
