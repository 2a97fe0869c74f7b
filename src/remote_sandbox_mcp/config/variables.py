"""A client's variables for programs of the operator's: doors, OpenSSH's client, and what ssh_config starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ..core.sandboxes.secret import Secret
from ..local.processes.variables import OPERATORS, made

# Our own variables may hold passwords and keys, and no program needs them.
OWN_VARIABLES = ("REMOTE_SANDBOX_", "OPENSANDBOX_", "OPEN_SANDBOX_")
# Those of the one machine that the environment may name.
_LOGIN_VARIABLES = frozenset({"REMOTE_PASSWORD", "REMOTE_KEY_PASSPHRASE"})


def for_programs(
    environ: Mapping[str, str], secrets: Iterable[Secret | None], names: Iterable[str] = ()
) -> dict[str, str]:
    """Make the variables of such a program: a list of names, `names` that the operator adds, and no secret of ours."""
    usual = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    return made(usual | without_secrets(environ, secrets), (*OPERATORS, *names))


def without_secrets(environ: Mapping[str, str], secrets: Iterable[Secret | None]) -> dict[str, str]:
    """The user's variables, without those that configure us and those that hold a secret of our configuration."""
    named = {secret.source.removeprefix("env:") for secret in secrets if secret and secret.source.startswith("env:")}
    return {
        name: value
        for name, value in environ.items()
        if name not in named and not name.startswith(OWN_VARIABLES) and name not in _LOGIN_VARIABLES
    }
