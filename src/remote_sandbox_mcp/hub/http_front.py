"""The process of `--mode http`: holds the listening socket and lets the hub serve on it.

A hub that dies is replaced, and given the same socket: clients that connect meanwhile wait in the kernel. While a hub
hangs, or none can be started, this process serves by itself, and asks from time to time whether that is over.
"""

from __future__ import annotations

import asyncio
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

from ..services.hub_contact.asking import ask_hub, call_hub
from ..services.hub_contact.hello import HTTP, read_answer, say_hello
from ..services.hub_contact.place import HubPlace, NoHub, current_folder, reach
from .front import FIRST_GREETING_S, GREETING_S, MOST_ATTEMPTS, STEADY_S

log = logging.getLogger(__name__)

CHUNK = 1 << 16
# Time for the hub to load what it serves with; and to finish calls once this process is told to end.
LOADING_S, ENDING_S = 30.0, 1.0
# A silent hub is asked for a sign of life this often, and has this long to answer.
ASK_EVERY_S, ANSWER_S = 15.0, 15.0
# A process that serves without a hub asks for one this often; ever more seldom where hubs end at once.
RETURN_S, LONGEST_RETURN_S = 15.0, 900.0


class Silent(NoHub):
    """The hub has sent nothing for a while."""


class HttpFront:
    """One listening socket and the hub that serves there."""

    def __init__(self, place: HubPlace, listener: socket.socket, hello: bytes) -> None:
        self._place = place
        self._listener = listener
        self._hello = hello
        self._connection: socket.socket | None = None
        self._heard = bytearray()
        self._attempts = self._hub = 0
        # Whether a hub may be serving, and whether it asked for the socket again.
        self._is_handed_over = self._is_asked_again = False
        # Whether we wait for something other than the hub's line, and whether this process was told to end.
        self._is_held_up = self._is_asked = False
        self._woken, self._wake = os.pipe()

    def run(self) -> NoHub:
        """Let hubs serve, one after another; returns why there is none. A signal to end ends the process here."""
        os.set_blocking(self._wake, False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._is_ending())
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            while True:
                self._serve_by_hub()
        except NoHub as problem:
            return problem
        finally:
            self._is_handed_over = False
            signal.set_wakeup_fd(-1)

    def _is_ending(self) -> None:
        """End at once if no hub has calls to finish, or when told a second time.

        Otherwise `_hear` was woken and ends in order.
        """
        if not self._is_handed_over or self._is_held_up or self._is_asked:
            os._exit(0)
        self._is_asked = True

    # The hub

    def _serve_by_hub(self) -> None:
        """Let a hub serve; returns when it has gone. Raises NoHub."""
        if self._attempts >= MOST_ATTEMPTS:
            raise NoHub(f"{self._attempts} hubs in a row have ended at once; see {self._place.log}")
        self._attempts += 1
        self._connection, is_new = reach(self._place)
        self._heard.clear()
        self._hub, self._is_asked_again = 0, False
        begun, why = time.monotonic(), "it closed the line"
        with self._connection:
            try:
                self._hand_over(FIRST_GREETING_S if is_new else GREETING_S)
                self._stay()
            except TimeoutError:
                raise NoHub("a hub does not answer") from None
            except OSError as error:
                why = error.strerror or "its line broke"
        self._is_handed_over = False
        if self._is_asked_again or time.monotonic() > begun + STEADY_S:
            self._attempts = 0
        # A hub that has not greeted was already ending when we connected.
        if self._hub and not self._is_asked_again:
            log.warning("the hub (process %d) has ended (%s); another takes its place", self._hub, why)

    def _hand_over(self, greeting_s: float) -> None:
        """Send the terms, and pass the socket when the hub asks for it. Raises NoHub, OSError."""
        assert self._connection is not None
        self._connection.settimeout(greeting_s)
        self._connection.sendall(self._hello)
        self._hub = int(self._hear(greeting_s).get("pid") or 0)
        self._is_handed_over = True
        socket.send_fds(self._connection, [b"\0"], [self._listener.fileno()])
        while not self._hear(LOADING_S).get("serving"):
            pass

    def _stay(self) -> None:
        """Print the hub's log lines while it serves. Raises OSError when it has gone, NoHub when it hangs."""
        while True:
            try:
                self._hear(ASK_EVERY_S)
            except Silent:
                self._ask_whether_it_is_there()

    def _ask_whether_it_is_there(self) -> None:
        """Ask the hub for a sign of life. Raises NoHub if it does not answer: its clients would wait for ever."""
        with self._held_up():
            try:
                ask_hub(self._place, "alive", ANSWER_S)
            except TimeoutError:
                raise NoHub(f"the hub (process {self._hub}) has not answered for {ANSWER_S:.0f} s") from None
            except (OSError, NoHub, ValueError):
                # If it is gone, reading its line will show that.
                pass

    @contextlib.contextmanager
    def _held_up(self) -> Iterator[None]:
        self._is_held_up = True
        try:
            yield
        finally:
            self._is_held_up = False

    def _hear(self, limit_s: float) -> dict[str, Any]:
        """The hub's next message; log lines are printed. Raises Silent, NoHub, OSError."""
        assert self._connection is not None
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._connection.fileno(), self._woken], [], [], limit_s)
            if self._woken in ready:
                self._leave()
            if not ready:
                raise Silent(f"a hub has not answered for {limit_s:.0f} s")
            if not (part := self._connection.recv(CHUNK)):
                raise ConnectionResetError(0, "it closed the line")
            self._heard += part
        line, _, rest = bytes(self._heard).partition(b"\n")
        self._heard[:] = rest
        said = read_answer(line)
        self._print(str(said.get("log") or ""))
        # The hub now serves another configuration, which may read other variables of ours.
        self._is_asked_again = self._is_asked_again or bool(said.get("again"))
        return said

    def _print(self, text: str) -> None:
        with self._held_up(), contextlib.suppress(OSError):
            if text:
                print(text, file=sys.stderr, flush=True)

    # The end

    def _leave(self) -> NoReturn:
        """The hub stops serving here as soon as it sees that our end is closed."""
        assert self._connection is not None
        self._listener.close()
        os.read(self._woken, CHUNK)
        with contextlib.suppress(OSError, NoHub):
            self._connection.shutdown(socket.SHUT_WR)
            while True:
                self._hear(ENDING_S)
        os._exit(0)


