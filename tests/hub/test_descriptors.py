"""Descriptors of the hub: sessions leave none behind, and no crowd of strangers takes those that it needs itself."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.hubs import hub_pid
from tests.support.means import require_local
from tests.support.ports import free_port
from tests.support.server import Wire, wire
from tests.support.sshd import wait_until

FEW = 256
CROWD = 400
SESSIONS = 300
# More than the hub opens for itself meanwhile, and far less than one for each session or connection.
SOME = 20


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def give_few(home: Path) -> int:
    """As where an administrator allows few descriptors; returns the hub."""
    pid = hub_pid(home)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (FEW, FEW))
    return pid


def one_session(home: Path, *, local: bool = False) -> None:
    with wire(home, local=local) as line:
        line.initialize()
        assert not line.call("list_sandboxes").get("isError")


def test_the_hub_may_have_as_many_descriptors_as_its_user(tmp_path: Path) -> None:
    with wire(tmp_path) as line:
        line.initialize()
        soft, hard = resource.prlimit(hub_pid(tmp_path), resource.RLIMIT_NOFILE)
    assert soft == hard or soft >= 65536


def test_sessions_leave_no_descriptors_behind(tmp_path: Path) -> None:
    with wire(tmp_path) as first:
        first.initialize()
        pid = give_few(tmp_path)
        one_session(tmp_path)
        before = descriptors(pid)
        for _ in range(SESSIONS):
            one_session(tmp_path)
        # The hub opens its own databases when they are first needed.
        wait_until(lambda: descriptors(pid) < before + SOME, what="all descriptors of sessions to be closed")


# Strangers at a forwarded port


SERVICE = """
import selectors, socket
door, looking = socket.create_server(("127.0.0.1", PORT), backlog=1000), selectors.DefaultSelector()
looking.register(door, selectors.EVENT_READ)
# Never closed.
kept = []
def answer(line):
    try:
        data = line.recv(100)
        line.sendall(data)
    except OSError:
        data = b""
    if not data:
        looking.unregister(line)
        kept.append(line)
while True:
    for key, _ in looking.select():
        if key.fileobj is door:
            looking.register(door.accept()[0], selectors.EVENT_READ)
        else:
            answer(key.fileobj)
"""


@contextmanager
def room_for(files: int) -> Iterator[None]:
    """So many open files for this process, which plays all the strangers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, files + 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def forwarded(line: Wire, home: Path) -> int:
    """A port of this computer that leads to a service in the sandbox, which never closes a connection."""
    # Without namespaces it is a port of this computer.
    service = free_port()
    (home / "state" / "local" / "local" / "home" / "service.py").write_text(SERVICE.replace("PORT", str(service)))
    line.call("exec_bash_background", command="exec /usr/bin/python3 ~/service.py")
    answer = line.call("forward_port", port=service, sandbox_name="local")
    return int(answer["structuredContent"]["local_port"])


@contextmanager
def crowd(port: int, *, half_closed: bool) -> Iterator[None]:
    """Connections that stay, and close their own side where that is wanted."""
    with room_for(CROWD), ExitStack() as stack:
        for _ in range(CROWD):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            # It may have been ended for others already.
            with suppress(OSError):
                line.sendall(b"x")
                if half_closed:
                    line.shutdown(socket.SHUT_WR)
        yield


def echo(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(b"echo")
        return line.recv(100)


@pytest.mark.parametrize("half_closed", [True, False], ids=["half-closed", "idle"])
def test_a_crowd_at_a_forwarded_port_stops_nothing(tmp_path: Path, *, half_closed: bool) -> None:
    require_local()
    with wire(tmp_path, local=True) as line:
        line.initialize()
        line.call("exec_bash", command="true")
        port, pid = forwarded(line, tmp_path), give_few(tmp_path)
        wait_until(lambda: echo(port) == b"echo", what="the service in the sandbox")
        before = descriptors(pid)
        with crowd(port, half_closed=half_closed):
            assert descriptors(pid) < FEW
            # New sessions, commands, and whoever else uses that port.
            one_session(tmp_path, local=True)
            said = line.call("exec_bash", command="echo well")
            assert said.get("structuredContent", {}).get("stdout") == "well\n", said
            assert echo(port) == b"echo"
            assert descriptors(pid) < before + FEW // 2
        if not half_closed:
            # The others after a minute: see the tests of forwarded ports.
            wait_until(lambda: descriptors(pid) < before + SOME, what="the crowd's descriptors to be closed")
