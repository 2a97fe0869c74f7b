"""Machines from configuration entries: OpenSSH aliases resolved, defaults filled in, jump hosts ordered."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..core.client import Variables
from ..core.commands.command import Environment
from ..core.errors import ConfigError
from ..core.lazy import lazy
from ..core.sandboxes.machine import OPENSSH, Engine, Hop, Login, Machine, OpenSsh
from ..local.files import fingerprint_of
from . import readers
from .aliases import USER_VARIABLES, Alias, agent_socket, certificates_beside, current_user, default_keys, read_alias
from .paths import from_folder
from .problems import Fault, Reporter, quoted, unreported
from .schema import Configuration, HostPatterns, MachineEntry, Settings, secrets_of

# The rest is imported where it is needed: most configurations name no host of ~/.ssh/config.
if TYPE_CHECKING:
    from .ssh_config import HostSettings, SshConfig

_JUMP = re.compile(r"(?:ssh://)?(?:([^@]+)@)?(\[[^\]]+\]|[^:@\[\]/]+)(?::(\d+))?/?")
AT_ONCE = 8
# Of a host that a caller names.
LONGEST_NAME = 255
# Fields that a machine has as they are written.
AS_WRITTEN = ("name", "python", "direct", "sudo", "slurm", "is_by_pattern", "forward_agent", "transport", "writable")


@dataclass(frozen=True)
class Route:
    """Route to a machine: a program in place of the first connection, and the jump hosts."""

    hops: tuple[Hop, ...] = ()
    proxy_command: tuple[str, ...] = ()


class Asking:
    """Completes a machine by what OpenSSH's configuration says of its names: once, when it is first used or listed."""

    def __init__(self, builder: Builder, entry: MachineEntry) -> None:
        self._builder = builder
        self._entry = entry
        self._given = builder.given(entry)
        self._fingerprint = builder.fingerprint
        self._turn = threading.Lock()
        self._machine: Machine | None = None
        # What was found to be doubtful on the way.
        self.reported: list[str] = []

    def __call__(self) -> Machine:
        """Raises ConfigError. It may run `ssh -G`: call it in a thread."""
        with self._turn:
            if self._machine is None:
                try:
                    self._machine = self._builder.complete(self._entry, self.reported.append)
                except Fault as fault:
                    raise ConfigError(f"{self._entry.where} cannot be used: {fault}.") from None
        return self._machine

    def __eq__(self, other: object) -> bool:
        """Equal if the answers are; they are asked for only where a file has changed since one of them was given."""
        if not isinstance(other, Asking) or self._given != other._given:
            return False
        if self._fingerprint == other._fingerprint or (self._machine is None and other._machine is None):
            return True
        try:
            return self() == other()
        except ConfigError:
            return False

    def __hash__(self) -> int:
        return hash(self._entry.name)

    def __repr__(self) -> str:
        return "Asking()"


def completed(configuration: Configuration) -> Configuration:
    """A configuration in which all machines are complete, for lists of them; what cannot be is told as a problem."""
    from concurrent.futures import ThreadPoolExecutor

    # Each question is a process that takes some milliseconds, and there may be hundreds.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(_completed, configuration.machines))
    faults = [answer for answer in answers if isinstance(answer, str)]
    reported = [one for it in configuration.machines if isinstance(it.asking, Asking) for one in it.asking.reported]
    problems = dict.fromkeys((*configuration.problems, *reported, *faults))
    return replace(
        configuration,
        machines=tuple(answer for answer in answers if isinstance(answer, Machine)),
        problems=tuple(problems),
        faults=(*configuration.faults, *faults),
    )


def _completed(machine: Machine) -> Machine | str:
    try:
        return machine.complete()
    except ConfigError as problem:
        return str(problem)


