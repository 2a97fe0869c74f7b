"""Which hosts a sandbox's network may be narrowed to."""

from __future__ import annotations

import ipaddress
import re

MOST_HOSTS = 100
_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"(?=.{{1,255}}\Z)(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")


def is_target(text: str) -> bool:
    """Whether an egress rule can have it: a name, *.name for all below it, an address, or a range of them as CIDR."""
    return _is_range(text) or (bool(_NAME.fullmatch(text)) and not _looks_like_numbers(text))


def _is_range(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    # A zone is this machine's own.
    return "%" not in text


def _looks_like_numbers(text: str) -> bool:
    """An address with a slip of the pen would never match anything as a name."""
    return text.rpartition(".")[2].isdigit()
