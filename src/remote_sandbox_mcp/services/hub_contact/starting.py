"""Starts the hub as a detached process that inherits its lock and its listening socket."""

from __future__ import annotations

import os
import subprocess

from ...local.processes.process import module_words
from .place import LIVED_BY, HubPlace, NoHub

# Other variables may be secrets, or belong to a session that ends. What a session needs comes with its hello.
LOGIN = frozenset(
    {
        *("PATH", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
        *("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"),
        *("REMOTE_SANDBOX_HUB_IDLE_S",),
    }
)
# The shell exits at once, so that nobody has to wait for the hub, and no terminal can become its controlling terminal.
LEAVE_BEHIND = ("/bin/sh", "-c", '"$@" &', "sh")


def _open_log(place: HubPlace) -> int:
    """A descriptor for the hub's output; on a full disk it goes nowhere."""
    try:
        return os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def start(place: HubPlace, lock: int, listener: int) -> None:
    """Raises NoHub."""
    given = {name: value for name, value in os.environ.items() if name in LIVED_BY | LOGIN}
    words = (*LEAVE_BEHIND, *module_words("remote_sandbox_mcp.hub"), str(lock), str(listener))
    try:
        with open(_open_log(place), "ab") as log:
            subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=given,
                cwd="/", start_new_session=True, pass_fds=(lock, listener), check=True,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise NoHub(f"unable to start a process: {getattr(error, 'strerror', None) or error}") from None
