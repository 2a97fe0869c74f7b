"""Asks OpenSSH's own client what a host's name means: `ssh -G`, which connects to nothing."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence

from ..core.secret import Secret
from .problems import Fault, plain
from .ssh_config import Said

# Names are looked up in it, and it may run commands of the user's own ssh_config (Match exec).
LONGEST_S = 10.0
# What ssh_config may depend on besides the variables that it names, and the programs that it runs need in any case.
VARIABLES = (
    *("HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"),
    *("SSH_AUTH_SOCK", "KRB5CCNAME", "KRB5_CONFIG"),
)


def find_client() -> str:
    """The path of `ssh`; empty where it is not installed."""
    return _find(os.environ.get("PATH", os.defpath))


@functools.cache
def _find(path: str) -> str:
    import shutil

    # A relative folder in PATH would be looked up in whatever project the server is started in.
    return shutil.which("ssh", path=os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep)))) or ""


def first_arguments() -> tuple[str, ...]:
    """The program and the file that it reads.

    OpenSSH takes the home folder from the system's records. Where HOME names another one, as in a container or under
    sudo, all of ours is in that one, and so is the file; then it counts alone.
    """
    import pwd

    home = os.path.expanduser("~")
    try:
        recorded = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        recorded = home
    if os.path.realpath(recorded) == os.path.realpath(home):
        return (find_client(),)
    file = os.path.join(home, ".ssh", "config")
    return (find_client(), "-F", file if os.path.isfile(file) else "none")


def child_variables(environ: Mapping[str, str], secrets: Iterable[Secret | None] = ()) -> dict[str, str]:
    """What `ssh` and its helpers get of a client's variables: all but those that configure us, or hold a secret."""
    from .commands import without_secrets

    usual = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    return {**usual, **without_secrets(environ, secrets)}


def ask(alias: str, environ: Mapping[str, str], user: str = "", port: int | None = None) -> Said:
    """What a name means; `user` and `port` are decided already. Raises Fault. Takes some milliseconds: in a thread."""
    options = [*(("-l", user) if user else ()), *(("-p", str(port)) if port else ())]
    status, printed, complaints = run([*first_arguments(), "-G", *options, "--", alias], environ)
    if status:
        raise Fault(f"ssh -G says: {_last_words(complaints)}; correct that in ~/.ssh/config")
    return Said(alias, _settings(printed.decode("utf-8", "replace")))


def run(words: Sequence[str], environ: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Run a program without a terminal, in the home folder, within LONGEST_S. Raises Fault."""
    import signal
    import subprocess

    pipe, home = subprocess.PIPE, os.path.expanduser("~")
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=child_variables(environ),
            cwd=home if os.path.isdir(home) else "/", start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as problem:
        raise Fault(f"ssh cannot be started ({getattr(problem, 'strerror', '') or 'bad argument'})") from None
    with process:
        try:
            printed, complaints = process.communicate(timeout=LONGEST_S)
            return process.returncode, printed, complaints
        except subprocess.TimeoutExpired:
            # With all that it has started: it may wait for a command of ssh_config.
            os.killpg(process.pid, signal.SIGKILL)
            raise Fault(
                f"ssh did not end within {LONGEST_S:g} s; look in ~/.ssh/config for what it waits for"
            ) from None


def _settings(text: str) -> dict[str, tuple[str, ...]]:
    values: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        values[keyword.lower()] = (*values.get(keyword.lower(), ()), value)
    return values


def _last_words(said: bytes) -> str:
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    # The last line only sums up how many errors there were.
    told = [line for line in lines if "terminating," not in line and "Pseudo-terminal" not in line]
    return plain((told or lines or ["nothing"])[-1].strip(), 200).rstrip(".")
