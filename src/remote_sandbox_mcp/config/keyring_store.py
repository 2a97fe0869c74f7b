"""The system's keyring as a store for one text: it must keep it whole, or it is not used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .paths import APP

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

# A keyring that asks for a password may wait for ever where nobody is present.
LIMIT_S = 20.0
# The library advises against backends below: none at all, or a plain-text file.
WORTH_USING = 1

Result = TypeVar("Result")


def is_there() -> bool:
    """Whether there is a keyring that a secret may be given to; it is not asked for anything."""
    return bool(_within_limit(lambda: _keyring().priority >= WORTH_USING))


def store(account: str, text: str) -> bool:
    """Whether the keyring has the text now."""
    return bool(_within_limit(lambda: _store(account, text)))


def fetch(account: str) -> str | None:
    """Read an account's secret from the keyring, "" for none; None where the keyring cannot be asked."""
    return _within_limit(lambda: _keyring().get_password(APP, account) or "")


def delete(account: str) -> bool:
    """Whether the keyring has no such text now."""
    return bool(_within_limit(lambda: _delete(account)))


def _store(account: str, text: str) -> bool:
    keyring = _keyring()
    if keyring.priority < WORTH_USING:
        return False
    keyring.set_password(APP, account, text)
    # Some silently truncate a text that is too long.
    if keyring.get_password(APP, account) == text:
        return True
    keyring.delete_password(APP, account)
    return False


def _delete(account: str) -> bool:
    keyring = _keyring()
    if keyring.get_password(APP, account) is not None:
        keyring.delete_password(APP, account)
    return True


def _keyring() -> KeyringBackend:
    import keyring

    return keyring.get_keyring()


def _within_limit(ask: Callable[[], Result]) -> Result | None:
    """A keyring's answer; None where it fails, in whatever way, or does not answer in time."""
    import threading

    answers: list[Result] = []

    def listen() -> None:
        with contextlib.suppress(Exception):
            answers.append(ask())

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return answers[0] if answers else None
