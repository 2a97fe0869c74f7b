"""Variables and folder of programs that we start on this computer: made from lists of names, never inherited."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from .programs import absolute_path

# What every program gets of ours; a name that ends with * stands for all that begin so.
ALWAYS = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TERM", "TZ", "TMPDIR")
# Where the user's desktop session is.
DESKTOP = ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_*")
# For programs of the operator's that lead to a machine. All of them are paths or addresses, none is a secret: folders
# of settings, the agent and the ticket that ssh logs in with (a ticket in another cache would not be found), and which
# engine or cluster is meant (without them the command would lead to another place).
OPERATORS = (
    *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"),
    *("SSH_AUTH_SOCK", "KRB5CCNAME", "KRB5_CONFIG", "WSL_INTEROP", "KUBECONFIG"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"),
    *("CONTAINER_HOST", "CONTAINER_CONNECTION"),
)


def made(environ: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """The variables of a program: those that every one gets, and `more`. Of PATH only absolute folders count."""
    names = (*ALWAYS, *more)
    found = {name: value for name, value in environ.items() if is_among(name, names)}
    return found | ({"PATH": absolute_path(found["PATH"])} if "PATH" in found else {})


def home_folder() -> str:
    """The folder in which such a program starts: the current one belongs to a project, which may bring settings."""
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else "/"


def is_among(name: str, names: Iterable[str]) -> bool:
    """Whether a variable is one of these.

    >>> is_among("LC_ALL", ["LC_*"]), is_among("LC", ["LC_*"]), is_among("PATH", ["PATH"])
    (True, False, True)
    """
    return any(name.startswith(it[:-1]) if it.endswith("*") else name == it for it in names)
