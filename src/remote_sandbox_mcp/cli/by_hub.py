"""A verb by the hub: this process gives its streams to the hub, passes signals on, and ends with the exit code.

Only what that needs is imported: a person waits for it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Sequence

from ..config.paths import NO_HUB
from ..services.hub_contact.hello import VERB, read_answer, say_hello
from ..services.hub_contact.place import HubPlace, NoHub, connect, current_folder, reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

# How long a hub may take to ask for the streams; one that has just been started needs longer.
GREETING_S, FIRST_GREETING_S = 10.0, 20.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
LOST = "remote-sandbox-mcp: the hub has ended before this was done; whether it was done is not known: look first\n"
NO_CONNECTION = 255


def run(argv: Sequence[str], *, may_start: bool = True) -> int | None:
    """The exit code of the verb; None where there is no hub (or it may not be started), and nothing was begun."""
    if os.environ.get(NO_HUB) or not _has_streams():
        return None
    try:
        line, is_new = reach(HubPlace(os.environ)) if may_start else (connect(HubPlace(os.environ)), False)
    except (NoHub, OSError):
        return None
    with line:
        try:
            line.settimeout(FIRST_GREETING_S if is_new else GREETING_S)
            can_ask = os.isatty(0) and os.isatty(2)
            line.sendall(say_hello(VERB, os.environ, current_folder(), argv=[*argv], can_ask=can_ask))
            answers = line.makefile("rb")
            if read_answer(answers.readline()).get("send") != "streams":
                return None
            socket.send_fds(line, [b"\0"], [0, 1, 2])
        except (NoHub, OSError):
            return None
        line.settimeout(None)
        return Waiting(line, answers).run()


def _has_streams() -> bool:
    """Whether all three are open: they are handed over together."""
    try:
        return all(os.fstat(fd) for fd in (0, 1, 2))
    except OSError:
        return False


class Waiting:
    """Waits for the end of the verb; meanwhile signals and answers are passed on."""

    def __init__(self, line: socket.socket, answers: IO[bytes]) -> None:
        self._line = line
        self._answers = answers
        self._woken, self._wake = os.pipe()
        self._is_ending = False

    def run(self) -> int:
        os.set_blocking(self._wake, False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            while True:
                ready, _, _ = select.select([self._line.fileno(), self._woken], [], [])
                if self._woken in ready:
                    for received in os.read(self._woken, 64):
                        self._pass_on(received)
                if self._line.fileno() in ready:
                    said = read_answer(self._answers.readline())
                    if "exit" in said:
                        return int(said["exit"])
                    if "ask" in said:
                        self._send({"answers": self._asked(said)})
        except (OSError, NoHub):
            os.write(2, LOST.encode())
            return NO_CONNECTION

    def _pass_on(self, number: int) -> None:
        """Send a signal; the second one that ends ends this process at once, and the verb with it."""
        if number != signal.SIGWINCH:
            if self._is_ending:
                os._exit(128 + number)
            self._is_ending = True
        self._send({"signal": number})

    def _send(self, what: dict[str, Any]) -> None:
        self._line.sendall(json.dumps(what).encode() + b"\n")

    def _asked(self, said: dict[str, Any]) -> list[str] | None:
        """The answers of the person at this terminal; None after Ctrl-C or Ctrl-D."""
        import sys

        from .asker import interruptible
        from .login import ask

        try:
            with interruptible():
                return ask(said, sys.stderr)
        except KeyboardInterrupt:
            return None
