"""The process that a client starts: copies lines between client and hub, and starts a hub where there is none.

A hub that dies is replaced; the conversation is opened again there, and what was not answered is sent once more. Only
what is needed for that is imported: a client waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Mapping

from ..services.hub_contact.hello import ABOUT_ERROR, SERVE, VERSION_LINE, Handover, read_answer, say_hello
from ..services.hub_contact.place import HubPlace, NoHub, current_folder, reach
from .silence import Silence, say
from .transcript import MOST_HUBS, Transcript, UnansweredRequest, answered_in, is_answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 1 << 16
# Stop reading from one side while this many bytes wait to be sent to the other.
MOST_WAITING = 16 << 20
# After this many hubs in a row that ended soon and answered nothing, this process serves the client itself.
MOST_ATTEMPTS, STEADY_S = 5, 5.0
# How long to wait for a hub's greeting; one that has just been started needs longer.
GREETING_S, FIRST_GREETING_S = 10.0, 20.0
# The client's first questions (initialize, tools/list) are answered from a cache if the hub takes longer than this.
PROMPT_S = 0.5
# Questions answered from the cache are still put to the hub, to check the cache: once nothing else happens for so long.
QUIET_S = 1.0
# If a wait took this much longer than asked, this process was suspended as well.
STOPPED_S = 3.0
# After the client's end: time for answers to calls, for answers to first questions, for the hub to end, for it to
# greet.
LAST_ANSWERS_S, FIRST_ANSWERS_S, ENDING_S, COLD_ENDING_S = 0.3, 5.0, 1.0, 10.0
STOPPED = (
    "the hub of remote-sandbox-mcp (process {pid}) has not answered for {seconds:.0f} s, so {what}. "
    "`remote-sandbox-mcp hub restart` starts another"
)
MAYBE = "whether this was done is not known: look before you repeat it"
NOT_BEGUN = "this was not begun"
ONLY_READS = "this was given up; it only reads, so it may be repeated"
DEADLY = (
    "{hubs} processes of remote-sandbox-mcp have ended one after another while they worked on this, so {what}; their "
    "log is {log}"
)


class LineSplitter:
    """Splits incoming bytes into lines."""

    def __init__(self) -> None:
        self.rest = bytearray()

    def take(self, data: bytes) -> bytes:
        """All complete lines; an incomplete last one is kept."""
        if not (end := data.rfind(b"\n") + 1):
            self.rest += data
            return b""
        whole = bytes(self.rest) + data[:end]
        self.rest[:] = data[end:]
        return whole


class Front:
    """One client's conversation with the hub."""

    def __init__(self, place: HubPlace, environ: Mapping[str, str], config: str) -> None:
        self._place = place
        self._environ = environ
        self._config = config
        self._kept = Transcript()
        self._connection: socket.socket | None = None
        self._is_greeted = self._is_new = False
        self._attempts = 0
        # Pid of the hub.
        self._hub = 0
        self._silence = Silence(place)
        self._memory: Remembering | None = None
        self._from_client, self._from_hub = LineSplitter(), LineSplitter()
        # Bytes waiting to be written.
        self._to_client, self._to_hub = bytearray(), bytearray()
        # Lines for a hub that has not greeted or does not answer; and what was sent to this hub: number of lines,
        # bytes.
        self._held: list[tuple[bytes, UnansweredRequest | None]] = []
        self._lines_sent = self._queued = self._sent = 0
        # Questions that the hub gets once all is quiet, and when the client has last sent something.
        self._put_off: list[bytes] = []
        self._stirred_at = 0.0
        self._client_ended = self._is_shut = False
        # Descriptors that are polled; kept, because they are usually the same as in the turn before.
        self._poll, self._wanted = select.poll(), dict[int, int]()
        self._begun_at = self._checked_at = time.monotonic()
        self._left_at = 0.0

    def run(self) -> Handover | None:
        """Serve until the client goes. Returns the conversation for this process to serve where there is no hub."""
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
        """Connect and introduce ourselves; the lines follow when the hub has greeted. Raises NoHub."""
        if self._attempts >= MOST_ATTEMPTS:
            raise NoHub(f"{self._attempts} hubs in a row have ended at once; see {self._place.log}")
        self._attempts += 1
        self._connection, self._is_new = reach(self._place)
        self._connection.setblocking(False)
        if self._is_new and not self._hub and self._memory is None:
            self._memory = remembered(self._place, self._config)
        self._is_greeted = self._is_shut = False
        self._begun_at = time.monotonic()
        self._silence.begin()
        who = self._begin_again()
        self._from_hub.rest.clear()
        self._to_hub[:] = say_hello(SERVE, self._environ, current_folder(), config=self._config, **who)
        self._lines_sent, self._queued, self._sent = 0, len(self._to_hub), 0

    def _begin_again(self) -> dict[str, Any]:
        """Queue the lines with which the conversation begins at another hub; returns what its hello has to say."""
        who, self._held, spent = self._kept.opening(self._sent)
        for number in spent:
            self._answer_here(number, DEADLY, hubs=MOST_HUBS, log=self._place.log)
        return who

    def _lost(self, why: str) -> bool:
        """The hub is gone: open another. Returns whether there is anything left to do. Raises NoHub."""
        self._close_connection()
        if self._client_ended and (self._is_shut or not self._kept.unanswered):
            return False
        if self._is_greeted:
            say(f"the hub (process {self._hub}) has ended ({why}); another takes its place")
        if self._is_greeted and time.monotonic() > self._begun_at + STEADY_S:
            self._attempts = 0
        self._open()
        return True

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _greeted(self, line: bytes) -> None:
        """Take the hub's first line. Raises NoHub where it refuses us."""
        said = read_answer(line)
        self._is_greeted = self._kept.was_served = True
        self._begun_at = time.monotonic()
        is_first, self._hub = not self._hub, int(said.get("pid", 0))
        for note in said.get("notes", ()) if is_first else ():
            say(str(note))
        self._send_held()

    # One turn of the loop

    def _turn(self) -> bool:
        """Wait for something to do and do it. Returns whether to go on."""
        assert self._connection is not None
        wanted: dict[int, int] = {self._connection.fileno(): 0}
        if len(self._to_client) < MOST_WAITING:
            wanted[self._connection.fileno()] |= select.POLLIN
        if self._to_hub:
            wanted[self._connection.fileno()] |= select.POLLOUT
        if not self._client_ended and self._waiting() < MOST_WAITING:
            wanted[0] = select.POLLIN
        if self._to_client:
            wanted[1] = select.POLLOUT
        if self._silence.asking:
            wanted[self._silence.asking.fileno()] = select.POLLIN
        if wanted != self._wanted:
            self._poll, self._wanted = select.poll(), wanted
            for fd, events in wanted.items():
                self._poll.register(fd, events)
        return self._handle(dict(self._poll.poll(self._patience() * 1000)))

    def _waiting(self) -> int:
        return len(self._to_hub) + sum(len(line) for line, _ in self._held)

    def _handle(self, ready: dict[int, int]) -> bool:
        """Do what can be done without waiting. Returns whether to go on."""
        if 0 in ready:
            self._read_client()
        if is_broken(ready.get(1, 0)):
            return False
        asking = self._silence.asking
        if asking and asking.fileno() in ready and self._silence.hear():
            self._heard()
        if why := self._copy(ready):
            return self._lost(why)
        if self._to_client:
            self._write_client()
        self._check_calls()
        if self._client_ended:
            self._flush_and_shut()
        return not self._is_over()

    def _copy(self, ready: dict[int, int]) -> str:
        """Read from the hub and write to it; returns why the connection is lost, or nothing."""
        assert self._connection is not None
        try:
            if ready.get(self._connection.fileno(), 0) & ~select.POLLOUT and not self._read_hub():
                return "it closed the line"
            if self._to_hub:
                self._write_hub()
        except OSError as error:
            self._read_last_words()
            return error.strerror or "its line broke"
        return ""

    def _patience(self) -> float:
        if self._client_ended:
            return 0.05
        if not self._is_greeted:
            return PROMPT_S / 2
        if self._kept.unanswered:
            return self._silence.turn_s
        return QUIET_S if self._put_off else 3600.0

    def _is_over(self) -> bool:
        if not self._client_ended:
            return False
        limit = ENDING_S if self._is_shut else COLD_ENDING_S
        return time.monotonic() > max(self._left_at, self._begun_at) + limit

    # From the client to the hub

    def _read_client(self) -> None:
        data = os.read(0, CHUNK)
        self._stirred_at = time.monotonic()
        if data:
            whole = self._from_client.take(data)
        else:
            self._client_ended, self._left_at = True, time.monotonic()
            # The client's last line may have no line break.
            whole = bytes(self._from_client.rest) + b"\n" if self._from_client.rest else b""
            self._from_client.rest.clear()
        if whole:
            self._pass_to_hub(whole)

    def _pass_to_hub(self, whole: bytes) -> None:
        """Pass on the client's lines first and parse them afterwards, while the hub works on them."""
        is_sent = self._is_greeted and not self._silence.is_reported
        if is_sent:
            self._to_hub += whole
            # An error comes up again, and is handled, at the end of this turn.
            with contextlib.suppress(OSError):
                self._write_hub()
        for line in split(whole):
            message = parsed(line)
            request = self._note(message, line)
            if is_sent:
                self._count(line, request)
            # Whether it is a question that was answered from the cache, and that changes nothing in the server. A new
            # hub needs as long for the list of tools as for a first call, which would wait for it.
            elif self._memory is not None and self._memory.may_wait(message) and message["id"] in self._kept.done:
                self._put_off.append(line)
            elif not is_answer(message):
                # An answer is of use only to the hub that asked, which is gone, and may be a secret.
                self._held.append((request.line if request else line, request))

    def _note(self, message: Any, line: bytes) -> UnansweredRequest | None:
        """Keep a request until it is answered; some are answered from the cache."""
        request = self._kept.note(message, line) if isinstance(message, dict) else None
        return None if request and self._answer_from_memory(message) else request

    def _answer_from_memory(self, message: dict[str, Any]) -> bool:
        answer = self._memory.answer(message) if self._memory is not None else b""
        if not answer or self._is_greeted:
            return False
        self._to_client += answer
        self._kept.note_answer(message["id"], answer)
        self._kept.done.add(message["id"])
        return True

    def _count(self, line: bytes, request: UnansweredRequest | None) -> None:
        """Give a sent line its name, and note at which byte of all that was sent it ends."""
        if request is not None:
            request.name = request.name or f"{self._kept.prefix}{self._lines_sent}"
            request.end = self._queued + len(line)
        self._lines_sent += 1
        self._queued += len(line)

    def _send_held(self) -> None:
        held, self._held = self._held, []
        for line, request in held:
            self._to_hub += line
            self._count(line, request)

    def _write_hub(self) -> None:
        assert self._connection is not None
        try:
            while self._to_hub:
                sent = self._connection.send(self._to_hub)
                del self._to_hub[:sent]
                self._sent += sent
        except BlockingIOError:
            return

    def _flush_and_shut(self) -> None:
        """Close our writing side once everything is sent and, if that is quick, answered."""
        is_sent = self._is_greeted and not self._to_hub and not self._held
        if self._connection and is_sent and not self._is_shut and not self._awaits_answers():
            self._is_shut = True
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

    def _awaits_answers(self) -> bool:
        """Whether a client that closed its input may still get an answer; calls in progress end with it."""
        unanswered = self._kept.unanswered
        is_quick = any(request.method != "tools/call" for request in unanswered.values())
        limit = FIRST_ANSWERS_S if is_quick else LAST_ANSWERS_S
        return bool(unanswered) and time.monotonic() < max(self._left_at, self._begun_at) + limit

    # From the hub to the client

    def _read_hub(self) -> bool:
        """Read what the hub sends; False where it has closed the connection."""
        assert self._connection is not None
        try:
            data = self._connection.recv(CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        whole = self._from_hub.take(data)
        if whole and not self._is_greeted:
            first, _, whole = whole.partition(b"\n")
            self._greeted(first)
        if VERSION_LINE in whole:
            whole = self._kept.without_versions(split(whole))
        if whole:
            self._pass_to_client(whole)
        self._heard()
        return True

    def _pass_to_client(self, whole: bytes) -> None:
        """Pass on the hub's lines; if all are for the client, write them first and parse them afterwards."""
        is_written = not self._kept.done
        if is_written:
            self._to_client += whole
            self._write_client()
        for line in split(whole):
            if self._passes(line) and not is_written:
                self._to_client += line

    def _passes(self, line: bytes) -> bool:
        """Whether a line of the hub goes to the client: a second answer to the same request does not."""
        kept = self._kept
        if not (kept.unanswered or kept.done):
            return True
        number, message = answered_in(line)
        if number is None:
            return True
        if kept.note_answer(number, line):
            # It answers, so it does not count among hubs that end at once.
            self._attempts = 0
        if self._memory is not None and number in self._memory.asked:
            self._memory.learn(number, message or json.loads(line))
        if number in kept.done:
            kept.done.discard(number)
            return False
        return True

    def _read_last_words(self) -> None:
        """Take answers that a hub sent before it died: they need not be asked of another."""
        with contextlib.suppress(OSError):
            for _ in range(1000):
                if not self._read_hub():
                    return

    def _write_client(self) -> None:
        try:
            while self._to_client:
                sent = os.write(1, self._to_client)
                del self._to_client[:sent]
        except BlockingIOError:
            pass
        except OSError:
            # The client no longer reads.
            leave()

    # A hub that does not answer

    def _check_calls(self) -> None:
        now, silence = time.monotonic(), self._silence
        if now > self._checked_at + self._patience() + STOPPED_S and not silence.is_reported:
            # Nothing was asked, or this process was suspended as well: that time does not count as silence.
            silence.heard_at = self._begun_at = now
        self._checked_at = now
        if not self._is_greeted:
            self._await_greeting(now)
        elif not self._kept.unanswered or self._client_ended:
            silence.stop_asking()
            is_quiet = now >= max(self._stirred_at, silence.heard_at) + QUIET_S
            if self._put_off and is_quiet and not self._client_ended:
                put_off, self._put_off = self._put_off, []
                for line in put_off:
                    self._to_hub += line
                    self._count(line, None)
        elif seconds := silence.find_out(now, self._hub):
            for number, request in list(self._kept.unanswered.items()):
                self._give_up(number, request, seconds)

    def _await_greeting(self, now: float) -> None:
        limit = FIRST_GREETING_S if self._is_new else GREETING_S
        if now > self._begun_at + limit:
            raise NoHub(f"a hub has not greeted for {limit:.0f} s")
        if now > self._begun_at + PROMPT_S and not self._hub and self._memory is None:
            self._memory = remembered(self._place, self._config)
            for request in list(self._kept.unanswered.values()):
                self._answer_from_memory(json.loads(request.line))

    def _heard(self) -> None:
        """The hub has shown a sign of life."""
        self._silence.heard_at = time.monotonic()
        if self._silence.is_reported:
            self._silence.is_reported = False
            say(f"the hub (process {self._hub}) answers again")
            self._send_held()

    def _give_up(self, number: Any, request: UnansweredRequest, seconds: float) -> None:
        """Forget a request that was not sent; cancel one that was, for when the hub goes on."""
        was_sent = not any(held is request for _, held in self._held)
        self._held = [(line, held) for line, held in self._held if held is not request]
        if was_sent:
            self._kept.give_up(request)
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
            self._held.append((json.dumps(cancel).encode() + b"\n", None))
        self._answer_here(number, STOPPED, was_sent, pid=self._hub, seconds=seconds)

    def _answer_here(self, number: Any, sentence: str, was_sent: bool = True, **parts: Any) -> None:
        """Answer a request in the hub's place."""
        request = self._kept.answered_here(number)
        is_harmless = not was_sent or self._kept.only_reads(request)
        what = NOT_BEGUN if not was_sent else ONLY_READS if is_harmless else MAYBE
        about = {"code": "connection_lost", "outcome": "not_started" if is_harmless else "unknown"}
        text = sentence.format(what=what, **parts)
        answer: dict[str, Any] = {"error": {"code": -32603, "message": text, "data": about}}
        if request.method == "tools/call":
            content = [{"type": "text", "text": text}]
            answer = {"result": {"content": content, "isError": True, "_meta": {ABOUT_ERROR: about}}}
        self._to_client += json.dumps({"jsonrpc": "2.0", "id": number} | answer).encode() + b"\n"

    # The end

    def _hand_over(self) -> Handover:
        who = self._begin_again()
        while self._to_client:
            self._write_client()
            select.select([], [1], [])
        os.set_blocking(1, True)
        self._close_connection()
        self._silence.stop_asking()
        heard = b"".join(line for line, _ in self._held) + bytes(self._from_client.rest)
        return Handover(heard, self._kept.already_answered(), who)


class Remembering:
    """The cache of first answers, and which of them the client has asked for."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.asked: dict[Any, str] = {}

    def answer(self, question: Any) -> bytes:
        if key := self._memory.key(question):
            self.asked[question["id"]] = key
            return bytes(self._memory.answer(question))
        return b""

    def may_wait(self, question: Any) -> bool:
        from ..fronts.mcp.handshake import LISTS

        return bool(self._memory.key(question)) and question["method"] in LISTS

    def learn(self, number: Any, answer: dict[str, Any]) -> None:
        self._memory.learn(self.asked.pop(number), answer)


def remembered(place: HubPlace, config: str) -> Remembering:
    from pathlib import Path

    from ..fronts.mcp.handshake import first_memory

    return Remembering(first_memory(Path(place.state), Path(config) if config else None))


def run(config: str) -> Handover | None:
    """Serve the client on standard streams through the hub; returns what is left to do where there is none."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: leave())
    try:
        place = HubPlace(os.environ)
    except OSError as error:
        say(f"serving without a hub: {error}")
        return Handover()
    os.set_blocking(1, False)
    return Front(place, os.environ, os.path.abspath(os.path.expanduser(config)) if config else "").run()


def parsed(line: bytes) -> Any:
    """The message in a line, or None."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def split(whole: bytes) -> list[bytes]:
    """Complete lines, each with its line break."""
    return [line + b"\n" for line in whole[:-1].split(b"\n")]


def is_broken(events: int) -> bool:
    """Whether the reader at the other end is gone."""
    return bool(events & (select.POLLERR | select.POLLHUP | select.POLLNVAL)) and not events & select.POLLOUT


def leave() -> None:
    os._exit(0)
