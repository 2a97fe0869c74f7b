"""Servers and machines for the tests of a module; each test that breaks something has its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.server import Server, entry, serve
from tests.support.sshd import Fleet, Sshd


@pytest.fixture(scope="module")
def machine(fleet: Fleet, request: pytest.FixtureRequest) -> Sshd:
    """A machine with bash and a key login, shared by the tests of a module; its parameter makes it another kind."""
    return fleet.machine(request.module.__name__.rpartition("_")[2], **getattr(request, "param", {}))


@pytest.fixture(scope="module")
async def server(machine: Sshd, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A server that knows that machine."""
    async with serve(tmp_path_factory.mktemp("server"), entry(machine)) as server:
        yield server
