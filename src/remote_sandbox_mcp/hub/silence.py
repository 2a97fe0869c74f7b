"""Notices a hub that does not answer while a call waits, by asking it for a sign of life on a separate connection."""

from __future__ import annotations

import contextlib
import socket
import sys
import time

from ..services.hub_contact.hello import ask
from ..services.hub_contact.place import HubPlace, NoHub

# While a call waits, the hub is asked this often and has this long to answer; after that the front answers the call.
ASK_EVERY_S, ANSWER_S, GIVE_UP_S = 5.0, 5.0, 25.0
# A hub that failed to answer before gets only this long with the next call.
POLL_EVERY_S = 1.0
# Between two looks while a call waits.
TURN_S = 1.0


class Silence:
    """Tracks how long the hub has been silent."""

    def __init__(self, place: HubPlace) -> None:
        self._place = place
        self.heard_at = time.monotonic()
        # The connection on which the hub is asked.
        self.asking: socket.socket | None = None
        self._asked_at = 0.0
        # Whether the user was told that it does not answer; meanwhile nothing is sent to it.
        self.is_reported = False

    def begin(self) -> None:
        """Start over with another hub."""
        self.stop_asking()
        self.heard_at, self.is_reported = time.monotonic(), False

    @property
    def turn_s(self) -> float:
        return POLL_EVERY_S / 4 if self.is_reported else TURN_S

    def find_out(self, now: float, hub: int) -> float:
        """Ask for a sign of life; returns how long the hub has been silent, once calls should not wait any longer."""
        silent = now - self.heard_at
        if silent <= ASK_EVERY_S:
            return 0.0
        if self.asking is None:
            self._asked_at = now
            self._ask()
        elif now > self._asked_at + ANSWER_S and not self.is_reported:
            self.is_reported = True
            say(f"the hub (process {hub}) does not answer; calls are answered here if it goes on")
        return silent if self.is_reported and silent > GIVE_UP_S and now > self._asked_at + POLL_EVERY_S else 0.0

    def _ask(self) -> None:
        try:
            self.asking = self._place.connect()
            self.asking.sendall(ask("alive"))
            self.asking.setblocking(False)
        except (OSError, NoHub):
            # It is gone; the main connection will show that.
            self.stop_asking()

    def hear(self) -> bool:
        """Read the answer on the separate connection: whether the hub is there."""
        is_there = False
        with contextlib.suppress(OSError):
            is_there = bool(self.asking and self.asking.recv(4096))
        self.stop_asking()
        return is_there

    def stop_asking(self) -> None:
        if self.asking is not None:
            self.asking.close()
        self.asking = None


def say(text: str) -> None:
    """Tell the user, on standard error, which the client may keep in a log."""
    print(f"remote-sandbox-mcp: {text}", file=sys.stderr, flush=True)
