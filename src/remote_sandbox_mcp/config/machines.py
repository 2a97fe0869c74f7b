"""Machines from configuration entries: OpenSSH aliases resolved, defaults filled in, jump hosts ordered."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..core.client import Variables
from ..core.command import Environment
from ..core.machine import Engine, Hop, Login, Machine
from . import readers
from .paths import from_folder
from .problems import Fault, Tell, quoted
from .readers import Reader
from .schema import Entry, Settings

if TYPE_CHECKING:
    from .ssh_config import Lookup, SshConfig


_JUMP = re.compile(r"(?:ssh://)?(?:([^@]+)@)?(\[[^\]]+\]|[^:@\[\]/]+)(?::(\d+))?/?")
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
# Variables that hold the user's name; the first that is set counts.
USER_VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME")
_YES = {"yes", "true"}


@dataclass(frozen=True)
class Route:
    """How a machine is reached: a program in place of the first connection, and the jump hosts."""

    hops: tuple[Hop, ...] = ()
    proxy_command: tuple[str, ...] = ()


class Builder:
    """Makes machines from entries, which may name each other as jump hosts. Reads ~/.ssh/config only if needed."""

    def __init__(self, entries: Iterable[Entry], settings: Settings, environ: Mapping[str, str], tell: Tell) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._settings = settings
        self._environ = environ
        self._tell = tell
        self._aliases: dict[tuple[str, str, int | None], Alias] = {}

    def machines(self) -> tuple[Machine, ...]:
        """All machines that can be made; problems with the others are reported."""
        return tuple(machine for entry in self._entries.values() if (machine := self._attempt(entry)))

    @property
    def read_from(self) -> tuple[str, ...]:
        """Files that influenced the result, once the machines are made."""
        # Keys that OpenSSH tries by default may appear and disappear.
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
        # The stricter setting wins, unless the entry itself decides.
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
            sudo=entry.sudo,
            engine=engine_of(entry),
        )

    def _target(self, entry: Entry) -> Hop:
        """Address and login of an entry, as a machine or as a jump host of another."""
        alias = self._alias(entry)
        host, port = entry.host or alias.host, entry.port or alias.port
        return Hop(host, port, self._login(entry, alias), alias.host_key_name)

    def _login(self, entry: Entry, alias: Alias) -> Login:
        login = replace(
            # An alias brings the login of ~/.ssh/config; a bare host gets OpenSSH's defaults.
            alias.login if entry.ssh_alias else self._plain_login(entry),
            password=entry.password,
            key_passphrase=entry.key_passphrase,
            otp=entry.otp,
            otp_seed=entry.otp_seed,
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
        # A bare host may still match a Host block that sets only the user.
        user = entry.user or self._ssh.look_up(entry.host, current_user(self._environ)).user
        # If a key or password is named, offer only that: each further key would use up one of the server's few
        # attempts.
        if entry.key_file or entry.password:
            return Login(user)
        keys = default_keys()
        agent = agent_socket("SSH_AUTH_SOCK", self._environ)
        return Login(user, key_files=keys, certificate_files=tuple(certificates_beside(keys)), agent=agent)

    def _route(self, entry: Entry, seen: tuple[str, ...]) -> Route:
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
        """As in OpenSSH: only the first of several jump hosts is reached through its own jump hosts."""
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
            # "-" is never a valid host, so that a malformed jump is refused below.
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
        """What looks wrong now but may be right by the time of the login."""
        for path in (*entry.key_file, *entry.certificate_file):
            if not os.path.isfile(self._whole(path)):
                yield f"the file {quoted(path)} is not there, so logging in with it will fail; correct its path"
            elif path in entry.key_file and path.endswith(".pub"):
                yield f"the file {quoted(path)} holds a public key; name the private key beside it"
        if entry.docker is not None and entry.podman is not None:
            yield "docker and podman are both allowed, and only docker is used; take one of them out"
        if entry.ssh_alias and not self._alias(entry).known:
            yield f"no Host in ~/.ssh/config fits {quoted(entry.ssh_alias)}, so it is taken for a host name"
        if entry.agent and entry.agent.lower() != "none" and not machine.login.agent:
            yield "agent is wanted, but SSH_AUTH_SOCK is not set here; start an agent or name its socket"


def engine_of(entry: Entry) -> Engine | None:
    """The engine that makes sandboxes on a machine, if one may."""
    for tool, words in (("docker", entry.docker), ("podman", entry.podman)):
        if words is not None:
            return Engine(tool, words or (tool,))
    return None


def _refuse_circle(jump: str, seen: tuple[str, ...]) -> None:
    if jump in seen:
        raise Fault("its jump hosts lead round in a circle; take one of them out")


@dataclass(frozen=True)
class Alias:
    """A host as OpenSSH sees it. `known` is False where no block of the files was meant for it."""

    host: str
    port: int = 22
    login: Login = field(default_factory=Login)
    jump: tuple[str, ...] = ()
    proxy_command: tuple[str, ...] = ()
    host_key_name: str = ""
    known_hosts_files: tuple[str, ...] = ()
    strict_host_keys: bool = False
    connect_timeout_s: float | None = None
    known: bool = False


def resolve_alias(
    alias: str, config: SshConfig, environ: Mapping[str, str], tell: Tell, *, user: str = "", port: int | None = None
) -> Alias:
    """Look up an alias; `user` and `port` are already decided by the caller."""
    found = config.look_up(alias, current_user(environ), user)
    meaning = _Meaning(found, environ, tell, port)
    return Alias(
        host=found.host,
        port=meaning.port,
        login=meaning.login(),
        jump=meaning.jump(),
        proxy_command=meaning.proxy_command(),
        host_key_name=found.first("hostkeyalias"),
        known_hosts_files=meaning.known_hosts_files(),
        strict_host_keys=found.first("stricthostkeychecking").lower() in _YES,
        connect_timeout_s=meaning.checked("connecttimeout", readers.seconds),
        known=found.known,
    )


class _Meaning:
    """The settings found for one alias, with their tokens replaced."""

    def __init__(self, found: Lookup, environ: Mapping[str, str], tell: Tell, port: int | None) -> None:
        self._found = found
        self._environ = environ
        self._tell = tell
        self.port: int = port or self.checked("port", readers.port) or 22
        names = {"h": found.host, "n": found.alias, "p": str(self.port), "r": found.user, "u": found.local_user}
        here = {"d": os.path.expanduser("~"), "i": str(os.getuid()), "l": os.uname().nodename, "%": "%"}
        self._tokens = {**names, **here, "L": here["l"].partition(".")[0]}

    def checked(self, keyword: str, reader: Reader) -> Any:
        """A number; None where there is none, or an invalid one, which is reported."""
        try:
            return reader(word) if (word := self._found.first(keyword)) not in {"", "none"} else None
        except Fault as fault:
            self._tell(f"{self._found.single[keyword].where}: {keyword} is passed over: it {fault}.")
            return None

    def login(self) -> Login:
        listed = self._found.several.get("identityfile")
        keys = [path for path in map(self._path, listed or DEFAULT_KEYS) if os.path.isfile(path)]
        agent = agent_socket(self._text(self._found.first("identityagent")), self._environ)
        limited = self._found.first("identitiesonly").lower() in _YES
        identities = tuple(public_keys(keys)) if limited and agent else ()
        certificates = map(self._path, self._found.several.get("certificatefile", ()))
        # A public key in IdentityFile names a key that the agent holds.
        key_files = tuple(path for path in keys if not path.endswith(".pub"))
        return Login(
            user=self._found.user,
            key_files=key_files,
            certificate_files=(*filter(os.path.isfile, certificates), *certificates_beside(key_files)),
            # IdentitiesOnly without usable identities must not offer every key of the agent.
            agent="" if limited and not identities else agent,
            agent_identities=identities,
        )

    def jump(self) -> tuple[str, ...]:
        """The jump hosts; an alias that names itself (`Host *` often does) has none."""
        jump = readers.jump(self._text(self._found.first("proxyjump")))
        return () if jump[:1] == (self._found.alias,) else jump

    def proxy_command(self) -> tuple[str, ...]:
        command = self._text(self._found.first("proxycommand"))
        # OpenSSH runs it with a shell, too; exec, so that ending the process ends the command.
        return ("/bin/sh", "-c", f"exec {command}") if command and command != "none" else ()

    def known_hosts_files(self) -> tuple[str, ...]:
        setting = self._found.single.get("userknownhostsfile")
        files = ("/dev/null" if word == "none" else self._path(word) for word in setting.words) if setting else ()
        # A configured file replaces the user's default one, but not the system's.
        return (*files, *SYSTEM_KNOWN_HOSTS) if setting else ()

    def _path(self, text: str) -> str:
        """A relative path starts in the home folder: in the current folder a project could supply the file."""
        return os.path.join(os.path.expanduser("~"), os.path.expanduser(self._text(text)))

    def _text(self, text: str) -> str:
        from .ssh_config import expand

        return expand(text, self._tokens, self._environ)


def default_keys() -> tuple[str, ...]:
    """The keys that OpenSSH tries by default, if they exist."""
    return tuple(path for path in map(os.path.expanduser, DEFAULT_KEYS) if os.path.isfile(path))


def public_keys(keys: Iterable[str]) -> Iterable[str]:
    """Public key files beside private ones."""
    paths = (path if path.endswith(".pub") else f"{path}.pub" for path in keys)
    return filter(os.path.isfile, paths)


def certificates_beside(keys: Iterable[str]) -> Iterable[str]:
    """Certificates beside keys, which OpenSSH offers without being told."""
    return filter(os.path.isfile, (f"{path}-cert.pub" for path in keys))


def agent_socket(text: str, environ: Mapping[str, str]) -> str:
    """The socket that IdentityAgent means; "" for no agent."""
    if text.lower() == "none":
        return ""
    if text in {"", "SSH_AUTH_SOCK"}:
        return environ.get("SSH_AUTH_SOCK", "")
    return environ.get(text[1:], "") if text.startswith("$") else os.path.expanduser(text)


def current_user(environ: Mapping[str, str]) -> str:
    """The user's name by variables, else by the system; empty where neither has one."""
    import pwd

    if told := next(filter(None, map(environ.get, USER_VARIABLES)), ""):
        return told
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