class Builder:
    """Makes machines from entries, which may name each other as jump hosts.

    What ~/.ssh/config says of a name is asked later, when the machine is first used: start-up must not wait for it.
    """

    def __init__(
        self, entries: Iterable[MachineEntry], settings: Settings, environ: Mapping[str, str], report: Reporter
    ) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._settings = settings
        self._environ = environ
        self._report = report
        self._aliases: dict[tuple[str, str, int | None], Alias] = {}
        self._said: dict[tuple[str, str, int | None], HostSettings] = {}

    def machines(self) -> tuple[Machine, ...]:
        """All machines that can be made; problems with the others are reported."""
        return tuple(machine for entry in self._entries.values() if (machine := self._attempt(entry)))

    @property
    def read_from(self) -> tuple[str, ...]:
        """Files that influenced the result, once the machines are made."""
        # Keys that OpenSSH tries by default may appear and disappear.
        return (os.path.expanduser("~/.ssh"), *(self._ssh.files if Builder._ssh.made(self) else ()))

    @property
    def key_files(self) -> tuple[str, ...]:
        """Private keys that ~/.ssh/config names for whichever host, or the folder where a name is not yet known."""
        if not Builder._ssh.made(self):
            return ()
        from .ssh_config import expand

        paths = self._ssh.values("identityfile")
        here = {"d": os.path.expanduser("~"), "u": current_user(self._environ), "%": "%"}
        whole = (os.path.expanduser(expand(path, here, self._environ)) for path in paths)
        keys = (os.path.dirname(path) if "%" in os.path.basename(path) else path for path in whole)
        return tuple(key for key in keys if "%" not in key)

    @cached_property
    def fingerprint(self) -> object:
        """The state of the files that the meaning of names depends on."""
        return fingerprint_of(self._ssh.files)

    def given(self, entry: MachineEntry) -> object:
        """Collect the settings that decide about a machine, but for the files."""
        jumps, waiting = [entry], list(entry.jump or ())
        while waiting:
            if (jump := self._entries.get(waiting.pop())) and jump not in jumps:
                jumps.append(jump)
                waiting += jump.jump or ()
        settings = self._settings
        return jumps, settings.strict_host_keys, settings.connect_timeout_s, self._variables

    @cached_property
    def _variables(self) -> Variables:
        """The client's variables that OpenSSH's client and its programs get, and so all that names may depend on."""
        from .variables import for_programs

        names = (*USER_VARIABLES, *self._ssh.variables, *self._settings.pass_env)
        return Variables(for_programs(self._environ, secrets_of(self._entries.values(), self._settings), names))

    def _attempt(self, entry: MachineEntry) -> Machine | None:
        try:
            self._check_jumps(entry)
            machine = self._incomplete(entry) if self._must_ask(entry) else self._machine(entry)
        except Fault as fault:
            self._report(f"{entry.where} is left out: {fault}.")
            return None
        for doubt in self._doubts(entry):
            self._report(f"{entry.where}: {doubt}.")
        return machine

    def _check_jumps(self, entry: MachineEntry) -> None:
        """Check the jumps as far as possible without connecting. Raises Fault."""
        _check_circle(entry, self._entries)
        for jump in entry.jump or ():
            if jump not in self._entries:
                parse_jump(jump)

    def _must_ask(self, entry: MachineEntry) -> bool:
        """Whether ~/.ssh/config has a say in it: by an alias, by its User, or by a jump host's name."""
        jumps = [self._entries.get(jump) for jump in entry.jump or ()]
        is_named = bool(entry.ssh_alias) or entry.transport == OPENSSH
        return is_named or not entry.user or any(not it or self._must_ask(it) for it in jumps)

    def _incomplete(self, entry: MachineEntry) -> Machine:
        return replace(self._written(entry), asking=Asking(self, entry))

    def _written(self, entry: MachineEntry) -> Machine:
        """The machine by its table alone: every key counts, however the machine is named, before anything is asked."""
        strict = entry.strict_host_keys
        return Machine(
            host=entry.host or entry.ssh_alias,
            port=entry.port or 22,
            login=self._login(entry, Login(entry.user)),
            strict_host_keys=self._settings.strict_host_keys if strict is None else strict,
            connect_timeout_s=entry.connect_timeout_s or self._settings.connect_timeout_s,
            environment=Environment(entry.shell, entry.init, entry.env),
            engine=engine_of(entry),
            **{name: getattr(entry, name) for name in AS_WRITTEN},
        )

    def complete(self, entry: MachineEntry, report: Reporter) -> Machine:
        """The machine with all that ~/.ssh/config says of it now. Raises Fault."""
        # Another builder, because this one may have been told something else before.
        fresh = Builder(self._entries.values(), self._settings, self._environ, report)
        if fingerprint_of(self._ssh.files) == self.fingerprint:
            fresh._ssh = self._ssh
        return fresh._machine(entry)

    def add_fitting(self, rule: HostPatterns) -> dict[str, MachineEntry]:
        """Add the hosts of ~/.ssh/config that patterns fit, but for those that are configured already."""
        if not any(map(readers.is_pattern, rule.patterns)):
            return {}
        taken = {*self._entries, *(entry.ssh_alias for entry in self._entries.values())}
        found = [_found_entry(name, rule) for name in self._ssh.names() if name not in taken and _fits(name, rule)]
        added = {entry.name: entry for entry in found if entry.name not in taken}
        self._entries |= added
        if not found:
            self._report(f"{rule.where}: no host of ~/.ssh/config fits {', '.join(map(quoted, rule.patterns))}.")
        return added

    def find(self, rule: HostPatterns, name: str) -> Machine | None:
        """The host that a caller names, where the operator allows it, `rule` fits it and ~/.ssh/config knows it."""
        if not rule.at_run_time or not _fits(name, rule):
            return None
        fresh = Builder(self._entries.values(), self._settings, self._environ, unreported)
        return fresh._incomplete(_found_entry(name, rule)) if fresh._ssh.knows(name) else None

    def _machine(self, entry: MachineEntry) -> Machine:
        alias, target = self._alias(entry), self._target(entry)
        route = self._route(entry, (entry.name,))
        written = self._written(entry)
        # The stricter setting wins, unless the entry itself decides.
        strict = written.strict_host_keys or (entry.strict_host_keys is None and alias.strict_host_keys)
        return replace(
            written,
            host=target.host,
            port=target.port,
            login=target.login,
            hops=route.hops,
            proxy_command=route.proxy_command,
            proxy_environ=self._variables if route.proxy_command else None,
            host_key_name=target.host_key_name,
            known_hosts_files=alias.known_hosts_files,
            strict_host_keys=strict,
            connect_timeout_s=entry.connect_timeout_s or alias.connect_timeout_s or written.connect_timeout_s,
            openssh=self._openssh(entry, target.login, route),
        )

    def _openssh(self, entry: MachineEntry, login: Login, route: Route) -> OpenSsh | None:
        """Build the settings for OpenSSH's client, where it may come to be used."""
        if not entry.ssh_alias and entry.transport != OPENSSH:
            return None
        from .openssh import client_settings, find_client

        if not find_client():
            return None
        # This builder has resolved the names of one machine and of the way to it, and no others.
        needs = dict.fromkeys(need for alias in self._aliases.values() for need in alias.needs)
        said = self._say(entry.ssh_alias or entry.host, entry.user, entry.port)
        return client_settings(entry, login, route.hops, self._variables, said, tuple(needs))

    def _target(self, entry: MachineEntry) -> Hop:
        """Address and login of an entry, as a machine or as a jump host of another."""
        alias = self._alias(entry)
        host, port = entry.host or alias.host, entry.port or alias.port
        # An alias brings the login of ~/.ssh/config; a bare host gets OpenSSH's defaults.
        usual = alias.login if entry.ssh_alias else self._plain_login(entry)
        return Hop(host, port, self._login(entry, usual), alias.host_key_name, entry.ssh_alias)

    def _login(self, entry: MachineEntry, usual: Login) -> Login:
        """`usual`, with all that the table says of it."""
        secrets = {name: getattr(entry, name) for name in ("password", "key_passphrase", "otp", "otp_seed")}
        login = replace(usual, **secrets)
        if entry.key_file:
            keys = tuple(map(self._whole, entry.key_file))
            certificates = tuple(certificates_beside(keys))
            login = replace(login, key_files=keys, certificate_files=certificates, agent="", agent_identities=())
        if entry.certificate_file:
            login = replace(login, certificate_files=tuple(map(self._whole, entry.certificate_file)))
        return replace(login, agent=agent_socket(entry.agent, self._environ)) if entry.agent else login

    def _whole(self, path: str) -> str:
        return from_folder(path, self._environ)

    def _plain_login(self, entry: MachineEntry) -> Login:
        # A bare host may still match a Host block that sets only the user.
        user = entry.user or self._say(entry.host, "", None).first("user")
        # If a key or password is named, offer only that: each further key would use up one of the server's few
        # attempts.
        if entry.key_file or entry.password:
            return Login(user)
        keys = default_keys()
        agent = agent_socket("SSH_AUTH_SOCK", self._environ)
        return Login(user, key_files=keys, certificate_files=tuple(certificates_beside(keys)), agent=agent)

    def _route(self, entry: MachineEntry, seen: tuple[str, ...]) -> Route:
        alias = self._alias(entry)
        if entry.jump is None:
            return self._follow_aliases(alias, seen)
        # An empty list switches jump hosts off, but not the alias's ProxyCommand.
        if not entry.jump:
            return Route(proxy_command=alias.proxy_command)
        first, *rest = entry.jump
        start = self._first_leg(first, seen)
        others = (self._target(self._entries[jump]) if jump in self._entries else self._hop(jump) for jump in rest)
        return Route((*start.hops, *others), start.proxy_command)

    def _first_leg(self, jump: str, seen: tuple[str, ...]) -> Route:
        """The route to a jump host, including that host."""
        if jump not in self._entries:
            return self._alias_leg(jump, seen)
        _refuse_circle(jump, seen)
        entry = self._entries[jump]
        way = self._route(entry, (*seen, jump))
        return Route((*way.hops, self._target(entry)), way.proxy_command)

    def _alias_leg(self, jump: str, seen: tuple[str, ...]) -> Route:
        _refuse_circle(f"ssh {jump}", seen)
        way = self._follow_aliases(self._jump(jump), (*seen, f"ssh {jump}"))
        return Route((*way.hops, self._hop(jump)), way.proxy_command)

    def _follow_aliases(self, alias: Alias, seen: tuple[str, ...]) -> Route:
        """Follow aliases as OpenSSH does: only the first of several jump hosts is reached through its own ones."""
        if not alias.jump:
            return Route(proxy_command=alias.proxy_command)
        first, *rest = alias.jump
        start = self._alias_leg(first, seen)
        return Route((*start.hops, *map(self._hop, rest)), start.proxy_command)

    def _hop(self, jump: str) -> Hop:
        alias = self._jump(jump)
        return Hop(alias.host, alias.port, alias.login, alias.host_key_name, parse_jump(jump)[0])

    def _jump(self, jump: str) -> Alias:
        return self._resolve(*parse_jump(jump))

    def _alias(self, entry: MachineEntry) -> Alias:
        return self._resolve(entry.ssh_alias, entry.user, entry.port) if entry.ssh_alias else Alias(entry.host)

    def _resolve(self, alias: str, user: str, port: int | None) -> Alias:
        key = (alias, user, port)
        if key not in self._aliases:
            said = self._say(alias, user, port)
            by_program = self._ssh.decides_by_program(alias)
            self._aliases[key] = read_alias(said, self._environ, self._report, is_by_program=by_program)
        return self._aliases[key]

    def _say(self, alias: str, user: str, port: int | None) -> HostSettings:
        from .openssh import ask, find_client

        key = (alias, user, port)
        if key not in self._said:
            local_user = current_user(self._environ)
            self._said[key] = (
                ask(alias, self._variables, user, port)
                if find_client()
                else self._ssh.say(alias, local_user, self._report, user, port)
            )
        return self._said[key]

    @lazy
    def _ssh(self) -> SshConfig:
        from .ssh_config import SshConfig

        return SshConfig.read(self._report)

    def _doubts(self, entry: MachineEntry) -> Iterable[str]:
        """List settings that look wrong now but may be right by the time of the login."""
        for path in (*entry.key_file, *entry.certificate_file):
            if not os.path.isfile(self._whole(path)):
                yield f"the file {quoted(path)} is not there, so logging in with it will fail; correct its path"
            elif path in entry.key_file and path.endswith(".pub"):
                yield f"the file {quoted(path)} holds a public key; name the private key beside it"
        if entry.docker is not None and entry.podman is not None:
            yield "docker and podman are both allowed, and only docker is used; take one of them out"
        if entry.ssh_alias and not entry.is_by_pattern and not self._ssh.knows(entry.ssh_alias):
            yield f"no Host in ~/.ssh/config fits {quoted(entry.ssh_alias)}, so it is taken for a host name"
        if entry.agent and entry.agent.lower() != "none" and not agent_socket(entry.agent, self._environ):
            yield "agent is wanted, but SSH_AUTH_SOCK is not set here; start an agent or name its socket"


