"""The platform that tests of containers share: started for the first of them, ended after the last."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.disposable import Rules
from tests.support.platform import IMAGE, Platform


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` a group belongs to one worker: xdist 3.8 says so in a field that pytest 9.2 has not."""
    if not getattr(config.option, "loadgroup", False):
        return
    from _pytest.nodes import NodeId

    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark and not item.nodeid.endswith(f"@{mark.args[0]}"):
            item._id = NodeId.parse(f"{item.nodeid}@{mark.args[0]}")


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """Tests that use it belong to the xdist group "platform", so that one worker has them all."""
    with Platform() as platform:
        yield platform


@pytest.fixture(scope="module")
async def provider(platform: Platform) -> AsyncIterator[OpenSandboxProvider]:
    provider = OpenSandboxProvider(platform.settings(), Rules(default_image=IMAGE), "tests")
    yield provider
    await provider.close()
