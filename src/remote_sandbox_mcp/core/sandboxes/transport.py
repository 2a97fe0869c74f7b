"""Decides how an SSH machine is reached: by asyncssh in this process, or by OpenSSH's own client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigError
from .machine import ASYNCSSH, OPENSSH, Machine

MISSING = "OpenSSH's client, ssh, is not installed"


@dataclass(frozen=True)
class TransportChoice:
    """A transport, why it was chosen, and the socket of a connection of the user's that it can go over, if any."""

    transport: str
    why: str
    master: str = ""

    @property
    def is_openssh(self) -> bool:
        return self.transport == OPENSSH


def choose(machine: Machine, *, master: str = "", has_ticket: bool = False) -> TransportChoice:
    """The transport of a machine. `master` is a live control socket of the user's; `has_ticket`: one of Kerberos.

    Raises ConfigError where the operator wants OpenSSH's client, and it cannot be used.
    """
    ssh = machine.openssh
    if machine.transport == ASYNCSSH:
        return TransportChoice(ASYNCSSH, 'transport = "asyncssh" is configured')
    if machine.transport == OPENSSH:
        _refuse(machine)
        return TransportChoice(OPENSSH, 'transport = "openssh" is configured', master)
    if ssh is None:
        return TransportChoice(ASYNCSSH, "it is the fastest, and nothing is configured that needs OpenSSH's client")
    needs = [*ssh.needs, *(["your Kerberos ticket"] if ssh.kerberos and has_ticket else [])]
    reasons = [f"only OpenSSH's client can use {listed(needs)}"] if needs else []
    if master:
        reasons.append("a connection of yours to it is open (ControlMaster)")
    if not reasons:
        return TransportChoice(ASYNCSSH, "it is the fastest, and nothing is configured that needs OpenSSH's client")
    # Over a connection that is open, nobody logs in.
    if ssh.lacks and not master:
        return TransportChoice(ASYNCSSH, f"{listed(ssh.lacks)} is configured, which OpenSSH's client cannot be given")
    return TransportChoice(OPENSSH, "; ".join(reasons), master)


def _refuse(machine: Machine) -> None:
    doing = f"unable to open {machine.name}"
    if machine.openssh is None:
        raise ConfigError.of_parts(doing, MISSING, 'install it, or set transport = "auto"')
    if lacks := machine.openssh.lacks:
        found = f"{listed(lacks)} is configured, which OpenSSH's client cannot be given"
        raise ConfigError.of_parts(doing, found, 'put the key into an agent (ssh-add), or set transport = "asyncssh"')


def listed(words: Sequence[str]) -> str:
    """The words of a list in a sentence."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
