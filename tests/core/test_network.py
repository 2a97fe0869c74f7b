"""Which hosts a network may be narrowed to."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.network import is_target


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
        pytest.param("pypi.org:443", id="port"),
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
def test_what_no_rule_can_match_is_refused(text: str) -> None:
    assert not is_target(text)
