"""Decides which files of this computer a tool's argument may name; the only place that does."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .config import paths
from .config.schema import Configuration, Settings
from .core.errors import BadArgument
from .core.gate import HIDDEN, OWN, PROGRAMS, SYSTEM, Admitted, Closed, Ground, ResolvedPath, admit
from .core.incoming import Sieve
from .core.secret import Secret
from .core.transfer import Place

# Never written for an agent, not even as root. Those that contain a home folder, such as /root, follow its rules.
SYSTEM_FOLDERS = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run/systemd"),
    *("/sbin", "/sys", "/usr", "/var/spool"),
)
MAC_SYSTEM_FOLDERS = ("/Applications", "/Library", "/System", "/opt/homebrew", "/private/etc", "/private/var/at")
# Never read either: they hold keys and passwords.
SYSTEM_KEYS = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/etc/ssl/private", "/proc")
# Hidden entries of the home folder that stay closed through links, too: keys for reading and writing, start-up files
# (which people keep in projects) for writing. Any other link may lead to a disk full of projects.
KEYS = frozenset(
    {".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".pgpass", ".git-credentials", ".password-store"}
)
START_UP = frozenset(
    {
        *(".config", ".local", ".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases"),
        *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".login", ".cshrc", ".tcshrc", ".xinitrc", ".xprofile"),
        *(".gitconfig", ".vim", ".vimrc", ".emacs", ".emacs.d", ".tmux.conf", ".pam_environment"),
        *(".claude", ".codex", ".cursor", ".vscode", ".gemini"),
    }
)
PROGRAMS_OF_HOME = ("bin",)
MAC_FOLDERS_OF_HOME = ("Library",)
# Many small syncs in a row would examine the same folders again and again.
KEPT_S = 1.0


class Gate:
    """Decides on each local path at the moment of its use, by what is there then."""

    def __init__(self, settings: Settings, private: Iterable[str] = ()) -> None:
        self._settings = settings
        self._private = tuple(private)
        self._known: Ground | None = None
        self._known_at = 0.0

    def reconfigure(self, settings: Settings, private: Iterable[str]) -> None:
        self._settings, self._private, self._known = settings, tuple(private), None

    def admit(self, place: Place, writing: bool) -> Admitted:
        """Resolve a place of this computer and decide what of it may be used. Raises BadArgument."""
        from .backends import here

        real = here.locate(place.path)
        if place.free:
            return Admitted(real)
        given = ResolvedPath(os.path.abspath(place.path))
        ground = self.ground()
        admitted = admit(place.path, given, real, ground, writing=writing)
        return replace(admitted, sieve=Sieve(real, ground)) if writing else admitted

    def read(self, path: str, most: int, *, free: bool = False) -> bytes:
        """The beginning of a file. Raises BadArgument, OSError, ValueError."""
        if free:
            with open(path, "rb") as file:
                return file.read(most)
        from .backends import here
        from .backends.outpost.far.tree import Refusal

        admitted = self.admit(Place("", os.path.abspath(path)), False)
        try:
            return here.read_file(admitted.way, most)
        except Refusal as problem:
            raise BadArgument(f"{path} was not read: {problem}") from None

    def ground(self) -> Ground:
        """What decisions are based on. The path itself is examined each time, its surroundings once a second."""
        now = time.monotonic()
        if self._known is None or now > self._known_at + KEPT_S:
            self._known, self._known_at = self._look_around(), now
        return self._known

    def _look_around(self) -> Ground:
        from .backends.here import locate

        homes = _unique(locate(path) for path in _homes())
        roots = _unique(map(locate, map(os.path.expanduser, self._settings.allowed_roots)))
        allowed = [os.path.abspath(os.path.expanduser(path)) for path in self._settings.allow_hidden]
        # Both as written and resolved: a link in the home folder is closed itself.
        named = _unique((*roots, *map(ResolvedPath, allowed), *map(locate, allowed)))
        system = [closed for closed in _system() if all(home.depth_of(closed.place) is None for home in homes)]
        return Ground(homes, (*self._own(), *_hidden(homes), *_programs(homes), *system), named, roots)

    def _own(self) -> Iterator[Closed]:
        from .backends.here import locate

        config = paths.config_file()
        for path in (str(paths.state_path()), str(config.parent), *self._private):
            yield Closed(locate(path), OWN, reading=True, ever=True)


def private_files(configuration: Configuration) -> tuple[str, ...]:
    """The files that this configuration is read from, and the keys, secrets and programs that it names."""
    settings = configuration.settings
    sources = [where for where in configuration.sources.values() if os.path.isabs(where)]
    # A hook's argument may be a script that its program runs.
    hooks = [word for hook in settings.notify.hooks.values() for word in hook.command]
    # Folders may be arguments, too: a workspace, which is there to be synced.
    words = [word for place in configuration.commands for word in place.command]
    commands = [word for word in words if os.path.isfile(os.path.expanduser(word))]
    secrets: list[Secret | None] = [settings.platform.api_key, settings.http.api_key]
    # A home folder, or the root, is where projects are.
    keys = [path for path in configuration.key_files if path not in ("/", os.path.expanduser("~"))]
    for machine in configuration.machines:
        for login in (machine.login, *(hop.login for hop in machine.hops)):
            keys += login.key_files
            secrets += [login.password, login.key_passphrase, login.otp, login.otp_seed]
    kept = [secret.source.partition(":")[2] for secret in secrets if secret and secret.source.startswith("file:")]
    files = [configuration.file, *sources, settings.logging.file, *keys, *kept, *hooks, *commands]
    return tuple(dict.fromkeys(path for path in map(os.path.expanduser, filter(None, files)) if os.path.isabs(path)))


def _homes() -> Iterator[str]:
    """$HOME, and the user's home by the system, where that differs."""
    import pwd

    yield os.path.abspath(os.path.expanduser("~"))
    try:
        found = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return
    if os.path.isabs(found) and os.path.normpath(found) != "/":
        yield found


