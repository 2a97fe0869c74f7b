"""Secrets kept elsewhere (env:, file:, command:, keyring:), read on first use; and keys that we make ourselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..core.client import Variables
from ..core.errors import ConfigError
from ..core.sandboxes.secret import Secret
from ..local import extras
from ..local.processes.process import module_words
from ..local.processes.programs import by_path
from ..local.processes.variables import home_folder
from .paths import from_folder
from .problems import Reporter, plain

LITERAL = "literal:"
COMMAND_LIMIT_S = 20.0
# Variables that select a keyring; if a client's differ from ours, a separate process asks the keyring.
KEYRING_VARIABLES = ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DISPLAY", "PYTHON_KEYRING_BACKEND")
KEY_BYTES = 32


@dataclass(frozen=True)
class Reference:
    """Place of a secret. Calling it fetches the secret; a ConfigError names only the place.

    `decisive` holds the variables that decide which secret is found there: two clients whose values differ do not have
    the same secret, although its place has the same name.
    """

    kind: str
    rest: str = field(repr=False)
    environ: Mapping[str, str] = field(repr=False, compare=False)
    decisive: object = field(default=None, repr=False)

    def __call__(self) -> str:
        return _KINDS[self.kind].fetch(self)

    @property
    def place(self) -> str:
        """The reference in a form that may be shown: of a command only the program, because arguments may be secret."""
        shown = "".join(_words(self.rest)[:1]) if self.kind == "command" else self.rest
        return f"{self.kind}:{plain(shown, 200)}"


def resolve_secret(text: str, environ: Mapping[str, str] = os.environ) -> Secret:
    """A Secret from what the operator wrote: a reference, `literal:...`, or the secret itself. Fetches nothing."""
    if reference := _reference(text, environ):
        return Secret.later(reference, reference.place)
    return Secret(text.removeprefix(LITERAL))


def doubt(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Describe a visible fault of a reference, without fetching it, as the end of a sentence; else ''."""
    reference = _reference(text, environ)
    return _KINDS[reference.kind].doubt(reference) if reference else ""


def report_doubt(where: str, key: str, text: str, environ: Mapping[str, str], report: Reporter) -> None:
    if why := doubt(text, environ):
        report(f"{where}: {key} is kept elsewhere, and {why}.")


def _reference(text: str, environ: Mapping[str, str]) -> Reference | None:
    kind, colon, rest = text.partition(":")
    return Reference(kind, rest, environ, _KINDS[kind].decisive(rest, environ)) if colon and kind in _KINDS else None


def _keyring_variables(environ: Mapping[str, str]) -> tuple[tuple[str, str | None], ...]:
    return tuple((name, environ.get(name)) for name in KEYRING_VARIABLES)


def _from_env(reference: Reference) -> str:
    if not (value := reference.environ.get(reference.rest, "")):
        raise ConfigError(f"unable to get a secret from {reference.place}: {_doubt_env(reference)}.")
    return value


def _doubt_env(reference: Reference) -> str:
    return "" if reference.environ.get(reference.rest) else "that environment variable is not set: set it"


def _from_file(reference: Reference) -> str:
    try:
        with open(from_folder(reference.rest, reference.environ), encoding="utf-8") as file:
            if text := file.read().rstrip("\r\n"):
                return text
        reason = "it is empty"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
    raise ConfigError(f"unable to get a secret from {reference.place}: {reason}; correct the path or the file.")


def _doubt_file(reference: Reference) -> str:
    path = from_folder(reference.rest, reference.environ)
    if not os.path.exists(path):
        return "that file cannot be found: correct the path"
    if readable_by_others(path):
        return f"other users may read that file: run chmod 600 {plain(reference.rest, 200)}"
    return ""


def readable_by_others(path: str) -> bool:
    """Whether users other than the owner may read a file; False if it does not exist."""
    try:
        return bool(os.stat(os.path.expanduser(path)).st_mode & 0o044)
    except (OSError, ValueError):
        return False


def _from_command(reference: Reference) -> str:
    if why := _doubt_command(reference):
        raise ConfigError(f"unable to get a secret from {reference.place}: {why}.")
    words = _words(reference.rest)
    line = _output(words, reference.place, reference.environ).partition("\n")[0].rstrip("\r")
    if not line:
        raise ConfigError(
            f"unable to get a secret from {reference.place}: it printed nothing; run it by hand to see why."
        )
    return line


