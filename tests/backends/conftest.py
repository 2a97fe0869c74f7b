"""The provider of containers that the tests of a module share, and the registry that all of them share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.disposable import Rules
from tests.support.platform import IMAGE, Platform
from tests.support.registry import Registry


@pytest.fixture(scope="module")
async def provider(platform: Platform) -> AsyncIterator[OpenSandboxProvider]:
    provider = OpenSandboxProvider(platform.settings(), Rules(default_image=IMAGE), "tests")
    yield provider
    await provider.close()


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        yield registry


@pytest.fixture(scope="session")
def private_image(platform: Platform, registry: Registry) -> str:
    """An image that is behind a login. Pushed once: to pack it takes seconds of processor time."""
    return registry.take(platform.engine, IMAGE, "private/sandbox:1")
