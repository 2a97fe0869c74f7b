"""Settings of disposable sandboxes, registries, HTTP and logging: config.json, config.toml, environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.sandboxes.disposable import DisposableRules, Platform, RegistryLogin, canonical_host
from ..core.sandboxes.network import PACKAGE_INDEXES
from ..core.sandboxes.secret import Secret
from ..core.serving import Http, Logging
from ..local.processes.locks import holder
from . import paths, readers, schema
from .original import is_machine_list
from .problems import Fault, Reporter, plain, read_document
from .readers import Reader, checked, read_table, report_unknown, table, take_variables
from .secrets import report_doubt, resolve_secret

# Keys of [opensandbox] that are rules, with their names there; all others belong to the platform.
RULES = {
    "default_image": "default_image",
    "default_timeout": "default_timeout_s",
    "max_concurrent_sandboxes": "max_concurrent",
    "auto_cleanup": "auto_cleanup",
    "cleanup_after_minutes": "cleanup_after_minutes",
    "pool": "pool",
}
KEY = "registries"
NAME = paths.PROJECT_FILE
LARGEST = 1 << 20
SOURCE = "platform up"
FOLDER = "platform"
LOCK_FILE, KEY_FILE, URL_FILE = "lock", "key", "url"


@dataclass(frozen=True)
class Services:
    """The settings and where each came from. `exposed` are files that contain a key in plain text."""

    platform: Platform = field(default_factory=Platform)
    rules: DisposableRules = field(default_factory=DisposableRules)
    http: Http = field(default_factory=Http)
    logging: Logging = field(default_factory=Logging)
    sources: Mapping[str, str] = field(default_factory=dict)
    exposed: tuple[str, ...] = ()


def read_services(files: Sequence[ConfigFile], environ: Mapping[str, str], report: Reporter) -> Services:
    """All settings; later files override earlier ones. Bad values are reported and ignored."""
    secret = readers.secret(environ)
    allowed: dict[str, Mapping[str, Reader]] = {
        "opensandbox": {**schema.OPENSANDBOX_READERS, "api_key": secret},
        "disposable": schema.DISPOSABLE_READERS,
        "http": {**schema.HTTP_READERS, "api_key": secret},
        "logging": schema.LOGGING_READERS,
    }
    values: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    for name, readable in allowed.items():
        values[name], origins = _section(name, readable, files, environ, report)
        sources |= {f"{name}.{key}": where for key, where in origins.items()}
    # An address was written but is invalid: do not silently use another platform, or none.
    lost = "" if values["opensandbox"].get("server_url") else _unusable_server(files, environ)
    platform, found = (Platform(), {}) if lost else _platform(values["opensandbox"], environ)
    provider = values["disposable"].get("provider", "")
    if provider == "opensandbox" and not platform.server_url:
        report(
            f'{sources["disposable.provider"]} [disposable]: provider is "opensandbox", but there is no server; set '
            "server_url under [opensandbox], or start one with remote-sandbox-mcp platform up."
        )
    return Services(
        platform=platform,
        rules=DisposableRules(
            provider=provider,
            refusal=lost if provider != "embedded" else "",
            shares_host_network=values["disposable"].get("network", False),
            private_ranges=values["disposable"].get("private_ranges", ()),
            network_hosts=values["disposable"].get("network_hosts", PACKAGE_INDEXES),
            **{RULES[key]: value for key, value in values["opensandbox"].items() if key in RULES},
        ),
        http=Http(**values["http"]),
        logging=Logging(**values["logging"]),
        sources=sources | found,
        exposed=tuple(_exposed(values, sources)),
    )


def _platform(values: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Platform, dict[str, str]]:
    """The configured server; else our own, if it runs."""
    named = Platform(**{key: value for key, value in values.items() if key not in RULES})
    if named.server_url:
        return named, {}
    own = running_platform(environ)
    if own is None:
        return named, {}
    # Our own server has its address and key; which volumes are allowed is still the operator's choice.
    own = replace(own, volumes=named.volumes)
    return own, dict.fromkeys(("opensandbox.server_url", "opensandbox.api_key"), SOURCE)


def _unusable_server(files: Sequence[ConfigFile], environ: Mapping[str, str]) -> str:
    """Advise about a server address that is written somewhere but cannot be used; "" where none is written."""
    places = [name for name in schema.SERVICE_VARIABLES["opensandbox"]["server_url"] if environ.get(name, "").strip()]
    for written in files:
        section = written.document.get("opensandbox")
        if isinstance(section, Mapping) and section.get("server_url"):
            places.append(f"{written.file} [opensandbox] server_url")
    if places:
        return f"correct the address in {places[0]}, or take it out."
    return next((written.refusal for written in files if written.refusal), "")


def _section(
    name: str, allowed: Mapping[str, Reader], files: Sequence[ConfigFile], environ: Mapping[str, str], report: Reporter
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values in force, and where each came from."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for written in files:
        found = checked(written.document, name, allowed, written.file, report)
        if name == "logging" and "file" in found:
            # Only paths in files are relative to the file; those in variables are relative to the process.
            found["file"] = written.resolve(found["file"])
        if "api_key" in found:
            report_doubt(f"{written.file} [{name}]", "api_key", written.document[name]["api_key"], environ, report)
        values |= found
        sources |= dict.fromkeys(found, written.file)
    said, origins = take_variables(schema.SERVICE_VARIABLES[name], allowed, environ, report)
    return values | said, sources | origins


def _exposed(values: Mapping[str, Mapping[str, Any]], sources: Mapping[str, str]) -> Iterator[str]:
    """Files that contain a key in plain text."""
    for name in ("opensandbox", "http"):
        key, where = values[name].get("api_key"), sources.get(f"{name}.api_key", "")
        if isinstance(key, Secret) and not key.source and where not in schema.SERVICE_VARIABLES[name]["api_key"]:
            yield where


def read_registries(
    document: Mapping[str, Any], file: str, environ: Mapping[str, str], report: Reporter
) -> dict[str, RegistryLogin]:
    """Logins by host. One with a mistake is reported and dropped: half a login is useless."""
    found: dict[str, RegistryLogin] = {}
    for number, (name, raw) in enumerate(table(document, KEY, file, report).items(), 1):
        where = f"{file} [{KEY}.{_shown(name, number)}]"
        login, faults = _login(name, raw, where, environ, report)
        host = canonical_host(name)
        if not faults and host in found:
            faults = [f"it is the same registry as another one, {host}"]
        if faults or login is None:
            report(f"{where} is left out: {', and '.join(faults)}.")
        else:
            found[host] = login
    return found


def _shown(name: str, number: int) -> str:
    """Name for messages: somebody may have put a password where only the host belongs."""
    return f'"{plain(name)}"' if "@" not in name else f"number {number}"


def _login(
    name: str, raw: object, where: str, environ: Mapping[str, str], report: Reporter
) -> tuple[RegistryLogin | None, list[str]]:
    if not isinstance(raw, Mapping):
        return None, ["it must be a table of keys and values, with user and password"]
    allowed = {**schema.REGISTRY_READERS, "password": readers.secret(environ)}
    values, faults = read_table(raw, allowed, where, report)
    try:
        readers.registry(name)
    except Fault as fault:
        faults.append(f"its name {fault}")
    # A missing key is reported only if nothing else is wrong, so that one mistake gives one message.
    faults += [] if faults else [f"{key} is missing" for key in allowed if not values.get(key)]
    if faults:
        return None, faults
    report_doubt(where, "password", raw["password"], environ, report)
    return RegistryLogin(**values), []


@dataclass(frozen=True)
class ConfigFile:
    """A configuration file that was read; `is_brought`: with a project, so that no secret may go where it points.

    `refusal` says why no disposable sandbox is made for want of what it says.
    """

    file: str
    document: Mapping[str, Any] = field(repr=False)
    is_brought: bool = False
    refusal: str = ""

    def resolve(self, path: str) -> str:
        """Absolute form of a path in the file; relative ones start in its folder."""
        return os.path.join(os.path.dirname(os.path.abspath(self.file)), os.path.expanduser(path))


def is_json(path: Path | None) -> bool:
    return path is not None and path.suffix.lower() == ".json"


def own_json(given: Path | None, config_file: Path) -> Path | None:
    """The given file, else the one beside config.toml, if it exists."""
    beside = config_file.with_name(NAME)
    # lexists: a dangling link is reported as a mistake instead of being ignored.
    return given or (beside if os.path.lexists(os.path.expanduser(beside)) else None)


def read_json(path: Path, report: Reporter, blame: Reporter) -> ConfigFile | None:
    """The operator's own file; None, with the fault reported, where it cannot be used at all."""
    import json

    # A longer file is cut, and then is not valid JSON. In a tuple, because null is JSON, too.
    document = read_document(path, "it is not valid JSON", lambda text: (json.loads(text),), blame, most=LARGEST)
    if document is None:
        return None
    (found,) = document
    if not isinstance(found, dict):
        blame(f"{path} is passed over: it must be a JSON object, so put {{ and }} around it.")
        return None
    # The original's list of machines has the same name; that it waits to be taken over is told in one sentence.
    if is_machine_list(found):
        return None
    for key in (key for key in found if key not in schema.JSON_KEYS):
        report_unknown(key, schema.JSON_KEYS, str(path), report)
    return ConfigFile(str(path), found)


def running_platform(environ: Mapping[str, str] = os.environ) -> Platform | None:
    """Our own server, if it runs. Reads two files and sends nothing."""
    folder = paths.state_path(environ) / FOLDER
    try:
        # The server inherited the lock, which the kernel releases when it dies.
        if holder(folder / LOCK_FILE) is None:
            return None
        url = (folder / URL_FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return Platform(server_url=url, api_key=resolve_secret(f"file:{folder / KEY_FILE}", environ)) if url else None
