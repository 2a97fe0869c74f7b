"""Which hosts a network may be narrowed to."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from remote_sandbox_mcp.core.sandboxes.network import (
    PACKAGE_INDEXES,
    is_private,
    is_private_range,
    is_target,
    ranges,
    read_rule,
    unlisted,
)


@pytest.mark.parametrize(
    "text",
    [
        "pypi.org",
        "*.pypi.org",
        "PyPI.org",
        "localhost",
        "xn--bcher-kva.de",
        "_dmarc.example.com",
        "1.2.3.4",
        "10.0.0.0/8",
        "::1",
        "2001:db8::/32",
        "pypi.org:443",
        "*.pypi.org:8443",
        "192.0.2.1:80",
        "[2001:db8::1]:443",
    ],
)
def test_names_addresses_and_ranges_can_be_in_a_rule(text: str) -> None:
    assert is_target(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(" pypi.org", id="space"),
        pytest.param("pypi.org\n", id="newline"),
        pytest.param("*", id="everything"),
        pytest.param("*.*.org", id="two stars"),
        pytest.param("pypi.*", id="star at the end"),
        pytest.param("py*i.org", id="star inside"),
        pytest.param("https://pypi.org", id="address of a page"),
        pytest.param("pypi.org/simple", id="path"),
        pytest.param("pypi.org:0", id="no port"),
        pytest.param("pypi.org:65536", id="port too high"),
        pytest.param("10.0.0.0/8:80", id="range with a port"),
        pytest.param("[pypi.org]:443", id="name in brackets"),
        pytest.param("user@pypi.org", id="user"),
        pytest.param("pypi..org", id="empty part"),
        pytest.param("pypi.org.", id="dot at the end"),
        pytest.param("-pypi.org", id="hyphen"),
        pytest.param("bücher.de", id="not encoded"),
        pytest.param("x" * 64 + ".org", id="long part"),
        pytest.param("x." * 127 + "org", id="long name"),
        pytest.param("1.2.3.400", id="no address"),
        pytest.param("1.2.3", id="short address"),
        pytest.param("10.0.0.1/8", id="range with an address"),
        pytest.param("fe80::1%eth0", id="zone"),
    ],
)
def test_entries_that_could_never_match_are_refused(text: str) -> None:
    assert not is_target(text)


@pytest.mark.parametrize(
    ("rule", "name", "port", "allowed"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "pypi.org", 80, True),
        ("pypi.org", "pypi.org", 22, False),
        ("PyPI.org", "pypi.org", 443, True),
        ("pypi.org", "evil-pypi.org", 443, False),
        ("pypi.org", "sub.pypi.org", 443, False),
        ("pypi.org:8443", "pypi.org", 8443, True),
        ("pypi.org:8443", "pypi.org", 443, False),
        ("*.pypi.org", "files.pypi.org", 443, True),
        ("*.pypi.org", "a.b.pypi.org", 443, True),
        ("*.pypi.org", "pypi.org", 443, False),
        ("*.pypi.org", ".pypi.org", 443, False),
        ("*.pypi.org", "evilpypi.org", 443, False),
        ("192.0.2.1", "192.0.2.1", 443, False),
    ],
)
def test_a_rule_allows_its_own_names_and_ports(rule: str, name: str, port: int, allowed: bool) -> None:
    read = read_rule(rule)
    assert read
    assert read.allows_name(name, port) == allowed


@pytest.mark.parametrize(
    ("rule", "address", "port", "allowed"),
    [
        ("192.0.2.0/24", "192.0.2.7", 443, True),
        ("192.0.2.0/24", "192.0.3.7", 443, False),
        ("192.0.2.7:22", "192.0.2.7", 22, True),
        ("192.0.2.7:22", "192.0.2.7", 80, False),
        ("192.0.2.0/24", "::ffff:192.0.2.7", 443, False),
        ("[2001:db8::1]:443", "2001:db8::1", 443, True),
        ("pypi.org", "192.0.2.7", 443, False),
    ],
)
def test_a_rule_allows_its_own_addresses(rule: str, address: str, port: int, allowed: bool) -> None:
    read = read_rule(rule)
    assert read
    assert read.allows_address(ip_address(address), port) == allowed


PRIVATE = (
    *("10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.100.100.200", "127.0.0.1"),
    *("0.0.0.0", "224.0.0.251", "255.255.255.255", "168.63.129.16", "192.0.0.192", "::", "::1", "fe80::1", "fc00::1"),
    *("fd00:ec2::254", "ff02::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2001:0:1::", "fec0::1"),
)
PUBLIC = ("1.1.1.1", "172.32.0.1", "198.18.0.1", "203.0.113.1", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1")


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_of_the_users_networks_are_private(address: str) -> None:
    assert is_private(ip_address(address))
    assert not is_private(ip_address(address), [ip_network(address)])


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_not_private(address: str) -> None:
    assert not is_private(ip_address(address))


@pytest.mark.parametrize(
    ("text", "excepted", "private"),
    [
        ("203.0.113.0/24", (), False),
        ("8.0.0.0/6", (), True),
        ("0.0.0.0/0", (), True),
        ("10.1.0.0/16", (), True),
        ("10.1.0.0/16", ("10.0.0.0/8",), False),
        ("10.0.0.0/8", ("10.1.0.0/16",), True),
        ("2001:db8::/32", ("10.0.0.0/8",), False),
        ("::/0", (), True),
        ("fd00::/8", (), True),
        ("2002::/16", (), True),
    ],
)
def test_a_range_is_private_as_soon_as_one_of_its_addresses_is(
    text: str, excepted: tuple[str, ...], private: bool
) -> None:
    assert is_private_range(ip_network(text), ranges(excepted)) == private


@pytest.mark.parametrize(
    ("host", "allowed", "is_covered"),
    [
        pytest.param("pypi.org", ["PyPI.org"], True, id="itself"),
        pytest.param("PyPI.org:443", ["pypi.org"], True, id="one of the usual ports"),
        pytest.param("pypi.org:8443", ["pypi.org"], False, id="another port"),
        pytest.param("pypi.org:8443", ["pypi.org:8443"], True, id="a listed port"),
        pytest.param("pypi.org", ["pypi.org:443"], False, id="both usual ports of which one is listed"),
        pytest.param("pypi.org", ["pypi.org:443", "pypi.org:80"], True, id="both listed apart"),
        pytest.param("a.b.pypi.org", ["*.pypi.org"], True, id="below"),
        pytest.param("*.b.pypi.org", ["*.pypi.org"], True, id="all below a part"),
        pytest.param("*.pypi.org", ["*.pypi.org"], True, id="all below"),
        pytest.param("pypi.org", ["*.pypi.org"], False, id="above what is below it"),
        pytest.param("*.pypi.org", ["pypi.org"], False, id="all below a name"),
        pytest.param("*.org", ["*.pypi.org"], False, id="more than all below"),
        pytest.param("evilpypi.org", ["*.pypi.org", "pypi.org"], False, id="ends like it"),
        pytest.param("192.0.2.7", ["192.0.2.0/24"], True, id="in a range"),
        pytest.param("192.0.2.0/25", ["192.0.2.0/24"], True, id="a part of a range"),
        pytest.param("192.0.0.0/16", ["192.0.2.0/24"], False, id="more than a range"),
        pytest.param("0.0.0.0/0", ["192.0.2.0/24"], False, id="all addresses"),
        pytest.param("::/0", ["0.0.0.0/0"], False, id="the other kind of addresses"),
        pytest.param("192.0.2.7:22", ["192.0.2.0/24"], False, id="another port of a range"),
        pytest.param("192.0.2.7", ["pypi.org"], False, id="an address for a name"),
        pytest.param("pypi.org", ["0.0.0.0/0"], False, id="a name for addresses"),
        pytest.param("pypi.org", [], False, id="an empty list"),
        pytest.param("attacker.example:22", ["*"], True, id="everything"),
        pytest.param("not a host", ["pypi.org"], False, id="no host"),
    ],
)
def test_a_list_covers_a_host_only_at_all_of_its_ports(host: str, allowed: list[str], is_covered: bool) -> None:
    assert unlisted([host], allowed) == (() if is_covered else (host,))


def test_the_usual_list_names_whole_hosts_and_no_place_that_publishes_what_anybody_sends() -> None:
    assert all(is_target(host) and "*" not in host and ":" not in host for host in PACKAGE_INDEXES)
    assert not {"github.com", "crates.io", "upload.pypi.org", "proxy.golang.org"} & {*PACKAGE_INDEXES}
