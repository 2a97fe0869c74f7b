"""The configuration as plain data that may be shown to anyone: every secret is hidden."""

from __future__ import annotations

from typing import Any

from ..core.commands.command import Environment
from ..core.permission import Notify, read_address
from ..core.sandboxes.machine import AUTO, CommandPlace, Hop, LocalPlace, Login, Machine
from ..core.sandboxes.network import Network, Reach
from ..core.sandboxes.secret import Secret
from ..core.sandboxes.slurm import Cluster
from ..core.texts.text import span
from .schema import SERVER_READERS, Configuration, Settings


def show(configuration: Configuration) -> dict[str, Any]:
    """Show the configuration with its sources. Secrets, and env, init and proxy commands, are hidden."""
    sources = configuration.sources
    return {
        "file": configuration.file or "none",
        "default": configuration.default,
        "machines": [
            _machine(machine) | {"source": sources.get(f"machines.{machine.name}", "")}
            for machine in configuration.machines
        ],
        "sandboxes": [
            _command(place) | {"source": sources.get(f"sandboxes.{place.name}", "")} for place in configuration.commands
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
        name=machine.name,
        host=machine.host,
        port=machine.port,
        **_login(machine.login),
        jump=[_hop(hop) for hop in machine.hops],
        proxy_command="hidden" if machine.proxy_command else "",
        host_key_name=machine.host_key_name,
        known_hosts_files=list(machine.known_hosts_files),
        strict_host_keys=machine.strict_host_keys,
        connect_timeout_s=machine.connect_timeout_s,
        python=machine.python,
        **_environment(machine.environment),
        direct=dict(machine.direct),
        sudo=_hidden(machine.sudo),
        engine=list(machine.engine.command) if machine.engine else [],
        slurm=_cluster(machine.slurm) if machine.slurm else None,
        transport="" if machine.transport == AUTO else machine.transport,
        forward_agent=machine.forward_agent or None,
        writable=machine.writable_words,
    )


def _cluster(cluster: Cluster) -> dict[str, Any]:
    return _filled(**cluster.defaults, rate_s=cluster.rate_s, login_jobs=cluster.login_jobs or None)


def _command(place: CommandPlace) -> dict[str, Any]:
    return _filled(
        name=place.name,
        command=place.shown,
        python=place.python,
        connect_timeout_s=place.connect_timeout_s,
        **_environment(place.environment),
    )


def _hop(hop: Hop) -> dict[str, Any]:
    return _filled(host=hop.host, port=hop.port, **_login(hop.login), host_key_name=hop.host_key_name)


def _login(login: Login) -> dict[str, Any]:
    return {
        "user": login.user,
        "password": _hidden(login.password),
        "key_files": list(login.key_files),
        "key_passphrase": _hidden(login.key_passphrase),
        "certificate_files": list(login.certificate_files),
        "agent": login.agent,
        "agent_identities": list(login.agent_identities),
        "otp": _hidden(login.otp),
        "otp_seed": _hidden(login.otp_seed),
    }


def _local(local: LocalPlace) -> dict[str, Any]:
    limits = {name: getattr(local.limits, name) for name in ("cpu", "memory_mb", "processes", "disk_mb")}
    set_ones = {
        name: value for name, value in {**limits, "shm_mb": local.shm_mb, "walls": local.walls}.items() if value
    }
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
    platform, rules, http, logging = settings.platform, settings.rules, settings.http, settings.logging
    return {
        "opensandbox.server_url": platform.server_url or None,
        "opensandbox.api_key": _hidden(platform.api_key) or None,
        "opensandbox.use_server_proxy": platform.use_server_proxy,
        "opensandbox.default_image": rules.default_image or None,
        "opensandbox.default_timeout": rules.default_timeout_s,
        "opensandbox.max_concurrent_sandboxes": rules.max_concurrent,
        "opensandbox.auto_cleanup": rules.auto_cleanup,
        "opensandbox.cleanup_after_minutes": rules.cleanup_after_minutes,
        "opensandbox.pool": dict(rules.pool),
        "opensandbox.volumes": list(platform.volumes),
        "disposable.provider": rules.provider or ("opensandbox" if platform.server_url else "embedded"),
        "disposable.network": "host" if rules.shares_host_network else "own",
        "disposable.network_hosts": list(rules.network_hosts),
        "disposable.private_ranges": list(rules.private_ranges),
        "http.api_key": _hidden(http.api_key) or None,
        "http.host": http.host,
        "http.port": http.port,
        "http.allowed_hosts": list(http.allowed_hosts),
        "http.allowed_origins": list(http.allowed_origins),
        "logging.level": logging.level,
        "logging.file": logging.file or None,
        "logging.max_size_mb": logging.max_size_mb,
    }


def _environment(environment: Environment) -> dict[str, Any]:
    return {
        "shell": list(environment.shell),
        "init": _lines(len(environment.init)),
        "env": dict.fromkeys(environment.env, "hidden"),
    }


def _hidden(secret: Secret | None) -> str:
    if secret is None:
        return ""
    return f"hidden (from {secret.source})" if secret.source else "hidden"


def _filled(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in ("", [], {}, None)}


def _lines(count: int) -> str:
    return f"hidden ({count} line{'s' if count > 1 else ''})" if count else ""
