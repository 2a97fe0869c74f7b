"""A browser's side of the page, by hand: it enters, asks, and reads streams of events."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    RejectConnection,
    Request,
    TextMessage,
)

HOST = "127.0.0.1"
# Beside other work, a first login to a machine may take this long.
SOON_S = 30.0


class Answered:
    """An answer that was read to its end."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.body = answer.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """One browser at one port. It sends the cookie and the token that it was given, unless told otherwise."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""
        self.token = ""

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answered:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=SOON_S)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, self.headers(body is not None, headers))
            return Answered(connection.getresponse())
        finally:
            connection.close()

    def headers(self, has_body: bool, more: dict[str, str]) -> dict[str, str]:
        given = {"Content-Type": "application/json"} if has_body else {}
        given |= {"Cookie": self.cookie} if self.cookie else {}
        given |= {"X-Page-Token": self.token} if self.token else {}
        given |= {name.replace("_", "-"): value for name, value in more.items()}
        return {name: value for name, value in given.items() if value}

    def enter(self, key: str) -> Answered:
        answer = self.ask("POST", "/ui/enter", {"key": key})
        if answer.status == 200:
            self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
            self.token = answer.json["token"]
        return answer

    def call(self, tool: str, **arguments: Any) -> Any:
        answer = self.ask("POST", "/ui/api/call", {"tool": tool, "arguments": arguments})
        assert answer.status == 200, answer.body
        return answer.json

    @contextmanager
    def stream(self, path: str = "/ui/api/stream", **query: str) -> Iterator[Stream]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=SOON_S)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}" if query else path, None, self.headers(False, {}))
            assert connection.sock is not None
            yield Stream(connection.getresponse(), connection.sock)
        finally:
            connection.close()

    @contextmanager
    def terminal(self, path: str = "/ui/api/terminal", **changes: str) -> Iterator[Socket]:
        """A WebSocket, asked for as our page does except for these headers; an empty one is left out."""
        headers = {
            "Host": f"{HOST}:{self.port}",
            "Origin": f"http://{HOST}:{self.port}",
            "Cookie": self.cookie,
            "Sec-WebSocket-Protocol": f"terminal, token.{self.token}",
        } | {name.replace("_", "-"): value for name, value in changes.items()}
        with socket.create_connection((HOST, self.port), timeout=SOON_S) as line:
            yield Socket(line, path, headers)


class Socket:
    """The browser's end of a WebSocket. `status` 101 says that there is one."""

    def __init__(self, line: socket.socket, path: str, headers: dict[str, str]) -> None:
        self.line = line
        self._wire = WSConnection(ConnectionType.CLIENT)
        words = headers.pop("Sec-WebSocket-Protocol").split(", ")
        given = [(name.encode(), value.encode()) for name, value in headers.items() if value and name != "Host"]
        self._put(Request(host=headers["Host"], target=path, extra_headers=given, subprotocols=words))
        first = next(self.events(), None)
        self.status = 101 if isinstance(first, AcceptConnection) else 0
        if isinstance(first, RejectConnection):
            self.status = first.status_code

    def send(self, value: Any) -> None:
        self._put(BytesMessage(value) if isinstance(value, bytes) else TextMessage(json.dumps(value)))

    def say(self, **fields: Any) -> None:
        self.send(fields)

    def heard(self) -> Iterator[bytes | dict[str, Any]]:
        """What is shown, and what is said, until it is closed; parts of what is shown are taken at once."""
        for event in self.events():
            if isinstance(event, BytesMessage):
                yield bytes(event.data)
                self.say(took=len(event.data))
            elif isinstance(event, TextMessage):
                yield json.loads(event.data)

    def _put(self, event: Event) -> None:
        self.line.sendall(self._wire.send(event))

    def events(self) -> Iterator[Event]:
        while True:
            for event in self._wire.events():
                if isinstance(event, CloseConnection):
                    return
                yield event
            data = self.line.recv(1 << 16)
            if not data:
                return
            self._wire.receive_data(data)


class Stream:
    """A stream of events. `topics` are the rows, put together as the page does."""

    def __init__(self, answer: http.client.HTTPResponse, line: socket.socket) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.line = line
        self.topics: dict[str, dict[str, Any]] = {}
        self.said = ""
        self._answer = answer

    def events(self) -> Iterator[tuple[str, Any]]:
        """Each event with its data, until the stream ends. A comment has neither a name nor data."""
        name = ""
        while line := self._answer.readline().decode():
            self.said += line
            if line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])
            elif line.startswith(":"):
                yield "", None

    def until(self, holds: Callable[[dict[str, dict[str, Any]]], Any], what: str) -> Any:
        deadline = time.monotonic() + SOON_S
        if found := holds(self.topics):
            return found
        for name, change in self.events():
            assert time.monotonic() < deadline, f"waited for {what}: {self.topics}"
            if name == "change":
                self._put(change)
            if found := holds(self.topics):
                return found
        raise AssertionError(f"the stream ended before {what}: {self.topics}")

    def row(self, topic: str, id: str, holds: Callable[[Any], Any] = bool) -> Any:
        def found(topics: dict[str, dict[str, Any]]) -> Any:
            row = topics.get(topic, {}).get(id)
            return row if row and holds(row) else None

        return self.until(found, f"{topic}/{id}")

    def _put(self, change: Any) -> None:
        rows = {} if change.get("whole") else self.topics.get(change["topic"], {})
        kept = {id: row for id, row in rows.items() if id not in change["gone"]}
        self.topics[change["topic"]] = kept | change["put"]
