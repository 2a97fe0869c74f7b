"""What may keep a measurement from being taken."""

from __future__ import annotations


class BenchError(Exception):
    """Something did not run as it must for its time to mean anything."""


class NoPeer(Exception):
    """The peer cannot be had here; its rows are left out and the reason is told."""
