"""Containers of a Docker or podman engine on a machine: made by its command line, reached by `exec` through it.

How the machine is reached is not here: whatever opens it can start programs there, each with a line of its own.
"""

from __future__ import annotations

from ...core.sandboxes.disposable import Traits


def kind_of(tool: str, machine: str) -> str:
    """The provider's name in records: names of machines have no colon."""
    return f"{tool}:{machine}"


def traits_of(machine: str) -> Traits:
    return Traits(keeps_network_off=True, has_cards=True, machine=machine)
