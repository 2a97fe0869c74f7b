"""A place to deploy to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap.local import open_local
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from tests.support.app_world import World, deploying
from tests.support.means import require_local


@pytest.fixture
async def walled(tmp_path: Path) -> AsyncIterator[World]:
    require_local()
    async with deploying(await open_local(LocalPlace(), tmp_path)) as world:
        yield world
