"""The first line on the hub's socket: who calls, with which configuration; and the hub's answer."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .place import NoHub

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Begins a line of the hub's that is for the front alone: sandbox, path, and the version of that file that the client
# has seen, or null. In an answer to a client it cannot occur, because quotes within a text are escaped there.
VERSION = "remote-sandbox/version"
VERSION_LINE = b'{"%s":' % VERSION.encode()
# Key of an error's code and fields in `_meta`. Not structured content: that would have to match the tool's output
# schema, and strict clients reject the whole answer otherwise.
ABOUT_ERROR = "remote-sandbox/error"
# For a session; for HTTP on a socket that is handed over; for a question of ours, which is answered in one line; for a
# person who logs in to a machine at a terminal; for a verb of the command line, on streams that are handed over; for a
# program that uses the Python API.
SERVE, HTTP, ASK, LOGIN, VERB, PROGRAM = "serve", "http", "ask", "login", "verb", "program"


def say_hello(kind: str, environ: Mapping[str, str], folder: str, **said: Any) -> bytes:
    """The first line of a caller in `folder`, with what its kind says besides.

    SERVE: the fields of its conversation (see Transcript.opening); HTTP: the terms of serving over HTTP, with the key;
    LOGIN: the machine's name; PROGRAM: the session, which names its calls also when another hub goes on with them, and
    the `sources` that the hub must have, too. All of these: the `config` file. VERB: the words after the command's
    name, and whether a person sits at the terminal (`can_ask`).
    """
    return json.dumps({"hello": kind, **said, "environ": dict(environ), "folder": folder}).encode() + b"\n"


def ask(question: str, **more: Any) -> bytes:
    return json.dumps({"hello": ASK, "question": question, **more}).encode() + b"\n"


def say_version(sandbox: str, path: str, version: str | None) -> bytes:
    return json.dumps({VERSION: [sandbox, path, version]}, separators=(",", ":")).encode() + b"\n"


def read(line: bytes) -> dict[str, Any]:
    """The message in a line. Raises ValueError."""
    said = json.loads(line)
    if not isinstance(said, dict):
        raise ValueError("it is no object")
    return said


def read_answer(line: bytes) -> dict[str, Any]:
    """A hub's answer. Raises NoHub where it refuses, or cannot be understood."""
    try:
        said = read(line)
    except ValueError:
        raise NoHub("the hub speaks another language") from None
    if refusal := said.get("refused"):
        raise NoHub(str(refusal))
    return said


class Handover:
    """A conversation that this process has to serve itself, because there is no hub."""

    def __init__(self, heard: bytes = b"", answered: frozenset[Any] = frozenset(), who: Any = None) -> None:
        self.heard = heard
        self.answered = answered
        # The conversation, as it would have been sent to a hub.
        self.who: dict[str, Any] = who or {}
