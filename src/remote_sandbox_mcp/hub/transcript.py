"""Transcript of a client's conversation in a front, so that another hub can continue it."""

from __future__ import annotations

import json
import os
import re
import time

from ..services.hub_contact.hello import VERSION, VERSION_LINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A request that this many hubs died with is not sent to another.
MOST_HUBS = 10
# The next hub stops the commands of calls that were cancelled up to this long before.
CANCELLED_S = 30.0
# As many as a session remembers.
MOST_VERSIONS = 1000
# What a call carries that is made again with its user's answers, since 2026-07-28.
ANSWERS, STATE = "inputResponses", "requestState"
ANSWER = re.compile(rb'\{"jsonrpc":"2\.0","id":("[^"\\]*"|-?\d+),"(?:result|error)":')


class UnansweredRequest:
    """A request of the client that is not answered yet."""

    __slots__ = ("begun", "end", "hubs", "line", "method", "name", "since")

    def __init__(self, method: str, line: bytes) -> None:
        self.method = method
        self.line = line
        self.since = time.monotonic()
        # Its name in the session, once it was sent; and the position of its end among all bytes that were sent.
        self.name, self.end = "", 0
        # Whether a hub may have begun it, and how many may have died of it.
        self.begun, self.hubs = False, 0


class Transcript:
    """Requests until they are answered, and what another hub has to know before them."""

    def __init__(self) -> None:
        self._session = os.urandom(8).hex()
        # How many processes were asked to serve the conversation, and whether one has greeted.
        self._hubs = 0
        self.was_served = False
        # Requests by their id.
        self.unanswered: dict[Any, UnansweredRequest] = {}
        # Requests that the client has an answer to: from the cache, an earlier hub, or the front.
        self.done: set[Any] = set()
        self._standing: dict[str, tuple[Any, bytes]] = {}
        self._started_notice = b""
        self._cancelled: dict[str, tuple[float, bytes]] = {}
        # The last answer to tools/list.
        self._tools = b""
        # Which versions of files the client has seen last, by sandbox and path.
        self._versions: dict[tuple[str, str], str] = {}

    @property
    def prefix(self) -> str:
        """Prefix for the names of lines that are sent to the current hub."""
        return f"{self._hubs}."

    # What the client sends

    def note(self, message: dict[str, Any], line: bytes) -> UnansweredRequest | None:
        """Remember what another hub would have to know; returns the request, if the message is one."""
        method, number, params = message.get("method"), message.get("id"), message.get("params")
        given = params if isinstance(params, dict) else {}
        if method == "notifications/initialized":
            self._started_notice = line
        elif method == "notifications/cancelled":
            # The hub that runs its command stops it or, if that hub is gone, the next one.
            cancelled = given.get("requestId")
            request = self.unanswered.pop(cancelled, None) if isinstance(cancelled, (str, int)) else None
            if request and request.name:
                self.give_up(request)
        if not isinstance(method, str) or not isinstance(number, (str, int)):
            return None
        # Remember requests that stay in force (initialize, subscriptions), because another hub must get them, too.
        if method in ("initialize", "logging/setLevel"):
            self._standing[method] = (number, line)
        elif method == "resources/subscribe":
            self._standing[f"subscribe {given.get('uri')}"] = (number, line)
        elif method == "resources/unsubscribe":
            self._standing.pop(f"subscribe {given.get('uri')}", None)
        self.done.discard(number)
        request = self.unanswered[number] = UnansweredRequest(method, without_answers(message, line))
        return request

    def give_up(self, request: UnansweredRequest) -> None:
        """Remember a cancelled call, whose command may still run: the next hub stops it."""
        now = time.monotonic()
        self._cancelled = {name: it for name, it in self._cancelled.items() if now < it[0] + CANCELLED_S}
        self._cancelled[request.name] = now, request.line

    # What the client receives

    def without_versions(self, lines: list[bytes]) -> bytes:
        """Keep the file versions that the hub has sent, which are not for the client; returns the other lines."""
        for line in lines:
            if line.startswith(VERSION_LINE):
                sandbox, path, version = json.loads(line)[VERSION]
                self._versions.pop((sandbox, path), None)
                if version is not None:
                    self._versions[sandbox, path] = version
        for oldest in list(self._versions)[: max(0, len(self._versions) - MOST_VERSIONS)]:
            del self._versions[oldest]
        return b"".join(line for line in lines if not line.startswith(VERSION_LINE))

    def note_answer(self, number: Any, line: bytes) -> bool:
        """Forget the request that a line answers; returns whether there was one."""
        request = self.unanswered.pop(number, None)
        if request and request.method == "tools/list":
            self._tools = line
        return request is not None

    def only_reads(self, request: UnansweredRequest) -> bool:
        """Whether repeating it does no harm: it calls no tool, or one that only reads, as far as the list says."""
        if request.method != "tools/call":
            return True
        try:
            name = json.loads(request.line)["params"]["name"]
            tools = json.loads(self._tools)["result"]["tools"]
            return any(tool["name"] == name and tool["annotations"]["readOnlyHint"] is True for tool in tools)
        except (ValueError, LookupError, TypeError, RecursionError):
            return False

    def answered_here(self, number: Any) -> UnansweredRequest:
        """Note that the front has answered a request itself: an answer of the hub will be dropped."""
        self.done.add(number)
        return self.unanswered.pop(number)

    def already_answered(self) -> frozenset[Any]:
        """Lines of `opening` whose answers the client already has."""
        standing = {number for number, _ in self._standing.values() if number not in self.unanswered}
        return frozenset(standing | self.done)

    # For another process

    def opening(self, sent: int) -> tuple[dict[str, Any], list[tuple[bytes, UnansweredRequest | None]], list[Any]]:
        """Describe the conversation for another process, with the lines that it begins with there.

        `sent` is how many bytes the hub before it has received. `again` has what each of these lines was called
        before, or nothing where it cannot have begun anything; `prefix` is for the names of the lines after them;
        `cancelled` are calls that may have been left running; `resumed` is whether another process has served the
        conversation before; `versions` are those of files that the client has seen. The last are the ids of requests
        that too many hubs have died with.
        """
        now = time.monotonic()
        lines = self._lines_in_force()
        again: list[Any] = [None] * len(lines)
        spent = []
        for number, request in self.unanswered.items():
            if _is_spent(request, sent):
                spent.append(number)
                continue
            lines.append((request.line, request))
            again.append({"name": request.name, "waited_s": now - request.since} if request.begun else None)
        recent = {name: line for name, (at, line) in self._cancelled.items() if now < at + CANCELLED_S}
        cancelled = [{"name": name, **sandboxes_in(line)} for name, line in recent.items()]
        self._hubs += 1
        who = {"session": self._session, "prefix": self.prefix, "again": again, "cancelled": cancelled}
        versions = [[*which, version] for which, version in self._versions.items()]
        return {**who, "resumed": self.was_served, "versions": versions}, lines, spent

    def _lines_in_force(self) -> list[tuple[bytes, UnansweredRequest | None]]:
        lines: list[tuple[bytes, UnansweredRequest | None]] = []
        for number, line in self._standing.values():
            if number not in self.unanswered:
                # The client has the answer already; this hub's answer is dropped.
                self.done.add(number)
                lines.append((line, None))
        if self._started_notice:
            lines.append((self._started_notice, None))
        return lines


