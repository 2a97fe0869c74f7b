"""Machines that can be set up: hosts of ~/.ssh/config and typed addresses, each tried as a tool call would open it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import readers
from ...config.machines import Builder, completed, parse_jump
from ...config.problems import Fault
from ...config.schema import Configuration, MachineEntry
from ...config.ssh_config import SshConfig
from ...core.errors import ConfigError
from ...core.resources.checkup import CODE_STEP, Checkup, Mark, Step, address
from ...core.sandboxes.machine import Machine
from ...core.sandboxes.secret import Secret
from .keeping import PASSWORD, MachineSecret

if TYPE_CHECKING:
    from ...backends.ssh.connection import UnseenKey
    from ..probe.doctor import Visit

AT_ONCE = 16


class Standing(str, Enum):
    """Standing of a machine after a trial."""

    READY = "ready"
    # It asks for a one-time code, which is for the user to give at each login.
    CODE = "code"
    PASSWORD = "password"
    # A key of it is encrypted, and nothing gives its passphrase.
    PASSPHRASE = "passphrase"
    HOST_KEY = "host_key"
    FAILED = "failed"


@dataclass(frozen=True)
class Candidate:
    """A machine that may be chosen. `entry` is None for one that is configured already."""

    name: str
    machine: Machine
    entry: MachineEntry | None = None

    @property
    def is_configured(self) -> bool:
        return self.entry is None

    @property
    def address(self) -> str:
        return address(self.machine.login.user, self.machine.host, self.machine.port)


@dataclass(frozen=True)
class Trial:
    """Findings of a trial. `unseen` is the host key that a person has to accept first.

    `locked_key` is the file of a key that is encrypted, where the login needs it.
    """

    candidate: Candidate
    checkup: Checkup
    standing: Standing
    unseen: UnseenKey | None = None
    locked_key: str = ""

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def has_slurm(self) -> bool:
        """Slurm is there, and the machine is not yet configured as a cluster."""
        return self.candidate.machine.slurm is None and self._step("slurm") is not None

    @property
    def gpus(self) -> str:
        step = self._step("GPUs")
        return step.said if step else ""

    @property
    def trouble(self) -> Step | None:
        """The step that failed, or that asks for a code."""
        failed = next((step for step in self.checkup.steps if step.mark is Mark.FAILED), None)
        return failed or (self._step(CODE_STEP) if self.standing is Standing.CODE else None)

    def _step(self, name: str) -> Step | None:
        reached = (step for step in self.checkup.steps if step.mark is not Mark.SKIPPED)
        return next((step for step in reached if step.name == name), None)


class Finder:
    """Makes candidates under one configuration, whose settings hold for them, too."""

    def __init__(self, configuration: Configuration, environ: Mapping[str, str] = os.environ) -> None:
        self._configuration = completed(configuration)
        self._environ = environ
        self._ssh = SshConfig.read(_silent)
        self._names = {machine.name for machine in self._configuration.machines}

    def configured(self) -> list[Candidate]:
        return [Candidate(machine.name, machine) for machine in self._configuration.machines]

    def hosts(self) -> list[Candidate]:
        """The hosts of ~/.ssh/config that are not configured yet; those that cannot be used are left out."""
        ssh = (machine.openssh for machine in self._configuration.machines)
        taken = {*self._names, *(it.destination for it in ssh if it)}
        found = (self._host(name) for name in self._ssh.names() if name not in taken)
        return [candidate for candidate in found if candidate]

    def typed(self, text: str, taken: Collection[str] = ()) -> Candidate:
        """A machine as a person writes it: a host of ~/.ssh/config, or user@host:port. Raises ConfigError.

        `taken` are names of others that are chosen.
        """
        try:
            host, user, port = parse_jump(text.strip())
            if not user and port is None and self._ssh.knows(host):
                name = _free_name([host.replace(":", "-")], {*self._names, *taken})
                return self.candidate(MachineEntry(name, "~/.ssh/config", ssh_alias=host))
            name = _free_name(_names(host, user, port), {*self._names, *taken})
            return self.candidate(MachineEntry(name, "setup", host=readers.host(host), user=user, port=port))
        except Fault:
            raise ConfigError(
                f"{text.strip()[:80]!r} is no machine; write it as user@host or user@host:port."
            ) from None

    def candidate(self, entry: MachineEntry) -> Candidate:
        """Raises ConfigError."""
        builder = Builder([entry], self._configuration.settings, self._environ, _silent)
        if not (machines := builder.machines()):
            raise ConfigError(f"{entry.name} cannot be used as it is configured.")
        return Candidate(entry.name, machines[0].complete(), entry)

    def with_secret(self, candidate: Candidate, secret: MachineSecret) -> Candidate:
        entry = candidate.entry
        assert entry is not None
        if secret.key == PASSWORD:
            return self.candidate(replace(entry, password=Secret(secret.text)))
        return self.candidate(replace(entry, key_passphrase=Secret(secret.text)))

    def _host(self, name: str) -> Candidate | None:
        try:
            if readers.alias(name) != name:
                return None
            return self.candidate(MachineEntry(name.replace(":", "-"), "~/.ssh/config", ssh_alias=name))
        except (Fault, ConfigError):
            return None


def _names(host: str, user: str, port: int | None) -> list[str]:
    """List possible names of a machine; without ":" and "/", which names must not hold."""
    plain = host.replace(":", "-")
    return [plain, f"{plain}-{port or 22}", f"{user or 'me'}-{plain}-{port or 22}"]


def _free_name(names: Sequence[str], taken: Collection[str]) -> str:
    """The first that no other machine has. Raises ConfigError."""
    for name in names:
        if name not in taken:
            return name
    raise ConfigError(f"{names[0]} is configured or chosen already.")


# Is told the name of a machine, and the step that it has reached or how it stands.
Progress = Callable[[str, "str | Trial"], None]


async def try_all(candidates: Iterable[Candidate], own_known_hosts: Path, watch: Progress) -> list[Trial]:
    """Try all of them side by side; `watch` is told the step that each of them has reached."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(candidate: Candidate) -> Trial:
        async with turn:
            return await try_one(candidate, own_known_hosts, watch)

    return list(await asyncio.gather(*map(one, candidates)))


