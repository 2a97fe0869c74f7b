"""Disposable sandboxes, HTTP and logging: config.json, over it config.toml, over both the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.disposable import Platform, Rules
from ..core.secret import Secret
from ..core.serving import Http, Logging
from . import own_platform, readers
from .json_file import Written
from .problems import Tell
from .readers import Reader
from .schema import DISPOSABLE_READERS, HTTP_READERS, LOGGING_READERS, OPENSANDBOX_READERS, SERVICE_VARIABLES
from .secrets import doubt
from .tables import checked, take_variables

# What a key of [opensandbox] is called among the rules; the others are of the platform.
_RULES = {
    "default_image": "default_image",
    "default_timeout": "default_timeout_s",
    "max_concurrent_sandboxes": "max_concurrent",
    "auto_cleanup": "auto_cleanup",
    "cleanup_after_minutes": "cleanup_after_minutes",
    "pool": "pool",
}


@dataclass(frozen=True)
class Services:
    """What the operator said of them, and where. `exposed` are the files that hold a key as it is."""

    platform: Platform = field(default_factory=Platform)
    rules: Rules = field(default_factory=Rules)
    http: Http = field(default_factory=Http)
    logging: Logging = field(default_factory=Logging)
    sources: Mapping[str, str] = field(default_factory=dict)
    exposed: tuple[str, ...] = ()


def read_services(files: Sequence[Written], environ: Mapping[str, str], tell: Tell) -> Services:
    """All of it, from files of which later ones count more. A bad value is told and passed over."""
    secret = readers.secret(environ)
    known: dict[str, Mapping[str, Reader]] = {
        "opensandbox": {**OPENSANDBOX_READERS, "api_key": secret},
        "disposable": DISPOSABLE_READERS,
        "http": {**HTTP_READERS, "api_key": secret},
        "logging": LOGGING_READERS,
    }
    values: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    for name, readable in known.items():
        values[name], origins = _section(name, readable, files, environ, tell)
        sources |= {f"{name}.{key}": where for key, where in origins.items()}
    lost = "" if values["opensandbox"].get("server_url") else _unusable_server(files, environ)
    platform, found = (Platform(), {}) if lost else _platform(values["opensandbox"], environ)
    provider = values["disposable"].get("provider", "")
    if provider == "opensandbox" and not platform.server_url:
        tell(
            f'{sources["disposable.provider"]} [disposable]: provider is "opensandbox", but there is no server; set '
            "server_url under [opensandbox], or start one with remote-sandbox-mcp platform up."
        )
    return Services(
        platform=platform,
        rules=Rules(
            provider=provider,
            refusal=lost if provider != "embedded" else "",
            shares_host_network=values["disposable"].get("network", False),
            private_ranges=values["disposable"].get("private_ranges", ()),
            **_renamed(values["opensandbox"]),
        ),
        http=Http(**values["http"]),
        logging=Logging(**values["logging"]),
        sources=sources | found,
        exposed=tuple(_exposed(values, sources)),
    )


def _platform(values: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Platform, dict[str, str]]:
    """The server that was named; where none was, the one of ours that runs."""
    named = Platform(**{key: value for key, value in values.items() if key not in _RULES})
    if named.server_url:
        return named, {}
    own = own_platform.running_platform(environ)
    if own is None:
        return named, {}
    own = replace(own, volumes=named.volumes)
    return own, dict.fromkeys(("opensandbox.server_url", "opensandbox.api_key"), own_platform.SOURCE)


def _unusable_server(files: Sequence[Written], environ: Mapping[str, str]) -> str:
    """What to do about an address that is written somewhere, where none can be used; "" where none is written."""
    places = [name for name in SERVICE_VARIABLES["opensandbox"]["server_url"] if environ.get(name, "").strip()]
    for written in files:
        section = written.document.get("opensandbox")
        if isinstance(section, Mapping) and section.get("server_url"):
            places.append(f"{written.file} [opensandbox] server_url")
    return f"correct the address in {places[0]}, or take it out." if places else ""


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_RULES[key]: value for key, value in values.items() if key in _RULES}


def _section(
    name: str, known: Mapping[str, Reader], files: Sequence[Written], environ: Mapping[str, str], tell: Tell
) -> tuple[dict[str, Any], dict[str, str]]:
    """What holds, and who said it."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for written in files:
        found = checked(written.document, name, known, written.file, tell)
        if name == "logging" and "file" in found:
            found["file"] = written.resolve(found["file"])
        if "api_key" in found and (why := doubt(written.document[name]["api_key"], environ)):
            tell(f"{written.file} [{name}]: api_key is kept elsewhere, and {why}.")
        values |= found
        sources |= dict.fromkeys(found, written.file)
    said, origins = take_variables(SERVICE_VARIABLES[name], known, environ, tell)
    return values | said, sources | origins


def _exposed(values: Mapping[str, Mapping[str, Any]], sources: Mapping[str, str]) -> Iterator[str]:
    """The files in which a key stands as it is."""
    for name in ("opensandbox", "http"):
        key, where = values[name].get("api_key"), sources.get(f"{name}.api_key", "")
        if isinstance(key, Secret) and not key.source and where not in SERVICE_VARIABLES[name]["api_key"]:
            yield where
