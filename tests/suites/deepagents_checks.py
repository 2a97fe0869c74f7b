"""LangChain's own tests of sandbox backends, on the sandbox that SUITE_SANDBOX names, or a fresh one.

Run in an environment that has deepagents and langchain-tests, by test_frameworks.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from remote_sandbox_mcp.blocking import Sandboxes
from remote_sandbox_mcp.frameworks.deepagents import RemoteSandbox

# Two of the tests run `python`, which Debian calls python3 alone; it is made in the first folder.
PATH = "/tmp/tools:/usr/local/bin:/usr/bin:/bin"
GIVEN = json.loads(os.environ["SUITE_SANDBOX"])
# Tests that cannot hold, each with its reason.
EXCEPTIONS: dict[str, str] = json.loads(os.environ["SUITE_EXCEPTIONS"])


class TestRemoteSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[RemoteSandbox]:
        with Sandboxes() as boxes:
            box = boxes.open(GIVEN) if isinstance(GIVEN, str) else boxes.create(env={"PATH": PATH}, **GIVEN)
            box.run("tools=${PATH%%:*}; mkdir -p $tools && ln -sf $(command -v python3) $tools/python")
            yield RemoteSandbox(box)
            if not isinstance(GIVEN, str):
                box.delete()
            else:
                box.run("rm -rf /tmp/test_sandbox_ops; case ${PATH%%:*} in /tmp/?*) rm -rf ${PATH%%:*} ;; esac")

    @pytest.fixture(autouse=True)
    def known(self, request: pytest.FixtureRequest) -> None:
        if reason := EXCEPTIONS.get(request.node.originalname):
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
