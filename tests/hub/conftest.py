"""A machine for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.sshd import Fleet, Sshd


@pytest.fixture(scope="module")
def machine(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Sshd]:
    """A machine with bash and a key login, shared by the tests of a module."""
    machine = fleet.machine(request.module.__name__.rpartition("_")[2])
    yield machine
    machine.reset()