class HubReturn:
    """Decides when a process that serves without a hub lets a hub serve again."""

    def __init__(self) -> None:
        self._pause_s = RETURN_S / 2
        self._begun_at = time.monotonic()

    def hand_over(self) -> None:
        """Note that a hub serves from now on."""
        self._begun_at = time.monotonic()

    async def wait(self) -> None:
        """Wait until a hub answers; a new one is started where there is none."""
        is_steady = time.monotonic() > self._begun_at + ANSWER_S + STEADY_S
        self._pause_s = RETURN_S if is_steady else min(2 * self._pause_s, LONGEST_RETURN_S)
        while True:
            await asyncio.sleep(self._pause_s)
            if await asyncio.to_thread(_is_answered):
                return


def _is_answered() -> bool:
    try:
        return bool(call_hub("alive", ANSWER_S))
    except (OSError, NoHub, ValueError):
        return False


def run(listener: socket.socket, terms: Mapping[str, Any], config: str) -> str:
    """Serve through the hub until told to end, which ends the process; returns why that is not possible."""
    try:
        place = HubPlace(os.environ)
    except OSError as error:
        return str(error)
    config = os.path.abspath(os.path.expanduser(config)) if config else ""
    hello = say_hello(HTTP, os.environ, current_folder(), http=dict(terms), config=config)
    return str(HttpFront(place, listener, hello).run())
