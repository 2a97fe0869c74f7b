"""The process that forks hubs and commands for the tests outlives what it has forked."""

from __future__ import annotations

import os
import select

from tests.support.warm import NURSERY, Nursery, run


def test_one_that_goes_with_an_answer_unread_ends_nobody_else() -> None:
    NURSERY.ready()
    Nursery()._reach().close()
    waiting = Nursery()._reach()
    select.select([waiting], [], [], 20)
    # It has been told that everything is loaded, and has not read it: the other side's next read fails.
    waiting.close()
    for _ in range(2):
        assert run(("remote-sandbox-mcp", "--version"), os.environ, timeout=60).returncode == 0
