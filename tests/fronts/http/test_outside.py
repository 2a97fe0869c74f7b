"""A server over HTTP was not started by its clients: its folder is none of theirs, and a form opens another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.types import ElicitResult

from tests.fronts.http.conftest import connected, service
from tests.support.means import require_local


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_servers_folder_is_no_project_and_a_form_opens_another(tmp_path: Path, mode: str) -> None:
    require_local()
    folder, asked = tmp_path / "project", []
    folder.mkdir()
    (folder / "x").write_text("x")

    async def fill_in(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content=dict.fromkeys(params.requested_schema["properties"], True))

    given = {"local_path": str(folder), "remote_path": "local:got"}
    with service(tmp_path, cwd=folder, env={"REMOTE_SANDBOX_ALLOWED_ROOTS": ""}) as served:
        async with connected(served, mode=mode) as caller:
            problem = await caller.fail("sync_local_to_remote", **given)
            assert problem["error"].endswith(f"remote-sandbox-mcp allow '{folder}' --read")
        async with connected(served, mode=mode, elicitation=fill_in) as caller:
            assert (await caller.call("sync_local_to_remote", **given))["uploaded_files"] == 1
    assert len(asked) == 1
