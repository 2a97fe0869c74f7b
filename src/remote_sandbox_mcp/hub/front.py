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

from ..hub_contact.hello import Handed, ask, read, say_hello
from ..hub_contact.place import NoHub, Place, reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 1 << 16
# The other side is not listened to while so much waits to be sent to this one.
MOST_WAITING = 16 << 20
# So many hubs in a row that end soon, and have answered nothing, are enough: this process does their work then.
MOST_ATTEMPTS, STEADY_S = 5, 5.0
# A request that so many hubs have died with is not sent to another.
MOST_HUBS = 10
# A hub that has not greeted is not waited for longer: it is held up. One that has just been started has more to do.
GREETING_S, FIRST_GREETING_S = 10.0, 20.0
# A client's first questions are answered from memory where the hub needs longer than this.
PROMPT_S = 0.5
# While a call waits, the hub is asked whether it is there, and has so long to answer; then the call is answered here.
ASK_EVERY_S, ANSWER_S, GIVE_UP_S = 5.0, 5.0, 25.0
# One that has not answered before is given that long with the next call.
GLANCE_S = 1.0
# Between two turns of ours while something is waited for. Much more than that: this process was stopped, too.
TURN_S, STOPPED_S = 1.0, 3.0
# After the client's end: for answers to calls, and to its first questions; for the hub to end; for it to greet.
LAST_ANSWERS_S, FIRST_ANSWERS_S, FAREWELL_S, COLD_FAREWELL_S = 0.3, 5.0, 1.0, 10.0
# Another hub ends the commands of calls that were cancelled so shortly before.
CANCELLED_S = 30.0
ANSWER = re.compile(rb'\{"jsonrpc":"2\.0","id":("[^"\\]*"|-?\d+),"(?:result|error)":')
STOPPED = (
    "the hub of remote-sandbox-mcp (process {pid}) has not answered for {seconds:.0f} s, so {what}. "
    "`remote-sandbox-mcp hub restart` starts another"
)
MAYBE = "whether this was done is not known: look before you repeat it"
NOT_BEGUN = "this was not begun"
DEADLY = (
    "{hubs} processes of remote-sandbox-mcp have ended one after another while they worked on this, so it was given "
    "up; whether it was done is not known: look before you repeat it, and see {log}"
)


class Request:
    """One of the client's that is not answered yet."""

    __slots__ = ("begun", "end", "hubs", "line", "method", "name", "since")

    def __init__(self, method: str, line: bytes) -> None:
        self.method = method
        self.line = line
        self.since = time.monotonic()
        # What it is called in its session, once it has been sent, and where it ends in all that was sent to the hub.
        self.name, self.end = "", 0
        # Whether a hub may have begun it, and how many may have died of it.
        self.begun, self.hubs = False, 0


