"""A hub that says nothing while a call waits for it: whether it is there is asked on a line of its own."""

from __future__ import annotations

import contextlib
import socket
import sys
import time

from ..hub_contact.hello import ask
from ..hub_contact.place import NoHub, Place

# While a call waits, the hub is asked whether it is there, and has so long to answer; then the call is answered here.
ASK_EVERY_S, ANSWER_S, GIVE_UP_S = 5.0, 5.0, 25.0
# One that has not answered before is given that long with the next call.
GLANCE_S = 1.0
# Between two looks while a call waits.
TURN_S = 1.0


class Silence:
    """How long the hub has said nothing."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.heard_at = time.monotonic()
        # The line on which it is asked.
        self.asking: socket.socket | None = None
        self._asked_at = 0.0
        # Whether the user has been told that it does not answer; what comes meanwhile is not sent to it.
        self.is_told = False

    def begin(self) -> None:
        """There is another hub."""
        self.stop_asking()
        self.heard_at, self.is_told = time.monotonic(), False

    @property
    def turn_s(self) -> float:
        return GLANCE_S / 4 if self.is_told else TURN_S

    def find_out(self, now: float, hub: int) -> float:
        """Ask whether it is there; gives how long it has been silent, where calls need not wait for it any longer."""
        silent = now - self.heard_at
        if silent <= ASK_EVERY_S:
            return 0.0
        if self.asking is None:
            self._asked_at = now
            self._ask()
        elif now > self._asked_at + ANSWER_S and not self.is_told:
            self.is_told = True
            say(f"the hub (process {hub}) does not answer; calls are answered here if it goes on")
        return silent if self.is_told and silent > GIVE_UP_S and now > self._asked_at + GLANCE_S else 0.0

    def _ask(self) -> None:
        try:
            self.asking = self._place.connect()
            self.asking.sendall(ask("alive"))
            self.asking.setblocking(False)
        except (OSError, NoHub):
            # It is gone: the line itself will tell.
            self.stop_asking()

    def hear(self) -> bool:
        """What came on the line on which it was asked: whether it is there."""
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
    """To the user, who may look at what the client keeps of this process's standard error."""
    print(f"remote-sandbox-mcp: {text}", file=sys.stderr, flush=True)
