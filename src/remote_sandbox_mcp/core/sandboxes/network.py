"""Network rules of a sandbox: none, all but private networks, named hosts only, or the host's own network."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Range = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_HOSTS = 100
# Ports of an entry that names none.
USUAL_PORTS = (80, 443)
# In the operator's list of hosts that agents may choose: every host.
EVERY_HOST = "*"
# That list where the operator writes none: indexes of packages. Not among them: hosts that publish what anybody sends
# (github.com), and Go's module proxy, which fetches from any server that a module's path names.
PACKAGE_INDEXES = (
    *("pypi.org", "files.pythonhosted.org", "conda.anaconda.org", "repo.anaconda.com", "registry.npmjs.org"),
    *("index.crates.io", "static.crates.io", "rubygems.org", "index.rubygems.org"),
    *("deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com"),
    "dl-cdn.alpinelinux.org",
)
_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"(?=.{{1,255}}\Z)(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_WITH_PORT = re.compile(r"(?P<name>[^:\[\]/]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[1-9][0-9]{0,4})")

# Private networks, and addresses of the machine's hosting provider. 198.18.0.0/15 is missing on purpose: proxies that
# tunnel all traffic resolve every name to an address in it.
PRIVATE_4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8"),
        # Azure's service for a machine's own keys and settings.
        "168.63.129.16/32",
        *("169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
TEREDO = ipaddress.IPv6Network("2001::/32")
# Carries an IPv4 address in its last 32 bits, to which a gateway of the network translates it.
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Reach(str, Enum):
    """Reach of a sandbox's network."""

    NOTHING = "nothing"
    OUTSIDE = "outside"
    HOSTS = "hosts"
    # The host's own network, with its loopback and abstract sockets: only the operator can choose it.
    HOST = "host"


@dataclass(frozen=True)
class Network:
    """The network of a sandbox on this machine. `private_ranges` are those that the operator lets it reach as well."""

    reach: Reach = Reach.NOTHING
    hosts: tuple[str, ...] = ()
    private_ranges: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.reach is not Reach.NOTHING


NO_NETWORK = Network()


@dataclass(frozen=True)
class HostRule:
    """One entry of a list of hosts: a name, `*.name` for names below it, or an address range; port 0: USUAL_PORTS."""

    name: str = ""
    range: Range | None = None
    port: int = 0

    def allows_name(self, name: str, port: int) -> bool:
        if not self.name or not self._allows_port(port):
            return False
        is_below = self.name.startswith("*.") and name.endswith(self.name[1:]) and len(name) >= len(self.name)
        return is_below or name == self.name

    def allows_address(self, address: Address, port: int) -> bool:
        # An IPv4 address is never in an IPv6 range, nor the other way round.
        return self.range is not None and address in self.range and self._allows_port(port)

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port,) if self.port else USUAL_PORTS

    def covers(self, other: HostRule, port: int) -> bool:
        """Whether it allows all that another rule does at this port."""
        if other.range is None:
            return self.allows_name(other.name, port)
        first, last = other.range[0], other.range[-1]
        return self.allows_address(first, port) and self.allows_address(last, port)

    def _allows_port(self, port: int) -> bool:
        return port in self.ports


def read_rule(text: str) -> HostRule | None:
    """pypi.org, *.pypi.org, 192.0.2.0/24, 2001:db8::1, each also with a port: pypi.org:443, [2001:db8::1]:443."""
    found = _WITH_PORT.fullmatch(text)
    # A whole IPv6 address may also end in a colon and digits; those are no port.
    port = int(found["port"]) if found and not _as_range(text) else 0
    name = found["name"].strip("[]") if found and port else text
    if port > 65535:
        return None
    if (addresses := _as_range(name)) is not None:
        return HostRule(range=addresses, port=port)
    # An address with a slip of the pen would never match anything as a name.
    is_name = bool(_NAME.fullmatch(name)) and not name.rpartition(".")[2].isdigit()
    return HostRule(name=name.lower(), port=port) if is_name else None


def unlisted(hosts: Iterable[str], allowed: Collection[str]) -> tuple[str, ...]:
    """The hosts that a list does not cover at each of their ports."""
    if EVERY_HOST in allowed:
        return ()
    rules = [rule for text in allowed if (rule := read_rule(text))]
    return tuple(host for host in hosts if not _is_covered(host, rules))


def _is_covered(host: str, rules: Collection[HostRule]) -> bool:
    wanted = read_rule(host)
    return wanted is not None and all(any(rule.covers(wanted, port) for rule in rules) for port in wanted.ports)


def is_target(text: str) -> bool:
    """Whether a text is a valid entry of a list of hosts."""
    return read_rule(text) is not None


def _as_range(text: str) -> Range | None:
    # A zone index (%eth0) means something only on one machine.
    if "%" in text:
        return None
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def ranges(texts: Iterable[str]) -> tuple[Range, ...]:
    return tuple(found for text in texts if (found := _as_range(text)))


def is_private(address: Address, excepted: Iterable[Range] = ()) -> bool:
    """Whether an address is of a private network, this computer or its hosting provider, and not in `excepted`."""
    if any(address in allowed for allowed in excepted):
        return False
    inner = _carried(address)
    if isinstance(inner, ipaddress.IPv4Address):
        return any(inner in private for private in PRIVATE_4)
    return inner not in GLOBAL_6 or inner in TEREDO


def _carried(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for (mapped, 6to4, NAT64), or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_private_range(addresses: Range, excepted: Iterable[Range] = ()) -> bool:
    """Whether any of its addresses is private and not excepted."""
    allowed = (each for each in excepted if each.version == addresses.version)
    if any(int(each[0]) <= int(addresses[0]) and int(addresses[-1]) <= int(each[-1]) for each in allowed):
        return False
    if isinstance(addresses, ipaddress.IPv4Network):
        return any(addresses.overlaps(private) for private in PRIVATE_4)
    return not addresses.subnet_of(GLOBAL_6) or is_private(addresses[0])
