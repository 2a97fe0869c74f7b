"""Inherited configuration: the files of clients' configurations, and their environments' machines, for the watchdog.

Machines and a platform of an environment are kept in the keyring, else in a file, apart for each configuration.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from ..local.files import write_private
from . import keyring_store
from .aliases import agent_socket
from .load import LIST, listed, single
from .paths import from_folder
from .problems import unreported
from .schema import NO_ORIGIN, SECRET_KEYS, SERVICE_VARIABLES, MachineEntry, Origin, read_entry
from .secrets import LITERAL, resolve_secret

FILE = "handed-over.json"
AGENT = "SSH_AUTH_SOCK"
# No machine has this name. Its entry has the variables that configure the platform of disposable sandboxes.
PLATFORM = ""

_PATHS = ("key_file", "certificate_file")
# References that may be stored as they are; the words of a `command:` may be secret themselves.
_PLACES = ("file:", "keyring:", "env:")

_PLATFORM_KEYS = SERVICE_VARIABLES["opensandbox"]["api_key"]
_PLATFORM_VARIABLES = (*SERVICE_VARIABLES["opensandbox"]["server_url"], *_PLATFORM_KEYS)

# How many configurations are remembered by their files.
MOST_FILES = 200
# Between the identity of a configuration and the name of a machine, which never has one.
_APART = "/"

# By configuration and machine name: when it was handed over, and its entry in the form of REMOTE_SANDBOX_LIST.
Inherited = dict[str, dict[str, Any]]
# By machine name: its entry in the environment, raw and parsed.
_Found = dict[str, tuple[Mapping[str, Any], MachineEntry]]


@dataclass(frozen=True)
class _Kept:
    """Content of the file: machines without secrets, and whether others are in the keyring."""

    machines: Inherited
    in_keyring: bool = False
    agent: str = ""
    # By identity of a configuration: its file, empty for the usual one.
    files: Mapping[str, str] = field(default_factory=dict)


def hand_over(names: Iterable[str], environ: Mapping[str, str], state_folder: Path, origin: Origin = NO_ORIGIN) -> str:
    """Keep the file of a configuration and these machines of it (or PLATFORM), with their jump hosts, for the watchdog.

    Returns a warning where secrets had to be written to a file, else "". A machine that the environment does
    not have (any more) is dropped: the watchdog finds it in config.toml. May block for seconds: call it in a thread.
    """
    wanted = {_key(origin.identity, name) for name in names}
    here = _with_jumps(map(_name, wanted), _entries(environ))
    with _alone(state_folder):
        kept = _read(state_folder)
        held = _held(kept, state_folder)
        before = _merged(kept, held)
        fresh = _fresh(before, wanted, here, environ, origin.identity)
        files = _files(kept, origin, environ)
        if not fresh and not wanted & before.keys() and files == kept.files:
            return ""
        secret, plain = _sorted_out(before, wanted, fresh)
        stored = held is not None and _keep_secrets(secret, held, kept, state_folder)
        # A keyring that is locked at the moment still has what it was given.
        in_keyring = held is None or (stored and bool(secret))
        after = _Kept(plain if stored else plain | secret, in_keyring, _agent(here, environ) or kept.agent, files)
        # The watchdog reloads when the file changes, so it is written only when there is something new.
        if after != kept or (stored and secret != held):
            _write(state_folder, after)
    exposed = () if stored else sorted(secret.keys() & fresh.keys())
    return _sentence(exposed, state_folder) if exposed else ""


def files_of(state_folder: Path) -> Mapping[str, str]:
    """The files of the configurations that have handed something over, by identity."""
    return _read(state_folder).files


def watchdog_environ(environ: Mapping[str, str], state_folder: Path, identity: str = "") -> dict[str, str]:
    """The watchdog's environment plus what was handed over; its own variables come first. May block for seconds.

    With an `identity`, only what that configuration has handed over counts; else all, and of two the newer one.
    """
    kept = _read(state_folder)
    inherited = _chosen(_merged(kept, _held(kept, state_folder)), identity)
    platform = inherited.pop(PLATFORM, {"entry": {}})["entry"]
    own = _entries(environ)
    entries = listed(environ, unreported) + [item["entry"] for name, item in inherited.items() if name not in own]
    # Server and key belong together: never send one platform's key to another.
    merged = {**environ} if any(map(environ.get, _PLATFORM_VARIABLES)) else {**platform, **environ}
    if inherited:
        merged[LIST] = json.dumps(entries)
    if inherited and kept.agent and not environ.get(AGENT) and os.path.exists(kept.agent):
        merged[AGENT] = kept.agent
    return merged


def withdraw(state_folder: Path) -> None:
    """Remove all that was handed over."""
    with _alone(state_folder):
        if _read(state_folder).in_keyring:
            keyring_store.delete(_account(state_folder))
        (state_folder / FILE).unlink(missing_ok=True)


def _key(identity: str, name: str) -> str:
    """The key of a machine; releases before 1.0 had its name alone."""
    return f"{identity}{_APART}{name}" if identity else name


def _name(key: str) -> str:
    return key.rpartition(_APART)[2]


def _chosen(inherited: Inherited, identity: str) -> Inherited:
    """Choose the entries that count for a configuration, by name; entries of no known configuration count for all."""
    items = sorted(inherited.items(), key=lambda item: (bool(identity) and _APART in item[0], item[1]["saved"]))
    return {_name(key): item for key, item in items if not identity or key.partition(_APART)[0] in (identity, key)}


def _files(kept: _Kept, origin: Origin, environ: Mapping[str, str]) -> Mapping[str, str]:
    if not origin.identity:
        return kept.files
    file = _absolute(origin.file, environ) if origin.file else ""
    others = {identity: names for identity, names in kept.files.items() if identity != origin.identity}
    if kept.files.get(origin.identity) == file:
        return kept.files
    return dict([*others.items(), (origin.identity, file)][-MOST_FILES:])


def _entries(environ: Mapping[str, str]) -> _Found:
    """Machines of an environment by name; of two with the same name the first counts."""
    found: _Found = {}
    for raw in [*listed(environ, unreported), single(environ)]:
        if raw and (entry := read_entry(raw, "", environ, unreported)):
            found.setdefault(entry.name, (raw, entry))
    return found


def _with_jumps(names: Iterable[str], entries: _Found) -> _Found:
    chosen: _Found = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in entries and name not in chosen:
            chosen[name] = entries[name]
            waiting += entries[name][1].jump or ()
    return chosen


def _fresh(
    before: Inherited, wanted: Collection[str], here: _Found, environ: Mapping[str, str], identity: str
) -> Inherited:
    """Entries of the environment for what is wanted."""
    entries = {_key(identity, name): _portable(*found, environ) for name, found in here.items()}
    if (platform := _key(identity, PLATFORM)) in wanted and (variables := _platform(environ)):
        entries[platform] = variables
    return {name: _stamped(before.get(name), entry) for name, entry in entries.items()}


def _agent(here: _Found, environ: Mapping[str, str]) -> str:
    """Socket of the SSH agent that one of these machines uses."""
    entries = [entry for _, entry in here.values()]
    is_asked = any(it.agent == AGENT or not (it.agent or it.key_file or it.password) for it in entries)
    return environ.get(AGENT, "") if is_asked else ""


def _stamped(before: Mapping[str, Any] | None, entry: dict[str, Any]) -> dict[str, Any]:
    """An entry with the time of its hand-over, which stays if the entry is unchanged."""
    return dict(before) if before and before["entry"] == entry else {"saved": time.time(), "entry": entry}


def _portable(raw: Mapping[str, Any], entry: MachineEntry, environ: Mapping[str, str]) -> dict[str, Any]:
    """An entry that means the same in another folder and with other variables."""
    moved = {key: value for key, value in raw.items() if value not in (None, "")} | {"name": entry.name}
    # The watchdog runs nothing as root.
    moved.pop("sudo", None)
    for key in _PATHS:
        if paths := getattr(entry, key):
            moved[key] = [_absolute(path, environ) for path in paths]
    for key in SECRET_KEYS:
        if moved.get(key):
            moved[key] = _portable_secret(moved[key], environ)
    if entry.agent.startswith("$"):
        moved["agent"] = agent_socket(entry.agent, environ) or "none"
    return moved


def _portable_secret(text: str, environ: Mapping[str, str]) -> str:
    if text.startswith("file:"):
        return f"file:{_absolute(text.removeprefix('file:'), environ)}"
    if not text.startswith("env:"):
        return text
    try:
        return f"{LITERAL}{resolve_secret(text, environ).reveal()}"
    except ConfigError:
        # Not set here either: the watchdog will report that.
        return text


def _platform(environ: Mapping[str, str]) -> dict[str, str]:
    found = {name: environ[name] for name in _PLATFORM_VARIABLES if environ.get(name)}
    return found | {name: _portable_secret(found[name], environ) for name in _PLATFORM_KEYS if name in found}


def _absolute(path: str, environ: Mapping[str, str]) -> str:
    return os.path.abspath(from_folder(path, environ))


def _is_secret(entry: Mapping[str, Any]) -> bool:
    """Whether an entry must be kept secret: variables and init lines often hold tokens."""
    secrets = (str(entry.get(key, "")) for key in (*SECRET_KEYS, *_PLATFORM_KEYS))
    return any(text and not text.startswith(_PLACES) for text in secrets) or bool(entry.get("env") or entry.get("init"))


def _sorted_out(before: Inherited, wanted: Iterable[str], fresh: Inherited) -> tuple[Inherited, Inherited]:
    """Split the entries to keep into those with secrets and those without."""
    after = {name: item for name, item in before.items() if name not in wanted} | fresh
    secret = {name: item for name, item in after.items() if _is_secret(item["entry"])}
    return secret, {name: item for name, item in after.items() if name not in secret}


def _keep_secrets(secret: Inherited, held: Inherited, kept: _Kept, state_folder: Path) -> bool:
    """Replace what the keyring holds; returns whether it holds them now."""
    account = _account(state_folder)
    stored = secret == held or not secret or keyring_store.store(account, json.dumps(secret))
    if kept.in_keyring and not (stored and secret):
        keyring_store.delete(account)
    return stored


def _held(kept: _Kept, state_folder: Path) -> Inherited | None:
    """Our entries in the keyring; None where it cannot be read. It is read only if something was stored."""
    found = keyring_store.fetch(_account(state_folder)) if kept.in_keyring else ""
    return None if found is None else _machines(_parse(found))


def _merged(kept: _Kept, held: Inherited | None) -> Inherited:
    """All entries; of two with the same name the newer one."""
    merged = dict(kept.machines)
    for name, item in (held or {}).items():
        if name not in merged or item["saved"] > merged[name]["saved"]:
            merged[name] = item
    return merged


def _account(state_folder: Path) -> str:
    import hashlib

    return f"handed-over:{hashlib.sha256(os.fsencode(os.path.realpath(state_folder))).hexdigest()[:16]}"


@contextlib.contextmanager
def _alone(state_folder: Path) -> Iterator[None]:
    """One process at a time, so that two clients do not lose each other's machines."""
    try:
        state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(state_folder / "handed-over.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(
            f"unable to hand machines over to the watchdog in {state_folder}: {error.strerror}."
        ) from None
    with open(opened, "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(state_folder: Path) -> _Kept:
    try:
        found = _parse((state_folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    files = found.get("files") if isinstance(found.get("files"), dict) else {}
    return _Kept(
        _machines(found.get("machines")),
        bool(found.get("in_keyring")),
        str(found.get("agent") or ""),
        {str(identity): str(file) for identity, file in (files or {}).items()},
    )


def _parse(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _machines(found: object) -> Inherited:
    items = found.items() if isinstance(found, dict) else ()
    return {
        name: item
        for name, item in items
        if isinstance(item, dict)
        and isinstance(item.get("entry"), dict)
        and isinstance(item.get("saved"), (int, float))
    }


def _write(state_folder: Path, kept: _Kept) -> None:
    path = state_folder / FILE
    try:
        write_private(path, json.dumps(vars(kept)), is_synced=True)
    except OSError as error:
        raise ConfigError(f"unable to hand machines over to the watchdog in {path}: {error.strerror}.") from None


def _sentence(secret: Iterable[str], state_folder: Path) -> str:
    owners = ", ".join(_name(key) or "the OpenSandbox platform" for key in secret)
    return (
        f"The watchdog needs the secrets of {owners}, which only this client's environment has; there is no "
        f"keyring that takes them, so they are in {state_folder / FILE}, readable by you alone. To avoid that, put "
        "them into config.toml and their secrets where a reference (keyring:, file:, command:) finds them."
    )
