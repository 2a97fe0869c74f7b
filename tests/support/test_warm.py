"""The process that forks hubs and commands for the tests: who may use it, and that it outlives what it has forked."""

from __future__ import annotations

import os
import select
import subprocess
from typing import Any

import pytest

from tests.support.means import IS_ROOT
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


CONNECT = """
import socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(bytes.fromhex(sys.argv[1]))
print(line.recv(32))
"""


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
@pytest.mark.parametrize(("user", "told"), [(0, b"b'loaded'\n"), (65534, b"b''\n")], ids=["its user", "another user"])
def test_it_forks_for_its_own_user_alone(user: int, told: bytes) -> None:
    name = NURSERY.ready().getpeername()
    who: dict[str, Any] = {"user": user, "group": user, "extra_groups": []}
    words = ["/usr/bin/python3", "-ISc", CONNECT, name.hex()]
    assert subprocess.run(words, stdout=subprocess.PIPE, cwd="/", check=True, **who).stdout == told
