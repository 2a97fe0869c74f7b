"""Permissions beyond a sandbox: hooks, webhooks, volumes, hosts and ports that the operator allows."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from .errors import NOT_PERMITTED, UNCONFIRMED, BadArgument
from .sandboxes.network import EVERY_HOST, unlisted
from .sandboxes.secret import Secret

FORMATS = ("auto", "json", "slack", "feishu", "dingtalk", "ntfy", "telegram")
# Coding agents that a hook can start: the usual command of each, which reads its prompt from standard input.
AGENTS = {"codex": ("codex", "exec", "resume", "--last", "-"), "claude": ("claude", "-p", "--continue")}
# How long such an agent may work.
AGENT_S = 1800.0
HOOK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
LONGEST_URL = 2048
# Hosts that one sentence names.
MOST_NAMED = 5
# Volumes with this prefix need no permission: the prefix says that they were made for sandboxes.
OWN_VOLUMES = "remote-sandbox-"
# The beginning of a hook whose command is a line for a shell.
SHELL = ("sh", "-c")

_URL = re.compile(r"(https?)://([^/?#]*)(/[^?#]*)?(\?[^#]*)?", re.IGNORECASE)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_AUTHORITY = re.compile(rf"({_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\])(?::([0-9]{{1,5}}))?", re.IGNORECASE)
# Escapes that one server reads as "/", "." or the end of a name, and another does not.
_DISGUISED = re.compile(r"%(?:25|2e|2f|5c|[01][0-9a-f]|7f|(?![0-9a-f]{2}))", re.IGNORECASE)


@dataclass(frozen=True)
class Hook:
    """A program of the operator's that is started for events: an argument vector, never a shell line.

    `kind`: it is an agent, which gets a prompt on standard input and works in the folder in which the job was started.
    """

    # Not shown: arguments are where people keep tokens.
    command: tuple[str, ...] = field(repr=False)
    timeout_s: float = 60.0
    kind: str = ""


@dataclass(frozen=True)
class Notify:
    """Notifications of people, and what a caller may choose beyond that."""

    desktop: bool = True
    # Not shown: the path of a webhook is often its secret.
    webhooks: tuple[str, ...] = field(default=(), repr=False)
    webhook_format: str = "auto"
    webhook_secret: Secret | None = None
    # Whether sessions are told by channel messages of Claude Code; None: where the client is Claude Code.
    claude_channel: bool | None = None
    # Whether clients over HTTP may subscribe to events, to be sent to one of `webhooks`.
    mcp_events: bool = False
    hooks: Mapping[str, Hook] = field(default_factory=dict)


@dataclass(frozen=True)
class Address:
    """A web address in parts, normalized, so that two spellings of the same address are equal."""

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)
    query: str = field(repr=False)

    @property
    def origin(self) -> str:
        """Scheme, host and port; the rest is not shown, because it may hold keys."""
        usual = self.port == (443 if self.scheme == "https" else 80)
        return f"{self.scheme}://{self.host}{'' if usual else f':{self.port}'}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"{self.origin}{self.path}{self.query}"

    def covers(self, other: Address) -> bool:
        """Whether `other` is this address or below it. An address with a query covers only itself."""
        if self.origin != other.origin:
            return False
        if self.query:
            return (self.path, self.query) == (other.path, other.query)
        return other.path == self.path or other.path.startswith(f"{self.path.rstrip('/')}/")


def allow_webhook(url: str, prefixes: Iterable[str]) -> str:
    """The normalized address. Raises BadArgument for one that the operator has not allowed."""
    try:
        address = read_address(url)
    except ValueError as problem:
        raise BadArgument(f"webhook_url {problem}; nothing was started") from None
    if not any(_covers(prefix, address) for prefix in prefixes):
        raise BadArgument(
            f"webhook_url leads to {address.origin}, which is not allowed to receive events; the owner of this machine "
            f'can allow it: webhooks = ["{address.origin}/"] under [notify] in config.toml',
            NOT_PERMITTED,
        )
    return str(address)


def allow_hook(wanted: str, hooks: Mapping[str, Hook]) -> str:
    """Name of the hook that the caller means, given by its name or by its command line. Raises BadArgument."""
    import json

    if wanted in hooks:
        return wanted
    words = _words(wanted)
    for name, hook in hooks.items():
        if words and hook.command in (words, (*SHELL, wanted)):
            return name
    name = wanted if HOOK_NAME.fullmatch(wanted) else "NAME"
    how = f'kind = "{wanted}"' if wanted in AGENTS else f"command = {json.dumps(_as_hook(wanted, words))}"
    hint = f" (allowed are: {', '.join(sorted(hooks))})" if hooks else ""
    raise BadArgument(
        f"{_shown(wanted)} would run on this machine, outside of any sandbox, and is not allowed to{hint}; the owner "
        f"of this machine can allow it: {how} under [hooks.{name}] in config.toml",
        NOT_PERMITTED,
    )


def _as_hook(wanted: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The command of a hook that does what the caller wants: only a shell puts variables in their places."""
    if not words or HOOK_NAME.fullmatch(wanted):
        return ("/path/to/program",)
    return (*SHELL, wanted) if "$" in wanted and wanted.isprintable() else words


