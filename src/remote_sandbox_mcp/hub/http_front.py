"""What `--mode http` starts: it holds the listening socket, and has the hub serve there for as long as it lives.

A hub that dies is replaced, and given the same socket: clients that connect meanwhile wait in the kernel.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from ..hub_contact.asking import ask_hub
from ..hub_contact.hello import read_answer, say_http_hello
from ..hub_contact.place import NoHub, Place, reach
from ..hub_contact.starting import start
from .front import FIRST_GREETING_S, GREETING_S, MOST_ATTEMPTS, STEADY_S, current_folder

log = logging.getLogger(__name__)

CHUNK = 1 << 16
# For the hub to load what it serves with, and to let calls end once this process is told to.
LOADING_S, FAREWELL_S = 30.0, 1.0
# A hub that says nothing is asked whether it is there, and has so long to answer.
ASK_EVERY_S, ANSWER_S = 15.0, 15.0


class Silent(NoHub):
    """A hub that has said nothing for a while."""


class HttpFront:
    """One listening socket and the hub that serves there."""

    def __init__(self, place: Place, listener: socket.socket, hello: bytes) -> None:
        self._place = place
        self._listener = listener
        self._hello = hello
        self._line: socket.socket | None = None
        self._heard = bytearray()
        self._attempts = self._hub = 0
        # Whether a hub may be serving, and whether it wants the socket anew.
        self._is_handed = self._is_asked_again = False
        # Whether we wait for something else than its line, and whether this process was told to end.
        self._is_held_up = self._is_told = False
        self._woken, self._wake = os.pipe()

    def run(self) -> NoHub:
        """Have hubs serve, one after another; why none can be had. The process ends here when it is told to."""
        self._heed_signals()
        try:
            while True:
                self._serve_by_hub()
        except NoHub as problem:
            return problem
        finally:
            self._is_handed = False
            signal.set_wakeup_fd(-1)

    def _heed_signals(self) -> None:
        os.set_blocking(self._wake, False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._told_to_end())
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def _told_to_end(self) -> None:
        """At once where no hub has calls to wind down, or we could not heed it, and when told again.

        Else `_hear` has been woken.
        """
        if not self._is_handed or self._is_held_up or self._is_told:
            os._exit(0)
        self._is_told = True

    # The hub

    def _serve_by_hub(self) -> None:
        """Returns when the hub has gone. Raises NoHub."""
        if self._attempts >= MOST_ATTEMPTS:
            raise NoHub(f"{self._attempts} hubs in a row have ended at once; see {self._place.log}")
        self._attempts += 1
        self._line, is_new = reach(self._place, start)
        self._heard.clear()
        self._hub, self._is_asked_again = 0, False
        begun, why = time.monotonic(), "it closed the line"
        with self._line:
            try:
                self._hand_over(FIRST_GREETING_S if is_new else GREETING_S)
                self._stay()
            except TimeoutError:
                raise NoHub("a hub does not answer") from None
            except OSError as error:
                why = error.strerror or "its line broke"
        self._is_handed = False
        if self._is_asked_again or time.monotonic() > begun + STEADY_S:
            self._attempts = 0
        # One that has not greeted was ending when we came.
        if self._hub and not self._is_asked_again:
            log.warning("the hub (process %d) has ended (%s); another takes its place", self._hub, why)

    def _hand_over(self, greeting_s: float) -> None:
        """Say what is to be served, and give the socket to the hub when it asks for it. Raises NoHub, OSError."""
        assert self._line is not None
        self._line.settimeout(greeting_s)
        self._line.sendall(self._hello)
        self._hub = int(self._hear(greeting_s).get("pid") or 0)
        self._is_handed = True
        socket.send_fds(self._line, [b"\0"], [self._listener.fileno()])
        while not self._hear(LOADING_S).get("serving"):
            pass

    def _stay(self) -> None:
        """Print what the hub says, for as long as it serves. Raises OSError when it has gone, NoHub when it hangs."""
        while True:
            try:
                self._hear(ASK_EVERY_S)
            except Silent:
                self._ask_whether_it_is_there()

    def _ask_whether_it_is_there(self) -> None:
        """Raises NoHub where it does not answer: its clients would wait for ever."""
        with self._held_up():
            try:
                ask_hub(self._place, "alive", ANSWER_S)
            except TimeoutError:
                raise NoHub(f"the hub (process {self._hub}) has not answered for {ANSWER_S:.0f} s") from None
            except (OSError, NoHub, ValueError):
                # Where it is gone, its line will tell.
                pass

    @contextlib.contextmanager
    def _held_up(self) -> Iterator[None]:
        self._is_held_up = True
        try:
            yield
        finally:
            self._is_held_up = False

    def _hear(self, limit_s: float) -> dict[str, Any]:
        """What the hub says next; a line of its log is printed. Raises Silent, NoHub, OSError."""
        assert self._line is not None
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._line.fileno(), self._woken], [], [], limit_s)
            if self._woken in ready:
                self._leave()
            if not ready:
                raise Silent(f"a hub has not answered for {limit_s:.0f} s")
            if not (part := self._line.recv(CHUNK)):
                raise ConnectionResetError(0, "it closed the line")
            self._heard += part
        line, _, rest = bytes(self._heard).partition(b"\n")
        self._heard[:] = rest
        return self._understood(line)

    def _understood(self, line: bytes) -> dict[str, Any]:
        said = read_answer(line)
        self._print(str(said.get("log") or ""))
        # It serves under another configuration from now on, for which the same variables may mean something else.
        self._is_asked_again = self._is_asked_again or bool(said.get("again"))
        return said

    def _print(self, text: str) -> None:
        with self._held_up(), contextlib.suppress(OSError):
            if text:
                print(text, file=sys.stderr, flush=True)

    # The end

    def _leave(self) -> NoReturn:
        """The hub ends what it serves here, as soon as it sees that nothing more comes from us."""
        assert self._line is not None
        self._listener.close()
        os.read(self._woken, CHUNK)
        with contextlib.suppress(OSError, NoHub):
            self._line.shutdown(socket.SHUT_WR)
            while True:
                self._hear(FAREWELL_S)
        os._exit(0)


def run(listener: socket.socket, terms: Mapping[str, Any], config: str) -> str:
    """Serve through the hub until told to end, which ends the process; or says why that cannot be."""
    try:
        place = Place(os.environ)
    except OSError as error:
        return str(error)
    config = os.path.abspath(os.path.expanduser(config)) if config else ""
    hello = say_http_hello(terms, os.environ, current_folder(), config)
    return str(HttpFront(place, listener, hello).run())
