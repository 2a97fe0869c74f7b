"""Allocations of a Slurm cluster: submitted with sbatch on its login node, reached by srun through a holder in each.

How the login node is reached is not known here: it starts programs, and each has a line of its own.
"""

from __future__ import annotations

from ...core.sandboxes.disposable import Traits


def kind_of(machine: str) -> str:
    """The provider's name in records: names of machines have no colon."""
    return f"slurm:{machine}"


def traits_of(machine: str) -> Traits:
    return Traits(is_queue=True, machine=machine)
