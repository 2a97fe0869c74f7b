"""An agent that plants a program where this computer would start it, through the running server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.means import require_local
from tests.support.server import Server, serve

# As `conda init`, `go install` and dotfile managers leave a home folder.
FIRST_IN_PATH = "miniconda3/bin"
PROGRAM = '#!/bin/sh\necho ran >> {mark}\nexec /usr/bin/bwrap "$@"\n'


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """The client was started in the home folder itself, with all of it allowed by the operator."""
    require_local()
    (tmp_path / FIRST_IN_PATH).mkdir(parents=True)
    path = f"{tmp_path / FIRST_IN_PATH}:{os.environ['PATH']}"
    async with serve(tmp_path, local=True, env={"PATH": path}) as served:
        yield served


async def test_no_program_is_planted_in_a_folder_of_programs(server: Server, tmp_path: Path, mark: Path) -> None:
    planted = tmp_path / FIRST_IN_PATH / "bwrap"
    await server.call(
        "write_remote_file", sandbox_name="local", remote_path="~/bwrap", content=PROGRAM.format(mark=mark)
    )
    await server.run("chmod +x ~/bwrap", sandbox_name="local")
    for target in (planted, planted.parent):
        given = {"remote_path": "local:~/bwrap", "local_path": str(target)}
        assert "a folder of programs" in (await server.fail("sync_remote_to_local", **given))["error"]
    given = {"sandbox_id": "local", "paths": ["~/bwrap"], "local_dir": str(planted.parent)}
    assert "a folder of programs" in (await server.fail("download_files", **given))["error"]
    made = await server.call("create_sandbox")
    await server.call("delete_sandbox", sandbox_id=made["sandbox_id"])
    assert not planted.exists()
    assert not mark.exists()
