"""A host of ~/.ssh/config as we use it: what is said of it, with tokens replaced and defaults filled in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.sandboxes.machine import Login
from . import readers
from .problems import Fault, Reporter, quoted
from .readers import Reader

if TYPE_CHECKING:
    from .ssh_config import HostSettings

DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
USUAL_KNOWN_HOSTS = {"known_hosts", "known_hosts2"}
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
# Variables that hold the user's name; the first that is set counts.
USER_VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME")
_YES = {"yes", "true"}


@dataclass(frozen=True)
class Alias:
    """A host as OpenSSH sees it."""

    host: str
    port: int = 22
    login: Login = field(default_factory=Login)
    jump: tuple[str, ...] = ()
    proxy_command: tuple[str, ...] = ()
    host_key_name: str = ""
    known_hosts_files: tuple[str, ...] = ()
    strict_host_keys: bool = False
    connect_timeout_s: float | None = None
    # What only OpenSSH's client can do of what is said.
    needs: tuple[str, ...] = ()


def read_alias(
    found: HostSettings, environ: Mapping[str, str], report: Reporter, *, is_by_program: bool = False
) -> Alias:
    """A host from what is said of it; `is_by_program`: partly by a command that may decide otherwise next time."""
    from .openssh import needs_of

    meaning = _Meaning(found, environ, report)
    command = " ".join(meaning.proxy_command())
    return Alias(
        host=found.first("hostname"),
        port=meaning.port,
        login=meaning.login(),
        jump=meaning.jump(),
        proxy_command=meaning.proxy_command(),
        host_key_name=found.first("hostkeyalias"),
        known_hosts_files=meaning.known_hosts_files(),
        strict_host_keys=found.first("stricthostkeychecking").lower() in _YES,
        connect_timeout_s=meaning.checked("connecttimeout", readers.seconds),
        needs=tuple(needs_of(found, command, meaning.login().key_files, is_by_program)),
    )


class _Meaning:
    """The settings found for one alias, with their tokens replaced."""

    def __init__(self, found: HostSettings, environ: Mapping[str, str], report: Reporter) -> None:
        self._found = found
        self._environ = environ
        self._report = report
        self.port: int = self.checked("port", readers.port) or 22
        local_user, host, user = current_user(environ), found.first("hostname"), found.first("user")
        names = {"h": host, "n": found.alias, "p": str(self.port), "r": user, "u": local_user}
        here = {"d": os.path.expanduser("~"), "i": str(os.getuid()), "l": os.uname().nodename, "%": "%"}
        self._tokens = {**names, **here, "L": here["l"].partition(".")[0]}

    def checked(self, keyword: str, reader: Reader) -> Any:
        """A number; None where there is none, or an invalid one, which is reported."""
        try:
            return reader(word) if (word := self._found.first(keyword)) not in {"", "none"} else None
        except Fault as fault:
            self._report(f"~/.ssh/config: {keyword} of {quoted(self._found.alias)} is passed over: it {fault}.")
            return None

    def login(self) -> Login:
        listed = self._found.all("identityfile")
        keys = [path for path in map(self._path, listed or DEFAULT_KEYS) if os.path.isfile(path)]
        agent = agent_socket(self._text(self._found.first("identityagent")), self._environ)
        limited = self._found.first("identitiesonly").lower() in _YES
        identities = tuple(public_keys(keys)) if limited and agent else ()
        certificates = map(self._path, self._found.all("certificatefile"))
        # A public key in IdentityFile names a key that the agent holds.
        key_files = tuple(path for path in keys if not path.endswith(".pub"))
        return Login(
            user=self._found.first("user"),
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
        """List the configured files with the system's; none where they are the usual ones."""
        words = self._found.first("userknownhostsfile").split()
        files = tuple("/dev/null" if word == "none" else self._path(word) for word in words)
        if {os.path.basename(file) for file in files} <= USUAL_KNOWN_HOSTS and all(map(_is_in_ssh_folder, files)):
            return ()
        # A configured file replaces the user's default one, but not the system's.
        return (*files, *(self._found.first("globalknownhostsfile").split() or SYSTEM_KNOWN_HOSTS))

    def _path(self, text: str) -> str:
        """A relative path starts in the home folder: in the current folder a project could supply the file."""
        return os.path.join(os.path.expanduser("~"), os.path.expanduser(self._text(text)))

    def _text(self, text: str) -> str:
        from .ssh_config import expand

        return expand(text, self._tokens, self._environ)


def _is_in_ssh_folder(file: str) -> bool:
    """Whether it is in the user's .ssh folder, as HOME or as the system's records have it."""
    import pwd

    homes = [os.path.expanduser("~")]
    with contextlib.suppress(KeyError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    return os.path.dirname(file) in {os.path.join(home, ".ssh") for home in homes}


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

    if user := next(filter(None, map(environ.get, USER_VARIABLES)), ""):
        return user
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
