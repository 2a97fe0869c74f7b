"""What tests of backends share: a provider of containers, a registry, and this machine with fewer means."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from remote_sandbox_mcp.backends.bubblewrap import bwrap, cgroups
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules
from tests.support.means import needs_control_groups
from tests.support.platform import IMAGE, Platform
from tests.support.registry import Registry

LONELY_USERS = 1_000_000_000


@pytest.fixture(scope="module")
async def provider(platform: Platform) -> AsyncIterator[OpenSandboxProvider]:
    provider = OpenSandboxProvider(platform.settings(), DisposableRules(default_image=IMAGE), "tests")
    yield provider
    await provider.close()


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        yield registry


@pytest.fixture(scope="session")
def private_image(platform: Platform, registry: Registry) -> str:
    """An image that is behind a login."""
    return registry.take(platform.engine, IMAGE, "private/sandbox:1")


@pytest.fixture(params=[pytest.param("control-groups", marks=needs_control_groups), "no-control-groups"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What holds the limits of a sandbox on this machine: what the machine offers, or less.

    An rlimit counts all processes of a user, so a sandbox of root, which runs as a user of its own, gets one that no
    test beside this one uses.
    """
    if request.param == "no-control-groups":
        monkeypatch.setattr(cgroups, "find_bases", list)
        monkeypatch.setattr(bwrap, "STEP_DOWN_TO", LONELY_USERS + os.getpid())
        monkeypatch.setattr(bwrap, "_found", {})
    return str(request.param)
