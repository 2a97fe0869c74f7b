"""From what was written down to machines: aliases looked up, defaults filled in, jump hosts put in order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..core.command import Environment
from ..core.machine import Hop, Login, Machine
from ..core.variables import Variables
from . import readers
from .aliases import Alias, agent_socket, certificates_beside, current_user, default_keys, resolve_alias
from .paths import from_folder
from .problems import Fault, Tell, quoted
from .schema import Entry, Settings

if TYPE_CHECKING:
    from .ssh_config import SshConfig

_JUMP = re.compile(r"(?:ssh://)?(?:([^@]+)@)?(\[[^\]]+\]|[^:@\[\]/]+)(?::(\d+))?/?")


@dataclass(frozen=True)
class Route:
    """How a machine is reached: what runs in place of the first connection, and the hosts on the way."""

    hops: tuple[Hop, ...] = ()
    proxy_command: tuple[str, ...] = ()


class Builder:
    """Makes machines of entries, which may name each other as jump hosts. ~/.ssh/config is read only if needed."""

    def __init__(self, entries: Iterable[Entry], settings: Settings, environ: Mapping[str, str], tell: Tell) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._settings = settings
        self._environ = environ
        self._tell = tell
        self._aliases: dict[tuple[str, str, int | None], Alias] = {}

    def machines(self) -> tuple[Machine, ...]:
        """All machines that can be made; why the others cannot is told."""
        return tuple(machine for entry in self._entries.values() if (machine := self._attempt(entry)))

    @property
    def read_from(self) -> tuple[str, ...]:
        """The files that had a say, once the machines are made."""
        # Keys that OpenSSH tries by itself may come and go.
        return (os.path.expanduser("~/.ssh"), *(self._ssh.files if "_ssh" in self.__dict__ else ()))

    def _attempt(self, entry: Entry) -> Machine | None:
        try:
            machine = self._machine(entry)
        except Fault as fault:
            self._tell(f"{entry.where} is left out: {fault}.")
            return None
        for doubt in self._doubts(entry, machine):
            self._tell(f"{entry.where}: {doubt}.")
        return machine

    def _machine(self, entry: Entry) -> Machine:
        alias, target = self._alias(entry), self._target(entry)
        route = self._route(entry, (entry.name,))
        strict = alias.strict_host_keys or self._settings.strict_host_keys
        timeout_s = entry.connect_timeout_s or alias.connect_timeout_s or self._settings.connect_timeout_s
        return Machine(
            name=entry.name,
            host=target.host,
            port=target.port,
            login=target.login,
            hops=route.hops,
            proxy_command=route.proxy_command,
            proxy_environ=Variables(self._environ) if route.proxy_command else None,
            host_key_name=target.host_key_name,
            known_hosts_files=alias.known_hosts_files,
            strict_host_keys=strict if entry.strict_host_keys is None else entry.strict_host_keys,
            connect_timeout_s=timeout_s,
            python=entry.python,
            environment=Environment(entry.shell, entry.init, entry.env),
            direct=entry.direct,
        )

    def _target(self, entry: Entry) -> Hop:
        """Where an entry is and how to log in there: as a machine, or as a jump host of another."""
        alias = self._alias(entry)
        host, port = entry.host or alias.host, entry.port or alias.port
        return Hop(host, port, self._login(entry, alias), alias.host_key_name)

    def _login(self, entry: Entry, alias: Alias) -> Login:
        login = replace(
            alias.login if entry.ssh_alias else self._plain_login(entry),
            password=entry.password,
            key_passphrase=entry.key_passphrase,
        )
        if entry.key_file:
            keys = tuple(map(self._whole, entry.key_file))
            certificates = tuple(certificates_beside(keys))
            login = replace(login, key_files=keys, certificate_files=certificates, agent="", agent_identities=())
        if entry.certificate_file:
            login = replace(login, certificate_files=tuple(map(self._whole, entry.certificate_file)))
        return replace(login, agent=agent_socket(entry.agent, self._environ)) if entry.agent else login

    def _whole(self, path: str) -> str:
        return from_folder(path, self._environ)

    def _plain_login(self, entry: Entry) -> Login:
        user = entry.user or self._ssh.look_up(entry.host, current_user(self._environ)).user
        # Who names a key or a password wants that one: each other key would cost one of the server's few tries.
        if entry.key_file or entry.password:
            return Login(user)
        keys = default_keys()
        agent = agent_socket("SSH_AUTH_SOCK", self._environ)
        return Login(user, key_files=keys, certificate_files=tuple(certificates_beside(keys)), agent=agent)

    def _route(self, entry: Entry, seen: tuple[str, ...]) -> Route:
        alias = self._alias(entry)
        if entry.jump is None:
            return self._follow_aliases(alias, seen)
        if not entry.jump:
            return Route(proxy_command=alias.proxy_command)
        first, *rest = entry.jump
        start = self._first_leg(first, seen)
        others = (self._target(self._entries[jump]) if jump in self._entries else self._hop(jump) for jump in rest)
        return Route((*start.hops, *others), start.proxy_command)

    def _first_leg(self, jump: str, seen: tuple[str, ...]) -> Route:
        """The way to a jump host, and that host itself."""
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
        """As OpenSSH does it: only the first of several jump hosts is reached by its own jump hosts."""
        if not alias.jump:
            return Route(proxy_command=alias.proxy_command)
        first, *rest = alias.jump
        start = self._alias_leg(first, seen)
        return Route((*start.hops, *map(self._hop, rest)), start.proxy_command)

    def _hop(self, jump: str) -> Hop:
        alias = self._jump(jump)
        return Hop(alias.host, alias.port, alias.login, alias.host_key_name)

    def _jump(self, jump: str) -> Alias:
        found = _JUMP.fullmatch(jump)
        try:
            user, host, port = found.groups() if found else ("", "-", "")
            return self._resolve(readers.alias(host.strip("[]")), user or "", readers.port(port) if port else None)
        except Fault:
            raise Fault("jump must be user@host:port, a host of ~/.ssh/config or another machine's name") from None

    def _alias(self, entry: Entry) -> Alias:
        return self._resolve(entry.ssh_alias, entry.user, entry.port) if entry.ssh_alias else Alias(entry.host)

    def _resolve(self, alias: str, user: str, port: int | None) -> Alias:
        key = (alias, user, port)
        if key not in self._aliases:
            self._aliases[key] = resolve_alias(alias, self._ssh, self._environ, self._tell, user=user, port=port)
        return self._aliases[key]

    @cached_property
    def _ssh(self) -> SshConfig:
        from .ssh_config import SshConfig

        return SshConfig.read(self._tell)

    def _doubts(self, entry: Entry, machine: Machine) -> Iterable[str]:
        """What looks wrong but may be right by the time someone logs in."""
        for path in (*entry.key_file, *entry.certificate_file):
            if not os.path.isfile(self._whole(path)):
                yield f"the file {quoted(path)} is not there, so logging in with it will fail; correct its path"
            elif path in entry.key_file and path.endswith(".pub"):
                yield f"the file {quoted(path)} holds a public key; name the private key beside it"
        if entry.ssh_alias and not self._alias(entry).known:
            yield f"no Host in ~/.ssh/config fits {quoted(entry.ssh_alias)}, so it is taken for a host name"
        if entry.agent and entry.agent.lower() != "none" and not machine.login.agent:
            yield "agent is wanted, but SSH_AUTH_SOCK is not set here; start an agent or name its socket"


def _refuse_circle(jump: str, seen: tuple[str, ...]) -> None:
    if jump in seen:
        raise Fault("its jump hosts lead round in a circle; take one of them out")