class Front:
    """One client's conversation."""

    def __init__(self, place: Place, environ: Mapping[str, str], config: str) -> None:
        self._place = place
        self._environ = environ
        self._config = config
        self._session = os.urandom(8).hex()
        self._line: socket.socket | None = None
        self._is_greeted = self._is_new = False
        self._attempts = 0
        # The process that serves, and how many have been asked to.
        self._hub = self._hubs = 0
        self._memory: Any = None
        # Bytes that are no whole line yet, and bytes that are on their way.
        self._from_client, self._from_hub = bytearray(), bytearray()
        self._to_client, self._to_hub = bytearray(), bytearray()
        # Lines for a hub that has not greeted, or does not answer; and what this one has been sent: lines, bytes.
        self._held: list[tuple[bytes, Request | None]] = []
        self._lines = self._queued = self._sent = 0
        self._client_ended = self._is_shut = False
        # Requests by their id until they are answered; and what another hub has to be told first.
        self._unanswered: dict[Any, Request] = {}
        self._standing: dict[str, tuple[Any, bytes]] = {}
        self._started_notice = b""
        self._cancelled: dict[str, tuple[float, bytes]] = {}
        # What is waited for; the same as in the turn before, most of the time.
        self._poll, self._wanted = select.poll(), dict[int, int]()
        # Answers that the client has already: given from memory, by an earlier hub, or by us.
        self._done: set[Any] = set()
        self._heard_at = self._begun_at = self._looked_at = time.monotonic()
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
        """Connect, and say who we are; the lines follow when the hub has greeted. Raises NoHub."""
        if self._attempts >= MOST_ATTEMPTS:
            raise NoHub(f"{self._attempts} hubs in a row have ended at once; see {self._place.log}")
        self._attempts += 1
        self._line, self._is_new = reach(self._place, start_hub)
        self._line.setblocking(False)
        if self._is_new and not self._hub and self._memory is None:
            self._memory = remembered(self._place, self._config)
        self._is_greeted = self._is_told = self._is_shut = False
        self._heard_at = self._begun_at = time.monotonic()
        self._stop_asking()
        who, lines = self._opening()
        self._from_hub.clear()
        self._to_hub[:] = say_hello(who, self._environ, current_folder(), self._config)
        self._held = lines
        self._lines, self._queued, self._sent = 0, len(self._to_hub), 0

    def _opening(self) -> tuple[dict[str, Any], list[tuple[bytes, Request | None]]]:
        """What another process has to know of this conversation, and the lines that it begins with there.

        `again` has what each of these lines was called before, or nothing where it cannot have begun anything;
        `prefix` is for the names of the lines after them; `cancelled` are calls that may have been left running;
        `resumed` is whether another process has served the conversation before.
        """
        now = time.monotonic()
        lines: list[tuple[bytes, Request | None]] = []
        again: list[Any] = []
        for number, line in self._standing.values():
            if number not in self._unanswered:
                # The client has had the answer; that of this hub is not for it.
                self._done.add(number)
                lines.append((line, None))
        if self._started_notice:
            lines.append((self._started_notice, None))
        again += [None] * len(lines)
        for number, request in list(self._unanswered.items()):
            if not self._is_spent(number, request):
                lines.append((request.line, request))
                again.append({"name": request.name, "waited_s": now - request.since} if request.begun else None)
        recent = {name: line for name, (at, line) in self._cancelled.items() if now < at + CANCELLED_S}
        cancelled = [{"name": name, "sandbox": sandbox_in(line)} for name, line in recent.items()]
        self._hubs += 1
        who = {"session": self._session, "prefix": f"{self._hubs}.", "again": again, "cancelled": cancelled}
        return {**who, "resumed": bool(self._hub)}, lines

    def _is_spent(self, number: Any, request: Request) -> bool:
        """Note whether the hub before this one has had it; answers it where too many have died with it."""
        if request.name and not request.begun:
            request.begun = self._sent >= request.end
        if not request.begun:
            request.name = ""
        request.hubs += 1
        if request.hubs <= MOST_HUBS:
            return False
        self._answer_here(number, DEADLY.format(hubs=MOST_HUBS, log=self._place.log))
        return True

    def _lost(self, why: str) -> bool:
        """The hub is gone. Returns whether there is anything left to do. Raises NoHub."""
        self._close(self._line)
        self._line = None
        if self._client_ended and (self._is_shut or not self._unanswered):
            return False
        if self._is_greeted:
            say(f"the hub (process {self._hub}) has ended ({why}); another takes its place")
        if self._is_greeted and time.monotonic() > self._begun_at + STEADY_S:
            self._attempts = 0
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
        self._is_greeted, self._begun_at = True, time.monotonic()
        is_first, self._hub = not self._hub, int(said.get("pid", 0))
        for note in said.get("notes", ()) if is_first else ():
            say(str(note))
        self._send_held()

    def _send(self, line: bytes, request: Request | None) -> None:
        """A line for the hub, now or as soon as it listens."""
        if not self._is_greeted or self._is_told:
            self._held.append((line, request))
            return
        if request is not None:
            request.name = request.name or f"{self._hubs}.{self._lines}"
            request.end = self._queued + len(line)
        self._lines += 1
        self._queued += len(line)
        self._to_hub += line

    def _send_held(self) -> None:
        held, self._held = self._held, []
        for line, request in held:
            self._send(line, request)

    # One turn of the loop

    def _turn(self) -> bool:
        """Wait for something to do and do it. Returns whether to go on."""
        assert self._line is not None
        wanted: dict[int, int] = {self._line.fileno(): 0}
        if len(self._to_client) < MOST_WAITING:
            wanted[self._line.fileno()] |= select.POLLIN
        if self._to_hub:
            wanted[self._line.fileno()] |= select.POLLOUT
        if not self._client_ended and self._waiting() < MOST_WAITING:
            wanted[0] = select.POLLIN
        if self._to_client:
            wanted[1] = select.POLLOUT
        if self._asking:
            wanted[self._asking.fileno()] = select.POLLIN
        if wanted != self._wanted:
            self._poll, self._wanted = select.poll(), wanted
            for fd, events in wanted.items():
                self._poll.register(fd, events)
        return self._heed(dict(self._poll.poll(self._patience() * 1000)))

    def _waiting(self) -> int:
        return len(self._to_hub) + sum(len(line) for line, _ in self._held)

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
            if events & ~select.POLLOUT and not self._read_hub():
                return self._lost("it closed the line")
            if self._to_hub:
                self._write_hub()
        except OSError as error:
            self._read_last_words()
            return self._lost(error.strerror or "its line broke")
        if self._to_client:
            self._write_client()
        self._look_after_calls()
        if self._client_ended:
            self._flush_and_shut()
        return not self._is_over()

    def _patience(self) -> float:
        if self._client_ended:
            return 0.05
        if not self._is_greeted:
            return PROMPT_S / 2
        if self._unanswered:
            return GLANCE_S / 4 if self._is_told else TURN_S
        return 3600.0

    def _is_over(self) -> bool:
        if not self._client_ended:
            return False
        limit = FAREWELL_S if self._is_shut else COLD_FAREWELL_S
        return time.monotonic() > max(self._left_at, self._begun_at) + limit

    # The client's side

    def _read_client(self) -> None:
        data = os.read(0, CHUNK)
        if not data:
            self._client_ended, self._left_at = True, time.monotonic()
            if self._from_client:
                # Its last line had no end.
                self._asked(bytes(self._from_client) + b"\n")
                self._from_client.clear()
            return
        self._from_client += data
        if b"\n" not in data:
            return
        whole, _, rest = bytes(self._from_client).rpartition(b"\n")
        self._from_client[:] = rest
        for line in whole.split(b"\n"):
            self._asked(line + b"\n")

    def _flush_and_shut(self) -> None:
        """Tell the hub that nothing more comes, once all of it is sent and, if that is quick, answered."""
        is_sent = self._is_greeted and not self._to_hub and not self._held
        if self._line and is_sent and not self._is_shut and not self._awaits_answers():
            self._is_shut = True
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)

    def _awaits_answers(self) -> bool:
        """Whether a client that has closed its side may still get an answer: calls in progress end with it."""
        is_quick = any(request.method != "tools/call" for request in self._unanswered.values())
        limit = FIRST_ANSWERS_S if is_quick else LAST_ANSWERS_S
        return bool(self._unanswered) and time.monotonic() < max(self._left_at, self._begun_at) + limit

    def _asked(self, line: bytes) -> None:
        """A line of the client's: it is passed on, and a request is kept until it is answered."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        self._send(line, self._note(message, line) if isinstance(message, dict) else None)

    def _note(self, message: dict[str, Any], line: bytes) -> Request | None:
        method, number, params = message.get("method"), message.get("id"), message.get("params")
        given = params if isinstance(params, dict) else {}
        if method == "notifications/initialized":
            self._started_notice = line
        elif method == "notifications/cancelled":
            self._note_cancelled(given.get("requestId"))
        if not isinstance(method, str) or not isinstance(number, (str, int)):
            return None
        self._note_standing(method, given, number, line)
        self._done.discard(number)
        known = self._memory.answer(message) if self._memory is not None else b""
        if known and not self._is_greeted:
            self._to_client += known
            self._done.add(number)
            return None
        request = self._unanswered[number] = Request(method, line)
        return request

    def _note_cancelled(self, number: Any) -> None:
        """Its command is ended by the hub that runs it or, should that one be gone, by the next."""
        request = self._unanswered.pop(number, None) if isinstance(number, (str, int)) else None
        if request and request.name:
            now = time.monotonic()
            self._cancelled = {name: it for name, it in self._cancelled.items() if now < it[0] + CANCELLED_S}
            self._cancelled[request.name] = now, request.line

    def _note_standing(self, method: str, given: dict[str, Any], number: Any, line: bytes) -> None:
        """Some requests stay in force for the conversation, so another hub has to hear them, too."""
        if method in ("initialize", "logging/setLevel"):
            self._standing[method] = (number, line)
        elif method == "resources/subscribe":
            self._standing[f"subscribe {given.get('uri')}"] = (number, line)
        elif method == "resources/unsubscribe":
            self._standing.pop(f"subscribe {given.get('uri')}", None)

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
                self._sent += sent
        except BlockingIOError:
            return

    def _read_hub(self) -> bool:
        """Take what the hub says; False where it has hung up."""
        assert self._line is not None
        try:
            data = self._line.recv(CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._heard()
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

    def _read_last_words(self) -> None:
        """What a hub had answered before it went is not asked of another."""
        with contextlib.suppress(OSError):
            for _ in range(1000):
                if not self._read_hub():
                    return

    def _passes(self, line: bytes) -> bool:
        """Whether a line of the hub's goes to the client; one that has its answer gets no other."""
        if not (self._unanswered or self._done):
            return True
        found = ANSWER.match(line)
        message = None if found else json.loads(line)
        if message is not None and ("method" in message or "id" not in message):
            return True
        number = json.loads(found[1]) if found else message["id"] if message else None
        if self._unanswered.pop(number, None):
            # It works: should it die, it is not one that dies at once.
            self._attempts = 0
        if self._memory is not None and number in self._memory.asked:
            self._memory.learn(number, message or json.loads(line))
        if number in self._done:
            self._done.discard(number)
            return False
        return True

    # A hub that does not answer

    def _look_after_calls(self) -> None:
        now = time.monotonic()
        if now > self._looked_at + self._patience() + STOPPED_S and not self._is_told:
            # Nothing was asked, or this process did not run either: the hub has not had the time that went by.
            self._heard_at = self._begun_at = now
        self._looked_at = now
        if not self._is_greeted:
            self._await_greeting(now)
        elif not self._unanswered or self._client_ended:
            self._stop_asking()
        elif now > self._heard_at + ASK_EVERY_S:
            self._find_out(now)

    def _await_greeting(self, now: float) -> None:
        limit = FIRST_GREETING_S if self._is_new else GREETING_S
        if now > self._begun_at + limit:
            raise NoHub(f"a hub has not greeted for {limit:.0f} s")
        if now > self._begun_at + PROMPT_S and not self._hub and self._memory is None:
            self._memory = remembered(self._place, self._config)
            for number, request in list(self._unanswered.items()):
                if known := self._memory.answer(json.loads(request.line)):
                    self._to_client += known
                    self._done.add(number)
                    del self._unanswered[number]

    def _find_out(self, now: float) -> None:
        """Ask the hub whether it is there; where it is not, answer in its place before clients run out of patience."""
        if self._asking is None:
            self._asked_at = now
            self._ask_whether_it_is_there()
        elif now > self._asked_at + ANSWER_S and not self._is_told:
            self._is_told = True
            say(f"the hub (process {self._hub}) does not answer; calls are answered here if it goes on")
        silent = now - self._heard_at
        if self._is_told and silent > GIVE_UP_S and now > self._asked_at + GLANCE_S:
            for number, request in list(self._unanswered.items()):
                self._give_up(number, request, silent)

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
                self._heard()
        self._stop_asking()

    def _heard(self) -> None:
        """The hub is there."""
        self._heard_at = time.monotonic()
        if self._is_told:
            self._is_told = False
            say(f"the hub (process {self._hub}) answers again")
            self._send_held()

    def _stop_asking(self) -> None:
        self._close(self._asking)
        self._asking = None

    def _give_up(self, number: Any, request: Request, seconds: float) -> None:
        """One that was not sent is forgotten, and one that was is cancelled, for when the hub goes on."""
        was_sent = not any(held is request for _, held in self._held)
        self._held = [(line, held) for line, held in self._held if held is not request]
        if was_sent:
            self._cancelled[request.name] = time.monotonic(), request.line
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
            self._held.append((json.dumps(cancel).encode() + b"\n", None))
        what = MAYBE if was_sent else NOT_BEGUN
        self._answer_here(number, STOPPED.format(pid=self._hub, seconds=seconds, what=what))

    def _answer_here(self, number: Any, told: str) -> None:
        """Answer in the hub's place."""
        answer: dict[str, Any] = {"error": {"code": -32603, "message": told}}
        if self._unanswered.pop(number).method == "tools/call":
            answer = {"result": {"content": [{"type": "text", "text": told}], "isError": True}}
        self._to_client += json.dumps({"jsonrpc": "2.0", "id": number} | answer).encode() + b"\n"
        self._done.add(number)

    # The end

    def _hand_over(self) -> Handed:
        who, lines = self._opening()
        while self._to_client:
            self._write_client()
            select.select([], [1], [])
        os.set_blocking(1, True)
        self._close(self._line)
        self._stop_asking()
        answered = {number for number, _ in self._standing.values() if number not in self._unanswered} | self._done
        heard = b"".join(line for line, _ in lines) + bytes(self._from_client)
        return Handed(heard, frozenset(answered), who)

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

    def learn(self, number: Any, answer: dict[str, Any]) -> None:
        key = self.asked.pop(number)
        if "result" in answer:
            self._memory.learn(key, answer["result"])


def start_hub(place: Place, lock: int, listener: int) -> None:
    """Most fronts find a hub, and are spared what it takes to start one. Raises NoHub."""
    from ..hub_contact.starting import start

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
        return Handed()
    os.set_blocking(1, False)
    return Front(place, os.environ, os.path.abspath(os.path.expanduser(config)) if config else "").run()


def sandbox_in(line: bytes) -> str:
    """The sandbox that a call names; nothing where it names none."""
    try:
        given = json.loads(line)["params"]["arguments"]
        return str(given.get("sandbox_name") or given.get("sandbox_id") or "")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""


def current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def say(text: str) -> None:
    print(f"remote-sandbox-mcp: {text}", file=sys.stderr, flush=True)


def leave() -> None:
    os._exit(0)
