"""Decides which files of this computer a tool's argument may name; the only place that does."""

from __future__ import annotations

import functools
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ... import __file__ as PACKAGE
from ...config import allowances, paths
from ...config.schema import Configuration, Settings
from ...core.errors import BadArgument
from ...core.gate import (
    HIDDEN,
    LED,
    OWN,
    PROGRAM,
    PROGRAMS,
    SYSTEM,
    Admitted,
    Allowed,
    Closed,
    Ground,
    NotAllowed,
    ResolvedPath,
    admit,
    is_allowed,
    is_project,
)
from ...core.sandboxes.secret import Secret
from ...core.sync.incoming import Sieve
from ...core.sync.transfer import Place
from ..session import Session, client_folder, current

# Never written for an agent, not even as root. Those that contain a home folder, such as /root, follow its rules.
SYSTEM_FOLDERS = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/root", "/sbin", "/sys", "/usr"),
    *("/var/cache", "/var/log", "/var/spool"),
)
MAC_SYSTEM_FOLDERS = ("/Applications", "/Library", "/System", "/opt/homebrew", "/private/etc", "/private/var/at")
# Never read either: keys, passwords, sockets and the data of services are there.
SYSTEM_KEYS = (
    *("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/etc/ssl/private", "/proc"),
    *("/run", "/var/run", "/var/lib"),
)
# Hidden entries of the home folder. Links in and behind them lead to keys, which are closed to reading and writing, or
# to start-up files, which people keep in projects: these are closed to writing.
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
# Folders whose entries are home folders.
HOME_PARENTS = ("/home", "/Users")
# Variables that lead to credentials or to what programs read when they start: closed to reading and writing.
LEADING = re.compile(
    r"XDG_(?:\w+_HOME|RUNTIME_DIR)|CLAUDE_CONFIG_DIR|CODEX_HOME|GEMINI_\w*DIR|CURSOR_\w*DIR|GNUPGHOME|KUBECONFIG|"
    r"DOCKER_CONFIG|REGISTRY_AUTH_FILE|AZURE_CONFIG_DIR|CLOUDSDK_CONFIG|AWS_CONFIG_FILE|PGSERVICEFILE|RCLONE_CONFIG|"
    r"KRB5\w+|NETRC|XAUTHORITY|ICEAUTHORITY|SSH_AUTH_SOCK|DBUS_SESSION_BUS_ADDRESS|HISTFILE|\w+_HISTORY(?:_?FILE)?|"
    r"BASH_ENV|ENV|ZDOTDIR|INPUTRC|PYTHONSTARTUP|GIT_CONFIG\w*|(?:NPM|npm)_(?:CONFIG|config)_\w*config|PIP_CONFIG_FILE"
)
SECRETIVE = re.compile(r"CREDENTIAL|SECRET|TOKEN(?!IZ)|PASSWORD|PASSWD|PASSFILE|KEYTAB|KEY_?FILE|PRIVATE_?KEY")
# Variables that name folders of programs and of their libraries: closed to writing.
RUNNING = re.compile(
    r"PATH|VIRTUAL_ENV|CONDA_PREFIX|MAMBA_ROOT_PREFIX|PYENV_ROOT|PYTHONUSERBASE|CARGO_HOME|RUSTUP_HOME|GOBIN|PNPM_HOME|"
    r"BUN_INSTALL|DENO_INSTALL|NVM_DIR|VOLTA_HOME|SDKMAN_DIR|HOMEBREW_PREFIX|LD_LIBRARY_PATH"
)
# Many small syncs in a row would examine the same folders again and again.
KEPT_S = 1.0
MOST_KEPT = 16


