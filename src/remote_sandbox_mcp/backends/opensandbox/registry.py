"""What is said where an image cannot be fetched: from which registry, with which login, and where to set that."""

from __future__ import annotations

import re

from ...core.errors import ConfigError, SandboxError
from ...core.registry import RegistryLogin, host_of
from .problems import NO_IMAGE

# In the words of engines and registries.
_WANTS_LOGIN = re.compile("no basic auth credentials|unauthorized|authentication required", re.IGNORECASE)


def explained(problem: SandboxError, doing: str, image: str, login: RegistryLogin | None) -> SandboxError:
    """The same problem, with what to do about it where it is one of fetching; never with any part of a password."""
    words = str(problem).removeprefix(doing)
    if NO_IMAGE.means not in words:
        return problem
    host = host_of(image)
    place = f'[registries."{host}"] in config.toml'
    if not _WANTS_LOGIN.search(words):
        return type(problem)(f"{problem}; a login to {host} is set under {place}")
    if login is None:
        return ConfigError(f"{doing}: the registry {host} wants a login; set user and password under {place}")
    # It may have been changed since it was fetched from where it is kept.
    login.password.forget()
    return ConfigError(
        f"{doing}: the registry {host} refuses the login of {login.user}; correct user and password under {place}"
    )
