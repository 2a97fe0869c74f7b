"""What reaches a keeper: orders from its outpost, and signals."""

import json
import os
import signal

from .wire import REQUEST, split_frames

MYPY = False
if MYPY:
    from typing import Any


class Feed:
    """What the outpost tells its keeper: orders, and that one is cancelled."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer = bytearray()
        self.behind: "list[tuple[int, int, bytes]]" = []

    def take(self) -> "list[tuple[int, int, bytes]] | None":
        """The frames that have come, or None when the outpost is gone."""
        data = os.read(self.fd, 1 << 18)
        self.buffer += data
        return split_frames(self.buffer) if data else None

    def next_order(self) -> "tuple[int, dict[str, Any]] | None":
        """The order; what came with it (it may be cancelled already) is `behind` it."""
        while True:
            frames = self.take()
            if frames is None:
                return None
            for at, (kind, request, body) in enumerate(frames):
                if kind == REQUEST:
                    self.behind = frames[at + 1 :]
                    return request, json.loads(body.decode())


def hear_signals() -> int:
    """A descriptor from which the numbers of the signals that came can be read."""
    wakeup, wake_end = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return wakeup


def clear(wakeup: int) -> None:
    """Signals that came between runs were meant for the run before."""
    try:
        os.read(wakeup, 512)
    except BlockingIOError:
        pass