def _doubt_command(reference: Reference) -> str:
    if not (words := _words(reference.rest)):
        return "its words cannot be told apart: check its quotes"
    # A relative path would be looked up in whatever project the server is started in.
    is_relative = "/" in words[0] and not os.path.isabs(words[0])
    return "its program must be named by its whole path, or by a name that is in PATH" if is_relative else ""


def _words(line: str) -> list[str]:
    import shlex

    try:
        words = shlex.split(line)
    except ValueError:
        return []
    return [os.path.expanduser(words[0]), *words[1:]] if words else []


def _output(words: list[str], place: str, environ: Mapping[str, str]) -> str:
    import subprocess

    failed = f"unable to get a secret from {place}:"
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        # Our standard streams may carry MCP, so the command gets neither. It runs in the home folder, because many
        # programs read settings from the current folder, which belongs to a project.
        process = subprocess.Popen(
            by_path(words, environ), stdin=nothing, stdout=pipe, stderr=nothing, start_new_session=True,
            env=dict(environ), cwd=home_folder(),
        )  # fmt: skip
    except (OSError, ValueError):
        raise ConfigError(f"{failed} the program cannot be started; check that it is installed.") from None
    with process:
        try:
            output, _ = process.communicate(timeout=COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise ConfigError(
                f"{failed} it did not end within {COMMAND_LIMIT_S:g} s; run it by hand to see why."
            ) from None
    if process.returncode:
        raise ConfigError(f"{failed} it ended with status {process.returncode}; run it by hand to see why.")
    return output.decode("utf-8", "replace")


def _from_keyring(reference: Reference) -> str:
    service, _, user = reference.rest.rpartition("/")
    failed = f"unable to get a secret from {reference.place}"
    extras.need("keyring", failed)
    if any(found not in (None, os.environ.get(name)) for name, found in _keyring_variables(reference.environ)):
        # The library selects its keyring once per process, by that process's variables.
        words = [*module_words("keyring"), "get", service, user]
        return _output(words, reference.place, _for_keyring(reference.environ)).partition("\n")[0]
    import keyring
    import keyring.errors

    try:
        found = keyring.get_password(service, user)
    except keyring.errors.KeyringError:
        raise ConfigError(f"{failed}: the keyring is locked or there is none; run: keyring diagnose") from None
    if not found:
        raise ConfigError(f"{failed}: the keyring holds nothing under that name; run: keyring set {service} {user}")
    return found


def _for_keyring(environ: Mapping[str, str]) -> dict[str, str]:
    """The client's variables, but of Python's only the keyring's: what is run is our own Python."""
    own = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    return own | {
        name: it for name, it in environ.items() if name in KEYRING_VARIABLES or not name.startswith("PYTHON")
    }


def _doubt_keyring(reference: Reference) -> str:
    service, _, user = reference.rest.rpartition("/")
    return "" if service and user else "it must read keyring:SERVICE/USER"


class _Kind(NamedTuple):
    """Ways to fetch a secret of one kind, to doubt its place, and to tell what decides about it there."""

    fetch: Callable[[Reference], str]
    doubt: Callable[[Reference], str]
    decisive: Callable[[str, Mapping[str, str]], object]


_KINDS = {
    "env": _Kind(_from_env, _doubt_env, lambda name, environ: environ.get(name)),
    "file": _Kind(_from_file, _doubt_file, from_folder),
    "command": _Kind(_from_command, _doubt_command, lambda _, environ: Variables(environ)),
    "keyring": _Kind(_from_keyring, _doubt_keyring, lambda _, environ: _keyring_variables(environ)),
}


def key_in(file: Path) -> str:
    """The key in a file, created if missing; if several processes create it at once, one wins.

    Raises ConfigError.
    """
    try:
        if not file.exists():
            _make(file)
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"{file} may be read by other users, so its key is no secret; delete it, for a new one.")
        key = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not plain text"
        raise ConfigError(f"unable to keep a key in {file}: {why}.") from error
    if not key:
        raise ConfigError(f"{file} holds no key; delete it, for a new one.")
    return key


def _make(file: Path) -> None:
    import secrets

    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="ascii") as opened:
            opened.write(f"{secrets.token_urlsafe(KEY_BYTES)}\n")
        # Written elsewhere first and then linked: no process sees half a key, and the first one wins.
        with suppress(FileExistsError):
            os.link(fresh, file)
    finally:
        fresh.unlink(missing_ok=True)