async def try_one(candidate: Candidate, own_known_hosts: Path, watch: Progress) -> Trial:
    """Open a machine and look around in it. A host key that was never seen is refused here, and told."""
    from ..probe.doctor import Visit, examine

    visit = Visit(replace(candidate.machine, strict_host_keys=True), own_known_hosts)
    reporting = asyncio.ensure_future(_report_progress(visit, candidate.name, watch))
    try:
        checkup = await examine(visit)
    finally:
        reporting.cancel()
    unseen = None if candidate.machine.strict_host_keys else visit.gate.unseen_key
    locked = await _locked_key(candidate, checkup)
    standing = _standing(checkup, visit, unseen, locked)
    trial = Trial(candidate, checkup, standing, unseen if standing is Standing.HOST_KEY else None, locked)
    watch(candidate.name, trial)
    return trial


async def _locked_key(candidate: Candidate, checkup: Checkup) -> str:
    """The key that needs a passphrase, where the login has failed."""
    from ...backends.ssh.connection import locked_key

    if not any(step.name == "login" and step.mark is Mark.FAILED for step in checkup.steps):
        return ""
    return await asyncio.to_thread(locked_key, candidate.machine.login)


def _standing(checkup: Checkup, visit: Visit, unseen: UnseenKey | None, locked: str) -> Standing:
    if not checkup.failed:
        asks = any(step.name == CODE_STEP and step.mark is Mark.WARNING for step in checkup.steps)
        return Standing.CODE if asks else Standing.READY
    if unseen:
        return Standing.HOST_KEY
    if locked:
        return Standing.PASSPHRASE
    return Standing.PASSWORD if visit.gate.asks_for_password else Standing.FAILED


async def _report_progress(visit: Visit, name: str, watch: Progress) -> None:
    """The step that a visit has reached, until it is over."""
    while True:
        watch(name, visit.at)
        await asyncio.sleep(0.1)


def accept_key(unseen: UnseenKey, own_known_hosts: Path) -> None:
    """Remember this very key, which a person has seen the fingerprint of. Raises ConfigError."""
    from ...backends.ssh.host_keys import HostKeys

    keys = HostKeys(own_known_hosts)
    try:
        with keys.deciding():
            keys.remember(unseen.host, unseen.port, unseen.key)
    except OSError as problem:
        raise ConfigError(f"unable to remember the host key in {own_known_hosts}: {problem.strerror}.") from None


def fields_of(entry: MachineEntry, secrets: Mapping[str, str], slurm: bool) -> dict[str, Any]:
    """A machine as a table of config.toml; `secrets` says where each is kept."""
    port = {"port": entry.port} if entry.port and entry.port != 22 else {}
    where = {"ssh_alias": entry.ssh_alias} if entry.ssh_alias else {"host": entry.host}
    user = {"user": entry.user} if entry.user else {}
    return {**where, **port, **user, **secrets, **({"slurm": True} if slurm else {})}


def is_plain_alias(entry: MachineEntry, secrets: Mapping[str, str], slurm: bool) -> bool:
    """Whether its name in `hosts` says all of it."""
    return entry.ssh_alias == entry.name and not (secrets or slurm)


def named(candidates: Sequence[Candidate], finder: Finder, names: Sequence[str]) -> list[Candidate]:
    """The candidates that are named, each once and in that order; others are made of what the name says.

    Raises ConfigError.
    """
    by_name = {candidate.name: candidate for candidate in candidates}
    taken, found = {name for name in names if name in by_name}, []
    for name in dict.fromkeys(names):
        candidate = by_name.get(name) or finder.typed(name, taken)
        taken.add(candidate.name)
        found.append(candidate)
    return found


def _silent(_: str) -> None:
    """Doubts about ~/.ssh/config are told where the configuration is loaded."""
