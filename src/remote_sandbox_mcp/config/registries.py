"""[registries."HOST"]: with which login the platform fetches images from a registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.registry import RegistryLogin, canonical_host
from . import readers
from .problems import Fault, Tell, plain
from .schema import REGISTRY_READERS
from .secrets import doubt
from .tables import read_table, table

KEY = "registries"


def read_registries(
    document: Mapping[str, Any], file: str, environ: Mapping[str, str], tell: Tell
) -> dict[str, RegistryLogin]:
    """The logins by host. One with a mistake is told and left out: half a login is none."""
    found: dict[str, RegistryLogin] = {}
    for number, (name, raw) in enumerate(table(document, KEY, file, tell).items(), 1):
        where = f"{file} [{KEY}.{_shown(name, number)}]"
        login, faults = _login(name, raw, where, environ, tell)
        host = canonical_host(name)
        if not faults and host in found:
            faults = [f"it is the same registry as another one, {host}"]
        if faults or login is None:
            tell(f"{where} is left out: {', and '.join(faults)}.")
        else:
            found[host] = login
    return found


def _shown(name: str, number: int) -> str:
    """A login may stand where only the host belongs."""
    return f'"{plain(name)}"' if "@" not in name else f"number {number}"


def _login(
    name: str, raw: object, where: str, environ: Mapping[str, str], tell: Tell
) -> tuple[RegistryLogin | None, list[str]]:
    if not isinstance(raw, Mapping):
        return None, ["it must be a table of keys and values, with user and password"]
    known = {**REGISTRY_READERS, "password": readers.secret(environ)}
    values, faults = read_table(raw, known, where, tell)
    try:
        readers.registry(name)
    except Fault as fault:
        faults.append(f"its name {fault}")
    faults += [] if faults else [f"{key} is missing" for key in known if not values.get(key)]
    if faults:
        return None, faults
    if why := doubt(raw["password"], environ):
        tell(f"{where}: password is kept elsewhere, and {why}.")
    return RegistryLogin(**values), []