def allow_volume(source: str, allowed: Iterable[str]) -> str:
    """A volume or folder that sandboxes may see. Raises BadArgument for one that the operator has not allowed."""
    import json

    if source.startswith("/"):
        if any(_lies_below(source, folder) for folder in allowed if folder.startswith("/")):
            return source
        what = f"the folder {_shown(source)} of the platform's machine may hold anything"
    elif source.startswith(OWN_VOLUMES) or source in allowed:
        return source
    else:
        what = f"the volume {_shown(source)} may hold data of other programs"
    raise BadArgument(
        f"volumes: {what}, and is not allowed to be mounted; use a volume whose name begins with {OWN_VOLUMES}, or ask "
        f"the owner of this machine to allow it: volumes = {json.dumps([source[:200]])} under [opensandbox] in "
        "config.toml"
    )


def _lies_below(path: str, folder: str) -> bool:
    """Compares path segments only. The platform resolves symbolic links and has its own list of folders."""
    steps, start = ([step for step in name.split("/") if step not in ("", ".")] for name in (path, folder))
    return ".." not in steps and steps[: len(start)] == start


def allow_network(is_on: bool | None, hosts: Collection[str], allowed: Collection[str]) -> None:
    """Check a network, on for every host or for these. Raises BadArgument for more than the operator's list has."""
    import json

    if beyond := unlisted(hosts, allowed):
        more = f" and {len(beyond) - MOST_NAMED} more" if len(beyond) > MOST_NAMED else ""
        found = (
            f"an agent may choose only hosts in the owner's list, which has no {', '.join(beyond[:MOST_NAMED])}{more}"
        )
        remedy = f"the owner of this machine can add {json.dumps(beyond[:MOST_NAMED])}{more} to network_hosts"
    elif is_on and not hosts and EVERY_HOST not in allowed:
        found = "true is every host of the internet, and an agent may choose only hosts in the owner's list"
        remedy = (
            'name the hosts that are needed, as in ["pypi.org", "files.pythonhosted.org"], or ask the owner of this '
            f'machine to allow all: network_hosts = ["{EVERY_HOST}"]'
        )
    else:
        return
    raise BadArgument.of_parts("network", found, f"{remedy} under [disposable] in config.toml", reason=UNCONFIRMED)


def allow_local_port(port: int, allowed: Iterable[str]) -> int:
    """A port of this machine that a caller may choose. Raises BadArgument for one that the operator has not allowed."""
    if not is_allowed_port(port, allowed):
        raise BadArgument(
            f"local_port {port} is not allowed: people and programs of this machine may expect another service there; "
            "leave local_port out for a port that the system chooses, or ask the owner of this machine to allow it: "
            f'forward_ports = ["{port}"] under [server] in config.toml'
        )
    return port


def is_allowed_port(port: int, allowed: Iterable[str]) -> bool:
    """Whether one of these texts names the port: "3000", or "3000-3010" for all between."""
    ranges = (text.partition("-") for text in allowed)
    return any(int(first) <= port <= int(last or first) for first, _, last in ranges)


def read_address(url: str) -> Address:
    """An address that all programs parse in the same way. Raises ValueError with the end of a sentence."""
    if len(url) > LONGEST_URL:
        raise ValueError(f"is longer than {LONGEST_URL} characters")
    if not re.fullmatch(r"[!-~]+", url) or "\\" in url:
        raise ValueError("must be plain ASCII without blanks, control characters and backslashes (a host as xn--...)")
    if not (found := _URL.fullmatch(url)):
        raise ValueError("must begin with https:// and must not hold a #")
    scheme, authority, path, query = found[1].lower(), found[2], found[3] or "/", found[4] or ""
    if not (place := _AUTHORITY.fullmatch(authority)):
        raise ValueError("must name a host, perhaps a port, and no user, password or dot at the host's end")
    host, port = place[1].lower(), int(place[2] or (443 if scheme == "https" else 80))
    _check_place(scheme, host, port)
    if _DISGUISED.search(path):
        raise ValueError("has a percent sign that disguises a dot, a slash or a control character in its path")
    # "..;" is ".." to servers that cut parameters off.
    if any(step.partition(";")[0] in {".", ".."} for step in path.split("/")):
        raise ValueError('must not hold "." or ".." in its path')
    return Address(scheme, host, port, path, query)


def is_loopback(host: str) -> bool:
    """Whether a host can only mean this computer."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _check_place(scheme: str, host: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise ValueError("must have a port from 1 to 65535, or none")
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise ValueError("has an IPv6 address that is none") from None
    if scheme == "http" and not is_loopback(host):
        raise ValueError("must begin with https:// unless it is on this machine (localhost)")


def _covers(prefix: str, address: Address) -> bool:
    try:
        return read_address(prefix).covers(address)
    except ValueError:
        return False


def _words(line: str) -> tuple[str, ...]:
    import shlex

    try:
        return tuple(shlex.split(line[:4096]))
    except ValueError:
        return ()


def _shown(text: str) -> str:
    return repr(f"{text[:80]}..." if len(text) > 80 else text)
