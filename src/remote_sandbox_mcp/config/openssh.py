"""What OpenSSH's own client has to be told of a machine, and what only it can do there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ..core.client import Variables
from ..core.machine import Hop, Login, OpenSsh
from .schema import Entry
from .ssh_client import first_arguments
from .ssh_config import Said

# Settings of `ssh -G` that asyncssh, or our use of it, does not have: the keyword, the values that ask for nothing.
ONLY_OPENSSH = {
    "pkcs11provider": ("none",),
    "knownhostscommand": ("none",),
    "proxyusefdpass": ("no",),
    "hostbasedauthentication": ("no",),
    "revokedhostkeys": ("none",),
    "verifyhostkeydns": ("false", "no"),
    "bindaddress": (),
    "bindinterface": (),
    "addressfamily": ("any",),
}
WRITTEN = {
    "pkcs11provider": "PKCS11Provider",
    "knownhostscommand": "KnownHostsCommand",
    "proxyusefdpass": "ProxyUseFdpass",
    "hostbasedauthentication": "HostbasedAuthentication",
    "revokedhostkeys": "RevokedHostKeys",
    "verifyhostkeydns": "VerifyHostKeyDNS",
    "bindaddress": "BindAddress",
    "bindinterface": "BindInterface",
    "addressfamily": "AddressFamily",
}
# A token that is left when those that we know have been replaced.
_TOKEN = re.compile(r"%[A-Za-z]")


def needs_of(said: Said, proxy_command: str, key_files: tuple[str, ...], is_by_program: bool) -> Iterator[str]:
    """What ssh_config asks for of one host that only OpenSSH's client can do.

    `proxy_command` has its tokens replaced; `is_by_program`: a Match exec decides about this host.
    """
    for keyword, idle in ONLY_OPENSSH.items():
        if (value := said.first(keyword)) and value.lower() not in idle:
            yield WRITTEN[keyword]
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


def tell_client(
    entry: Entry, login: Login, hops: tuple[Hop, ...], environ: Variables, said: Said | None, needs: tuple[str, ...]
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


def _options(entry: Entry, login: Login, is_renamed: bool) -> Iterator[str]:
    """What our own configuration says of the machine itself; the rest is for ssh_config to say."""
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
