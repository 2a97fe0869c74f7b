"""The provider of containers that the tests of a module share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.disposable import Rules
from tests.support.platform import IMAGE, Platform


@pytest.fixture(scope="module")
async def provider(platform: Platform) -> AsyncIterator[OpenSandboxProvider]:
    provider = OpenSandboxProvider(platform.settings(), Rules(default_image=IMAGE), "tests")
    yield provider
    await provider.close()
