"""A keyring in memory, which can be locked, or made to wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import keyring
import keyring.backend
import keyring.errors


class Keyring(keyring.backend.KeyringBackend):
    """A keyring that works, as the library intends its backends to be written."""

    priority = 5

    def __init__(self, longest: int = 1 << 20) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[tuple[str, str], str] = {}
        self.longest = longest
        self.locked = False
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def get_password(self, service: str, username: str) -> str | None:
        self._open()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._open()
        self.kept[service, username] = password[: self.longest]

    def delete_password(self, service: str, username: str) -> None:
        self._open()
        if self.kept.pop((service, username), None) is None:
            raise keyring.errors.PasswordDeleteError(username)

    def _open(self) -> None:
        self.asked.set()
        self.gate.wait()
        if self.locked:
            raise keyring.errors.KeyringLocked("locked")


@contextmanager
def keyring_in_use() -> Iterator[Keyring]:
    """Meanwhile it takes the place of the system's keyring."""
    before, made = keyring.get_keyring(), Keyring()
    keyring.set_keyring(made)
    try:
        yield made
    finally:
        keyring.set_keyring(before)
