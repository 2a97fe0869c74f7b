"""Inspect's own checks of sandbox providers, on the sandbox that SUITE_SANDBOX names, or a fresh one made as it says.

Run in an environment that has inspect_ai, by test_frameworks.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from remote_sandbox_mcp.frameworks.inspect_ai import Fresh, RemoteSandboxEnvironment

GIVEN = json.loads(os.environ["SUITE_SANDBOX"])
# Checks that cannot hold there, each with its reason.
EXCEPTIONS: dict[str, str] = json.loads(os.environ.get("SUITE_EXCEPTIONS", "{}"))

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


# What images of other people have, and our small ones have not; the check of users then takes this for BusyBox.
LIKE_BUSYBOX = """
[ "$(id -u)" = 0 ] && ! command -v adduser || exit 0
chmod 644 /etc/passwd
printf '%s\\n' '#!/bin/sh' 'case $1 in --help) echo BusyBox; exit ;; esac' \
    'echo "$2:x:1500:1500::/:/bin/sh" >>/etc/passwd' >/usr/bin/adduser
chmod 755 /usr/bin/adduser
"""


@pytest.fixture(scope="module")
async def environment() -> AsyncIterator[SandboxEnvironment]:
    config = GIVEN if isinstance(GIVEN, str) else Fresh(**GIVEN)
    await RemoteSandboxEnvironment.task_init("checks", config)
    made = await RemoteSandboxEnvironment.sample_init("checks", config, {})
    prepared = await made["default"].exec(["sh", "-c", LIKE_BUSYBOX])
    assert prepared.success, prepared.stderr
    yield made["default"]
    await RemoteSandboxEnvironment.sample_cleanup("checks", config, made, False)
    await RemoteSandboxEnvironment.task_cleanup("checks", config, True)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, environment: SandboxEnvironment) -> SandboxEnvironment:
    if reason := EXCEPTIONS.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    return environment