def _hidden(homes: Sequence[ResolvedPath]) -> Iterator[Closed]:
    """Where hidden entries of a home folder really are: they may be reached by other paths, too."""
    from .backends.here import locate

    for home in homes:
        for entry in _hidden_entries(home):
            if not entry.is_symlink():
                found = entry.stat(follow_symlinks=False)
                ids = (*home.ids, (found.st_dev, found.st_ino)) if home.id else ()
                yield Closed(ResolvedPath(entry.path, ids), HIDDEN, reading=True)
            elif entry.name in KEYS or entry.name in START_UP:
                place = locate(entry.path)
                # A link to a folder that contains the home folder closes nothing.
                if home.depth_of(place) is None:
                    yield Closed(place, HIDDEN, reading=entry.name in KEYS)


def _hidden_entries(home: ResolvedPath) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(home.path) as found:
            return [entry for entry in found if entry.name.startswith(".")]
    except OSError:
        return []


def _programs(homes: Sequence[ResolvedPath]) -> Iterator[Closed]:
    from .backends.here import locate

    mac = MAC_FOLDERS_OF_HOME if sys.platform == "darwin" else ()
    for home in homes:
        for name in (*PROGRAMS_OF_HOME, *mac):
            yield Closed(locate(os.path.join(home.path, name)), PROGRAMS, reading=name in mac)


@functools.cache
def _system() -> tuple[Closed, ...]:
    """Computed once: these folders do not change."""
    from .backends.here import locate

    folders = (*SYSTEM_FOLDERS, *(MAC_SYSTEM_FOLDERS if sys.platform == "darwin" else ()))
    # As named and as resolved: /lib may be a link to /usr/lib.
    closed = [Closed(place, SYSTEM) for path in folders for place in _unique((ResolvedPath(path), locate(path)))]
    return (*closed, *(Closed(locate(path), SYSTEM, reading=True) for path in SYSTEM_KEYS))


def _unique(ways: Iterable[ResolvedPath]) -> tuple[ResolvedPath, ...]:
    return tuple(dict.fromkeys(ways))
