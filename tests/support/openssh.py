"""Machines that are reached over OpenSSH's own client, and a user's own connection to one (ControlMaster)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.shell.sandbox import ShellAlone
from remote_sandbox_mcp.backends.ssh.connection import LoginGate
from remote_sandbox_mcp.backends.ssh.openssh import choose_transport, open_over_openssh
from remote_sandbox_mcp.core.client import Variables
from remote_sandbox_mcp.core.sandboxes.machine import Machine, OpenSsh
from tests.support.sshd import Sshd, wait_until


def over_openssh(sshd: Sshd, *, control_path: str = "", options: tuple[str, ...] = (), **fields: Any) -> Machine:
    """A machine as it is when `transport = "openssh"` is configured, and ssh_config says nothing of it."""
    login = ("-l", sshd.user, "-p", str(sshd.port), "-o", "IdentitiesOnly=yes", "-i", sshd.key_file)
    ssh = OpenSsh(
        program=("/usr/bin/ssh", "-F", "none"),
        options=(*options, *login),
        destination=sshd.host,
        control_path=control_path,
        environ=Variables({"PATH": os.environ["PATH"], "HOME": str(sshd.folder)}),
    )
    return sshd.machine(**{"openssh": ssh, "transport": "openssh", **fields})


async def open_it(machine: Machine, own_known_hosts: Path) -> OutpostSandbox | ShellAlone:
    gate = LoginGate(machine, own_known_hosts)
    choice = await choose_transport(machine)
    assert choice.is_openssh
    return await open_over_openssh(gate, choice)


@contextmanager
def master(sshd: Sshd, socket: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A connection of the user's, open for others until it is ended."""
    words = sshd.client("", "-M", "-N", "-o", f"ControlPath={socket}")[:-1]
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            wait_until(socket.exists, what="the control socket")
            yield process
        finally:
            process.kill()


def logins(sshd: Sshd) -> int:
    """How many connections have logged in so far."""
    return sshd.log.count("Accepted publickey for ")
