"""What a client starts: it copies lines between the client and the hub, and sees to it that there is a hub.

A hub that dies is replaced; the conversation is opened again there, and what was not answered is sent once more. Only
what is needed for that is imported: a client waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping

from .hello import ask, read, say_hello
from .place import NoHub, Place, reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 1 << 18
# The other side is not listened to while so much waits to be sent to this one.
MOST_WAITING = 16 << 20
# So many hubs in a row that do not even greet are enough.
MOST_ATTEMPTS = 3
# A hub that has not greeted is not waited for longer: it is held up.
GREETING_S = 15.0
# While a call waits, the hub is asked whether it is there, and has so long to answer; then the call is answered here.
ASK_EVERY_S, ANSWER_S, GIVE_UP_S = 5.0, 5.0, 25.0
# After the client's end: for answers that are on their way.
FAREWELL_S, COLD_FAREWELL_S = 1.0, 10.0
# Requests that stay in force for the conversation, so another hub has to hear them too.
STANDING = frozenset({"initialize", "resources/subscribe", "logging/setLevel"})
ANSWER = re.compile(rb'\{"jsonrpc":"2\.0","id":("[^"\\]*"|-?\d+),"(?:result|error)":')
STOPPED = (
    "the hub of remote-sandbox-mcp (process {pid}) has not answered for {seconds:.0f} s, so whether this was done is "
    "not known: look before you repeat it. `remote-sandbox-mcp hub restart` starts another"
)


class Handed:
    """What a server in this process has to take over, where there is no hub."""

    def __init__(self, heard: bytes, answered: set[Any]) -> None:
        self.heard = heard
        self.answered = answered


class Front:
    """One client's conversation."""

    def __init__(self, place: Place, environ: Mapping[str, str], config: str) -> None:
        self._place = place
        self._environ = environ
        self._config = config
        self._session = os.urandom(8).hex()
        self._line: socket.socket | None = None
        self._is_greeted = False
        self._attempts = 0
        self._hub = 0
        self._memory: Any = None
        # Bytes that are no whole line yet, and bytes that are on their way.
        self._from_client, self._from_hub = bytearray(), bytearray()
        self._to_client, self._to_hub = bytearray(), bytearray()
        self._client_ended = False
        # Requests by their id, as they came, until they are answered; and what another hub has to be told first.
        self._unanswered: dict[Any, bytes] = {}
        self._asked_of: dict[Any, str] = {}
        self._standing: list[tuple[Any, bytes]] = []
        self._started_notice = b""
        # Answers that the client has already: given from memory, by an earlier hub, or by us.
        self._done: set[Any] = set()
        self._heard_at = self._begun_at = time.monotonic()
        self._asking: socket.socket | None = None
        self._asked_at = 0.0
        self._is_told = False
        self._left_at = 0.0

    def run(self) -> Handed | None:
        """Serve until the client goes; what is left for this process to do where no hub can be had."""
        try:
            self._open()
            while True:
                if not self._turn():
                    return None
        except NoHub as problem:
            say(f"serving without a hub: {problem}")
            return self._hand_over()

    # The hub

    def _open(self) -> None:
        """Connect, greet, and say again what is not answered. Raises NoHub."""
        if self._attempts >= MOST_ATTEMPTS:
            raise NoHub(f"{self._attempts} hubs in a row ended before they greeted; see {self._place.log}")
        self._attempts += 1
        self._line, is_new = reach(self._place, start_hub)
        self._line.setblocking(False)
        if is_new and self._attempts == 1 and not self._hub:
            self._memory = remembered(self._place, self._config)
        self._is_greeted = False
        self._from_hub.clear()
        self._to_hub.clear()
        self._heard_at = self._begun_at = time.monotonic()
        folder = current_folder()
        hello = say_hello(self._session, self._environ, folder, self._config, list(self._unanswered))
        self._to_hub += hello
        for number, line in self._standing:
            if number not in self._unanswered:
                # The client has had the answer; that of this hub is not for it.
                self._done.add(number)
                self._to_hub += line
        self._to_hub += self._started_notice
        for line in self._unanswered.values():
            self._to_hub += line

    def _lost(self, why: str) -> bool:
        """The hub is gone. Returns whether there is anything left to do. Raises NoHub."""
        self._close(self._line)
        self._line = None
        if self._client_ended:
            return False
        if self._is_greeted:
            say(f"the hub (process {self._hub}) has ended ({why}); another takes its place")
        self._open()
        return True

    def _greeted(self, line: bytes) -> None:
        """The hub's first line. Raises NoHub where it does not want us."""
        try:
            said = read(line)
        except ValueError:
            raise NoHub("the hub speaks another language") from None
        if refusal := said.get("refused"):
            raise NoHub(str(refusal))
        self._is_greeted, self._attempts = True, 0
        is_first, self._hub = not self._hub, int(said.get("pid", 0))
        for note in said.get("notes", ()) if is_first else ():
            say(str(note))

    # One turn of the loop

    def _turn(self) -> bool:
        """Wait for something to do and do it. Returns whether to go on."""
        assert self._line is not None
        wanted: dict[int, int] = {self._line.fileno(): 0}
        if len(self._to_client) < MOST_WAITING:
            wanted[self._line.fileno()] |= select.POLLIN
        if self._to_hub:
            wanted[self._line.fileno()] |= select.POLLOUT
        if not self._client_ended and len(self._to_hub) < MOST_WAITING:
            wanted[0] = select.POLLIN
        if self._to_client:
            wanted[1] = select.POLLOUT
        if self._asking:
            wanted[self._asking.fileno()] = select.POLLIN
        poll = select.poll()
        for fd, events in wanted.items():
            poll.register(fd, events)
        ready = dict(poll.poll(self._patience() * 1000))
        return self._heed(ready)

    def _heed(self, ready: dict[int, int]) -> bool:
        if 0 in ready:
            self._read_client()
        if 1 in ready:
            if ready[1] & (select.POLLERR | select.POLLHUP | select.POLLNVAL) and not ready[1] & select.POLLOUT:
                return False
            self._write_client()
        if self._asking and self._asking.fileno() in ready:
            self._hear_whether_it_is_there()
        assert self._line is not None
        events = ready.get(self._line.fileno(), 0)
        try:
            if events & select.POLLOUT or self._to_hub:
                self._write_hub()
            if events & ~select.POLLOUT and not self._read_hub():
                return self._lost("it closed the line")
        except OSError as error:
            return self._lost(error.strerror or "its line broke")
        if self._to_client:
            self._write_client()
        self._look_after_calls()
        return not self._is_over()

    def _patience(self) -> float:
        if self._client_ended:
            return 0.05
        return 1.0 if self._unanswered or not self._is_greeted else 3600.0

    def _is_over(self) -> bool:
        if not self._client_ended:
            return False
        limit = FAREWELL_S if self._is_greeted else COLD_FAREWELL_S
        return time.monotonic() > self._left_at + limit

    # The client's side

    def _read_client(self) -> None:
        data = os.read(0, CHUNK)
        if not data:
            self._client_ended, self._left_at = True, time.monotonic()
            self._flush_and_shut()
            return
        self._from_client += data
        if b"\n" not in data:
            return
        whole, _, rest = bytes(self._from_client).rpartition(b"\n")
        self._from_client[:] = rest
        for line in whole.split(b"\n"):
            self._asked(line + b"\n")

    def _flush_and_shut(self) -> None:
        """Tell the hub that nothing more comes, once all of it is sent."""
        if self._line and not self._to_hub:
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)

    def _asked(self, line: bytes) -> None:
        """A line of the client's: it is passed on, and a request is kept until it is answered."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict):
            self._note(message, line)
        self._to_hub += line

    def _note(self, message: dict[str, Any], line: bytes) -> None:
        method, number = message.get("method"), message.get("id")
        if method == "notifications/initialized":
            self._started_notice = line
        if method == "notifications/cancelled":
            params = message.get("params")
            given_up = params.get("requestId") if isinstance(params, dict) else None
            if isinstance(given_up, (str, int)):
                self._unanswered.pop(given_up, None)
                self._asked_of.pop(given_up, None)
        if not isinstance(method, str) or not isinstance(number, (str, int)):
            return
        self._done.discard(number)
        self._asked_of[number] = method
        if method in STANDING:
            self._standing.append((number, line))
        known = self._memory.answer(message) if self._memory is not None else b""
        if known and not self._is_greeted:
            self._to_client += known
            self._done.add(number)
        else:
            self._unanswered[number] = line

    def _write_client(self) -> None:
        try:
            while self._to_client:
                sent = os.write(1, memoryview(self._to_client)[:CHUNK])
                del self._to_client[:sent]
        except BlockingIOError:
            pass
        except OSError:
            # Nobody reads any more.
            leave()

    # The hub's side

    def _write_hub(self) -> None:
        assert self._line is not None
        try:
            while self._to_hub:
                with memoryview(self._to_hub) as waiting:
                    sent = self._line.send(waiting[:CHUNK])
                del self._to_hub[:sent]
        except BlockingIOError:
            return
        if self._client_ended:
            self._flush_and_shut()

    def _read_hub(self) -> bool:
        """Take what the hub says; False where it has hung up."""
        assert self._line is not None
        try:
            data = self._line.recv(CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._heard_at, self._is_told = time.monotonic(), False
        self._from_hub += data
        if b"\n" not in data:
            return True
        whole, _, rest = bytes(self._from_hub).rpartition(b"\n")
        self._from_hub[:] = rest
        for line in whole.split(b"\n"):
            if not self._is_greeted:
                self._greeted(line)
            elif self._passes(line):
                self._to_client += line + b"\n"
        return True

    def _passes(self, line: bytes) -> bool:
        """Whether a line of the hub's goes to the client; one that has its answer gets no other."""
        if not (self._unanswered or self._done):
            return True
        found = ANSWER.match(line)
        message = None if found else json.loads(line)
        if message is not None and ("method" in message or "id" not in message):
            return True
        number = json.loads(found[1]) if found else message["id"] if message else None
        self._unanswered.pop(number, None)
        method = self._asked_of.pop(number, "")
        if self._memory is not None:
            self._learn(method, number, message or json.loads(line))
        if number in self._done:
            self._done.discard(number)
            return False
        return True

    def _learn(self, method: str, number: Any, message: dict[str, Any]) -> None:
        from ..mcp_server.early import QUESTIONS

        if method in QUESTIONS and "result" in message and (key := self._memory.asked.pop(number, "")):
            self._memory.learn(key, message["result"])

    # A hub that does not answer

    def _look_after_calls(self) -> None:
        now = time.monotonic()
        if not self._is_greeted and now > self._begun_at + GREETING_S:
            raise NoHub(f"a hub has not greeted for {GREETING_S:.0f} s")
        if not self._unanswered or self._client_ended:
            self._stop_asking()
            return
        silent = now - self._heard_at
        if silent < ASK_EVERY_S:
            return
        if self._asking is None:
            self._asked_at = now
            self._ask_whether_it_is_there()
        elif now > self._asked_at + ANSWER_S and not self._is_told:
            self._is_told = True
            say(f"the hub (process {self._hub}) does not answer; calls are answered here if it goes on")
        if self._is_told and silent > GIVE_UP_S:
            for number in list(self._unanswered):
                self._give_up(number, silent)

    def _ask_whether_it_is_there(self) -> None:
        try:
            self._asking = self._place.connect()
            self._asking.sendall(ask("alive"))
            self._asking.setblocking(False)
        except (OSError, NoHub):
            # It is gone: the line itself will tell.
            self._stop_asking()

    def _hear_whether_it_is_there(self) -> None:
        with contextlib.suppress(OSError):
            if self._asking and self._asking.recv(4096):
                self._heard_at, self._is_told = time.monotonic(), False
        self._stop_asking()

    def _stop_asking(self) -> None:
        self._close(self._asking)
        self._asking = None

    def _give_up(self, number: Any, seconds: float) -> None:
        """Answer in the hub's place, before the client runs out of patience."""
        method = self._asked_of.pop(number, "")
        told = STOPPED.format(pid=self._hub, seconds=seconds)
        answer: dict[str, Any] = {"error": {"code": -32603, "message": told}}
        if method == "tools/call":
            answer = {"result": {"content": [{"type": "text", "text": told}], "isError": True}}
        self._to_client += json.dumps({"jsonrpc": "2.0", "id": number} | answer).encode() + b"\n"
        self._unanswered.pop(number, None)
        self._done.add(number)

    # The end

    def _hand_over(self) -> Handed:
        while self._to_client:
            self._write_client()
            select.select([], [1], [])
        os.set_blocking(1, True)
        self._close(self._line)
        answered = {number for number, _ in self._standing if number not in self._unanswered} | self._done
        lines = [line for number, line in self._standing if number not in self._unanswered]
        heard = b"".join([*lines, self._started_notice, *self._unanswered.values()]) + bytes(self._from_client)
        return Handed(heard, answered)

    def _close(self, line: socket.socket | None) -> None:
        if line is not None:
            line.close()


