"""Entering the page: the key once, then a cookie and a token that belong together.

Cookies are shared by all ports of a host, so that a server of another user on this computer may be sent ours. The token
is in the page's local storage, which belongs to one port. Neither lets anybody in without the other.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...core.sandboxes.secret import Secret
from ...local.waiting import within

log = logging.getLogger(__name__)

LASTS_S = 30 * 86400
PATH = "/ui"
# Wrong keys are answered at once so often in a minute; then each waits, and no more than so many at a time.
FREE_TRIES, TRIES_IN_S = 5, 60.0
WAIT_S, MOST_WAITING = 1.0, 20
MOST_LEFT = 10_000
# A stream looks at the clock so often, which may be set, whether its pass is too old.
POLL_EVERY_S = 60.0


@dataclass(frozen=True)
class BrowserPass:
    """Pass of a browser: the value of its cookie, and the token of its page."""

    cookie: str
    token: str


class LeftPasses:
    """Passes that were given back, also to a hub that this one has replaced: they are kept in a file."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._bodies: dict[str, None] = {}
        if file is not None:
            with suppress(OSError, ValueError):
                self._bodies = dict.fromkeys(file.read_text(encoding="ascii").split()[-MOST_LEFT:])

    def __contains__(self, body: str) -> bool:
        return body in self._bodies

    def add(self, body: str) -> None:
        is_full = len(self._bodies) >= MOST_LEFT
        if is_full:
            self._bodies.pop(next(iter(self._bodies)))
        self._bodies[body] = None
        if self._file is not None:
            self._write(self._file, [*self._bodies] if is_full else [body], os.O_TRUNC if is_full else os.O_APPEND)

    def _write(self, file: Path, bodies: list[str], how: int) -> None:
        try:
            with open(os.open(file, os.O_CREAT | os.O_WRONLY | how, 0o600), "w", encoding="ascii") as opened:
                opened.write("".join(f"{body}\n" for body in bodies))
        except OSError as problem:
            log.warning("unable to keep in %s that a pass was given back: %s", file, problem)


class Door:
    """Makes passes and knows them again: they are made of the key and of a seal.

    The seal is new with each process that holds the listening socket, and a hub that is replaced gets the same one.
    While that process lives, no server of another user can listen at this port and be given the token by the browser.
    """

    def __init__(self, key: Secret, seal: str, left_file: Path | None = None) -> None:
        """`left_file` keeps which passes were given back, for a hub that replaces this one."""
        self._key = hashlib.sha256(key.reveal().encode()).digest()
        self._seal = seal
        # By its name a cookie belongs to one key: servers with other keys on this host do not overwrite it.
        self.cookie_name = f"page_{self._sign('name')[:12]}"
        self._failures: list[float] = []
        self._waiting = 0
        self._left = LeftPasses(left_file)
        # Set when a pass is given back; then there is a new one.
        self._leaving = asyncio.Event()

    def is_key(self, given: str) -> bool:
        # Digests, so that the time taken reveals nothing.
        return hmac.compare_digest(hashlib.sha256(given.encode("utf-8", "replace")).digest(), self._key)

    def new_pass(self, now: float | None = None) -> BrowserPass:
        until = int((time.time() if now is None else now) + LASTS_S)
        body = f"{until}.{secrets.token_hex(16)}"
        return BrowserPass(f"{body}.{self._sign('cookie', body)}", self._sign("token", body))

    def knows(self, cookie: str, token: str) -> bool:
        """Whether both are ours, belong together, and are not too old."""
        body, _, signature = cookie.rpartition(".")
        until = body.partition(".")[0]
        is_signed = _same(signature, self._sign("cookie", body)) & _same(token, self._sign("token", body))
        return is_signed and until.isdecimal() and time.time() < int(until) and body not in self._left

    def leave(self, cookie: str) -> None:
        """Let the pass of this cookie in no more; the browser forgets it, too."""
        self._left.add(cookie.rpartition(".")[0])
        self._leaving.set()
        self._leaving = asyncio.Event()

    async def until_over(self, cookie: str) -> None:
        """Wait until the pass of this cookie, which is known, was given back or is too old."""
        body = cookie.rpartition(".")[0]
        until = int(body.partition(".")[0])
        while body not in self._left and (seconds := until - time.time()) > 0:
            with suppress(asyncio.TimeoutError):
                await within(self._leaving.wait(), min(seconds, POLL_EVERY_S))

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
