"""Transfers in the background: begun by one process, guarded and finished by another, seen and cancelled by any."""

from __future__ import annotations

# Found when they are asked for: a guardian passes through here, and must stay small.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cancel import Cancelled
    from .drive import Runner
    from .transfers import Transfers

__all__ = ["Cancelled", "Runner", "Transfers"]

_ROOMS = {"Cancelled": "cancel", "Runner": "drive", "Transfers": "transfers"}


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_ROOMS[name]}", __name__), name)