class Remembering:
    """The memory of first answers, with what has been asked."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.asked: dict[Any, str] = {}

    def answer(self, question: Any) -> bytes:
        if key := self._memory.key(question):
            self.asked[question["id"]] = key
            return bytes(self._memory.answer(question))
        return b""

    def learn(self, key: str, result: Any) -> None:
        self._memory.learn(key, result)


def start_hub(place: Place, lock: int, listener: int) -> None:
    """Most fronts find a hub, and are spared what it takes to start one. Raises NoHub."""
    from .starting import start

    start(place, lock, listener)


def remembered(place: Place, config: str) -> Remembering:
    from pathlib import Path

    from ..mcp_server.early import first_memory

    return Remembering(first_memory(Path(place.state), Path(config) if config else None))


def run(config: str) -> Handed | None:
    """Serve the client on the standard streams through the hub, or say what is left to do without one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: leave())
    try:
        place = Place(os.environ)
    except OSError as error:
        say(f"serving without a hub: {error}")
        return Handed(b"", set())
    os.set_blocking(1, False)
    return Front(place, os.environ, os.path.abspath(os.path.expanduser(config)) if config else "").run()


def current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def say(text: str) -> None:
    print(f"remote-sandbox-mcp: {text}", file=sys.stderr, flush=True)


def leave() -> None:
    os._exit(0)