def without_answers(message: dict[str, Any], line: bytes) -> bytes:
    """A call without its user's answers to forms: they may be secret, and only the hub that asked can use them."""
    params = message.get("params")
    if not isinstance(params, dict) or ANSWERS not in params:
        return line
    rest = {name: value for name, value in params.items() if name not in (ANSWERS, STATE)}
    return json.dumps({**message, "params": rest}).encode() + b"\n"


def is_answer(message: Any) -> bool:
    """Whether a client's message answers a question of the hub's, such as a form."""
    return isinstance(message, dict) and "method" not in message and "id" in message


def _is_spent(request: UnansweredRequest, sent: int) -> bool:
    """Note whether the previous hub received it; returns whether too many hubs have died with it."""
    if request.name and not request.begun:
        request.begun = sent >= request.end
    if not request.begun:
        request.name = ""
    request.hubs += 1
    return request.hubs > MOST_HUBS


def sandboxes_in(line: bytes) -> dict[str, Any]:
    """The sandbox that a call names, empty where it names none; and the several that it names, if it does."""
    try:
        given = json.loads(line)["params"]["arguments"]
        named = str(given.get("sandbox_name") or given.get("sandbox_id") or "")
        return {"sandbox": named} | ({"sandboxes": several} if (several := given.get("sandbox_names")) else {})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {"sandbox": ""}


def answered_in(line: bytes) -> tuple[Any, dict[str, Any] | None]:
    """Id of the request that a line answers, None where it is not an answer; and the message, if it was parsed."""
    if found := ANSWER.match(line):
        return json.loads(found[1]), None
    message = json.loads(line)
    if not isinstance(message, dict) or "method" in message:
        return None, None
    return message.get("id"), message
