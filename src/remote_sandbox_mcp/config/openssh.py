"""OpenSSH's own client: asked what a host's name means (ssh -G), told of a machine, and what only it can do there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from ..core.client import Variables
from ..core.sandboxes.machine import Hop, Login, OpenSsh
from ..local.processes.programs import find_chosen
from ..local.processes.variables import home_folder
from .problems import Fault, plain
from .schema import MachineEntry
from .ssh_config import HostSettings

# Names are looked up in it, and it may run commands of the user's own ssh_config (Match exec).
LONGEST_S = 10.0


def find_client() -> str:
    """The path of `ssh`; empty where it is not installed."""
    return find_chosen("ssh")


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


def ask(alias: str, environ: Mapping[str, str], user: str = "", port: int | None = None) -> HostSettings:
    """Ask ssh for a name's settings; `user` and `port` are decided already. Raises Fault. Slow: call it in a thread."""
    options = [*(("-l", user) if user else ()), *(("-p", str(port)) if port else ())]
    status, printed, complaints = run([*first_arguments(), "-G", *options, "--", alias], environ)
    if status:
        raise Fault(f"ssh -G says: {_last_words(complaints)}; correct that in ~/.ssh/config")
    return HostSettings(alias, _settings(printed.decode("utf-8", "replace")))


def run(words: Sequence[str], environ: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Run a program without a terminal, in the home folder, within LONGEST_S. Raises Fault."""
    import signal
    import subprocess

    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=dict(environ),
            cwd=home_folder(), start_new_session=True,
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
    kept = [line for line in lines if "terminating," not in line and "Pseudo-terminal" not in line]
    return plain((kept or lines or ["nothing"])[-1].strip(), 200).rstrip(".")


# Settings of `ssh -G` that asyncssh, or our use of it, does not have: the keyword, the values that ask for nothing.
ONLY_OPENSSH = {
    "PKCS11Provider": ("none",),
    "KnownHostsCommand": ("none",),
    "ProxyUseFdpass": ("no",),
    "HostbasedAuthentication": ("no",),
    "RevokedHostKeys": ("none",),
    "VerifyHostKeyDNS": ("false", "no"),
    "BindAddress": (),
    "BindInterface": (),
    "AddressFamily": ("any",),
}
# A token that is left when those that we know have been replaced.
_TOKEN = re.compile(r"%[A-Za-z]")


def needs_of(said: HostSettings, proxy_command: str, key_files: tuple[str, ...], is_by_program: bool) -> Iterator[str]:
    """List the settings of one host in ssh_config that only OpenSSH's client can follow.

    `proxy_command` has its tokens replaced; `is_by_program`: a Match exec decides about this host.
    """
    for keyword, idle in ONLY_OPENSSH.items():
        if (value := said.first(keyword.lower())) and value.lower() not in idle:
            yield keyword
    if is_by_program:
        yield "Match exec"
    if _TOKEN.search(proxy_command.replace("%%", "")):
        yield "the tokens of its ProxyCommand"
    if any(map(_is_on_token, key_files)):
        yield "a key on a security token"


def _is_on_token(key_file: str) -> bool:
    """Whether a private key is kept by a security token (FIDO2): its public half says so."""
    try:
        with open(f"{key_file.removesuffix('.pub')}.pub", "rb") as file:
            return file.read(3) == b"sk-"
    except OSError:
        return False


def client_settings(
    entry: MachineEntry,
    login: Login,
    hops: tuple[Hop, ...],
    environ: Variables,
    said: HostSettings | None,
    needs: tuple[str, ...],
) -> OpenSsh:
    """The arguments for a machine; `hops` are its jump hosts."""
    is_renamed = bool(entry.ssh_alias and entry.host)
    control_path = said.first("controlpath") if said and not is_renamed else ""
    return OpenSsh(
        program=first_arguments(),
        options=tuple(_options(entry, login, is_renamed)),
        destination=entry.ssh_alias or entry.host,
        is_strict=bool(said) and said.first("stricthostkeychecking") in {"yes", "true"} if said else False,
        needs=needs,
        lacks=tuple(_lacks(login, hops)),
        control_path="" if control_path == "none" or not os.path.isabs(control_path) else control_path,
        kerberos=bool(said) and said.first("gssapiauthentication") == "yes" if said else False,
        environ=environ,
    )


def _options(entry: MachineEntry, login: Login, is_renamed: bool) -> Iterator[str]:
    """List the options of our own configuration for the machine itself; ssh_config decides about the rest."""
    if is_renamed:
        yield from ("-o", f"HostName={entry.host}")
    if entry.user:
        yield from ("-l", entry.user)
    if entry.port:
        yield from ("-p", str(entry.port))
    if entry.key_file:
        yield from ("-o", "IdentitiesOnly=yes")
        yield from (word for file in login.key_files for word in ("-i", file))
    if entry.certificate_file:
        yield from (word for file in login.certificate_files for word in ("-o", f"CertificateFile={quoted(file)}"))
    if entry.agent:
        yield from ("-o", f"IdentityAgent={quoted(login.agent) if login.agent else 'none'}")
    if entry.jump == ():
        yield from ("-o", "ProxyJump=none")


def _lacks(login: Login, hops: tuple[Hop, ...]) -> Iterator[str]:
    for one, of in ((login, ""), *((hop.login, " of a jump host") for hop in hops)):
        if one.password is not None:
            yield f"password{of}"
        if one.key_passphrase is not None:
            yield f"key_passphrase{of}"
        if one.otp is not None or one.otp_seed is not None:
            yield f"otp{of}"


def quoted(path: str) -> str:
    """A path as the value of an option, where blanks separate words and % begins a token."""
    return '"{}"'.format(path.replace("%", "%%"))