class Gate:
    """Decides on each local path at the moment of its use, by what is there then and by who asks."""

    def __init__(self, settings: Settings, private: Iterable[str] = ()) -> None:
        self._settings = settings
        self._private = tuple(private)
        self._cache: dict[object, tuple[float, Ground]] = {}

    def reconfigure(self, settings: Settings, private: Iterable[str]) -> None:
        self._settings, self._private = settings, tuple(private)
        self._cache.clear()

    def admit(self, place: Place, writing: bool) -> Admitted:
        """Resolve a place of this computer and decide what of it may be used. Raises BadArgument, NotAllowed."""
        from ...backends import here

        real = here.locate(place.path)
        if place.free:
            return Admitted(real)
        given = ResolvedPath(os.path.abspath(place.path))
        ground = self.ground(place.root)
        admitted = admit(place.path, given, real, ground, writing=writing)
        return replace(admitted, sieve=Sieve(real, ground)) if writing else admitted

    def rooted(self, place: Place, *, writing: bool) -> Place:
        """A place that stays allowed in a process that does not know the session which ordered it."""
        if place.sandbox or place.free:
            return place
        from ...backends import here

        real = here.locate(place.path)
        usable = (it for it in self.ground(place.root).allowed if it.writing or not writing)
        root = next((it.place.path for it in usable if real.exact_depth_of(it.place) is not None), "")
        return replace(place, root=root)

    def read(self, path: str, most: int, *, free: bool = False) -> bytes:
        """The beginning of a file. Raises BadArgument, OSError, ValueError."""
        if free:
            with open(path, "rb") as file:
                return file.read(most)
        from ...backends import here
        from ...far.lane.tree import Refusal

        admitted = self.admit(Place("", os.path.abspath(path)), False)
        try:
            return here.read_file(admitted.way, most)
        except Refusal as problem:
            raise BadArgument(f"{path} was not read: {problem}") from None

    def would_allow(self, problem: NotAllowed) -> bool:
        """Whether a path that was refused is allowed by now."""
        from ...backends import here

        return is_allowed(here.locate(problem.path), self.ground(), writing=problem.writing)

    def ground(self, root: str = "") -> Ground:
        """Return the basis of decisions. The path itself is examined each time, its surroundings once a second."""
        from ...backends.here import locate

        session, now = current(), time.monotonic()
        key = (_folder_of(session), session.roots, id(session.environ))
        found_at, found = self._cache.get(key, (-KEPT_S, None))
        if found is None or now > found_at + KEPT_S:
            if len(self._cache) >= MOST_KEPT:
                self._cache.clear()
            found = self._survey(session)
            self._cache[key] = now, found
        ours = (it for it in allowances.allowances() if it.session in ("", session.name))
        given = [(it.path, it.writing) for it in ours] + ([(root, True)] if root else [])
        # Not the target of a link that was put there since.
        more = [Allowed(place, writing) for path, writing in given if (place := locate(path)).path == path]
        return replace(found, allowed=(*found.allowed, *more)) if more else found

    def _survey(self, session: Session) -> Ground:
        from ...backends.here import locate

        settings = self._settings
        # $HOME, and the user's home by the system, where that differs.
        homes = _unique(map(locate, filter(None, (os.path.abspath(os.path.expanduser("~")), _account_home()))))
        roots = _unique(map(locate, map(os.path.expanduser, settings.allowed_roots)))
        read_only = _unique(map(locate, map(os.path.expanduser, settings.allowed_roots_read)))
        hidden = [os.path.abspath(os.path.expanduser(path)) for path in settings.allow_hidden]
        # Both as written and resolved: a link in the home folder is closed itself.
        named = _unique((*roots, *read_only, *map(ResolvedPath, hidden), *map(locate, hidden)))
        system = [closed for closed in _system() if all(home.depth_of(closed.place) is None for home in homes)]
        ground = Ground(homes, tuple(system), named, home_parents=_unique(map(locate, _home_parents())))
        projects = [
            Allowed(place)
            for place in _unique(map(locate, filter(None, (_folder_of(session), *session.roots))))
            if is_project(place, ground) and not _is_shared(place.path)
        ]
        led = _led((os.environ, session.environ), homes, projects)
        # The first that holds a path is the one that is named: a Python of the system is a part of the system.
        closed = (*self._own(), *_hidden(homes), *system, *_programs(homes), *led)
        # What the operator names in a hidden place is to be used, too.
        allowed = (*map(Allowed, (*roots, *_unique(map(locate, hidden)))), *(Allowed(it, False) for it in read_only))
        return replace(ground, closed=closed, allowed=(*projects, *allowed))

    def _own(self) -> Iterator[Closed]:
        from ...backends.here import locate

        config = paths.config_file()
        for path in (str(paths.state_path()), str(config.parent), *self._private):
            yield Closed(locate(path), OWN, reading=True, ever=True)


def private_files(configuration: Configuration) -> tuple[str, ...]:
    """The files that this configuration is read from, and the extensions, keys, secrets and programs that it names."""
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
    files = [configuration.file, *sources, *dict(settings.extensions), settings.logging.file]
    files += [*keys, *kept, *hooks, *commands]
    return tuple(dict.fromkeys(path for path in map(os.path.expanduser, filter(None, files)) if os.path.isabs(path)))


