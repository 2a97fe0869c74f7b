"""What an OpenSSH alias comes to: where it is, which keys and agent open it, what leads there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.machine import Login
from . import readers
from .problems import Fault, Tell
from .readers import Reader

if TYPE_CHECKING:
    from .ssh_config import Lookup, SshConfig

DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
# As OpenSSH's users know it from their shells; the first that is set counts.
USER_VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME")
_YES = {"yes", "true"}


@dataclass(frozen=True)
class Alias:
    """A host as OpenSSH would see it. `known` is False where no block of the files was meant for it."""

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
    """Look an alias up; `user` and `port` are what the caller has decided already."""
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
        """A number, or None where there is none or it is wrong, which is told."""
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
            agent="" if limited and not identities else agent,
            agent_identities=identities,
        )

    def jump(self) -> tuple[str, ...]:
        """The jump hosts; an alias that names itself (`Host *` often does so) has none."""
        jump = readers.jump(self._text(self._found.first("proxyjump")))
        return () if jump[:1] == (self._found.alias,) else jump

    def proxy_command(self) -> tuple[str, ...]:
        command = self._text(self._found.first("proxycommand"))
        return ("/bin/sh", "-c", f"exec {command}") if command and command != "none" else ()

    def known_hosts_files(self) -> tuple[str, ...]:
        setting = self._found.single.get("userknownhostsfile")
        files = ("/dev/null" if word == "none" else self._path(word) for word in setting.words) if setting else ()
        return (*files, *SYSTEM_KNOWN_HOSTS) if setting else ()

    def _path(self, text: str) -> str:
        """A relative path starts in the home folder: in the current one a project could bring the file along."""
        return os.path.join(os.path.expanduser("~"), os.path.expanduser(self._text(text)))

    def _text(self, text: str) -> str:
        from .ssh_config import expand

        return expand(text, self._tokens, self._environ)


def default_keys() -> tuple[str, ...]:
    """The keys that OpenSSH tries by itself, as far as they are there."""
    return tuple(path for path in map(os.path.expanduser, DEFAULT_KEYS) if os.path.isfile(path))


def public_keys(keys: Iterable[str]) -> Iterable[str]:
    """The public halves that lie beside keys."""
    paths = (path if path.endswith(".pub") else f"{path}.pub" for path in keys)
    return filter(os.path.isfile, paths)


def certificates_beside(keys: Iterable[str]) -> Iterable[str]:
    """OpenSSH offers the certificate that lies beside a key without being told."""
    return filter(os.path.isfile, (f"{path}-cert.pub" for path in keys))


def agent_socket(text: str, environ: Mapping[str, str]) -> str:
    """The socket that IdentityAgent means; "" for no agent."""
    if text.lower() == "none":
        return ""
    if text in {"", "SSH_AUTH_SOCK"}:
        return environ.get("SSH_AUTH_SOCK", "")
    return environ.get(text[1:], "") if text.startswith("$") else os.path.expanduser(text)


def current_user(environ: Mapping[str, str]) -> str:
    """Who runs this, as its variables or else the system says; nothing where nobody can say."""
    import pwd

    if told := next(filter(None, map(environ.get, USER_VARIABLES)), ""):
        return told
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