def engine_of(entry: MachineEntry) -> Engine | None:
    """The engine that makes sandboxes on a machine, if one may."""
    for tool, words in (("docker", entry.docker), ("podman", entry.podman)):
        if words is not None:
            return Engine(tool, words or (tool,))
    return None


def parse_jump(jump: str) -> tuple[str, str, int | None]:
    """Host, user and port of a jump host. Raises Fault."""
    found = _JUMP.fullmatch(jump)
    try:
        # "-" is never a valid host, so that a malformed jump is refused below.
        user, host, port = found.groups() if found else ("", "-", "")
        if user and user.startswith("-"):
            raise Fault("must not be an option")
        return readers.alias(host.strip("[]")), user or "", readers.port(port) if port else None
    except Fault:
        raise Fault("jump must be user@host:port, a host of ~/.ssh/config or another machine's name") from None


def _found_entry(name: str, rule: HostPatterns) -> MachineEntry:
    # A name must not contain ":", as an IPv6 address does.
    return MachineEntry(name.replace(":", "-"), f"{rule.where} {quoted(name)}", ssh_alias=name, is_by_pattern=True)


def _fits(name: str, rule: HostPatterns) -> bool:
    """Whether patterns fit a name that `ssh` may be given: no option, no user, nothing for a shell."""
    from .ssh_config import matches

    try:
        return len(name) <= LONGEST_NAME and readers.alias(name) == name != "" and matches(rule.patterns, name)
    except Fault:
        return False


def _check_circle(entry: MachineEntry, entries: Mapping[str, MachineEntry], seen: tuple[str, ...] = ()) -> None:
    """Refuse a circle of jump hosts that are machines of ours; ~/.ssh/config's are checked when they are asked for."""
    _refuse_circle(entry.name, seen)
    for jump in (entry.jump or ())[:1]:
        if jump in entries:
            _check_circle(entries[jump], entries, (*seen, entry.name))


def _refuse_circle(jump: str, seen: tuple[str, ...]) -> None:
    if jump in seen:
        raise Fault("its jump hosts lead round in a circle; take one of them out")
