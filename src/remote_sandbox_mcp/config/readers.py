"""Readers of configuration values: each returns the typed value, or raises Fault without showing the value."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core.client import TEXTS
from ..core.errors import BadArgument
from ..core.permission import AGENTS, FORMATS
from ..core.sandboxes.machine import NOPASSWD, TRANSPORTS
from ..core.sandboxes.network import EVERY_HOST, MOST_HOSTS, Network, Reach, is_target
from ..core.sandboxes.network import ranges as read_ranges
from ..core.sandboxes.secret import Secret
from ..core.sandboxes.slurm import Cluster, read_options
from .problems import CONTROLS, Fault, Reporter, quoted
from .secrets import resolve_secret

Reader = Callable[[Any], Any]

PROVIDERS = ("embedded", "opensandbox")
LONGEST_TITLE = 200
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# Neither a NUL byte nor half of a surrogate pair can be passed to a program.
_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
# Not beginning with a dash, which ssh would read as an option.
_HOST = re.compile(r"(?!-)[\w.-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?")
_ALIAS = re.compile(r"""(?!-)[^\s*?!,@/;&|<>(){}$`'"\\#]+""")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AUTHORITY = re.compile(r"(?:[\w-]+(?:\.[\w-]+)*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_ORIGIN = re.compile(rf"https?://{_AUTHORITY.pattern}", re.ASCII)
_SERVER = re.compile(rf"https?://{_AUTHORITY.pattern}(?:/[\w.~/-]*)?", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][\w.:/@-]*", re.ASCII)
_YES, _NO = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


def text(value: object) -> str:
    """A line of text without the blanks around it."""
    if not isinstance(value, str):
        raise Fault("must be text in quotes")
    if CONTROLS.search(value.strip()):
        raise Fault("must not hold control characters")
    return value.strip()


def fitting(pattern: re.Pattern[str], fault: str, *, may_be_empty: bool = False) -> Callable[[object], str]:
    """A reader of lines that fit a pattern."""

    def read(value: object) -> str:
        given = text(value)
        if not pattern.fullmatch(given) and (given or not may_be_empty):
            raise Fault(fault)
        return given

    return read


# A host of ~/.ssh/config; it may become part of a command line there, so no shell characters.
alias = fitting(_ALIAS, "must be the name of one host in ~/.ssh/config", may_be_empty=True)
# Host and port of a registry, as in the names of its images.
registry = fitting(
    _AUTHORITY, 'must be a host as images name it, with or without a port, as in "registry.example.org:5000"'
)
# What begins with /, ~ or . would be a folder of this computer.
image_name = fitting(_IMAGE, 'must be the name of an image, as in "python:3.12", and no folder', may_be_empty=True)


def title(value: object) -> str:
    """A short line that clients show."""
    if len(given := text(value)) > LONGEST_TITLE:
        raise Fault(f"must have at most {LONGEST_TITLE} characters")
    return given


def texts(value: object) -> tuple[str, ...]:
    """One text or a list of them."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(filter(None, map(text, items)))


def name(value: object) -> str:
    """A sandbox's name; without a colon, because `gpu1:/path` must stay unambiguous."""
    given = text(value)
    if "/" in given or ":" in given:
        raise Fault('must not hold "/" or ":"')
    return given


def host(value: object) -> str:
    """A host name or an address, and nothing else."""
    given = text(value)
    # People write IPv6 addresses in brackets, as in URLs.
    given = given[1:-1] if given.startswith("[") and given.endswith("]") else given
    if given and not _HOST.fullmatch(given):
        raise Fault("must be a host name or an address alone; the user and the port have their own keys")
    return given


def is_pattern(text: str) -> bool:
    """Whether it stands for any number of hosts, or leaves some out."""
    return text.startswith("!") or any(sign in text for sign in "*?")


def host_patterns(value: object) -> tuple[str, ...]:
    """Names of hosts, with * and ? for any characters, or a ! before those that are left out."""
    given = texts(value)
    if any(not _ALIAS.fullmatch(item.removeprefix("!").replace("*", "x").replace("?", "x")) for item in given):
        raise Fault('must be names of hosts, or patterns such as "gpu*" and "!gpu-old"')
    return given


def port(value: object) -> int:
    number = _digits(value)
    if number is None or not 1 <= number <= 65535:
        raise Fault("must be a whole number from 1 to 65535")
    return number


def port_ranges(value: object) -> tuple[str, ...]:
    """Ports, each as a number or as a text such as "3000-3010"; one or a list of them."""
    return tuple(map(_port_range, value if isinstance(value, (list, tuple)) else [value]))


def _port_range(value: object) -> str:
    first, dash, last = value.partition("-") if isinstance(value, str) else (value, "", "")
    low = port(first)
    high = port(last) if dash else low
    if high < low:
        raise Fault('must have the lower port first, as in "3000-3010"')
    return f"{low}-{high}" if dash else str(low)


def volumes(value: object) -> tuple[str, ...]:
    """Names of volumes, and absolute paths of folders; not "/", which is everything."""
    # The slashes at the end are dropped, so that the comparison with a caller's path is exact.
    found = tuple(item if item == "/" else item.rstrip("/") for item in texts(value))
    if "/" in found or any(".." in item.split("/") for item in found):
        raise Fault('must be names of volumes or whole paths of folders, without ".." and not "/" itself')
    return found


def remote_folders(value: object) -> tuple[str, ...]:
    """Folders of a machine, from its root or from the home folder there."""
    found = texts(value)
    if any(not item.startswith(("/", "~/")) or ".." in item.split("/") for item in found):
        raise Fault('must be folders such as "/data/out" or "~/project", without ".."')
    return found


def count(value: object) -> int:
    number = _digits(value)
    if number is None:
        raise Fault("must be a whole number, 0 or more")
    return number


def walls(value: object) -> str:
    if value not in ("bubblewrap", "landlock"):
        raise Fault('must be "bubblewrap" or "landlock"')
    return str(value)


def some(value: object) -> int:
    """A whole number, at least one."""
    if not (number := _digits(value)):
        raise Fault("must be a whole number above 0")
    return number


def _digits(value: object) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value.strip()):
        return int(value)
    # In Python, True is an int; a flag is no number.
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def seconds(value: object) -> float:
    return _above_zero(value, Fault("must be a number of seconds above 0"))


def span(value: object) -> float:
    from ..core.jobs.alerts import read_span

    try:
        return read_span("it", value)
    except BadArgument:
        raise Fault('must be a span of time such as "30m" or "2h", or "0" for never') from None


def automatic(value: object) -> bool | None:
    return None if value == "auto" else flag(value)


def amount(value: object) -> float:
    return _above_zero(value, Fault("must be a number above 0"))


def _above_zero(value: object, fault: Fault) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise fault
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise fault from None
    if not math.isfinite(number) or number <= 0:
        raise fault
    return number


def flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in _YES | _NO:
        raise Fault("must be true or false")
    return word in _YES


def agent(value: object) -> str:
    """Read the SSH agent: true or false, or a value of IdentityAgent (a socket, SSH_AUTH_SOCK, none)."""
    if isinstance(value, bool):
        return "SSH_AUTH_SOCK" if value else "none"
    return text(value)


def jump(value: object) -> tuple[str, ...]:
    """Jump hosts in order: one, a list, or a text with commas between; "none" for none."""
    hops = tuple(hop.strip() for item in texts(value) for hop in item.split(","))
    return () if hops in {("none",), ("",)} else hops


def words(value: object) -> tuple[str, ...]:
    """An argument vector, as a list or as one line."""
    if not isinstance(value, str):
        return texts(value)
    # Imported here: few configurations need it, and every start reads this file.
    import shlex

    try:
        return tuple(shlex.split(text(value)))
    except ValueError:
        raise Fault("has a quote that is not closed") from None


def engine(value: object) -> tuple[str, ...] | None:
    """Whether a machine's container engine may be used: true, false, or the words that begin its command line."""
    if not isinstance(value, list):
        try:
            return () if flag(value) else None
        except Fault:
            raise Fault('must be true, false, or a list of words, as in ["sudo", "-n", "docker"]') from None
    given = tuple(map(_sendable, value))
    if not given or not all(given) or given[0].startswith("-"):
        raise Fault('must be true, false, or a list of words, as in ["sudo", "-n", "docker"]')
    return given


def cluster(value: object) -> Cluster | None:
    """Whether a machine is a Slurm cluster's login node: true, false, or a table of settings and options."""
    if not isinstance(value, Mapping):
        try:
            return Cluster() if flag(value) else None
        except Fault:
            raise Fault('must be true, false, or a table, as in { partition = "gpu", time = "4:00:00" }') from None
    settings: dict[str, Reader] = {"rate_s": seconds, "login_jobs": flag}
    given = {key: settings[key](item) for key, item in value.items() if key in settings}
    try:
        options = read_options({key: item for key, item in value.items() if key not in settings})
    except BadArgument as problem:
        raise Fault(f"cannot be used: {problem}") from None
    return Cluster(options, **given)


def lines(value: object) -> tuple[str, ...]:
    """Shell lines, as one text or a list."""
    items = value if isinstance(value, list) else [value]
    return tuple(map(_sendable, items))


def variables(value: object) -> dict[str, str]:
    """Environment variables; numbers become text."""
    if not isinstance(value, Mapping):
        raise Fault("must be a table of names and values")
    if not all(isinstance(key, str) and _VARIABLE.fullmatch(key) for key in value):
        raise Fault("holds a name that is not letters, digits and underscores")
    return {key: _sendable(_plain(item)) for key, item in value.items()}


def variable_names(value: object) -> tuple[str, ...]:
    """Names of environment variables, each with or without a * at its end."""
    given = texts(value)
    if not all(_VARIABLE.fullmatch(item.removesuffix("*")) for item in given):
        raise Fault('must be names of variables, as in ["AWS_PROFILE", "GOOGLE_*"]')
    return given


def destinations(value: object) -> dict[str, str]:
    """Names of machines and what ssh calls them; nothing that ssh would read as an option."""
    if not isinstance(value, Mapping):
        raise Fault('must be a table of machines and what ssh calls them, as in { gpu2 = "ubuntu@gpu2.example.org" }')
    for item in value.values():
        if not isinstance(item, str) or not re.fullmatch(r"[A-Za-z0-9][\w.@:/%\[\]-]*", item):
            raise Fault('holds what cannot be a destination of ssh, as "ubuntu@gpu2.example.org" or an alias is')
    return {str(key): str(item) for key, item in value.items()}


def server_url(value: object) -> str:
    """Address of a server, with or without http://; its API key is a separate setting."""
    given = text(value)
    # Without a scheme, as in localhost:8080, plain HTTP is meant.
    address = given if "://" in given else f"http://{given}"
    if not _SERVER.fullmatch(address):
        raise Fault("must be an address such as http://localhost:8080, without user, password, ? and #")
    return address.rstrip("/")


def pool(value: object) -> dict[str, int]:
    """Read how many sandboxes of which image are kept ready."""
    if not isinstance(value, Mapping):
        raise Fault('must be a table of images and numbers, as in { "python:3.12" = 2 }')
    return {text(image): count(number) for image, number in value.items()}


def network(value: object) -> Network:
    """Network of the embedded sandbox: on, off, this computer's own, or a list of allowed hosts."""
    if isinstance(value, (list, tuple)):
        # An empty list of hosts means no network, not an unrestricted one.
        return Network(Reach.HOSTS, _hosts(value)) if value else Network()
    if isinstance(value, str) and value.strip().lower() == "host":
        return Network(Reach.HOST)
    try:
        return Network(Reach.OUTSIDE if flag(value) else Reach.NOTHING)
    except Fault:
        raise Fault('must be true, false, "host", or a list of hosts, as in ["pypi.org"]') from None


def _hosts(value: object) -> tuple[str, ...]:
    hosts = texts(value)
    if len(hosts) > MOST_HOSTS or not all(map(is_target, hosts)):
        raise Fault(f'must name at most {MOST_HOSTS} hosts, as in ["pypi.org", "*.example.org:443", "192.0.2.0/24"]')
    return hosts


def network_hosts(value: object) -> tuple[str, ...]:
    """Hosts that an agent may choose; none, or EVERY_HOST for all."""
    given = texts(value)
    return (*filter(EVERY_HOST.__eq__, given), *_hosts([host for host in given if host != EVERY_HOST]))


def host_network(value: object) -> bool:
    """Whether embedded sandboxes with a network share this computer's own."""
    return _one_of(text(value).lower(), ("own", "host")) == "host"


def ranges(value: object) -> tuple[str, ...]:
    """Addresses, or ranges of them as CIDR."""
    given = texts(value)
    if len(read_ranges(given)) != len(given):
        raise Fault('must be addresses or ranges of them, as in ["10.1.2.3", "192.168.5.0/24"]')
    return given


def level(value: object) -> str:
    given = text(value).upper()
    return _one_of("WARNING" if given == "WARN" else given, LEVELS)


def _one_of(given: str, right: tuple[str, ...]) -> str:
    if given not in right:
        raise Fault(f"must be one of {', '.join(right)}")
    return given


def word(*right: str) -> Callable[[object], str]:
    return lambda value: _one_of(text(value).lower(), right)


hook_kind = word(*AGENTS)
result_text = word(*TEXTS)
webhook_format = word(*FORMATS)
transport = word(*TRANSPORTS)
provider = word(*PROVIDERS)


def host_names(value: object) -> tuple[str, ...]:
    """Host names under which this server may be called, with a port or for every port."""
    names = tuple(map(str.lower, texts(value)))
    if not all(_AUTHORITY.fullmatch(item) for item in names):
        raise Fault('must be host names, with or without a port, as in ["mcp.example.com"]')
    return names


def origins(value: object) -> tuple[str, ...]:
    """Origins of web pages that may call this server."""
    pages = tuple(item.lower().rstrip("/") for item in texts(value))
    if not all(_ORIGIN.fullmatch(item) for item in pages):
        raise Fault('must be origins as browsers send them, as in ["https://app.example.com"]')
    return pages


def folders(value: object) -> tuple[str, ...]:
    """Absolute paths of folders: a list, or one text with ":" between."""
    items = value.split(os.pathsep) if isinstance(value, str) else value
    found = tuple(map(os.path.expanduser, texts(items)))
    if not all(map(os.path.isabs, found)):
        raise Fault("must be whole paths, which begin with / or ~")
    return tuple(map(os.path.normpath, found))


def program(value: object) -> tuple[str, ...]:
    """A program and its arguments as a list; a single line is refused, because no shell would split it."""
    if not isinstance(value, list) or not value or not value[0]:
        raise Fault('must be a list of words, the program first, as in ["/path/to/program", "argument"]')
    first, *rest = map(_sendable, value)
    first = os.path.expanduser(first)
    # A relative path would be looked up in whatever folder the server is started in.
    if "/" in first and not os.path.isabs(first):
        raise Fault("must name the program by its whole path, or by a name that is in PATH")
    return (first, *rest)


def _plain(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    # A larger number is a typing error: TOML and JSON do not bound integers.
    return repr(value) if abs(value) < 1 << 64 else None


def _sendable(value: object) -> str:
    if not isinstance(value, str):
        raise Fault("must be text in quotes")
    if _UNSENDABLE.search(value):
        raise Fault("holds a character that cannot be sent")
    return value


def secret(environ: Mapping[str, str]) -> Reader:
    """A reader of secrets that does not fetch them."""

    def read(value: object) -> Secret:
        return resolve_secret(_sendable(value), environ)

    return read


def sudo(environ: Mapping[str, str]) -> Reader:
    """A password for sudo, or the word that says that none is asked for."""
    read_secret = secret(environ)
    return lambda value: NOPASSWD if value == NOPASSWD.source else read_secret(value)


def code(environ: Mapping[str, str]) -> Reader:
    """A reader of where one-time codes come from: a code that is written down would work once."""
    read_secret = secret(environ)

    def read(value: object) -> Secret:
        found: Secret = read_secret(value)
        if not found.source:
            raise Fault('must say where a new code is had each time, as "command:..." does; a seed belongs to otp_seed')
        return found

    return read


Labels = Callable[[str], str]


def read_table(
    raw: Mapping[str, Any], allowed: Mapping[str, Reader], where: str, report: Reporter, labels: Labels = str
) -> tuple[dict[str, Any], list[str]]:
    """The valid values, and faults of the others; unknown keys are reported and ignored."""
    values: dict[str, Any] = {}
    faults: list[str] = []
    for key, value in raw.items():
        if key not in allowed and _is_meant_for_walls(key):
            faults.append(f"the key {quoted(key)} is not known here, and walls must not be left out")
        elif key not in allowed:
            report_unknown(key, allowed, where, report)
        elif value is not None and value != "":
            try:
                values[key] = allowed[key](value)
            except Fault as fault:
                faults.append(f"{labels(key)} {fault}")
    return values, faults


def _is_meant_for_walls(key: str) -> bool:
    import difflib

    return bool(difflib.get_close_matches(key.lower()[:60], ("writable", "read_only", "readonly"), 1, 0.75))


def report_unknown(key: str, allowed: Iterable[str], where: str, report: Reporter) -> None:
    import difflib

    near = difflib.get_close_matches(key[:60], list(allowed), 1, 0.5)
    hint = f"the nearest right key is {quoted(near[0])}" if near else f"the keys are {', '.join(sorted(allowed))}"
    report(f"{where}: the unknown key {quoted(key)} is passed over; {hint}.")


def checked(
    document: Mapping[str, Any], key: str, allowed: Mapping[str, Reader], file: str, report: Reporter
) -> dict[str, Any]:
    """A table of settings; invalid ones are reported and ignored."""
    where = f"{file} [{key}]"
    values, faults = read_table(table(document, key, file, report), allowed, where, report)
    for fault in faults:
        report(f"{where}: {fault}, so it is passed over.")
    return values


def table(document: Mapping[str, Any], key: str, file: str, report: Reporter) -> Mapping[str, Any]:
    """The table of that name, empty where there is none."""
    found = document.get(key, {})
    if isinstance(found, Mapping):
        return found
    example = f"[{key}.NAME]" if key in {"machines", "sandboxes", "hooks", "registries"} else f"[{key}]"
    report(f"{file}: {key} is passed over: it must be a table, written as {example}.")
    return {}


def take_variables(
    variables: Mapping[str, Iterable[str]], allowed: Mapping[str, Reader], environ: Mapping[str, str], report: Reporter
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values from environment variables, by key, and the variable that each came from.

    Of several for one key the first that is set counts.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, names in variables.items():
        if variable := next((name for name in names if environ.get(name, "").strip()), ""):
            try:
                values[key] = allowed[key](environ[variable].strip())
                origins[key] = variable
            except Fault as fault:
                report(f"{variable} is passed over: it {fault}.")
    return values, origins
