"""Entering the page: the key once, then a cookie and a token that belong together.

Cookies are shared by all ports of a host, so that a server of another user on this computer may be sent ours. The token
is in the page's local storage, which belongs to one port. Neither lets anybody in without the other.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass

from ..core.secret import Secret

LASTS_S = 30 * 86400
PATH = "/ui"
# Wrong keys are answered at once so often in a minute; then each waits, and no more than so many at a time.
FREE_TRIES, TRIES_IN_S = 5, 60.0
WAIT_S, MOST_WAITING = 1.0, 20
MOST_LEFT = 10_000


@dataclass(frozen=True)
class Pass:
    """What lets a browser in: the value of its cookie, and the token of its page."""

    cookie: str
    token: str


class Door:
    """Makes passes and knows them again: they are made of the key and of a seal.

    The seal is new with each process that holds the listening socket, and a hub that is replaced gets the same one.
    While that process lives, no server of another user can listen at this port and be given the token by the browser.
    """

    def __init__(self, key: Secret, seal: str) -> None:
        self._key = hashlib.sha256(key.reveal().encode()).digest()
        self._seal = seal
        # By its name a cookie belongs to one key: servers with other keys on this host do not overwrite it.
        self.cookie_name = f"page_{self._sign('name')[:12]}"
        self._failures: list[float] = []
        self._waiting = 0
        # Passes that were given back.
        self._left: dict[str, None] = {}

    def is_key(self, given: str) -> bool:
        # Digests, so that the time taken reveals nothing.
        return hmac.compare_digest(hashlib.sha256(given.encode("utf-8", "replace")).digest(), self._key)

    def new_pass(self, now: float | None = None) -> Pass:
        until = int((time.time() if now is None else now) + LASTS_S)
        body = f"{until}.{secrets.token_hex(16)}"
        return Pass(f"{body}.{self._sign('cookie', body)}", self._sign("token", body))

    def knows(self, cookie: str, token: str) -> bool:
        """Whether both are ours, belong together, and are not too old."""
        body, _, signature = cookie.rpartition(".")
        until = body.partition(".")[0]
        is_signed = _same(signature, self._sign("cookie", body)) & _same(token, self._sign("token", body))
        return is_signed and until.isdecimal() and time.time() < int(until) and body not in self._left

    def leave(self, cookie: str) -> None:
        """Let the pass of this cookie in no more, as long as this process lives; the browser forgets it, too."""
        if len(self._left) >= MOST_LEFT:
            self._left.pop(next(iter(self._left)))
        self._left[cookie.rpartition(".")[0]] = None

    def set_cookie(self, value: str) -> str:
        """The header that gives the browser a cookie; an empty one takes it back."""
        age = LASTS_S if value else 0
        return f"{self.cookie_name}={value}; Path={PATH}; Max-Age={age}; HttpOnly; SameSite=Strict"

    async def slow_down(self) -> bool:
        """Called after a wrong key: waits, where there were many. False where too many wait already."""
        now = time.monotonic()
        self._failures = [at for at in self._failures[-100:] if at > now - TRIES_IN_S] + [now]
        if len(self._failures) <= FREE_TRIES:
            return True
        if self._waiting >= MOST_WAITING:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            self._waiting -= 1
        return True

    def _sign(self, *parts: str) -> str:
        text = "\0".join(("remote-sandbox-mcp page", self._seal, *parts))
        return hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _same(given: str, ours: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), ours.encode())
