"""The configuration as plain data that may be shown to anyone: every secret is hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.commands.command import Environment
from ..core.permission import Notify, read_address
from ..core.sandboxes.machine import AUTO, CommandPlace, Hop, LocalPlace, Login, Machine
from ..core.sandboxes.network import Network, Reach
from ..core.sandboxes.secret import Secret
from ..core.sandboxes.slurm import Cluster
from ..core.texts.text import span
from .schema import SERVER_READERS, Configuration, Settings
from .services import RULES


def show(configuration: Configuration) -> dict[str, Any]:
    """Show the configuration with its sources. Secrets, and env, init and proxy commands, are hidden."""
    sources = configuration.sources
    return {
        "file": configuration.file or "none",
        "default": configuration.default,
        "machines": [
            _machine(it) | {"source": sources.get(f"machines.{it.name}", "")} for it in configuration.machines
        ],
        "sandboxes": [
            _command(it) | {"source": sources.get(f"sandboxes.{it.name}", "")} for it in configuration.commands
        ],
        "local": _local(configuration.local) if configuration.local else None,
        "settings": {
            key: {"value": getattr(configuration.settings, key), "source": sources.get(f"server.{key}", "default")}
            for key in SERVER_READERS
        }
        | {
            key: {"value": value, "source": sources.get(key, "default")}
            for key, value in _parts(configuration.settings).items()
        },
        "problems": list(configuration.problems),
    }


def _machine(machine: Machine) -> dict[str, Any]:
    return _filled(
        **_shown(machine, "name", "host", "port"),
        **_login(machine.login),
        jump=[_hop(hop) for hop in machine.hops],
        proxy_command="hidden" if machine.proxy_command else "",
        **_shown(machine, "host_key_name", "known_hosts_files", "strict_host_keys", "connect_timeout_s", "python"),
        **_environment(machine.environment),
        **_shown(machine, "direct", "sudo"),
        engine=list(machine.engine.command) if machine.engine else [],
        slurm=_cluster(machine.slurm) if machine.slurm else None,
        transport="" if machine.transport == AUTO else machine.transport,
        forward_agent=machine.forward_agent or None,
        writable=machine.writable_words,
    )


def _cluster(cluster: Cluster) -> dict[str, Any]:
    return _filled(**cluster.defaults, rate_s=cluster.rate_s, login_jobs=cluster.login_jobs or None)


def _command(place: CommandPlace) -> dict[str, Any]:
    shown = _shown(place, "python", "connect_timeout_s") | _environment(place.environment)
    return _filled(name=place.name, command=place.shown, **shown)


def _hop(hop: Hop) -> dict[str, Any]:
    return _filled(host=hop.host, port=hop.port, **_login(hop.login), host_key_name=hop.host_key_name)


def _login(login: Login) -> dict[str, Any]:
    first = _shown(login, "user", "password", "key_files", "key_passphrase", "certificate_files")
    return first | _shown(login, "agent", "agent_identities", "otp", "otp_seed")


def _local(local: LocalPlace) -> dict[str, Any]:
    limits = {name: getattr(local.limits, name) for name in ("cpu", "memory_mb", "processes", "disk_mb")}
    limits |= {"shm_mb": local.shm_mb, "walls": local.walls}
    set_ones = {name: value for name, value in limits.items() if value}
    shown = {"private_ranges": list(local.network.private_ranges), **_environment(local.environment), **set_ones}
    return _filled(name=local.name, network=_network(local.network), **shown)


def _network(network: Network) -> bool | str | list[str]:
    """The network setting as it is written in config.toml."""
    if network.reach is Reach.HOSTS:
        return list(network.hosts)
    return "host" if network.reach is Reach.HOST else bool(network)


def _notify(notify: Notify) -> dict[str, Any]:
    """Show of an address only its host, of a command only the program: the rest may hold keys."""
    return {
        "notify.desktop": notify.desktop,
        "notify.webhooks": [f"{read_address(url).origin}/..." for url in notify.webhooks],
        "notify.webhook_format": notify.webhook_format,
        "notify.webhook_secret": _hidden(notify.webhook_secret) or None,
        "notify.claude_channel": "auto" if notify.claude_channel is None else notify.claude_channel,
        "notify.mcp_events": notify.mcp_events,
    } | {f"hooks.{name}": f"{hook.command[0]} ({hook.timeout_s:g} s)" for name, hook in notify.hooks.items()}


def _parts(settings: Settings) -> dict[str, Any]:
    logins = settings.platform.registries.items()
    registries = {f"registries.{host}": f"{login.user}, password {_hidden(login.password)}" for host, login in logins}
    watch = {f"watch.{key}": span(getattr(settings.alerts, f"{key}_s")) for key in ("gpu_idle", "silent")}
    rest = {"extensions": [path for path, _ in settings.extensions], "results.text": settings.result_text or None}
    return _notify(settings.notify) | watch | _services(settings) | registries | rest


def _services(settings: Settings) -> dict[str, Any]:
    platform, rules = settings.platform, settings.rules
    parts = {
        "opensandbox": {
            **_shown(platform, "server_url", "api_key", "use_server_proxy"),
            **{key: _plain(getattr(rules, name)) for key, name in RULES.items()},
            **_shown(platform, "volumes"),
        },
        "disposable": {
            "provider": rules.provider or ("opensandbox" if platform.server_url else "embedded"),
            "network": "host" if rules.shares_host_network else "own",
            **_shown(rules, "network_hosts", "private_ranges"),
        },
        "http": _shown(settings.http, "api_key", "host", "port", "allowed_hosts", "allowed_origins"),
        "logging": _shown(settings.logging, "level", "file", "max_size_mb"),
    }
    found = {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}
    return {key: None if value == "" else value for key, value in found.items()}


def _environment(environment: Environment) -> dict[str, Any]:
    return {
        "shell": list(environment.shell),
        "init": _lines(len(environment.init)),
        "env": dict.fromkeys(environment.env, "hidden"),
    }


def _shown(thing: object, *names: str) -> dict[str, Any]:
    """Show values of these names, without what is secret in them."""
    return {name: _plain(getattr(thing, name)) for name in names}


def _plain(value: object) -> object:
    if isinstance(value, Secret):
        return _hidden(value)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else "" if value is None else value


def _hidden(secret: Secret | None) -> str:
    if secret is None:
        return ""
    return f"hidden (from {secret.source})" if secret.source else "hidden"


def _filled(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in ("", [], {}, None)}


def _lines(count: int) -> str:
    return f"hidden ({count} line{'s' if count > 1 else ''})" if count else ""
