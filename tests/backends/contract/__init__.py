"""What every Sandbox keeps to: a backend's test file gives an `opener` and inherits the tests.

RunContract and FileContract say what they need in Programs, so that a sandbox without a shell can keep them too.
ShellContract is about the real thing: shells, processes, modes, links; SessionContract is about shells that keep their
state. Contract is all four; JobContract is for those that have background jobs, WholeJobContract for each program that
keeps jobs, PortContract for those whose ports can be reached, PythonContract for those that have a
Python (WholePythonContract once).
"""

from __future__ import annotations

from .basics import Opener, counted, finish
from .files import FileContract
from .jobs import JobContract, WholeJobContract
from .ports import PortContract
from .pythons import PythonContract, WholePythonContract
from .runs import RunContract
from .sessions import SessionContract
from .shell import ShellContract

__all__ = [
    "Contract",
    "FileContract",
    "JobContract",
    "Opener",
    "PortContract",
    "PythonContract",
    "RunContract",
    "SessionContract",
    "ShellContract",
    "WholeJobContract",
    "WholePythonContract",
    "counted",
    "finish",
]


class Contract(RunContract, FileContract, ShellContract, SessionContract):
    """All of it."""
