"""Machines that ask for a one-time code: a real sshd with PAM and libpam-google-authenticator."""

from __future__ import annotations

import base64
import secrets
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.means import IS_ROOT, require_program
from tests.support.sshd import Fleet, Sshd

_MODULE = "pam_google_authenticator.so"
# The secret is a file of root's in the machine's own folder, so that nothing of a real user is read or written.
_CODE = f"auth required {_MODULE} secret={{folder}}/seed user=root"
_REST = ("account required pam_permit.so", "session required pam_permit.so")
KEY_AND_CODE = (_CODE, *_REST)
PASSWORD_AND_CODE = ("auth required pam_unix.so", _CODE, *_REST)


@dataclass
class Factor:
    """A machine, and the seed that it shares with its user's phone."""

    machine: Sshd
    seed: str = field(default="", repr=False)
    # What was ever right or typed, none of which may be found anywhere.
    codes: list[str] = field(default_factory=list, repr=False)

    def renew(self) -> Factor:
        """Another seed: a code is good once, and the next one of the same seed comes in half a minute."""
        self.seed = base64.b32encode(secrets.token_bytes(20)).decode()
        self.codes = []
        file = self.machine.folder / "seed"
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_text(f'{self.seed}\n" WINDOW_SIZE 3\n" DISALLOW_REUSE\n" TOTP_AUTH\n')
        return self

    def code(self) -> str:
        """The present one, as the phone shows it; computed by another program than ours."""
        words = ["oathtool", "--totp", "--base32", "-"]
        code = subprocess.run(words, input=self.seed, capture_output=True, text=True, check=True).stdout.strip()
        self.codes.append(code)
        return code

    def wrong_code(self) -> str:
        """Six digits that are none of the neighbouring codes."""
        words = ["oathtool", "--totp", "--base32", "-w", "8", "-N", "now - 2 minutes", "-"]
        near = subprocess.run(words, input=self.seed, capture_output=True, text=True, check=True).stdout.split()
        code = next(code for code in (f"{number:06}" for number in range(271_828, 272_828)) if code not in near)
        self.codes.append(code)
        return code

    @property
    def attempts(self) -> int:
        """How many codes were checked and found wrong."""
        return self.machine.log.count("Failed keyboard-interactive/pam")

    @property
    def logins(self) -> int:
        return self.machine.log.count("Accepted keyboard-interactive/pam")

    @property
    def connections(self) -> int:
        return self.machine.log.count("Connection from")


def machine_with_code(fleet: Fleet, **how: Any) -> Factor:
    """After the key, or the password where `auth` says so, it asks for a code; with `is_shown`, one sees it typed."""
    if not IS_ROOT:
        pytest.skip("needs root: a PAM service of its own")
    require_program("oathtool")
    is_password = how.get("auth") == "password"
    methods = "keyboard-interactive" if is_password else "publickey,keyboard-interactive"
    pam: tuple[str, ...] = PASSWORD_AND_CODE if is_password else KEY_AND_CODE
    if how.pop("is_shown", False):
        pam = (*(line.replace(_CODE, f"{_CODE} echo_verification_code") for line in pam),)
    config = (f"AuthenticationMethods {methods}", *how.pop("extra_config", ()))
    return Factor(fleet.machine(extra_config=config, pam=pam, **how)).renew()


def assert_found_nowhere(codes: list[str], folder: Path, said: str) -> None:
    """No code is in what was said, nor in any file below the folder."""
    assert codes
    everything = [said.encode(), *(file.read_bytes() for file in folder.rglob("*") if file.is_file())]
    for code in codes:
        assert not any(code.encode() in each for each in everything)
