"""The embedded sandbox with pytest in it, and projects to put into its home."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap.local import open_local
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from tests.support.means import folders_inside, require_local

PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")

Put = Callable[[dict[str, str]], None]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pytest as it is installed for these tests; its compiled files come along, which saves seconds."""
    folder = tmp_path_factory.mktemp("packages")
    for name in PACKAGES:
        found = distribution(name)
        site = Path(str(found.locate_file("")))
        tops = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
        for top in tops:
            (shutil.copytree if (site / top).is_dir() else shutil.copy2)(site / top, folder / top)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The sandbox's home, as it is called outside."""
    return tmp_path / "local" / "local" / "home"


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[OutpostSandbox]:
    """Real commands behind real walls; its Python has what is in ~/lib."""
    require_local()
    library = f"{folders_inside(tmp_path / 'local/local')[0]}/lib"
    place = LocalPlace(environment=Environment(env={"PYTHONPATH": library, "PYTHONDONTWRITEBYTECODE": "1"}))
    opened = await open_local(place, tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
def put(home: Path) -> Put:
    """Write files into the sandbox's home."""

    def put(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            for folder in (path, *path.relative_to(home).parents):
                (home / folder).chmod(0o777)

    return put


@pytest.fixture
def with_pytest(sandbox: OutpostSandbox, home: Path, packages: Path) -> None:
    """pytest can be imported in the sandbox."""
    shutil.copytree(packages, home / "lib", copy_function=os.link)
    (home / "lib").chmod(0o755)