def _account_home() -> str:
    """The user's home by the system; empty where it is none."""
    import pwd

    try:
        found = os.path.normpath(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return ""
    return found if os.path.isabs(found) and found != "/" else ""


def _home_parents() -> Iterator[str]:
    """Folders of home folders, that of the user's own by the system among them."""
    yield from HOME_PARENTS
    if (above := os.path.dirname(_account_home())) not in ("", "/"):
        yield above


def _folder_of(session: Session) -> str:
    """The folder in which the client started us; a server over HTTP was not started by its clients."""
    return "" if session.is_over_http else client_folder()


def _is_shared(path: str) -> bool:
    """Whether everybody on this computer may put files into a folder, as in /tmp."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return bool(mode & stat.S_ISVTX and mode & stat.S_IWOTH)


def _led(
    variables: Sequence[Mapping[str, str]], homes: Sequence[ResolvedPath], projects: Sequence[Allowed]
) -> Iterator[Closed]:
    """Places that variables lead to: of credentials and start-up files, and of programs."""
    from ...backends.here import locate

    found = {(path, name) for each in variables for name, value in each.items() for path in _paths_in(name, value)}
    for path, name in sorted(found):
        place, is_program = locate(path), RUNNING.fullmatch(name) is not None
        if not place.names or any(home.depth_of(place) is not None for home in homes):
            continue
        # An environment in the project's own folder closes what it keeps there, not the project.
        if is_program and name != "PATH" and any(it.place.depth_of(place) is not None for it in projects):
            place = place.below("bin")
        yield Closed(place, PROGRAMS if is_program else LED, reading=not is_program)


def _paths_in(name: str, value: str) -> Iterator[str]:
    """The whole paths that a variable names: one, or several with ":" between, or behind a word such as FILE:."""
    if not RUNNING.fullmatch(name) and not LEADING.fullmatch(name) and not SECRETIVE.search(name):
        return
    for part in re.split(r"[:=,;]", value):
        if os.path.isabs(path := os.path.expanduser(part)):
            yield os.path.normpath(path)


def _hidden(homes: Sequence[ResolvedPath]) -> Iterator[Closed]:
    """Return where hidden entries of a home folder really are: they may be reached by other paths, too."""
    for home in homes:
        for entry in _entries(home.path):
            if not entry.name.startswith("."):
                continue
            if entry.is_symlink():
                yield from _behind(entry, home, is_key=entry.name in KEYS)
                continue
            found = entry.stat(follow_symlinks=False)
            ids = (*home.ids, (found.st_dev, found.st_ino)) if home.id else ()
            yield Closed(ResolvedPath(entry.path, ids), HIDDEN, reading=True)
            if entry.name in KEYS or entry.name in START_UP:
                links = (inner for inner in _entries(entry.path) if inner.is_symlink())
                yield from (it for inner in links for it in _behind(inner, home, is_key=entry.name in KEYS))


def _behind(link: os.DirEntry[str], home: ResolvedPath, *, is_key: bool) -> Iterator[Closed]:
    """Return where a hidden link leads. One to a folder that contains the home folder closes nothing."""
    from ...backends.here import locate

    place = locate(link.path)
    if home.depth_of(place) is None:
        yield Closed(place, LED, reading=is_key)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _programs(homes: Sequence[ResolvedPath]) -> Iterator[Closed]:
    """Folders of programs that run under the user's name: of the home folder, and of this very program."""
    from ...backends.here import locate

    mac = MAC_FOLDERS_OF_HOME if sys.platform == "darwin" else ()
    for home in homes:
        for name in (*PROGRAMS_OF_HOME, *mac):
            yield Closed(locate(os.path.join(home.path, name)), PROGRAMS, reading=name in mac)
    package = os.path.dirname(os.path.abspath(PACKAGE))
    for path in (sys.prefix, sys.base_prefix, os.path.dirname(package)):
        place = locate(path)
        if place.names and all(home.depth_of(place) is None for home in homes):
            yield Closed(place, PROGRAM)


@functools.cache
def _system() -> tuple[Closed, ...]:
    """Computed once: these folders do not change."""
    from ...backends.here import locate

    folders = (*SYSTEM_FOLDERS, *(MAC_SYSTEM_FOLDERS if sys.platform == "darwin" else ()))
    # As named and as resolved: /lib may be a link to /usr/lib.
    closed = [Closed(place, SYSTEM) for path in folders for place in _unique((ResolvedPath(path), locate(path)))]
    return (*closed, *(Closed(locate(path), SYSTEM, reading=True) for path in SYSTEM_KEYS))


def _unique(ways: Iterable[ResolvedPath]) -> tuple[ResolvedPath, ...]:
    return tuple(dict.fromkeys(ways))
