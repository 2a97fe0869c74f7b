"""A call as its supervisor sees it: who waits for it, what it has printed, and what came of it."""

import json
import os
import select
import socket
import time

from .interpreter import GPU, IMAGE, TRACE, UNSEEN, VALUE
from .wire import ERR, OUT, RECORD, frame, split_frames

MYPY = False
if MYPY:
    from typing import Any

LONGEST_LINE = 80
# An interpreter sends no more; code that passes for it would fill the disk.
MOST_IMAGES = 4


class Caller:
    """A connected client."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.is_gone = False
        line.setblocking(False)

    def take(self) -> "list[tuple[bytes, bytes]]":
        """The frames that have come."""
        try:
            data = self.line.recv(1 << 18)
            self.inbox += data
            self.is_gone = self.is_gone or not data
            return split_frames(self.inbox)
        except BlockingIOError:
            return []
        except (OSError, ValueError):
            self.is_gone = True
            return []

    def send(self, data: bytes) -> None:
        self.outbox += data
        self.flush()

    def report(self, record: "dict[str, Any]") -> None:
        self.send(frame(RECORD, json.dumps(record).encode()))

    def flush(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: self.line.send(self.outbox[: 1 << 17])]
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True
            self.outbox.clear()

    def deliver(self, seconds: float) -> None:
        """Wait until the rest is read."""
        until = time.monotonic() + seconds
        while self.outbox and not self.is_gone and time.monotonic() < until:
            select.select([], [self.line], [], 0.1)
            self.flush()

    def close(self) -> None:
        self.outbox.clear()
        self.line.close()


class CodeCall:
    """One piece of code, from its order to its record. Raises KeyError and TypeError for an order that is none."""

    def __init__(self, order: "dict[str, Any]", caller: "Caller | None") -> None:
        self.caller = caller
        self.id = str(order["id"])
        self.code = str(order["code"])
        self.timeout = float(order["timeout"])
        self.limit = max(1000, min(int(order["limit"]), 1 << 21))
        self.python = str(order["python"])
        self.python_given = bool(order["python_given"])
        self.folder = str(order["cwd"])
        self.folder_given = bool(order["cwd_given"])
        self.cards, self.card_mb = int(order["cards"]), int(order["card_mb"])
        self.environment = {str(name): str(value) for name, value in order["env"].items()}
        self.wait_until = time.monotonic() + self.timeout
        self.token = os.urandom(8).hex().encode()
        self.begun = self.deadline = self.interrupted_at = 0.0
        self.interrupted = ""
        self.strikes = 0
        self.answered = self.is_new = False
        self.printed = {OUT: 0, ERR: 0}
        self.facts: "dict[str, Any]" = {}
        self.images: "list[dict[str, Any]]" = []

    @property
    def first_line(self) -> str:
        lines = self.code.strip().splitlines() or [""]
        return lines[0][:LONGEST_LINE]

    @property
    def backlog(self) -> int:
        return len(self.caller.outbox) if self.caller else 0

    @property
    def state(self) -> str:
        """Return how ended code has ended: an interrupt ends a program that it waits for, or itself."""
        if self.strikes:
            return self.interrupted
        return "error" if "traceback" in self.facts else "done"

    def begin(self, folder: str, earlier: "dict[str, Any]") -> None:
        self.begun = time.monotonic()
        self.deadline = self.begun + self.timeout
        self.facts.update(earlier)
        if self.folder_given and not self.is_new and os.path.realpath(self.folder) != folder:
            self.facts["folder"] = folder

    def interrupt(self, why: str) -> None:
        if not self.interrupted:
            self.interrupted = why
            self.interrupted_at = time.monotonic()

    def print(self, kind: bytes, data: bytes) -> None:
        self.printed[kind] += len(data)
        if self.caller:
            self.caller.send(frame(kind, data))

    def note(self, kind: bytes, body: bytes, folder: str) -> None:
        """Take what the interpreter says of the code."""
        if kind in (VALUE, TRACE):
            self.facts["value" if kind == VALUE else "traceback"] = body.decode("utf-8", "replace")
        elif kind == IMAGE:
            self.keep_image(body, folder)
        elif kind in (UNSEEN, GPU):
            self.facts["unseen" if kind == UNSEEN else "torch"] = body.decode("ascii", "replace")

    def keep_image(self, body: bytes, folder: str) -> None:
        path = os.path.join(folder, "%s-%d.png" % (self.token.decode(), len(self.images)))
        if len(self.images) >= MOST_IMAGES:
            return
        try:
            with open(path, "wb") as file:
                file.write(body)
            self.images.append({"path": path, "size": len(body)})
        except OSError:
            # The disk is full, or the folder is gone.
            self.facts["unseen"] = str(int(self.facts.get("unseen") or 0) + 1)

    def record(self, result: "dict[str, Any]") -> "dict[str, Any]":
        """Build the record for the caller."""
        record = dict(self.facts, **result)
        record.update(id=self.id, out=self.printed[OUT], err=self.printed[ERR], images=self.images)
        record["seconds"] = round(time.monotonic() - self.begun, 3) if self.begun else 0.0
        if self.is_new:
            record["new"] = True
        return record

    def answer(self, record: "dict[str, Any]") -> None:
        """Told once: whoever waits for a repeated call has taken the place of the first caller."""
        if self.caller:
            self.caller.report(record)
        self.answered = True
