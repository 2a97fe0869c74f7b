"""Schema of the configuration: every key, its reader, and the resulting values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..core.address import plain_name
from ..core.jobs.alerts import Alerts
from ..core.permission import Notify
from ..core.sandboxes.disposable import DisposableRules, Platform
from ..core.sandboxes.machine import CommandPlace, LocalPlace, Machine
from ..core.sandboxes.secret import Secret
from ..core.sandboxes.slurm import Cluster
from ..core.serving import Announced, Http, Logging
from . import readers
from .problems import Reporter, quoted
from .readers import Labels, Reader, read_table
from .secrets import report_doubt

SERVICE_KEYS = ("opensandbox", "disposable", "http", "logging")
TOP_KEYS = (
    *("default", "hosts", "hosts_at_run_time", "server", "results", "local", "machines", "sandboxes"),
    *("notify", "watch", "hooks", "extensions", *SERVICE_KEYS, "registries"),
)
JSON_KEYS = ("server", "opensandbox", "logging")
SECRET_KEYS = ("password", "key_passphrase", "sudo", "otp", "otp_seed")

RESULT_READERS: dict[str, Reader] = {"text": readers.result_text}
# Variables for a key; the first one that is set counts.
SERVER_VARIABLES = {
    key: (f"REMOTE_SANDBOX_{key.upper()}",)
    for key in (
        *("patience_s", "result_chars", "expose_advanced_tools"),
        *("inline_sync_max_files", "inline_sync_max_bytes", "allowed_roots"),
    )
}
HOST_READERS: dict[str, Reader] = {"hosts": readers.host_patterns, "hosts_at_run_time": readers.flag}
LOCAL_READERS: dict[str, Reader] = {
    "enabled": readers.flag,
    "name": readers.name,
    "network": readers.network,
    "private_ranges": readers.ranges,
    "shell": readers.words,
    "init": readers.lines,
    "env": readers.variables,
    "cpu": readers.amount,
    "memory_mb": readers.some,
    "processes": readers.some,
    "disk_mb": readers.some,
    "shm_mb": readers.some,
    "walls": readers.walls,
}
NOTIFY_READERS: dict[str, Reader] = {
    "desktop": readers.flag,
    "webhooks": readers.texts,
    "webhook_format": readers.webhook_format,
    "claude_channel": readers.automatic,
    "mcp_events": readers.flag,
}
WATCH_READERS: dict[str, Reader] = {"gpu_idle": readers.span, "silent": readers.span}
HOOK_READERS: dict[str, Reader] = {"command": readers.program, "timeout_s": readers.seconds, "kind": readers.hook_kind}
OPENSANDBOX_READERS: dict[str, Reader] = {
    "server_url": readers.server_url,
    "use_server_proxy": readers.flag,
    "default_image": readers.text,
    "default_timeout": readers.seconds,
    "max_concurrent_sandboxes": readers.some,
    "auto_cleanup": readers.flag,
    "cleanup_after_minutes": readers.amount,
    "pool": readers.pool,
    "volumes": readers.volumes,
}
REGISTRY_READERS: dict[str, Reader] = {"user": readers.text}
DISPOSABLE_READERS: dict[str, Reader] = {
    "provider": readers.provider,
    "network": readers.host_network,
    "network_hosts": readers.network_hosts,
    "private_ranges": readers.ranges,
}
HTTP_READERS: dict[str, Reader] = {
    "host": readers.host,
    "port": readers.port,
    "allowed_hosts": readers.host_names,
    "allowed_origins": readers.origins,
}
LOGGING_READERS: dict[str, Reader] = {"level": readers.level, "file": readers.text, "max_size_mb": readers.amount}
# What clients are told that the server is.
JSON_SERVER_READERS: dict[str, Reader] = dict.fromkeys(("name", "version", "description"), readers.title)
SERVICE_VARIABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "opensandbox": {
        "server_url": ("OPENSANDBOX_SERVER", "OPEN_SANDBOX_DOMAIN"),
        "api_key": ("OPEN_SANDBOX_API_KEY",),
        "default_image": ("OPENSANDBOX_DEFAULT_IMAGE",),
        "default_timeout": ("OPENSANDBOX_DEFAULT_TIMEOUT",),
    },
    "disposable": {},
    "http": {"api_key": ("REMOTE_SANDBOX_API_KEY",)},
    "logging": {"level": ("MCP_LOG_LEVEL",)},
}
# What makes other programs write in its place, which no walls around its own commands hold.
_BEYOND_WALLS = ("sudo", "slurm", "forward_agent")


USUAL_ALERTS = Alerts(gpu_idle_s=1800.0)
READER = "reader"


def _key(default: Any, reader: Reader) -> Any:
    """A field with the reader of the key of its name."""
    return field(default=default, metadata={READER: reader})


def _readers_of(kind: type[Settings | MachineEntry]) -> dict[str, Reader]:
    return {it.name: it.metadata[READER] for it in fields(kind) if READER in it.metadata}


@dataclass(frozen=True)
class Settings:
    """Settings of the server, and defaults for every machine."""

    patience_s: float | None = _key(None, readers.seconds)
    strict_host_keys: bool = _key(False, readers.flag)
    connect_timeout_s: float = _key(5.0, readers.seconds)
    expose_advanced_tools: bool = _key(False, readers.flag)
    inline_sync_max_files: int = _key(200, readers.count)
    inline_sync_max_bytes: int = _key(64 << 20, readers.count)
    allow_hidden: tuple[str, ...] = _key((), readers.texts)
    # Folders of this computer that agents may use besides their project; of the second ones, they only read.
    allowed_roots: tuple[str, ...] = _key((), readers.folders)
    allowed_roots_read: tuple[str, ...] = _key((), readers.folders)
    # Ports of this machine that a caller may choose to listen on, as "3000" or "3000-3010".
    forward_ports: tuple[str, ...] = _key((), readers.port_ranges)
    notify: Notify = field(default_factory=Notify)
    # For jobs whose caller says nothing else.
    alerts: Alerts = USUAL_ALERTS
    platform: Platform = field(default_factory=Platform)
    rules: DisposableRules = field(default_factory=DisposableRules)
    http: Http = field(default_factory=Http)
    logging: Logging = field(default_factory=Logging)
    announced: Announced = field(default_factory=Announced)
    # The longest result; None: what the client is known to accept.
    result_chars: int | None = _key(None, readers.some)
    # What the text of a result is, "prose" or "json"; empty: what is right for the client.
    result_text: str = ""
    # How long the history of calls goes back; 0: none is kept, nor any text of a command that has ended.
    keep_calls_days: int = _key(30, readers.count)
    # Whether what looks like a token is hidden in results; secrets that are configured are in any case.
    redact_output: bool = _key(False, readers.flag)
    # Variables of the client that programs of the operator's get besides the usual ones; NAME_* for all that begin so.
    pass_env: tuple[str, ...] = _key((), readers.variable_names)
    # Files with tools of the operator's own, each with its state: another state is another configuration.
    extensions: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class HostPatterns:
    """Patterns of hosts of ~/.ssh/config that are offered; `at_run_time`: also by any name that fits them."""

    patterns: tuple[str, ...] = ()
    at_run_time: bool = False
    where: str = ""


@dataclass(frozen=True)
class Configuration:
    """Usable part of what the operator configured, and a sentence for each thing that cannot be used.

    `faults` are those problems for which a machine, or a whole file, is missing.
    `default` is the sandbox meant when none is named. `refusal` says why there is none, where one was configured that
    cannot be used: what was to run on a machine must not run in another place instead. `sources` tells where a thing
    came from, under its path in config.toml ("machines.gpu1", "server.patience_s"). `file` is the configuration file
    that was read. `read_from` are all files and folders that had a say, or would have if they were there; `unread` are
    those of the `faults` for which a whole file counts for nothing.
    """

    machines: tuple[Machine, ...] = ()
    commands: tuple[CommandPlace, ...] = ()
    local: LocalPlace | None = None
    default: str = ""
    refusal: str = ""
    settings: Settings = field(default_factory=Settings)
    problems: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    # The file of a project that counts.
    brought: str = ""
    unread: tuple[str, ...] = ()
    # Private keys that ~/.ssh/config names, for whichever host.
    key_files: tuple[str, ...] = ()
    host_rule: HostPatterns = field(default_factory=HostPatterns)
    # A host of ~/.ssh/config by a name that a caller gives, where `host_rule` allows it.
    find_host: Callable[[str], Machine | None] = field(default=lambda name: None, compare=False, repr=False)
    read_from: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Origin:
    """A configuration as another process finds it: its identity, and its file; empty for the usual file."""

    identity: str = ""
    file: str = ""


NO_ORIGIN = Origin()


@dataclass(frozen=True)
class MachineEntry:
    """One machine as written at `where`; None or empty for what is not given."""

    name: str
    where: str
    host: str = _key("", readers.host)
    ssh_alias: str = _key("", readers.alias)
    port: int | None = _key(None, readers.port)
    user: str = _key("", readers.text)
    password: Secret | None = None
    key_file: tuple[str, ...] = _key((), readers.texts)
    key_passphrase: Secret | None = None
    certificate_file: tuple[str, ...] = _key((), readers.texts)
    agent: str = _key("", readers.agent)
    otp: Secret | None = None
    otp_seed: Secret | None = None
    jump: tuple[str, ...] | None = _key(None, readers.jump)
    shell: tuple[str, ...] = _key((), readers.words)
    init: tuple[str, ...] = _key((), readers.lines)
    env: Mapping[str, str] = field(default_factory=dict, metadata={READER: readers.variables})
    python: str = _key("python3", readers.text)
    strict_host_keys: bool | None = _key(None, readers.flag)
    connect_timeout_s: float | None = _key(None, readers.seconds)
    direct: Mapping[str, str] = field(default_factory=dict, metadata={READER: readers.destinations})
    sudo: Secret | None = None
    # The words that begin its command line; empty words for its usual name, None where it is not to be used.
    docker: tuple[str, ...] | None = _key(None, readers.engine)
    podman: tuple[str, ...] | None = _key(None, readers.engine)
    slurm: Cluster | None = field(default=None, metadata={READER: readers.cluster})
    forward_agent: bool = _key(False, readers.flag)
    transport: str = _key("auto", readers.transport)
    # Empty: nothing may be written there; None: all that the login may.
    writable: tuple[str, ...] | None = _key(None, readers.remote_folders)
    is_by_pattern: bool = False


SERVER_READERS = _readers_of(Settings)
_MACHINE_READERS = {"name": readers.name, "read_only": readers.flag, **_readers_of(MachineEntry)}
MACHINE_KEYS = (*_MACHINE_READERS, *SECRET_KEYS)


def read_entry(
    raw: object, where: str, environ: Mapping[str, str], report: Reporter, labels: Labels = str
) -> MachineEntry | None:
    """A machine from its table; None, with the reason reported, where it cannot be used."""
    if not isinstance(raw, Mapping):
        report(f"{where} is left out: it must be a table of keys and values, with host and user at least.")
        return None
    raw = _with_plain_name(raw, where, report)
    secret = readers.secret(environ)
    secrets = {**dict.fromkeys(SECRET_KEYS, secret), "sudo": readers.sudo(environ), "otp": readers.code(environ)}
    values, faults = read_table(raw, {**_MACHINE_READERS, **secrets}, where, report, labels)
    if not faults and not (values.get("host") or values.get("ssh_alias")):
        faults = [f"{labels('host')} is missing"]
    faults += _faults_of_walls(values)
    if faults:
        report(f"{where} is left out: {', and '.join(faults)}.")
        return None
    # A name must not contain ":", as an IPv6 address does.
    name = values.pop("name", "") or (values.get("ssh_alias") or values["host"]).replace(":", "-")
    for key in SECRET_KEYS:
        if raw.get(key):
            report_doubt(where, labels(key), raw[key], environ, report)
    return MachineEntry(name=name, where=where, **values)


def _faults_of_walls(values: dict[str, Any]) -> list[str]:
    """Turn `read_only` into nothing writable; returns why what is to be writable could not be held."""
    read_only, writable = values.pop("read_only", False), values.get("writable")
    if read_only and writable:
        return ["read_only and writable contradict each other; take one of them out"]
    if read_only:
        values["writable"] = ()
    if values.get("writable") is None:
        return []
    beyond = [key for key in _BEYOND_WALLS if values.get(key) not in (None, False)]
    why = "makes programs write there that no walls hold, so it cannot stand beside writable or read_only"
    return [f"{key} {why}; take one of them out" for key in beyond]


def _with_plain_name(raw: Mapping[str, Any], where: str, report: Reporter) -> Mapping[str, Any]:
    """The table with a name that can stand before a path, as gpu1:/data has it; calls may use the other, too."""
    given = raw.get("name")
    if not isinstance(given, str) or (name := plain_name(given.strip())) == given.strip():
        return raw
    report(f'{where}: it is named {quoted(name)} here, because "/" and ":" separate names from paths.')
    return {**raw, "name": name}


def written_secrets(entries: Iterable[MachineEntry], settings: Settings) -> list[Secret | None]:
    """List the secrets that may stand in config.toml itself."""
    logins = [login.password for login in settings.platform.registries.values()]
    machines = [getattr(entry, key) for entry in entries for key in SECRET_KEYS]
    return [settings.notify.webhook_secret, *logins, *machines]


def secrets_of(entries: Iterable[MachineEntry], settings: Settings) -> list[Secret | None]:
    """List all secrets that a configuration names."""
    return [*written_secrets(entries, settings), settings.platform.api_key, settings.http.api_key]
