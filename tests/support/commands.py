"""Commands that give a shell, as an operator would name them; each gives that of an ordinary user."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from remote_sandbox_mcp.backends.command.sandbox import open_behind
from remote_sandbox_mcp.backends.command.way import LocalCommand
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.sandbox import Description, Sandbox
from tests.support.root import as_root
from tests.support.sshd import Sshd

NAME = "door"


def shell_of(sshd: Sshd) -> list[str]:
    """Gives a shell as the user of a machine, on this computer and without its sshd."""
    user = ("--reuid", str(sshd.uid), "--regid", str(sshd.uid), "--clear-groups", "--reset-env")
    # A login shell, so that a machine without Python is one here, too: its PATH is in its start-up file.
    return [*as_root("setpriv", *user), "sh", "-lc"]


def client_of(sshd: Sshd, *options: str) -> list[str]:
    """OpenSSH's client, which takes the line as its last argument."""
    return sshd.client("", *options)[:-1]


async def open_door(
    argv: Sequence[str],
    environment: Environment | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 20.0,
) -> Sandbox:
    way = LocalCommand(argv, os.environ if environ is None else environ)
    return await open_behind(way, Description(NAME, "command"), environment or Environment(), timeout_s=timeout_s)
